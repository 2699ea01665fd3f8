"""Whether a DataFrame fits a Delta table, and the error if it does not.

Owns the translation of Spark's schema to Delta's (they share a JSON form) and the comparison with an existing table:
columns, types, partitioning, and writer features. Types must be equal; columns of the table that the DataFrame lacks
become null.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructType

from fenceline.errors import OperatorError

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable, Schema

_PLAIN_TYPES: Final = frozenset(
    {
        "byte",
        "short",
        "integer",
        "long",
        "float",
        "double",
        "boolean",
        "string",
        "binary",
        "date",
        "timestamp",
        "timestamp_ntz",
    }
)
WRITER_FEATURES: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "deletionVectors",
        "domainMetadata",
        "inCommitTimestamp-preview",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
"""Features that an append of this writer honours. Constraints and invariants only while a table has none (checked
below).
"""


@dataclass(frozen=True, slots=True)
class TableShape:
    """The columns of a table's files: partition columns (spelled as in the table) and the names of all columns."""

    partition_by: tuple[str, ...]
    column_names: tuple[str, ...]


def nullable(data_type: Any) -> Any:
    """The same type with every field nullable, as Delta tables written by Spark have them."""
    match data_type:
        case StructType():
            made = StructType()
            for field in data_type:
                made.add(field.name, nullable(field.dataType), True)
            return made
        case ArrayType():
            return ArrayType(nullable(data_type.elementType), True)
        case MapType():
            return MapType(nullable(data_type.keyType), nullable(data_type.valueType), True)
    return data_type


def delta_schema(schema: StructType) -> Schema:
    """Delta's schema for a DataFrame's. Raises `OperatorError` for a type that Delta does not have."""
    from deltalake import Schema

    plain = nullable(schema)
    for field in plain:
        _require_known(field.name, field.dataType)
    return Schema.from_json(plain.json())


def _require_known(name: str, data_type: DataType) -> None:
    match data_type:
        case StructType():
            for field in data_type:
                _require_known(f"{name}.{field.name}", field.dataType)
        case ArrayType():
            _require_known(f"{name}.element", data_type.elementType)
        case MapType():
            _require_known(f"{name}.key", data_type.keyType)
            _require_known(f"{name}.value", data_type.valueType)
        case _:
            text = data_type.typeName()
            if text not in _PLAIN_TYPES and text != "decimal":
                raise OperatorError(
                    f"Column {name} has type {data_type.simpleString()}, which a Delta table cannot hold",
                    "Cast the column to a string, a number or another plain type.",
                )


def new_shape(schema: StructType, partition_by: Sequence[str]) -> TableShape:
    """The shape of a new table. Raises `OperatorError` for invalid partition columns."""
    names = {field.name.lower(): field for field in schema}
    if len(names) != len(schema):
        raise OperatorError("The DataFrame has two columns whose names differ only in case", "Rename one of them.")
    if not names:
        raise OperatorError("The DataFrame has no columns", "Select at least one.")
    chosen = []
    for name in partition_by:
        field = names.get(name.lower())
        if field is None:
            raise OperatorError(
                f"partitionBy names column {name}, which the DataFrame does not have",
                f"Its columns: {', '.join(field.name for field in schema)}.",
            )
        if isinstance(field.dataType, StructType | ArrayType | MapType | BinaryType):
            raise OperatorError(f"Column {name} of type {field.dataType.simpleString()} cannot be a partition column")
        chosen.append(field.name)
    if len(chosen) == len(schema):
        raise OperatorError("All columns are partition columns", "Leave at least one column for the files.")
    return TableShape(tuple(chosen), tuple(field.name for field in schema))


