"""Malformed input: every parser returns a value or raises MalformedRequest, and nothing else.

Random bytes, a valid message with some bytes changed, and a valid message cut off, for each of them. Memory is bounded:
no count makes a parser reserve more than the message could hold.
"""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.index import api_key_map

from fenceline.wire import entities, fetch, produce
from fenceline.wire.errors import MalformedRequest
from tests.wire import kio_schemas, test_fetch, test_produce
from tests.wire.strategies import filled

Parser = Callable[[int, memoryview], Any]
HAND_WRITTEN: dict[str, tuple[range, Parser, Callable[[int], st.SearchStrategy[Any]], Callable[[int, Any], Any]]] = {
    "produce request": (
        test_produce.VERSIONS,
        produce.parse_request,
        test_produce.requests,
        produce.encode_request,
    ),
    "produce response": (
        test_produce.VERSIONS,
        produce.parse_response,
        test_produce.responses,
        produce.encode_response,
    ),
    "fetch request": (test_fetch.VERSIONS, fetch.parse_request, test_fetch.requests, fetch.encode_request),
    "fetch response": (test_fetch.VERSIONS, fetch.parse_response, test_fetch.responses, fetch.encode_response),
}
EDGES = st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF])


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    raw = bytearray(whole)
    if raw:
        for _ in range(draw(st.integers(0, 4))):
            raw[draw(st.integers(0, len(raw) - 1))] = draw(EDGES | st.integers(0, 255))
    return bytes(raw[: draw(st.integers(0, len(raw)))]) if draw(st.booleans()) else bytes(raw)


def is_accepted(parse: Parser, version: int, raw: bytes) -> bool:
    """Whether `raw` was accepted; any exception but MalformedRequest is raised."""
    try:
        parse(version, memoryview(bytearray(raw)))
    except MalformedRequest:
        return False
    return True


@pytest.mark.parametrize("name", list(HAND_WRITTEN))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
@pytest.mark.long
def test_hand_written_parsers(name: str, data: st.DataObject) -> None:
    versions, parse, messages, encode = HAND_WRITTEN[name]
    version = data.draw(st.sampled_from(versions))
    encoded = encode(version, data.draw(messages(version)))
    whole = encoded if isinstance(encoded, bytes) else b"".join(encoded)
    assert is_accepted(parse, version, whole)
    is_accepted(parse, version, data.draw(damaged(whole)))
    is_accepted(parse, version, data.draw(st.binary(max_size=60)))


@pytest.mark.parametrize("name", list(HAND_WRITTEN))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_no_prefix_of_a_message_is_a_message(name: str, data: st.DataObject) -> None:
    versions, parse, messages, encode = HAND_WRITTEN[name]
    version = data.draw(st.sampled_from(versions))
    encoded = encode(version, data.draw(messages(version)))
    whole = encoded if isinstance(encoded, bytes) else b"".join(encoded)
    for size in {len(whole) - 1, *range(0, len(whole), 1 + len(whole) // 60)}:
        assert not is_accepted(parse, version, whole[:size]), f"{size} of {len(whole)} bytes were taken for all"


def test_no_prefix_of_a_kafka_message_is_a_message() -> None:
    for key in kio_schemas.schema_keys():
        for version in kio_schemas.kio_versions(key):
            for is_request in (True, False):
                read = entities.read_request if is_request else entities.read_response
                write = entities.write_request if is_request else entities.write_response
                whole = write(key, version, filled(entities._schema(key, is_request).root, version))
                for size in {len(whole) - 1, *range(0, len(whole), 1 + len(whole) // 8)} - {-1, len(whole)}:
                    with pytest.raises(MalformedRequest):
                        read(key, version, whole[:size])


def test_every_damaged_kafka_message() -> None:
    """Seeded, so that a failure names its message; the property test below searches further."""
    rng = random.Random(7)
    for key in kio_schemas.schema_keys():
        for version in kio_schemas.kio_versions(key):
            for is_request in (True, False):
                read = entities.read_request if is_request else entities.read_response
                write = entities.write_request if is_request else entities.write_response
                whole = write(key, version, filled(entities._schema(key, is_request).root, version))
                for _ in range(12):
                    raw = bytearray(whole[: rng.randint(0, len(whole))] if rng.random() < 0.3 else whole)
                    for _ in range(min(3, len(raw))):
                        raw[rng.randrange(len(raw))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
                    is_accepted(lambda v, b, read=read, key=key: read(key, v, b), version, bytes(raw))  # type: ignore[misc]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(api_key_map)), st.integers(-1, 20), st.booleans(), st.binary(max_size=80))
def test_any_bytes_as_any_message(key: int, version: int, is_request: bool, raw: bytes) -> None:
    read = entities.read_request if is_request else entities.read_response
    is_accepted(lambda v, b: read(key, v, b), version, raw)


def _counts_everywhere(whole: bytes) -> list[bytes]:
    """The message with a huge count in place of the bytes at each position, in both encodings."""
    return [
        whole[:position] + huge + whole[position + len(huge) :]
        for position in range(len(whole))
        for huge in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f", b"\x80\0\0\0")
    ]


@pytest.mark.parametrize("version", [8, 9, 13])
def test_counts_do_not_reserve_memory_in_produce(version: int) -> None:
    part = produce.PartitionRecords("topic", bytes(range(16)), 1, memoryview(b"records"))
    request = produce.ProduceRequest("t", -1, 1000, [part, part])
    _check_memory(produce.parse_request, version, b"".join(produce.encode_request(version, request)))


@pytest.mark.parametrize("version", [4, 11, 12, 18])
def test_counts_do_not_reserve_memory_in_fetch(version: int) -> None:
    wanted = fetch.FetchPartition("t", bytes(range(16)), 1, 2, 3, 4, 5, 6, b"d" * 16, 7)
    request = fetch.FetchRequest("c", 1, 2, 3, 4, 5, 0, 6, 7, [wanted] * 2, [("t", bytes(16), [1, 2])], "r")
    _check_memory(fetch.parse_request, version, bytes(fetch.encode_request(version, request)[0]))


@pytest.mark.parametrize("key", [3, 8, 11, 19, 32, 60])
def test_counts_do_not_reserve_memory_in_entities(key: int) -> None:
    for version in kio_schemas.kio_versions(key):
        whole = entities.write_request(key, version, filled(entities._schema(key, True).root, version))
        _check_memory(lambda v, b: entities.read_request(key, v, b), version, whole)


def _check_memory(parse: Parser, version: int, whole: bytes) -> None:
    assert is_accepted(parse, version, whole)
    tracemalloc.start()
    try:
        for raw in _counts_everywhere(whole):
            is_accepted(parse, version, raw)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 400_000
