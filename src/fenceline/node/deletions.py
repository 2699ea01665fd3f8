"""Deletions of records that wait until every live replica has deleted them (DeleteRecords).

Owns who waits for the low watermark of which partition. The leader's log start moves at once; a follower learns of it
with the answer to its fetch, and tells with its next fetch that it has followed. Never deletes anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from fenceline.errors import ErrorCode, PeerError

if TYPE_CHECKING:
    from fenceline.node.replica import Replica


class _Waiting(NamedTuple):
    offset: int
    reached: asyncio.Future[int]
    on_change: Callable[[], None]


class Deletions:
    """One broker's. All methods belong to the loop."""

    def __init__(self, is_alive: Callable[[int], bool]) -> None:
        """`is_alive`: whether a broker is registered and not fenced; the others are not waited for."""
        self._is_alive = is_alive
        self._waiting: dict[Replica, list[_Waiting]] = {}

    def low_watermark(self, replica: Replica) -> int:
        """The log start that all live replicas have reached. Raises PeerError 6 where another broker leads."""
        if replica.leader is None or replica.is_recovering:
            raise PeerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return replica.leader.low_watermark(replica.log.log_start_offset, self._is_alive)

    def reached(self, replica: Replica, offset: int) -> asyncio.Future[int]:
        """The low watermark, once it is `offset` or above; PeerError 6 when this broker leads no more.

        Who gives up cancels it.
        """
        reached: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(offset, reached, partial(self.progressed, replica))
        self._waiting.setdefault(replica, []).append(waiting)
        replica.waiters.add(waiting.on_change)
        reached.add_done_callback(lambda _: self._leave(replica, waiting))
        self.progressed(replica)
        return reached

    def progressed(self, replica: Replica) -> None:
        """A follower fetched, or the partition's role or in-sync set changed."""
        for waiting in self._waiting.get(replica, ()):
            if waiting.reached.done():
                continue
            try:
                low_watermark = self.low_watermark(replica)
            except PeerError as error:
                waiting.reached.set_exception(error)
            else:
                if low_watermark >= waiting.offset:
                    waiting.reached.set_result(low_watermark)

    def brokers_changed(self) -> None:
        """Somebody came or went."""
        for replica in tuple(self._waiting):
            self.progressed(replica)

    def _leave(self, replica: Replica, waiting: _Waiting) -> None:
        replica.waiters.discard(waiting.on_change)
        others = self._waiting[replica]
        others.remove(waiting)
        if not others:
            del self._waiting[replica]
