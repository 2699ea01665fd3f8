"""Opens a log's directory: finds the log end, rebuilds derived files, truncates what a crash left incomplete.

Owns the decision which data to trust. Never accepts damaged data: bytes below the recovery point (or all of them after
a clean shutdown) were safe on the disk, so damage there is `CorruptLog` and the partition stays offline. Past the
recovery point every CRC is checked, and the log ends before the first incomplete or damaged batch; `recovery.cut` owns
how it is truncated and where the rest goes. If the disk has no room for what must be written first, the log stays
unchanged and can be opened once there is room (`CorruptLog.transient_error`).

- Trusted: sealed segments that end at or below the recovery point. Their indexes are read on demand.
- Scanned: from the newest trusted producer snapshot or the recovery point, whichever is lower; headers below the
  recovery point, complete batches above. The scan starts at an index entry if the entry matches its batch.
- Aborted transactions (`.txnindex`) of a segment that is not trusted are read back from its batches, as its file can
  lack some, or have some that the log has lost. That needs the producers' state at the segment's base, so no later
  snapshot is used. A damaged file of a trusted segment is read back as well (transactions.md X42).
- Epoch cache: entries at or past the recovery point are dropped and read back from the batches (E15, E17). After a gap
  left by compaction, batches do not show where their epoch begins: the checkpoint's entry counts if it is possible,
  else the lowest possible offset, so that no earlier epoch seems longer than it was.

Blocks on the disk: run it in a thread, or at start.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from fenceline.errors import PeerError
from fenceline.log.core import producer_snapshots
from fenceline.log.core.checkpoints import BadCheckpoint, read_epochs
from fenceline.log.core.compaction_bound import (
    BOUND_FILE,
    COMPLETE,
    COMPLETE_FILE,
    CompleteFrom,
    read_bound,
    read_complete_from,
)
from fenceline.log.core.config import MAX_INT64, LogConfig
from fenceline.log.core.disk import Disk, read_file
from fenceline.log.core.epoch_cache import EpochCache
from fenceline.log.core.errors import CorruptLog, is_transient
from fenceline.log.core.file_names import EPOCH_FILE, LOG_SUFFIX, OFFSET_DIGITS, SNAPSHOT_SUFFIX, offset_in, stem
from fenceline.log.core.producer_state import BadSnapshot, ProducerStates
from fenceline.log.core.replay import apply_to_producers
from fenceline.log.core.scan import BadBatch, Found, ReadTwice, UnstableRead, scan
from fenceline.log.core.segment import MAX_RELATIVE_OFFSET, Segment
from fenceline.log.recovery.cut import Cutting, Opening, RecoveryReport, restore_advice
from fenceline.log.recovery.files import clean_up, drop, inspect, near_end, resume, segments_of
from fenceline.records.batch import BATCH_OVERHEAD, BatchHeader, peek_header

_DISK_ADVICE: Final = (
    "Check the disk and the file's permissions, then restart the node. Other partitions are not affected."
)
_WAIT_ADVICE: Final = (
    "Free disk space, or raise the limit named above. A partition that was offline at start is then opened "
    "automatically, else restart the node. Other partitions are not affected."
)


@dataclass(slots=True)
class LoadedLog:
    """The result of opening a directory."""

    segments: list[Segment]
    log_start_offset: int
    log_end_offset: int
    epochs: EpochCache
    producers: ProducerStates
    report: RecoveryReport
    complete_from: CompleteFrom


def load(
    disk: Disk,
    directory: str,
    *,
    config: LogConfig,
    recovery_point: int,
    clean: bool,
    log_start_offset: int,
    now_ms: int,
    known_end: int = 0,
    first_segment: int | None = None,
    segment_count: int | None = None,
    knows_gaps: bool = False,
    only_torn: bool = False,
    before_cut: Callable[[CorruptLog], None] | None = None,
    read_only: bool = False,
    was_truncated: bool = False,
) -> LoadedLog:
    """Open the files of one partition. `clean`: nothing has happened to them since a clean shutdown. `known_end`:
    records up to there were safe on the disk and committed. `first_segment`: the first base offset at the clean
    shutdown, if known. `knows_gaps`: every program that compacts this log writes its `compaction_bound`.

    `before_cut`: called before complete batches of an `only_torn` log are cut; it raises the error it is given, or has
    durably recorded what was acknowledged. Without it such batches are never cut.

    `read_only`: no file changes, not even those that a crash left unfinished; the segments end where the log would.
    `was_truncated`: this process has just cut the log, so no batch is missing at its end. In a compacted log the
    producer snapshot of the cut may then lie past the last batch that compaction has left.

    Raises CorruptLog, whatever `before_cut` raises, OperatorError if there is no room for a cut that it allows; any
    other OSError becomes a CorruptLog.
    """
    try:
        opening = Opening(
            disk,
            directory,
            config,
            recovery_point,
            clean,
            now_ms,
            knows_gaps,
            only_torn,
            before_cut,
            read_only,
            was_truncated,
        )
        return _Loader(opening).load(log_start_offset, known_end, first_segment, segment_count)
    except OSError as error:
        what, advice = ("opened", _WAIT_ADVICE) if is_transient(error.errno) else ("read", _DISK_ADVICE)
        reason = f"cannot be {what}: {error.strerror or error}"
        raise CorruptLog(error.filename or directory, 0, reason, advice) from error


class _Loader:
    def __init__(self, opening: Opening) -> None:
        self._given = opening
        self._disk = opening.disk
        self._directory = opening.directory
        self._report = RecoveryReport(opening.clean)
        self._cutting = Cutting(opening, self._report)
        self._producers = ProducerStates()
        self._epochs = EpochCache()
        self._read_back: list[Segment] = []
        """Segments whose aborted transactions come from their batches."""
        self._checkpoint: list[tuple[int, int]] = []
        """(epoch, start) as read from the checkpoint."""
        self._end = 0  # end of the valid batches
        self._gap_from = 0  # as `_end`, also where the next segment begins later
        self._lacks_records = False  # compaction left some out, in the part that may not be flushed
        # At least the end of the compacted part: compaction reads only what is safe.
        self._flushed_to = opening.recovery_point

    def load(
        self, log_start_offset: int, known_end: int, first_segment: int | None, segment_count: int | None
    ) -> LoadedLog:
        files = (inspect if self._given.read_only else clean_up)(self._disk, self._directory)
        names, orphan_indexes = files.names, files.orphan_indexes
        segments = segments_of(self._disk, self._directory, files, self._given.now_ms)
        complete_from = self._complete_from(names, segments)
        if segments:
            if not self._given.only_torn:
                self._check_missing_segments(segments, orphan_indexes, log_start_offset, first_segment)
                if not (self._given.clean and segment_count in (None, len(segments))):
                    self._check_holes(segments, log_start_offset)
            log_start_offset = max(log_start_offset, segments[0].base_offset)
        if orphan_indexes and not self._given.read_only:
            drop(self._disk, self._directory, names, orphan_indexes)
            self._disk.fsync_dir(self._directory)  # a file that reappears would be reported as lost again
        epochs_known = self._load_epochs(log_start_offset)
        end = log_start_offset
        if segments:
            replay_from = self._load_snapshot(names, log_start_offset, self._check_aborted(segments))
            end = self._scan(segments, replay_from, log_start_offset, epochs_known)
            if end < self._producers.snapshot_offset and not self._given.was_truncated:
                self._rebuild_producers(segments, names, log_start_offset, end)
            self._save_aborted()
        if end < log_start_offset:
            # Deleted further than what survived (DeleteRecords, then a crash).
            self._cutting.empty(segments, end, log_start_offset)
            self._producers.clear()
            end = log_start_offset
        if end < known_end:
            self._cutting.note_missing_end(end, known_end)
        self._epochs.truncate_from_end(end)
        self._epochs.truncate_from_start(log_start_offset)
        if not self._given.read_only:
            producer_snapshots.drop(self._disk, self._directory, names, lambda at: at > end)
        if not self._given.clean:
            self._epochs.changed = True
        if self._lacks_records and (self._given.config.compacted or complete_from.offset):
            # The bound that shows where the newer ones lie was in memory only. In a log that never had one, as its
            # topic was never compacted, a gap is damage.
            complete_from = complete_from.raised(end + 1, self._epochs.latest_epoch)
        return LoadedLog(segments, log_start_offset, end, self._epochs, self._producers, self._report, complete_from)

    def _complete_from(self, names: set[str], segments: list[Segment]) -> CompleteFrom:
        known = COMPLETE
        if COMPLETE_FILE in names:
            known = read_complete_from(self._disk, self._directory)
        if BOUND_FILE in names:
            bound = read_bound(self._disk, self._directory)
            known = known.raised(bound, -1)
            self._flushed_to = max(self._flushed_to, bound)
        if not self._given.knows_gaps and self._given.config.compacted and segments:
            # Apache Kafka compacts all but the active segment.
            known = known.raised(segments[-1].base_offset, -1)
        return known

    # -- missing files ----------------------------------------------------------------------------------------

    def _check_missing_segments(
        self, segments: list[Segment], orphan_indexes: list[str], log_start_offset: int, first_segment: int | None
    ) -> None:
        """Find segment files that neither retention nor compaction nor a truncation removed. Raises CorruptLog if they
        lay between others and had been safe; missing first segments are recorded in a note, and the log starts where
        the files do."""
        vanished = sorted({int(name[:OFFSET_DIGITS]) for name in orphan_indexes})
        start = segments[0].base_offset
        began = min([base for base in (first_segment, *vanished) if base is not None], default=start)
        if max(began, log_start_offset) < start:
            self._cutting.note_missing_start(max(began, log_start_offset), start)
        bases = [segment.base_offset for segment in segments]
        for base in vanished:
            if start < base < bases[-1] and (self._given.clean or base < self._given.recovery_point):
                number = bisect_right(bases, base)
                end, _ = self._end_of(segments[number - 1])
                if end <= base and not self._given.read_only:
                    path = stem(self._directory, base) + LOG_SUFFIX
                    raise _hole(path, "the segment file is missing but its index exists", end, bases[number])

    def _check_holes(self, segments: list[Segment], log_start_offset: int) -> None:
        """Find a segment between others that vanished with its indexes, below the recovery point or after a clean
        shutdown, in a log that is not compacted; past the recovery point the scan finds it. Reads the end of each
        segment: after a crash, or if the clean shutdown recorded more files. Raises CorruptLog."""
        if self._given.config.compacted or not self._given.knows_gaps:
            return
        for segment, following in pairwise(segments):
            if not self._given.clean and segment.base_offset >= self._given.recovery_point:
                break
            if following.base_offset <= log_start_offset:
                continue
            # No checksum is checked: offsets that two reads return exist.
            end = self._hole_before(following, segment)
            if end is not None and end == self._hole_before(following, segment):
                raise _hole(segment.path, "the segment file after this one is missing", end, following.base_offset)

    def _hole_before(self, following: Segment, segment: Segment) -> int | None:
        """Where `segment` ends, if offsets that had been safe are missing after it. Damage is found when it is read."""
        end, is_whole = self._end_of(segment)
        was_safe = self._given.clean or end < self._given.recovery_point
        is_hole = is_whole and was_safe and end < following.base_offset
        return end if is_hole and following.base_offset > read_bound(self._disk, self._directory) else None

    def _end_of(self, segment: Segment) -> tuple[int, bool]:
        """The offset after its last batch, or of the damage; and whether it is undamaged."""
        position, end = near_end(segment)
        fd = self._disk.open_read(segment.path)
        try:
            for found in self._batches(self._disk, fd, segment, position, segment.size_bytes, end):
                end = found.header.next_offset
        except BadBatch:
            return end, False  # the scan finds it again where it matters
        finally:
            self._disk.close(fd)
        return end, True

    # -- what is derived from the batches ---------------------------------------------------------------------------

    def _load_epochs(self, log_start_offset: int) -> bool:
        """Whether the epoch checkpoint has all epochs from the log start on."""
        path = f"{self._directory}/{EPOCH_FILE}"
        try:
            entries = read_epochs(self._disk, path)
            if entries != read_epochs(self._disk, path):  # no checksum covers it
                return False
            self._epochs = EpochCache(entries)
            self._checkpoint = entries
        except (BadCheckpoint, ValueError):
            return False
        if self._given.clean:
            return bool(entries)
        if entries and entries[0][1] > log_start_offset:
            # A crash came between this file and the checkpoint of a log start that had advanced: all are read again.
            self._epochs = EpochCache()
            return False
        self._epochs.truncate_from_end(self._given.recovery_point)
        return bool(entries)

    def _check_aborted(self, segments: list[Segment]) -> int:
        """The base offset from which aborted transactions are read back. Forgets those that are damaged."""
        first = MAX_INT64
        for segment in segments:
            # A flush before it was sealed did not save its indexes, and may have ended where it does.
            is_saved = self._given.clean or (segment.sealed and segment.next_offset < self._given.recovery_point)
            if not is_saved or (segment.aborted is None and not segment.has_valid_aborted()):
                segment.aborted = []
                segment.indexes_saved = False
                self._read_back.append(segment)
                first = min(first, segment.base_offset)
        return first

    def _save_aborted(self) -> None:
        """Write the files that differ from what was read back: the next start may trust these segments. Raises OSError
        unless the disk is full."""
        if self._given.read_only:
            return
        try:
            for segment in self._read_back:
                segment.save_aborted()
        except OSError as error:
            if not is_transient(error.errno):
                raise

    def _load_snapshot(self, names: set[str], log_start_offset: int, limit_offset: int = MAX_INT64) -> int:
        """Producer state from the newest valid snapshot up to a limit; returns the offset from which batches must be
        replayed."""
        for offset in producer_snapshots.offsets_in(names):
            if offset > limit_offset or (not self._given.clean and offset > self._given.recovery_point):
                continue
            content = read_file(self._disk, producer_snapshots.path_of(self._directory, offset))
            if content is None:
                continue
            try:
                expiration_ms = self._given.config.producer_id_expiration_ms
                self._producers.load(content, now_ms=self._given.now_ms, expiration_ms=expiration_ms)
            except BadSnapshot:
                continue
            self._producers.snapshot_offset = offset
            return max(offset, log_start_offset)
        return log_start_offset

    def _rebuild_producers(self, segments: list[Segment], names: set[str], log_start_offset: int, end: int) -> None:
        """Producer state of a log that ends below the snapshot that was loaded: a batch that the log has lost must not
        count as a duplicate when its producer sends it again."""
        self._producers = ProducerStates()
        within = {path for path in names if (at := offset_in(path, SNAPSHOT_SUFFIX)) is not None and at <= end}
        replay_from = self._load_snapshot(within, log_start_offset)
        for segment in segments:
            if segment.next_offset <= replay_from:
                continue
            fd = self._disk.open_read(segment.path)
            try:
                for found in self._batches(self._disk, fd, segment, 0, segment.size_bytes, segment.base_offset):
                    if found.header.base_offset >= replay_from:
                        apply_to_producers(self._producers, segment, found)
            finally:
                self._disk.close(fd)

    # -- batches ------------------------------------------------------------------------------------------------

    def _scan(self, segments: list[Segment], replay_from: int, log_start_offset: int, epochs_known: bool) -> int:
        """Scan what cannot be trusted; returns the log end offset. Truncates `segments` if the log ends early."""
        start_offset = replay_from if self._given.clean else min(replay_from, self._given.recovery_point)
        if not epochs_known:
            start_offset = log_start_offset
        first = max(0, bisect_right([segment.base_offset for segment in segments], start_offset) - 1)
        self._end = self._gap_from = segments[first].base_offset
        for number in range(first, len(segments)):
            segment = segments[number]
            if segment.base_offset < self._end:
                raise CorruptLog(
                    segment.path,
                    0,
                    f"the segment starts below offset {self._end}, the end of the segment before it",
                    restore_advice("segment"),
                )
            if number > first and self._gap(segment):
                # Lost between two fsyncs: the end of one file but not the start of the next.
                reason = f"offsets {self._end} to {segment.base_offset - 1} are missing"
                if not self._given.only_torn:
                    self._cutting.note_missing_range(self._end, segment.base_offset)
                self._cutting.cut(
                    segments, number - 1, self._end, BadBatch(segments[number - 1].size_bytes, reason, torn=False)
                )
                break
            self._end = segment.base_offset
            try:
                self._scan_segment(segment, start_offset, replay_from, last=number == len(segments) - 1)
            except BadBatch as bad:
                self._confirm_damage(segment, bad)
                self._cutting.cut(segments, number, self._end, bad)
                break
        return self._end

    def _batches(
        self, disk: Disk | ReadTwice, fd: int, segment: Segment, start: int, end: int, next_offset: int
    ) -> Iterator[Found]:
        """As `scan`, for a segment of this log."""
        return scan(
            disk,
            fd,
            start,
            end,
            next_offset=next_offset,
            crc_from_offset=None if self._given.clean else self._given.recovery_point,
            highest_offset=segment.base_offset + MAX_RELATIVE_OFFSET,
            has_gaps=not self._given.only_torn,
        )

    def _confirm(self, segment: Segment, fd: int, found: Found) -> None:
        """Read a batch again that begins an epoch or leaves a gap, as no checksum covers either. Raises CorruptLog if
        the second read differs."""
        header = found.header
        try:
            again = peek_header(self._disk.pread(fd, BATCH_OVERHEAD, found.position))
        except PeerError:
            again = None
        if again is None or (again.base_offset, again.leader_epoch) != (header.base_offset, header.leader_epoch):
            raise _unstable(
                segment, found.position, f"the batch at offset {header.base_offset} differs when it is read again"
            )

    def _confirm_damage(self, segment: Segment, bad: BadBatch) -> None:
        """Read a bad place again: a torn write is bad in the same way each time, while a disk with read errors must not
        make a log lose its records. Raises CorruptLog."""
        found = self._disk.stat(segment.path)
        fd = self._disk.open_read(segment.path)
        try:
            end = found.size_bytes if found is not None else bad.position
            for _ in self._batches(ReadTwice(self._disk), fd, segment, bad.position, end, self._end):
                break
            second_reason = "it is valid"
        except BadBatch as again:
            second_reason = again.reason
        except UnstableRead:
            second_reason = "the bytes differ"
        finally:
            self._disk.close(fd)
        if second_reason != bad.reason:
            raise _unstable(segment, bad.position, f"{bad.reason}; on a second read {second_reason}")

    def _gap(self, segment: Segment) -> bool:
        """Whether offsets past the recovery point are missing before a segment. Compaction leaves gaps, crashes too."""
        if self._given.clean or not segment.base_offset > self._end >= self._given.recovery_point:
            return False
        if self._given.knows_gaps:
            return segment.base_offset > read_bound(self._disk, self._directory)
        return not self._given.config.compacted

    def _scan_segment(self, segment: Segment, start_offset: int, replay_from: int, *, last: bool) -> None:
        """Scan one segment. On BadBatch the segment's `size_bytes` and `next_offset` are those of its valid part."""
        file_bytes = segment.size_bytes
        is_flushed = segment.sealed and segment.next_offset <= self._given.recovery_point
        keep_indexes = (self._given.clean or is_flushed) and not last
        start, next_offset = 0, segment.base_offset
        if not keep_indexes:
            start, next_offset = resume(segment, start_offset)
        interval = self._given.config.index_interval_bytes
        fd = self._disk.open_read(segment.path)
        try:
            if not keep_indexes:
                segment.size_bytes, segment.next_offset = start, next_offset
            self._end = next_offset
            if start:
                self._gap_from = next_offset
            for found in self._batches(self._disk, fd, segment, start, file_bytes, next_offset):
                header = found.header
                begins_epoch = header.leader_epoch > max(self._epochs.latest_epoch, -1)
                has_gap = header.base_offset != self._end
                if begins_epoch or has_gap:
                    self._confirm(segment, fd, found)
                if not self._given.clean and header.base_offset >= self._flushed_to:
                    self._lacks_records |= has_gap or header.record_count <= header.last_offset_delta
                if begins_epoch:
                    self._epochs.begin(header.leader_epoch, header.base_offset, self._starts_in_gap(header))
                self._end = self._gap_from = header.next_offset
                if not keep_indexes:
                    segment.appended(
                        header.base_offset, header.last_offset, header.max_timestamp, header.size_bytes, interval
                    )
                if header.base_offset >= replay_from:
                    apply_to_producers(self._producers, segment, found)
        finally:
            self._disk.close(fd)
            self._report.scanned_bytes += max(0, segment.size_bytes - start)
        if not keep_indexes:
            if segment.sealed:
                segment.seal()
            segment.indexes_saved = self._given.clean and segment not in self._read_back

    def _starts_in_gap(self, header: BatchHeader) -> list[tuple[int, int]]:
        """Where its epoch, and earlier epochs without a batch, begin in the gap before a batch."""
        if header.base_offset == self._gap_from:
            return []
        written = [(epoch, start) for epoch, start in self._checkpoint if start >= self._gap_from]
        is_known = any(epoch == header.leader_epoch for epoch, _ in written)
        return written if is_known else [(header.leader_epoch, self._gap_from)]


def _hole(path: str, what: str, start: int, end: int) -> CorruptLog:
    """Offsets from `start` to `end` between two segments were safe on the disk."""
    return CorruptLog(
        path,
        0,
        f"{what}: offsets {start} to {end - 1} are missing, and had been safe on the disk",
        f"{restore_advice('segment')} Or, to serve the partition without these offsets: stop the node, remove the "
        f".index and .timeindex files without a .log file of the same number, write {end} into the file {BOUND_FILE} "
        "of the partition's directory unless it has a higher number, and start the node.",
    )


def _unstable(segment: Segment, position: int, reason: str) -> CorruptLog:
    return CorruptLog(
        segment.path,
        position,
        reason,
        "The disk returns different bytes on each read; nothing was truncated. Check the disk (dmesg, smartctl) and "
        "its cables, then start the node again.",
    )
