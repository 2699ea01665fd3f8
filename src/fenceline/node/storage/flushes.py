"""Flushes the logs of partitions: one flush at a time for each log, shared by all waiters (group commit).

Owns the flush in progress and the acknowledgements that wait for the disk. A flush runs in a thread; records appended
meanwhile belong to the next one, which starts when the first has ended and there are waiters left. Never blocks the
loop, never acknowledges: it reports the durable end of the log, or why an offset never becomes durable.

Every wait ends: with its flush, with the error of the flush, when the partition is deleted, goes offline or loses its
leader, and when the node stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING

from fenceline.errors import ErrorCode, PeerError
from fenceline.log.core.errors import LogOffline, StorageError
from fenceline.log.core.flush import FlushWork

if TYPE_CHECKING:
    from fenceline.node.clock import Clock
    from fenceline.node.replication.open_replicas import OpenReplicas
    from fenceline.node.replication.replica import Replica


class _Waiters:
    """The waiters of one log: (end offset, outcome); the outcome is None once the log is durable up to that offset."""

    __slots__ = ("as_leader", "on_change", "outcomes")

    def __init__(self, on_change: Callable[[], None], as_leader: bool) -> None:
        self.on_change = on_change
        """Registered in `Replica.waiters` while there are waiters."""
        self.as_leader = as_leader
        self.outcomes: list[tuple[int, asyncio.Future[PeerError | None]]] = []


class LogFlushes:
    """The flushes of one broker. Event loop only."""

    def __init__(self, in_service: OpenReplicas, clock: Clock, executor: Executor) -> None:
        self._in_service = in_service
        self._clock = clock
        self._executor = executor
        self._under_way: dict[Replica, asyncio.Future[StorageError | None]] = {}
        self._waiting: dict[Replica, _Waiters] = {}
        self._held: set[Replica] = set()
        self._closed = False

    async def flush(self, replica: Replica) -> StorageError | None:
        """Flush a log up to its end; returns the error if that failed.

        If a flush is already in progress, only waits for it.
        """
        if replica not in self._under_way and (error := self._begin(replica)) is not None:
            return error
        under_way = self._under_way.get(replica)
        return None if under_way is None else await asyncio.shield(under_way)

    def up_to(self, replica: Replica, end_offset: int, *, as_leader: bool = True) -> asyncio.Future[PeerError | None]:
        """Completes when the log is durable at least up to an offset; the result is an error if it never will be.

        56 if the flush failed or the partition is offline, 6 if the node stops, the replica is no longer here, or its
        role differs from `as_leader`.
        """
        outcome: asyncio.Future[PeerError | None] = asyncio.get_running_loop().create_future()
        if replica.log.recovery_point >= end_offset:
            outcome.set_result(None)
        elif (gone := self._wait_error(replica, as_leader)) is not None:
            outcome.set_result(gone)
        else:
            self._check_waiters(replica)
            waiting = self._waiting.get(replica)
            if waiting is None:
                waiting = self._waiting[replica] = _Waiters(partial(self._check_waiters, replica), as_leader)
                replica.waiters.add(waiting.on_change)
            waiting.outcomes.append((end_offset, outcome))
            if replica not in self._under_way:
                self._complete(replica, self._begin(replica))
        return outcome

    def close(self) -> None:
        """The node stops: fail all waiters, and accept no more."""
        self._closed = True
        for replica in list(self._waiting):
            self._check_waiters(replica)

    def hold(self, replica: Replica) -> None:
        """Start no flush until `release`; waiters keep waiting. At most for the time of one flush."""
        self._held.add(replica)

    def release(self, replica: Replica) -> None:
        """Start the flush that waiters have requested meanwhile."""
        self._held.discard(replica)
        if replica in self._waiting and replica not in self._under_way:
            self._complete(replica, self._begin(replica))

    async def idle(self, replica: Replica) -> None:
        """Wait until the current flush has ended."""
        under_way = self._under_way.get(replica)
        if under_way is not None:
            await asyncio.shield(under_way)

    def is_flushing(self, replica: Replica) -> bool:
        return replica in self._under_way

    # --- one flush ------------------------------------------------------------------------------------------------

    def _begin(self, replica: Replica) -> StorageError | None:
        """Start a flush if there is anything to flush; returns why it could not be started."""
        if replica in self._held:
            return None
        try:
            work = replica.log.flush_work(self._clock.now_ms())
        except StorageError as error:
            self._in_service.storage_failed(replica, error)
            return error
        if work is not None:
            loop = asyncio.get_running_loop()
            self._under_way[replica] = loop.create_future()
            running = loop.run_in_executor(self._executor, work)
            running.add_done_callback(partial(self._ended, replica, work))
        return None

    def _ended(self, replica: Replica, work: FlushWork, running: asyncio.Future[None]) -> None:
        ended = self._under_way.pop(replica)
        error = running.exception()
        if error is None:
            work.complete()
        elif isinstance(error, StorageError):
            work.fail(error)
            self._in_service.storage_failed(replica, error)
        else:
            # Our bug: raised in the waiters.
            bug = error
            work.fail(StorageError(str(bug)))
            ended.set_exception(bug)
            self._end(replica, lambda outcome: outcome.set_exception(bug))
            self._in_service.thread_ended(replica)
            return
        ended.set_result(error)
        self._complete(replica, error)
        self._in_service.thread_ended(replica)

    # --- waiters --------------------------------------------------------------------------------------------------

    def _complete(self, replica: Replica, error: StorageError | None) -> None:
        """Complete the waiters whose offset is durable, or all of them with an error; flush again for the others."""
        if error is not None:
            self._end(replica, lambda outcome: outcome.set_result(error))
        waiting = self._waiting.get(replica)
        if waiting is None:
            return
        durable_end = replica.log.recovery_point
        for end_offset, outcome in waiting.outcomes:
            if end_offset <= durable_end and not outcome.done():
                outcome.set_result(None)
        waiting.outcomes = [each for each in waiting.outcomes if not each[1].done()]
        if not waiting.outcomes:
            self._end(replica)
        elif replica not in self._held and replica not in self._under_way:
            error = self._begin(replica)
            if replica not in self._under_way:
                # Nothing is left to flush: the records they wait for were truncated, or the log is closing.
                reason = error or PeerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                self._end(replica, lambda outcome: outcome.set_result(reason))

    def _check_waiters(self, replica: Replica) -> None:
        """The partition changed or was removed: complete waiters accordingly."""
        waiting = self._waiting.get(replica)
        if waiting is not None and (gone := self._wait_error(replica, waiting.as_leader)) is not None:
            self._end(replica, lambda outcome: outcome.set_result(gone))

    def _wait_error(self, replica: Replica, as_leader: bool) -> PeerError | None:
        if self._closed:
            return PeerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "This node is stopping.")
        if self._in_service.holds(replica) and replica.is_leader is as_leader:
            return None
        offline = self._in_service.offline.get(replica.topic_partition)
        if offline is not None:
            return LogOffline(offline)
        return PeerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _end(self, replica: Replica, tell: Callable[[asyncio.Future[PeerError | None]], None] | None = None) -> None:
        """Remove the waiters of this log; complete those that are left."""
        waiting = self._waiting.pop(replica, None)
        if waiting is None:
            return
        replica.waiters.discard(waiting.on_change)
        for _, outcome in waiting.outcomes:
            if tell is not None and not outcome.done():
                tell(outcome)
