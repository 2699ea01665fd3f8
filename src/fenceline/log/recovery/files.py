"""The files of a partition's directory at recovery: operations that a crash left unfinished, and the segments.

Owns which files stay, and where a segment's own index lets its scan begin. Compaction's files (`compaction.swap`) end
as either the old segments or the new one. Never reads a record, and truncates nothing.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from fenceline.errors import PeerError
from fenceline.log.core.disk import TEMPORARY_SUFFIX, Disk, read_file
from fenceline.log.core.errors import CorruptLog
from fenceline.log.core.file_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_DIGITS,
    SWAP_SUFFIX,
    offset_in,
    segment_bases,
)
from fenceline.log.core.index import OFFSET_ENTRY_BYTES, OffsetIndex, TimeIndex
from fenceline.log.core.scan import BadBatch, scan
from fenceline.log.core.segment import MAX_RELATIVE_OFFSET, Segment
from fenceline.records.batch import BATCH_OVERHEAD, peek_header

_SUFFIXES: Final = (LOG_SUFFIX, *INDEX_SUFFIXES)


class Files(NamedTuple):
    """A partition's directory as it is, or will be, once unfinished operations are completed."""

    names: set[str]
    orphan_indexes: list[str]
    """Those of `names` that are indexes without a segment file, although nothing here removed that file: for `drop`.

    Retention and compaction, also Apache Kafka's, keep a removed segment file under another name until its indexes are
    removed; truncation removes the indexes first.
    """
    swapped: Mapping[str, str]
    """By name, the current name of the file while the directory is only inspected; empty once the renames are
    dropped."""


def clean_up(disk: Disk, directory: str) -> Files:
    """Complete operations that a crash left unfinished, and remove leftover files. Raises CorruptLog, OSError."""
    kept, dropped, removed, orphan_indexes = _sorted(finish_swaps(disk, directory, disk.listdir(directory)))
    # The indexes first: without its `.deleted` a segment would seem to have vanished.
    drop(disk, directory, kept, [name for name in orphan_indexes if name[:OFFSET_DIGITS] in removed])
    drop(disk, directory, kept, dropped)
    return Files(kept, [name for name in orphan_indexes if name in kept], {})


def inspect(disk: Disk, directory: str) -> Files:
    """What `clean_up` would leave. Changes nothing. Raises CorruptLog, OSError."""
    names = set(disk.listdir(directory))
    swapped: dict[str, str] = {}
    found = unfinished_swaps(disk, directory, names)
    if found is not None:
        swapped = {name.removesuffix(SWAP_SUFFIX): name for name in found.swaps}
        names = names.difference(found.dropped, found.covered, found.swaps).union(swapped)
    kept, _, removed, orphan_indexes = _sorted(names)
    removed_indexes = {name for name in orphan_indexes if name[:OFFSET_DIGITS] in removed}
    return Files(kept - removed_indexes, [name for name in orphan_indexes if name not in removed_indexes], swapped)


def _sorted(names: Iterable[str]) -> tuple[set[str], list[str], set[str], list[str]]:
    """Names to keep, names to remove, numbers of removed segments, and indexes without a segment file."""
    kept: set[str] = set()
    dropped: list[str] = []
    for name in names:
        (dropped.append if name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, TEMPORARY_SUFFIX)) else kept.add)(name)
    removed = {name[:OFFSET_DIGITS] for name in dropped if name.endswith(LOG_SUFFIX + DELETED_SUFFIX)}
    orphan_indexes = sorted(
        name
        for name in kept
        if name.endswith(INDEX_SUFFIXES)
        and name[:OFFSET_DIGITS].isdigit()
        and name[:OFFSET_DIGITS] + LOG_SUFFIX not in kept
    )
    return kept, dropped, removed, orphan_indexes


def drop(disk: Disk, directory: str, names: set[str], dropped: Iterable[str]) -> None:
    """Unlink some of the names of a directory. Raises OSError."""
    for name in dropped:
        names.discard(name)
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(f"{directory}/{name}")


