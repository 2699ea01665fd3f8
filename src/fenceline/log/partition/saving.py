"""What a log has made durable: flushes while it is open, and everything when it is closed.

Owns what a flush must write (`flush.FlushWork` does it) and the log's record of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from fenceline.log.core import producer_snapshots
from fenceline.log.core.checkpoints import encode_epochs, encode_partition_metadata
from fenceline.log.core.compaction_bound import COMPLETE_FILE, CompleteFrom, encode_complete_from
from fenceline.log.core.disk import Disk, replace_file
from fenceline.log.core.errors import StorageError
from fenceline.log.core.file_names import EPOCH_FILE, METADATA_FILE
from fenceline.log.core.flush import TOGETHER_FROM, FlushWork
from fenceline.log.core.segment import Segment
from fenceline.log.partition.state import LogState, Unsaved


def flush_work(log: LogState, now_ms: int) -> FlushWork | None:
    start, end = log.log_start_offset, log.log_end_offset
    if log.flushing is not None or not log.segments or log.unfinished is not None:
        return None
    disk, unsaved, complete_from = log.disk, log.unsaved, log.complete_from
    has_complete_from = complete_from == log.saved_complete_from
    is_saved = has_complete_from and not (
        log.epochs.changed or unsaved.sealed or unsaved.has_new_files or unsaved.has_new_id
    )
    if end == log.recovery_point and is_saved:
        return None
    first = max(0, bisect_left(log.bases, log.recovery_point + 1) - 1)
    newest = max(first, len(log.segments) - TOGETHER_FROM)
    descriptors: list[int] = []
    try:
        for segment in log.segments[newest:]:
            fd = segment.fd if segment.fd >= 0 else log.files.open(segment)
            descriptors.append(disk.duplicate(fd))
    except OSError as error:
        for fd in descriptors:
            disk.close(fd)
        raise StorageError.of(f"flushing {log.topic_partition}", error) from error
    derived: list[tuple[str, bytes]] = []
    if log.epochs.changed:
        derived.append((f"{log.directory}/{EPOCH_FILE}", encode_epochs(log.epochs.entries)))
    if not has_complete_from:
        derived.append((f"{log.directory}/{COMPLETE_FILE}", encode_complete_from(complete_from)))
    if unsaved.has_new_id and log.topic_id is not None:
        derived.append((f"{log.directory}/{METADATA_FILE}", encode_partition_metadata(log.topic_id, log.incarnation)))
    work = FlushWork(
        disk=disk,
        directory=log.directory,
        up_to_offset=end,
        descriptors=descriptors,
        older=log.segments[first:newest],
        sealed=unsaved.sealed,
        snapshots=unsaved.snapshots,
        files=derived,
        directories=[log.directory, log.directory.rpartition("/")[0]] if unsaved.has_new_files else [],
        on_complete=lambda work: _flushed(log, work, complete_from),
        on_failed=lambda work, error: _flush_failed(log, work, error),
        includes_epochs=log.epochs.changed,
        includes_topic_id=unsaved.has_new_id,
        drop_below=start if unsaved.snapshots and start != log.snapshots_dropped_below else None,
    )
    log.flushing = work
    log.unsaved = Unsaved()
    log.epochs.changed = False
    log.last_flush_ms = now_ms
    return work


def _flushed(log: LogState, work: FlushWork, complete_from: CompleteFrom) -> None:
    log.flushing = None
    log.saved_complete_from = complete_from
    log.recovery_point = max(log.recovery_point, work.up_to_offset)
    if work.dropped_below is not None:
        log.snapshots_dropped_below = work.dropped_below


def _flush_failed(log: LogState, work: FlushWork, error: StorageError) -> None:
    _requeue(log, work)
    if not (error.disk_full and work.batches_safe):
        # A failed fsync may have dropped the pages: to continue would acknowledge data that the disk does not hold.
        log.offline = StorageError(
            f"{log.topic_partition} is offline for writes: {error.message}. Check the disk, then restart the node",
            error.errno,
        )


def _requeue(log: LogState, work: FlushWork) -> None:
    """Whatever a failed or cancelled flush did not write is due again."""
    log.flushing = None
    log.epochs.changed = log.epochs.changed or work.includes_epochs
    since, kept = log.unsaved, set(log.segments)
    log.unsaved = Unsaved(
        [segment for segment in work.sealed if segment in kept] + since.sealed,
        work.snapshots + since.snapshots,
        since.has_new_files or bool(work.directories),
        since.has_new_id or work.includes_topic_id,
    )


def stop_flush(log: LogState) -> None:
    work = log.flushing
    if work is not None:
        work.abandon()
        _requeue(log, work)


# -- close ------------------------------------------------------------------------------------------------------------


def is_dirty(log: LogState) -> bool:
    """Whether a clean close of this log has something to write."""
    if not log.segments or log.offline is not None or log.unfinished is not None:
        return False
    return (
        log.recovery_point != log.log_end_offset
        or log.epochs.changed
        or log.complete_from != log.saved_complete_from
        or log.flushing is not None
        or bool(log.unsaved.sealed or log.unsaved.snapshots)
        or not log.segments[-1].indexes_saved
        or log.producers.snapshot_offset != log.log_end_offset > log.log_start_offset
    )


def close(log: LogState, clean: bool) -> None:
    """After a clean close the directory is as Kafka leaves it: indexes, epochs and a producer snapshot at the end.
    Nothing is appended to a closed log: the next start would assume that it is flushed."""
    try:
        if clean and is_dirty(log):
            save_all(log, durable=True)
            saved(log)
    finally:
        if log.offline is None:
            log.offline = StorageError(f"{log.topic_partition} is closed")
        log.release(log.segments)


def save_all(log: LogState, *, durable: bool) -> None:
    """Write everything that is only in memory or the page cache, in the loop's current state. Raises StorageError."""
    disk = log.disk
    try:
        stop_flush(log)
        if durable:
            work = flush_work(log, log.last_flush_ms)
            if work is not None:
                work.run()
        for segment in _segments_with_indexes(log):
            if not segment.indexes_saved:
                segment.save_indexes(durable=durable)
        for offset, content in log.unsaved.snapshots:
            replace_file(disk, producer_snapshots.path_of(log.directory, offset), content, durable=durable)
        if log.producers.snapshot_offset != log.log_end_offset > log.log_start_offset:
            path = producer_snapshots.path_of(log.directory, log.log_end_offset)
            replace_file(disk, path, log.producers.encode(), durable=durable)
        if log.epochs.changed:
            epochs = encode_epochs(log.epochs.entries)
            replace_file(disk, f"{log.directory}/{EPOCH_FILE}", epochs, durable=durable)
        if log.complete_from != log.saved_complete_from:
            content = encode_complete_from(log.complete_from)
            replace_file(disk, f"{log.directory}/{COMPLETE_FILE}", content, durable=durable)
    except OSError as error:
        raise StorageError.of(f"closing {log.topic_partition}", error) from error


def _segments_with_indexes(log: LogState) -> list[Segment]:
    """Segments whose index files a closed log has."""
    return [segment for segment in log.segments if segment.sealed or segment is log.segments[-1]]


def saved(log: LogState) -> None:
    """The data that `save_all` wrote is durable now."""
    log.producers.snapshot_offset = log.log_end_offset
    log.epochs.changed = False
    log.saved_complete_from = log.complete_from
    log.unsaved = Unsaved()
    log.recovery_point = log.log_end_offset


def save_together(disk: Disk, path: str, logs: Sequence[LogState]) -> StorageError | None:
    """Save many logs of one file system at once: write them all, then sync the file system once."""
    try:
        for log in logs:
            save_all(log, durable=False)
        disk.sync_all(path)
    except StorageError as error:
        return error
    except OSError as error:
        return StorageError.of(f"syncing {path}", error)
    for log in logs:
        for segment in _segments_with_indexes(log):
            segment.indexes_saved = True
        saved(log)
    return None
