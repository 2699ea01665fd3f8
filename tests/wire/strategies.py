"""Random messages of any schema as plain mappings, and the same message as a kio entity."""

from __future__ import annotations

import dataclasses
import io
import types
import typing
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer

from fenceline.wire.schema import Field, Struct

ZERO = UUID(int=0)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_INTEGERS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint16": (0, 2**16 - 1),
    "uint32": (0, 2**32 - 1),
    "ms32": (-(2**31), 2**31 - 1),
    "ms64": (-(2**53), 2**53),
    "time": (0, 2**41),
}
_BYTES = st.one_of(st.binary(max_size=6), st.binary(min_size=126, max_size=130))


def scalars(kind: str) -> st.SearchStrategy[Any]:
    if kind in _INTEGERS:
        return st.integers(*_INTEGERS[kind])
    simple: dict[str, st.SearchStrategy[Any]] = {
        "bool": st.booleans(),
        "float64": st.floats(allow_nan=False, allow_infinity=False),
        "string": st.one_of(st.text(max_size=5), st.text(min_size=126, max_size=129)),
        "bytes": _BYTES,
        "records": _BYTES,
        "uuid": st.uuids(),
        "error": st.sampled_from([int(code) for code in KioErrorCode]),
    }
    return simple[kind]


def values(field: Field, version: int) -> st.SearchStrategy[Any]:
    one = structs(field.struct, version) if field.struct is not None else scalars(field.kind)
    whole = st.lists(one, max_size=3) if field.is_array else one
    return st.one_of(st.none(), whole) if field.is_nullable(version) else whole


def structs(part: Struct, version: int) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({field.name: values(field, version) for field in part.at(version)})


def filled(part: Struct, version: int, seed: int = 1) -> dict[str, Any]:
    """A message in which no field has its default, and every array has two elements."""
    fields = {}
    for number, field in enumerate(part.at(version), seed):
        if field.struct is not None:
            one: Any = filled(field.struct, version, number + 1)
        elif field.kind == "bool":
            one = field.default is not True
        else:
            examples = {"string": f"s{number}", "uuid": UUID(int=number), "float64": number + 0.5}
            raw = b"\1" * number
            one = examples.get(field.kind, raw if field.kind in ("bytes", "records") else number)
        fields[field.name] = [one, one] if field.is_array else one
    return fields


# --- the same for kio -------------------------------------------------------------------------------------------------


def _inner_class(hint: Any) -> type:
    if isinstance(hint, types.UnionType):
        hint = next(a for a in typing.get_args(hint) if a is not types.NoneType)
    return typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else hint  # type: ignore[no-any-return]


def _kio_scalar(kind: str, value: Any) -> Any:
    match kind:
        case "error":
            return KioErrorCode(value)
        case "ms32" | "ms64":
            return timedelta(milliseconds=value)
        case "time":
            return EPOCH + timedelta(milliseconds=value)
        case "uuid":
            return None if value in (None, ZERO) else value
        case _:
            return value


def kio_entity(cls: type, part: Struct, version: int, fields: dict[str, Any]) -> Any:
    """A kio entity with these values."""
    hints = {f.name: f.type for f in dataclasses.fields(cls)}
    made = {}
    for field in part.at(version):
        value = fields[field.name]
        if value is None:
            made[field.name] = None
            continue
        elements = value if field.is_array else [value]
        if field.struct is not None:
            inner = _inner_class(hints[field.name])
            converted = [kio_entity(inner, field.struct, version, element) for element in elements]
        else:
            converted = [_kio_scalar(field.kind, element) for element in elements]
        made[field.name] = tuple(converted) if field.is_array else converted[0]
    return cls(**made)


def kio_write(entity: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def kio_read(cls: type, body: bytes) -> Any:
    """Reads all of `body`; anything left over is an error."""
    entity, size = entity_reader(cls)(bytes(body), 0)  # type: ignore[type-var]
    assert size == len(body), f"{len(body) - size} bytes behind the message"
    return entity


def same(part: Struct, version: int, ours: Any, kios: Any) -> None:
    """Assert that two entities hold the same values."""
    for field in part.at(version):
        left, right = getattr(ours, field.name), getattr(kios, field.name)
        if field.struct is None or left is None or right is None:
            assert left == right, (part.name, field.name)
        elif field.is_array:
            assert len(left) == len(right)
            for one, other in zip(left, right, strict=True):
                same(field.struct, version, one, other)
        else:
            same(field.struct, version, left, right)
