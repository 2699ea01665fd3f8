"""One chunk of a segment: puts its keys into the map, or filters its batches.

Owns the batches that the kernel does not handle: compressed, control and transactional ones. Never reads or writes a
file.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Final, NamedTuple

from fenceline.log.compaction.kernel import (
    FULL,
    REST,
    SPECIAL,
    KeyOffsets,
    filter_chunk,
    filter_records,
    index_chunk,
    index_records,
)
from fenceline.log.compaction.transactions import CleanedTransactions
from fenceline.records.batch import (
    BATCH_OVERHEAD,
    BatchHeader,
    Codec,
    TimestampType,
    check_crc,
    peek_header,
    rewrite_header,
)
from fenceline.records.compression import compress
from fenceline.records.decode import decode_batch, records_of
from fenceline.records.errors import corrupt
from fenceline.records.kernel import append_record

_GROWTH: Final = 3
"""Maximum growth factor of a chunk: new base timestamps can enlarge records of a few bytes."""


class Kept(NamedTuple):
    """Batches that stay without records: a producer's last batch holds its sequence, and the last batch of the range
    holds its end."""

    ends: array[int]
    """Their last offsets, ascending."""
    marker_epochs: dict[int, int]
    """By producer without known records: the epoch of the marker that holds it."""

    def has(self, header: BatchHeader) -> bool:
        at = bisect_left(self.ends, header.last_offset)
        if at < len(self.ends) and self.ends[at] == header.last_offset:
            return True
        return header.is_control and self.marker_epochs.get(header.producer_id) == header.producer_epoch


class KeyIndexer:
    """Puts the keys of chunks into a map."""

    def __init__(self, keys: KeyOffsets, transactions: CleanedTransactions, from_offset: int) -> None:
        self._keys = keys
        self._transactions = transactions
        self._from_offset = from_offset
        self.is_full = False
        self.records = 0

    def index(self, chunk: memoryview) -> int:
        """Returns the number of bytes of complete batches that were indexed; all of them unless `is_full` is now set.

        Raises RecordsError.
        """
        position = 0
        while True:
            position, outcome, records = index_chunk(self._keys, chunk, position, len(chunk), self._from_offset)
            self.records += records
            if outcome == FULL:
                self.is_full = True
            if outcome != SPECIAL:
                return position
            header = peek_header(chunk, position)
            if not self._index_special(chunk[position : header.end_position], header._replace(position=0)):
                self.is_full = True
                return position
            position = header.end_position

    def _index_special(self, content: memoryview, header: BatchHeader) -> bool:
        check_crc(content, header)
        self.records += header.record_count
        if header.is_control:
            self._transactions.is_removable_marker(header, content)
        elif not self._transactions.is_aborted(header):
            payload, start, end = records_of(content, header)
            if not index_records(
                self._keys,
                payload,
                start,
                end,
                header.record_count,
                header.base_offset,
                header.last_offset_delta,
                self._from_offset,
            ):
                return False
        self._keys.end_offset = header.next_offset
        return True


class BatchFilter:
    """Writes the remaining batches of chunks."""

    def __init__(
        self, keys: KeyOffsets, transactions: CleanedTransactions, kept: Kept, *, now_ms: int, delete_retention_ms: int
    ) -> None:
        self._keys = keys
        self._transactions = transactions
        self._kept = kept
        self._now_ms = now_ms
        self._horizon_ms = now_ms + delete_retention_ms
        self._out = bytearray()
        self.records_before = 0
        self.records_after = 0
        self.batches_changed = 0
        """Includes removed batches."""

    def filter(self, chunk: memoryview) -> tuple[int, list[memoryview]]:
        """Returns the number of bytes of complete batches, and the parts of them that stay, valid until the next call.

        Raises RecordsError.
        """
        if len(self._out) < _GROWTH * len(chunk):
            self._out = bytearray(_GROWTH * len(chunk))
        out = self._out
        pieces: list[memoryview] = []
        position = start = 0
        while True:
            position, out_end, outcome, before, after, changed = filter_chunk(
                self._keys, chunk, position, len(chunk), out, start, self._kept.ends, self._now_ms, self._horizon_ms
            )
            self.records_before += before
            self.records_after += after
            self.batches_changed += changed
            if out_end > start:
                pieces.append(memoryview(out)[start:out_end])
                start = out_end
            if outcome == REST:
                return position, pieces
            header = peek_header(chunk, position)
            if outcome == FULL:  # the buffer has room for the largest possible result
                raise corrupt(f"the batch at offset {header.base_offset} cannot hold {header.record_count} records")
            piece = self._filter_special(chunk[position : header.end_position], header._replace(position=0))
            if piece is not None:
                pieces.append(piece)
            position = header.end_position

    def _filter_special(self, content: memoryview, header: BatchHeader) -> memoryview | None:
        self.records_before += header.record_count
        if header.is_control:
            found = self._filter_control(content, header)
        elif self._transactions.is_aborted(header):
            found = None
        elif header.base_offset >= self._keys.end_offset:
            found = content
        else:
            found = self._filter_records(content, header)
        if found is None and self._kept.has(header):
            found = (
                content if not header.record_count else memoryview(rewrite_header(content[:BATCH_OVERHEAD], records=0))
            )
        self.batches_changed += found is not content
        self.records_after += peek_header(found).record_count if found is not None else 0
        return found

    def _filter_control(self, content: memoryview, header: BatchHeader) -> memoryview | None:
        if not self._transactions.is_removable_marker(header, content):
            return content
        if not header.record_count or (header.has_delete_horizon and header.base_timestamp <= self._now_ms):
            return None
        if header.has_delete_horizon:
            return content
        check_crc(content, header)
        out = bytearray(content[:BATCH_OVERHEAD])
        for record in decode_batch(content, header):
            delta = record.offset - header.base_offset
            append_record(out, delta, record.timestamp - self._horizon_ms, record.key, record.value, record.headers)
        return memoryview(rewrite_header(out, records=header.record_count, horizon_ms=self._horizon_ms))

    def _filter_records(self, content: memoryview, header: BatchHeader) -> memoryview | None:
        check_crc(content, header)
        if not header.record_count:
            return None
        payload, start, end = records_of(content, header)
        found = filter_records(
            self._keys,
            payload,
            start,
            end,
            header.record_count,
            header.base_offset,
            header.last_offset_delta,
            header.base_timestamp,
            header.has_delete_horizon,
            self._now_ms,
            self._horizon_ms,
        )
        if found is None:
            return content
        records, max_timestamp, left, sets_horizon = found
        if not records:
            return None
        codec = header.codec
        packed = left if codec is Codec.NONE else compress(codec, left)
        made = rewrite_header(
            bytes(content[:BATCH_OVERHEAD]) + packed,
            records=records,
            max_timestamp=max_timestamp if header.timestamp_type is TimestampType.CREATE_TIME else None,
            horizon_ms=self._horizon_ms if sets_horizon else None,
        )
        return memoryview(made)
