"""Finds lost rows in a Delta table that holds the query's rows, and in files that were removed from it.

Owns the walk from a version of the table back through its log: files that a repair removed exist until they are
vacuumed. A row counts if its topic, partition, offset and leader epoch are those of the lost record; its other columns
must be the source's own. Never changes a table.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fenceline.errors import OperatorError
from pyspark_fenceline.common.log_columns import LEADER_EPOCH, OFFSET, PARTITION, TOPIC
from pyspark_fenceline.common.lost_ranges import EpochSpan, LostRange
from pyspark_fenceline.common.schema import CHANGE_TYPE, spark_schema
from pyspark_fenceline.delta.options import DeltaOptions
from pyspark_fenceline.delta.state import KEY, decode_state
from pyspark_fenceline.delta.table_changes import files_of_version
from pyspark_fenceline.delta.table_files import TableFile, open_table, read_log_columns, table_files
from pyspark_fenceline.source.kept_rows import KeptSpan, ParquetLocation, cover

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql.types import StructType

_IDENTITY: Final = (TOPIC, PARTITION, OFFSET, LEADER_EPOCH)


@dataclass(frozen=True, slots=True)
class TableFound:
    """The spans of each range that the table holds, in their order, and why rows are missing."""

    version: int
    spans: list[list[KeptSpan]]
    notes: tuple[str, ...] = ()


def check_columns(options: DeltaOptions, schema: StructType) -> None:
    """Raises `OperatorError` if the table exists and its rows cannot be those of a stream with `schema`."""
    table = open_table(options)
    if table is not None:
        _check_columns(table, options.path, schema)


def _check_columns(table: DeltaTable, path: str, schema: StructType) -> None:
    from pyspark.sql.types import StructType

    held = {field.name: field.dataType for field in StructType.fromJson(json.loads(table.schema().to_json()))}
    identity = [
        field for field in spark_schema(include_headers=False, include_leader_epoch=True) if field.name in _IDENTITY
    ]
    missing = [
        f"{field.name} {field.dataType.simpleString()}"
        for field in [*identity, *(field for field in schema if field.name not in (CHANGE_TYPE, *_IDENTITY))]
        if held.get(field.name) != field.dataType
    ]
    if missing:
        raise OperatorError(
            f"Rows cannot be retracted from the table at {path}: it has no column {', no column '.join(missing)}",
            "Name a table with the source's columns unchanged, or read fewer columns with .schema(...).",
        )


def find_in_table(
    options: DeltaOptions, version: int | None, lost: Sequence[LostRange], schema: StructType
) -> TableFound:
    """Find the rows of ranges. `version`: where the walk begins, None for the newest. Raises `OperatorError`."""
    table = open_table(options)
    if table is None:
        return TableFound(-1, [[] for _ in lost], (f"there is no table at {options.path}",))
    newest = int(table.version())
    if version is not None and version != newest:
        table = _at(table, options.path, version)
    _check_columns(table, options.path, schema)
    begin = newest if version is None else version
    spans: list[list[KeptSpan]] = [[] for _ in lost]
    vacuumed: list[str] = []
    entries = table.history()
    since = [_first_own_version(entries, one) for one in lost]
    open_ranges = set(range(len(lost)))
    for file, removed_in in _files(options, table, begin):
        if not open_ranges:
            break
        for index in sorted(open_ranges):
            if since[index] >= removed_in or not _may_hold(file, lost[index]):
                continue
            try:
                found = _spans_in(options, file, lost[index])
            except FileNotFoundError:
                vacuumed.append(file.path)
                continue
            spans[index] += found
            if found and not cover(lost[index], spans[index]).missing:
                open_ranges.remove(index)
    notes = [f"{len(set(vacuumed))} removed files of the table at {options.path} were vacuumed"] if vacuumed else []
    return TableFound(begin, spans, (*notes, f"the table at {options.path} has no such rows up to version {begin}"))


def _at(table: DeltaTable, path: str, version: int) -> DeltaTable:
    from deltalake.exceptions import DeltaError

    try:
        table.load_as_version(version)
    except (DeltaError, OSError) as error:
        raise OperatorError(
            f"Version {version} of the table at {path} no longer exists",
            "The batch must read retracted rows from it: start the query with a new checkpointLocation.",
        ) from error
    return table


def _first_own_version(entries: Sequence[Mapping[str, Any]], lost: LostRange) -> int:
    """The first version with rows of the range's own topic, by the topic ids in commits; rows that this commit removed
    belong to an older topic of that name."""
    for entry in entries:
        state = decode_state(entry.get(KEY))
        known_id = state.topic_ids.get(lost.topic_partition.topic) if state is not None else None
        if None not in (known_id, lost.topic_id) and known_id != lost.topic_id:
            return int(entry["version"]) + 1
    return 0


def _files(options: DeltaOptions, table: DeltaTable, version: int) -> Iterator[tuple[TableFile, float]]:
    """The files of the version, then those removed before, newest first, each with the version that removed it."""
    yield from ((file, math.inf) for file in table_files(table))
    for earlier in range(version, -1, -1):
        try:
            changed = files_of_version(options, earlier)
        except OperatorError:
            # The table's log starts later.
            return
        for file in changed:
            if file.kind == "delete":
                yield _bare(file.path, file.partition_values), earlier


def _bare(path: str, values: Mapping[str, str | None]) -> TableFile:
    """A file without statistics: only its partition values are known."""
    topic, partition = values.get(TOPIC), values.get(PARTITION)
    return TableFile(
        path,
        0,
        values,
        topics=None if topic is None else (topic, topic),
        partitions=None if partition is None else (int(partition), int(partition)),
    )


def _may_hold(file: TableFile, lost: LostRange) -> bool:
    return file.may_hold(lost.topic_partition) and file.may_hold_offsets(
        lost.start_offset, lost.end_offset_exclusive - 1
    )


def _spans_in(options: DeltaOptions, file: TableFile, lost: LostRange) -> list[KeptSpan]:
    """Offsets of the range in one file, by epoch. Raises FileNotFoundError."""
    import numpy as np

    columns = read_log_columns(options, file)
    if lost.topic_partition not in columns.partitions:
        return []
    own = columns.codes == columns.partitions.index(lost.topic_partition)
    place = ParquetLocation(options.path, options.storage, file.path, file.partition_values)
    found: list[KeptSpan] = []
    for wanted in lost.spans():
        inside = (columns.offsets >= wanted.start_offset) & (columns.offsets < wanted.end_offset_exclusive)
        offsets = np.unique(columns.offsets[own & inside & (columns.epochs == wanted.leader_epoch)])
        for run in np.split(offsets, np.flatnonzero(np.diff(offsets) != 1) + 1):
            if len(run):
                span = EpochSpan(int(run[0]), int(run[-1]) + 1, wanted.leader_epoch)
                found.append(KeptSpan(lost.topic_partition, span, place))
    return found
