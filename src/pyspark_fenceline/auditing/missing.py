"""Which records without a row are really missing from the table.

Owns what an audit removes from its `missing` and `behind` findings: records that should have no row
(`auditing.transform`), and rows that were deleted on purpose, by an entry of the table's own log (`table_deletions`) or
according to the caller. The latter stay in the report, as `deleted`. Reads the log only in the ranges in question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.auditing.judge import ORDER, TableFinding, TableFindingKind, as_columns
from pyspark_fenceline.auditing.log import read_log
from pyspark_fenceline.auditing.ranges import Range, common, merged, outside, runs_in
from pyspark_fenceline.auditing.table_deletions import TableDeletions
from pyspark_fenceline.common.log_columns import OFFSET, PARTITION, TOPIC
from pyspark_fenceline.common.log_matching import LogEpochs

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

MISSING_KINDS: Final = (TableFindingKind.MISSING, TableFindingKind.BEHIND)
_BY_CALLER: Final = "named as deleted"
_KEY, _START, _END = "key", "start_offset", "end_offset_exclusive"


@dataclass(frozen=True, slots=True)
class DeletedRows:
    """Deleted rows named by the caller: ranges of offsets, and record keys by topic (None: any topic)."""

    ranges: Mapping[TopicPartition, Sequence[Range]] = field(default_factory=dict)
    keys: Mapping[str | None, frozenset[bytes]] = field(default_factory=dict)


def read_deleted_rows(deleted: str | DataFrame | pa.Table) -> DeletedRows:
    """Read a table as for `parse_deleted_rows`, or the file of one (`.csv`, `.json`, `.jsonl`, `.parquet`)."""
    import pyarrow as pa
    from pyarrow import csv, json, parquet

    if isinstance(deleted, pa.Table):
        return parse_deleted_rows(deleted)
    if not isinstance(deleted, str):
        return parse_deleted_rows(deleted.toArrow())
    readers: Mapping[str, Callable[[str], pa.Table]] = {
        "csv": csv.read_csv,
        "json": json.read_json,
        "jsonl": json.read_json,
        "parquet": parquet.read_table,
    }
    reader = readers.get(deleted.rsplit(".", 1)[-1].lower())
    if reader is None:
        raise OperatorError(
            f"Unsupported format of the file of deleted rows {deleted}", f"Use one of: {', '.join(sorted(readers))}."
        )
    try:
        return parse_deleted_rows(reader(deleted))
    except (OSError, pa.ArrowException) as error:
        raise OperatorError(f"The file of deleted rows {deleted} cannot be read: {error}") from error


def parse_deleted_rows(rows: pa.Table) -> DeletedRows:
    """`rows` has the columns topic, partition and offset, or topic, partition, start_offset and end_offset_exclusive,
    or key (and topic). Raises `OperatorError` for anything else.
    """
    import pyarrow as pa

    names = set(rows.column_names)
    if {TOPIC, PARTITION} <= names and (OFFSET in names or {_START, _END} <= names):
        spans: dict[TopicPartition, list[Range]] = {}
        for row in rows.to_pylist():
            start = row[OFFSET] if OFFSET in names else row[_START]
            end = row[OFFSET] + 1 if OFFSET in names else row[_END]
            spans.setdefault(TopicPartition(row[TOPIC], int(row[PARTITION])), []).append((int(start), int(end)))
        return DeletedRows({tp: merged(each) for tp, each in spans.items()})
    if _KEY in names:
        keys: dict[str | None, set[bytes]] = {}
        topics = rows.column(TOPIC).to_pylist() if TOPIC in names else [None] * rows.num_rows
        for topic, key in zip(topics, rows.column(_KEY).cast(pa.large_binary()).to_pylist(), strict=True):
            if key is not None:
                keys.setdefault(topic, set()).add(key)
        return DeletedRows(keys={topic: frozenset(each) for topic, each in keys.items()})
    raise OperatorError(
        f"The columns {', '.join(rows.column_names)} do not identify deleted rows",
        "Provide topic, partition and offset; or topic, partition, start_offset and end_offset_exclusive; or key.",
    )


def missing_ranges(findings: pa.Table) -> list[tuple[TopicPartition, int, int]]:
    """Ranges of records without a row."""
    return [(tp, one.start_offset, one.end_offset_exclusive) for tp, one in _absent(findings)]


def _absent(findings: pa.Table) -> list[tuple[TopicPartition, TableFinding]]:
    return [
        (TopicPartition(row["topic"], row["partition"]), _finding(row))
        for row in findings.to_pylist()
        if row["kind"] in MISSING_KINDS
    ]


def _finding(row: Mapping[str, Any]) -> TableFinding:
    start, end = row["start_offset"], row["end_offset_exclusive"]
    return TableFinding(TableFindingKind(row["kind"]), start, end, row["rows"], tuple(row["epochs"]), row["detail"])


def narrow_missing(
    findings: pa.Table,
    meant: Mapping[TopicPartition, Sequence[Range]] | None,
    deleted: Iterable[tuple[TopicPartition, Sequence[Range], str]],
) -> pa.Table:
    """`findings` without records that should have no row. `meant`: where the table should have rows, None for
    everywhere. `deleted`: ranges that were deleted, and by what.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    by_partition: dict[TopicPartition, list[tuple[Sequence[Range], str]]] = {}
    for tp, ranges, by in deleted:
        by_partition.setdefault(tp, []).append((ranges, by))
    left: list[tuple[str, int, TableFinding]] = []
    for tp, one in _absent(findings):
        still: list[Range] = [(one.start_offset, one.end_offset_exclusive)]
        if meant is not None:
            still = common(still, meant.get(tp, ()))
        for removed_ranges, by in by_partition.get(tp, ()):
            left += [
                (tp.topic, tp.partition, _part(one, *each, TableFindingKind.DELETED, by))
                for each in common(still, removed_ranges)
            ]
            still = [part for each in still for part in outside(common([each], removed_ranges), *each)]
        left += [(tp.topic, tp.partition, _part(one, *each, one.kind, one.detail)) for each in still]
    others = findings.filter(pc.invert(pc.is_in(findings["kind"], pa.array([str(kind) for kind in MISSING_KINDS]))))
    made = pa.table(as_columns(left), schema=findings.schema)
    return pa.concat_tables([others, made]).sort_by(list(ORDER))


