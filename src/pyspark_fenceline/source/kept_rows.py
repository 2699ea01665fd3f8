"""Files that still hold rows that a log lost, and how a Spark task reads them.

Owns the selection of pieces of files that cover a range, each offset once, and the reading of pieces in Spark's exact
form. A task returns every offset of its pieces or fails: if a file was moved or deleted, the batch is planned again.
Never searches for files (`kept_evidence`, `kept_table`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from pyspark.sql.datasource import InputPartition

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from fenceline.log.core.disk import OsDisk
from fenceline.log.core.scan import BadBatch, scan
from fenceline.records.batch import BatchHeader
from pyspark_fenceline.common import workers
from pyspark_fenceline.common.log_columns import LEADER_EPOCH, OFFSET, PARTITION, TOPIC
from pyspark_fenceline.common.lost_ranges import EpochSpan, LostRange
from pyspark_fenceline.common.schema import CHANGE_TYPE, arrow_schema, client_columns, to_spark
from pyspark_fenceline.delta.options import DeltaOptions
from pyspark_fenceline.delta.table_files import open_parquet, partition_value
from pyspark_fenceline.source.tasks import ReadPlan

if TYPE_CHECKING:
    import pyarrow as pa

ChangeType = Literal["insert", "delete"]
_BATCH_BYTES: Final = 8 << 20
_RECORDS_A_TASK: Final = 250_000
_AGAIN: Final = "Start the query again: it searches for them again."


@dataclass(frozen=True, slots=True)
class SegmentLocation:
    """A segment file. `position`: where the first batch of the rows begins."""

    path: str
    position: int


@dataclass(frozen=True, slots=True)
class ParquetLocation:
    """A file of a Delta table. `path`: relative to the table."""

    table: str
    storage: Mapping[str, str] | None = field(repr=False)
    path: str
    partition_values: Mapping[str, str | None]


Location = SegmentLocation | ParquetLocation


@dataclass(frozen=True, slots=True)
class KeptSpan:
    """Contiguous offsets of one epoch, in one file."""

    topic_partition: TopicPartition
    span: EpochSpan
    place: Location


@dataclass(frozen=True, slots=True)
class Cover:
    """`pieces`: each offset once, in order. `missing`: [start, end) offsets that are in no span."""

    pieces: tuple[KeptSpan, ...]
    missing: tuple[tuple[int, int], ...]


def cover(lost: LostRange, spans: Iterable[KeptSpan]) -> Cover:
    """Select pieces of `spans` that cover a range."""
    own = sorted((one for one in spans if one.topic_partition == lost.topic_partition), key=lambda one: one.span)
    pieces: list[KeptSpan] = []
    missing: list[tuple[int, int]] = []
    for wanted in lost.spans():
        kept = [one for one in own if one.span.leader_epoch == wanted.leader_epoch]
        at = wanted.start_offset
        while at < wanted.end_offset_exclusive:
            fits = [one for one in kept if one.span.start_offset <= at < one.span.end_offset_exclusive]
            if fits:
                best = max(fits, key=lambda one: one.span.end_offset_exclusive)
                end = min(best.span.end_offset_exclusive, wanted.end_offset_exclusive)
                pieces.append(KeptSpan(lost.topic_partition, EpochSpan(at, end, wanted.leader_epoch), best.place))
            else:
                later = [one.span.start_offset for one in kept if one.span.start_offset > at]
                end = min(min(later, default=wanted.end_offset_exclusive), wanted.end_offset_exclusive)
                _add(missing, at, end)
            at = end
    return Cover(tuple(pieces), tuple(missing))


def _add(ranges: list[tuple[int, int]], start: int, end: int) -> None:
    if ranges and ranges[-1][1] == start:
        ranges[-1] = (ranges[-1][0], end)
    else:
        ranges.append((start, end))


def joined(pieces: Sequence[KeptSpan]) -> list[tuple[int, int]]:
    """The [start, end) offsets of pieces, adjacent ones merged."""
    found: list[tuple[int, int]] = []
    for piece in pieces:
        _add(found, piece.span.start_offset, piece.span.end_offset_exclusive)
    return found


# Tasks ----------------------------------------------------------------------------------------------------------------


class KeptPartition(InputPartition):
    """One Spark task's pieces, and the change type of their rows."""

    def __init__(self, pieces: tuple[KeptSpan, ...], change_type: ChangeType) -> None:
        super().__init__(pieces)
        self.pieces = pieces
        self.change_type: ChangeType = change_type


def kept_partitions(pieces: Iterable[KeptSpan], change_type: ChangeType) -> list[KeptPartition]:
    """Pieces as tasks of about equal size."""
    tasks: list[list[KeptSpan]] = []
    room = 0
    for piece in pieces:
        if room <= 0:
            tasks.append([])
            room = _RECORDS_A_TASK
        tasks[-1].append(piece)
        room -= piece.span.end_offset_exclusive - piece.span.start_offset
    return [KeptPartition(tuple(task), change_type) for task in tasks]


