"""Derives the schemas of APIs from kio's generated classes: source and reference of `fenceline.wire.schemas`.

    python -m tests.wire.kio_schemas                regenerates the schema modules
    python -m tests.wire.kio_schemas end_txn ...    and adds those of these APIs

Run it when kio supports a newer Kafka; `test_schemas.py` fails until then. Only APIs that the sources name have one.
"""

from __future__ import annotations

import dataclasses
import datetime
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map

_KINDS = {"error_code": "error", "timedelta_i32": "ms32", "timedelta_i64": "ms64", "datetime_i64": "time"}
_FOLDER = Path(__file__).parents[2] / "src" / "fenceline" / "wire" / "schemas"


@dataclasses.dataclass
class Shape:
    """One field in one version."""

    kind: str
    is_array: bool
    is_nullable: bool
    tag: int | None
    default: str | None
    nested: type | None


def schema_keys() -> list[int]:
    """The APIs that have a schema module."""
    return [key for key in api_key_map if module_path(key).exists()]


def kio_versions(api_key: int) -> list[int]:
    return sorted(schema_name_map[api_key_map[api_key]])


def kio_class(api_key: int, version: int, *, is_request: bool) -> type:
    return (load_request_schema if is_request else load_response_schema)(api_key, version)


def flexible_from(api_key: int, *, is_request: bool) -> int | None:
    versions = kio_versions(api_key)
    flexible = [v for v in versions if kio_class(api_key, v, is_request=is_request).__flexible__]  # type: ignore[attr-defined]
    assert flexible == versions[len(versions) - len(flexible) :], "flexible versions are the last ones"
    return flexible[0] if flexible else None


def shape_of(field: dataclasses.Field[Any]) -> Shape:
    hint: Any = field.type
    is_nullable = False
    if isinstance(hint, types.UnionType):
        hint = next(a for a in typing.get_args(hint) if a is not types.NoneType)
        is_nullable = True
    is_array = typing.get_origin(hint) is tuple
    if is_array:
        hint = typing.get_args(hint)[0]
    if dataclasses.is_dataclass(hint):
        assert isinstance(hint, type)
        kind, nested = hint.__name__, hint
    else:
        kind, nested = field.metadata["kafka_type"], None
        kind = _KINDS.get(kind, kind)
        if kind == "uuid" and not is_array:
            is_nullable = False  # kio's None is the zero id
    tag = field.metadata.get("tag")
    return Shape(kind, is_array, is_nullable, tag, default_of(field, is_nullable), nested)


def default_of(field: dataclasses.Field[Any], is_nullable: bool) -> str | None:
    """In the form of the schema text; None where it is the default of the type."""
    value = field.default
    if value is dataclasses.MISSING:
        return None
    if value is None:
        return None
    if dataclasses.is_dataclass(value):
        assert all(getattr(value, f.name) == f.default for f in dataclasses.fields(value)), field
        return None
    if isinstance(value, datetime.timedelta):
        value = value // datetime.timedelta(milliseconds=1)
    if isinstance(value, bool):
        value = str(value).lower()
    text = str(value) if value != () else ""
    is_implied = not is_nullable and text in ("", "0", "false", "0.0")
    assert " " not in text, field
    return None if is_implied else text


def message_text(api_key: int, *, is_request: bool) -> str:
    versions = kio_versions(api_key)
    classes = {v: kio_class(api_key, v, is_request=is_request) for v in versions}
    flexible = flexible_from(api_key, is_request=is_request)
    name = classes[versions[-1]].__name__
    span = f"{versions[0]}-{versions[-1]}" if len(versions) > 1 else str(versions[0])
    head = f"{name} {span}" + ("" if flexible is None else f" flexible={flexible}+")
    return "\n".join([head, *_lines(classes, versions[-1], 1)])


def _lines(classes: dict[int, type], newest: int, depth: int) -> Iterator[str]:
    shapes: dict[str, dict[int, Shape]] = {}
    for version, cls in classes.items():
        for field in dataclasses.fields(cls):
            shapes.setdefault(field.name, {})[version] = shape_of(field)
    for name in _order([[f.name for f in dataclasses.fields(c)] for c in classes.values()]):
        by_version = shapes[name]
        first = next(iter(by_version.values()))
        for shape in by_version.values():
            assert (shape.kind, shape.is_array) == (first.kind, first.is_array), f"{name} changes its type"
        words = [f"{name}:", ("[]" if first.is_array else "") + first.kind, _range(sorted(by_version), newest)]
        tagged = sorted(v for v, s in by_version.items() if s.tag is not None)
        if tagged:
            (tag,) = {by_version[v].tag for v in tagged}
            words.append(f"tag{tag}@{_range(tagged, newest)}")
        nullable = sorted(v for v, s in by_version.items() if s.is_nullable)
        if nullable:
            words.append(f"null@{_range(nullable, newest)}")
        defaults = {s.default for s in by_version.values()}
        assert len(defaults) == 1 or defaults == {None, ""}, f"{name} changes its default: {defaults}"
        default = next(iter(defaults - {None}), None)
        if default is not None:
            words.append(f"={default}")
        yield "  " * depth + " ".join(words)
        if first.nested is not None:
            nested = {v: s.nested for v, s in by_version.items() if s.nested is not None}
            yield from _lines(nested, newest, depth + 1)


def _range(versions: list[int], newest: int) -> str:
    low, high = versions[0], versions[-1]
    assert versions == list(range(low, high + 1)), f"versions with a gap: {versions}"
    if high == newest:
        return f"{low}+"
    return str(low) if low == high else f"{low}-{high}"


def _order(sequences: list[list[str]]) -> list[str]:
    """One order that agrees with all of them."""
    waiting = [list(s) for s in sequences]
    merged: list[str] = []
    while any(waiting):
        for head in (s[0] for s in waiting if s):
            if not any(head in s[1:] for s in waiting):
                merged.append(head)
                waiting = [[n for n in s if n != head] for s in waiting]
                break
        else:
            raise AssertionError(f"no common order: {waiting}")
    return merged


def module_text(api_key: int) -> str:
    name = api_key_map[api_key]
    parts = [f'"""{name} (api key {api_key}), generated from kio by tests/wire/kio_schemas.py."""', ""]
    for constant, is_request in (("REQUEST", True), ("RESPONSE", False)):
        parts += [f'{constant} = """', message_text(api_key, is_request=is_request), '"""', ""]
    return "\n".join(parts)


def module_path(api_key: int) -> Path:
    return _FOLDER / f"{api_key_map[api_key]}.py"


if __name__ == "__main__":
    unknown = set(sys.argv[1:]) - set(api_key_map.values())
    assert not unknown, f"no API has the name {unknown}"
    for key, name in api_key_map.items():
        if name in sys.argv[1:] or module_path(key).exists():
            module_path(key).write_text(module_text(key))
