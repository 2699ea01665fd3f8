"""Upkeep of one log: flush, retention, DeleteRecords, truncation, close. The slow half of `PartitionLog`.

Owns the order in which files change so that a crash between any two steps leaves a log that opens. Never destroys what
a log loses by truncation: it moves to `lost+found` (design.md section 3). Retention and DeleteRecords are asked for, so
their segments are unlinked. Works on the private parts of a `PartitionLog` and on nothing else.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fenceline.errors import ErrorCode, PeerError
from fenceline.log.checkpoints import encode_epochs
from fenceline.log.disk import Disk, replace_file
from fenceline.log.errors import CorruptLog, StorageError
from fenceline.log.flush import FlushWork
from fenceline.log.lost_and_found import copy_range, keep_file, keep_link
from fenceline.log.recovery import EPOCH_FILE, SNAPSHOT_SUFFIX, load
from fenceline.log.segment import DELETED_SUFFIX, INDEX_SUFFIXES, Segment, stem

if TYPE_CHECKING:
    from fenceline.log.partition_log import PartitionLog

_KEPT_SUFFIX: Final = ".kept.tmp"
_Due = Callable[[Segment, int], bool]


@dataclass(frozen=True, slots=True)
class RemovedSegment:
    """A segment that has left the log; `delete()` unlinks its files, in a thread, after `file.delete.delay.ms`."""

    base_offset: int
    next_offset: int
    size_bytes: int
    reason: str
    disk: Disk
    paths: tuple[str, ...]

    def delete(self) -> None:
        """Raises OSError; files that are gone already are fine."""
        for path in self.paths:
            with contextlib.suppress(FileNotFoundError):
                self.disk.unlink(path)


@dataclass(frozen=True, slots=True)
class Truncated:
    """What a truncation cut: offsets [from, to), bytes of `.log` files, and where these bytes are now."""

    from_offset: int
    to_offset: int
    size_bytes: int
    evidence: tuple[str, ...]


# -- flush ------------------------------------------------------------------------------------------------------


def flush_work(log: PartitionLog, now_ms: int) -> FlushWork | None:
    end = log.log_end_offset
    if log._flushing is not None or not log.segments:
        return None
    if end == log.recovery_point and not log.epochs.changed and not log._unsaved and not log._new_files:
        return None
    disk, files = log._disk, log._files
    first = max(0, bisect_left(log._bases, log.recovery_point + 1) - 1)
    descriptors: list[int] = []
    try:
        for segment in log.segments[first:]:
            fd = segment.fd if segment.fd >= 0 else files.open(segment)
            descriptors.append(disk.duplicate(fd))
    except OSError as error:
        for fd in descriptors:
            disk.close(fd)
        raise StorageError.of(f"flushing {log.topic_partition}", error) from error
    derived = [(stem(log.directory, offset) + SNAPSHOT_SUFFIX, content) for offset, content in log._unsaved_snapshots]
    if log.epochs.changed:
        derived.append((f"{log.directory}/{EPOCH_FILE}", encode_epochs(log.epochs.entries)))
    work = FlushWork(
        disk=disk,
        up_to_offset=end,
        descriptors=descriptors,
        sealed=list(log._unsaved),
        snapshots=list(log._unsaved_snapshots),
        files=derived,
        directories=[log.directory, log.directory.rpartition("/")[0]] if log._new_files else [],
        on_done=lambda work: _flushed(log, work),
        on_failed=lambda work, error: _flush_failed(log, work, error),
        epochs_too=log.epochs.changed,
    )
    log._flushing = work
    log._new_files = False
    log.epochs.changed = False
    log._unsaved, log._unsaved_snapshots = [], []
    log.last_flush_ms = now_ms
    return work


def _flushed(log: PartitionLog, work: FlushWork) -> None:
    log._flushing = None
    log.recovery_point = max(log.recovery_point, work.up_to_offset)
    if work.snapshots:
        _drop_old_snapshots(log)


def _flush_failed(log: PartitionLog, work: FlushWork, error: StorageError) -> None:
    _take_back(log, work)
    if not (error.disk_full and work.batches_safe):
        # A failed fsync may have dropped the pages: going on would acknowledge what the disk does not hold.
        log.offline = StorageError(
            f"{log.topic_partition} takes no more records: {error.message}. Check the disk, then restart the node",
            error.errno,
        )


def _take_back(log: PartitionLog, work: FlushWork) -> None:
    """What a flush did not bring to the disk is due again."""
    log._flushing = None
    log._unsaved = [segment for segment in work.sealed if segment in log.segments] + log._unsaved
    log._unsaved_snapshots = work.snapshots + log._unsaved_snapshots
    log.epochs.changed = log.epochs.changed or work.epochs_too
    log._new_files = log._new_files or bool(work.directories)


def _stop_flush(log: PartitionLog) -> None:
    work = log._flushing
    if work is not None:
        work.abandon()
        _take_back(log, work)


def _drop_old_snapshots(log: PartitionLog) -> None:
    """Snapshots below the log start describe nothing that could be replayed."""
    with contextlib.suppress(OSError):
        for name in log._disk.listdir(log.directory):
            if name.endswith(SNAPSHOT_SUFFIX) and int(name[: -len(SNAPSHOT_SUFFIX)]) < log.log_start_offset:
                log._disk.unlink(f"{log.directory}/{name}")


# -- log start and retention --------------------------------------------------------------------------------------


def advance_log_start(log: PartitionLog, offset: int) -> bool:
    if offset > log.high_watermark:
        raise PeerError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"Records of {log.topic_partition} can be deleted up to the high watermark {log.high_watermark}, "
            f"not up to {offset}",
        )
    if offset <= log.log_start_offset:
        return False
    log.log_start_offset = offset
    log.recovery_point = max(log.recovery_point, offset) if not log.segments else log.recovery_point
    log.epochs.truncate_from_start(offset)
    return True


def enforce_retention(log: PartitionLog, now_ms: int) -> list[RemovedSegment]:
    """Kafka's order: what lies below the log start, then by time, then by size. Stops at the high watermark."""
    log.producers.expire(now_ms, log.config.producer_id_expiration_ms)
    if not log.segments:
        return []
    try:
        removed = _remove_while(log, now_ms, "log start", lambda segment, after: after <= log.log_start_offset)
        if log.config.deletes:
            retention_ms = log.config.retention_ms
            if retention_ms >= 0:
                removed += _remove_while(
                    log, now_ms, "time", lambda segment, _: now_ms - segment.largest_timestamp_ms() > retention_ms
                )
            if log.config.retention_bytes >= 0:
                excess = log.size_bytes - log.config.retention_bytes

                def too_big(segment: Segment, after: int) -> bool:
                    nonlocal excess
                    excess -= segment.size_bytes
                    return excess >= 0

                removed += _remove_while(log, now_ms, "size", too_big)
    except OSError as error:
        raise StorageError.of(f"retention of {log.topic_partition}", error) from error
    return removed


