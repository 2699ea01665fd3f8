"""Produce in all its versions: our encoder against kio's reader, kio's writer against our parser."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fenceline.wire import entities
from fenceline.wire.apis import ApiKey
from fenceline.wire.errors import MalformedRequest
from fenceline.wire.produce import (
    MAX_VERSION,
    MIN_VERSION,
    LeaderEndpoint,
    PartitionRecords,
    PartitionResult,
    ProduceRequest,
    ProduceResponse,
    encode_request,
    encode_response,
    parse_request,
    parse_response,
)
from tests.wire.kio_schemas import kio_class
from tests.wire.strategies import kio_entity, kio_read, kio_write, structs

VERSIONS = range(MIN_VERSION, MAX_VERSION + 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=6) | st.text(min_size=126, max_size=130)
RECORDS = st.none() | st.binary(max_size=5) | st.integers(120, 1100).map(bytes)
ENDPOINTS = st.lists(st.builds(LeaderEndpoint, INT32, TEXT, INT32, st.none() | TEXT), max_size=2)


@st.composite
def topics(draw: st.DrawFn, version: int) -> tuple[str | None, bytes | None]:
    if version >= 13:
        return None, draw(st.binary(min_size=16, max_size=16))
    return draw(TEXT), None


@st.composite
def requests(draw: st.DrawFn, version: int) -> ProduceRequest:
    partitions = [
        PartitionRecords(*topic, draw(INT32), None if records is None else memoryview(records))
        for topic in draw(st.lists(topics(version), max_size=3))
        for records in draw(st.lists(RECORDS, min_size=1, max_size=3))
    ]
    return ProduceRequest(draw(st.none() | TEXT), draw(st.sampled_from([-1, 0, 1, 7])), draw(INT32), partitions)


@st.composite
def responses(draw: st.DrawFn, version: int) -> ProduceResponse:
    results = [
        PartitionResult(
            *topic,
            draw(INT32),
            draw(st.integers(-1, 133)),
            draw(INT64),
            draw(st.just(-1) | st.integers(0, 2**41)),
            draw(INT64) if version >= 5 else -1,
            tuple(draw(st.lists(st.tuples(INT32, st.none() | TEXT), max_size=2))) if version >= 8 else (),
            draw(st.none() | TEXT) if version >= 8 else None,
            draw(st.none() | st.tuples(st.integers(0, 9), INT32)) if version >= 10 else None,
        )
        for topic in draw(st.lists(topics(version), max_size=3))
        for _ in range(draw(st.integers(1, 3)))
    ]
    return ProduceResponse(results, draw(INT32), tuple(draw(ENDPOINTS)) if version >= 10 else ())


def writable(raw: bytes) -> memoryview:
    return memoryview(bytearray(raw))


def flat_request(version: int, entity: Any) -> list[tuple[Any, ...]]:
    return [(topic_of(version, topic), p.index, p.records) for topic in entity.topic_data for p in topic.partition_data]


def topic_of(version: int, entity: Any) -> Any:
    return (entity.topic_id or UUID(int=0)).bytes if version >= 13 else entity.name


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_our_requests_read_by_kio(version: int, data: st.DataObject) -> None:
    request = data.draw(requests(version))
    body = b"".join(encode_request(version, request))
    theirs = kio_read(kio_class(0, version, is_request=True), body)
    assert (theirs.transactional_id, theirs.acks) == (request.transactional_id, request.acks)
    assert entities.millis(theirs.timeout) == request.timeout_ms
    expected = [(p.topic_id if version >= 13 else p.topic, p.index, p.records) for p in request.partitions]
    assert flat_request(version, theirs) == expected
    assert parse_request(version, writable(body)) == request


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_kios_requests_read_by_us(version: int, data: st.DataObject) -> None:
    part = entities._schema(0, True).root
    theirs = kio_entity(kio_class(0, version, is_request=True), part, version, data.draw(structs(part, version)))
    ours = parse_request(version, writable(kio_write(theirs)))
    assert (ours.transactional_id, ours.acks) == (theirs.transactional_id, theirs.acks)
    assert ours.timeout_ms == entities.millis(theirs.timeout)
    found = [(p.topic_id if version >= 13 else p.topic, p.index, p.records) for p in ours.partitions]
    assert found == flat_request(version, theirs)


def result_of(version: int, topic: Any, p: Any) -> PartitionResult:
    leader = getattr(p, "current_leader", None)
    hint = None if leader is None or leader.leader_id == leader.leader_epoch == -1 else leader
    return PartitionResult(
        topic_of(version, topic) if version < 13 else None,
        topic_of(version, topic) if version >= 13 else None,
        p.partition_index if hasattr(p, "partition_index") else p.index,
        int(p.error_code),
        p.base_offset,
        -1 if p.log_append_time is None else entities._encode_time(p.log_append_time),
        getattr(p, "log_start_offset", -1),
        tuple((e.batch_index, e.batch_index_error_message) for e in getattr(p, "record_errors", ())),
        getattr(p, "error_message", None),
        None if hint is None else (hint.leader_id, hint.leader_epoch),
    )


def response_of(version: int, entity: Any) -> ProduceResponse:
    return ProduceResponse(
        [result_of(version, topic, p) for topic in entity.responses for p in topic.partition_responses],
        entities.millis(entity.throttle_time),
        tuple(LeaderEndpoint(n.node_id, n.host, n.port, n.rack) for n in getattr(entity, "node_endpoints", ())),
    )


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_our_responses_read_by_kio(version: int, data: st.DataObject) -> None:
    response = data.draw(responses(version))
    body = encode_response(version, response)
    theirs = kio_read(kio_class(0, version, is_request=False), body)
    assert response_of(version, theirs) == response
    assert parse_response(version, writable(body)) == response


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_kios_responses_read_by_us(version: int, data: st.DataObject) -> None:
    part = entities._schema(0, False).root
    theirs = kio_entity(kio_class(0, version, is_request=False), part, version, data.draw(structs(part, version)))
    body = kio_write(theirs)
    ours = parse_response(version, writable(body))
    assert ours == response_of(version, theirs)


def test_records_are_writable_views_of_the_request() -> None:
    for version in VERSIONS:
        sent = ProduceRequest(None, -1, 1000, [PartitionRecords("t", bytes(16), 0, memoryview(b"records"))])
        body = bytearray(b"".join(encode_request(version, sent)))
        records = parse_request(version, memoryview(body)).partitions[0].records
        assert records is not None
        records[:3] = b"REC"
        assert b"RECords" in body


def test_large_records_are_not_copied_when_sent() -> None:
    records = memoryview(bytes(5000))
    sent = ProduceRequest(None, -1, 1000, [PartitionRecords("t", bytes(16), i, records) for i in range(2)])
    for version in VERSIONS:
        buffers = encode_request(version, sent)
        assert [b is records for b in buffers][:4] == [False, True, False, True]


def test_fields_that_a_version_lacks_are_left_out() -> None:
    result = PartitionResult("t", bytes(16), 1, 6, 2, 3, 4, ((0, "bad"),), "worse", (1, 2))
    response = ProduceResponse([result], 7, (LeaderEndpoint(1, "h", 9092),))
    for version in VERSIONS:
        kio_read(kio_class(0, version, is_request=False), encode_response(version, response))


def test_a_whole_request_by_hand() -> None:
    body = bytes.fromhex("00 ffff 000003e8 02 0274 02 00000005 04 616263 00 00 00")
    assert parse_request(9, writable(body)) == ProduceRequest(
        None, -1, 1000, [PartitionRecords("t", None, 5, memoryview(b"abc"))]
    )


def test_unknown_tagged_fields_are_skipped() -> None:
    body = bytes.fromhex("00 ffff 000003e8 02 0274 02 00000005 04 616263 01 0502aabb 01 0000 02 0000 7f01ff")
    assert len(parse_request(9, writable(body)).partitions) == 1


def test_no_topics_at_all() -> None:
    assert parse_request(9, writable(bytes.fromhex("00 ffff 00000000 01 00"))).partitions == []
    assert parse_request(3, writable(bytes.fromhex("ffff 0001 00000000 00000000"))).partitions == []


@pytest.mark.parametrize(
    ("version", "text"),
    [
        (9, "00 ffff 000003e8 00 00"),
        (9, "00 ffff 000003e8 02 00 01 00 00"),
        (9, "00 ffff 000003e8 02 0274 00 00 00"),
        (9, "00 ffff 000003e8 02 0274 02 00000005 05 616263 00 00 00"),
        (9, "00 ffff 000003e8 02 0274 02 00000005 ffffffff0f 616263 00 00 00"),
        (9, "00 ffff 000003e8 02 0274 ffffffff0f 00000005 04 616263 00 00 00"),
        (9, "00 ffff 000003e8 ffffffff0f 0274 02 00000005 04 616263 00 00 00"),
        (9, "00 ffff 000003e8 02 02ff 01 00 00"),
        (9, "00 ffff 000003e8 02 0274 02 00000005 04 616263 00 00"),
        (13, "00 ffff 000003e8 02 00000000"),
        (3, "ffff ffff 000003e8 ffffffff"),
        (3, "ffff ffff 000003e8 7fffffff 0001 74 00000000"),
        (3, "ffff ffff 000003e8 00000001 ffff 00000000"),
        (3, "ffff ffff 000003e8 00000001 0001 74 7fffffff 00000000 00000000"),
        (3, "ffff ffff 000003e8 00000001 0001 74 00000001 00000000 00000009 616263"),
        (2, "ffff 0001 00000000 00000000"),
        (14, "00 ffff 00000000 01 00"),
    ],
)
def test_malformed_requests_are_rejected(version: int, text: str) -> None:
    with pytest.raises(MalformedRequest):
        parse_request(version, writable(bytes.fromhex(text)))


def test_compiled_codec_gives_the_same_response() -> None:
    """The same response through the compiled codec."""
    for version in VERSIONS:
        fields = {
            "responses": [
                {
                    "name": "t",
                    "topic_id": UUID(int=5),
                    "partition_responses": [{"index": 3, "error_code": 6, "base_offset": -1, "log_append_time": None}],
                }
            ]
        }
        response = ProduceResponse([PartitionResult("t", UUID(int=5).bytes, 3, 6)])
        assert entities.write_response(ApiKey.PRODUCE, version, fields) == encode_response(version, response)
