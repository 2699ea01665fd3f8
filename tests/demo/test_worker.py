"""Workers stop on request and keep the error that ended them."""

from __future__ import annotations

import threading

import pytest

from fenceline.demo.timeline import Timeline
from fenceline.demo.worker import RepeatingWorker, Worker
from fenceline.errors import OperatorError


class Endless(Worker):
    def __init__(self) -> None:
        super().__init__("endless")
        self.started = threading.Event()

    def work(self) -> None:
        self.started.set()
        self.pause(10_000)
        raise AssertionError("the worker was not stopped")


def test_a_stop_ends_a_pause_without_an_error() -> None:
    worker = Endless()
    worker.start()
    assert worker.started.wait(60)
    worker.stop()
    assert worker.error is None


def test_a_failed_action_is_retried() -> None:
    calls: list[int] = []
    done = threading.Event()

    def action() -> None:
        calls.append(len(calls))
        if len(calls) < 3:
            raise OperatorError("not yet")
        done.set()

    worker = RepeatingWorker("actions", action, 0.0, retries=True)
    worker.start()
    assert done.wait(60)
    worker.stop()
    assert worker.error is None


@pytest.mark.parametrize(
    ("error", "retries"), [(OperatorError("no"), False), (ZeroDivisionError(), False), (ZeroDivisionError(), True)]
)
def test_other_errors_end_the_worker_and_are_kept(error: Exception, retries: bool) -> None:
    failed = threading.Event()

    def action() -> None:
        failed.set()
        raise error

    worker = RepeatingWorker("actions", action, 0.0, retries=retries)
    worker.start()
    assert failed.wait(60)
    worker.stop()
    assert worker.error is error


def test_events_have_times_of_the_timeline_or_of_the_wall_clock() -> None:
    now = [100.0]
    timeline = Timeline(clock=lambda: now[0], wall=lambda: 5_000.0)
    now[0] = 103.5
    assert timeline.add("something") == 3.5
    assert timeline.add("an event of a file", timeline.at_wall_s(5_002.0)) == 2.0
    assert timeline.at_wall_s(4_000.0) == 0.0
    assert [(event.at_s, event.text) for event in timeline.events] == [
        (3.5, "something"),
        (2.0, "an event of a file"),
    ]