def _remove_while(log: PartitionLog, now_ms: int, reason: str, due: _Due) -> list[RemovedSegment]:
    count = 0
    segments = log.segments
    while count < len(segments):
        segment = segments[count]
        last = count + 1 == len(segments)
        after = log.log_end_offset if last else segments[count + 1].base_offset
        if after > log.high_watermark or not segment.size_bytes or not due(segment, after):
            break
        count += 1
    if count == 0:
        return []
    if count == len(segments):
        # Everything goes: the log needs an empty segment to go on in, or the log end would be forgotten.
        try:
            log._start_segment(log.log_end_offset, now_ms)
        except OSError:
            # A full disk has no room for the empty segment: what goes before it makes some.
            count -= 1
            if count == 0:
                raise
    gone = segments[:count]
    del segments[:count], log._bases[:count]
    start = segments[0].base_offset
    if start > log.log_start_offset:
        log.log_start_offset = start
        log.epochs.truncate_from_start(start)
    return [_retire(log, segment, reason) for segment in gone]


def _retire(log: PartitionLog, segment: Segment, reason: str) -> RemovedSegment:
    disk = log._disk
    log._files.close(segment)
    log.size_bytes -= segment.size_bytes
    log._unsaved = [kept for kept in log._unsaved if kept is not segment]
    log._hints.clear()
    paths: list[str] = []
    for suffix in (".log", *INDEX_SUFFIXES, SNAPSHOT_SUFFIX):
        path = segment.stem + suffix
        if suffix == SNAPSHOT_SUFFIX:
            paths.append(path)
            continue
        with contextlib.suppress(FileNotFoundError):
            disk.rename(path, path + DELETED_SUFFIX)
            paths.append(path + DELETED_SUFFIX)
    return RemovedSegment(segment.base_offset, segment.next_offset, segment.size_bytes, reason, disk, tuple(paths))


