"""Fetch in all its versions: our encoder against kio's reader, kio's writer against our parser."""

from __future__ import annotations

from typing import Any
from unittest import mock
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fenceline.wire import entities, fetch_request, fetch_response
from fenceline.wire.errors import MalformedRequest
from fenceline.wire.fetch import (
    MAX_VERSION,
    MIN_VERSION,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderEndpoint,
    encode_request,
    encode_response,
    parse_request,
    parse_response,
)
from tests.wire.kio_schemas import kio_class
from tests.wire.strategies import kio_entity, kio_read, kio_write, structs
from tests.wire.test_produce import ENDPOINTS, INT32, INT64, RECORDS, TEXT, topics, writable

VERSIONS = range(MIN_VERSION, MAX_VERSION + 1)
INT8 = st.integers(-128, 127)
PAIR = st.none() | st.tuples(st.integers(0, 9), INT32)
NO_WATERMARK = 2**63 - 1


@st.composite
def requests(draw: st.DrawFn, version: int) -> FetchRequest:
    def wanted(topic: tuple[str | None, bytes | None]) -> FetchPartition:
        return FetchPartition(
            *topic,
            draw(INT32),
            draw(INT64),
            draw(INT32),
            draw(INT32) if version >= 9 else -1,
            draw(INT32) if version >= 12 else -1,
            draw(INT64) if version >= 5 else -1,
            draw(st.none() | st.binary(min_size=16, max_size=16).filter(any)) if version >= 17 else None,
            draw(st.none() | st.integers(0, 2**60)) if version >= 18 else None,
        )

    return FetchRequest(
        cluster_id=draw(st.none() | TEXT) if version >= 12 else None,
        replica_id=draw(INT32),
        replica_epoch=draw(INT64) if version >= 15 else -1,
        max_wait_ms=draw(INT32),
        min_bytes=draw(INT32),
        max_bytes=draw(INT32),
        isolation_level=draw(INT8),
        session_id=draw(INT32) if version >= 7 else 0,
        session_epoch=draw(INT32) if version >= 7 else -1,
        partitions=[
            wanted(topic)
            for topic in draw(st.lists(topics(version), max_size=3))
            for _ in range(draw(st.integers(1, 3)))
        ],
        forgotten=[(*topic, draw(st.lists(INT32, max_size=3))) for topic in draw(st.lists(topics(version), max_size=2))]
        if version >= 7
        else [],
        rack_id=draw(TEXT) if version >= 11 else "",
    )


@st.composite
def responses(draw: st.DrawFn, version: int) -> FetchResponse:
    def fetched(topic: tuple[str | None, bytes | None]) -> FetchedPartition:
        return FetchedPartition(
            *topic,
            draw(INT32),
            draw(st.integers(-1, 133)),
            draw(INT64),
            draw(INT64),
            draw(INT64) if version >= 5 else -1,
            draw(PAIR) if version >= 12 else None,
            draw(PAIR) if version >= 12 else None,
            draw(PAIR) if version >= 12 else None,
            draw(st.none() | st.lists(st.tuples(INT64, INT64), max_size=3).map(tuple)),
            draw(INT32) if version >= 11 else -1,
            draw(RECORDS),
        )

    return FetchResponse(
        [fetched(t) for t in draw(st.lists(topics(version), max_size=3)) for _ in range(draw(st.integers(1, 3)))],
        draw(INT32),
        draw(st.integers(-1, 133)) if version >= 7 else 0,
        draw(INT32) if version >= 7 else 0,
        tuple(draw(ENDPOINTS)) if version >= 16 else (),
    )


def named(version: int, topic: Any) -> tuple[str | None, bytes | None]:
    """The topic of a kio entity."""
    if version < 13:
        return topic.topic, None
    return None, (topic.topic_id or UUID(int=0)).bytes


def request_of(version: int, entity: Any) -> FetchRequest:
    def wanted(topic: Any, p: Any) -> FetchPartition:
        directory_id = getattr(p, "replica_directory_id", None)
        high_watermark = getattr(p, "high_watermark", NO_WATERMARK)
        return FetchPartition(
            *named(version, topic),
            p.partition,
            p.fetch_offset,
            p.partition_max_bytes,
            getattr(p, "current_leader_epoch", -1),
            getattr(p, "last_fetched_epoch", -1),
            getattr(p, "log_start_offset", -1),
            None if directory_id is None else directory_id.bytes,
            None if high_watermark == NO_WATERMARK else high_watermark,
        )

    state = getattr(entity, "replica_state", entity)
    return FetchRequest(
        cluster_id=getattr(entity, "cluster_id", None),
        replica_id=state.replica_id,
        replica_epoch=getattr(state, "replica_epoch", -1),
        max_wait_ms=entities.millis(entity.max_wait),
        min_bytes=entity.min_bytes,
        max_bytes=entity.max_bytes,
        isolation_level=entity.isolation_level,
        session_id=getattr(entity, "session_id", 0),
        session_epoch=getattr(entity, "session_epoch", -1),
        partitions=[wanted(topic, p) for topic in entity.topics for p in topic.partitions],
        forgotten=[
            (*named(version, topic), list(topic.partitions)) for topic in getattr(entity, "forgotten_topics_data", ())
        ],
        rack_id=getattr(entity, "rack_id", ""),
    )


