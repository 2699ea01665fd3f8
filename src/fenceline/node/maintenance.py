"""Everything a node does by the clock: heartbeats, retention, timed flushes, checkpoints, expiry.

Owns a handful of timers for the whole node; no partition has one. Each pass walks the replicas in use only, in slices,
so that the loop is never held for long; what touches the disk for long runs in the disk threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from fenceline.errors import PeerError
from fenceline.node.logs import Logger

if TYPE_CHECKING:
    from fenceline.node.broker import Broker
    from fenceline.node.replicas import Replica

log = Logger("maintenance")

_FLUSH_CHECK_MS: Final = 1000
_SLICE: Final = 50
"""Replicas looked at before the loop gets its turn."""


class Maintenance:
    """The timers of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        config = self._broker.config
        self._every(config.get_int("broker.heartbeat.interval.ms"), self._broker.heartbeat)
        self._every(config.get_int("log.retention.check.interval.ms"), self._enforce_retention)
        self._every(config.get_int("log.flush.offset.checkpoint.interval.ms"), self._checkpoint)
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
        while True:
            await asyncio.sleep(period_s)
            try:
                await work()
            except PeerError as error:
                log.warning("maintenance put off", work=work.__name__, reason=error.message)
            except OSError as error:
                log.error("maintenance failed", work=work.__name__, error=str(error))

    async def _in_slices(self, work: Callable[[Replica], None]) -> None:
        for position, replica in enumerate(self._broker.partitions):
            if position % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            work(replica)

    async def _enforce_retention(self) -> None:
        """Roll by time, expire producers, take out old segments; their files go by a thread after a delay."""
        now_ms = self._broker.clock.now_ms()

        def enforce(replica: Replica) -> None:
            partition_log = replica.log
            partition_log.maybe_roll(now_ms)
            removed = partition_log.enforce_retention(now_ms)
            for segment in removed:
                log.info(
                    "segment deleted by retention",
                    partition=str(replica.topic_partition),
                    base_offset=segment.base_offset,
                    reason=segment.reason,
                    log_start_offset=partition_log.log_start_offset,
                )
                self._broker.delete_later(segment.delete, replica.config.file_delete_delay_ms)

        await self._in_slices(enforce)

    async def _flush_overdue(self) -> None:
        """`flush.messages`, `flush.ms` (off by default) and sealed segments, whose indexes want to be on the disk."""
        now_ms = self._broker.clock.now_ms()
        for replica in self._broker.partitions:
            if replica.log.flush_due(now_ms):
                await self._broker.flush(replica)

    async def _checkpoint(self) -> None:
        for log_dir in self._broker.log_dirs:
            await self._broker.loop.run_in_executor(self._broker.disk_threads, log_dir.checkpoint_work())