# -- replacements by compaction --------------------------------------------------------------------------------------


class UnfinishedSwaps(NamedTuple):
    """Segment replacements that a crash interrupted. Names of files of one directory."""

    dropped: list[str]
    """Files of an unfinished step: the old segments stay."""
    covered: list[str]
    """Files of segments that are replaced by another."""
    swaps: list[str]
    """Files to be renamed to their final names, in this order."""


def unfinished_swaps(disk: Disk, directory: str, names: Iterable[str]) -> UnfinishedSwaps | None:
    """Replacements that a crash of Fenceline or Apache Kafka interrupted; None if there are none. Changes nothing.

    A `.swap` at or after the first `.cleaned` belongs to an unfinished step. Every other one is the newest version of
    the range it covers. Raises CorruptLog, OSError.
    """
    swaps = {name: base for name in names if (base := offset_in(name, SWAP_SUFFIX)) is not None}
    if not swaps:
        return None
    cleaned = [base for name in names if (base := offset_in(name, CLEANED_SUFFIX)) is not None]
    unfinished = min(cleaned, default=None)
    valid = {name: base for name, base in swaps.items() if unfinished is None or base < unfinished}
    covered = []
    for name, base in sorted(valid.items()):
        if name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            after = max(base + 1, _end_of(disk, f"{directory}/{name}", base))
            for other in sorted(names):
                offset = next((at for suffix in _SUFFIXES if (at := offset_in(other, suffix)) is not None), None)
                if offset is not None and base <= offset < after:
                    covered.append(other)
    return UnfinishedSwaps(_log_last(set(swaps) - set(valid)), covered, _log_last(valid)[::-1])


def finish_swaps(disk: Disk, directory: str, names: Sequence[str]) -> Sequence[str]:
    """Complete interrupted replacements. Returns the directory's names afterwards. Raises CorruptLog, OSError."""
    found = unfinished_swaps(disk, directory, names)
    if found is None:
        return names
    for name in (*found.dropped, *found.covered):
        disk.unlink(f"{directory}/{name}")
    for name in found.swaps:
        disk.rename(f"{directory}/{name}", f"{directory}/{name.removesuffix(SWAP_SUFFIX)}")
    disk.fsync_dir(directory)
    return disk.listdir(directory)


def _log_last(names: set[str] | dict[str, int]) -> list[str]:
    return sorted(names, key=lambda name: (name.endswith(LOG_SUFFIX + SWAP_SUFFIX), name))


def _end_of(disk: Disk, path: str, base: int) -> int:
    found = disk.stat(path)
    end = base
    fd = disk.open_read(path)
    try:
        size_bytes = found.size_bytes if found is not None else 0
        for batch in scan(disk, fd, 0, size_bytes, next_offset=base, crc_from_offset=None):
            end = batch.header.next_offset
    except BadBatch as bad:
        raise CorruptLog(
            path,
            bad.position,
            f"a compaction was interrupted, and its output is damaged: {bad.reason}",
            "Move this .swap file and the other .swap files with the same number out of the directory; the original "
            "segments are used then, if they still exist. Otherwise restore the partition from another replica.",
        ) from None
    finally:
        disk.close(fd)
    return end


# -- segments ----------------------------------------------------------------------------------------------------------


def segments_of(disk: Disk, directory: str, files: Files, now_ms: int) -> list[Segment]:
    """The segments of these files, in order. Nothing is read: each is assumed to end where its file does."""
    segments: list[Segment] = []
    for base in segment_bases(files.names):
        segment = Segment(disk, directory, base, now_ms)
        name = segment.path.rpartition("/")[2]
        if name in files.swapped:
            segment.path = f"{directory}/{files.swapped[name]}"
        found = disk.stat(segment.path)
        if found is None:
            raise FileNotFoundError(2, "segment vanished", segment.path)
        segment.size_bytes = found.size_bytes
        segment.created_ms = min(found.modified_ms, now_ms)
        segment.index = segment.time_index = None
        segment.has_aborted_file = f"{base:0{OFFSET_DIGITS}d}.txnindex" in files.names
        segment.aborted = None if segment.has_aborted_file else []
        segment.indexes_saved = True
        if segments:
            segments[-1].next_offset = base
            segments[-1].sealed = True
        segments.append(segment)
    return segments


