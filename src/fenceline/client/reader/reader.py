"""RangeReader: exactly the records of given offset ranges, or an error with the reason.

Owns the bulk path that Spark executors use. Every Fetch carries the leader epoch of metadata and the epoch of the last
record read, so a broker with a diverging log returns the divergence instead of records (KIP-320, `epochs.md` E8-E10);
the epoch of every batch is compared with the plan of the range. Memory is bounded by `queued.max.bytes`
(`fetch_memory.py`); the next Fetch to a broker is in flight while the caller decodes the previous response.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload
from uuid import UUID

from fenceline.client.core.client_base import AsyncClient, BlockingClient, LoopThread, blocking
from fenceline.client.core.cluster import Cluster, Purpose
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.deadline import Deadline
from fenceline.client.core.epoch_history import EpochQuery, EpochStart
from fenceline.client.core.errors import (
    ConnectionLost,
    EpochMismatchError,
    LogTruncationError,
    OffsetOutOfRangeError,
    TimedOut,
    TopicReplacedError,
    error_code,
)
from fenceline.client.core.fetch_session import PartitionFetch
from fenceline.client.core.fetch_wire import (
    diverging_end,
    fetch_error,
    fetch_once,
    is_permanent,
    scan_answer,
)
from fenceline.client.core.fetched import ConsumerRecord, Fetched, to_arrow, to_records
from fenceline.client.core.offset_lookups import list_offsets, offsets_for_leader_epoch
from fenceline.client.core.offsets import EARLIEST, LATEST, EpochEnd
from fenceline.client.reader.long_poll import LongPoller
from fenceline.client.reader.ranges import (
    Budget,
    ExpectedSizes,
    OffsetRange,
    RangeCursor,
    RangeSpec,
    first_epoch_mismatch,
)
from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.ids import ZERO_UUID, TopicPartition
from fenceline.records.batch import BatchHeader
from fenceline.wire.apis import ApiKey

if TYPE_CHECKING:
    import pyarrow as pa

    from fenceline.wire.fetch import FetchedPartition

_FIRST_VALIDATING_FETCH = 12
"""The first Fetch version with the last fetched epoch, which the broker validates."""


_Item = list[Fetched] | BaseException | None
"""Pieces; at the end None or the exception."""
_Deliver = Callable[[_Item], None]
_Arrived = queue.SimpleQueue[_Item]
_DELIVERED_BYTES = 256 * 1024
"""Pieces of a response are passed on together, at least this much of it, because another thread wakes up each time."""


class AsyncRangeReader(AsyncClient):
    """Create it inside a running loop. `stall_timeout_ms`: how long to wait for a log that ends before its range."""

    def __init__(
        self,
        bootstrap: str | Sequence[str] | Mapping[str, Any] | None = None,
        *,
        stall_timeout_ms: int = 15_000,
        **config: Any,
    ) -> None:
        self.config = ClientConfig.parse("reader", bootstrap, config)
        self.cluster = Cluster(self.config)
        self._stall_timeout_ms = stall_timeout_ms
        self._long_poller = LongPoller(self.cluster)
        self._sizes = ExpectedSizes(self.config["max.partition.fetch.bytes"])

    async def close(self) -> None:
        await self._long_poller.close()
        await self.cluster.close()

    async def wait_for_change(self, positions: Mapping[TopicPartition, tuple[int, int]], timeout_ms: int) -> bool:
        """See `LongPoller.wait_for_change`."""
        return await self._long_poller.wait_for_change(positions, timeout_ms)

    async def fetch(self, ranges: Mapping[TopicPartition, RangeSpec]) -> AsyncIterator[Fetched]:
        """Pieces of the ranges as they arrive, those of a partition in order. A piece is held in memory until the next
        one is requested."""
        pieces: asyncio.Queue[_Item] = asyncio.Queue()
        budget = Budget(self.config["queued.max.bytes"])
        truncation = _DetectedTruncation()
        task = asyncio.ensure_future(self.fetch_all(ranges, truncation.observe(pieces.put_nowait), budget))
        try:
            while True:
                arrived = await pieces.get()
                truncation.raise_if_detected()
                if arrived is None:
                    return
                if isinstance(arrived, BaseException):
                    raise arrived
                arrived.reverse()
                while arrived:
                    truncation.raise_if_detected()
                    piece = arrived.pop()
                    yield piece
                    budget.release([piece])
                    del piece
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def fetch_all(self, ranges: Mapping[TopicPartition, RangeSpec], deliver: _Deliver, budget: Budget) -> None:
        """Fetch all ranges; call `deliver` with the pieces, at the end with None or the exception."""
        try:
            cursors = self._cursors(ranges)
            await self._fetch_metadata(cursors)
            await self._read_all([c for c in cursors if not c.is_done], deliver, budget)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            deliver(error)
        else:
            deliver(None)

    @staticmethod
    def _cursors(ranges: Mapping[TopicPartition, RangeSpec]) -> list[RangeCursor]:
        cursors = []
        for tp, given in ranges.items():
            wanted = given if isinstance(given, OffsetRange) else OffsetRange(*given)
            if not 0 <= wanted.start_offset <= wanted.end_offset_exclusive:
                raise OperatorError(
                    f"{tp[0]}-{tp[1]}: {wanted.start_offset} to {wanted.end_offset_exclusive} is not an offset range",
                    "A range starts at 0 or above and does not end before its start.",
                )
            cursors.append(RangeCursor(TopicPartition(*tp), wanted))
        return cursors

    async def _fetch_metadata(self, cursors: list[RangeCursor]) -> None:
        if not cursors:
            return
        await self.cluster.fetch_metadata(sorted({c.tp.topic for c in cursors}), self._deadline())
        self._check_ids(cursors)

    def _check_ids(self, cursors: Sequence[RangeCursor]) -> None:
        """Check the topics' ids in the current metadata, which a Fetch requests, too."""
        checked: dict[str, UUID | None] = {}
        for cursor in cursors:
            topic, wanted = cursor.tp.topic, cursor.range.topic_id
            if wanted is None or checked.get(topic) is wanted:
                continue
            found = self.cluster.metadata.topic_id(topic)
            if found not in (ZERO_UUID, wanted):
                raise TopicReplacedError(topic, wanted, found)
            checked[topic] = wanted

    def _deadline(self) -> Deadline:
        return Deadline(self.config["default.api.timeout.ms"])

    async def _read_all(self, waiting: list[RangeCursor], deliver: _Deliver, budget: Budget) -> None:
        """One task per leader; cursors whose leader has changed are returned by it and passed to the next one."""
        tasks: set[asyncio.Task[list[RangeCursor]]] = set()
        try:
            while waiting or tasks:
                if waiting:
                    grouped = await self.cluster.by_leader([c.tp for c in waiting], self._earliest_deadline(waiting))
                    by_tp = {c.tp: c for c in waiting}
                    waiting = []
                    for node_id, led in grouped.items():
                        cursors = [by_tp[tp] for tp, _ in led]
                        tasks.add(asyncio.ensure_future(self._read_from(node_id, cursors, deliver, budget)))
                    budget.brokers = len(tasks)
                done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                waiting = [cursor for task in done for cursor in task.result()]
                for cursor in waiting:
                    # The new leader's log may diverge.
                    cursor.validated = cursor.epoch < 0
                    # The timeout starts when the leader is lost, not when the read started.
                    cursor.leader_deadline = cursor.leader_deadline or self._deadline()
                    cursor.leader_deadline.last_error = cursor.last_error
                if waiting:
                    deadline = self._earliest_deadline(waiting)
                    if deadline.is_over:
                        raise self.cluster.timeout_error(deadline)
                    await self.cluster.pause(deadline)
                    await self.cluster.fetch_metadata(sorted({c.tp.topic for c in waiting}), deadline)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _earliest_deadline(self, cursors: list[RangeCursor]) -> Deadline:
        """The deadline of the cursor that has been without a leader for longest."""
        running = [cursor.leader_deadline for cursor in cursors if cursor.leader_deadline is not None]
        return min(running, key=lambda deadline: deadline.left_ms) if running else self._deadline()

    async def _read_from(
        self, node_id: int, cursors: list[RangeCursor], deliver: _Deliver, budget: Budget
    ) -> list[RangeCursor]:
        """Read from one leader until its ranges are complete; returns the cursors that need another leader."""
        moved: list[RangeCursor] = []
        active = list(cursors)
        while active:
            limits = [self._sizes.limit_of(cursor) for cursor in active]
            max_bytes = await budget.reserve(min(sum(limits), self.config["fetch.max.bytes"]))
            try:
                try:
                    answers = await self._fetch(node_id, active, limits, max_bytes)
                except (ConnectionLost, TimedOut) as error:
                    for cursor in active:
                        cursor.last_error = error
                    return moved + active
                remaining: list[RangeCursor] = []
                pieces = _Pieces(deliver, budget)
                try:
                    for cursor in active:
                        answer = answers.get(cursor.tp)
                        if answer is None:
                            cursor.last_error = ConnectionLost(f"the response of broker {node_id} lacks {cursor.tp}")
                            moved.append(cursor)
                        elif answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                            raise await self._explain_out_of_range(cursor)
                        elif (end := diverging_end(answer)) is not None and not answer.error_code:
                            raise await self._truncation(cursor, end, self._deadline())
                        elif not self._handle_response(cursor, answer, pieces):
                            moved.append(cursor)
                        elif not cursor.is_done:
                            remaining.append(cursor)
                finally:
                    pieces.deliver()
            finally:
                budget.release_reservation(max_bytes)
            # Rotate the order, so that full responses do not starve the partitions at the end.
            active = remaining[1:] + remaining[:1]
        return moved

    async def _fetch(
        self, node_id: int, cursors: list[RangeCursor], limits: list[int], max_bytes: int
    ) -> dict[TopicPartition, FetchedPartition]:
        connection = await self.cluster.link(node_id, Purpose.FETCH).connection()
        if connection.max_version(ApiKey.FETCH) < _FIRST_VALIDATING_FETCH:
            await self._validate(cursors)
        self._check_ids(cursors)
        leader = self.cluster.metadata.leader
        wanted = [
            PartitionFetch(cursor.tp, cursor.offset, cursor.epoch, leader(cursor.tp).epoch, limit)
            for cursor, limit in zip(cursors, limits, strict=True)
        ]
        return await fetch_once(self.cluster, connection, wanted, self.config, max_bytes=max_bytes)

    def _handle_response(self, cursor: RangeCursor, answer: FetchedPartition, pieces: _Pieces) -> bool:
        """Handle one partition's response without a divergence; False if its leader must be looked up again."""
        code = error_code(answer.error_code)
        tp = cursor.tp
        if code is not ErrorCode.NONE:
            cursor.last_error = fetch_error(code, tp, cursor.offset)
            if is_permanent(code):
                raise cursor.last_error
            return False
        cursor.leader_deadline = None
        if answer.records:
            piece, newer = self._scan(cursor, answer, cursor.range.end_offset_exclusive)
            other = first_epoch_mismatch(cursor.range.epochs, cursor.epoch, piece)
            if other is not None:
                # The records below are as planned, and are returned.
                piece, _ = self._scan(cursor, answer, other.offset)
            elif newer is not None:
                other = EpochStart(newer.leader_epoch, max(newer.base_offset, cursor.offset))
            is_ahead = piece.next_offset > cursor.offset
            if is_ahead:
                cursor.advance(piece)
                self._sizes.note(piece)
                if piece.runs:
                    pieces.add(piece)
            if other is not None:
                raise EpochMismatchError(
                    tp.topic, tp.partition, other.offset, other.epoch, cursor.range.max_leader_epoch
                )
            if is_ahead:
                cursor.needs_more_bytes = False
                return True
        cursor.needs_more_bytes = True
        self._check_stall(cursor, answer, asyncio.get_running_loop().time())
        return True

    def _scan(
        self, cursor: RangeCursor, answer: FetchedPartition, end_offset_exclusive: int
    ) -> tuple[Fetched, BatchHeader | None]:
        return scan_answer(
            self.config,
            cursor.tp,
            answer,
            cursor.offset,
            cursor.epoch,
            end_offset_exclusive=end_offset_exclusive,
            max_leader_epoch=cursor.range.max_leader_epoch,
        )

    async def _truncation(self, cursor: RangeCursor, answer: EpochEnd, deadline: Deadline) -> LogTruncationError:
        """Search the offset at which the log diverges from the records read (`gaps.md G6`).

        `answer`: the leader's response about the cursor's epoch.
        """
        found = cursor.epochs.compare(EpochQuery(cursor.epoch, cursor.offset), answer)
        while isinstance(found, EpochQuery):
            wanted = {cursor.tp: (found.epoch, -1)}
            answer = (await offsets_for_leader_epoch(self.cluster, wanted, deadline=deadline))[cursor.tp]
            found = cursor.epochs.compare(found, answer)
        # A reader that rewinds to an inexact offset would skip records that were rewritten below it.
        offset, epoch = (found.offset, found.epoch) if found.is_exact else (-1, answer.leader_epoch)
        return LogTruncationError(
            cursor.tp.topic,
            cursor.tp.partition,
            cursor.offset,
            cursor.epoch,
            divergent_offset=offset,
            divergent_epoch=epoch,
            epochs=cursor.epochs.read_from(offset),
        )

    def _check_stall(self, cursor: RangeCursor, answer: FetchedPartition, now_s: float) -> None:
        end = answer.last_stable_offset if self.config.reads_committed else answer.high_watermark
        if not 0 <= end <= cursor.offset:
            cursor.stalled_since_s = None
            return
        if cursor.stalled_since_s is None:
            cursor.stalled_since_s = now_s
        elif (now_s - cursor.stalled_since_s) * 1000 >= self._stall_timeout_ms:
            raise OffsetOutOfRangeError(
                cursor.tp.topic,
                cursor.tp.partition,
                cursor.offset,
                leader_epoch=cursor.epoch,
                log_start_offset=answer.log_start_offset,
                log_end_offset=end,
                detail=(
                    f"The range ends at {cursor.range.end_offset_exclusive}, but the readable log has ended at {end} "
                    f"for {self._stall_timeout_ms} ms: it was truncated, or its in-sync replicas are behind"
                ),
            )

    async def _explain_out_of_range(self, cursor: RangeCursor) -> PeerError:
        """The error for an offset that is out of range: a truncation if the leader confirms one."""
        tp, deadline = cursor.tp, self._deadline()
        start = (await list_offsets(self.cluster, {tp: EARLIEST}, deadline=deadline))[tp]
        end = (await list_offsets(self.cluster, {tp: LATEST}, deadline=deadline))[tp]
        if cursor.epoch >= 0 and cursor.offset >= start.offset:
            known = (await offsets_for_leader_epoch(self.cluster, {tp: (cursor.epoch, -1)}, deadline=deadline))[tp]
            if not _has_records_read(cursor, known):
                return await self._truncation(cursor, known, deadline)
        return OffsetOutOfRangeError(
            tp.topic,
            tp.partition,
            cursor.offset,
            leader_epoch=cursor.epoch,
            log_start_offset=start.offset,
            log_end_offset=end.offset,
        )

    async def _validate(self, cursors: list[RangeCursor]) -> None:
        """The validation that brokers before Fetch 12 do not do themselves (E47-E49)."""
        unchecked = {c.tp: c for c in cursors if not c.validated}
        if not unchecked:
            return
        deadline = self._deadline()
        wanted = {tp: (cursor.epoch, -1) for tp, cursor in unchecked.items()}
        ends = await offsets_for_leader_epoch(self.cluster, wanted, deadline=deadline)
        for tp, cursor in unchecked.items():
            if not _has_records_read(cursor, ends[tp]):
                raise await self._truncation(cursor, ends[tp], deadline)
            cursor.validated = True


