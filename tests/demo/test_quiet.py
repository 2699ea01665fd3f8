"""Interrupts and the client's log lines are suppressed; other errors are logged."""

from __future__ import annotations

import logging

import pytest

from fenceline.demo.quiet import quiet


def logged(error: type[BaseException]) -> None:
    """As py4j logs an exception during a call into Java."""
    try:
        raise error
    except BaseException:
        logging.getLogger().exception("while sending a command")


def test_an_interrupt_is_not_logged_but_errors_are(caplog: pytest.LogCaptureFixture) -> None:
    with quiet():
        logged(KeyboardInterrupt)
        logged(ConnectionError)
        logging.getLogger("py4j").error("without an exception")
    assert [record.exc_info is not None for record in caplog.records] == [True, False]


def test_the_clients_warnings_are_suppressed(caplog: pytest.LogCaptureFixture) -> None:
    with quiet():
        logging.getLogger("fenceline.client").warning("truncated")
    assert not caplog.records


def test_afterwards_everything_is_logged_as_before(caplog: pytest.LogCaptureFixture) -> None:
    ours = logging.getLogger("fenceline")
    before = list(ours.handlers), ours.propagate
    with pytest.raises(KeyboardInterrupt), quiet():
        raise KeyboardInterrupt
    assert (ours.handlers, ours.propagate) == before
    logged(KeyboardInterrupt)
    ours.warning("truncated")
    assert len(caplog.records) == 2
