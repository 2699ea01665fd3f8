"""Loading the groups of a partition when this broker becomes its leader.

Owns the order of loads, their slices and retries, and the wait until the loaded records are committed. Never reads a
record and never decides who coordinates: the coordinator does.

Theory of operation. Until a partition is active its groups are answered with COORDINATOR_LOAD_IN_PROGRESS: no offset is
returned that is not loaded yet, or that may still be truncated. A load has three steps:

| step       | until                                                           | aborted when                        |
|------------|-----------------------------------------------------------------|-------------------------------------|
| waiting    | the log is readable: not being truncated, leader has recovered  | the leader or its epoch changes     |
| reading    | everything up to the log end is replayed                        | the same, or the log cannot be read |
| committing | the high watermark is at the log end, or too few are in sync    | the same                            |

Partitions are read one after another, a few thousand records per iteration of the event loop. Records that are not in
the page cache are read in a thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from typing import Final, Protocol, TypeAlias

from fenceline.errors import ErrorCode, FencelineError, InternalError, PeerError
from fenceline.groups.coordinator import GroupCoordinator
from fenceline.groups.messages import Duty, Now
from fenceline.groups.records import transaction_end
from fenceline.groups.shard import Shard
from fenceline.ids import CONSUMER_OFFSETS_TOPIC, TopicPartition
from fenceline.log.partition.reading import LogRead
from fenceline.node.clock import Clock
from fenceline.node.logs import Logger
from fenceline.records.batch import BatchHeader
from fenceline.records.build import Record

Batches: TypeAlias = Iterable[tuple[BatchHeader, list[Record]] | LogRead]
"""Output of `records.decode.decode_all`, from the log's start to its end. A `LogRead` must be loaded in a thread before
the next item is requested."""

FIRST_SLICE_RECORDS: Final = 1_000
"""Replayed at once when this broker becomes leader: it may become leader of many partitions in one iteration."""
LOAD_SLICE_RECORDS: Final = 4_000
"""Replayed per iteration of the event loop after that."""
RETRY_S: Final = 0.1
_PASSES: Final = frozenset(
    {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OFFSET_OUT_OF_RANGE}
)
"""Retriable: this broker leads by the metadata, but the log is not ready, or its start moved."""

log: Final = Logger("groups")


class OffsetsLog(Protocol):
    """The partitions of `__consumer_offsets`. Raises PeerError if this broker does not lead in that epoch (yet)."""

    def read(self, topic_partition: TopicPartition, leader_epoch: int) -> Batches: ...

    def when_committed(self, topic_partition: TopicPartition, leader_epoch: int) -> asyncio.Future[None] | None:
        """None if all records in the log are committed, or cannot be soon; otherwise a future of that."""


class GroupsLoading:
    """The loads of one broker. All methods run on the event loop."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        offsets_log: OffsetsLog,
        clock: Clock,
        carry_out: Callable[[list[Duty]], None],
        threads: Executor | None,
    ) -> None:
        self._coordinator = coordinator
        self._log = offsets_log
        self._clock = clock
        self._carry_out = carry_out
        self._threads = threads
        self._queue: deque[_Load] = deque()
        self._reader: asyncio.Task[None] | None = None
        self._committing: set[asyncio.Future[None]] = set()
        self._waiting: dict[int, tuple[Shard, asyncio.TimerHandle]] = {}
        self._is_closed = False

    def begin(self, shard: Shard) -> None:
        """Load a shard. A short log is loaded before this returns; a long one continues in slices."""
        load = _Load(shard, self._log, self._clock)
        self._step(load)
        if load.is_over:
            return
        self._queue.append(load)
        if self._reader is None:
            self._reader = asyncio.get_running_loop().create_task(self._read())

    def retry(self, partition: int) -> None:
        """The partition has changed: retry a load that waits for its log."""
        waiting = self._waiting.get(partition)
        if waiting is not None:
            waiting[1].cancel()
            self._restart(waiting[0])

    def close(self) -> None:
        self._is_closed = True
        for _, timer in self._waiting.values():
            timer.cancel()
        self._waiting.clear()
        for task in (*self._committing, *(() if self._reader is None else (self._reader,))):
            task.cancel()

    # --- reading ----------------------------------------

    async def _read(self) -> None:
        """The only reader, so that the number of partitions to load does not slow down other work."""
        try:
            while self._queue:
                load = self._queue[0]
                if load.is_over or not self._coordinator.is_current(load.shard):
                    self._queue.popleft()
                elif load.cold is not None:
                    await self._read_from_disk(load, load.cold)
                else:
                    self._step(load)
                    await asyncio.sleep(0)
        finally:
            # After a bug while finishing a load, the remaining loads continue.
            is_left = bool(self._queue) and not self._is_closed
            self._reader = asyncio.get_running_loop().create_task(self._read()) if is_left else None

    async def _read_from_disk(self, load: _Load, cold: LogRead) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, cold.load)
        except Exception as error:
            load.is_over = True
            self._failed(load.shard, error)
        else:
            load.cold = None

    def _step(self, load: _Load) -> None:
        """One slice."""
        try:
            load.step()
        except Exception as error:
            load.is_over = True
            self._failed(load.shard, error)
            return
        if load.is_over:
            self._await_commit(load)

    # --- settling ----------------------------------------

    def _await_commit(self, load: _Load) -> None:
        shard = load.shard
        try:
            committed = self._log.when_committed(_where(shard), shard.epoch)
        except PeerError as error:
            self._failed(shard, error)
            return
        if committed is None:
            self._finish(load)
            return
        committed.add_done_callback(lambda done: self._on_committed(load, done))
        self._committing.add(committed)

    def _on_committed(self, load: _Load, done: asyncio.Future[None]) -> None:
        self._committing.discard(done)
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._finish(load)
        elif isinstance(error, Exception):
            self._failed(load.shard, error)

    def _finish(self, load: _Load) -> None:
        shard = load.shard
        if not self._coordinator.is_current(shard):
            return
        now = self._now()
        if load.record_count >= FIRST_SLICE_RECORDS:
            log.info(
                "groups loaded",
                partition=shard.partition,
                leader_epoch=shard.epoch,
                records=load.record_count,
                groups=len(shard.state.classic) + len(shard.state.consumer),
                took_ms=now.monotonic_ms - load.began_ms,
            )
        self._carry_out(self._coordinator.finish_load(shard, now))

    # --- failures ----------------------------------------

    def _failed(self, shard: Shard, error: Exception) -> None:
        """The groups of this partition stay without coordinator; other loads continue. A bug of ours is logged with its
        traceback."""
        if not self._coordinator.is_current(shard):
            return
        if isinstance(error, PeerError) and error.code in _PASSES:
            timer = asyncio.get_running_loop().call_later(RETRY_S, self._restart, shard)
            self._waiting[shard.partition] = shard, timer
            return
        self._coordinator.fail_load(shard)
        log.error(
            "loading groups failed",
            partition=shard.partition,
            error=str(error),
            advice=f"{CONSUMER_OFFSETS_TOPIC}-{shard.partition} has records that cannot be read. Inspect them with"
            " `fenceline log dump`; restore the partition or delete its directory (its groups lose their offsets).",
        )
        if not isinstance(error, FencelineError | OSError) or isinstance(error, InternalError):
            asyncio.get_running_loop().call_exception_handler({"message": "loading groups failed", "exception": error})

    def _restart(self, shard: Shard) -> None:
        waiting = self._waiting.get(shard.partition)
        if waiting is not None and waiting[0] is shard:
            del self._waiting[shard.partition]
        if self._coordinator.is_current(shard):
            self.begin(self._coordinator.restart_load(shard))

    def _now(self) -> Now:
        return Now(self._clock.now_ms(), self._clock.monotonic_ms())


