"""A write that replaces rows of equal keys (`upsertKeys`).

Owns the check of the key columns and the merge itself: one commit with the batch's transaction id, so a replayed batch
changes nothing (it finds its id) and a crash before the commit leaves the table unchanged. The tasks' files are only
read here and never become part of the table. Null equals null. A batch with two rows of one key is rejected: Spark does
not define which of them is newer. The merge is delta-rs': it reads the files that may have the keys, in the process
that commits, and writes change data if the table has a change data feed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from fenceline.errors import OperatorError
from pyspark_fenceline.delta.files import DataFile, file_system
from pyspark_fenceline.delta.options import DeltaOptions
from pyspark_fenceline.delta.table_files import rows_of_file

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable
    from pyspark.sql.types import StructType

_MAX_SHOWN: Final = 3


def check_keys(options: DeltaOptions, schema: StructType, *, overwrite: bool) -> None:
    """Raises `OperatorError` if the DataFrame has no such column, or one that cannot be compared."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if not options.upsert_keys:
        return
    if overwrite:
        raise OperatorError(
            "Option 'upsertKeys' requires append mode: complete mode and overwrite replace all rows",
            "Remove the option, or write with outputMode('append') or mode('append').",
        )
    known = {field.name.lower(): field for field in schema}
    for name in options.upsert_keys:
        field = known.get(name.lower())
        if field is None:
            raise OperatorError(
                f"Option 'upsertKeys' names column {name}, which the DataFrame does not have",
                f"Its columns: {', '.join(field.name for field in schema)}.",
            )
        if isinstance(field.dataType, ArrayType | MapType | StructType):
            raise OperatorError(f"Column {name} of type {field.dataType.simpleString()} cannot be a key")


def upsert(options: DeltaOptions, table: DeltaTable, files: Sequence[DataFile], properties: CommitProperties) -> None:
    """Merge the rows of `files` in one commit. Raises `OperatorError` if two of them have the same key, and
    CommitFailedError as `commit_entry`.
    """
    import pyarrow as pa

    target = {field.name: field for field in pa.schema(table.schema())}
    names = {name.lower(): name for name in target}
    keys = [names[name.lower()] for name in options.upsert_keys]
    _refuse_duplicates(options, files, pa.schema([target[name] for name in keys]))
    given = {name for file in files for name in _columns_of(options, file)}
    schema = pa.schema([field for name, field in target.items() if name in given])
    source = pa.RecordBatchReader.from_batches(schema, _rows(options, files, schema))
    condition = " AND ".join(f"(t.{_quoted(name)} IS NOT DISTINCT FROM s.{_quoted(name)})" for name in keys)
    columns = {_quoted(field.name): f"s.{_quoted(field.name)}" for field in schema}
    (
        table.merge(source, condition, source_alias="s", target_alias="t", commit_properties=properties)
        .when_matched_update(columns)
        .when_not_matched_insert(columns)
        .execute()
    )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _columns_of(options: DeltaOptions, file: DataFile) -> set[str]:
    import pyarrow.parquet as pq

    return {*pq.read_schema(file_system(options).open_input_file(file.path)).names, *file.partition_values}


def _rows(options: DeltaOptions, files: Sequence[DataFile], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """All rows of the tasks' files, in the table's columns."""
    for file in files:
        yield from rows_of_file(options, file.path, file.partition_values, schema)


def _refuse_duplicates(options: DeltaOptions, files: Sequence[DataFile], keys: pa.Schema) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = pa.Table.from_batches(_rows(options, files, keys), keys)
    counts = rows.group_by(keys.names).aggregate([([], "count_all")])
    twice = counts.filter(pc.greater(counts["count_all"], 1))
    if twice.num_rows:
        found: list[dict[str, Any]] = twice.slice(0, _MAX_SHOWN).select(keys.names).to_pylist()
        raise OperatorError(
            f"{twice.num_rows} keys ({', '.join(keys.names)}) have several rows in one batch, and their order is "
            f"undefined: {'; '.join(map(str, found))}",
            "Reduce the batch to one row per key first: aggregate, or in foreachBatch keep the row with the highest "
            "offset of each key.",
        )