def resume(segment: Segment, start_offset: int) -> tuple[int, int]:
    """Where scanning may start inside a segment: (position, offset of the batch there). Loads the index up to there.

    An index is trusted only if its last kept entry matches the batch that it names; the index of a segment that has yet
    to replace another is not, as its name still belongs to the other. Raises OSError.
    """
    disk = segment.disk
    segment.index, segment.time_index = OffsetIndex(), TimeIndex()
    segment.bytes_since_index = 0
    if not segment.path.endswith(LOG_SUFFIX):
        return 0, segment.base_offset
    content = read_file(disk, segment.stem + ".index")
    times = read_file(disk, segment.stem + ".timeindex")
    index = OffsetIndex.decode(content) if content else None
    time_index = TimeIndex.decode(times) if times is not None else None
    if index is None or time_index is None:
        return 0, segment.base_offset
    keep = bisect_left(index.offsets, min(start_offset - segment.base_offset, MAX_RELATIVE_OFFSET))
    keep = min(keep, bisect_left(index.positions, max(0, segment.size_bytes - BATCH_OVERHEAD)))
    if keep == 0:
        return 0, segment.base_offset
    relative, position = index.offsets[keep - 1], index.positions[keep - 1]
    fd = disk.open_read(segment.path)
    try:
        first = peek_header(disk.pread(fd, BATCH_OVERHEAD, 0))
        header = peek_header(disk.pread(fd, BATCH_OVERHEAD, position))
    except PeerError:
        return 0, segment.base_offset
    finally:
        disk.close(fd)
    if header.last_offset != segment.base_offset + relative or header.base_offset < segment.base_offset:
        return 0, segment.base_offset
    del index.offsets[keep:], index.positions[keep:]
    time_index.truncate_to_offset(relative + 1)
    segment.index, segment.time_index = index, time_index
    segment.first_timestamp_ms = first.max_timestamp
    segment.max_timestamp_ms, at = time_index.last
    segment.max_timestamp_offset = segment.base_offset + at if segment.max_timestamp_ms >= 0 else -1
    return position, header.base_offset


def near_end(segment: Segment) -> tuple[int, int]:
    """Where to start the search for the end of a segment: (position, offset of the batch there), by the last entry of
    its index file if that matches the batch it names, else the first batch. Raises OSError."""
    disk, path = segment.disk, segment.stem + ".index"
    found = disk.stat(path)
    if found is None or found.size_bytes < OFFSET_ENTRY_BYTES or found.size_bytes % OFFSET_ENTRY_BYTES:
        return 0, segment.base_offset
    fd = disk.open_read(path)
    try:
        index = OffsetIndex.decode(disk.pread(fd, OFFSET_ENTRY_BYTES, found.size_bytes - OFFSET_ENTRY_BYTES))
    finally:
        disk.close(fd)
    if index is None or not index.positions or index.positions[-1] > segment.size_bytes - BATCH_OVERHEAD:
        return 0, segment.base_offset
    position = index.positions[-1]
    fd = disk.open_read(segment.path)
    try:
        header = peek_header(disk.pread(fd, BATCH_OVERHEAD, position))
    except PeerError:
        return 0, segment.base_offset
    finally:
        disk.close(fd)
    matches = (
        header.last_offset == segment.base_offset + index.offsets[-1] and header.base_offset >= segment.base_offset
    )
    return (position, header.base_offset) if matches else (0, segment.base_offset)