# -- truncation -----------------------------------------------------------------------------------------------------


def truncate_to(log: PartitionLog, offset: int) -> Truncated:
    if offset >= log.log_end_offset:
        end = log.log_end_offset
        log.epochs.truncate_from_end(end)  # E18: an epoch that started here but wrote nothing
        return Truncated(end, end, 0, ())
    if not log.segments or offset <= log.segments[0].base_offset:
        return truncate_fully_and_start_at(log, offset)
    try:
        return _truncate(log, offset)
    except OSError as error:
        log.offline = StorageError(
            f"truncating {log.topic_partition} to {offset} failed: {error.strerror}; restart the node"
        )
        raise log.offline from error
    except CorruptLog as error:
        log.offline = StorageError(f"{log.topic_partition} can not be opened after truncation: {error.message}")
        raise log.offline from error


def _truncate(log: PartitionLog, offset: int) -> Truncated:
    disk, directory, end = log._disk, log.directory, log.log_end_offset
    _forget_files(log)
    number = bisect_left(log._bases, offset + 1) - 1
    if log._bases[number] == offset and number > 0:
        number -= 1  # the cut falls between two segments: the one before stays whole
        position = log.segments[number].size_bytes
    else:
        position = _position_of(log, log.segments[number], offset)
    kept = log.segments[number]
    cut_bytes = kept.size_bytes - position
    evidence: list[str] = []
    for segment in reversed(log.segments[number + 1 :]):
        cut_bytes += segment.size_bytes
        evidence[:0] = keep_file(disk, directory, segment.path)
        segment.delete_index_files()
    if position < kept.size_bytes:
        copy = kept.path + _KEPT_SUFFIX
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(copy)
        copy_range(disk, kept.path, copy, 0, position)
        evidence[:0] = keep_link(disk, directory, kept.path)
        kept.delete_index_files()
        disk.rename(copy, kept.path)
    elif log._bases[number] != log.active_segment_base:
        kept.delete_index_files()
    _drop_snapshots_from(log, offset)
    log.epochs.truncate_from_end(offset)
    replace_file(disk, f"{directory}/{EPOCH_FILE}", encode_epochs(log.epochs.entries))
    log.epochs.changed = False
    disk.fsync_dir(directory)
    log.log_start_offset = min(log.log_start_offset, offset)
    _reload(log, offset)
    return Truncated(log.log_end_offset, end, cut_bytes, tuple(evidence))


def _position_of(log: PartitionLog, segment: Segment, offset: int) -> int:
    from fenceline.log.reading import extent_of, find

    index, _ = segment.indexes()
    fd = log._disk.open_read(segment.path)
    try:
        return find(lambda position, size: log._disk.pread(fd, size, position), index, extent_of(segment), offset)
    finally:
        log._disk.close(fd)


def truncate_fully_and_start_at(log: PartitionLog, offset: int) -> Truncated:
    start, end = log.log_start_offset, log.log_end_offset
    evidence: list[str] = []
    cut_bytes = log.size_bytes
    written = log.is_written
    try:
        _forget_files(log)
        for segment in reversed(log.segments):
            evidence[:0] = keep_file(log._disk, log.directory, segment.path)
            segment.delete_index_files()
        if written:
            _drop_snapshots_from(log, -1)
            replace_file(log._disk, f"{log.directory}/{EPOCH_FILE}", encode_epochs(()))
    except OSError as error:
        log.offline = StorageError(f"emptying {log.topic_partition} failed: {error.strerror}; restart the node")
        raise log.offline from error
    log.segments, log._bases = [], []
    log.epochs.clear()
    log.epochs.changed = False
    log.producers.clear()
    log.size_bytes = 0
    log.log_start_offset = log.log_end_offset = log.recovery_point = offset
    log.advance_high_watermark(offset)
    if written:
        # An empty segment: its name remembers where the log goes on.
        try:
            log._start_segment(offset, log.last_flush_ms)
            log._disk.fsync_dir(log.directory)
        except OSError as error:
            raise StorageError.of(f"emptying {log.topic_partition}", error) from error
    return Truncated(start, end, cut_bytes, tuple(evidence))


