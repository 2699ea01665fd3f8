"""Headers and frames, against bytes counted by hand and against kio."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.request_header.v1.header import RequestHeader as KioHeader1
from kio.schema.request_header.v2.header import RequestHeader as KioHeader2
from kio.static.primitive import i16, i32

from fenceline.wire.apis import ApiKey, flexible
from fenceline.wire.frame import (
    MalformedRequest,
    RequestHeader,
    encode_request_frame,
    encode_request_header,
    encode_response_frame,
    parse_request_header,
    parse_response_header,
)
from tests.wire.strategies import kio_write

KEYS = st.sampled_from(list(ApiKey))
INT32 = st.integers(-(2**31), 2**31 - 1)


@given(KEYS, st.integers(0, 4), INT32, st.none() | st.text(max_size=200))
def test_request_header(key: ApiKey, version: int, correlation_id: int, client_id: str | None) -> None:
    header = encode_request_header(key, version, correlation_id, client_id)
    kio = KioHeader2 if flexible(key, version) else KioHeader1
    theirs = kio(
        request_api_key=i16(key),
        request_api_version=i16(version),
        correlation_id=i32(correlation_id),
        client_id=client_id,
    )
    assert header == kio_write(theirs)
    expected = RequestHeader(key, version, correlation_id, client_id, len(header))
    assert parse_request_header(memoryview(bytearray(header + b"body"))) == expected


def test_request_header_by_hand() -> None:
    frame = bytes.fromhex("0003 0009 00000007 0003") + b"abc" + bytes.fromhex("01 05 02 ffff") + b"body"
    assert parse_request_header(frame) == RequestHeader(3, 9, 7, "abc", 18)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0003",
        "0003000900000007",
        "0003 0009 00000007 0005 6161",
        "0003 0008 00000007 0005 6161",
        "0003 0009 00000007 0001 ff 00",
        "0003 0009 00000007 ffff",
        "0003 0009 00000007 ffff 01 00 7f",
        "0003 0009 00000007 ffff ffffffffffff",
    ],
)
def test_malformed_headers_are_rejected(text: str) -> None:
    with pytest.raises(MalformedRequest):
        parse_request_header(memoryview(bytes.fromhex(text)))


@pytest.mark.parametrize("rest", ["", "0003 616263 00", "7fff", "ffff ffff", "0001 ff"])
@pytest.mark.parametrize("version", [5, 99, 32767, -1])
def test_api_versions_from_the_future_still_has_a_correlation_id(version: int, rest: str) -> None:
    """`KIP-511`: the response is version 0 with UNSUPPORTED_VERSION, whatever follows the start of the request."""
    start = ApiKey.API_VERSIONS.to_bytes(2, "big") + version.to_bytes(2, "big", signed=True) + b"\0\0\0\x2a"
    header = parse_request_header(memoryview(start + bytes.fromhex(rest)))
    assert header[:3] == (ApiKey.API_VERSIONS, version, 42)


def test_unknown_api_key() -> None:
    assert parse_request_header(bytes.fromhex("7777 0001 00000001 ffff"))[:4] == (0x7777, 1, 1, None)


@given(st.binary(max_size=40))
def test_any_bytes_as_headers(raw: bytes) -> None:
    for view in (raw, memoryview(bytearray(raw))):
        try:
            header = parse_request_header(view)
        except MalformedRequest:
            pass
        else:
            assert header.body_position <= len(raw)
        for version in (0, 12):
            try:
                _, position = parse_response_header(ApiKey.METADATA, version, view)
            except MalformedRequest:
                continue
            assert position <= len(raw)


def test_response_frames() -> None:
    assert encode_response_frame(ApiKey.METADATA, 8, 5, b"xyz") == [bytes.fromhex("00000007 00000005") + b"xyz"]
    assert encode_response_frame(ApiKey.METADATA, 9, 5, b"xyz") == [bytes.fromhex("00000008 00000005 00") + b"xyz"]
    assert encode_response_frame(ApiKey.API_VERSIONS, 3, 5, b"xyz") == [bytes.fromhex("00000007 00000005") + b"xyz"]
    assert encode_response_frame(ApiKey.METADATA, 8, 5, []) == [bytes.fromhex("00000004 00000005")]


def test_large_parts_are_not_copied() -> None:
    records, head = memoryview(bytes(100_000)), bytearray(b"head")
    frame = encode_response_frame(ApiKey.FETCH, 4, 5, [head, records, b"tail"])
    assert frame[1] is records
    assert b"".join(frame) == (100_012).to_bytes(4, "big") + b"\0\0\0\5head" + bytes(100_000) + b"tail"
    large = encode_request_frame(ApiKey.PRODUCE, 8, 5, None, [records])
    assert large[1] is records
    assert int.from_bytes(large[0][:4], "big") == sum(map(len, large)) - 4


@given(KEYS, st.integers(0, 12), INT32)
def test_response_header(key: ApiKey, version: int, correlation_id: int) -> None:
    (frame,) = encode_response_frame(key, version, correlation_id, b"body")
    parsed, position = parse_response_header(key, version, frame[4:])
    assert (parsed, frame[4 + position :]) == (correlation_id, b"body")
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
