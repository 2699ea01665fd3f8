"""Compacted segments replace the ones they were made from, as in Apache Kafka.

Owns the names and the order of the steps. After a crash between any two of them the directory holds either the old
segments or the new one, never a mixture:

| step | in the directory | after a crash |
|---|---|---|
| written, synced | `0.log`, `20.log`, `0.log.cleaned` | `.cleaned` is removed |
| `prepare`: renamed | `0.log`, `20.log`, `0.log.swap` | the `.swap` replaces the segments that it covers |
| `commit`: exchanged | `0.log`, `0.log.deleted`, `20.log.deleted` | `.deleted` is removed |
| after `file.delete.delay.ms` | `0.log` | |

Old segments get their second name before they lose the first, and their objects then use it: a reader that found one
just before can read its bytes until they are deleted. Never reads a batch. After a crash `recovery.files` completes
the step.
"""

from __future__ import annotations

import contextlib
from typing import Final, NamedTuple

from fenceline.log.core import producer_snapshots
from fenceline.log.core.disk import Disk, write_all
from fenceline.log.core.errors import StorageError
from fenceline.log.core.file_names import CLEANED_SUFFIX, DELETED_SUFFIX, INDEX_SUFFIXES, LOG_SUFFIX, SWAP_SUFFIX
from fenceline.log.core.index import OffsetIndex, encode_aborted
from fenceline.log.core.segment import Segment
from fenceline.log.partition.state import LogState

_SUFFIXES: Final = (LOG_SUFFIX, *INDEX_SUFFIXES)


class Replacement(NamedTuple):
    """A compacted segment, ready to replace adjacent segments."""

    old: tuple[Segment, ...]
    sizes: tuple[int, ...]
    """Sizes of the old segments when they were read."""
    indexes: tuple[OffsetIndex, ...]
    new: Segment
    suffixes: tuple[str, ...]
    """Of the new segment's files."""


def write_indexes(disk: Disk, segment: Segment, replaces_aborted: bool) -> tuple[str, ...]:
    """Write and sync the indexes of a compacted segment, as `.cleaned`. Returns the suffixes of its files. Raises
    OSError."""
    index, time_index = segment.indexes()
    contents = {".index": index.encode(), ".timeindex": time_index.encode()}
    aborted = segment.aborted_transactions()
    if aborted or replaces_aborted:
        # Write an empty one, too: the old file's entries would be taken for those of the new segment.
        contents[".txnindex"] = encode_aborted(aborted)
    for suffix, content in contents.items():
        fd = begin_file(disk, segment.stem + suffix + CLEANED_SUFFIX)
        try:
            write_all(disk, fd, content)
            disk.fsync(fd)
        finally:
            disk.close(fd)
    return (LOG_SUFFIX, *contents)


def begin_file(disk: Disk, path: str) -> int:
    """A new file, replacing an existing one. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(path)
    return disk.open_append(path)


def prepare(disk: Disk, directory: str, replacement: Replacement) -> None:
    """After this step a crash leads to the new segment. For a thread. Raises OSError."""
    new = replacement.new.stem
    for suffix in reversed(replacement.suffixes):
        disk.rename(new + suffix + CLEANED_SUFFIX, new + suffix + SWAP_SUFFIX)
    disk.fsync_dir(directory)
    for segment in replacement.old:
        with contextlib.suppress(FileExistsError):
            disk.link(segment.path, segment.path + DELETED_SUFFIX)


def commit(log: LogState, replacement: Replacement) -> bool:
    """Replace the segments, on the loop. False if nothing was changed because the log was replaced or truncated, or
    because indexes of the old segments are not saved yet.

    Raises StorageError: the files are in the state that a crash would leave, and the log is offline.
    """
    old, new, disk = replacement.old, replacement.new, log.disk
    start = next((at for at, segment in enumerate(log.segments) if segment is old[0]), -1)
    end = start + len(old)
    if (
        start < 0
        or end >= len(log.segments)
        or log.offline is not None
        or log.unfinished is not None
        or tuple(log.segments[start:end]) != old
        or tuple(segment.size_bytes for segment in old) != replacement.sizes
        # A pending save would overwrite the indexes of the new segment.
        or not all(segment.indexes_saved for segment in old)
    ):
        return False
    for segment, index in zip(old, replacement.indexes, strict=True):
        if segment.index is None:
            segment.index = index
        segment.path += DELETED_SUFFIX
    try:
        for segment in old[1:]:
            # Delete its indexes first: recovery reports indexes without a segment file as a lost segment.
            segment.delete_index_files()
            disk.unlink(segment.path.removesuffix(DELETED_SUFFIX))
        for suffix in replacement.suffixes:
            disk.rename(new.stem + suffix + SWAP_SUFFIX, new.stem + suffix)
    except OSError as error:
        what = f"replacing segments of {log.topic_partition}"
        log.offline = StorageError(f"{what} failed: {error.strerror}; restart the node", error.errno or 0)
        raise log.offline from error
    new.path = new.stem + LOG_SUFFIX
    log.release(old)
    log.segments[start:end] = [new]
    log.bases[start:end] = [new.base_offset]
    log.size_bytes += new.size_bytes - sum(replacement.sizes)
    log.check()
    return True


def sync_replacement(disk: Disk, directory: str, replacement: Replacement) -> None:
    """Sync the exchange, and remove the snapshots of the old segments. For a thread. Raises OSError."""
    disk.fsync_dir(directory)
    merged = {segment.base_offset for segment in replacement.old[1:]}
    if merged:
        producer_snapshots.drop(disk, directory, disk.listdir(directory), lambda at: at in merged)


def delete_old(disk: Disk, replacement: Replacement) -> None:
    """Unlink the old segments once no reader uses them. For a thread. Raises OSError."""
    for segment in replacement.old:
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(segment.path)


def undo(disk: Disk, directory: str, replacement: Replacement) -> None:
    """Undo `prepare`, or remove the files written before it: the old segments stay. For a thread. Raises OSError.

    Does nothing if the exchange has begun, or if nothing was written.
    """
    if any(segment.path.endswith(DELETED_SUFFIX) for segment in replacement.old):
        return
    new = replacement.new.stem
    # Remove the `.log` file last: alone, it still represents the complete segment.
    for suffix in reversed(_SUFFIXES):
        for state in (CLEANED_SUFFIX, SWAP_SUFFIX):
            with contextlib.suppress(FileNotFoundError):
                disk.unlink(new + suffix + state)
    for segment in replacement.old:
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(segment.path + DELETED_SUFFIX)
    disk.fsync_dir(directory)
