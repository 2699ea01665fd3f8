"""Truncates a log, to an offset or completely. The truncated bytes move to `lost+found` (decision 006).

Owns the order in which files change, so that after a crash between any two steps the log opens and no byte is lost.
Never decides that a log must be truncated, and never judges the loss: it returns offsets, bytes and where they are.
Steps that need disk space come first: a full disk rejects a truncation before anything has changed. Evidence is left
out only at the caller's explicit request. If the disk fails in the middle, the log is offline; if the error may pass,
only until `resume`, which reads the files as a restart would.
"""

from __future__ import annotations

import contextlib
import errno
from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

from fenceline.errors import PeerError
from fenceline.log.core import producer_snapshots
from fenceline.log.core.checkpoints import encode_epochs
from fenceline.log.core.compaction_bound import COMPLETE, forget_bounds, lower_bound, write_complete_from
from fenceline.log.core.disk import Disk, replace_file
from fenceline.log.core.errors import CorruptLog, StorageError, is_transient
from fenceline.log.core.file_names import EPOCH_FILE
from fenceline.log.core.lost_and_found import copy_range, is_same, keep_file, keep_link
from fenceline.log.core.lost_batches import LostPiece
from fenceline.log.core.positions import extent_of, find, headers_from
from fenceline.log.core.segment import Segment
from fenceline.log.partition import saving
from fenceline.log.partition.state import LogState, UnfinishedTruncation, Unsaved
from fenceline.log.recovery.recovery import load

_KEPT_SUFFIX: Final = ".kept.tmp"
_COPIES: Final = 3
"""Attempts to copy the part that stays."""


@dataclass(frozen=True, slots=True)
class Truncated:
    """The result of a truncation: offsets [from, to), bytes of `.log` files, and where these bytes are now."""

    from_offset: int
    to_offset: int
    size_bytes: int
    evidence: tuple[str, ...]


def truncate_to(log: LogState, offset: int, *, keep_evidence: bool = True) -> Truncated:
    if offset >= log.log_end_offset:
        end = log.log_end_offset
        log.epochs.truncate_from_end(end)  # E18: an epoch that started here but wrote nothing
        return Truncated(end, end, 0, ())
    if not log.segments or offset <= max(log.segments[0].base_offset, log.log_start_offset):
        # Records below the log start are deleted: no readable record stays.
        return truncate_fully_and_start_at(log, offset, keep_evidence=keep_evidence)
    _check_before(log)
    try:
        truncated = _truncate(log, offset, keep_evidence)
    except OSError as error:
        raise _stopped(
            log, UnfinishedTruncation(offset, keep_evidence), f"truncating {log.topic_partition} to {offset}", error
        ) from error
    except CorruptLog as error:
        raise _not_opened(log, UnfinishedTruncation(offset, keep_evidence), error) from error
    assert log.log_end_offset <= offset, f"{log.topic_partition}: truncated to {offset}, ends at {log.log_end_offset}"
    log.check()
    return truncated


def _check_before(log: LogState) -> None:
    if log.offline is None and log.unfinished is None:
        log.check()


def _stopped(log: LogState, truncation: UnfinishedTruncation, what: str, error: OSError) -> StorageError:
    """The disk failed in the middle. The files are as a crash would leave them, and memory does not match them."""
    if is_transient(error.errno):
        log.unfinished = truncation
        log.offline = StorageError.of(what, error)
    else:
        log.offline = StorageError(f"{what} failed: {error.strerror}; restart the node")
    return log.offline


def _not_opened(log: LogState, truncation: UnfinishedTruncation, error: CorruptLog) -> StorageError:
    what = f"{log.topic_partition} cannot be opened after truncation"
    if isinstance(error.__cause__, OSError) and is_transient(error.__cause__.errno):
        return _stopped(log, truncation, what, error.__cause__)
    log.unfinished = None
    log.offline = StorageError(f"{what}: {error.message}")
    return log.offline


def resume(log: LogState) -> None:
    unfinished = log.unfinished
    assert unfinished is not None, "nothing was stopped"
    log.log_start_offset = min(log.log_start_offset, unfinished.offset)
    _forget_files(log)
    try:
        _reload(log, unfinished.offset)
    except CorruptLog as error:
        raise _not_opened(log, unfinished, error) from error
    log.offline = None
    log.check()


