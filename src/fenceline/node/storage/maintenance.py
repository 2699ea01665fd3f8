"""The periodic work of a node: heartbeats, retention, timed flushes, checkpoints, expiry.

Owns a handful of timers for the whole node; there are none per partition. Each pass visits the replicas that are
watched, in slices, so that the event loop is never blocked for long; slow disk operations run in the disk threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Final

from fenceline.errors import PeerError
from fenceline.log.core.config import MAX_INT64
from fenceline.log.core.errors import StorageError
from fenceline.log.core.scan import BadBatch
from fenceline.node.logs import Logger

if TYPE_CHECKING:
    from fenceline.config.node import NodeConfig
    from fenceline.ids import TopicPartition
    from fenceline.node.clock import Clock
    from fenceline.node.replication.open_replicas import OpenReplicas
    from fenceline.node.replication.replica import Replica
    from fenceline.node.storage.flushes import LogFlushes
    from fenceline.node.storage.storage_trouble import StorageTrouble

log = Logger("maintenance")

_FLUSH_CHECK_MS: Final = 1000
_RETRY_MS: Final = 1000
_LOG_INTERVAL_S: Final = 60.0
_SLICE: Final = 50
"""Replicas processed per iteration of the event loop."""
_LOOKED_AT: Final = 2_000
"""Replicas among which a pass looks for due flushes. With more, several passes share them."""
_MOST_PASSES: Final = 10


class Maintenance:
    """The timers of one broker."""

    def __init__(
        self,
        config: NodeConfig,
        in_service: OpenReplicas,
        clock: Clock,
        *,
        heartbeat: Callable[[], Awaitable[None]],
        shrink_isrs: Callable[[], Iterator[None]],
        sweep_evidence: Callable[[], Awaitable[None]],
        retry_pending: Callable[[], Awaitable[None]] | None,
        checkpoint: Callable[[], Awaitable[None]],
        flushes: LogFlushes,
        trouble: StorageTrouble,
        log_end_offset: Callable[[TopicPartition], int | None],
        log_start_moved: Callable[[], None],
        delete_later: Callable[[Callable[[], None], int], None],
    ) -> None:
        """`shrink_isrs`: in steps of one partition. `retry_pending`: None if no partition waits for the receipts of its
        losses. `log_start_moved` is called when retention has deleted records."""
        self._config = config
        self._in_service = in_service
        self._clock = clock
        self._heartbeat = heartbeat
        self._shrink_isrs_of_each = shrink_isrs
        self._sweep = sweep_evidence
        self._retry_pending = retry_pending
        self._checkpoint = checkpoint
        self._flushes = flushes
        self._trouble = trouble
        self._log_end_offset = log_end_offset
        self._log_start_moved = log_start_moved
        self._delete_later = delete_later
        self._tasks: list[asyncio.Task[None]] = []
        self._passes = 0
        """Looks for due flushes."""
        self._timed: dict[Replica, None] = {}
        """Those with `flush.ms`, as far as they have been looked at."""

    def start(self) -> None:
        config = self._config
        self._every("heartbeat", config.get_int("broker.heartbeat.interval.ms"), self._heartbeat)
        self._every("shrink_isrs", config.get_int("replica.lag.time.max.ms") // 2, self._shrink_isrs)
        retention_ms = config.get_int("log.retention.check.interval.ms")
        self._every("enforce_retention", retention_ms, self._enforce_retention)
        self._every("sweep", retention_ms, self._sweep)
        if self._retry_pending is not None:
            self._every("retry_pending", _RETRY_MS, self._retry_pending)
        # Mainly for high watermarks: losses after a crash of the leader are classed by the last one on disk.
        checkpoint_ms = config.get_int("replica.high.watermark.checkpoint.interval.ms")
        checkpoint_ms = min(config.get_int("log.flush.offset.checkpoint.interval.ms"), checkpoint_ms)
        self._every("checkpoint", checkpoint_ms, self._checkpoint)
        # Kafka's default is never, with a separate task for sealed segments. Here one timer does both.
        flush_ms = min(config.get_int("log.flush.scheduler.interval.ms"), _FLUSH_CHECK_MS)
        self._every("flush_overdue", flush_ms, self._flush_overdue)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def _every(self, name: str, period_ms: int, work: Callable[[], Awaitable[None]]) -> None:
        # Kafka disables a timer with a period of 2^63-1 ms.
        if 0 < period_ms < 2**40:
            self._tasks.append(asyncio.ensure_future(self._repeat(name, period_ms / 1000, work)))

    async def _repeat(self, name: str, period_s: float, work: Callable[[], Awaitable[None]]) -> None:
        logged, quiet_until_s = "", 0.0
        while True:
            await asyncio.sleep(period_s)
            try:
                await work()
            except (PeerError, OSError) as error:
                # A lasting failure is logged once a minute.
                reason, now_s = str(error), asyncio.get_running_loop().time()
                if reason != logged or now_s >= quiet_until_s:
                    logged, quiet_until_s = reason, now_s + _LOG_INTERVAL_S
                    log.warning("maintenance postponed", work=name, reason=reason)
            except Exception:
                # Our bug; the timer continues, since the next pass may well succeed.
                log.exception("maintenance failed", work=name)

    async def _in_slices(self, work: Callable[[Replica], None]) -> None:
        """A failure affects one partition only: the others are still processed."""
        for position, replica in enumerate(list(self._in_service.watched.values())):
            if replica.is_being_cut:
                continue
            if position % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            try:
                work(replica)
            except StorageError as error:
                self._in_service.storage_failed(replica, error)
            except OSError as error:
                self._in_service.storage_failed(replica, StorageError.of("maintenance", error))
            except BadBatch as error:
                log.error("partition maintenance failed", partition=str(replica.topic_partition), reason=str(error))

    async def _shrink_isrs(self) -> None:
        for position, _ in enumerate(self._shrink_isrs_of_each()):
            if position % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)

    async def _enforce_retention(self) -> None:
        """Roll by time, expire producers, remove old segments; their files are deleted later by a thread."""
        now_ms = self._clock.now_ms()

        def enforce(replica: Replica) -> None:
            partition_log = replica.log
            # Before the roll, which needs disk space that retention frees.
            # A follower that is not in sync keeps its last records: an empty log could not be compared.
            removed = partition_log.enforce_retention(now_ms, may_empty=replica.leader is not None or replica.may_lead)
            for segment in removed:
                log.info(
                    "segment deleted by retention",
                    partition=str(replica.topic_partition),
                    base_offset=segment.base_offset,
                    reason=segment.reason,
                    log_start_offset=partition_log.log_start_offset,
                )
                self._delete_later(segment.delete, replica.config.file_delete_delay_ms)
            if removed:
                replica.wake()
                self._log_start_moved()
            partition_log.maybe_roll(now_ms)

        await self._in_slices(enforce)

    async def _flush_overdue(self) -> None:
        """Flush for `flush.messages`, `flush.ms` (off by default), and sealed segments, whose indexes must be saved."""
        now_ms = self._clock.now_ms()
        for position, replica in enumerate(self._to_look_at()):
            if position % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            if replica.log.config.flush_ms < MAX_INT64:
                self._timed[replica] = None
            if not replica.is_being_cut and replica.log.flush_due(now_ms):
                await self._flushes.flush(replica)
        if self._trouble:
            self._trouble.log_recovered(self._log_end_offset)

    def _to_look_at(self) -> list[Replica]:
        """Most logs of a node with many have nothing to flush: each is looked at in every tenth pass at least, those
        with a time limit in all of them."""
        replicas = list(self._in_service.watched.values())
        passes = min(1 + len(replicas) // _LOOKED_AT, _MOST_PASSES)
        if passes == 1:
            return replicas
        self._passes += 1
        share = dict.fromkeys(replicas[self._passes % passes :: passes])
        timed, self._timed = self._timed, {}
        return [*share, *(each for each in timed if each not in share and self._in_service.holds(each))]
