"""DeleteRecords requests that wait until every live replica has deleted the records.

Owns the requests that wait for a partition's low watermark. The leader's log start offset moves at once; a follower
receives it in a Fetch response, and confirms it with its next fetch. Never deletes anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from fenceline.errors import ErrorCode, PeerError

if TYPE_CHECKING:
    from fenceline.node.replication.replica import Replica


class _Waiting(NamedTuple):
    offset: int
    reached: asyncio.Future[int]
    on_change: Callable[[], None]


class RecordDeletions:
    """The waiting deletions of one broker. Event loop only."""

    def __init__(self, is_alive: Callable[[int], bool]) -> None:
        """`is_alive`: whether a broker is registered and not fenced; other brokers are not waited for."""
        self._is_alive = is_alive
        self._waiting: dict[Replica, list[_Waiting]] = {}

    def low_watermark(self, replica: Replica) -> int:
        """The smallest log start offset of the live replicas. Raises PeerError 6 if another broker leads."""
        if replica.leader is None or replica.is_recovering:
            raise PeerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return replica.leader.low_watermark(replica.log.log_start_offset, self._is_alive)

    def wait_for(self, replica: Replica, offset: int) -> asyncio.Future[int]:
        """The low watermark, once it is `offset` or above; PeerError 6 when this broker no longer leads.

        Cancel the future to stop waiting.
        """
        reached: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(offset, reached, partial(self.progressed, replica))
        self._waiting.setdefault(replica, []).append(waiting)
        replica.waiters.add(waiting.on_change)
        reached.add_done_callback(lambda _: self._leave(replica, waiting))
        self.progressed(replica)
        return reached

    def progressed(self, replica: Replica) -> None:
        """A follower fetched, or the partition's role or ISR changed."""
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
        """A broker was fenced, unfenced, registered or unregistered."""
        for replica in tuple(self._waiting):
            self.progressed(replica)

    def _leave(self, replica: Replica, waiting: _Waiting) -> None:
        replica.waiters.discard(waiting.on_change)
        others = self._waiting[replica]
        others.remove(waiting)
        if not others:
            del self._waiting[replica]
