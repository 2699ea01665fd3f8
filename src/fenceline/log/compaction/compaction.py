"""One compaction of one log: removes older records of each key and keeps the newest; offsets and epochs do not change.

Owns the two passes over the files. The first puts the keys of the dirty part into a map of bounded size. The second
rewrites every segment from the log start to the end of the mapped range, without the records for which the map has a
newer one. If the map is full, the pass ends there and the next compaction continues after it. Never decides what to
compact (`compaction.plan`), when, or how fast: it is an iterator of bounded pieces of work for a thread, and the caller
may pause between them or stop after each.

Segments are replaced group by group, oldest first, so that a tombstone is removed only after the records it deletes.
Only sealed segments are read. The replacement itself is one step on the loop (`compaction.swap`), which checks that
they still belong to the log. A segment that loses no record is left alone.

A batch's CRC is checked before the batch is changed; a damaged batch ends the compaction.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from fenceline.errors import FencelineError
from fenceline.log.compaction import swap as compaction_swap
from fenceline.log.compaction.filter import BatchFilter, Kept, KeyIndexer
from fenceline.log.compaction.kernel import SLOT_BYTES, KeyOffsets, tell_batches
from fenceline.log.compaction.plan import Due, SegmentFacts, SegmentGroup, groups
from fenceline.log.compaction.swap import Replacement
from fenceline.log.compaction.transactions import CleanedTransactions
from fenceline.log.core.compaction_bound import raise_bound
from fenceline.log.core.config import MAX_INT64, LogConfig
from fenceline.log.core.disk import Disk, write_all
from fenceline.log.core.file_names import CLEANED_SUFFIX, LOG_SUFFIX
from fenceline.log.core.index import TIME_ENTRY_BYTES, AbortedTransaction, OffsetIndex
from fenceline.log.core.scan import BadBatch
from fenceline.log.core.segment import Segment
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.records.batch import BATCH_OVERHEAD, CRC_COVERS_FROM, BatchHeader, peek_header
from fenceline.records.crc import crc32c
from fenceline.records.errors import RecordsError

MAX_GROUP_SEGMENTS: Final = 64
"""Per group: the loop renames that many files at once."""
MAX_FILE_BYTES: Final = (1 << 31) - 1
MAX_UNVERIFIED_BYTES: Final = 16 << 20
"""The checksum of a batch that claims to be larger is checked before memory is allocated for it."""


class Uncleanable(FencelineError):
    """Why a log cannot be compacted, as a message for the operator."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the memory of a compaction."""

    memory_bytes: int = 128 << 20
    """For keys (`log.cleaner.dedupe.buffer.size`, of one thread)."""
    load_factor: float = 0.9
    buffer_bytes: int = 512 << 10
    secret: bytes = bytes(16)
    """Key of the hash function."""

    @property
    def most_keys(self) -> int:
        return max(1, int(self.memory_bytes / SLOT_BYTES * self.load_factor))


@dataclass(slots=True)
class Stats:
    """Progress of a compaction."""

    bytes_read: int = 0
    """In both passes."""
    bytes_before: int = 0
    bytes_after: int = 0
    """Size of the rewritten segments."""
    records_before: int = 0
    records_after: int = 0
    map_use: float = 0.0
    """How full the map of keys was, as a fraction of its capacity."""


