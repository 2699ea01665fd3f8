"""Building record batches.

Owns the encoding of (timestamp, key, value, headers) as one batch. Never assigns offsets or epochs, only writes the
given ones: producers leave them at 0 and -1, the leader assigns them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from fenceline.records import kernel
from fenceline.records.batch import (
    BATCH_OVERHEAD,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    Codec,
    TimestampType,
    write_header,
)
from fenceline.records.compression import compress

Headers = Sequence[tuple[str, "bytes | None"]]
Row = tuple[int, "bytes | None", "bytes | None", Headers]
"""Timestamp in ms, key, value, headers."""

MAX_RECORD_OVERHEAD: Final = 21
"""Maximum size of a record without key, value and headers."""


class Record(NamedTuple):
    """One record as read; `offset` is absolute, `timestamp` in ms."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def build_batch(
    records: Sequence[Row],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
) -> bytearray:
    """One batch of `records`, at least one; offsets increase by one from `base_offset`."""
    if not records:
        raise ValueError("a batch needs at least one record")
    base_timestamp = records[0][0]
    out = bytearray(BATCH_OVERHEAD)
    _, max_timestamp = kernel.encode(out, records, base_timestamp)
    return finish_batch(
        out,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        codec=codec,
        level=level,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
        control=control,
        timestamp_type=timestamp_type,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        record_count=len(records),
    )


def finish_batch(
    out: bytearray,
    *,
    base_offset: int,
    leader_epoch: int,
    codec: Codec,
    level: int | None,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    transactional: bool,
    control: bool,
    timestamp_type: TimestampType,
    base_timestamp: int,
    max_timestamp: int,
    record_count: int,
    last_offset_delta: int | None = None,
) -> bytearray:
    """Turn `out` (61 bytes of room, then the encoded records) into a batch. Compresses the records and writes the
    header."""
    if codec is not Codec.NONE:
        with memoryview(out) as view:
            packed = compress(codec, view[BATCH_OVERHEAD:], level)
        out = bytearray(BATCH_OVERHEAD)
        out += packed
    write_header(
        out,
        size_bytes=len(out),
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        codec=codec,
        timestamp_type=timestamp_type,
        transactional=transactional,
        control=control,
        last_offset_delta=record_count - 1 if last_offset_delta is None else last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=record_count,
    )
    return out


class BatchBuilder:
    """A batch that grows record by record up to `max_size_bytes` (uncompressed, header included).

    The first record is always accepted: the broker decides whether it is too large.
    """

    __slots__ = ("_base_timestamp", "_max_timestamp", "_out", "max_size_bytes", "record_count")

    def __init__(self, max_size_bytes: int) -> None:
        self.max_size_bytes = max_size_bytes
        self.record_count = 0
        self._out = bytearray(BATCH_OVERHEAD)
        self._base_timestamp = 0
        self._max_timestamp = 0

    @property
    def size_bytes(self) -> int:
        """The uncompressed size of the batch."""
        return len(self._out)

    def try_append(self, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> bool:
        """Append the record, or return False with the builder unchanged if there is no room for it."""
        out = self._out
        before = len(out)
        if not self.record_count:
            self._base_timestamp = self._max_timestamp = timestamp
        elif before + (len(key) if key else 0) + (len(value) if value else 0) > self.max_size_bytes:
            return False
        kernel.append_record(out, self.record_count, timestamp - self._base_timestamp, key, value, headers)
        if self.record_count and len(out) > self.max_size_bytes:
            del out[before:]
            return False
        self.record_count += 1
        self._max_timestamp = max(self._max_timestamp, timestamp)
        return True

    def build(
        self,
        *,
        base_offset: int = 0,
        leader_epoch: int = -1,
        codec: Codec = Codec.NONE,
        level: int | None = None,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = -1,
        base_sequence: int = NO_SEQUENCE,
        transactional: bool = False,
        control: bool = False,
        timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    ) -> bytearray:
        """The batch, which must not be empty. The builder is empty afterwards and can be used again."""
        if not self.record_count:
            raise ValueError("a batch needs at least one record")
        batch = finish_batch(
            self._out,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            codec=codec,
            level=level,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            transactional=transactional,
            control=control,
            timestamp_type=timestamp_type,
            base_timestamp=self._base_timestamp,
            max_timestamp=self._max_timestamp,
            record_count=self.record_count,
        )
        self._out = bytearray(BATCH_OVERHEAD)
        self.record_count = 0
        return batch
