"""Scans adjacent complete batches in pure Python: slower twin of `_batch_scan.pyx` with the same results.

Owns what makes a batch plain: neither the batch nor its position needs a message. `scan_plain` stops before the first
batch that is not plain, and the caller finds out why; so neither twin has messages. Never reads the records themselves.
"""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING, Final

from fenceline.records.batch import BATCH_OVERHEAD, CRC_COVERS_FROM, LENGTH_PREFIX, MAGIC
from fenceline.records.crc import crc32c

if TYPE_CHECKING:
    from typing_extensions import Buffer

ABI: Final = 2
"""Raised with every change of this interface, so that a stale build of the other twin is not used."""

COLUMNS: Final = (
    "position",
    "base_offset",
    "last_offset",
    "size_bytes",
    "leader_epoch",
    "crc",
    "attributes",
    "base_timestamp",
    "max_timestamp",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "record_count",
    "highest_timestamp",
)
"""Of a batch; all are int64. `highest_timestamp` is the highest of the batch and those before it in the same scan."""
TOTALS: Final = ("records", "gaps", "missing_offsets", "first_gap_row", "holes", "control_batches")
"""Of a scan. A gap lies between two batches, a hole within one that has fewer records than offsets. `first_gap_row` is
-1 if there is no gap."""

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_HIGHEST_OFFSET: Final = (1 << 63) - 2
_LOWEST_TIMESTAMP: Final = -(1 << 63)
_LAST_CODEC: Final = 4
_CONTROL: Final = 0x20
_MIN_RECORD_BYTES: Final = 7


def scan_plain(
    content: Buffer,
    start: int,
    end: int,
    position: int,
    rows: array[int],
    totals: array[int],
    next_offset: int,
    leader_epoch: int,
    check_crc: bool,
) -> int:
    """Describe the plain batches of `content[start:end]` in `rows`; returns their number.

    `rows` has room for the same number of values per column, one column after the other, and ends the scan when it is
    full. `position` is the file position of `start`; `next_offset` and `leader_epoch` are the lowest that the first
    batch may have.
    """
    totals[:] = array("q", (0, 0, 0, -1, 0, 0))
    capacity = len(rows) // len(COLUMNS)
    count = 0
    highest = _LOWEST_TIMESTAMP
    with memoryview(content) as view:
        while count < capacity and end - start >= BATCH_OVERHEAD:
            (
                base, length, epoch, magic, crc, attributes, delta, base_timestamp, max_timestamp, producer_id,
                producer_epoch, base_sequence, records,
            ) = _HEADER.unpack_from(view, start)  # fmt: skip
            size = length + LENGTH_PREFIX
            if magic != MAGIC or size < BATCH_OVERHEAD or size > end - start:
                break
            if base < next_offset or delta < 0 or base > _HIGHEST_OFFSET - delta or epoch < leader_epoch:
                break
            codec = attributes & 7
            if codec > _LAST_CODEC or not 0 <= records <= delta + 1:
                break
            if codec == 0 and records > (size - BATCH_OVERHEAD) // _MIN_RECORD_BYTES:
                break
            if check_crc and crc32c(view[start + CRC_COVERS_FROM : start + size]) != crc:
                break
            highest = max(highest, max_timestamp)
            rows[count::capacity] = array(
                "q",
                (
                    position, base, base + delta, size, epoch, crc, attributes, base_timestamp, max_timestamp,
                    producer_id, producer_epoch, base_sequence, records, highest,
                ),
            )  # fmt: skip
            if base > next_offset:
                if totals[1] == 0:
                    totals[3] = count
                totals[1] += 1
                totals[2] += base - next_offset
            totals[0] += records
            totals[4] += records <= delta
            totals[5] += attributes & _CONTROL != 0
            count += 1
            start += size
            position += size
            next_offset = base + delta + 1
            leader_epoch = epoch
    return count
