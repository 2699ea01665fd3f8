"""Workers stop when they are asked to, and what ends them otherwise is not lost."""

from __future__ import annotations

import threading

import pytest

from fenceline.demo.narration import Narration
from fenceline.demo.worker import Repeated, Worker
from fenceline.errors import OperatorError


class Endless(Worker):
    def __init__(self) -> None:
        super().__init__("endless")
        self.began = threading.Event()

    def work(self) -> None:
        self.began.set()
        self.pause(10_000)
        raise AssertionError("it was to stop")


def test_a_stop_ends_a_pause_and_is_no_error() -> None:
    worker = Endless()
    worker.start()
    assert worker.began.wait(60)
    worker.stop()
    assert worker.error is None


def test_a_look_that_fails_is_made_again() -> None:
    looks: list[int] = []
    done = threading.Event()

    def look() -> None:
        looks.append(len(looks))
        if len(looks) < 3:
            raise OperatorError("not yet")
        done.set()

    worker = Repeated("looks", look, 0.0, patient=True)
    worker.start()
    assert done.wait(60)
    worker.stop()
    assert worker.error is None


@pytest.mark.parametrize(
    ("error", "patient"), [(OperatorError("no"), False), (ZeroDivisionError(), False), (ZeroDivisionError(), True)]
)
def test_other_errors_end_it_and_are_kept(error: Exception, patient: bool) -> None:
    failed = threading.Event()

    def look() -> None:
        failed.set()
        raise error

    worker = Repeated("looks", look, 0.0, patient=patient)
    worker.start()
    assert failed.wait(60)
    worker.stop()
    assert worker.error is error


def test_moments_are_dated_by_their_own_clock_or_by_the_machine() -> None:
    now = [100.0]
    narration = Narration(clock=lambda: now[0], wall=lambda: 5_000.0)
    now[0] = 103.5
    assert narration.tell("something") == 3.5
    assert narration.tell("what a file has dated", narration.at_wall_s(5_002.0)) == 2.0
    assert narration.at_wall_s(4_000.0) == 0.0
    assert [(moment.at_s, moment.text) for moment in narration.moments] == [
        (3.5, "something"),
        (2.0, "what a file has dated"),
    ]
