"""The blocking objects of the test kit for code that runs in an event loop.

Owns the way of a call into a thread. Loops of applications go on while a fault or a situation is being made true.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any


class AsyncFace:
    """An object whose methods are coroutine functions: `await face.method(...)` runs it in a thread.

    Attributes that are objects of the test kit, such as `situations`, have such a face, too. Plain values, such as
    `bootstrap_servers`, are returned as they are."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if callable(value):
            return _in_thread(value)
        if isinstance(value, str | int | float | tuple | list | dict | None):
            return value
        return AsyncFace(value)

    def __repr__(self) -> str:
        return f"<coroutines of {self._target!r}>"


def _in_thread(work: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    @functools.wraps(work)
    async def run(*args: Any, **options: Any) -> Any:
        return await asyncio.to_thread(work, *args, **options)

    return run
