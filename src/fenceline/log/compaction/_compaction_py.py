"""The compaction kernel in pure Python: map of keys to offsets, and which records stay. Slower twin of
`_compaction.pyx`.

Owns the map from keys to their newest offsets, bounded by a number of keys, and the choice of the records of a batch
that stay. Knows no transactions and no codec: `compaction.filter` handles compressed batches, control batches and
transactional batches, and a chunk stops before each of them.

A record stays if its offset is at or past `KeyOffsets.end_offset`, the end of the range whose keys are all in the map.
It also stays if it has a key, the map has no newer record of that key, and it is not a tombstone past its delete
horizon (KIP-534: the batch has the delete horizon bit, and the horizon replaces its base timestamp). A batch keeps its
offsets, epoch and sequences whatever is removed from it; its CRC is checked before it is changed.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from fenceline.records._kernel_py import MIN_RECORD_BYTES, ParsedRecord, parse_record, wrap64
from fenceline.records.batch import (
    BATCH_OVERHEAD,
    BatchHeader,
    TimestampType,
    crc_is_valid,
    iter_headers,
    peek_header,
    rewrite_header,
)
from fenceline.records.errors import corrupt

if TYPE_CHECKING:
    from typing_extensions import Buffer

ABI: Final = 1
"""Raised with every change of this interface, so that a stale build of the other twin is not used."""
IS_NATIVE: Final = False
SLOT_BYTES: Final = 200
"""Approximate memory of one key in the map."""

REST: Final = 0
"""The rest of the chunk holds no complete batch, or nothing."""
SPECIAL: Final = 1
"""The next batch is compressed, transactional or a control batch."""
FULL: Final = 2
"""No room for the next batch: in the map of keys, or in the filter's output buffer."""

_SPECIAL_BITS: Final = 0x37
_GROWTH: Final = 12


class Tail(Protocol):
    def appended(
        self, base_offset: int, last_offset: int, max_timestamp_ms: int, size_bytes: int, interval_bytes: int
    ) -> None: ...


class KeyOffsets:
    """Newest offsets of up to `most_keys` keys; each key is identified by 128 bits of a keyed hash."""

    def __init__(self, most_keys: int, load_factor: float, secret: bytes) -> None:
        """`load_factor`: maximum load of the native twin's table. `secret`: 16 bytes that no client can know."""
        if most_keys < 1 or not 0 < load_factor <= 1 or len(secret) != 16:
            raise ValueError("room for one key at least, a load factor up to 1, and 16 secret bytes are needed")
        self.most_keys = most_keys
        self.end_offset = -1
        """End of the last batch whose keys are all in the map; the code that builds the map sets the start."""
        self._secret = secret
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def digest(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, digest_size=16, key=self._secret).digest()

    def put(self, key: bytes, offset: int) -> bool:
        """False if there is no room for another key."""
        digest = self.digest(key)
        if digest not in self._offsets and len(self._offsets) >= self.most_keys:
            return False
        self._offsets[digest] = offset
        return True

    def get(self, key: bytes) -> int:
        """-1 for an unknown key."""
        return self._offsets.get(self.digest(key), -1)


class Filtered(NamedTuple):
    """The records of a batch that stay, encoded. `sets_horizon`: their timestamps are now relative to the delete
    horizon."""

    records: int
    max_timestamp: int
    payload: bytes
    sets_horizon: bool


def index_chunk(keys: KeyOffsets, buf: Buffer, position: int, end: int, from_offset: int) -> tuple[int, int, int]:
    """Put the keys of complete batches into the map, for records at or after `from_offset`.

    Returns the position of the first batch that was not indexed, the reason (REST, SPECIAL, FULL) and the number of
    records. Raises RecordsError(CORRUPT_MESSAGE), also if a CRC does not match.
    """
    with memoryview(buf) as view:
        records = 0
        while end - position >= BATCH_OVERHEAD:
            header = peek_header(view, position)
            if header.size_bytes > end - position:
                break
            if header.last_offset >= from_offset:
                if header.attributes & _SPECIAL_BITS:
                    return position, SPECIAL, records
                _check(view, header)
                content = bytes(view[position + BATCH_OVERHEAD : header.end_position])
                if not index_records(
                    keys,
                    content,
                    0,
                    len(content),
                    header.record_count,
                    header.base_offset,
                    header.last_offset_delta,
                    from_offset,
                ):
                    return position, FULL, records
                records += header.record_count
                keys.end_offset = header.next_offset
            position = header.end_position
    return position, REST, records