class _Load:
    """One partition's replay, in steps."""

    def __init__(self, shard: Shard, offsets_log: OffsetsLog, clock: Clock) -> None:
        self.shard = shard
        self.began_ms = clock.monotonic_ms()
        self.record_count = 0
        self.cold: LogRead | None = None
        """Must be loaded in a thread before the next step."""
        self.is_over = False
        self._clock = clock
        self._steps = self._replay(offsets_log)

    def step(self) -> None:
        """One slice, or up to a read that must be loaded. Raises any error of the log."""
        self.is_over = next(self._steps, self) is self

    def _replay(self, offsets_log: OffsetsLog) -> Iterator[None]:
        shard, replay = self.shard, self.shard.replaying()
        end_of_slice = FIRST_SLICE_RECORDS
        for read in offsets_log.read(_where(shard), shard.epoch):
            if isinstance(read, LogRead):
                self.cold = read
                yield
                continue
            header, records = read
            if header.is_control:
                # Compaction leaves batches without records.
                committed = transaction_end(records[0].key) if records else None
                if committed is not None:
                    shard.replay_marker(header.producer_id, committed=committed)
                continue
            now = Now(self._clock.now_ms(), self._clock.monotonic_ms())
            replay.batch(records, now, header.producer_id if header.is_transactional else None)
            self.record_count += len(records)
            if self.record_count >= end_of_slice:
                end_of_slice = self.record_count + LOAD_SLICE_RECORDS
                yield


def _where(shard: Shard) -> TopicPartition:
    return TopicPartition(CONSUMER_OFFSETS_TOPIC, shard.partition)
