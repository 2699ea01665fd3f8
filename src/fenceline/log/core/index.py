"""The sparse indexes of one segment: offsets to positions, timestamps to offsets, aborted transactions.

Owns their entries and their bytes on disk (`formats.md F4`); never reads a batch. An offset entry is (last offset of a
batch, position where that batch starts), as Kafka writes it, so a look-up returns a position at or before the batch.
Offsets are relative to the segment's base. Entries are kept in flat arrays; files are written in one piece.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import le, lt
from typing import Final, NamedTuple

OFFSET_ENTRY_BYTES: Final = 8
TIME_ENTRY_BYTES: Final = 12
_LITTLE: Final = sys.byteorder == "little"
_TIME_ENTRY: Final = struct.Struct(">qi")
_ABORTED: Final = struct.Struct(">hqqqq")


class OffsetIndex:
    """Relative last offsets and positions, both strictly ascending."""

    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        self.offsets = array("i")
        self.positions = array("i")

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def size_bytes(self) -> int:
        return len(self.offsets) * OFFSET_ENTRY_BYTES

    def append(self, relative_offset: int, position: int) -> None:
        # Append to the bisected array last: another thread may search it while the loop appends.
        self.positions.append(position)
        self.offsets.append(relative_offset)

    def floor(self, relative_offset: int) -> int:
        """Position of the last indexed batch that ends at or before this offset, else 0."""
        found = bisect_right(self.offsets, relative_offset)
        return self.positions[found - 1] if found else 0

    def around(self, relative_offset: int) -> tuple[int, int]:
        """(position of the last indexed batch that ends before the offset or 0, position of the next one or -1)."""
        found = bisect_left(self.offsets, relative_offset)
        return (
            self.positions[found - 1] if found else 0,
            self.positions[found] if found < len(self.positions) else -1,
        )

    def boundary_at_or_before(self, position: int) -> int:
        """The last indexed batch boundary that is not past `position`, else 0."""
        found = bisect_right(self.positions, position)
        return self.positions[found - 1] if found else 0

    def last_offset_from(self, position: int) -> int:
        """Relative last offset of the first indexed batch that begins at or after `position`, else -1."""
        found = bisect_left(self.positions, position)
        return self.offsets[found] if found < len(self.offsets) else -1

    def truncate_to_position(self, position: int) -> None:
        """Remove batches that start at or after `position`."""
        keep = bisect_left(self.positions, position)
        del self.offsets[keep:], self.positions[keep:]

    def encode(self) -> bytes:
        words = array("i", bytes(8 * len(self.offsets)))
        words[0::2] = self.offsets
        words[1::2] = self.positions
        if _LITTLE:
            words.byteswap()
        return words.tobytes()

    @classmethod
    def decode(cls, content: bytes) -> OffsetIndex | None:
        """None if the bytes are no index (wrong size, or entries not ascending)."""
        if len(content) % OFFSET_ENTRY_BYTES:
            return None
        words = array("i")
        words.frombytes(_without_zero_entries(content, OFFSET_ENTRY_BYTES))
        if _LITTLE:
            words.byteswap()
        index = cls()
        index.offsets, index.positions = words[0::2], words[1::2]
        return index if _rises(index.offsets) and _rises(index.positions) else None


class TimeIndex:
    """Largest timestamp so far and its relative offset; timestamps rise strictly."""

    __slots__ = ("offsets", "timestamps")

    def __init__(self) -> None:
        self.timestamps = array("q")
        self.offsets = array("i")

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def size_bytes(self) -> int:
        return len(self.offsets) * TIME_ENTRY_BYTES

    def maybe_append(self, timestamp_ms: int, relative_offset: int) -> None:
        """Kafka's rule: add an entry only for a higher timestamp, and only with a later offset."""
        if timestamp_ms < 0 or (self.timestamps and timestamp_ms <= self.timestamps[-1]):
            return
        if self.offsets and relative_offset < self.offsets[-1]:
            return
        self.offsets.append(relative_offset)
        self.timestamps.append(timestamp_ms)

    def floor(self, timestamp_ms: int) -> int:
        """Relative offset of the last entry with a timestamp not above this one, else 0."""
        found = bisect_right(self.timestamps, timestamp_ms)
        return self.offsets[found - 1] if found else 0

    @staticmethod
    def decode_entry(content: bytes) -> tuple[int, int]:
        """(timestamp, relative offset) of one entry of a file. Raises struct.error."""
        timestamp_ms, relative_offset = _TIME_ENTRY.unpack(content)
        return timestamp_ms, relative_offset

    @property
    def last(self) -> tuple[int, int]:
        """(timestamp, relative offset) of the last entry, (-1, 0) if empty."""
        return (self.timestamps[-1], self.offsets[-1]) if self.timestamps else (-1, 0)

    def truncate_to_offset(self, relative_offset: int) -> None:
        """Remove entries at or after this offset."""
        keep = bisect_left(self.offsets, relative_offset)
        del self.offsets[keep:], self.timestamps[keep:]

    def encode(self) -> bytes:
        count = len(self.offsets)
        halves = array("i")
        stamps = self.timestamps[:]
        offsets = self.offsets[:]
        if _LITTLE:
            stamps.byteswap()
            offsets.byteswap()
        halves.frombytes(stamps.tobytes())
        words = array("i", bytes(TIME_ENTRY_BYTES * count))
        words[0::3] = halves[0::2]
        words[1::3] = halves[1::2]
        words[2::3] = offsets
        return words.tobytes()

    @classmethod
    def decode(cls, content: bytes) -> TimeIndex | None:
        """None if the bytes are no time index."""
        if len(content) % TIME_ENTRY_BYTES:
            return None
        words = array("i")
        words.frombytes(_without_zero_entries(content, TIME_ENTRY_BYTES))
        halves = array("i", bytes(8 * (len(words) // 3)))
        halves[0::2] = words[0::3]
        halves[1::2] = words[1::3]
        index = cls()
        index.timestamps.frombytes(halves.tobytes())
        index.offsets = words[2::3]
        if _LITTLE:
            index.timestamps.byteswap()
            index.offsets.byteswap()
        ordered = all(map(le, index.offsets, index.offsets[1:]))
        return index if ordered and _rises(index.timestamps) else None


class AbortedTransaction(NamedTuple):
    """One entry of `.txnindex`: offsets of the transaction's first record and of its marker, and the LSO after it."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def aborted_between(
    entries: Sequence[AbortedTransaction], offset: int, end_offset_exclusive: int
) -> tuple[list[AbortedTransaction], bool]:
    """The entries of one segment that concern these offsets, and whether no later segment has more (X42)."""
    found: list[AbortedTransaction] = []
    for position in range(bisect_left(entries, offset, key=_marker_offset), len(entries)):
        entry = entries[position]
        if entry.first_offset < end_offset_exclusive:
            found.append(entry)
        if entry.last_stable_offset >= end_offset_exclusive:
            return found, True
    return found, False


def insert_aborted(entries: list[AbortedTransaction], entry: AbortedTransaction) -> None:
    """Unless there is one for this marker."""
    at = bisect_left(entries, entry.last_offset, key=_marker_offset)
    if at == len(entries) or entries[at].last_offset != entry.last_offset:
        entries.insert(at, entry)


def _marker_offset(entry: AbortedTransaction) -> int:
    return entry.last_offset


def encode_aborted(entries: list[AbortedTransaction]) -> bytes:
    return b"".join(_ABORTED.pack(0, *entry) for entry in entries)


def decode_aborted(content: bytes) -> list[AbortedTransaction] | None:
    """None if the bytes are no transaction index."""
    if not are_aborted(content):
        return None
    return [AbortedTransaction(*fields) for _, *fields in _ABORTED.iter_unpack(content)]


def are_aborted(content: bytes) -> bool:
    """Whether the bytes are a transaction index: complete entries, of version 0."""
    size = _ABORTED.size
    return len(content) % size == 0 and not any(content[0::size]) and not any(content[1::size])


def _without_zero_entries(content: bytes, entry_bytes: int) -> bytes:
    """Drop the zeros at the end of a preallocated file that was never trimmed: they are no entries."""
    entries = -(-len(content.rstrip(b"\0")) // entry_bytes)
    return content[: entries * entry_bytes]


def _rises(values: array[int]) -> bool:
    return all(map(lt, values, values[1:]))
