"""Spark schemas from text without a JVM (`StructType.fromDDL` needs one)."""

from __future__ import annotations

import re

from pyspark.sql import types
from pyspark.sql.types import DataType, StructField, StructType

_NAMES: dict[str, DataType] = {
    "int": types.IntegerType(),
    "long": types.LongType(),
    "double": types.DoubleType(),
    "boolean": types.BooleanType(),
    "string": types.StringType(),
    "binary": types.BinaryType(),
    "date": types.DateType(),
    "timestamp": types.TimestampType(),
    "interval day": types.DayTimeIntervalType(),
}


def struct(text: str) -> StructType:
    """`name type [not null], ...`; types are plain ones, `decimal(p,s)` and `array<type>`."""
    fields = []
    for column in re.split(r",\s*(?![^(]*\))", text):
        name, kind = column.strip().split(" ", 1)
        required = kind.endswith(" not null")
        fields.append(StructField(name, _type(kind.removesuffix(" not null")), not required))
    return StructType(fields)


def _type(text: str) -> DataType:
    if text.startswith("array<"):
        return types.ArrayType(_type(text[6:-1]))
    number = re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", text)
    return types.DecimalType(int(number[1]), int(number[2])) if number else _NAMES[text]
