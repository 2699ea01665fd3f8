"""Finds and reads batches of a log without waiting for the disk on the loop.

Owns the check whether a read is in the page cache, and the source of its bytes. Never changes the log. Data in the page
cache is returned at once: as slices of mapped windows from `MAP_FROM_BYTES` on, as small copies below. For other data a
`LogRead` is returned that is not resident: its `load` repeats the complete look-up in a thread, with a descriptor of
its own, so that concurrent deletion and truncation are safe (docs/how-it-works.md, "A fetch").

A caller that only sends records gets a `FileSlice`: nothing is copied, mapped or touched. Pages in the cache are
counted for it, which counts those that are on their way from the disk as well. So for a while after a load of a segment
its pages are looked at one by one, in a mapping, except those that a thread has waited for (`recent_loads`).
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from fenceline.errors import PeerError
from fenceline.log.core.disk import PAGE_BYTES, FileSlice
from fenceline.log.core.errors import StorageError
from fenceline.log.core.index import OffsetIndex
from fenceline.log.core.open_files import OpenFiles
from fenceline.log.core.positions import EMPTY, CorruptIndex, Extent, Read, extent_of, find, fit
from fenceline.log.core.recent_loads import SYSTEM_AHEAD_BYTES
from fenceline.log.core.scan import BadBatch
from fenceline.log.core.segment import Segment

MAP_FROM_BYTES: Final = 64 << 10
LOAD_AHEAD_BYTES: Final = 4 << 20
"""How much a thread loads behind the records of a request, for the next ones."""

_T = TypeVar("_T")


class NotResident(Exception):
    """The bytes are not in the page cache: a thread must read them."""


class LogRead:
    """Complete batches starting with the one that contains the requested offset.

    If `resident` is False, `records` is empty and `load()` must be called once, in a thread; it returns the records. A
    caller that only sends the records calls `begin_load()` and `finish_load()` instead. `close()` a read that will not
    be loaded.
    """

    __slots__ = (
        "_loader",
        "_source",
        "is_from_disk",
        "offset",
        "payload",
        "position",
        "records",
        "resident",
        "segment_base_offset",
    )

    def __init__(
        self,
        offset: int,
        records: memoryview = EMPTY,
        *,
        position: int = -1,
        segment_base_offset: int = -1,
        loader: _Loader | None = None,
        payload: FileSlice | None = None,
        was_loaded: bool = False,
    ) -> None:
        self.offset = offset
        self.records = records
        self.payload: memoryview | FileSlice = records if payload is None else payload
        """The records, in the form that is cheapest to send."""
        self.position = position
        self.segment_base_offset = segment_base_offset
        self.resident = loader is None
        self.is_from_disk = was_loaded or loader is not None
        """Whether the records are not in the page cache, or are there because they were just loaded."""
        self._loader = loader
        self._source = loader

    def is_from(self, segments: Sequence[Segment]) -> bool:
        """Whether the segment to load is one of these: retention or compaction may have removed its file."""
        return self._source is None or any(each is self._source.segment for each in segments)

    def end_limit(self, segments: Sequence[Segment], end_offset: int) -> int:
        """An offset at or past the end of the records, by the index and without reading a batch (transactions.md X42).

        `segments`: those of the log when it was read, from the one of the offset on. Call it after the load.
        """
        source = self._source
        base = self.segment_base_offset if source is None else source.segment.base_offset
        position = self.position if source is None else source.position
        for number, segment in enumerate(segments):
            if segment.base_offset == base:
                behind = segment.index.last_offset_from(position + len(self.payload)) if segment.index else -1
                if behind >= 0:
                    return min(base + behind, end_offset)
                return min(segments[number + 1].base_offset, end_offset) if number + 1 < len(segments) else end_offset
        return end_offset

    def load(self) -> memoryview:
        """Read from the disk (blocks). Raises StorageError."""
        loader, self._loader = self._loader, None
        if loader is not None:
            self.payload = self.records = loader.run(loader.copy)
            self.resident = True
        return self.records

    def begin_load(self) -> None:
        """Find the records and start to read them into the page cache; small ones are read at once (blocks). Raises
        StorageError."""
        loader, self._loader = self._loader, None
        if loader is not None:
            self.payload = loader.run(loader.to_send)

    def finish_load(self) -> memoryview | FileSlice:
        """Wait for the read that `begin_load` started; returns the payload. `records` stays empty (blocks). Raises
        StorageError."""
        payload, source = self.payload, self._source
        if isinstance(payload, FileSlice) and source is not None:
            source.finish(payload)
        self.resident = True
        return payload

    def load_ahead(self) -> None:
        """After a load: read what follows into the page cache, for the next request (blocks). Raises StorageError."""
        if isinstance(self.payload, FileSlice) and self._source is not None:
            self._source.load_ahead(self.payload)

    @property
    def copied_bytes_limit(self) -> int:
        """Maximum memory of a load to send if records can be sent from their file."""
        return 0 if self._loader is None else self._loader.copied_bytes_limit

    def close(self) -> None:
        loader, self._loader = self._loader, None
        if loader is not None:
            loader.close()


class Request(NamedTuple):
    """One read of one segment; `position` is -1 if it must be looked up."""

    offset: int
    end_offset: int
    max_bytes: int
    at_least_one: bool
    position: int
    to_send: bool = False
    """Whether the records will only be sent: then they need not be in memory."""


class Resident(NamedTuple):
    """Result of `read_now`; `file` is set if the records can be sent without reading them, and `records` may then be
    empty."""

    records: memoryview
    file: FileSlice | None
    position: int
    reaches_end: bool
    size_bytes: int
    was_loaded: bool = False


def read_now(files: OpenFiles, segment: Segment, request: Request) -> Resident:
    """Read from the page cache. Raises NotResident, StorageError."""
    index = segment.index
    if index is None:
        raise NotResident
    try:
        return _read_resident(files, segment, index, request)
    except (CorruptIndex, PeerError):
        raise NotResident from None  # the thread rebuilds the index, or reports the error


def _read_resident(files: OpenFiles, segment: Segment, index: OffsetIndex, request: Request) -> Resident:
    disk = files.disk
    fd = segment.fd if segment.fd >= 0 else files.open(segment)
    segment.recently_used = True

    def read(position: int, size_bytes: int) -> bytes | bytearray:
        found = disk.pread_resident(fd, size_bytes, position)
        if found is None:
            raise NotResident
        return found

    extent = extent_of(segment)
    position, size, reaches_end = _locate(read, index, extent, request)
    if size == 0:
        return Resident(EMPTY, None, position, reaches_end, 0)
    if size >= MAP_FROM_BYTES:
        loads = files.loads
        if loads.may_be_read_ahead(segment, position, position + size):
            raise NotResident
        was_loaded = loads.was_loaded(segment, position, position + size)
        if request.to_send and (was_loaded or not loads.may_be_under_way(segment)):
            file = files.stored(segment)
            if file is not None:
                found = FileSlice(file, position, size)
                if not found.is_resident(0, size):
                    raise NotResident
                return Resident(EMPTY, found, position, reaches_end, size, was_loaded)
        mapped = files.window(segment, position)
        if mapped is not None:
            window, start = mapped
            room = start + window.size_bytes - position
            if size > room:
                size, reaches_end = fit(read, index, position, position + size, room, at_least_one=True), False
            if size <= room:
                first, last = position - start, position - start + size
                if not window.is_resident(first, last):
                    raise NotResident
                # Recently read data is as fast from memory; pages that were never touched would block the loop longer.
                file = (files.stored(segment) or files.file_to_load(segment)) if was_loaded else None
                stored = window.file_slice(file, first, last) if file is not None else None
                return Resident(window.slice(first, last), stored, position, reaches_end, size, stored is not None)
    return Resident(memoryview(read(position, size)), None, position, reaches_end, size)


def _locate(read: Read, index: OffsetIndex, extent: Extent, request: Request) -> tuple[int, int, bool]:
    """(position, size, whether the size reaches the end bound)."""
    position = request.position
    if position < 0:
        position = find(read, index, extent, request.offset)
    end = find(read, index, extent, request.end_offset)
    if end <= position:
        return position, 0, False
    size = fit(read, index, position, end, request.max_bytes, request.at_least_one)
    return position, size, position + size == end


class _Loader:
    """A read that continues in a thread. Holds a descriptor of its own."""

    __slots__ = (
        "_disk",
        "_extent",
        "_fd",
        "_file",
        "_files",
        "_is_cached",
        "_later_segments",
        "_request",
        "_segment",
        "_sent_from",
        "position",
    )

    def __init__(
        self, files: OpenFiles, segment: Segment, fd: int, request: Request, later_segments: Sequence[Segment]
    ) -> None:
        self._later_segments = deque(later_segments)
        self._files = files
        self._disk = disk = files.disk
        self._segment = segment
        self._extent = extent_of(segment)
        self._fd = disk.duplicate(fd)
        self._file = files.file_to_load(segment)
        self._sent_from = files.stored(segment)
        self._is_cached = False
        self._request = request
        self.position = 0
        """Of the records in the segment, once they have been found."""

    @property
    def segment(self) -> Segment:
        """The segment that is being read."""
        return self._segment

    @property
    def copied_bytes_limit(self) -> int:
        request = self._request
        return MAP_FROM_BYTES if request.at_least_one else min(request.max_bytes, MAP_FROM_BYTES)

    def run(self, use: Callable[[OffsetIndex, int, int], _T]) -> _T:
        """Find the position of the records, and return `use(index, position, size)`."""
        try:
            while True:
                try:
                    index = self._segment.index
                    if index is None:
                        index = self._segment.indexes()[0]
                    position, size, _ = _locate(self._pread, index, self._extent, self._request)
                except (CorruptIndex, PeerError):
                    index, time_index = self._segment.rebuild_indexes()
                    self._segment.index, self._segment.time_index = index, time_index
                    position, size, _ = _locate(self._pread, index, self._extent, self._request)
                if size or position < self._extent.size_bytes or not self._next_segment():
                    self.position = position
                    return use(index, position, size)
        except OSError as error:
            raise StorageError.of(f"reading {self._segment.path}", error) from error
        except (BadBatch, CorruptIndex, PeerError) as error:
            raise StorageError(f"{self._segment.path} is corrupt near offset {self._request.offset}: {error}") from None
        finally:
            self.close()

    def _next_segment(self) -> bool:
        """Continue with the next segment if compaction removed the offsets before it. False if there is none."""
        segment = self._segment
        segment.next_offset = min(segment.next_offset, self._request.offset)
        while self._later_segments and self._later_segments[0].base_offset < self._request.end_offset:
            segment = self._later_segments.popleft()
            if not segment.size_bytes:
                continue
            try:
                fd = self._disk.open_read(segment.path)
            except FileNotFoundError:
                return False  # the file was removed meanwhile; the next request finds the current one
            self._disk.close(self._fd)
            self._segment, self._extent, self._fd = segment, extent_of(segment), fd
            self._file, self._sent_from = self._disk.file_to_load(fd), self._disk.stored_file(fd)
            self._request = self._request._replace(position=-1)
            return True
        return False

    def _pread(self, position: int, size_bytes: int) -> bytes:
        disk, fd = self._disk, self._fd
        found = disk.pread(fd, size_bytes, position)
        while 0 < len(found) < size_bytes:
            more = disk.pread(fd, size_bytes - len(found), position + len(found))
            if not more:
                break
            found += more
        return found

    def copy(self, index: OffsetIndex, position: int, size_bytes: int) -> memoryview:
        return memoryview(self._pread(position, size_bytes)) if size_bytes else EMPTY

    def to_send(self, index: OffsetIndex, position: int, size_bytes: int) -> memoryview | FileSlice:
        if size_bytes < MAP_FROM_BYTES:
            return self.copy(index, position, size_bytes)
        stored = self._stored(position, size_bytes)
        if stored is None:
            return self._in_memory(index, position, size_bytes)
        cached_to = self._cached_to(stored)
        self._is_cached = cached_to > 0
        if self._is_cached:
            self._files.loads.cached(self._segment, position, cached_to)
        elif self._file is not None:
            self._files.loads.begun(self._segment, position)
            stored.begin_load(self._file)
        return stored

    def finish(self, stored: FileSlice) -> None:
        """Wait for records that `to_send` has begun to read, or another load. Raises StorageError."""
        self._load(stored, 0, stored.size_bytes)

    def load_ahead(self, stored: FileSlice) -> None:
        """Read what follows the records. Raises StorageError."""
        behind = self._extent.size_bytes - (stored.position + stored.size_bytes)
        if not self._is_cached and behind > 0:
            self._load(stored, stored.size_bytes, stored.size_bytes + min(behind, LOAD_AHEAD_BYTES))

    def _load(self, stored: FileSlice, start: int, end: int) -> None:
        try:
            stored.load(start, end, self._file)
        except OSError as error:
            raise StorageError.of("reading records", error) from error
        if not self._is_cached:
            self._files.loads.loaded(self._segment, stored.position, stored.position + end)

    def _stored(self, position: int, size_bytes: int) -> FileSlice | None:
        """The records, to be sent from their file; None if that is not possible."""
        if self._file is None:
            return None
        if self._sent_from is not None:
            return FileSlice(self._sent_from, position, size_bytes)
        before = position % PAGE_BYTES
        window = self._disk.map(self._fd, position - before, before + size_bytes + SYSTEM_AHEAD_BYTES)
        return window.file_slice(self._file, before, before + size_bytes) if window is not None else None

    def _cached_to(self, stored: FileSlice) -> int:
        """0 if some of the records are not in the page cache, or some of what the system would have read ahead of them.
        Else the end of what is; everything that will be appended belongs to it, but the end of a sealed segment proves
        nothing."""
        segment_end = self._extent.size_bytes
        end = min(stored.position + stored.size_bytes + SYSTEM_AHEAD_BYTES, segment_end)
        if end == segment_end and self._segment.sealed:
            return 0
        size_bytes = end - stored.position
        # The last page first: of a cold range it is missing.
        if not (stored.is_resident(size_bytes - 1, size_bytes) and stored.is_resident(0, size_bytes)):
            return 0
        return sys.maxsize if end == segment_end else end

    def _in_memory(self, index: OffsetIndex, position: int, size_bytes: int) -> memoryview:
        """As many of the records as a load is guaranteed memory for: the reader requests the rest."""
        before, end = position % PAGE_BYTES, position + size_bytes
        window = self._disk.map(self._fd, position - before, before + size_bytes)
        size_bytes = fit(self._pread, index, position, end, MAP_FROM_BYTES, self._request.at_least_one)
        if window is not None and size_bytes > MAP_FROM_BYTES:
            # One batch, larger than the guarantee: it is sent from the page cache by its mapping.
            for start in range(0, size_bytes, MAP_FROM_BYTES):
                self._pread(position + start, min(MAP_FROM_BYTES, size_bytes - start))
            return window.slice(before, before + size_bytes)
        return self.copy(index, position, size_bytes)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._disk.close(fd)

    def __del__(self) -> None:
        self.close()


def loader(files: OpenFiles, segment: Segment, request: Request, later_segments: Sequence[Segment] = ()) -> _Loader:
    """`later_segments`: the segments that follow, in case compaction removed the offset from the end of this one."""
    fd = segment.fd if segment.fd >= 0 else files.open(segment)
    return _Loader(files, segment, fd, request, later_segments)
