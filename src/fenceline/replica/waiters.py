"""Callbacks that wait for a change: an ordered set, so that the effects of a change are deterministic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Registry(Protocol):
    """Where a callback waits."""

    def add(self, callback: Callable[[], None]) -> None: ...
    def discard(self, callback: Callable[[], None]) -> None: ...


class Waiters(dict[Callable[[], None], None]):
    """Callbacks, each once, in registration order."""

    __slots__ = ()

    def add(self, callback: Callable[[], None]) -> None:
        self[callback] = None

    def discard(self, callback: Callable[[], None]) -> None:
        self.pop(callback, None)
