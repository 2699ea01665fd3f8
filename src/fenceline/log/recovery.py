"""Opens what is on the disk: finds the log's end, rebuilds what is derived, cuts what a crash tore.

Owns the decision what to trust. Never decides that damaged data is acceptable: bytes below the recovery point (or all
of them after a clean stop) had been safe on the disk, so damage there is `CorruptLog` and the partition stays offline.
Past the recovery point every CRC is checked, and the log ends before the first batch that is not whole: what is cut
there goes into the partition's `lost+found` unless it is the torn end of one write, with nothing whole behind it. A log
that is fsynced before it counts (`only_torn`) is not cut before a whole batch, which may have been acknowledged, unless
`before_cut` has seen to that. Before anything of another log is cut a note says what goes (`recovery_note.py`); where
the disk has no room for it the log stays as it is, and can be opened when there is some (`CorruptLog.refusal`).

- Trusted: sealed segments that end at or below the recovery point. Their indexes are read when they are needed.
- Scanned: from the newest producer snapshot that can be trusted or the recovery point, whichever is lower; headers
  below the recovery point, whole batches above. Scanning starts at an index entry where the index proves itself.
- Epoch cache: entries at or past the recovery point are dropped and read back from the batches (E15, E17). Behind a gap
  that compaction left, batches do not tell where their epoch begins: what the checkpoint says of it counts, as far as
  it can be, and else the lowest offset that can be, so that no epoch before seems to be longer than it was.

Blocks on the disk: run it in a thread, or at start.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from fenceline.errors import OperatorError, PeerError
from fenceline.log import producer_snapshots
from fenceline.log.checkpoints import BadCheckpoint, read_epochs
from fenceline.log.compaction_swap import finish_swaps
from fenceline.log.config import LogConfig
from fenceline.log.disk import Disk, read_file
from fenceline.log.epoch_cache import EpochCache
from fenceline.log.errors import CorruptLog, passes
from fenceline.log.file_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    EPOCH_FILE,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_DIGITS,
    segment_bases,
)
from fenceline.log.index import OffsetIndex, TimeIndex
from fenceline.log.lost_and_found import EVIDENCE_DIR, evidence_in, keep_file, keep_tail
from fenceline.log.lost_batches import Piece, count_lost
from fenceline.log.producer_state import BadSnapshot, ProducerStates
from fenceline.log.recovery_note import RecoveryNote, write_note
from fenceline.log.replay import apply_to_producers
from fenceline.log.scan import BadBatch, Found, ReadTwice, Unstable, find_whole_batch, scan
from fenceline.log.segment import MAX_RELATIVE_OFFSET, Segment
from fenceline.records.batch import BATCH_OVERHEAD, BatchHeader, peek_header

_LOOK_BEHIND_BYTES: Final = 16 << 20
_DISK_ADVICE: Final = (
    "Check the disk and the file's permissions, then restart the node. Other partitions are not affected."
)
_WAIT_ADVICE: Final = (
    "Make room on the disk, or raise the limit that the reason names. What a start could not open is opened then, else"
    " restart the node. Other partitions are not affected."
)


@dataclass(slots=True)
class RecoveryReport:
    """What opening a log did. `evidence` are the files that now hold what was cut."""

    clean: bool
    scanned_bytes: int = 0
    torn_bytes: int = 0
    """The torn end of one write, with nothing whole behind it."""
    cut_bytes: int = 0
    """All else that is gone from the log."""
    reason: str = ""
    evidence: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Loaded:
    """What opening a directory found."""

    segments: list[Segment]
    log_start_offset: int
    log_end_offset: int
    epochs: EpochCache
    producers: ProducerStates
    report: RecoveryReport


def load(
    disk: Disk,
    directory: str,
    *,
    config: LogConfig,
    recovery_point: int,
    clean: bool,
    log_start_offset: int,
    now_ms: int,
    only_torn: bool = False,
    before_cut: Callable[[CorruptLog], None] | None = None,
) -> Loaded:
    """Open the files of one partition. `clean`: a clean stop was the last thing that happened to them.

    `before_cut`: called before whole batches of a log that is `only_torn` are cut; raises what it is given, or has
    written down durably what was acknowledged. Without it nothing of the kind is cut.

    Raises CorruptLog, what `before_cut` raises, OperatorError where there is no room for what it allows to cut; any
    OSError on the way becomes a CorruptLog.
    """
    try:
        loader = _Loader(disk, directory, config, recovery_point, clean, now_ms, only_torn, before_cut)
        return loader.load(log_start_offset)
    except OSError as error:
        what, advice = ("opened", _WAIT_ADVICE) if passes(error.errno) else ("read", _DISK_ADVICE)
        reason = f"can not be {what}: {error.strerror or error}"
        raise CorruptLog(error.filename or directory, 0, reason, advice) from error


class _Loader:
    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: LogConfig,
        recovery_point: int,
        clean: bool,
        now_ms: int,
        only_torn: bool,
        before_cut: Callable[[CorruptLog], None] | None,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._config = config
        self._recovery_point = recovery_point
        self._clean = clean
        self._now_ms = now_ms
        self._only_torn = only_torn
        self._before_cut = before_cut
        self._report = RecoveryReport(clean)
        self._producers = ProducerStates()
        self._epochs = EpochCache()
        self._checkpoint: list[tuple[int, int]] = []
        """(epoch, start), as they were written down."""
        self._end = 0  # where the batches that were found good end
        self._gap_from = 0  # as `_end`, also where the next segment begins later

    def load(self, log_start_offset: int) -> Loaded:
        names = self._tidy(self._disk.listdir(self._directory))
        segments = self._segments(names)
        if segments:
            log_start_offset = max(log_start_offset, segments[0].base_offset)
        epochs_known = self._load_epochs()
        end = log_start_offset
        if segments:
            end = self._scan(segments, self._load_snapshot(names, log_start_offset), log_start_offset, epochs_known)
        if end < log_start_offset:
            # Deleted further than what survived: nothing of it may be shown again (DeleteRecords, then a crash).
            for segment in segments:
                self._report.cut_bytes += segment.size_bytes
                self._report.evidence += keep_file(self._disk, self._directory, segment.path)
                segment.delete_index_files()
            segments = []
            self._producers.clear()
            end = log_start_offset
        self._epochs.truncate_from_end(end)
        self._epochs.truncate_from_start(log_start_offset)
        producer_snapshots.drop(self._disk, self._directory, names, lambda at: at > end)
        if not self._clean:
            self._epochs.changed = True
        return Loaded(segments, log_start_offset, end, self._epochs, self._producers, self._report)

    # -- files --------------------------------------------------------------------------------------------------

    def _tidy(self, names: Sequence[str]) -> set[str]:
        kept: set[str] = set()
        for name in finish_swaps(self._disk, self._directory, names):
            path = f"{self._directory}/{name}"
            if name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, ".tmp")):
                with contextlib.suppress(FileNotFoundError):
                    self._disk.unlink(path)
            else:
                kept.add(name)
        for name in [name for name in kept if name.endswith(INDEX_SUFFIXES) and name[:OFFSET_DIGITS].isdigit()]:
            if name[:OFFSET_DIGITS] + LOG_SUFFIX not in kept:
                kept.discard(name)
                with contextlib.suppress(FileNotFoundError):
                    self._disk.unlink(f"{self._directory}/{name}")
        return kept

    def _segments(self, names: set[str]) -> list[Segment]:
        segments: list[Segment] = []
        for base in segment_bases(names):
            segment = Segment(self._disk, self._directory, base, self._now_ms)
            found = self._disk.stat(segment.path)
            if found is None:
                raise FileNotFoundError(2, "segment vanished", segment.path)
            segment.size_bytes = found.size_bytes
            segment.created_ms = min(found.modified_ms, self._now_ms)
            segment.index = segment.time_index = None
            segment.aborted = None if f"{base:0{OFFSET_DIGITS}d}.txnindex" in names else []
            segment.indexes_saved = True
            if segments:
                segments[-1].next_offset = base
                segments[-1].sealed = True
            segments.append(segment)
        return segments

    def _load_epochs(self) -> bool:
        path = f"{self._directory}/{EPOCH_FILE}"
        try:
            entries = read_epochs(self._disk, path)
            if entries != read_epochs(self._disk, path):  # no checksum covers it
                return False
            self._epochs = EpochCache(entries)
            self._checkpoint = entries
        except (BadCheckpoint, ValueError):
            return False
        if not self._clean:
            self._epochs.truncate_from_end(self._recovery_point)
        return bool(entries)

    def _load_snapshot(self, names: set[str], log_start_offset: int) -> int:
        """Producer state from the newest good snapshot; returns the offset from which batches must be replayed."""
        for offset in producer_snapshots.offsets_in(names):
            if not self._clean and offset > self._recovery_point:
                continue
            content = read_file(self._disk, producer_snapshots.path_of(self._directory, offset))
            if content is None:
                continue
            try:
                self._producers.load(content, now_ms=self._now_ms, expiration_ms=self._config.producer_id_expiration_ms)
            except BadSnapshot:
                continue
            self._producers.snapshot_offset = offset
            return max(offset, log_start_offset)
        return log_start_offset

    # -- batches ------------------------------------------------------------------------------------------------

    def _scan(self, segments: list[Segment], replay_from: int, log_start_offset: int, epochs_known: bool) -> int:
        """Walk what can not be trusted; returns the log end offset. Cuts `segments` where the log ends early."""
        start_offset = replay_from if self._clean else min(replay_from, self._recovery_point)
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
                    f"the segment starts below offset {self._end}, where the one before it ends",
                    _restore_advice("segment"),
                )
            if number > first and self._gap(segment):
                # Lost between two fsyncs: the end of one file but not the start of the next.
                reason = f"offsets {self._end} to {segment.base_offset - 1} are missing"
                self._cut(segments, number - 1, BadBatch(segments[number - 1].size_bytes, reason, torn=False))
                break
            self._end = segment.base_offset
            try:
                self._scan_segment(segment, start_offset, replay_from, last=number == len(segments) - 1)
            except BadBatch as bad:
                self._look_again(segment, bad)
                self._cut(segments, number, bad)
                break
        return self._end

    def _batches(
        self, disk: Disk | ReadTwice, fd: int, segment: Segment, start: int, end: int, next_offset: int
    ) -> Iterator[Found]:
        """As `scan` of a segment of this log."""
        return scan(
            disk,
            fd,
            start,
            end,
            next_offset=next_offset,
            crc_from_offset=None if self._clean else self._recovery_point,
            highest_offset=segment.base_offset + MAX_RELATIVE_OFFSET,
            has_gaps=not self._only_torn,
        )

    def _confirm(self, segment: Segment, fd: int, found: Found) -> None:
        """A batch begins an epoch or leaves a gap; no checksum covers either. Raises CorruptLog when it is another one
        when it is read again.
        """
        header = found.header
        try:
            again = peek_header(self._disk.pread(fd, BATCH_OVERHEAD, found.position))
        except PeerError:
            again = None
        if again is None or (again.base_offset, again.leader_epoch) != (header.base_offset, header.leader_epoch):
            raise _unstable(segment, found.position, f"the batch at offset {header.base_offset} is another each time")

    def _look_again(self, segment: Segment, bad: BadBatch) -> None:
        """What a crash has torn is bad in the same way each time it is read; a disk that reads wrong now and then must
        not make a log lose what it holds. Raises CorruptLog.
        """
        found = self._disk.stat(segment.path)
        fd = self._disk.open_read(segment.path)
        try:
            end = found.size_bytes if found is not None else bad.position
            for _ in self._batches(ReadTwice(self._disk), fd, segment, bad.position, end, self._end):
                break
            told = "it is whole"
        except BadBatch as again:
            told = again.reason
        except Unstable:
            told = "the bytes are others"
        finally:
            self._disk.close(fd)
        if told != bad.reason:
            raise _unstable(segment, bad.position, f"{bad.reason}; read again, {told}")

    def _gap(self, segment: Segment) -> bool:
        """Whether offsets past the recovery point are missing before a segment. Compaction leaves gaps, crashes too."""
        if self._clean or self._config.compacted:
            return False
        return segment.base_offset > self._end >= self._recovery_point

    def _scan_segment(self, segment: Segment, start_offset: int, replay_from: int, *, last: bool) -> None:
        """Walk one segment. On BadBatch the segment's `size_bytes` and `next_offset` are those of its good part."""
        file_bytes = segment.size_bytes
        trusted = self._clean or (segment.sealed and segment.next_offset <= self._recovery_point)
        keep_indexes = trusted and not last
        start, next_offset = 0, segment.base_offset
        if not keep_indexes:
            start, next_offset = self._resume(segment, start_offset)
            if not trusted:
                segment.aborted = [] if start == 0 and replay_from <= segment.base_offset else segment.aborted
        interval = self._config.index_interval_bytes
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
                if begins_epoch or header.base_offset != self._end:
                    self._confirm(segment, fd, found)
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
            segment.indexes_saved = self._clean

    def _starts_in_gap(self, header: BatchHeader) -> list[tuple[int, int]]:
        """Where its epoch, and those of which nothing is left, begin in the gap before a batch."""
        if header.base_offset == self._gap_from:
            return []
        written = [(epoch, start) for epoch, start in self._checkpoint if start >= self._gap_from]
        is_known = any(epoch == header.leader_epoch for epoch, _ in written)
        return written if is_known else [(header.leader_epoch, self._gap_from)]

    def _resume(self, segment: Segment, start_offset: int) -> tuple[int, int]:
        """Where scanning may start inside of a segment: (position, offset of the batch there). Loads the index so far.

        Only an index whose last kept entry meets the very batch that it names is believed.
        """
        segment.index, segment.time_index = OffsetIndex(), TimeIndex()
        segment.bytes_since_index = 0
        content = read_file(self._disk, segment.stem + ".index")
        times = read_file(self._disk, segment.stem + ".timeindex")
        index = OffsetIndex.decode(content) if content else None
        time_index = TimeIndex.decode(times) if times is not None else None
        if index is None or time_index is None:
            return 0, segment.base_offset
        keep = bisect_left(index.offsets, min(start_offset - segment.base_offset, (1 << 31) - 1))
        keep = min(keep, bisect_left(index.positions, max(0, segment.size_bytes - BATCH_OVERHEAD)))
        if keep == 0:
            return 0, segment.base_offset
        relative, position = index.offsets[keep - 1], index.positions[keep - 1]
        fd = self._disk.open_read(segment.path)
        try:
            first = peek_header(self._disk.pread(fd, BATCH_OVERHEAD, 0))
            header = peek_header(self._disk.pread(fd, BATCH_OVERHEAD, position))
        except PeerError:
            return 0, segment.base_offset
        finally:
            self._disk.close(fd)
        if header.last_offset != segment.base_offset + relative or header.base_offset < segment.base_offset:
            return 0, segment.base_offset
        del index.offsets[keep:], index.positions[keep:]
        time_index.truncate_to_offset(relative + 1)
        segment.index, segment.time_index = index, time_index
        segment.first_timestamp_ms = first.max_timestamp
        segment.max_timestamp_ms, at = time_index.last
        segment.max_timestamp_offset = segment.base_offset + at if segment.max_timestamp_ms >= 0 else -1
        return position, header.base_offset

    def _whole_follows(self, segment: Segment, position: int) -> bool:
        """Whether a batch that was written whole lies behind a bad place of a file; looked for within bounds."""
        fd = self._disk.open_read(segment.path)
        try:
            content = self._disk.pread(fd, _LOOK_BEHIND_BYTES, position + 1)
        finally:
            self._disk.close(fd)
        return find_whole_batch(memoryview(content)) is not None

    def _cut(self, segments: list[Segment], number: int, bad: BadBatch) -> None:
        """The log ends inside of segment `number`: keep the evidence, drop what follows. Raises CorruptLog."""
        segment, end = segments[number], self._end
        if self._clean or end < self._recovery_point:
            known = "after a clean stop" if self._clean else f"below the recovery point {self._recovery_point}"
            raise CorruptLog(
                segment.path,
                bad.position,
                f"{bad.reason} (offset {end}, {known}: these bytes had been safe on the disk)",
                _restore_advice("partition"),
            )
        following = segments[number + 1 :]
        whole_follows = any(later.size_bytes for later in following) or self._whole_follows(segment, bad.position)
        if self._only_torn and whole_follows:
            damage = CorruptLog(
                segment.path,
                bad.position,
                f"{bad.reason}, and whole batches follow (offset {end})",
                _restore_advice("partition"),
            )
            if self._before_cut is None:
                raise damage
            self._before_cut(damage)
        report = self._report
        report.reason = f"{segment.path}: at byte {bad.position}: {bad.reason}"
        found = self._disk.stat(segment.path)
        tail_bytes = (found.size_bytes if found is not None else bad.position) - bad.position
        if not self._only_torn:
            pieces = [Piece(segment.path, bad.position, bad.position + tail_bytes)]
            pieces += [Piece(later.path, 0, later.size_bytes) for later in following]
            lost = count_lost(self._disk, pieces, start_offset=end)
            torn = bad.torn and not whole_follows
            others = tuple(evidence_in(self._disk, self._directory))
            write_note(self._disk, self._directory, RecoveryNote(lost, report.reason, torn, self._now_ms, others))
        if bad.torn and not whole_follows:
            report.torn_bytes += tail_bytes
        elif tail_bytes:
            report.cut_bytes += tail_bytes
            kept = keep_tail(self._disk, self._directory, segment.path, bad.position)
            if self._only_torn and whole_follows and not kept:
                raise OperatorError(
                    f"{segment.path}: what follows byte {bad.position} can not be kept in {EVIDENCE_DIR}, so it is not"
                    " cut.",
                    "Make room on the disk, and check that it is healthy; then start the node again.",
                )
            report.evidence += kept
        for later in following:
            report.cut_bytes += later.size_bytes
            report.evidence += keep_file(self._disk, self._directory, later.path)
            later.delete_index_files()
        del segments[number + 1 :]
        fd = self._disk.open_append(segment.path)
        try:
            self._disk.truncate(fd, bad.position)
            self._disk.fsync(fd)
        finally:
            self._disk.close(fd)
        self._disk.fsync_dir(self._directory)
        segment.size_bytes = bad.position
        segment.sealed = False
        segment.indexes_saved = False


def _unstable(segment: Segment, position: int, reason: str) -> CorruptLog:
    return CorruptLog(
        segment.path,
        position,
        reason,
        "The disk gives other bytes each time it is read; nothing was cut off. Check the disk (dmesg, smartctl) and its"
        " cables, then start again.",
    )


def _restore_advice(what: str) -> str:
    return (
        f"This partition is offline, the others are served. Restore the {what} from another replica or a backup; or, "
        "to go on without the damaged part, stop the node, move the partition's directory away and start again: "
        "what it holds is then lost to this node."
    )