def pieces_from(log: LogState, offset: int) -> list[LostPiece]:
    """The byte ranges that a truncation to `offset` cuts, oldest first. For a thread. Raises OSError."""
    if not log.segments or offset >= log.log_end_offset:
        return []
    if offset <= log.segments[0].base_offset:
        number, position = 0, 0
    else:
        number, position = _place_of(log, offset)
    pieces = [LostPiece(log.segments[number].path, position, log.segments[number].size_bytes)]
    pieces += [LostPiece(segment.path, 0, segment.size_bytes) for segment in log.segments[number + 1 :]]
    return [piece for piece in pieces if piece.end > piece.start]


def pieces_from_start(log: LogState) -> list[LostPiece]:
    """All segments that may have records at or above the log start, oldest first: those below were deleted before,
    damaged or not."""
    if not log.segments:
        return []
    ends = [*(segment.base_offset for segment in log.segments[1:]), log.log_end_offset]
    return [
        LostPiece(segment.path, 0, segment.size_bytes)
        for segment, end in zip(log.segments, ends, strict=True)
        if segment.size_bytes and end > log.log_start_offset
    ]


def end_after(log: LogState, offset: int) -> int:
    """The log end after a truncation to `offset`: lower if compaction removed the offsets before it. 0 if nothing
    stays, or if it cannot be read. For a thread. Raises OSError."""
    if offset >= log.log_end_offset:
        return log.log_end_offset
    if not log.segments or offset <= log.segments[0].base_offset:
        return 0
    number, position = _place_of(log, offset)
    segment = log.segments[number]
    if position == segment.size_bytes:
        return segment.next_offset
    end = segment.base_offset
    index, _ = segment.indexes()
    fd = log.disk.open_read(segment.path)
    try:
        start = index.boundary_at_or_before(max(0, position - 1))
        for _, header in headers_from(lambda at, size: log.disk.pread(fd, size, at), start, position):
            end = header.next_offset
    except PeerError:
        return 0
    finally:
        log.disk.close(fd)
    return end


def _place_of(log: LogState, offset: int) -> tuple[int, int]:
    """The last segment that stays, and how many of its bytes."""
    number = bisect_left(log.bases, offset + 1) - 1
    if log.bases[number] == offset and number > 0:
        number -= 1  # the cut falls between two segments: the one before stays complete
        return number, log.segments[number].size_bytes
    return number, _position_of(log, log.segments[number], offset)


def _truncate(log: LogState, offset: int, keep_evidence: bool) -> Truncated:
    disk, directory, end = log.disk, log.directory, log.log_end_offset
    number, position = _place_of(log, offset)
    kept = log.segments[number]
    following = log.segments[number + 1 :]
    cut_bytes = kept.size_bytes - position + sum(segment.size_bytes for segment in following)
    copy = kept.path + _KEPT_SUFFIX if position < kept.size_bytes else ""
    try:
        if offset < log.complete_from.offset:
            # `lower_bound` below removes compaction's own record of it.
            write_complete_from(disk, directory, log.complete_from)
        if keep_evidence:
            _copy_start(disk, kept.path, copy, position)
    except OSError as error:
        raise StorageError.of(f"truncating {log.topic_partition} to {offset}", error) from error
    _forget_files(log)
    evidence: list[str] = []
    if not keep_evidence:
        for segment in reversed(following):
            disk.unlink(segment.path)
            segment.delete_index_files()
        _copy_start(disk, kept.path, copy, position)
    if keep_evidence:
        for segment in reversed(following):
            evidence[:0] = keep_file(disk, directory, segment.path)
            segment.delete_index_files()
    if copy:
        if keep_evidence:
            evidence[:0] = keep_link(disk, directory, kept.path)
        kept.delete_index_files()
        disk.rename(copy, kept.path)
    elif log.bases[number] != log.active_segment_base:
        kept.delete_index_files()
    producer_snapshots.drop(disk, directory, disk.listdir(directory), lambda at: at > offset)
    log.epochs.truncate_from_end(offset)
    replace_file(disk, f"{directory}/{EPOCH_FILE}", encode_epochs(log.epochs.entries))
    log.epochs.changed = False
    lower_bound(disk, directory, offset)
    disk.fsync_dir(directory)
    log.log_start_offset = min(log.log_start_offset, offset)
    _reload(log, offset)
    return Truncated(log.log_end_offset, end, cut_bytes, tuple(evidence))