class _Pieces:
    """The pieces of one response on their way to the caller."""

    def __init__(self, deliver: _Deliver, budget: Budget) -> None:
        self._deliver = deliver
        self._budget = budget
        self._waiting: list[Fetched] = []
        self._size_bytes = 0

    def add(self, piece: Fetched) -> None:
        self._budget.hold(piece)
        self._waiting.append(piece)
        self._size_bytes += piece.size_bytes
        if self._size_bytes >= _DELIVERED_BYTES:
            self.deliver()

    def deliver(self) -> None:
        """At the end of the response, also if it is an error: records before it are returned."""
        if self._waiting:
            waiting, self._waiting, self._size_bytes = self._waiting, [], 0
            self._deliver(waiting)


class _DetectedTruncation:
    """The truncation that one read has detected, if any: no piece that was fetched before is returned after it."""

    def __init__(self) -> None:
        self._error: LogTruncationError | None = None

    def observe(self, deliver: _Deliver) -> _Deliver:
        def note(item: _Item) -> None:
            if isinstance(item, LogTruncationError):
                self._error = item
            deliver(item)

        return note

    def raise_if_detected(self) -> None:
        if self._error is not None:
            raise self._error


def _has_records_read(cursor: RangeCursor, end: EpochEnd) -> bool:
    """Whether the leader's log has the records read, by its response about the cursor's epoch (E10)."""
    return end.end_offset >= cursor.offset and end.leader_epoch >= cursor.epoch


