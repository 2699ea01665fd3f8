"""Signals: how a part of a node tells the parts that are built after it.

Two parts that need each other are both given the signal when they are built: the earlier one emits, the later one
listens. Owns the listeners and their order, never a thread or a loop: listeners run in the emitter's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Signal(Generic[P]):
    """Calls its listeners in the order in which they were added; without any it does nothing."""

    __slots__ = ("_listeners",)

    def __init__(self) -> None:
        self._listeners: list[Callable[P, object]] = []

    def listen(self, listener: Callable[P, object]) -> None:
        self._listeners.append(listener)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for listener in self._listeners:
            listener(*args, **kwargs)