def fit(
    table: DeltaTable, schema: StructType, partition_by: Sequence[str], path: str, *, may_grow: bool = False
) -> TableShape:
    """The shape for writing a DataFrame into an existing table. Raises `OperatorError` that lists what does not fit.
    With `may_grow` columns that the table lacks are allowed: the commit adds them (`new_columns`).
    """
    _require_writable(table, path)
    own = {field["name"].lower(): field for field in json.loads(table.schema().to_json())["fields"]}
    problems = []
    names = []
    for field in json.loads(nullable(schema).json())["fields"]:
        known = own.get(field["name"].lower())
        if known is None:
            names.append(field["name"])
            if not may_grow:
                problems.append(
                    f"column {field['name']} ({_name(field['type'])}) is not in the table"
                    " (option mergeSchema=true adds it)"
                )
            continue
        names.append(known["name"])
        if _bare(known["type"]) != _bare(field["type"]):
            problems.append(
                f"column {field['name']} is {_name(field['type'])} here and {_name(known['type'])} in the table"
            )
    given = {name.lower() for name in names}
    problems += [
        f"column {field['name']} of the table must not be null and is missing here"
        for lower, field in own.items()
        if lower not in given and not field["nullable"]
    ]
    existing = tuple(table.metadata().partition_columns)
    if partition_by and tuple(name.lower() for name in partition_by) != tuple(name.lower() for name in existing):
        problems.append(f"partitionBy is {_listed(partition_by)} here and {_listed(existing)} in the table")
    problems += [f"partition column {name} is missing here" for name in existing if name.lower() not in given]
    if problems:
        raise OperatorError(
            f"The DataFrame does not fit the Delta table at {path}: {'; '.join(problems)}",
            "Select and cast the columns to the table's schema, or write to a new path.",
        )
    return TableShape(existing, tuple(names))


def new_columns(table: DeltaTable, schema: StructType) -> list[Any]:
    """Delta's fields for the columns of a DataFrame that the table lacks."""
    known = {field.name.lower() for field in table.schema().fields}
    return [field for field in delta_schema(schema).fields if field.name.lower() not in known]


def required_columns(table: DeltaTable) -> frozenset[str]:
    """Top-level columns of a table that must not be null."""
    return frozenset(f["name"] for f in json.loads(table.schema().to_json())["fields"] if not f["nullable"])


def _require_writable(table: DeltaTable, path: str) -> None:
    protocol = table.protocol()
    features = set(protocol.writer_features or ())
    version = protocol.min_writer_version
    unknown = sorted(features - WRITER_FEATURES)
    configuration = table.metadata().configuration
    constraints = sorted(key for key in configuration if key.startswith("delta.constraints."))
    special = [
        field["name"]
        for field in json.loads(table.schema().to_json())["fields"]
        if any(key.startswith(("delta.invariants", "delta.generation", "delta.identity")) for key in field["metadata"])
    ]
    mapping = configuration.get("delta.columnMapping.mode", "none")
    reasons = []
    if unknown:
        reasons.append(f"it uses the writer features {', '.join(unknown)}")
    if version not in (1, 2, 3, 4, 5, 6, 7):
        reasons.append(f"it needs writer version {version}")
    if constraints:
        reasons.append(f"it has the constraints {', '.join(constraints)}")
    if special:
        reasons.append(f"columns {', '.join(special)} are generated, identities or have invariants")
    if mapping != "none":
        reasons.append(f"its columns are mapped by {mapping}")
    if reasons:
        raise OperatorError(
            f"format('fenceline_delta') cannot write to the Delta table at {path}: {'; '.join(reasons)}",
            "Write to a table without these, or use Delta's own writer.",
        )


def _bare(data_type: Any) -> Any:
    """A type without nullability and metadata, for comparison."""
    if not isinstance(data_type, dict):
        return data_type
    match data_type["type"]:
        case "struct":
            return ("struct", tuple((field["name"].lower(), _bare(field["type"])) for field in data_type["fields"]))
        case "array":
            return ("array", _bare(data_type["elementType"]))
        case "map":
            return ("map", _bare(data_type["keyType"]), _bare(data_type["valueType"]))
    return json.dumps(data_type, sort_keys=True)


def _name(data_type: Any) -> str:
    if not isinstance(data_type, dict):
        return str(data_type)
    match data_type["type"]:
        case "struct":
            return "struct<" + ", ".join(f"{f['name']}: {_name(f['type'])}" for f in data_type["fields"]) + ">"
        case "array":
            return f"array<{_name(data_type['elementType'])}>"
        case "map":
            return f"map<{_name(data_type['keyType'])}, {_name(data_type['valueType'])}>"
    return str(data_type["type"])


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "nothing"


def file_schema(schema: StructType, shape: TableShape) -> pa.Schema:
    """Arrow schema of a table's data files: the table's spelling, without partition columns, times in UTC."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    arrow = to_arrow_schema(nullable(schema), timezone="UTC")
    fields = [field.with_name(name) for field, name in zip(arrow, shape.column_names, strict=True)]
    return pa.schema([field for field in fields if field.name not in shape.partition_by])
