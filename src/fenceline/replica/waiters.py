"""Callbacks that wait for a change: a set with an order, so that what follows from a change is the same every time."""

from __future__ import annotations

from collections.abc import Callable


class Waiters(dict[Callable[[], None], None]):
    """Callbacks, each once, in the order in which they came."""

    __slots__ = ()

    def add(self, callback: Callable[[], None]) -> None:
        self[callback] = None

    def discard(self, callback: Callable[[], None]) -> None:
        self.pop(callback, None)
