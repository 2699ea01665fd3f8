"""A signal stops the demo once, cleanly, and never between the start of a process and the assignment of its handle."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fenceline.demo.stopping import Stopping


@pytest.fixture(autouse=True)
def no_signal_is_ignored() -> Iterator[None]:
    """Tests that run in the background or under nohup inherit ignored signals."""
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


def test_later_signals_have_no_effect() -> None:
    ended = False
    with Stopping():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            ended = True
    assert ended


def test_a_held_signal_is_deferred() -> None:
    reached = []

    def start_something(stopping: Stopping) -> None:
        with stopping.held():
            signal.raise_signal(signal.SIGTERM)
            reached.append("the end of the block")
        reached.append("what follows it")

    with Stopping() as stopping, pytest.raises(KeyboardInterrupt):
        start_something(stopping)
    assert reached == ["the end of the block"]


def test_replaced_handlers_are_installed_again_and_restored_at_the_end() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Stopping() as stopping:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        stopping.install()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == before


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Stopping():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_no_handler_is_installed_outside_of_the_main_thread() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def run() -> None:
        with Stopping():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [before]
