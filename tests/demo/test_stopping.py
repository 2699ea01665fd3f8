"""A signal ends the demo once, in order, and never between the start of a process and its keeping."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fenceline.demo.stopping import Stopping


@pytest.fixture(autouse=True)
def nothing_is_ignored() -> Iterator[None]:
    """Who starts the tests in the background, or by nohup, has them ignore signals."""
    handlers: dict[signal.Signals, Any] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_becomes_an_interrupt(number: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), Stopping():
        signal.raise_signal(number)
    assert "Stopping ..." in capsys.readouterr().out


def test_later_signals_do_not_disturb_the_end() -> None:
    ended = False
    with Stopping():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            ended = True
    assert ended


def test_a_held_signal_waits() -> None:
    reached = []

    def start_something(stopping: Stopping) -> None:
        with stopping.held():
            signal.raise_signal(signal.SIGTERM)
            reached.append("the end of the block")
        reached.append("what follows it")

    with Stopping() as stopping, pytest.raises(KeyboardInterrupt):
        start_something(stopping)
    assert reached == ["the end of the block"]


def test_handlers_of_others_are_replaced_and_the_old_ones_come_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Stopping() as stopping:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        stopping.install()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == before


def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Stopping():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_outside_of_the_main_thread_nothing_is_installed() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def run() -> None:
        with Stopping():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [before]
