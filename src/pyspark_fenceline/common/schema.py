"""The source's columns, as Spark's and as Arrow's schema.

Owns the schema of Spark's Kafka source (`pyspark.md S28`), the opt-in columns `leader_epoch` and `_change_type`, and
the exact Arrow schema that Spark checks the first batch of a task against (S1), and the client's record batches in that
form. A user's schema may select columns,
because Spark does not push column selection down to Python sources: other columns are not sent to the JVM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from fenceline.errors import OperatorError

if TYPE_CHECKING:
    import pyarrow as pa

HEADERS_TYPE: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_COLUMNS: Final = (
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
)
_HEADERS: Final = StructField("headers", HEADERS_TYPE)
_LEADER_EPOCH: Final = StructField("leader_epoch", IntegerType())
CHANGE_TYPE: Final = "_change_type"
"""`insert`, or `delete` for a delivered row that the log lost: the values of Delta's change data feed."""
_CHANGE_TYPE: Final = StructField(CHANGE_TYPE, StringType())
_INSERTED: Final = {CHANGE_TYPE: "insert"}
_CLIENT_NAMES: Final = {"timestampType": "timestamp_type"}


def spark_schema(*, include_headers: bool, include_leader_epoch: bool, include_retractions: bool = False) -> StructType:
    """The columns of a read, in the order of Spark's Kafka source; `leader_epoch` and `_change_type` come last."""
    columns = list(_COLUMNS)
    if include_headers:
        columns.append(_HEADERS)
    if include_leader_epoch:
        columns.append(_LEADER_EPOCH)
    if include_retractions:
        columns.append(_CHANGE_TYPE)
    return StructType(columns)


def check_schema(
    schema: StructType, *, include_headers: bool, include_leader_epoch: bool, include_retractions: bool = False
) -> None:
    """Accept the source's own schema or a selection of its columns. Raises `OperatorError` for anything else."""
    every = spark_schema(include_headers=True, include_leader_epoch=True, include_retractions=True)
    known = {field.name: field for field in every}
    needs = {
        "headers": ("includeHeaders", include_headers),
        "leader_epoch": ("includeLeaderEpoch", include_leader_epoch),
        CHANGE_TYPE: ("includeRetractions", include_retractions),
    }
    for field in schema:
        own = known.get(field.name)
        if own is None or own.dataType != field.dataType:
            wanted = ", ".join(f"{column.name} {column.dataType.simpleString()}" for column in known.values())
            raise OperatorError(
                f"The fenceline source has no column {field.name} {field.dataType.simpleString()}; its schema is fixed",
                f"Remove the schema, or choose from: {wanted}.",
            )
        option, is_on = needs.get(field.name, ("", True))
        if not is_on:
            raise OperatorError(
                f"Column {field.name} needs the option {option}=true", f"Add .option('{option}', True)."
            )
    if not len(schema):
        raise OperatorError("The schema has no columns", "Remove it, or choose at least one column.")
    if include_retractions and CHANGE_TYPE not in schema.names:
        raise OperatorError(
            f"The schema has no column {CHANGE_TYPE}: retracted rows would be counted twice",
            f"Add {CHANGE_TYPE} STRING to it, or remove the option includeRetractions.",
        )


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema that Spark checks each task's first batch against, exactly."""
    return to_arrow_schema(schema, timezone="UTC")


def to_spark(batch: pa.RecordBatch, target: pa.Schema, constants: Mapping[str, object] = _INSERTED) -> pa.RecordBatch:
    """The client's columns in the order and with the names of Spark's schema. `constants`: columns with one value."""
    import pyarrow as pa

    columns = [
        pa.repeat(pa.scalar(constants[name], target.field(name).type), batch.num_rows)
        if name in constants
        else batch.column(_CLIENT_NAMES.get(name, name))
        for name in target.names
    ]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def client_columns(target: pa.Schema) -> dict[str, Any]:
    """The client's decoding options, so that nothing has to be cast afterwards."""
    return {
        "include_headers": "headers" in target.names,
        "include_leader_epoch": "leader_epoch" in target.names,
        "empty_headers_as_null": True,
        "timestamp_unit": "us",
    }