def index_records(
    keys: KeyOffsets,
    buf: Buffer,
    start: int,
    end: int,
    count: int,
    base_offset: int,
    last_delta: int,
    from_offset: int,
) -> bool:
    """As `index_chunk`, for the uncompressed records of one batch. False if there is no room for all of its keys."""
    view = bytes(memoryview(buf)[start:end])
    for record, _, _ in _records(view, count, base_offset, last_delta):
        offset = base_offset + record.offset_delta
        if record.key is not None and offset >= from_offset and not keys.put(view[slice(*record.key)], offset):
            return False
    return True


def filter_chunk(
    keys: KeyOffsets,
    buf: Buffer,
    position: int,
    end: int,
    out: bytearray,
    out_position: int,
    kept_ends: array[int],
    now_ms: int,
    horizon_ms: int,
) -> tuple[int, int, int, int, int, int]:
    """Write the remaining parts of complete batches to `out`.

    `kept_ends`: last offsets, ascending, of batches that stay without records. `horizon_ms`: the delete horizon for
    tombstones that have none yet. Returns the position of the first batch that was not filtered, the end of the output,
    the reason, the number of records read and kept, and the number of batches that were changed or removed. Raises
    RecordsError.
    """
    seen = stayed = changed = 0
    with memoryview(buf) as view:
        while end - position >= BATCH_OVERHEAD:
            header = peek_header(view, position)
            if header.size_bytes > end - position:
                break
            if header.attributes & _SPECIAL_BITS:
                return position, out_position, SPECIAL, seen, stayed, changed
            if header.size_bytes + _GROWTH * max(0, header.record_count) > len(out) - out_position:
                return position, out_position, FULL, seen, stayed, changed
            before = content = bytes(view[position : header.end_position])
            stays = header.record_count
            if header.base_offset < keys.end_offset:
                _check(view, header)
                content, stays = _filtered(keys, before, header, kept_ends, now_ms, horizon_ms)
                changed += content is not before
            size = len(content)
            out[out_position : out_position + size] = content
            out_position += size
            seen += header.record_count
            stayed += stays
            position = header.end_position
    return position, out_position, REST, seen, stayed, changed


def _filtered(
    keys: KeyOffsets, content: bytes, header: BatchHeader, kept_ends: array[int], now_ms: int, horizon_ms: int
) -> tuple[bytes, int]:
    found = filter_records(
        keys,
        content,
        BATCH_OVERHEAD,
        len(content),
        header.record_count,
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp,
        header.has_delete_horizon,
        now_ms,
        horizon_ms,
    )
    if (found is not None and found[0] == 0) or not header.record_count:
        at = bisect_left(kept_ends, header.last_offset)
        is_kept = at < len(kept_ends) and kept_ends[at] == header.last_offset
        if is_kept and not header.record_count:
            return content, 0
        return (bytes(rewrite_header(content[:BATCH_OVERHEAD], records=0)) if is_kept else b""), 0
    if found is None:
        return content, header.record_count
    records, max_timestamp, payload, sets_horizon = found
    return (
        bytes(
            rewrite_header(
                content[:BATCH_OVERHEAD] + payload,
                records=records,
                max_timestamp=max_timestamp if header.timestamp_type is TimestampType.CREATE_TIME else None,
                horizon_ms=horizon_ms if sets_horizon else None,
            )
        ),
        records,
    )


