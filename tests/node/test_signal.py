"""Signals between the parts of a node: order of the listeners, arguments, errors."""

from __future__ import annotations

import pytest

from fenceline.node.signal import Signal


def test_listeners_are_called_in_the_order_in_which_they_were_added() -> None:
    heard: list[tuple[str, int]] = []
    signal: Signal[int] = Signal()
    signal(1)
    signal.listen(lambda number: heard.append(("first", number)))
    signal.listen(lambda number: heard.append(("second", number)))
    signal(2)
    assert heard == [("first", 2), ("second", 2)]


def test_an_error_of_a_listener_reaches_the_emitter() -> None:
    signal: Signal[[]] = Signal()
    signal.listen(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        signal()