def read_kept(plan: ReadPlan, partition: KeptPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task. Raises `OperatorError` if a file no longer holds what was planned."""
    target = arrow_schema(plan.schema)
    for piece in partition.pieces:
        match piece.place:
            case SegmentLocation() as place:
                rows = _segment_rows(piece, place, target)
                yield from (to_spark(batch, target, {CHANGE_TYPE: partition.change_type}) for batch in rows)
            case ParquetLocation() as place:
                yield _table_rows(piece, place, target, partition.change_type)
    workers.freeze_gc()


def _segment_rows(piece: KeptSpan, place: SegmentLocation, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    from fenceline.records.arrow import ArrowDecoder

    tp, span = piece.topic_partition, piece.span
    decoder = ArrowDecoder(**client_columns(target))
    at = span.start_offset
    for header, content in complete_batches(place.path, place.position):
        if at >= span.end_offset_exclusive:
            break
        if header.next_offset <= at:
            continue
        if header.leader_epoch != span.leader_epoch or not header.base_offset <= at < header.next_offset:
            break
        decoder.append(tp.topic, tp.partition, content, start_offset=at, end_offset_exclusive=span.end_offset_exclusive)
        at = header.next_offset
        if decoder.size_bytes >= _BATCH_BYTES:
            yield decoder.finish()
    if at < span.end_offset_exclusive:
        raise OperatorError(f"{place.path} no longer holds {_named(piece)}", _AGAIN)
    if decoder.row_count:
        yield decoder.finish()


def complete_batches(path: str, position: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The batches of a segment file from a position up to the first invalid bytes. Raises `OperatorError`."""
    disk = OsDisk()
    found = disk.stat(path)
    if found is None:
        raise OperatorError(
            f"This Spark task does not find {path}",
            f"Every worker must have the file at the same path as the driver. {_AGAIN}",
        )
    fd = disk.open_read(path)
    try:
        for one in scan(disk, fd, position, found.size_bytes, next_offset=0, crc_from_offset=0, full_content=True):
            yield one.header, one.content
    except BadBatch:
        # The caller reports what is missing.
        return
    finally:
        disk.close(fd)


def _table_rows(piece: KeptSpan, place: ParquetLocation, target: pa.Schema, change_type: ChangeType) -> pa.RecordBatch:
    """The piece's rows; the first one of duplicates."""
    import pyarrow as pa
    import pyarrow.compute as pc

    span = piece.span
    try:
        parquet = open_parquet(DeltaOptions(place.table, storage=place.storage), place.path)
    except FileNotFoundError:
        raise OperatorError(f"{place.path} of the table {place.table} no longer exists", _AGAIN) from None
    inside = set(parquet.schema_arrow.names)
    names = dict.fromkeys([*(name for name in target.names if name != CHANGE_TYPE), *_IDENTITY])
    table = parquet.read(columns=[name for name in names if name in inside])
    for name in names:
        if name not in inside:
            kind = target.field(name).type if name in target.names else _IDENTITY[name]()
            value = partition_value(place.partition_values.get(name), kind)
            table = table.append_column(name, pa.repeat(value, table.num_rows))
    is_one = pc.and_(
        pc.and_(
            pc.equal(table.column(TOPIC).cast(pa.string()), piece.topic_partition.topic),
            pc.equal(table.column(PARTITION).cast(pa.int32()), piece.topic_partition.partition),
        ),
        pc.and_(
            pc.equal(table.column(LEADER_EPOCH).cast(pa.int32()), span.leader_epoch),
            pc.and_(
                pc.greater_equal(table.column(OFFSET), span.start_offset),
                pc.less(table.column(OFFSET), span.end_offset_exclusive),
            ),
        ),
    )
    rows = table.filter(is_one)
    rows = rows.take(first_rows(rows.column(OFFSET)))
    if rows.num_rows != span.end_offset_exclusive - span.start_offset:
        raise OperatorError(f"{place.path} of the table {place.table} does not hold {_named(piece)}", _AGAIN)
    columns = [
        pa.repeat(pa.scalar(change_type, field.type), rows.num_rows)
        if field.name == CHANGE_TYPE
        else rows.column(field.name).combine_chunks().cast(field.type)
        for field in target
    ]
    return pa.RecordBatch.from_arrays(
        [one.combine_chunks() if isinstance(one, pa.ChunkedArray) else one for one in columns], schema=target
    )


def _int32() -> pa.DataType:
    import pyarrow as pa

    return pa.int32()


def _int64() -> pa.DataType:
    import pyarrow as pa

    return pa.int64()


def _string() -> pa.DataType:
    import pyarrow as pa

    return pa.string()


_IDENTITY: Final = {TOPIC: _string, PARTITION: _int32, OFFSET: _int64, LEADER_EPOCH: _int32}


def first_rows(offsets: pa.ChunkedArray) -> pa.Array:
    """Indexes of the first row of each offset, in ascending order of offsets."""
    import numpy as np
    import pyarrow as pa

    _, first = np.unique(offsets.to_numpy(), return_index=True)
    return pa.array(first)


def _named(piece: KeptSpan) -> str:
    span = piece.span
    return f"offsets {span.start_offset} to {span.end_offset_exclusive - 1} of {piece.topic_partition}"
