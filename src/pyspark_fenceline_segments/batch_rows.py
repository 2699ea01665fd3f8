"""Batches of a segment as Arrow columns: a row for each batch, and one for each range of bytes that is no valid batch.

Owns the conversion of the scan's columns to Spark's; runs on executors. No Python object is created for a valid batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from fenceline.log.verify.segment import Flaw, Rows
from fenceline.records.batch import Codec
from pyspark_fenceline_segments.planning import SegmentFile

_CODECS: Final = pa.array([*(codec.name.lower() for codec in Codec), None, None, None])
_FARTHEST_MS: Final = (1 << 63) // 1000 - 1
_NAMES: Final = {"size": "size_bytes", "records": "record_count"}
"""Columns with another name in the scan."""


def plain_rows(file: SegmentFile, rows: Rows, target: pa.Schema, *, verified: bool) -> pa.RecordBatch:
    """In Spark's exact form (`pyspark.md S1`)."""
    made = [_column(field, file, rows, verified) for field in target]
    return pa.RecordBatch.from_arrays(made, schema=target)


def _column(field: pa.Field, file: SegmentFile, rows: Rows, verified: bool) -> pa.Array:
    count = rows.count

    def numbers(name: str) -> pa.Array:
        # A copy: the scan reuses its columns.
        return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(bytes(rows.column(name)))])

    def bits(mask: int) -> pa.Array:
        return pc.bit_wise_and(numbers("attributes"), mask)

    def same(value: Any) -> pa.Array:
        return pa.repeat(pa.scalar(value, field.type), count)

    match field.name:
        case "topic" | "partition" | "replica" | "evidence":
            return same(getattr(file, field.name))
        case "file":
            return same(file.path)
        case "crc_ok":
            return same(True if verified else None)
        case "problem":
            return same(None)
        case "codec":
            return _CODECS.take(bits(7))
        case "is_transactional":
            return pc.not_equal(bits(0x10), 0)
        case "is_control":
            return pc.not_equal(bits(0x20), 0)
        case "timestampType":
            return pc.not_equal(bits(0x08), 0).cast(field.type)
        case "base_timestamp" | "max_timestamp":
            return _micros(numbers(field.name)).cast(field.type)
    return numbers(_NAMES.get(field.name, field.name)).cast(field.type)


def _micros(stamps: pa.Array) -> pa.Array:
    """Null for -1 and for timestamps outside Spark's range."""
    fits = pc.and_(pc.greater_equal(stamps, 0), pc.less_equal(stamps, _FARTHEST_MS))
    return pc.multiply(pc.if_else(fits, stamps, pa.scalar(None, pa.int64())), 1000)


def flaw_row(file: SegmentFile, flaw: Flaw, target: pa.Schema) -> pa.RecordBatch:
    """The known fields of a range of bytes that is no valid batch; the rest is null."""
    header = flaw.header
    known: dict[str, Any] = {
        "topic": file.topic,
        "partition": file.partition,
        "replica": file.replica,
        "file": file.path,
        "evidence": file.evidence,
        "position": flaw.position,
        "size": flaw.end_position - flaw.position,
        "crc_ok": False if flaw.crc_ok is None else flaw.crc_ok,
        "problem": "; ".join(problem.message for problem in flaw.problems),
    }
    if header is not None:
        known |= {
            "base_offset": header.base_offset,
            "last_offset": _int64(header.last_offset),
            "leader_epoch": header.leader_epoch,
            "records": header.record_count,
            "codec": _CODECS[header.attributes & 7].as_py(),
            "is_transactional": header.is_transactional,
            "is_control": header.is_control,
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "base_sequence": header.base_sequence,
            "base_timestamp": _us(header.base_timestamp),
            "max_timestamp": _us(header.max_timestamp),
            "timestampType": header.timestamp_type.value,
            "crc": header.crc,
        }
    return pa.RecordBatch.from_arrays(
        [pa.array([known.get(field.name)], field.type) for field in target], schema=target
    )


def _us(stamp_ms: int) -> int | None:
    return stamp_ms * 1000 if 0 <= stamp_ms <= _FARTHEST_MS else None


def _int64(value: int) -> int | None:
    return value if value < 1 << 63 else None


def batch_rows(
    file: SegmentFile,
    walk: Iterable[Rows | Flaw],
    target: pa.Schema,
    *,
    verified: bool,
    is_reported: Callable[[Flaw], bool],
) -> Iterator[pa.RecordBatch]:
    """`is_reported`: whether a flaw gets a row."""
    for step in walk:
        if isinstance(step, Rows):
            yield plain_rows(file, step, target, verified=verified)
        elif is_reported(step):
            yield flaw_row(file, step, target)
