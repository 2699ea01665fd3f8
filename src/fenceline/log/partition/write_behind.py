"""Limits the page cache of a log that receives much data that is not read soon: a follower that is far behind.

Owns which ranges of a segment are written back early, and which may leave the page cache. Never decides which log that
is, and guarantees no durability: that is `flush.py`'s.

Without it the kernel keeps all of the data: so many pages become dirty that every write of the process waits for the
disk, data that others read is evicted, and each page is a new one, which can cost ten times the copy
(`docs/decisions/013-replication-speed.md`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Final

from fenceline.log.core.disk import Disk
from fenceline.log.core.segment import Segment
from fenceline.log.partition.state import LogState

PIECE_BYTES: Final = 4 << 20
"""Minimum size of one write-back."""
KEPT_BYTES: Final = 16 << 20
"""The newest bytes of a segment stay in memory: they are being written back, and the next reader wants them."""
AGAIN_BYTES: Final = 8 << 20
"""This much of the evicted range is hinted again: it may not have been on the disk yet."""


class WriteBehind:
    """Of one log; existing data is left alone."""

    __slots__ = ("_begun", "_first", "_log", "_segment")

    def __init__(self, partition_log: LogState) -> None:
        self._log = partition_log
        self._segment: Segment | None = None
        self._first = 0
        self._begun = 0
        """Write-back has started up to here."""
        segment = self._active_segment()
        if segment is not None:
            self._first = self._begun = segment.size_bytes

    def _active_segment(self) -> Segment | None:
        """The active segment."""
        segments = self._log.segments
        segment = segments[-1] if segments else None
        if segment is not self._segment:
            self._segment = segment
            self._first = self._begun = 0
        return segment

    def due(self) -> Callable[[], None] | None:
        """After an append: work for a thread, once enough was written. One at a time."""
        segment = self._active_segment()
        if segment is None or segment.fd < 0 or segment.size_bytes < self._begun + PIECE_BYTES:
            return None
        try:
            fd = segment.disk.duplicate(segment.fd)
        except OSError:
            return None  # no descriptor is left: it can wait
        begun, self._begun = self._begun, segment.size_bytes
        leaves_from = max(self._first, begun - KEPT_BYTES - AGAIN_BYTES)
        return partial(_run, segment.disk, fd, begun, self._begun, leaves_from)


def _run(disk: Disk, fd: int, begun: int, written: int, leaves_from: int) -> None:
    leaves_to = written - KEPT_BYTES
    try:
        # Hints: a disk error shows up when data is written.
        with contextlib.suppress(OSError):
            disk.start_writeback(fd, begun, written - begun)
            if leaves_to > leaves_from:
                disk.start_writeback(fd, leaves_from, leaves_to - leaves_from)
    finally:
        disk.close(fd)
