"""An interrupt is no error, and the demo narrates what the client logs; other errors are logged."""

from __future__ import annotations

import logging

import pytest

from fenceline.demo.quiet import quiet


def logged(error: type[BaseException]) -> None:
    """As py4j does with what ends a call of Java."""
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


def test_the_clients_warnings_are_narrated_instead(caplog: pytest.LogCaptureFixture) -> None:
    with quiet():
        logging.getLogger("fenceline.client").warning("cut")
    assert not caplog.records


def test_afterwards_everything_is_logged_as_before(caplog: pytest.LogCaptureFixture) -> None:
    ours = logging.getLogger("fenceline")
    before = list(ours.handlers), ours.propagate
    with pytest.raises(KeyboardInterrupt), quiet():
        raise KeyboardInterrupt
    assert (ours.handlers, ours.propagate) == before
    logged(KeyboardInterrupt)
    ours.warning("cut")
    assert len(caplog.records) == 2
