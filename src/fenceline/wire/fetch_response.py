"""Fetch responses as bytes, read and written: see `fenceline.wire.fetch`.

Owns the bytes around the records. Never parses records and never copies them, except small ones when they are sent.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from fenceline.wire.errors import MalformedRequest
from fenceline.wire.fetch_messages import (
    FIRST_FLEXIBLE,
    FIRST_WITH_ENDPOINTS,
    FIRST_WITH_LOG_START,
    FIRST_WITH_RACK,
    FIRST_WITH_SESSIONS,
    FIRST_WITH_TOPIC_IDS,
    MAX_VERSION,
    MIN_VERSION,
    NO_IDS,
    FetchedPartition,
    FetchResponse,
)
from fenceline.wire.partitioned import (
    READ_ERRORS,
    LeaderEndpoint,
    put_by_topic,
    put_count,
    put_endpoints_tag,
    put_records,
    read_by_topic,
    read_count,
    read_endpoints_tag,
    read_records,
)
from fenceline.wire.plain import plain_fetch
from fenceline.wire.primitives import Buffer, read_uvarint, skip_tagged_field, skip_tagged_fields

_parse_plain: Final[Callable[[memoryview], FetchResponse | None] | None] = getattr(plain_fetch, "parse_response", None)
_encode_fetched: Final[Callable[[bytes, Sequence[FetchedPartition]], list[Buffer] | None] | None] = getattr(
    plain_fetch, "encode_fetched", None
)
_I32: Final = struct.Struct(">i")
_HEAD: Final = struct.Struct(">hi")
"""Error code and session id."""
_FETCHED_4: Final = struct.Struct(">ihqq")
_FETCHED_5: Final = struct.Struct(">ihqqq")
_FETCHED_12_PLAIN: Final = struct.Struct(">ihqqqBi")
_ABORTED: Final = struct.Struct(">qq")
_EPOCH_END: Final = struct.Struct(">iq")
_LEADER: Final = struct.Struct(">ii")
_SNAPSHOT: Final = struct.Struct(">qi")


def encode_response(version: int, response: FetchResponse) -> list[Buffer]:
    """The body of the response as buffers to send together; large records are not copied."""
    flexible, by_id = version >= FIRST_FLEXIBLE, version >= FIRST_WITH_TOPIC_IDS
    buffers: list[Buffer] = []
    out = bytearray(_I32.pack(response.throttle_ms))
    if version >= FIRST_WITH_SESSIONS:
        out += _HEAD.pack(response.error_code, response.session_id)
    if _encode_fetched is not None and by_id and not response.node_endpoints and type(response.partitions) is list:
        plain = _encode_fetched(bytes(out), response.partitions)
        if plain is not None:
            return plain
    put = partial(_put_flexible_fetched if flexible else _put_legacy_fetched, buffers, version)
    out = put_by_topic(out, response.partitions, flexible, by_id, put)
    if flexible:
        put_endpoints_tag(out, response.node_endpoints if version >= FIRST_WITH_ENDPOINTS else ())
    if out:
        buffers.append(out)
    return buffers


def _put_flexible_fetched(buffers: list[Buffer], version: int, out: bytearray, fetched: FetchedPartition) -> bytearray:
    _, _, index, code, watermark, stable, log_start, diverging, leader, snapshot, aborted, preferred, records = fetched
    if not aborted:
        out += _FETCHED_12_PLAIN.pack(index, code, watermark, stable, log_start, 0 if aborted is None else 1, preferred)
    else:
        out += _FETCHED_5.pack(index, code, watermark, stable, log_start)
        put_count(out, len(aborted), True)
        for producer_id, first_offset in aborted:
            out += _ABORTED.pack(producer_id, first_offset)
            out.append(0)
        out += _I32.pack(preferred)
    out = put_records(buffers, out, records, True)
    if diverging is None and leader is None and snapshot is None:
        out.append(0)
        return out
    tags = bytearray()
    count = 0
    if diverging is not None and diverging != NO_IDS:
        tags += b"\0\x0d" + _EPOCH_END.pack(*diverging) + b"\0"
        count += 1
    if leader is not None and leader != NO_IDS:
        tags += b"\1\x09" + _LEADER.pack(*leader) + b"\0"
        count += 1
    if snapshot is not None and snapshot != NO_IDS:
        tags += b"\2\x0d" + _SNAPSHOT.pack(*snapshot) + b"\0"
        count += 1
    out.append(count)
    out += tags
    return out


def _put_legacy_fetched(buffers: list[Buffer], version: int, out: bytearray, fetched: FetchedPartition) -> bytearray:
    _, _, index, code, watermark, stable, log_start, _, _, _, aborted, preferred, records = fetched
    if version >= FIRST_WITH_LOG_START:
        out += _FETCHED_5.pack(index, code, watermark, stable, log_start)
    else:
        out += _FETCHED_4.pack(index, code, watermark, stable)
    if aborted is None:
        out += b"\xff\xff\xff\xff"
    else:
        out += _I32.pack(len(aborted))
        for producer_id, first_offset in aborted:
            out += _ABORTED.pack(producer_id, first_offset)
    if version >= FIRST_WITH_RACK:
        out += _I32.pack(preferred)
    return put_records(buffers, out, records, False)


def parse_response(version: int, body: memoryview) -> FetchResponse:
    """The response in `body`; its records are views of it. Raises MalformedRequest."""
    if not MIN_VERSION <= version <= MAX_VERSION:
        raise MalformedRequest(f"unsupported Fetch version {version}")
    if _parse_plain is not None and version >= FIRST_WITH_TOPIC_IDS:
        plain = _parse_plain(body)
        if plain is not None:
            return plain
    try:
        return _parse_response(version, body)
    except READ_ERRORS as error:
        raise MalformedRequest(f"Fetch response v{version}: {error}") from None


def _parse_response(version: int, body: memoryview) -> FetchResponse:
    flexible, by_id = version >= FIRST_FLEXIBLE, version >= FIRST_WITH_TOPIC_IDS
    end = len(body)
    error_code = session_id = 0
    (throttle_ms,) = _I32.unpack_from(body)
    position = 4
    if version >= FIRST_WITH_SESSIONS:
        error_code, session_id = _HEAD.unpack_from(body, position)
        position += _HEAD.size
    partitions, position = read_by_topic(
        body, position, end, flexible, by_id, _FETCHED_4.size, partial(_take_fetched, version)
    )
    endpoints: tuple[LeaderEndpoint, ...] = ()
    if flexible and body[position]:
        endpoints = read_endpoints_tag(body, position, end, version >= FIRST_WITH_ENDPOINTS)
    return FetchResponse(partitions, throttle_ms, error_code, session_id, endpoints)


def largest_partition(version: int, begun: memoryview) -> tuple[bytes, int] | None:
    """(topic id, index) of the partition that makes a response too large, from its first bytes `begun`.

    It is the one whose records end after them, otherwise the one with the most records. From version 13 on. None:
    unknown.
    """
    assert version >= FIRST_WITH_TOPIC_IDS, "topics are identified by id"
    end, most, found = len(begun), 0, None
    try:
        topics, position = read_uvarint(begun, _I32.size + _HEAD.size)
        for _ in range(topics - 1):
            topic_id = bytes(begun[position : position + 16])
            count, position = read_uvarint(begun, position + 16)
            for _ in range(count - 1):
                (index,) = _I32.unpack_from(begun, position)
                try:
                    fetched, position = _take_fetched(version, begun, position, end, None, topic_id)
                except MalformedRequest:
                    return topic_id, index
                if fetched.records is not None and len(fetched.records) > most:
                    most, found = len(fetched.records), (topic_id, index)
            position = skip_tagged_fields(begun, position, end)
    except (*READ_ERRORS, MalformedRequest):
        return None
    return found


def _take_fetched(
    version: int, body: memoryview, position: int, end: int, topic: str | None, topic_id: bytes | None
) -> tuple[FetchedPartition, int]:
    flexible = version >= FIRST_FLEXIBLE
    log_start = preferred = -1
    if flexible and body[position + _FETCHED_5.size] == 0:
        index, code, watermark, stable, log_start, _, preferred = _FETCHED_12_PLAIN.unpack_from(body, position)
        position += _FETCHED_12_PLAIN.size
        aborted = None
    else:
        if version >= FIRST_WITH_LOG_START:
            index, code, watermark, stable, log_start = _FETCHED_5.unpack_from(body, position)
            position += _FETCHED_5.size
        else:
            index, code, watermark, stable = _FETCHED_4.unpack_from(body, position)
            position += _FETCHED_4.size
        aborted, position = _take_aborted(body, position, end, flexible)
        if version >= FIRST_WITH_RACK:
            (preferred,) = _I32.unpack_from(body, position)
            position += 4
    records, position = read_records(body, position, end, flexible)
    diverging = leader = snapshot = None
    if flexible and body[position] == 0:
        position += 1
    elif flexible:
        count, position = read_uvarint(body, position)
        for _ in range(count):
            tag, start = read_uvarint(body, position)
            position = skip_tagged_field(body, position, end)
            _, start = read_uvarint(body, start)
            if tag == 0:
                diverging = _take_pair(_EPOCH_END, body, start, position)
            elif tag == 1:
                leader = _take_pair(_LEADER, body, start, position)
            elif tag == 2:
                snapshot = _take_pair(_SNAPSHOT, body, start, position)
    fetched = FetchedPartition(
        topic,
        topic_id,
        index,
        code,
        watermark,
        stable,
        log_start,
        diverging,
        leader,
        snapshot,
        aborted,
        preferred,
        records,
    )
    return fetched, position


def _take_aborted(
    body: memoryview, position: int, end: int, flexible: bool
) -> tuple[tuple[tuple[int, int], ...] | None, int]:
    if flexible and body[position] == 0:
        return None, position + 1
    if not flexible and _I32.unpack_from(body, position)[0] < 0:
        return None, position + 4
    count, position = read_count(body, position, end, flexible, _ABORTED.size)
    aborted = []
    for _ in range(count):
        producer_id, first_offset = _ABORTED.unpack_from(body, position)
        position += _ABORTED.size
        if flexible:
            position = skip_tagged_fields(body, position, end)
        aborted.append((producer_id, first_offset))
    return tuple(aborted), position


def _take_pair(layout: struct.Struct, body: memoryview, start: int, end: int) -> tuple[int, int]:
    first, second = layout.unpack_from(body, start)
    if skip_tagged_fields(body, start + layout.size, end) != end:
        raise MalformedRequest("a tagged struct does not have its declared length")
    return first, second