@dataclass(slots=True)
class Compaction:
    """Created by `begin`. `steps` is the work; after it, `end` is the offset where the log's dirty part starts."""

    disk: Disk
    directory: str
    segments: tuple[Segment, ...]
    """All segments below `due.end`."""
    later_segments: tuple[Segment, ...]
    """All other segments: they may hold the end marker of a transaction."""
    due: Due
    kept: Kept
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    limits: Limits
    end: int = -1
    stats: Stats = field(default_factory=Stats)
    _has_raised_bound: bool = False

    def steps(self) -> Generator[int | Replacement]:
        """Pieces of work, each for a thread. Yields the number of bytes read and written, or segments to replace before
        the next piece (`compaction.swap.commit`, on the loop).

        To stop early, close the generator, also in a thread; segments that were replaced stay replaced. Raises
        Uncleanable, OSError.
        """
        keys = self._new_keys()
        try:
            yield from self._index(keys)
            transactions = CleanedTransactions(self._aborted(0))
            below = [segment for segment in self.segments if segment.base_offset < self.end]
            for group in self._groups(below):
                yield from self._rewrite(below[group.start : group.end], keys, transactions)
        except (RecordsError, BadBatch) as error:
            raise Uncleanable(f"{self.directory}: {error}") from error

    # -- the keys ---------------------------------------------------------------------------------------------------

    def _new_keys(self) -> KeyOffsets:
        limits, due = self.limits, self.due
        # There are at most as many keys as offsets.
        keys = KeyOffsets(min(limits.most_keys, due.end - due.first_dirty), limits.load_factor, limits.secret)
        keys.end_offset = due.first_dirty
        return keys

    def _index(self, keys: KeyOffsets) -> Iterator[int]:
        due = self.due
        indexing = KeyIndexer(keys, CleanedTransactions(self._aborted(due.first_dirty)), due.first_dirty)
        for number, segment in enumerate(self.segments):
            after = self._after(number)
            if after <= due.first_dirty:
                continue
            start = 0
            if segment.base_offset < due.first_dirty:
                start = _index_of(segment).floor(due.first_dirty - segment.base_offset)
            with contextlib.closing(_Chunks(self.disk, segment, start, self.limits.buffer_bytes)) as chunks:
                for chunk in chunks:
                    consumed = indexing.index(chunk)
                    chunks.consumed(consumed)
                    self.stats.bytes_read += consumed
                    if indexing.is_full:
                        break
                    yield consumed
            if indexing.is_full:
                break
            keys.end_offset = after
        self.end = keys.end_offset
        self.stats.map_use = len(keys) / self.limits.most_keys
        if self.end > due.first_dirty:
            return
        if not indexing.is_full:
            self.end = due.end  # retention removed these segments after they were found dirty
        else:
            raise Uncleanable(
                f"{self.directory}: the batch at offset {self.end} has more keys than the map can hold "
                f"({keys.most_keys}); increase log.cleaner.dedupe.buffer.size"
            )

    def _aborted(self, from_offset: int) -> Iterator[AbortedTransaction]:
        """Aborted transactions with records in [from_offset, due.end)."""
        for segment in (*self.segments, *self.later_segments):
            for entry in tuple(segment.aborted_transactions()):
                if entry.last_offset >= from_offset and entry.first_offset < self.due.end:
                    yield entry

    def _after(self, number: int) -> int:
        """Base offset of the segment after this one."""
        return self.segments[number + 1].base_offset if number + 1 < len(self.segments) else self.due.end

    # -- the records ------------------------------------------------------------------------------------------------

    def _groups(self, below: list[Segment]) -> list[SegmentGroup]:
        facts = []
        for segment in below:
            found = [self.disk.stat(segment.stem + suffix) for suffix in (".index", ".timeindex")]
            index_bytes = max((each.size_bytes for each in found if each is not None), default=0)
            facts.append((segment.base_offset, segment.size_bytes, index_bytes))
        last = len(below) - 1
        return groups(
            facts,
            end=self._after(last) if below else 0,
            segment_bytes=self.segment_bytes,
            index_bytes=self.segment_index_bytes - TIME_ENTRY_BYTES,
            most=MAX_GROUP_SEGMENTS,
        )

    def _rewrite(
        self, old: list[Segment], keys: KeyOffsets, transactions: CleanedTransactions
    ) -> Iterator[int | Replacement]:
        disk, limits, stats = self.disk, self.limits, self.stats
        new = Segment(disk, self.directory, old[0].base_offset, old[0].created_ms)
        new.jitter_ms = old[0].jitter_ms
        new.path = new.stem + LOG_SUFFIX + CLEANED_SUFFIX
        sizes = tuple(segment.size_bytes for segment in old)
        indexes = tuple(_index_of(segment) for segment in old)
        replacement = Replacement(tuple(old), sizes, indexes, new, ())
        filtering = BatchFilter(
            keys, transactions, self.kept, now_ms=self.now_ms, delete_retention_ms=self.delete_retention_ms
        )
        try:
            fd = compaction_swap.begin_file(disk, new.path)
            try:
                for segment in old:
                    with contextlib.closing(_Chunks(disk, segment, 0, limits.buffer_bytes)) as chunks:
                        for chunk in chunks:
                            consumed, pieces = filtering.filter(chunk)
                            chunks.consumed(consumed)
                            written = self._write(fd, new, pieces)
                            stats.bytes_read += consumed
                            yield consumed + written
                    aborted = new.aborted_transactions()
                    aborted += transactions.kept
                    transactions.kept = []
                is_same = len(old) == 1 and not filtering.batches_changed
                if not is_same:
                    disk.fsync(fd)
            finally:
                disk.close(fd)
            if not is_same:
                new.seal()
                new.indexes_saved = True
                replaces_aborted = any(segment.aborted_transactions() for segment in old[:1])
                suffixes = compaction_swap.write_indexes(disk, new, replaces_aborted)
                replacement = replacement._replace(suffixes=suffixes)
                if not self._has_raised_bound:
                    raise_bound(disk, self.directory, self.due.end)
                    self._has_raised_bound = True
                compaction_swap.prepare(disk, self.directory, replacement)
                yield replacement
                compaction_swap.sync_replacement(disk, self.directory, replacement)
                stats.bytes_before += sum(sizes)
                stats.bytes_after += new.size_bytes
            stats.records_before += filtering.records_before
            stats.records_after += filtering.records_after
        finally:
            compaction_swap.undo(disk, self.directory, replacement)

    def _write(self, fd: int, new: Segment, pieces: list[memoryview]) -> int:
        before = new.size_bytes
        for piece in pieces:
            if new.size_bytes + piece.nbytes > MAX_FILE_BYTES:
                raise Uncleanable(f"{new.path} would be larger than {MAX_FILE_BYTES} bytes")
            write_all(self.disk, fd, piece)
            tell_batches(piece, piece.nbytes, new, self.index_interval_bytes)
        return new.size_bytes - before


