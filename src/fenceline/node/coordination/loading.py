"""Loading a partition of a coordinator's topic when this broker becomes its leader.

Owns the order of loads, their slices and retries, and the wait until the loaded records are committed. Never reads a
record and never decides who coordinates: the coordinator does.

Theory of operation. Until a partition is active its requests are answered with COORDINATOR_LOAD_IN_PROGRESS: nothing is
returned that is not loaded yet, or that may still be truncated. A load has four steps:

| step       | until                                                           | aborted when                        |
|------------|-----------------------------------------------------------------|-------------------------------------|
| waiting    | the log is readable: not being truncated, leader has recovered  | the leader or its epoch changes     |
| reading    | everything up to the log end is replayed                        | the same, or the log cannot be read |
| committing | the high watermark is at the log end, or too few are in sync    | the same                            |
| resuming   | what is loaded has its timers                                   | the leader or its epoch changes     |

Partitions are read one after another, some milliseconds or at most a few thousand records per iteration of the event
loop, and resumed a hundred members or more per iteration. Records that are not in the page cache are read in a thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from fenceline.coordination import Now
from fenceline.errors import ErrorCode, FencelineError, InternalError, PeerError
from fenceline.ids import TopicPartition
from fenceline.log.partition.reading import LogRead
from fenceline.node.clock import Clock
from fenceline.node.logs import Logger
from fenceline.node.metric_families import Durations
from fenceline.records.batch import BatchHeader
from fenceline.records.build import Record

Batches: TypeAlias = Iterable[tuple[BatchHeader, list[Record]] | LogRead]
"""Output of `records.decode.decode_all`, from the log's start to its end. A `LogRead` must be loaded in a thread before
the next item is requested."""

FIRST_SLICE_RECORDS: Final = 1_000
"""Replayed at once when this broker becomes leader: it may become leader of many partitions in one iteration."""
LOAD_SLICE_RECORDS: Final = 4_000
"""Replayed per iteration of the event loop after that."""
SLICE_MS: Final = 2
"""A slice ends after the batch in which it has taken so long: a record takes 3 to 30 us."""
FIRST_SLICES_MS: Final = 10
"""Of all partitions together; those without records do not count, because clients of a new topic do not wait."""
_FIRST_SLICES_PAUSE_MS: Final = 100
RETRY_S: Final = 0.1
_PASSES: Final = frozenset(
    {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OFFSET_OUT_OF_RANGE}
)
"""Retriable: this broker leads by the metadata, but the log is not ready, or its start moved."""

log: Final = Logger("coordinators")


class LoadedPartition(Protocol):
    """One partition's state while it is replayed."""

    @property
    def partition(self) -> int: ...
    @property
    def epoch(self) -> int: ...


S = TypeVar("S", bound=LoadedPartition)
Replay: TypeAlias = Callable[[BatchHeader, list[Record], Now], None]
"""Applies one batch of the log to the state that is loaded."""


class LoadingCoordinator(Protocol[S]):
    """The coordinator that is loaded. `finish_load` also executes the duties that follow."""

    def is_current(self, loading: S, /) -> bool: ...
    def resume_some(self, loading: S, now: Now, /) -> bool: ...
    def restart_load(self, loading: S, /) -> S: ...
    def fail_load(self, loading: S, /) -> None: ...


@dataclass(frozen=True, slots=True)
class LoadedTopic(Generic[S]):
    """What the loads of one coordinator's topic need to know about it."""

    name: str
    coordinator: LoadingCoordinator[S]
    replaying: Callable[[S], Replay]
    finish: Callable[[S, Now], None]
    """The load is complete: activate the state, and execute what follows."""
    summary: Callable[[S], dict[str, int]]
    """Counts for the log message about a long load."""
    consequence: str
    """What an operator loses with an unreadable partition."""


class CoordinatorTopicReads(Protocol):
    """The partitions of the topic. Raises PeerError if this broker does not lead in that epoch (yet)."""

    def read(self, topic_partition: TopicPartition, leader_epoch: int) -> Batches: ...

    def when_committed(self, topic_partition: TopicPartition, leader_epoch: int) -> asyncio.Future[None] | None:
        """None if all records in the log are committed, or cannot be soon; otherwise a future of that."""


