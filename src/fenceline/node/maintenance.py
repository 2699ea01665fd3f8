"""Everything a node does by the clock: heartbeats, retention, timed flushes, checkpoints, expiry.

Owns a handful of timers for the whole node; no partition has one. Each pass walks the replicas in use only, in slices,
so that the loop is never held for long; what touches the disk for long runs in the disk threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from fenceline.errors import PeerError
from fenceline.log.errors import StorageError
from fenceline.log.scan import BadBatch
from fenceline.node.logs import Logger

if TYPE_CHECKING:
    from fenceline.node.broker import Broker
    from fenceline.node.replica import Replica

log = Logger("maintenance")

_FLUSH_CHECK_MS: Final = 1000
_SETTLE_MS: Final = 1000
_TELL_AGAIN_S: Final = 60.0
_SLICE: Final = 50
"""Replicas looked at before the loop gets its turn."""


class Maintenance:
    """The timers of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        config = self._broker.config
        self._every(config.get_int("broker.heartbeat.interval.ms"), self._broker.lifecycle.heartbeat)
        self._every(config.get_int("replica.lag.time.max.ms") // 2, self._let_go_of_laggards)
        self._every(config.get_int("log.retention.check.interval.ms"), self._enforce_retention)
        self._every(config.get_int("log.retention.check.interval.ms"), self._broker.losses.sweep)
        if self._broker.losses.has_unsettled:
            self._every(_SETTLE_MS, self._broker.losses.settle_again)
        # High watermarks in particular: what a killed leader loses is classed by the one that it wrote down last.
        checkpoint_ms = config.get_int("replica.high.watermark.checkpoint.interval.ms")
        self._every(min(config.get_int("log.flush.offset.checkpoint.interval.ms"), checkpoint_ms), self._checkpoint)
        # Kafka's default is never: it flushes sealed segments by a task of their own. Here one timer serves both.
        self._every(min(config.get_int("log.flush.scheduler.interval.ms"), _FLUSH_CHECK_MS), self._flush_overdue)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def _every(self, period_ms: int, work: Callable[[], Awaitable[None]]) -> None:
        # Kafka's way to say never is a period of 2^63-1 ms.
        if 0 < period_ms < 2**40:
            self._tasks.append(asyncio.ensure_future(self._repeat(period_ms / 1000, work)))

    async def _repeat(self, period_s: float, work: Callable[[], Awaitable[None]]) -> None:
        told, quiet_until_s = "", 0.0
        while True:
            await asyncio.sleep(period_s)
            try:
                await work()
            except (PeerError, OSError) as error:
                # What lasts for an hour is told once a minute.
                reason, now_s = str(error), asyncio.get_running_loop().time()
                if reason != told or now_s >= quiet_until_s:
                    told, quiet_until_s = reason, now_s + _TELL_AGAIN_S
                    log.warning("maintenance put off", work=work.__name__.strip("_"), reason=reason)
            except Exception:
                # Our bug; the timer goes on, since the next pass may well do its work.
                log.exception("maintenance failed", work=work.__name__.strip("_"))

    async def _in_slices(self, work: Callable[[Replica], None]) -> None:
        """One partition's trouble is its own: the others are looked at all the same."""
        for position, replica in enumerate(self._broker.partitions):
            if replica.is_being_cut:
                continue
            if position % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            try:
                work(replica)
            except StorageError as error:
                self._broker.partitions.storage_failed(replica, error)
            except OSError as error:
                self._broker.partitions.storage_failed(replica, StorageError.of("maintenance", error))
            except BadBatch as error:
                log.error("partition not maintained", partition=str(replica.topic_partition), reason=str(error))

    async def _let_go_of_laggards(self) -> None:
        self._broker.replication.let_go_of_laggards()

    async def _enforce_retention(self) -> None:
        """Roll by time, expire producers, take out old segments; their files go by a thread after a delay."""
        now_ms = self._broker.clock.now_ms()

        def enforce(replica: Replica) -> None:
            partition_log = replica.log
            # Before the roll, which needs room on the disk: retention is what makes it.
            # A follower that is not in sync keeps its last records: without any, its log cannot be compared.
            removed = partition_log.enforce_retention(now_ms, may_empty=replica.leader is not None or replica.may_lead)
            for segment in removed:
                log.info(
                    "segment deleted by retention",
                    partition=str(replica.topic_partition),
                    base_offset=segment.base_offset,
                    reason=segment.reason,
                    log_start_offset=partition_log.log_start_offset,
                )
                self._broker.delete_later(segment.delete, replica.config.file_delete_delay_ms)
            if removed:
                replica.wake()
            if removed:
                self._broker.loss_expiry.log_start_moved()
            partition_log.maybe_roll(now_ms)

        await self._in_slices(enforce)

    async def _flush_overdue(self) -> None:
        """`flush.messages`, `flush.ms` (off by default) and sealed segments, whose indexes want to be on the disk."""
        now_ms = self._broker.clock.now_ms()
        partitions = self._broker.partitions
        for replica in partitions:
            if not replica.is_being_cut and replica.log.flush_due(now_ms):
                await self._broker.flushes.flush(replica)
        if self._broker.storage_trouble:
            self._broker.storage_trouble.log_recovered(self._broker.log_end_offset)

    async def _checkpoint(self) -> None:
        await self._broker.checkpoint()
