"""One segment: its `.log` file, its sparse indexes, and the state of its end.

Owns the bytes of a segment's files and the moment an index entry is due. Never decides when to roll, delete or recover.
The indexes of the active segment are kept in memory and written when it is sealed or closed; a crash before that costs
a rebuild, never data.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from functools import partial
from typing import Final

from fenceline.log.core.disk import Disk, read_file, replace_file
from fenceline.log.core.file_names import INDEX_SUFFIXES, LOG_SUFFIX, stem
from fenceline.log.core.index import (
    TIME_ENTRY_BYTES,
    AbortedTransaction,
    OffsetIndex,
    TimeIndex,
    are_aborted,
    decode_aborted,
    encode_aborted,
)
from fenceline.log.core.scan import scan
from fenceline.log.core.tail import SegmentTail

MAX_RELATIVE_OFFSET: Final = (1 << 31) - 1
SMALL_INDEX_BYTES: Final = 512


class Segment(SegmentTail):
    """Offsets `base_offset` up to `next_offset`, bytes 0 up to `size_bytes`.

    `next_offset` of a sealed segment that was not read since the start is the base of the one after it. Invariant: the
    file has at least `size_bytes` bytes, and they are complete batches.
    """

    __slots__ = ("__weakref__", "aborted", "disk", "has_aborted_file", "is_retired", "path", "sealed")

    def __init__(self, disk: Disk, directory: str, base_offset: int, created_ms: int) -> None:
        super().__init__()
        self.disk = disk
        self.path = stem(directory, base_offset) + LOG_SUFFIX
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.created_ms = created_ms
        self.index = OffsetIndex()
        self.time_index = TimeIndex()
        self.aborted: list[AbortedTransaction] | None = []
        self.has_aborted_file = False
        """Whether there is a `.txnindex`, with whatever content."""
        self.sealed = False
        self.is_retired = False
        """Retention or compaction removed it: its files will be deleted."""

    @property
    def stem(self) -> str:
        """Path of its files without their suffix, also once another suffix follows `.log`."""
        return self.path.rpartition(LOG_SUFFIX)[0]

    def release(self) -> None:
        """Close the descriptor and release large indexes, writing them to the disk if needed (OpenFiles)."""
        if self.fd >= 0:
            self.disk.close(self.fd)
            self.fd = -1
        if self.index is not None and self.index.size_bytes > SMALL_INDEX_BYTES:
            if not self.indexes_saved:
                try:
                    self.save_indexes(durable=False)
                except OSError:
                    return  # the disk is full: the index stays in memory
            self.index = None
            self.time_index = None

    # -- writing ------------------------------------------------------------------------------------------------

    def seal(self) -> None:
        """No more appends: the time index gets its last entry. `save_indexes` is due, in a thread."""
        _, time_index = self.indexes()
        if self.max_timestamp_ms >= 0:
            time_index.maybe_append(self.max_timestamp_ms, self.max_timestamp_offset - self.base_offset)
        self.sealed = True

    def indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Both indexes, read or rebuilt if they are not in memory, which may wait for the disk. Raises OSError."""
        index, time_index = self.index, self.time_index
        if index is None or time_index is None:
            index, time_index = self.load_indexes()
            self.index, self.time_index = index, time_index
        return index, time_index

    def load_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Read both index files, or rebuild them from the batches if one is missing or invalid. For a thread."""
        content = read_file(self.disk, self.stem + ".index")
        times = read_file(self.disk, self.stem + ".timeindex")
        if content is not None and times is not None:
            index, time_index = OffsetIndex.decode(content), TimeIndex.decode(times)
            if index is not None and time_index is not None:
                index.truncate_to_position(self.size_bytes)
                return index, time_index
        return self.rebuild_indexes()

    def rebuild_indexes(self, interval_bytes: int = 4096) -> tuple[OffsetIndex, TimeIndex]:
        """Both indexes from the headers of all batches. For a thread. Raises OSError, BadBatch."""
        index, time_index = OffsetIndex(), TimeIndex()
        highest, highest_at, since = -1, 0, 0
        fd = self.disk.open_read(self.path)
        try:
            batches = scan(self.disk, fd, 0, self.size_bytes, next_offset=self.base_offset, crc_from_offset=None)
            for found in batches:
                header = found.header
                if header.max_timestamp > highest:
                    highest, highest_at = header.max_timestamp, header.last_offset - self.base_offset
                if since > interval_bytes:
                    index.append(header.last_offset - self.base_offset, found.position)
                    time_index.maybe_append(highest, highest_at)
                    since = 0
                since += header.size_bytes
        finally:
            self.disk.close(fd)
        time_index.maybe_append(highest, highest_at)
        return index, time_index

    def save_indexes(self, *, durable: bool) -> None:
        """Write the index files; they count as saved if that is durable. A segment that retention has deleted needs
        none. Raises OSError."""
        self.write_indexes(partial(replace_file, self.disk, durable=durable))
        if durable:
            self.indexes_are_saved()

    def write_indexes(self, write: Callable[[str, bytes], None]) -> None:
        """Pass path and content of each index file to `write`; `indexes_are_saved` is due once they are durable. Raises
        OSError."""
        if self.is_retired:
            return
        try:
            self._write_indexes(write)
        except FileNotFoundError:
            # Retired on the loop meanwhile: there are no batches to make indexes from.
            if not self.is_retired:
                raise
        finally:
            self._drop_if_retired()

    def indexes_are_saved(self) -> None:
        self.indexes_saved = not self.is_retired
        self._drop_if_retired()

    def _drop_if_retired(self) -> None:
        if self.is_retired:
            # Retired on the loop meanwhile. Recovery takes indexes without a segment file for a lost segment.
            self.delete_index_files()

    def _write_indexes(self, write: Callable[[str, bytes], None]) -> None:
        index, time_index = self.indexes()
        times = time_index
        if not self.sealed and self.max_timestamp_ms >= 0:
            # The file of the active segment gets the closing entry, the copy in memory does not.
            times = TimeIndex()
            times.timestamps, times.offsets = time_index.timestamps[:], time_index.offsets[:]
            times.maybe_append(self.max_timestamp_ms, self.max_timestamp_offset - self.base_offset)
        write(self.stem + ".index", index.encode())
        write(self.stem + ".timeindex", times.encode())
        if self.aborted or (self.has_aborted_file and self.aborted is not None):
            # An empty one, too, in place of entries that were cut.
            write(self.stem + ".txnindex", encode_aborted(self.aborted))
            self.has_aborted_file = True
        self.indexes_saved = False

    def aborted_transactions(self) -> list[AbortedTransaction]:
        """Aborted transactions that ended here; read from the disk once. Raises OSError, also if the file was removed
        or is damaged: a reader must not take the records for committed."""
        if self.aborted is None:
            path = self.stem + ".txnindex"
            content = read_file(self.disk, path)
            if content is None:
                raise FileNotFoundError(errno.ENOENT, "the transaction index was removed", path)
            found = decode_aborted(content)
            if found is None:
                raise OSError(errno.EIO, "the transaction index is damaged", path)
            self.aborted = found
        return self.aborted

    def has_valid_aborted(self) -> bool:
        """Whether the file can be read and has only complete entries. For a thread."""
        try:
            content = read_file(self.disk, self.stem + ".txnindex")
        except OSError:
            return False
        return content is not None and are_aborted(content)

    def save_aborted(self) -> None:
        """Write the file at once if its content differs. For a thread. Raises OSError."""
        content = encode_aborted(self.aborted_transactions())
        known = read_file(self.disk, self.stem + ".txnindex") if self.has_aborted_file else None
        if content != (known or b""):
            replace_file(self.disk, self.stem + ".txnindex", content)
            self.has_aborted_file = True

    def delete_index_files(self) -> None:
        for suffix in INDEX_SUFFIXES:
            with contextlib.suppress(FileNotFoundError):
                self.disk.unlink(self.stem + suffix)

    # -- facts --------------------------------------------------------------------------------------------------

    def largest_timestamp_ms(self) -> int:
        """The largest timestamp of the records, or the file's if they have none: used by retention by time.

        For a segment from before the start, the last entry of its time index is read once. Raises OSError.
        """
        if self.max_timestamp_ms < 0 and self.size_bytes:
            self._read_largest_timestamp()
        if self.max_timestamp_ms >= 0:
            return self.max_timestamp_ms
        found = self.disk.stat(self.path)
        return found.modified_ms if found is not None else self.created_ms

    def first_batch_timestamp_ms(self) -> int:
        """The largest timestamp of the first batch; -1 if there is none. Read once. Raises OSError, BadBatch."""
        if self.first_timestamp_ms < 0 and self.size_bytes:
            fd = self.disk.open_read(self.path)
            try:
                batches = scan(self.disk, fd, 0, self.size_bytes, next_offset=self.base_offset, crc_from_offset=None)
                self.first_timestamp_ms = next(batches).header.max_timestamp
            finally:
                self.disk.close(fd)
        return self.first_timestamp_ms

    def _read_largest_timestamp(self) -> None:
        path = self.stem + ".timeindex"
        found = self.disk.stat(path)
        if found is not None and found.size_bytes >= TIME_ENTRY_BYTES and found.size_bytes % TIME_ENTRY_BYTES == 0:
            fd = self.disk.open_read(path)
            try:
                entry = self.disk.pread(fd, TIME_ENTRY_BYTES, found.size_bytes - TIME_ENTRY_BYTES)
            finally:
                self.disk.close(fd)
            self.max_timestamp_ms, relative = TimeIndex.decode_entry(entry)
        else:
            self.max_timestamp_ms, relative = self.indexes()[1].last
        self.max_timestamp_offset = self.base_offset + relative
