"""What a log has made durable: flushes while it is open, and everything when it is closed.

Owns what a flush must write (`flush.FlushWork` does it) and the log's record of it. Works on the private parts of a
`PartitionLog` and on nothing else.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fenceline.log.core import producer_snapshots
from fenceline.log.core.checkpoints import encode_epochs, encode_partition_metadata
from fenceline.log.core.compaction_bound import COMPLETE_FILE, CompleteFrom, encode_complete_from
from fenceline.log.core.disk import Disk, replace_file
from fenceline.log.core.errors import StorageError
from fenceline.log.core.file_names import EPOCH_FILE, METADATA_FILE
from fenceline.log.core.flush import FlushWork

if TYPE_CHECKING:
    from fenceline.log.core.segment import Segment
    from fenceline.log.partition.partition_log import PartitionLog


def flush_work(log: PartitionLog, now_ms: int) -> FlushWork | None:
    end = log.log_end_offset
    if log._flushing is not None or not log.segments or log.unfinished is not None:
        return None
    complete_from = log.complete_from
    has_complete_from = complete_from == log._saved_complete_from
    is_saved = has_complete_from and not (log.epochs.changed or log._unsaved or log._new_files or log._new_id)
    if end == log.recovery_point and is_saved:
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
    snapshots = list(log._unsaved_snapshots)
    derived = [(producer_snapshots.path_of(log.directory, offset), content) for offset, content in snapshots]
    if log.epochs.changed:
        derived.append((f"{log.directory}/{EPOCH_FILE}", encode_epochs(log.epochs.entries)))
    if not has_complete_from:
        derived.append((f"{log.directory}/{COMPLETE_FILE}", encode_complete_from(complete_from)))
    if log._new_id and log.topic_id is not None:
        derived.append((f"{log.directory}/{METADATA_FILE}", encode_partition_metadata(log.topic_id, log.incarnation)))
    work = FlushWork(
        disk=disk,
        up_to_offset=end,
        descriptors=descriptors,
        sealed=list(log._unsaved),
        snapshots=snapshots,
        files=derived,
        directories=[log.directory, log.directory.rpartition("/")[0]] if log._new_files else [],
        on_complete=lambda work: _flushed(log, work, complete_from),
        on_failed=lambda work, error: _flush_failed(log, work, error),
        includes_epochs=log.epochs.changed,
        includes_topic_id=log._new_id,
    )
    log._flushing = work
    log._new_files = log._new_id = False
    log.epochs.changed = False
    log._unsaved, log._unsaved_snapshots = [], []
    log.last_flush_ms = now_ms
    return work


def _flushed(log: PartitionLog, work: FlushWork, complete_from: CompleteFrom) -> None:
    log._flushing = None
    log._saved_complete_from = complete_from
    log.recovery_point = max(log.recovery_point, work.up_to_offset)
    if work.snapshots:
        _drop_old_snapshots(log)


def _flush_failed(log: PartitionLog, work: FlushWork, error: StorageError) -> None:
    _requeue(log, work)
    if not (error.disk_full and work.batches_safe):
        # A failed fsync may have dropped the pages: to continue would acknowledge data that the disk does not hold.
        log.offline = StorageError(
            f"{log.topic_partition} is offline for writes: {error.message}. Check the disk, then restart the node",
            error.errno,
        )


def _requeue(log: PartitionLog, work: FlushWork) -> None:
    """Whatever a failed or cancelled flush did not write is due again."""
    log._flushing = None
    log._unsaved = [segment for segment in work.sealed if segment in log.segments] + log._unsaved
    log._unsaved_snapshots = work.snapshots + log._unsaved_snapshots
    log.epochs.changed = log.epochs.changed or work.includes_epochs
    log._new_files = log._new_files or bool(work.directories)
    log._new_id = log._new_id or work.includes_topic_id


def stop_flush(log: PartitionLog) -> None:
    work = log._flushing
    if work is not None:
        work.abandon()
        _requeue(log, work)


def _drop_old_snapshots(log: PartitionLog) -> None:
    """Snapshots below the log start describe nothing that could be replayed."""
    disk, directory, start = log._disk, log.directory, log.log_start_offset
    with contextlib.suppress(OSError):
        producer_snapshots.drop(disk, directory, disk.listdir(directory), lambda at: at < start)


# -- close ------------------------------------------------------------------------------------------------------------


def is_dirty(log: PartitionLog) -> bool:
    """Whether a clean close of this log has something to write."""
    if not log.segments or log.offline is not None or log.unfinished is not None:
        return False
    return (
        log.recovery_point != log.log_end_offset
        or log.epochs.changed
        or log.complete_from != log._saved_complete_from
        or log._flushing is not None
        or bool(log._unsaved or log._unsaved_snapshots)
        or not log.segments[-1].indexes_saved
        or log.producers.snapshot_offset != log.log_end_offset > log.log_start_offset
    )


def close(log: PartitionLog, clean: bool) -> None:
    """After a clean close the directory is as Kafka leaves it: indexes, epochs and a producer snapshot at the end.
    Nothing is appended to a closed log: the next start would assume that it is flushed."""
    try:
        if clean and is_dirty(log):
            save_all(log, durable=True)
            saved(log)
    finally:
        if log.offline is None:
            log.offline = StorageError(f"{log.topic_partition} is closed")
        log._hints.clear()
        for segment in log.segments:
            log._files.close(segment)


def save_all(log: PartitionLog, *, durable: bool) -> None:
    """Write everything that is only in memory or the page cache, in the loop's current state. Raises StorageError."""
    disk = log._disk
    try:
        stop_flush(log)
        if durable:
            work = flush_work(log, log.last_flush_ms)
            if work is not None:
                work.run()
        for segment in _segments_with_indexes(log):
            if not segment.indexes_saved:
                segment.save_indexes(durable=durable)
        for offset, content in log._unsaved_snapshots:
            replace_file(disk, producer_snapshots.path_of(log.directory, offset), content, durable=durable)
        if log.producers.snapshot_offset != log.log_end_offset > log.log_start_offset:
            path = producer_snapshots.path_of(log.directory, log.log_end_offset)
            replace_file(disk, path, log.producers.encode(), durable=durable)
        if log.epochs.changed:
            epochs = encode_epochs(log.epochs.entries)
            replace_file(disk, f"{log.directory}/{EPOCH_FILE}", epochs, durable=durable)
        if log.complete_from != log._saved_complete_from:
            content = encode_complete_from(log.complete_from)
            replace_file(disk, f"{log.directory}/{COMPLETE_FILE}", content, durable=durable)
    except OSError as error:
        raise StorageError.of(f"closing {log.topic_partition}", error) from error


def _segments_with_indexes(log: PartitionLog) -> list[Segment]:
    """Segments whose index files a closed log has."""
    return [segment for segment in log.segments if segment.sealed or segment is log.segments[-1]]


def saved(log: PartitionLog) -> None:
    """The data that `save_all` wrote is durable now."""
    log.producers.snapshot_offset = log.log_end_offset
    log.epochs.changed = False
    log._saved_complete_from = log.complete_from
    log._unsaved, log._unsaved_snapshots = [], []
    log._new_files = log._new_id = False
    log.recovery_point = log.log_end_offset


def save_together(disk: Disk, path: str, logs: Sequence[PartitionLog]) -> StorageError | None:
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
