"""The open descriptors, mapped windows and large indexes of all logs of a node. Bounded; evicts the least recently
used.

Owns the limits and the windows. Never closes what a slice or a running piece of work still needs: slices keep their
mapping alive, work holds a duplicate of its descriptor. Belongs to the loop; threads open their own.

Larger reads are slices of mapped windows: aligned ranges of a segment that overlap, so that a read of up to
`WINDOW_OVERLAP_BYTES` never crosses a window's end. Windows are small and few because mapped pages count as resident
memory of the process, and mapping one again is cheap compared with copying the data.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from fenceline.log.core.disk import Disk, Mapping, StoredFile
from fenceline.log.core.recent_loads import RecentLoads

WINDOW_BYTES: Final = 4 << 20
WINDOW_OVERLAP_BYTES: Final = 2 << 20
MAX_FILES: Final = 1024
STORED_KEPT: Final = 128
"""Of each kind; others are opened again when they are needed."""


class Releasable(Protocol):
    """The part of a segment that is used here."""

    fd: int
    path: str
    recently_used: bool

    def release(self) -> None:
        """Close the descriptor and release what can be read again."""
        ...


class OpenFiles:
    """`max_files` descriptors, `max_mapped_bytes` of windows."""

    def __init__(self, disk: Disk, *, max_files: int = MAX_FILES, max_mapped_bytes: int = 64 << 20) -> None:
        assert max_files >= 1, "max_files must be at least 1"
        self.disk = disk
        self._max_files = max_files
        self._max_windows = max(1, max_mapped_bytes // (WINDOW_BYTES + WINDOW_OVERLAP_BYTES))
        self._open: dict[Releasable, None] = {}
        self._windows: dict[tuple[Releasable, int], Mapping] = {}
        self.loads: RecentLoads[Releasable] = RecentLoads()
        self._stored: dict[Releasable, StoredFile] = {}
        self._to_load: dict[Releasable, StoredFile] = {}

    @property
    def open_count(self) -> int:
        return len(self._open)

    @property
    def window_count(self) -> int:
        return len(self._windows)

    def open(self, segment: Releasable, *, create: bool = False) -> int:
        """The segment's descriptor, opened if needed; another one may be closed for it. Raises OSError."""
        if segment.fd >= 0:
            segment.recently_used = True
            return segment.fd
        fd = self.disk.open_append(segment.path) if create else _open_existing(self.disk, segment.path)
        segment.fd = fd
        segment.recently_used = True
        self._open[segment] = None
        # Second chance: a segment used since the last round moves to the end of the queue once.
        rounds = 2 * len(self._open)
        while len(self._open) > self._max_files and rounds:
            rounds -= 1
            oldest = next(iter(self._open))
            del self._open[oldest]
            if oldest is segment or oldest.recently_used:
                oldest.recently_used = False
                self._open[oldest] = None
                continue
            self._drop_windows(oldest)
            oldest.release()
        segment.recently_used = True
        return fd

    def close(self, segment: Releasable) -> None:
        """Forget a segment that was closed, deleted or replaced by another file."""
        self._open.pop(segment, None)
        self._drop_windows(segment)
        if segment.fd >= 0:
            self.disk.close(segment.fd)
            segment.fd = -1

    def close_all(self, segments: Iterable[Releasable]) -> None:
        """`close` of each; those that are not in use cost next to nothing."""
        with_windows = (segment for segment, _ in self._windows)
        in_use = {*self._open, *self.loads.segments(), *self._stored, *self._to_load, *with_windows}
        for segment in sorted(in_use.intersection(segments), key=lambda each: each.path):
            self.close(segment)

    def window(self, segment: Releasable, position: int) -> tuple[Mapping, int] | None:
        """The window that holds this position, and its start; None if mapping is not possible. Raises OSError."""
        number = position // WINDOW_BYTES
        key = (segment, number)
        found = self._windows.pop(key, None)
        if found is None:
            fd = segment.fd if segment.fd >= 0 else self.open(segment)
            found = self.disk.map(fd, number * WINDOW_BYTES, WINDOW_BYTES + WINDOW_OVERLAP_BYTES)
            if found is None:
                return None
            while len(self._windows) >= self._max_windows:
                del self._windows[next(iter(self._windows))]
        self._windows[key] = found
        return found, number * WINDOW_BYTES

    def stored(self, segment: Releasable) -> StoredFile | None:
        """The segment's file for slices that are sent without being read; None if that is not possible."""
        found = self._stored.get(segment)
        if found is None:
            found = self.disk.stored_file(segment.fd if segment.fd >= 0 else self.open(segment))
            _keep(self._stored, segment, found)
        return found

    def file_to_load(self, segment: Releasable) -> StoredFile | None:
        """The file through which the segment is read from the disk; None if that is not possible. All loads of a
        segment share one, so that the system sees their sequence."""
        found = self._to_load.pop(segment, None)
        if found is None:
            found = self.disk.file_to_load(segment.fd if segment.fd >= 0 else self.open(segment))
        _keep(self._to_load, segment, found)
        return found

    def _drop_windows(self, segment: Releasable) -> None:
        self.loads.forget(segment)
        self._stored.pop(segment, None)
        self._to_load.pop(segment, None)
        for key in [key for key in self._windows if key[0] is segment]:
            del self._windows[key]


def _keep(files: dict[Releasable, StoredFile], segment: Releasable, file: StoredFile | None) -> None:
    if file is not None:
        while len(files) >= STORED_KEPT:
            del files[next(iter(files))]
        files[segment] = file


def _open_existing(disk: Disk, path: str) -> int:
    if disk.stat(path) is None:
        raise FileNotFoundError(2, "segment is missing", path)
    return disk.open_append(path)
