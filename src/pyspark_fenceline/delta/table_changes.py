"""`changes`: the rows inserted into and deleted from a table between two versions.

Owns the reading of the table's own log: the net inserted and deleted rows of each version. A file that was rewritten
without some of its rows counts as these rows only, so an aggregate that adds inserts and subtracts deletes stays
correct through every repair. Reads only the changed files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fenceline.errors import OperatorError
from pyspark_fenceline.common.execution import active_session, rows_of_pieces
from pyspark_fenceline.common.schema import CHANGE_TYPE
from pyspark_fenceline.delta.files import file_system
from pyspark_fenceline.delta.options import DeltaOptions
from pyspark_fenceline.delta.table_files import open_table, rows_of_file

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

COMMIT_VERSION: Final = "_commit_version"
_KINDS: Final = {"add": "insert", "remove": "delete"}
_MAX_TASKS: Final = 64


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A file that a version added or removed. `kind`: insert or delete. `has_vector`: it has a deletion vector."""

    path: str
    partition_values: Mapping[str, str | None]
    kind: str
    version: int
    has_vector: bool = False


def changes(
    table: str,
    first_version: int,
    last_version: int | None = None,
    *,
    spark: SparkSession | None = None,
    storage: Mapping[str, str] | None = None,
) -> DataFrame:
    """Rows inserted and deleted in versions `first_version` to `last_version` (both inclusive; None: the newest one).

    The table's columns, `_change_type` ("insert" or "delete") and `_commit_version`. If a version both adds and removes
    files, rows that are in both are left out; columns of maps cannot be compared then. Raises `OperatorError` if a
    version no longer exists, or vacuum has removed its files.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    session = spark or active_session()
    options = DeltaOptions(table, storage=storage or None)
    opened = open_table(options)
    if opened is None:
        raise OperatorError(f"There is no Delta table at {table}", "Check the path, and the storage options.")
    schema = StructType.fromJson(json.loads(opened.schema().to_json()))
    newest = int(opened.version())
    one_sided: list[ChangedFile] = []
    parts: list[DataFrame] = []
    for version in range(first_version, (newest if last_version is None else min(last_version, newest)) + 1):
        files = files_of_version(options, version)
        sides = {kind: [file for file in files if file.kind == kind] for kind in _KINDS.values()}
        if not all(sides.values()):
            one_sided += files
            continue
        inserted, deleted = (
            _rows(session, options, schema, sides[kind]).drop(CHANGE_TYPE) for kind in ("insert", "delete")
        )
        parts.append(inserted.exceptAll(deleted).withColumn(CHANGE_TYPE, f.lit("insert")))
        parts.append(deleted.exceptAll(inserted).withColumn(CHANGE_TYPE, f.lit("delete")))
    # Most versions only add: all of them are one job.
    found = _rows(session, options, schema, one_sided)
    for part in parts:
        found = found.unionByName(part)
    return found


def files_of_version(options: DeltaOptions, version: int) -> list[ChangedFile]:
    """Files that a version added and removed, except those without changed rows."""
    root = file_system(options)
    try:
        with root.open_input_stream(f"_delta_log/{version:020d}.json") as stream:
            lines = stream.read().decode().splitlines()
    except FileNotFoundError:
        raise OperatorError(
            f"The changes of version {version} of the table at {options.path} no longer exist",
            "Recompute derived data from the complete table.",
        ) from None
    return [
        ChangedFile(
            action["path"],
            action.get("partitionValues") or {},
            _KINDS[name],
            version,
            bool(action.get("deletionVector")),
        )
        for line in lines
        if line.strip()
        for name, action in json.loads(line).items()
        if name in _KINDS and action.get("dataChange", True)
    ]


def _rows(session: SparkSession, options: DeltaOptions, schema: Any, files: Sequence[ChangedFile]) -> DataFrame:
    """All rows of the files, with change type and version."""
    from pyspark.sql.types import LongType, StringType, StructType

    schema_with_change = StructType([*schema.fields]).add(CHANGE_TYPE, StringType()).add(COMMIT_VERSION, LongType())

    def read(number: int) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from pyspark_fenceline.common.schema import arrow_schema

        file = files[number]
        same = {CHANGE_TYPE: pa.scalar(file.kind), COMMIT_VERSION: pa.scalar(file.version)}
        return rows_of_file(options, file.path, file.partition_values, arrow_schema(schema_with_change), same)

    return rows_of_pieces(session, read, len(files), _MAX_TASKS, schema_with_change)