def filter_records(
    keys: KeyOffsets,
    buf: Buffer,
    start: int,
    end: int,
    count: int,
    base_offset: int,
    last_delta: int,
    base_timestamp: int,
    has_horizon: bool,
    now_ms: int,
    horizon_ms: int,
) -> Filtered | tuple[int, int, bytes, bool] | None:
    """The uncompressed records of one batch that stay; None if the batch does not change. Raises RecordsError."""
    view = bytes(memoryview(buf)[start:end])
    without_tombstones = has_horizon and base_timestamp <= now_ms
    chosen: list[tuple[ParsedRecord, int, int]] = []
    tombstones, max_timestamp = 0, -(1 << 63)
    for record, begin, behind in _records(view, count, base_offset, last_delta):
        offset = base_offset + record.offset_delta
        if offset < keys.end_offset:
            if record.key is None or (record.value is None and without_tombstones):
                continue
            if offset < keys.get(view[slice(*record.key)]):
                continue
        chosen.append((record, begin, behind))
        tombstones += record.value is None
        max_timestamp = max(max_timestamp, wrap64(base_timestamp + record.timestamp_delta))
    sets_horizon = tombstones > 0 and not has_horizon
    if len(chosen) == count and not sets_horizon:
        return None
    payload = bytearray()
    for record, begin, behind in chosen:
        if sets_horizon and base_timestamp != horizon_ms:
            _put_with_delta(payload, view, record, begin, behind, record.timestamp_delta + base_timestamp - horizon_ms)
        else:
            payload += view[begin:behind]
    return Filtered(len(chosen), max_timestamp, bytes(payload), sets_horizon)


def tell_batches(buf: Buffer, end: int, segment: Tail, interval_bytes: int) -> None:
    """Call `segment.appended` for every batch in `buf[:end]`."""
    for header in iter_headers(buf, 0, end):
        segment.appended(
            header.base_offset, header.last_offset, header.max_timestamp, header.size_bytes, interval_bytes
        )


def _check(view: memoryview, header: BatchHeader) -> None:
    room = (header.size_bytes - BATCH_OVERHEAD) // MIN_RECORD_BYTES
    if header.last_offset_delta < 0 or header.base_offset < 0 or header.record_count < 0:
        raise corrupt(f"no batch begins where the one at offset {header.base_offset} should")
    if not crc_is_valid(view, header):
        raise corrupt(f"the checksum of the batch at offset {header.base_offset} is wrong")
    if header.record_count > room:
        raise corrupt(f"no batch begins where the one at offset {header.base_offset} should")


def _records(view: bytes, count: int, base_offset: int, last_delta: int) -> Iterator[tuple[ParsedRecord, int, int]]:
    """Each record with its start and end."""
    if not 0 <= count <= len(view) // MIN_RECORD_BYTES:
        raise corrupt(f"the batch at offset {base_offset} can not hold {count} records")
    position = 0
    for index in range(count):
        record, behind = parse_record(view, position, len(view), index)
        if not 0 <= record.offset_delta <= last_delta:
            raise corrupt(f"a record of the batch at offset {base_offset} lies outside of it")
        yield record, position, behind
        position = behind
    if position != len(view):
        raise corrupt(f"{len(view) - position} bytes are left behind the records at offset {base_offset}")


def _put_with_delta(
    out: bytearray, view: bytes, record: ParsedRecord, begin: int, behind: int, timestamp_delta: int
) -> None:
    """The record with another timestamp delta; everything after it is unchanged."""
    position = begin
    while view[position] & 0x80:
        position += 1
    attributes = view[position + 1]
    rest = position + 2
    while view[rest] & 0x80:
        rest += 1
    body = bytearray((attributes,))
    _put_varlong(body, wrap64(timestamp_delta))
    body += view[rest + 1 : behind]
    _put_varlong(out, len(body))
    out += body


def _put_varlong(out: bytearray, value: int) -> None:
    raw = ((value << 1) ^ (value >> 63)) & 0xFFFFFFFFFFFFFFFF
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