def pair(struct: Any, first: str, second: str) -> tuple[int, int] | None:
    found = (-1, -1) if struct is None else (getattr(struct, first), getattr(struct, second))
    return None if found == (-1, -1) else found


def response_of(version: int, entity: Any) -> FetchResponse:
    def fetched(topic: Any, p: Any) -> FetchedPartition:
        aborted = p.aborted_transactions
        return FetchedPartition(
            *named(version, topic),
            p.partition_index,
            int(p.error_code),
            p.high_watermark,
            p.last_stable_offset,
            getattr(p, "log_start_offset", -1),
            pair(getattr(p, "diverging_epoch", None), "epoch", "end_offset"),
            pair(getattr(p, "current_leader", None), "leader_id", "leader_epoch"),
            pair(getattr(p, "snapshot_id", None), "end_offset", "epoch"),
            None if aborted is None else tuple((a.producer_id, a.first_offset) for a in aborted),
            getattr(p, "preferred_read_replica", -1),
            p.records,
        )

    return FetchResponse(
        [fetched(topic, p) for topic in entity.responses for p in topic.partitions],
        entities.millis(entity.throttle_time),
        int(getattr(entity, "error_code", 0)),
        getattr(entity, "session_id", 0),
        tuple(LeaderEndpoint(n.node_id, n.host, n.port, n.rack) for n in getattr(entity, "node_endpoints", ())),
    )


def without_defaults(response: FetchResponse) -> FetchResponse:
    """Pairs at their default are the same as none at all."""
    names = ("diverging_epoch", "current_leader", "snapshot_id")
    response.partitions = [
        p._replace(**{name: None for name in names if getattr(p, name) == (-1, -1)}) for p in response.partitions
    ]
    return response


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_our_requests_read_by_kio(version: int, data: st.DataObject) -> None:
    request = data.draw(requests(version))
    (body,) = encode_request(version, request)
    assert request_of(version, kio_read(kio_class(1, version, is_request=True), bytes(body))) == request
    assert parse_request(version, writable(bytes(body))) == request


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_kios_requests_read_by_us(version: int, data: st.DataObject) -> None:
    part = entities._schema(1, True).root
    theirs = kio_entity(kio_class(1, version, is_request=True), part, version, data.draw(structs(part, version)))
    assert parse_request(version, writable(kio_write(theirs))) == request_of(version, theirs)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_our_responses_read_by_kio(version: int, data: st.DataObject) -> None:
    response = data.draw(responses(version))
    body = b"".join(encode_response(version, response))
    assert response_of(version, kio_read(kio_class(1, version, is_request=False), body)) == response
    assert parse_response(version, writable(body)) == response


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_kios_responses_read_by_us(version: int, data: st.DataObject) -> None:
    part = entities._schema(1, False).root
    theirs = kio_entity(kio_class(1, version, is_request=False), part, version, data.draw(structs(part, version)))
    body = kio_write(theirs)
    assert without_defaults(parse_response(version, writable(body))) == response_of(version, theirs)


def test_large_records_are_not_copied() -> None:
    records = memoryview(bytes(5000))
    response = FetchResponse([FetchedPartition("t", bytes(16), i, records=records) for i in range(2)])
    for version in VERSIONS:
        buffers = encode_response(version, response)
        assert [b is records for b in buffers][:4] == [False, True, False, True]
        body = b"".join(buffers)
        parsed = parse_response(version, memoryview(body)).partitions[1].records
        assert isinstance(parsed, memoryview)
        assert parsed.obj is body


