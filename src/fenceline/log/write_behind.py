"""Gives memory back while a log takes in much that nobody reads soon: a follower that is far behind.

Owns which stretch of a segment is on its way to the disk, and which may leave the page cache. Never decides whose log
that is, and promises nothing of durability: that is `flush.py`'s.

Left to itself the system keeps all of it: so much becomes dirty that every write of the process waits for the disk in
the end, what others read is driven out, and each page is one that was not in use before, which can cost ten times the
copy (`docs/decisions/013-replication-speed.md`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from fenceline.log.disk import Disk

if TYPE_CHECKING:
    from fenceline.log.partition_log import PartitionLog
    from fenceline.log.segment import Segment

PIECE_BYTES: Final = 4 << 20
"""What begins its way to the disk at a time, at least."""
KEPT_BYTES: Final = 16 << 20
"""The newest of a segment stay in memory: they are on their way to the disk, and the next reader wants these."""
AGAIN_BYTES: Final = 8 << 20
"""So much of what was to leave before is told again: it may not have been on the disk yet."""


class WriteBehind:
    """Of one log; what it held when this was made is left alone."""

    __slots__ = ("_begun", "_first", "_log", "_segment")

    def __init__(self, partition_log: PartitionLog) -> None:
        self._log = partition_log
        self._segment: Segment | None = None
        self._first = 0
        self._begun = 0
        """Up to here the segment is on its way."""
        segment = self._look()
        if segment is not None:
            self._first = self._begun = segment.size_bytes

    def _look(self) -> Segment | None:
        """The segment that is written."""
        segments = self._log.segments
        segment = segments[-1] if segments else None
        if segment is not self._segment:
            self._segment = segment
            self._first = self._begun = 0
        return segment

    def due(self) -> Callable[[], None] | None:
        """After an append: work for a thread, once enough was written. One at a time."""
        segment = self._look()
        if segment is None or segment.fd < 0 or segment.size_bytes < self._begun + PIECE_BYTES:
            return None
        try:
            fd = segment.disk.duplicate(segment.fd)
        except OSError:
            return None  # out of descriptors: it can wait
        begun, self._begun = self._begun, segment.size_bytes
        leaves_from = max(self._first, begun - KEPT_BYTES - AGAIN_BYTES)
        return partial(_run, segment.disk, fd, begun, self._begun, leaves_from)


def _run(disk: Disk, fd: int, begun: int, written: int, leaves_from: int) -> None:
    leaves_to = written - KEPT_BYTES
    try:
        # Hints: a disk that does not take them tells what is wrong with it when it is written.
        with contextlib.suppress(OSError):
            disk.let_go(fd, begun, written - begun)
            if leaves_to > leaves_from:
                disk.let_go(fd, leaves_from, leaves_to - leaves_from)
    finally:
        disk.close(fd)
