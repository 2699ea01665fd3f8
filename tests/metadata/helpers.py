"""Random records, and a metadata log's values read from its files."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from fenceline.records.batch import BatchHeader
from fenceline.records.build import Record
from fenceline.records.decode import decode_all

_BOUNDS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}


def values_of(cls: type[Any]) -> st.SearchStrategy[Any]:
    """Any value of a dataclass declared with `kafka()`."""
    hints = typing.get_type_hints(cls)
    return st.builds(cls, **{field.name: _field(field, hints[field.name]) for field in dataclasses.fields(cls)})


def _field(field: dataclasses.Field[Any], hint: Any) -> st.SearchStrategy[Any]:
    (declared,) = field.metadata.values()
    kind, nullable = declared[0], declared[4]
    one = _scalar(kind.removeprefix("[]"), hint)
    values = st.lists(one, max_size=3).map(tuple) if kind.startswith("[]") else one
    return st.none() | values if nullable is not None else values


def _scalar(kind: str, hint: Any) -> st.SearchStrategy[Any]:
    if kind in _BOUNDS:
        limit = 1 << _BOUNDS[kind]
        return st.integers(-limit, limit - 1)
    simple: dict[str, st.SearchStrategy[Any]] = {
        "uint16": st.integers(0, 65535),
        "bool": st.booleans(),
        "float64": st.floats(allow_nan=False),
        "string": st.text(max_size=20),
        "bytes": st.binary(max_size=20),
        "uuid": st.uuids() | st.just(UUID(int=0)),
    }
    if kind in simple:
        return simple[kind]
    (inner,) = [part for part in typing.get_args(hint) if dataclasses.is_dataclass(part)] or [hint]
    return values_of(inner)


def batches_in(directory: Path) -> Iterator[tuple[BatchHeader, list[Record]]]:
    """Every batch of a log's segments, in order."""
    for path in sorted(directory.glob("*.log")):
        yield from decode_all(path.read_bytes(), allow_partial_tail=True)