class _Chunks:
    """The bytes of a segment, one buffer at a time; each buffer starts with a batch. The caller reports how many bytes
    of it were consumed (`consumed`), and the next buffer starts there."""

    def __init__(self, disk: Disk, segment: Segment, position: int, buffer_bytes: int) -> None:
        self._disk = disk
        self._path = segment.path
        self._position = position
        self._end = segment.size_bytes
        self._buffer_bytes = max(buffer_bytes, BATCH_OVERHEAD)
        self._fd = disk.open_read(segment.path)

    def close(self) -> None:
        self._disk.close(self._fd)

    def consumed(self, size_bytes: int) -> None:
        self._position += size_bytes

    def __iter__(self) -> Iterator[memoryview]:
        """Raises RecordsError if the file ends within a batch; OSError."""
        while self._position < self._end:
            before = self._position
            chunk = self._read(min(self._buffer_bytes, self._end - before))
            header = peek_header(chunk)
            if header.size_bytes > len(chunk):
                if header.size_bytes > self._end - before:
                    raise Uncleanable(f"{self._path} ends within the batch at byte {before}")
                if header.size_bytes > MAX_UNVERIFIED_BYTES:
                    self._check_large(header)
                chunk = self._read(header.size_bytes)
            yield memoryview(chunk)
            if self._position == before:
                return

    def _check_large(self, header: BatchHeader) -> None:
        """Check a large batch, as no checksum covers a batch's length. Raises Uncleanable, OSError."""
        crc, done = 0, CRC_COVERS_FROM
        while done < header.size_bytes:
            piece = self._read(min(MAX_UNVERIFIED_BYTES, header.size_bytes - done), done)
            crc = crc32c(piece, crc)
            done += len(piece)
        if crc != header.crc:
            raise Uncleanable(
                f"{self._path}: the checksum of the batch at offset {header.base_offset} is wrong, or its length of "
                f"{header.size_bytes} bytes is wrong"
            )

    def _read(self, size_bytes: int, later_segments: int = 0) -> bytes:
        position = self._position + later_segments
        content = self._disk.pread(self._fd, size_bytes, position)
        while len(content) < size_bytes:
            more = self._disk.pread(self._fd, size_bytes - len(content), position + len(content))
            if not more:
                raise Uncleanable(f"{self._path} is shorter than {self._end} bytes")
            content += more
        return content


def _index_of(segment: Segment) -> OffsetIndex:
    """Does not keep the index in memory. Raises OSError, BadBatch."""
    index = segment.index  # the loop may release it at any time
    return index if index is not None else segment.load_indexes()[0]


def begin(log: PartitionLog, due: Due, *, now_ms: int, limits: Limits) -> Compaction:
    """A compaction of a log in its current state. Call it on the loop."""
    config = log.config
    is_saved = log.complete_from == log.saved_complete_from
    log.raise_complete_from(due.end, log.latest_epoch)
    if is_saved:
        log.saved_complete_from = log.complete_from  # `raise_bound` saves it
    segments = tuple(segment for segment in log.segments[:-1] if segment.base_offset < due.end)
    ends = {due.end - 1}
    marker_epochs: dict[int, int] = {}
    for producer in log.producers:
        if producer.last_offset >= 0:
            ends.add(producer.last_offset)
        else:
            marker_epochs[producer.producer_id] = producer.epoch
    return Compaction(
        disk=log.disk,
        directory=log.directory,
        segments=segments,
        later_segments=tuple(log.segments[len(segments) :]),
        due=due,
        kept=Kept(array("q", sorted(ends)), marker_epochs),
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        segment_bytes=min(config.segment_bytes, MAX_FILE_BYTES),
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        limits=limits,
    )


def segment_facts(segments: Sequence[Segment], config: LogConfig) -> list[SegmentFacts]:
    """What `compaction.plan` judges a log by; timestamps are read only if a setting needs them, and never the active
    segment's. For a thread if a lag is set. Raises OSError, BadBatch."""
    asks_first, asks_largest = config.max_compaction_lag_ms < MAX_INT64, config.min_compaction_lag_ms > 0
    found = []
    for position, segment in enumerate(segments):
        is_sealed = position + 1 < len(segments)
        first_ms = segment.first_batch_timestamp_ms() if asks_first and is_sealed else -1
        largest_ms = segment.largest_timestamp_ms() if asks_largest and is_sealed else -1
        found.append(SegmentFacts(segment.base_offset, segment.size_bytes, first_ms, largest_ms))
    return found
