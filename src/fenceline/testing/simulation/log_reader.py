"""Reads a log for the checks: from the bytes of the simulated disk, not with the node's own code.

Owns what was already read of each segment, so that reading the newest batches costs only these. A segment that was
truncated and rewritten is another object, and is read from its start.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from fenceline.log.core.segment import Segment
from fenceline.records.batch import iter_headers
from fenceline.testing.sim_disk import SimDisk
from fenceline.testing.simulation.world import StoredBatch


class _Read:
    """A segment up to a position."""

    __slots__ = ("batches", "ends", "position", "segment", "starts")

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.position = 0
        self.batches: list[StoredBatch] = []
        self.starts: list[int] = []
        self.ends: list[int] = []


class StoredBatches:
    """The batches of one log in one life of its process."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self._reads: dict[int, _Read] = {}
        """By base offset."""

    def between(self, segments: Sequence[Segment], start: int, end: int) -> list[StoredBatch]:
        """From the batch that contains `start`, or the first after it, to the last that begins below `end`."""
        found: list[StoredBatch] = []
        if not segments:
            return found
        first = len(segments) - 1
        if segments[first].base_offset > start:
            first = max(0, bisect_right(segments, start, key=lambda segment: segment.base_offset) - 1)
        for at in range(first, len(segments)):
            segment = segments[at]
            if segment.base_offset >= end:
                break
            read = self._read(segment)
            found += read.batches[bisect_right(read.ends, start) : bisect_left(read.starts, end)]
        return found

    def _read(self, segment: Segment) -> _Read:
        read = self._reads.get(segment.base_offset)
        size_bytes = segment.size_bytes
        if read is None or read.segment is not segment or read.position > size_bytes:
            read = self._reads[segment.base_offset] = _Read(segment)
        if read.position < size_bytes:
            content = self._disk.peek(segment.path, read.position, size_bytes) or b""
            for header in iter_headers(content):
                base_offset, next_offset = header.base_offset, header.next_offset
                batch = content[header.position : header.end_position]
                read.batches.append(StoredBatch(base_offset, next_offset, header.leader_epoch, batch))
                read.starts.append(base_offset)
                read.ends.append(next_offset)
            read.position += len(content)
        return read