class Loading(Generic[S]):
    """The loads of one broker. All methods run on the event loop."""

    def __init__(
        self, topic: LoadedTopic[S], topic_log: CoordinatorTopicReads, clock: Clock, threads: Executor | None
    ) -> None:
        """`threads` read from the disk; None uses the loop's own."""
        self._topic = topic
        self._coordinator = topic.coordinator
        self._log = topic_log
        self._clock = clock
        self._threads = threads
        self._queue: deque[_Load[S]] = deque()
        self._reader: asyncio.Task[None] | None = None
        self._committing: set[asyncio.Future[None]] = set()
        self._waiting: dict[int, tuple[S, asyncio.TimerHandle]] = {}
        self._is_closed = False
        self._first_slices_at_ms = 0
        self._first_slices_ms = 0
        """How long first slices have taken since then."""
        self.durations: Final = Durations()
        """Of complete loads."""

    def begin(self, shard: S) -> None:
        """Load a shard. A short log is loaded before this returns, unless many others just were; a long one continues
        in slices."""
        load = _Load(self._topic, shard, self._log, self._clock)
        self._step_first(load)
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

    async def _read_from_disk(self, load: _Load[S], cold: LogRead) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, cold.load)
        except Exception as error:
            load.is_over = True
            self._failed(load.shard, error)
        else:
            load.cold = None

    def _step_first(self, load: _Load[S]) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._first_slices_at_ms + _FIRST_SLICES_PAUSE_MS:
            self._first_slices_at_ms, self._first_slices_ms = now_ms, 0
        if self._first_slices_ms < FIRST_SLICES_MS:
            self._step(load)
            if load.record_count:
                self._first_slices_ms += self._clock.monotonic_ms() - now_ms

    def _step(self, load: _Load[S]) -> None:
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

    def _await_commit(self, load: _Load[S]) -> None:
        shard = load.shard
        try:
            committed = self._log.when_committed(self._topic_partition(shard), shard.epoch)
        except PeerError as error:
            self._failed(shard, error)
            return
        if committed is None:
            self._finish(load)
            return
        committed.add_done_callback(lambda done: self._on_committed(load, done))
        self._committing.add(committed)

    def _on_committed(self, load: _Load[S], done: asyncio.Future[None]) -> None:
        self._committing.discard(done)
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._finish(load)
        elif isinstance(error, Exception):
            self._failed(load.shard, error)

    def _finish(self, load: _Load[S]) -> None:
        shard = load.shard
        if self._is_closed or not self._coordinator.is_current(shard):
            return
        now = self._now()
        if self._coordinator.resume_some(shard, now):
            asyncio.get_running_loop().call_soon(self._finish, load)
            return
        self.durations.observe((now.monotonic_ms - load.began_ms) / 1000)
        if load.record_count >= FIRST_SLICE_RECORDS:
            log.info(
                "coordinator loaded",
                partition=str(self._topic_partition(shard)),
                leader_epoch=shard.epoch,
                records=load.record_count,
                **self._topic.summary(shard),
                took_ms=now.monotonic_ms - load.began_ms,
            )
        self._topic.finish(shard, now)

    # --- failures ----------------------------------------

    def _failed(self, shard: S, error: Exception) -> None:
        """The keys of this partition stay without coordinator; other loads continue. A bug of ours is logged with its
        traceback."""
        if not self._coordinator.is_current(shard):
            return
        if isinstance(error, PeerError) and error.code in _PASSES:
            timer = asyncio.get_running_loop().call_later(RETRY_S, self._restart, shard)
            self._waiting[shard.partition] = shard, timer
            return
        self._coordinator.fail_load(shard)
        log.error(
            "loading a coordinator failed",
            partition=str(self._topic_partition(shard)),
            error=str(error),
            advice=f"{self._topic_partition(shard)} has records that cannot be read. Inspect them with"
            f" `fenceline log dump`; restore the partition or delete its directory ({self._topic.consequence}).",
        )
        if not isinstance(error, FencelineError | OSError) or isinstance(error, InternalError):
            asyncio.get_running_loop().call_exception_handler(
                {"message": "loading a coordinator failed", "exception": error}
            )

    def _restart(self, shard: S) -> None:
        waiting = self._waiting.get(shard.partition)
        if waiting is not None and waiting[0] is shard:
            del self._waiting[shard.partition]
        if self._coordinator.is_current(shard):
            self.begin(self._coordinator.restart_load(shard))

    def _now(self) -> Now:
        return Now(self._clock.now_ms(), self._clock.monotonic_ms())

    def _topic_partition(self, shard: S) -> TopicPartition:
        return TopicPartition(self._topic.name, shard.partition)


class _Load(Generic[S]):
    """One partition's replay, in steps."""

    def __init__(self, topic: LoadedTopic[S], shard: S, topic_log: CoordinatorTopicReads, clock: Clock) -> None:
        self.shard = shard
        self.began_ms = clock.monotonic_ms()
        self.record_count = 0
        self.cold: LogRead | None = None
        """Must be loaded in a thread before the next step."""
        self.is_over = False
        self._clock = clock
        self._slice_ends_ms = 0
        self._steps = self._replay(topic, topic_log)

    def step(self) -> None:
        """One slice, or up to a read that must be loaded. Raises any error of the log."""
        self._slice_ends_ms = self._clock.monotonic_ms() + SLICE_MS
        self.is_over = next(self._steps, self) is self

    def _replay(self, topic: LoadedTopic[S], topic_log: CoordinatorTopicReads) -> Iterator[None]:
        replay = topic.replaying(self.shard)
        end_of_slice = FIRST_SLICE_RECORDS
        for read in topic_log.read(TopicPartition(topic.name, self.shard.partition), self.shard.epoch):
            if isinstance(read, LogRead):
                self.cold = read
                yield
                continue
            header, records = read
            now = Now(self._clock.now_ms(), self._clock.monotonic_ms())
            replay(header, records, now)
            self.record_count += len(records)
            if self.record_count >= end_of_slice or now.monotonic_ms >= self._slice_ends_ms:
                end_of_slice = self.record_count + LOAD_SLICE_RECORDS
                yield