@pytest.mark.parametrize("version", [13, 17, 18])
@pytest.mark.parametrize("large", range(5))
def test_the_partition_that_makes_a_response_large_is_found_in_its_first_bytes(version: int, large: int) -> None:
    """However many bytes have arrived: no other partition is named."""
    rows = [
        FetchedPartition(
            None, bytes([7 + index // 2]) * 16, index, records=bytes(100_000 if index == large else 60 * (index % 3))
        )
        for index in range(5)
    ]
    whole = memoryview(b"".join(bytes(part) for part in encode_response(version, FetchResponse(rows, session_id=3))))
    assert whole.nbytes > 100_000
    culprit = (bytes([7 + large // 2]) * 16, large)
    assert fetch_response.largest_partition(version, whole) == culprit
    seen = {fetch_response.largest_partition(version, whole[:end]) for end in range(1_000, 100_000, 5_003)}
    assert seen == {culprit}
    for end in range(1_000):
        fetch_response.largest_partition(version, whole[:end])


def test_fields_that_a_version_lacks_are_left_out() -> None:
    wanted = FetchPartition("t", bytes(16), 1, 2, 3, 4, 5, 6, b"d" * 16, 7)
    request = FetchRequest("c", 1, 2, 3, 4, 5, 0, 6, 7, [wanted], [("t", bytes(16), [1])], "r")
    fetched = FetchedPartition("t", bytes(16), 1, 0, 1, 2, 3, (1, 2), (1, 2), (1, 2), ((1, 2),), 3, b"x")
    response = FetchResponse([fetched], 1, 0, 2, (LeaderEndpoint(1, "h", 9092),))
    for version in VERSIONS:
        kio_read(kio_class(1, version, is_request=True), bytes(encode_request(version, request)[0]))
        kio_read(kio_class(1, version, is_request=False), b"".join(encode_response(version, response)))


def test_topics_are_sent_in_the_given_order() -> None:
    """Only neighbours are grouped: the server chooses the order in which partitions are served."""
    order = [("a", 0), ("b", 0), ("a", 1)]
    response = FetchResponse([FetchedPartition(topic, None, index) for topic, index in order])
    body = b"".join(encode_response(12, response))
    assert [(p.topic, p.index) for p in parse_response(12, writable(body)).partitions] == order
    assert body.count(b"\x02a") == 2


def test_a_whole_request_by_hand() -> None:
    body = bytes.fromhex(
        "000001f4 00000001 00100000 00 00000000 ffffffff"
        "02" + "11" * 16 + "02 00000003 00000007 0000000000000064 00000006 ffffffffffffffff 00001000 00 00 01 01 00"
    )
    wanted = FetchPartition(None, b"\x11" * 16, 3, 100, 4096, 7, 6, -1)
    assert parse_request(15, writable(body)) == FetchRequest(None, -1, -1, 500, 1, 1 << 20, 0, 0, -1, [wanted], [], "")


def test_tags_that_a_version_does_not_know_are_skipped() -> None:
    """A tag of a later version, and one of no version at all."""
    wanted = FetchPartition(None, bytes(16), 1, 2, 3, 4, 5, 6, b"d" * 16, 7)
    request = FetchRequest("c", 1, 2, 3, 4, 5, 0, 6, 7, [wanted], [], "r")
    (body,) = encode_request(18, request)
    older = parse_request(16, writable(bytes(body)))
    assert older.partitions == [wanted._replace(replica_directory_id=None, high_watermark=None)]
    assert (older.replica_id, older.cluster_id) == (1, "c")


HEAD = "000001f4 00000001 00100000 00 00000000 ffffffff"
WANTED = "00000003 00000007 0000000000000064 00000006 ffffffffffffffff 00001000"
HEAD_4 = "ffffffff 000001f4 00000001 00100000 00"


@pytest.mark.parametrize(
    ("version", "text"),
    [
        (3, HEAD_4 + "00000000"),
        (19, HEAD + "01 01 01 00"),
        (15, HEAD + "00 01 01 00"),
        (15, HEAD + "01 00 01 00"),
        (15, HEAD + "01 01 00 00"),
        (15, HEAD + "01 01 01"),
        (15, HEAD + "ffffffff0f 01 01 00"),
        (15, HEAD + "02" + "00" * 15),
        (15, HEAD + "02" + "00" * 16 + "7f" + WANTED + "00 00 01 01 00"),
        (15, HEAD + "02" + "00" * 16 + "00 00 01 01 00"),
        (15, HEAD + "01 02" + "00" * 16 + "ffffffff0f 00000000 00 01 00"),
        (15, HEAD + "01 01 01 01 01 05 0000000000"),
        (15, HEAD + "01 01 01 01 01 0d 00000002 0000000000000003 01"),
        (15, HEAD + "01 01 01 01 00 02 0361"),
        (17, HEAD + "02" + "00" * 16 + "02" + WANTED + "01 00 08 0000000000000000 00 01 01 00"),
        (18, HEAD + "02" + "00" * 16 + "02" + WANTED + "01 01 04 00000000 00 01 01 00"),
        (4, HEAD_4 + "ffffffff"),
        (4, HEAD_4 + "7fffffff 0001 74 00000000"),
        (4, HEAD_4 + "00000001 ffff 00000000"),
        (4, HEAD_4 + "00000001 0001 74 7fffffff 00000000 0000000000000000 00000000"),
        (11, "ffffffff 000001f4 00000001 00100000 00 00000000 ffffffff 00000000 00000000 ffff"),
    ],
)
def test_malformed_requests_are_rejected(version: int, text: str) -> None:
    with pytest.raises(MalformedRequest):
        parse_request(version, writable(bytes.fromhex(text)))


def _wanted(draw: st.DrawFn) -> FetchPartition:
    index, offset, size = draw(INT32), draw(INT64), draw(INT32)
    return FetchPartition(None, draw(ID), index, offset, size, draw(INT32), draw(INT32), draw(INT64))


ID = st.sampled_from([b"t" * 16, b"u" * 16]) | st.binary(min_size=16, max_size=16)


@st.composite
def round_requests(draw: st.DrawFn) -> FetchRequest:
    """The requests of a follower, and similar ones."""
    odd = draw(st.sampled_from([None] * 6 + ["directory", "watermark", "forgotten", "rack", "cluster"]))
    # 64 use the fast path, 65 do not.
    wanted = [_wanted(draw)] * draw(st.sampled_from([0, 0, 0, 62])) + [
        _wanted(draw) for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2, 3, 4])))
    ]
    if odd == "directory":
        wanted = [each._replace(replica_directory_id=b"d" * 16) for each in wanted]
    if odd == "watermark":
        wanted = [each._replace(high_watermark=5) for each in wanted]
    return FetchRequest(
        "c" if odd == "cluster" else None,
        draw(st.integers(-1, 2**31 - 1)),
        draw(INT64),
        draw(INT32),
        draw(INT32),
        draw(INT32),
        draw(INT8),
        draw(INT32),
        draw(INT32),
        wanted,
        [(None, b"f" * 16, [1])] if odd == "forgotten" else [],
        "a" if odd == "rack" else "",
    )


@st.composite
def round_responses(draw: st.DrawFn) -> FetchResponse:
    """The responses of a leader, and similar ones."""
    odd = draw(st.sampled_from([None] * 6 + ["aborted", "endpoint", "diverging", "null", "empty"]))
    partitions = [
        FetchedPartition(
            None,
            draw(ID),
            draw(INT32),
            draw(st.integers(-(2**15), 2**15 - 1)),
            draw(INT64),
            draw(INT64),
            draw(INT64),
            (1, 2) if odd == "diverging" else None,
            aborted_transactions=[(1, 2)] if odd == "aborted" else None,
            preferred_read_replica=draw(INT32),
            records={"null": None, "empty": b""}.get(
                odd or "", bytes(draw(st.sampled_from([1, 126, 127, 128, 20_000])))
            ),
        )
        for _ in range(draw(st.integers(0, 4)))
    ]
    endpoints = [LeaderEndpoint(1, "h", 2, None)] if odd == "endpoint" else []
    return FetchResponse(partitions, draw(INT32), draw(st.integers(-9, 99)), draw(INT32), endpoints)


@settings(max_examples=300, deadline=None)
@given(request=round_requests(), version=st.integers(13, MAX_VERSION))
def test_the_fast_path_writes_the_same_requests(request: FetchRequest, version: int) -> None:
    quick = b"".join(bytes(part) for part in encode_request(version, request))
    with mock.patch.object(fetch_request, "_encode_plain", None):
        assert quick == b"".join(bytes(part) for part in encode_request(version, request))


@settings(max_examples=300, deadline=None)
@given(
    response=round_responses(),
    version=st.integers(13, MAX_VERSION),
    flipped=st.none() | st.tuples(st.integers(0, 300), st.integers(0, 7)),
    cut=st.sampled_from([0] * 5 + [1, 2, 3, 30, 60]),
)
def test_the_fast_path_reads_the_same_responses(
    response: FetchResponse, version: int, flipped: tuple[int, int] | None, cut: int
) -> None:
    body = bytearray(b"".join(bytes(part) for part in encode_response(version, response)))
    if flipped is not None:
        body[flipped[0] % len(body)] ^= 1 << flipped[1]
    view = memoryview(body)[: max(len(body) - cut, 0)].toreadonly()

    def read() -> Any:
        try:
            return parse_response(version, view)
        except MalformedRequest as error:
            return str(error)

    quick = read()
    with mock.patch.object(fetch_response, "_parse_plain", None):
        assert quick == read()


@settings(max_examples=300, deadline=None)
@given(
    request=round_requests(),
    version=st.integers(13, MAX_VERSION),
    flipped=st.none() | st.tuples(st.integers(0, 300), st.integers(0, 7)),
    cut=st.sampled_from([0] * 5 + [1, 2, 3, 20, 50]),
)
def test_the_fast_path_reads_the_same_requests(
    request: FetchRequest, version: int, flipped: tuple[int, int] | None, cut: int
) -> None:
    body = bytearray(b"".join(bytes(part) for part in encode_request(version, request)))
    if flipped is not None:
        body[flipped[0] % len(body)] ^= 1 << flipped[1]
    view = memoryview(body)[: max(len(body) - cut, 0)].toreadonly()

    def read() -> Any:
        try:
            return parse_request(version, view)
        except MalformedRequest as error:
            return str(error)

    quick = read()
    with mock.patch.object(fetch_request, "_parse_wanted", None):
        assert quick == read()
    if not isinstance(quick, str):
        assert all(type(each) is FetchPartition for each in quick.partitions)


@settings(max_examples=300, deadline=None)
@given(response=round_responses(), version=st.integers(13, MAX_VERSION))
def test_the_fast_path_writes_the_same_responses(response: FetchResponse, version: int) -> None:
    quick = [bytes(part) for part in encode_response(version, response)]
    with mock.patch.object(fetch_response, "_encode_fetched", None):
        assert quick == [bytes(part) for part in encode_response(version, response)]


@pytest.mark.compiled
@pytest.mark.parametrize("count", [0, 1, 126, 127, 128, 17_000])
def test_many_partitions_of_a_consumer_use_the_fast_path(count: int) -> None:
    ids = [index.to_bytes(16, "big") for index in range(count)]
    wanted = [FetchPartition(None, each, 3, 5, 6, 1, 1, 0) for each in [*ids, *[bytes(16)] * count]]
    request = FetchRequest(None, -1, -1, 500, 1, 10, 0, 9, 8, wanted, [], "a")
    body = writable(b"".join(bytes(part) for part in encode_request(17, request)))
    fetched = [FetchedPartition(None, each.topic_id, 3, 6, 9, 8, 7, records=b"some") for each in wanted]
    with mock.patch.object(fetch_response, "put_by_topic", None):
        answer = b"".join(bytes(part) for part in encode_response(17, FetchResponse(fetched, session_id=9)))
    with mock.patch.object(fetch_request, "read_topic", None):
        assert parse_request(17, body) == request
    assert parse_response(17, memoryview(answer)) == FetchResponse(fetched, session_id=9)


@pytest.mark.compiled
@pytest.mark.parametrize("count", [0, 1, 2, 64])
def test_an_ordinary_round_of_a_follower_uses_the_fast_path(count: int) -> None:
    wanted = [FetchPartition(None, b"tu"[index % 2 :][:1] * 16, index, 5, 6, 1, 1, 0) for index in range(count)]
    request = FetchRequest(None, 2, 102, 500, 1, 10, 0, 9, 8, wanted, [], "")
    fetched = [
        FetchedPartition(None, each.topic_id, each.index, 0, 5, 5, 0, records=b"some" * (each.index % 3))
        for each in wanted
    ]
    response = FetchResponse(fetched, session_id=9)
    answer = memoryview(b"".join(bytes(part) for part in encode_response(17, response)))
    for module, slow in ((fetch_request, "put_by_topic"), (fetch_response, "read_by_topic")):
        with mock.patch.object(module, slow, None):
            if module is fetch_request:
                assert len(encode_request(17, request)[0]) == 40 + (18 + 33) * count
            else:
                assert parse_response(17, answer) == response


@pytest.mark.compiled
@pytest.mark.parametrize("count", [126, 127, 128, 1000])
def test_response_with_many_topics_uses_the_fast_path(count: int) -> None:
    fetched = [FetchedPartition(None, index.to_bytes(16, "big"), 0, 0, 5, 5, 0, records=b"r") for index in range(count)]
    answer = memoryview(b"".join(bytes(part) for part in encode_response(17, FetchResponse(fetched))))
    with mock.patch.object(fetch_response, "read_by_topic", None):
        assert [each.topic_id for each in parse_response(17, answer).partitions] == [each.topic_id for each in fetched]
