"""The start of a log: DeleteRecords moves it, retention removes the segments below it.

Owns which segments are due and the order in which their files are removed. The deletion was requested, so the files are
unlinked and not kept as evidence.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from fenceline.errors import ErrorCode, PeerError
from fenceline.log.core.disk import Disk
from fenceline.log.core.errors import StorageError
from fenceline.log.core.file_names import DELETED_SUFFIX, INDEX_SUFFIXES, LOG_SUFFIX, SNAPSHOT_SUFFIX
from fenceline.log.core.segment import Segment
from fenceline.log.partition.state import LogState

_Due = Callable[[Segment, int], bool]


@dataclass(frozen=True, slots=True)
class RemovedSegment:
    """A segment that was removed from the log; `delete()` unlinks its files, in a thread, after
    `file.delete.delay.ms`."""

    base_offset: int
    next_offset: int
    size_bytes: int
    reason: str
    disk: Disk
    paths: tuple[str, ...]

    def delete(self) -> None:
        """Raises OSError; files that do not exist any more are ignored."""
        for path in self.paths:
            with contextlib.suppress(FileNotFoundError):
                self.disk.unlink(path)


def advance_log_start(log: LogState, offset: int) -> bool:
    if offset > log.high_watermark:
        raise PeerError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"Records of {log.topic_partition} can be deleted up to the high watermark {log.high_watermark}, not up "
            f"to {offset}",
        )
    if offset <= log.log_start_offset:
        return False
    log.log_start_offset = offset
    log.recovery_point = max(log.recovery_point, offset) if not log.segments else log.recovery_point
    log.epochs.truncate_from_start(offset)
    log.check_offsets()
    return True


def enforce_retention(log: LogState, now_ms: int, *, may_empty: bool) -> list[RemovedSegment]:
    """Kafka's order: segments below the log start, then by time, then by size. Stops at the high watermark, and before
    the last records unless it `may_empty` the log."""
    log.producers.expire(now_ms, log.config.producer_id_expiration_ms)
    if not log.segments:
        return []
    try:
        removed = _remove_while(log, now_ms, "log start", lambda segment, after: after <= log.log_start_offset)
        if log.config.deletes:
            retention_ms = log.config.retention_ms
            if retention_ms >= 0:
                removed += _remove_while(
                    log,
                    now_ms,
                    "time",
                    lambda segment, after: (
                        (may_empty or after < log.log_end_offset)
                        and now_ms - segment.largest_timestamp_ms() > retention_ms
                    ),
                )
            if log.config.retention_bytes >= 0:
                excess = log.size_bytes - log.config.retention_bytes

                def too_big(segment: Segment, after: int) -> bool:
                    nonlocal excess
                    excess -= segment.size_bytes
                    return excess >= 0 and (may_empty or after < log.log_end_offset)

                removed += _remove_while(log, now_ms, "size", too_big)
    except OSError as error:
        raise StorageError.of(f"retention of {log.topic_partition}", error) from error
    return removed


def _remove_while(log: LogState, now_ms: int, reason: str, due: _Due) -> list[RemovedSegment]:
    count = 0
    segments = log.segments
    while count < len(segments):
        segment = segments[count]
        last = count + 1 == len(segments)
        after = log.log_end_offset if last else segments[count + 1].base_offset
        is_empty = last and not segment.size_bytes  # one that compaction has emptied is removed like any other
        if after > log.high_watermark or is_empty or not due(segment, after):
            break
        count += 1
    if count == 0:
        return []
    if count == len(segments):
        # All segments are due: the log needs an empty one to continue, or its end offset would be lost.
        try:
            log.start_segment(log.log_end_offset, now_ms)
        except OSError:
            # A full disk has no room for the empty segment: removing the ones before it makes room.
            count -= 1
            if count == 0:
                raise
    log.check()
    removed = segments[:count]
    del segments[:count], log.bases[:count]
    start = segments[0].base_offset
    if start > log.log_start_offset:
        log.log_start_offset = start
        log.epochs.truncate_from_start(start)
    # All leave the log before the first file is renamed: a rename may fail.
    for segment in removed:
        segment.is_retired = True
        log.size_bytes -= segment.size_bytes
    log.release(removed)
    log.unsaved.sealed = [kept for kept in log.unsaved.sealed if not kept.is_retired]
    log.check()
    return [_retire(log.disk, segment, reason) for segment in removed]


def _retire(disk: Disk, segment: Segment, reason: str) -> RemovedSegment:
    """Mark the files of a segment that has left the log for deletion. Raises OSError."""
    paths: list[str] = []
    for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES, SNAPSHOT_SUFFIX):
        path = segment.stem + suffix
        if suffix == SNAPSHOT_SUFFIX:
            paths.append(path)
            continue
        with contextlib.suppress(FileNotFoundError):
            disk.rename(path, path + DELETED_SUFFIX)
            paths.append(path + DELETED_SUFFIX)
    return RemovedSegment(segment.base_offset, segment.next_offset, segment.size_bytes, reason, disk, tuple(paths))