def _forget_files(log: PartitionLog) -> None:
    """No descriptor, window or hint of the old files may be used any more; a flush under way counts for nothing."""
    _stop_flush(log)
    log._hints.clear()
    log._unsaved, log._unsaved_snapshots = [], []
    for segment in log.segments:
        log._files.close(segment)


def _drop_snapshots_from(log: PartitionLog, offset: int) -> None:
    for name in log._disk.listdir(log.directory):
        if name.endswith(SNAPSHOT_SUFFIX) and int(name[: -len(SNAPSHOT_SUFFIX)]) > offset:
            log._disk.unlink(f"{log.directory}/{name}")


def _reload(log: PartitionLog, offset: int) -> None:
    """Memory anew from the files that are left; everything in them is whole."""
    high_watermark = log.high_watermark
    recovery_point = min(log.recovery_point, offset)
    loaded = load(
        log._disk,
        log.directory,
        config=log.config,
        recovery_point=recovery_point,
        clean=False,
        log_start_offset=log.log_start_offset,
        now_ms=log.last_flush_ms,
    )
    log.segments = loaded.segments
    log._bases = [segment.base_offset for segment in loaded.segments]
    log._unsaved = [segment for segment in loaded.segments[:-1] if not segment.indexes_saved]
    log._new_files = True
    log.epochs, log.producers = loaded.epochs, loaded.producers
    log.log_start_offset, log.log_end_offset = loaded.log_start_offset, loaded.log_end_offset
    log.size_bytes = sum(segment.size_bytes for segment in loaded.segments)
    log.recovery_point = max(min(recovery_point, loaded.log_end_offset), loaded.log_start_offset)
    log.advance_high_watermark(high_watermark)


# -- close ------------------------------------------------------------------------------------------------------------


def is_dirty(log: PartitionLog) -> bool:
    """Whether a clean close of this log has something to write."""
    if not log.segments or log.offline is not None:
        return False
    return (
        log.recovery_point != log.log_end_offset
        or log.epochs.changed
        or log._flushing is not None
        or bool(log._unsaved or log._unsaved_snapshots)
        or not log.segments[-1].indexes_saved
        or log.producers.snapshot_offset != log.log_end_offset > log.log_start_offset
    )


def close(log: PartitionLog, clean: bool) -> None:
    """After a clean close the directory is as Kafka leaves one: indexes, epochs and a producer snapshot at the end."""
    try:
        if clean and is_dirty(log):
            save_all(log, durable=True)
            saved(log)
    finally:
        log._hints.clear()
        for segment in log.segments:
            log._files.close(segment)


def save_all(log: PartitionLog, *, durable: bool) -> None:
    """Everything that only memory or the page cache holds, on the loop's state as it is now. Raises StorageError."""
    disk = log._disk
    try:
        _stop_flush(log)
        if durable:
            work = flush_work(log, log.last_flush_ms)
            if work is not None:
                work.run()
        for segment in log.segments:
            if not segment.indexes_saved and (segment.sealed or segment is log.segments[-1]):
                segment.save_indexes(durable=durable)
        for offset, content in log._unsaved_snapshots:
            replace_file(disk, stem(log.directory, offset) + SNAPSHOT_SUFFIX, content, durable=durable)
        if log.producers.snapshot_offset != log.log_end_offset > log.log_start_offset:
            path = stem(log.directory, log.log_end_offset) + SNAPSHOT_SUFFIX
            replace_file(disk, path, log.producers.encode(), durable=durable)
        if log.epochs.changed:
            epochs = encode_epochs(log.epochs.entries)
            replace_file(disk, f"{log.directory}/{EPOCH_FILE}", epochs, durable=durable)
    except OSError as error:
        raise StorageError.of(f"closing {log.topic_partition}", error) from error


def saved(log: PartitionLog) -> None:
    """What `save_all` wrote is durable now."""
    log.producers.snapshot_offset = log.log_end_offset
    log.epochs.changed = False
    log._unsaved, log._unsaved_snapshots = [], []
    log._new_files = False
    log.recovery_point = log.log_end_offset
