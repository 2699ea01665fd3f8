"""The response to a request that may have to wait: for an append, for other members, for a timer.

Owns the step between a driver that completes a reply when it can and a handler that returns fields or an awaitable of
them. Most replies are complete at once and cost no task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

_T = TypeVar("_T")

Fields: TypeAlias = dict[str, Any]
"""A response by field names."""


class Reply(Generic[_T]):
    """The reply to one request, complete or to be awaited."""

    __slots__ = ("_future", "outcome")

    def __init__(self) -> None:
        self.outcome: _T | None = None
        self._future: asyncio.Future[_T] | None = None

    def put(self, outcome: _T) -> None:
        self.outcome = outcome
        if self._future is not None and not self._future.done():
            self._future.set_result(outcome)

    async def wait(self) -> _T:
        if self.outcome is None:
            self._future = asyncio.get_running_loop().create_future()
            return await self._future
        return self.outcome


def answered(reply: Reply[_T], fields: Callable[[_T], Fields]) -> Fields | Awaitable[Fields]:
    """The fields if the reply is complete, otherwise an awaitable of them."""
    if reply.outcome is not None:
        return fields(reply.outcome)

    async def later() -> Fields:
        return fields(await reply.wait())

    return later()


def all_answered(replies: Sequence[Reply[_T]], fields: Callable[[list[_T]], Fields]) -> Fields | Awaitable[Fields]:
    """As `answered`, when all replies are complete."""
    outcomes = [reply.outcome for reply in replies if reply.outcome is not None]
    if len(outcomes) == len(replies):
        return fields(outcomes)

    async def later() -> Fields:
        return fields([await reply.wait() for reply in replies])

    return later()
