"""The columns of the segments source, one set for each mode. Owns names, types and the check of a user's schema."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from fenceline.errors import OperatorError
from pyspark_fenceline.common.schema import spark_schema
from pyspark_fenceline_segments.options import Mode

_WHERE: Final = (
    StructField("replica", StringType()),
    StructField("file", StringType()),
    StructField("evidence", BooleanType()),
)
_BATCHES: Final = (
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("base_offset", LongType()),
    StructField("last_offset", LongType()),
    StructField("leader_epoch", IntegerType()),
    StructField("records", IntegerType()),
    StructField("size", LongType()),
    StructField("codec", StringType()),
    StructField("is_transactional", BooleanType()),
    StructField("is_control", BooleanType()),
    StructField("producer_id", LongType()),
    StructField("producer_epoch", IntegerType()),
    StructField("base_sequence", IntegerType()),
    StructField("base_timestamp", TimestampType()),
    StructField("max_timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
    StructField("crc", LongType()),
    StructField("crc_ok", BooleanType()),
    StructField("problem", StringType()),
    StructField("position", LongType()),
    *_WHERE,
)
_FINDINGS: Final = (
    StructField("severity", StringType()),
    StructField("kind", StringType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("replica", StringType()),
    StructField("file", StringType()),
    StructField("position", LongType()),
    StructField("offset", LongType()),
    StructField("message", StringType()),
    StructField("advice", StringType()),
)


def full_schema(mode: Mode, *, include_headers: bool) -> StructType:
    match mode:
        case Mode.BATCHES:
            return StructType(list(_BATCHES))
        case Mode.FINDINGS:
            return StructType(list(_FINDINGS))
    return StructType([*spark_schema(include_headers=include_headers, include_leader_epoch=True), *_WHERE])


def check_choice(schema: StructType, mode: Mode, *, include_headers: bool) -> None:
    """Accept a selection of the mode's columns. Raises `OperatorError` for anything else."""
    own = {field.name: field for field in full_schema(mode, include_headers=include_headers)}
    for field in schema:
        if field.name not in own or own[field.name].dataType != field.dataType:
            wanted = ", ".join(f"{column.name} {column.dataType.simpleString()}" for column in own.values())
            raise OperatorError(
                f"In mode {mode.value} there is no column {field.name} {field.dataType.simpleString()}",
                f"Remove the schema, or choose from: {wanted}.",
            )
    if not len(schema):
        raise OperatorError("The schema has no columns", "Remove it, or choose at least one column.")
