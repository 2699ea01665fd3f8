"""The open descriptors, mapped windows and large indexes of all logs of a node. Bounded; evicts the least recently
used.

Owns the limits and the windows. Never closes what a slice or a running piece of work still needs: slices keep their
mapping alive, work holds a duplicate of its descriptor. Belongs to the loop; threads open their own.

Larger reads are slices of mapped windows: aligned ranges of a segment that overlap, so that a read of up to
`WINDOW_OVERLAP_BYTES` never crosses a window's end. Windows are small and few because mapped pages count as resident
memory of the process, and mapping one again is cheap compared with copying the data.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final, Protocol

from fenceline.log.core.disk import Disk, Mapping, StoredFile

WINDOW_BYTES: Final = 4 << 20
WINDOW_OVERLAP_BYTES: Final = 2 << 20
MAX_FILES: Final = 1024
LOADS_KEPT: Final = 64
STORED_KEPT: Final = 64
LOADING_S: Final = 10.0
"""For how long after a load pages of its segment may be on their way from the disk."""


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
        self._loaded: dict[Releasable, tuple[int, int, float]] = {}
        self._stored: dict[Releasable, StoredFile] = {}

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
        in_use = {*self._loaded, *self._stored, *(segment for segment, _ in self._windows)}
        for segment in [each for each in segments if each.fd >= 0 or each in in_use]:
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

    def was_loaded(self, segment: Releasable, position: int) -> bool:
        """Whether this position was part of the segment's last load: its pages were not touched since."""
        start, end, _ = self._loaded.get(segment, (0, 0, 0.0))
        return start <= position < end

    def may_be_loading(self, segment: Releasable) -> bool:
        """Whether pages of the segment may be on their way from the disk, which is seen in a mapping only."""
        found = self._loaded.get(segment)
        return found is not None and time.monotonic() - found[2] < LOADING_S

    def stored(self, segment: Releasable) -> StoredFile | None:
        """The segment's file for slices that are sent without being read; None if that is not possible."""
        found = self._stored.get(segment)
        if found is None:
            found = self.disk.stored_file(segment.fd if segment.fd >= 0 else self.open(segment))
            if found is not None:
                while len(self._stored) >= STORED_KEPT:
                    del self._stored[next(iter(self._stored))]
                self._stored[segment] = found
        return found

    def loaded(self, segment: Releasable, start: int, end: int) -> None:
        """Record the last loaded range of a segment (from any thread)."""
        self._loaded.pop(segment, None)
        self._loaded[segment] = start, end, time.monotonic()
        while len(self._loaded) > LOADS_KEPT:
            self._loaded.pop(next(iter(tuple(self._loaded))), None)

    def _drop_windows(self, segment: Releasable) -> None:
        self._loaded.pop(segment, None)
        self._stored.pop(segment, None)
        for key in [key for key in self._windows if key[0] is segment]:
            del self._windows[key]


def _open_existing(disk: Disk, path: str) -> int:
    if disk.stat(path) is None:
        raise FileNotFoundError(2, "segment is missing", path)
    return disk.open_append(path)