class RangeReader(BlockingClient[AsyncRangeReader]):
    """Blocking range reader: `for batch in reader.read({tp: (start, end_exclusive, leader_epoch)}): ...`.

    All calls of `read`, also concurrent ones, share its connections. Cannot be used after a fork.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] | Mapping[str, Any] | None = None,
        *,
        stall_timeout_ms: int = 15_000,
        **config: Any,
    ) -> None:
        super().__init__(
            "fenceline-reader", lambda: AsyncRangeReader(bootstrap, stall_timeout_ms=stall_timeout_ms, **config)
        )
        self.config = self._async.config

    @overload
    def read(
        self,
        ranges: Mapping[TopicPartition, RangeSpec],
        *,
        arrow: Literal[True] = True,
        progress: dict[TopicPartition, int] | None = None,
        **options: Any,
    ) -> Iterator[pa.RecordBatch]: ...
    @overload
    def read(
        self,
        ranges: Mapping[TopicPartition, RangeSpec],
        *,
        arrow: Literal[False],
        progress: dict[TopicPartition, int] | None = None,
    ) -> Iterator[list[ConsumerRecord]]: ...
    def read(
        self,
        ranges: Mapping[TopicPartition, RangeSpec],
        *,
        arrow: bool = True,
        progress: dict[TopicPartition, int] | None = None,
        **options: Any,
    ) -> Iterator[Any]:
        """Every record of the ranges, each partition in offset order, partitions interleaved as they arrive.

        Yields pyarrow.RecordBatch (columns and `options` as in `fenceline.records.arrow.batches_to_arrow`), or lists of
        ConsumerRecord. A range is `OffsetRange` or its first two to four fields. Offsets without visible records
        (compaction, transactions) are skipped. `progress` is updated with the next offset of each partition before its
        records are returned. Raises LogTruncationError, EpochMismatchError, OffsetOutOfRangeError, TopicReplacedError
        and errors of the brokers; no record is skipped silently.
        """
        truncation = _DetectedTruncation()
        for pieces, release in self._pieces(ranges, truncation):
            reached = [(TopicPartition(piece.topic, piece.partition), piece.next_offset) for piece in pieces]
            if arrow:
                decoded: list[tuple[Any, list[tuple[TopicPartition, int]]]] = [(to_arrow(pieces, **options), reached)]
            else:
                decoded = [(to_records(piece), [end]) for piece, end in zip(pieces, reached, strict=True)]
            release()
            for rows, ends in decoded:
                truncation.raise_if_detected()
                if progress is not None:
                    progress.update(ends)
                # Compaction leaves batches without records.
                if len(rows):
                    yield rows

    wait_for_change = blocking(AsyncRangeReader.wait_for_change)

    def _pieces(
        self, ranges: Mapping[TopicPartition, RangeSpec], truncation: _DetectedTruncation
    ) -> Iterator[tuple[list[Fetched], Callable[[], None]]]:
        """The pieces that have arrived, a few megabytes at a time, so that many small partitions become few batches;
        with a function that clears the list and releases its memory.
        """
        arrived: _Arrived = queue.SimpleQueue()
        limit_bytes = self.config["max.partition.fetch.bytes"]
        budget = self._on_loop(lambda: Budget(self.config["queued.max.bytes"]))
        pieces: list[Fetched] = []

        def release() -> None:
            self._loop_thread.call_soon(budget.release, pieces.copy())
            pieces.clear()

        task = self._loop_thread.submit(self._async.fetch_all(ranges, truncation.observe(arrived.put), budget))
        # If the client is closed meanwhile, the task ends without a last item.
        task.add_done_callback(lambda done: arrived.put(None) if done.cancelled() else None)
        try:
            while True:
                last = _next_pieces(arrived, self._loop_thread, pieces, limit_bytes)
                if pieces:
                    yield pieces, release
                if isinstance(last, BaseException):
                    raise last
                if last is None:
                    if task.cancelled():
                        self._loop_thread.check_usable()
                    return
        finally:
            task.cancel()


def _next_pieces(
    arrived: _Arrived, loop_thread: LoopThread, pieces: list[Fetched], limit_bytes: int
) -> BaseException | Literal["more"] | None:
    """Move available pieces to `pieces`, at least one. Returns the item behind them, "more" if it has pieces."""
    size_bytes = 0
    if arrived.empty():
        loop_thread.check_usable()
    item = arrived.get()
    while isinstance(item, list):
        pieces += item
        size_bytes += sum(piece.size_bytes for piece in item)
        if size_bytes >= limit_bytes or arrived.empty():
            return "more"
        item = arrived.get()
    return item