def _copy_start(disk: Disk, path: str, copy: str, size_bytes: int) -> None:
    if not copy:
        return
    for _ in range(_COPIES):
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(copy)
        copy_range(disk, path, copy, 0, size_bytes)
        # A single wrong bit of one read would replace safe, committed data.
        if is_same(disk, path, copy, size_bytes):
            return
    disk.unlink(copy)
    raise OSError(errno.EIO, "two reads return different bytes", path)


def _position_of(log: LogState, segment: Segment, offset: int) -> int:
    index, _ = segment.indexes()
    fd = log.disk.open_read(segment.path)
    try:
        return find(lambda position, size: log.disk.pread(fd, size, position), index, extent_of(segment), offset)
    finally:
        log.disk.close(fd)


def truncate_fully_and_start_at(log: LogState, offset: int, *, keep_evidence: bool = True) -> Truncated:
    _check_before(log)
    start, end = log.log_start_offset, log.log_end_offset
    evidence: list[str] = []
    cut_bytes = log.size_bytes
    written = log.is_written
    try:
        _forget_files(log)
        for segment in reversed(log.segments):
            if keep_evidence:
                evidence[:0] = keep_file(log.disk, log.directory, segment.path)
            else:
                log.disk.unlink(segment.path)
            segment.delete_index_files()
        if written:
            producer_snapshots.drop(log.disk, log.directory, log.disk.listdir(log.directory), lambda _: True)
            replace_file(log.disk, f"{log.directory}/{EPOCH_FILE}", encode_epochs(()))
            forget_bounds(log.disk, log.directory)
    except OSError as error:
        raise _stopped(
            log, UnfinishedTruncation(offset, keep_evidence), f"emptying {log.topic_partition}", error
        ) from error
    log.segments, log.bases = [], []
    log.complete_from = log.saved_complete_from = COMPLETE
    log.times_emptied += 1
    log.epochs.clear()
    log.epochs.changed = False
    log.producers.clear()
    log.size_bytes = 0
    log.log_start_offset = log.log_end_offset = log.recovery_point = offset
    log.advance_high_watermark(offset)
    if written or offset:
        # An empty segment: its name holds the offset where the log continues, also for a log without a directory.
        try:
            log.start_segment(offset, log.last_flush_ms)
            log.disk.fsync_dir(log.directory)
        except OSError as error:
            raise _stopped(
                log, UnfinishedTruncation(offset, keep_evidence), f"emptying {log.topic_partition}", error
            ) from error
    log.check()
    return Truncated(start, end, cut_bytes, tuple(evidence))


def _forget_files(log: LogState) -> None:
    """Drop all descriptors, windows and hints of the old files; a flush in progress does not count."""
    saving.stop_flush(log)
    log.unsaved = Unsaved(has_new_files=log.unsaved.has_new_files, has_new_id=log.unsaved.has_new_id)
    log.release(log.segments)


def _reload(log: LogState, offset: int) -> None:
    """Rebuild memory from the remaining files; everything in them is complete."""
    high_watermark, complete_from = log.high_watermark, log.complete_from
    recovery_point = min(log.recovery_point, offset)
    loaded = load(
        log.disk,
        log.directory,
        config=log.config,
        recovery_point=recovery_point,
        clean=False,
        log_start_offset=log.log_start_offset,
        now_ms=log.last_flush_ms,
        was_truncated=True,
    )
    log.adopt(loaded)
    log.complete_from = complete_from
    log.recovery = log.recovery or loaded.report
    log.unsaved.has_new_files = True
    log.recovery_point = max(min(recovery_point, loaded.log_end_offset), log.first_stored_offset)
    log.advance_high_watermark(high_watermark)
