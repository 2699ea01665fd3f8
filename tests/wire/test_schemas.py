"""Schemas, and every message of Kafka's protocol against kio's own writer and reader."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.index import api_key_map

from fenceline.errors import InternalError
from fenceline.wire import entities
from fenceline.wire.apis import ApiKey
from fenceline.wire.errors import MalformedRequest
from fenceline.wire.schema import Field, Struct, Versions, parse_message
from tests.wire import kio_schemas, request_types
from tests.wire.strategies import filled, kio_entity, kio_read, kio_write, same, structs

EVERY_VERSION = [
    (key, version, is_request)
    for key in kio_schemas.schema_keys()
    for version in kio_schemas.kio_versions(key)
    for is_request in (True, False)
]


@pytest.mark.parametrize("key", kio_schemas.schema_keys())
def test_schemas_are_those_of_kio(key: int) -> None:
    assert kio_schemas.module_path(key).read_text() == kio_schemas.module_text(key)


def test_types_of_requests_are_those_of_the_schemas() -> None:
    assert request_types.PATH.read_text() == request_types.module_text()


def _write(key: int, version: int, is_request: bool, fields: dict) -> bytes:
    return (entities.write_request if is_request else entities.write_response)(key, version, fields)


def _read(key: int, version: int, is_request: bool, body: bytes):
    return (entities.read_request if is_request else entities.read_response)(key, version, body)


def _check(key: int, version: int, is_request: bool, fields: dict) -> None:
    cls = kio_schemas.kio_class(key, version, is_request=is_request)
    root = entities._schema(key, is_request).root
    body = _write(key, version, is_request, fields)
    theirs = kio_read(cls, body)
    assert kio_write(theirs) == body
    same(root, version, _read(key, version, is_request, body), theirs)
    same(root, version, _read(key, version, is_request, memoryview(bytearray(body + b"rest"))), theirs)
    if fields:
        assert kio_write(kio_entity(cls, root, version, fields)) == body


def test_every_message_with_default_fields() -> None:
    for key, version, is_request in EVERY_VERSION:
        _check(key, version, is_request, {})


def test_every_message_with_all_fields_set() -> None:
    for key, version, is_request in EVERY_VERSION:
        fields = filled(entities._schema(key, is_request).root, version)
        assert entities.unknown_fields(key, fields, is_request=is_request) == []
        _check(key, version, is_request, fields)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_any_message(data: st.DataObject) -> None:
    key, version, is_request = data.draw(st.sampled_from(EVERY_VERSION))
    _check(key, version, is_request, data.draw(structs(entities._schema(key, is_request).root, version)))


def test_kio_and_the_enum_know_the_same_apis() -> None:
    assert {int(key): key.name.lower() for key in ApiKey} == dict(api_key_map)


def test_every_schema_is_of_an_api_that_the_sources_name() -> None:
    sources = Path(__file__).parents[2] / "src" / "fenceline"
    text = "".join(p.read_text() for p in sources.rglob("*.py") if p != sources / "wire" / "apis.py")
    named = {int(ApiKey[name]) for name in re.findall(r"ApiKey\.([A-Z_]+)\b", text) if name in ApiKey.__members__}
    assert set(kio_schemas.schema_keys()) <= named


def test_api_without_a_schema_is_rejected() -> None:
    with pytest.raises(MalformedRequest):
        entities.read_request(ApiKey.SHARE_FETCH, 1, b"")
    with pytest.raises(InternalError):
        entities.write_request(ApiKey.SHARE_FETCH, 1, {})


# --- the text form ----------------------------------------------------------------------------------------------------


def test_text_form() -> None:
    message = parse_message(
        """
        """
        "Thing 1-4 flexible=3+\n"
        "  id: int32 1+ =-1\n"
        "  parts: []Part 2-3 null@3\n"
        "    name: string 2-3\n"
        "  note: string 3+ tag1@4+ null@3+\n"
        "  loud: bool 1+ =true\n"
    )
    assert message.versions == Versions(1, 4)
    assert [message.is_flexible(v) for v in range(1, 5)] == [False, False, True, True]
    number, parts, note, loud = message.root.fields
    assert (number.default, loud.default, note.default, parts.default) == (-1, True, None, None)
    assert parts.struct == Struct("Part", (Field("name", "string", False, Versions(2, 3), default=""),))
    assert parts.is_array
    assert not parts.is_nullable(2)
    assert parts.is_nullable(3)
    assert [note.is_tagged(v) for v in (3, 4)] == [False, True]
    assert [f.name for f in message.root.at(2)] == ["id", "parts", "loud"]


@pytest.mark.parametrize("text", ["0+", "3", "3-7"])
def test_version_ranges(text: str) -> None:
    assert str(Versions.parse(text)) == text


@pytest.mark.parametrize("text", ["Thing x", "Thing 0\n  a: int8 0 what"])
def test_invalid_schemas_are_rejected(text: str) -> None:
    with pytest.raises(InternalError):
        parse_message(text)