def _part(one: TableFinding, start: int, end: int, kind: TableFindingKind, detail: str) -> TableFinding:
    return TableFinding(kind, start, end, end - start, one.epochs, detail)


def deleted_ranges(
    ranges: Sequence[tuple[TopicPartition, int, int]],
    by_table: TableDeletions,
    logs: Mapping[TopicPartition, LogEpochs],
    named: DeletedRows | None,
    client: Mapping[str, str],
    isolation_level: str,
) -> list[tuple[TopicPartition, Sequence[Range], str]]:
    """Which of these ranges were deleted, and by what."""
    found: list[tuple[TopicPartition, Sequence[Range], str]] = [
        (tp, one.of_records(logs[tp]), f"deleted by {one.by}") for tp, each in by_table.found.items() for one in each
    ]
    if named is not None:
        found += [(tp, spans, _BY_CALLER) for tp, spans in named.ranges.items()]
        if named.keys:
            found += [(tp, spans, _BY_CALLER) for tp, spans in _with_keys(ranges, named, client, isolation_level)]
    return found


def _with_keys(
    ranges: Sequence[tuple[TopicPartition, int, int]],
    named: DeletedRows,
    client: Mapping[str, str],
    isolation_level: str,
) -> list[tuple[TopicPartition, list[Range]]]:
    """Where in the ranges the log has records with the named keys."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    offsets: dict[TopicPartition, list[Any]] = {}
    for batch in read_log(client, ranges, isolation_level):
        for topic, keys in named.keys.items():
            chosen = pc.is_in(batch.column(_KEY).cast(pa.large_binary()), pa.array(sorted(keys), pa.large_binary()))
            if topic is not None:
                chosen = pc.and_(chosen, pc.equal(batch.column(TOPIC).cast(pa.string()), topic))
            rows = pa.table({name: batch.column(name) for name in (TOPIC, PARTITION, OFFSET)}).filter(chosen)
            for row in rows.to_pylist():
                offsets.setdefault(TopicPartition(row[TOPIC], row[PARTITION]), []).append(row[OFFSET])
    return [(tp, runs_in(np.array(each, dtype=np.int64))) for tp, each in offsets.items()]
