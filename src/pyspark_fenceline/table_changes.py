"""What became of a table's rows between two of its versions, for whatever is derived from it.

Owns the reading of the table's own log: of each version the rows that came and the rows that went, net. A file that was
written anew without some of its rows counts as these rows alone, so an aggregate that adds what came and takes away
what went stays right through every repair. Reads only the files that changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fenceline.errors import OperatorError
from pyspark_fenceline.delta_files import file_system
from pyspark_fenceline.delta_options import DeltaOptions
from pyspark_fenceline.delta_table_files import open_parquet

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

CHANGE_TYPE: Final = "_change_type"
COMMIT_VERSION: Final = "_commit_version"


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A file that a version added or took out."""

    path: str
    partition_values: Mapping[str, str | None]


def changes(
    table: str,
    first_version: int,
    last_version: int | None = None,
    *,
    spark: SparkSession | None = None,
    storage: Mapping[str, str] | None = None,
) -> DataFrame:
    """Rows that came and went in versions `first_version` to `last_version` (both included; None: the newest one).

    The table's columns, `_change_type` ("insert" or "delete") and `_commit_version`. Where a version both adds and
    takes out, rows that are in both are in neither; columns of maps can not be compared then. Raises `OperatorError`
    where a version is not there any more, or vacuum has removed its files.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    from pyspark_fenceline.audit_work import the_session
    from pyspark_fenceline.delta_commit import open_table

    session = spark or the_session()
    options = DeltaOptions(table, storage=storage or None)
    opened = open_table(options)
    if opened is None:
        raise OperatorError(f"There is no Delta table at {table}", "Check the path, and the storage options.")
    schema = StructType.fromJson(json.loads(opened.schema().to_json()))
    newest = int(opened.version())
    found: DataFrame | None = None
    for version in range(first_version, (newest if last_version is None else min(last_version, newest)) + 1):
        added, removed = files_of_version(options, version)
        came, went = (_rows(session, options, schema, files) for files in (added, removed))
        if added and removed:
            came, went = came.exceptAll(went), went.exceptAll(came)
        for rows, kind, files in ((came, "insert", added), (went, "delete", removed)):
            if files:
                told = rows.withColumn(CHANGE_TYPE, f.lit(kind)).withColumn(COMMIT_VERSION, f.lit(version).cast("long"))
                found = told if found is None else found.unionByName(told)
    if found is None:
        nothing = _rows(session, options, schema, ())
        return nothing.withColumn(CHANGE_TYPE, f.lit("")).withColumn(COMMIT_VERSION, f.lit(0).cast("long"))
    return found


def files_of_version(options: DeltaOptions, version: int) -> tuple[list[ChangedFile], list[ChangedFile]]:
    """Files that a version added and took out, of those that change rows."""
    root = file_system(options)
    try:
        with root.open_input_stream(f"_delta_log/{version:020d}.json") as stream:
            lines = stream.read().decode().splitlines()
    except FileNotFoundError:
        raise OperatorError(
            f"The table at {options.path} does not know any more what its version {version} changed",
            "Compute what is derived from it anew, from the whole table.",
        ) from None
    sides: dict[str, list[ChangedFile]] = {"add": [], "remove": []}
    for line in lines:
        for kind, action in json.loads(line).items() if line.strip() else ():
            if kind in sides and action.get("dataChange", True):
                sides[kind].append(ChangedFile(action["path"], action.get("partitionValues") or {}))
    return sides["add"], sides["remove"]


def _rows(session: SparkSession, options: DeltaOptions, schema: Any, files: Sequence[ChangedFile]) -> DataFrame:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark_fenceline.schema import arrow_schema

        target = arrow_schema(schema)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _rows_of(options, files[number], target)

    numbers = session.range(0, len(files), 1, max(min(len(files), 64), 1))
    rows: DataFrame = numbers.mapInArrow(read, schema)
    return rows


def _rows_of(options: DeltaOptions, file: ChangedFile, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """All rows of a file in the table's columns; those that the file has not are null, or its partition's."""
    import pyarrow as pa

    for batch in open_parquet(options, file.path).iter_batches():
        columns = []
        for wanted in target:
            if wanted.name in batch.schema.names:
                columns.append(batch.column(wanted.name).cast(wanted.type))
            else:
                text = file.partition_values.get(wanted.name)
                value = pa.scalar(text, pa.string()).cast(wanted.type)
                columns.append(pa.repeat(value, batch.num_rows))
        yield pa.RecordBatch.from_arrays(columns, schema=target)
