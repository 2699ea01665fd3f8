"""Makes the logs of partitions durable: one flush a log at a time, shared by everybody who waits for it (group commit).

Owns which flush is under way and which acknowledgements wait for the disk. A flush runs in a thread; what was appended
meanwhile goes with the next one, which starts when the first has ended and somebody still waits. Never blocks the loop,
never acknowledges: it says up to where the disk holds the log, or why it never will.

Every wait ends: with its flush, with the error of the flush, when the partition is deleted, goes offline, or loses its
leader, and when the node stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING

from fenceline.errors import ErrorCode, PeerError
from fenceline.log.errors import StorageError
from fenceline.log.flush import FlushWork

if TYPE_CHECKING:
    from fenceline.node.clock import Clock
    from fenceline.node.replica import Replica
    from fenceline.node.replicas import Replicas


class _Waiting:
    """Who waits for one log: (end offset, outcome); the outcome is None once the log is durable up to there."""

    __slots__ = ("as_leader", "on_change", "outcomes")

    def __init__(self, on_change: Callable[[], None], as_leader: bool) -> None:
        self.on_change = on_change
        """Hung into `Replica.waiters` as long as somebody waits."""
        self.as_leader = as_leader
        self.outcomes: list[tuple[int, asyncio.Future[PeerError | None]]] = []


class LogFlushes:
    """The flushes of one broker. All methods belong to the loop."""

    def __init__(self, replicas: Replicas, clock: Clock, executor: Executor) -> None:
        self._replicas = replicas
        self._clock = clock
        self._executor = executor
        self._under_way: dict[Replica, asyncio.Future[StorageError | None]] = {}
        self._waiting: dict[Replica, _Waiting] = {}
        self._held: set[Replica] = set()
        self._closed = False

    async def flush(self, replica: Replica) -> StorageError | None:
        """Make a log durable up to its end; what the disk said when it could not.

        A flush that is under way already is waited for, and nothing else is done.
        """
        if replica not in self._under_way and (error := self._begin(replica)) is not None:
            return error
        under_way = self._under_way.get(replica)
        return None if under_way is None else await asyncio.shield(under_way)

    def up_to(self, replica: Replica, end_offset: int, *, as_leader: bool = True) -> asyncio.Future[PeerError | None]:
        """Done when the log is durable at least up to an offset; its result says why it never will be.

        56 when the disk refused or the partition is offline, 6 when the node stops, the replica is not here any more,
        or it has the other role by now: `as_leader` says for which one is waited.
        """
        outcome: asyncio.Future[PeerError | None] = asyncio.get_running_loop().create_future()
        if replica.log.recovery_point >= end_offset:
            outcome.set_result(None)
        elif (gone := self._why_gone(replica, as_leader)) is not None:
            outcome.set_result(gone)
        else:
            self._look(replica)
            waiting = self._waiting.get(replica)
            if waiting is None:
                waiting = self._waiting[replica] = _Waiting(partial(self._look, replica), as_leader)
                replica.waiters.add(waiting.on_change)
            waiting.outcomes.append((end_offset, outcome))
            if replica not in self._under_way:
                self._settle(replica, self._begin(replica))
        return outcome

    def close(self) -> None:
        """The node stops: whoever waits is told so, and nobody waits from now on."""
        self._closed = True
        for replica in list(self._waiting):
            self._look(replica)

    def hold(self, replica: Replica) -> None:
        """Begin none until `release`: who waits for the disk goes on waiting. For as long as one flush takes."""
        self._held.add(replica)

    def release(self, replica: Replica) -> None:
        """Flush what was waited for meanwhile."""
        self._held.discard(replica)
        if replica in self._waiting and replica not in self._under_way:
            self._settle(replica, self._begin(replica))

    async def idle(self, replica: Replica) -> None:
        """When the flush that is under way has ended."""
        under_way = self._under_way.get(replica)
        if under_way is not None:
            await asyncio.shield(under_way)

    def is_flushing(self, replica: Replica) -> bool:
        return replica in self._under_way

    # --- one flush ------------------------------------------------------------------------------------------------

    def _begin(self, replica: Replica) -> StorageError | None:
        """Start a flush when there is something to flush; why it could not be started."""
        if replica in self._held:
            return None
        try:
            work = replica.log.flush_work(self._clock.now_ms())
        except StorageError as error:
            self._replicas.storage_failed(replica, error)
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
            self._replicas.storage_failed(replica, error)
        else:
            # Our bug; those who wait raise it.
            bug = error
            work.fail(StorageError(str(bug)))
            ended.set_exception(bug)
            self._end(replica, lambda outcome: outcome.set_exception(bug))
            self._replicas.thread_ended(replica)
            return
        ended.set_result(error)
        self._settle(replica, error)
        self._replicas.thread_ended(replica)

    # --- those who wait -------------------------------------------------------------------------------------------

    def _settle(self, replica: Replica, error: StorageError | None) -> None:
        """Answer those whose offset is durable, or all of them with an error; flush again for the others."""
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
                # Nothing is left to flush: what they wait for was cut off the log, or the log closes.
                reason = error or PeerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                self._end(replica, lambda outcome: outcome.set_result(reason))

    def _look(self, replica: Replica) -> None:
        """Something changed about the partition, perhaps that it is gone."""
        waiting = self._waiting.get(replica)
        if waiting is not None and (gone := self._why_gone(replica, waiting.as_leader)) is not None:
            self._end(replica, lambda outcome: outcome.set_result(gone))

    def _why_gone(self, replica: Replica, as_leader: bool) -> PeerError | None:
        if self._closed:
            return PeerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "This node stops.")
        if self._replicas.holds(replica) and replica.is_leader is as_leader:
            return None
        offline = self._replicas.offline.get(replica.topic_partition)
        if offline is not None:
            return PeerError(ErrorCode.KAFKA_STORAGE_ERROR, offline)
        return PeerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _end(self, replica: Replica, tell: Callable[[asyncio.Future[PeerError | None]], None] | None = None) -> None:
        """Nobody waits for this log any more; who still did is told."""
        waiting = self._waiting.pop(replica, None)
        if waiting is None:
            return
        replica.waiters.discard(waiting.on_change)
        for _, outcome in waiting.outcomes:
            if tell is not None and not outcome.done():
                tell(outcome)
