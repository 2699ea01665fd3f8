"""Fetch requests as bytes, read and written: see `fenceline.wire.fetch`.

Owns the bytes of the request. The flexible versions are read by hand in the fastest way: a request has a row for every
partition of a poll (`hot_path.md H3`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Final

from fenceline.wire.errors import MalformedRequest
from fenceline.wire.fetch_messages import (
    FIRST_FLEXIBLE,
    FIRST_WITH_DIRECTORY_ID,
    FIRST_WITH_HIGH_WATERMARK,
    FIRST_WITH_LEADER_EPOCH,
    FIRST_WITH_LOG_START,
    FIRST_WITH_RACK,
    FIRST_WITH_REPLICA_STATE,
    FIRST_WITH_SESSIONS,
    FIRST_WITH_TOPIC_IDS,
    MAX_VERSION,
    MIN_VERSION,
    NO_IDS,
    FetchPartition,
    FetchRequest,
)
from fenceline.wire.partitioned import (
    READ_ERRORS,
    ZERO_ID,
    bad_count,
    put_by_topic,
    put_count,
    put_string,
    put_topic,
    read_count,
    read_string,
    read_topic,
)
from fenceline.wire.plain import plain_fetch
from fenceline.wire.primitives import Buffer, put_uvarint, read_uvarint, skip_tagged_field, skip_tagged_fields

_encode_plain: Final[Callable[[FetchRequest], bytes | None] | None] = getattr(plain_fetch, "encode_request", None)
_parse_wanted: Final[Callable[[memoryview, int], tuple[list[FetchPartition], int] | None] | None] = getattr(
    plain_fetch, "parse_wanted", None
)
_NO_HIGH_WATERMARK: Final = 2**63 - 1

_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")
_HEAD_4: Final = struct.Struct(">iiiib")
_HEAD_7: Final = struct.Struct(">iiiibii")
_HEAD_15: Final = struct.Struct(">iiibii")
_SESSION: Final = struct.Struct(">ii")
_WANTED_4: Final = struct.Struct(">iqi")
_WANTED_5: Final = struct.Struct(">iqqi")
_WANTED_9: Final = struct.Struct(">iiqqi")
_WANTED_12: Final = struct.Struct(">iiqiqi")
_take_wanted_12: Final = _WANTED_12.unpack_from
_WANTED_12_BYTES: Final = _WANTED_12.size
_REPLICA_STATE: Final = struct.Struct(">iq")
_ONLY_REPLICA_STATE: Final = struct.Struct(">BBBiqB")
_EMPTY: Final = 1
"""The length of an empty array or string in the flexible versions."""


def parse_request(version: int, body: memoryview) -> FetchRequest:
    """The request in `body`. Raises MalformedRequest."""
    if not MIN_VERSION <= version <= MAX_VERSION:
        raise MalformedRequest(f"unsupported Fetch version {version}")
    try:
        return _parse_request(version, body)
    except READ_ERRORS as error:
        raise MalformedRequest(f"Fetch request v{version}: {error}") from None


def _parse_request(version: int, body: memoryview) -> FetchRequest:
    end = len(body)
    flexible, by_id = version >= FIRST_FLEXIBLE, version >= FIRST_WITH_TOPIC_IDS
    replica_id, session_id, session_epoch = -1, 0, -1
    if version >= FIRST_WITH_REPLICA_STATE:
        max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch = _HEAD_15.unpack_from(body)
        position = _HEAD_15.size
    elif version >= FIRST_WITH_SESSIONS:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch = _HEAD_7.unpack_from(body)
        position = _HEAD_7.size
    else:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation = _HEAD_4.unpack_from(body)
        position = _HEAD_4.size
    if flexible:
        partitions, position = _take_flexible_wanted(version, body, position, end)
    else:
        partitions, position = _take_legacy_wanted(version, body, position, end)
    forgotten: list[tuple[str | None, bytes | None, list[int]]] = []
    rack_id = ""
    if flexible and body[position] == _EMPTY and body[position + 1] == _EMPTY:
        position += 2
    else:
        if version >= FIRST_WITH_SESSIONS:
            forgotten, position = _take_forgotten(body, position, end, flexible, by_id)
        if version >= FIRST_WITH_RACK:
            rack_id, position = _take_rack(body, position, end, flexible)
    request = FetchRequest(
        None,
        replica_id,
        -1,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation,
        session_id,
        session_epoch,
        partitions,
        forgotten,
        rack_id,
    )
    if flexible and body[position]:
        _take_request_tags(version, request, body, position, end)
    return request


def _take_flexible_wanted(version: int, body: memoryview, position: int, end: int) -> tuple[list[FetchPartition], int]:
    by_id = version >= FIRST_WITH_TOPIC_IDS
    if by_id and _parse_wanted is not None:
        plain = _parse_wanted(body, position)
        if plain is not None:
            return plain
    partitions: list[FetchPartition] = []
    topic_count, position = read_count(body, position, end, True, 3)
    for _ in range(topic_count):
        topic, topic_id, position = read_topic(body, position, end, True, by_id)
        count = body[position]
        position += 1
        if count > 127:
            count, position = read_uvarint(body, position - 1)
        if not 0 < count <= (end - position) // (_WANTED_12_BYTES + 1) + 1:
            raise bad_count(count - 1, end - position)
        for _ in range(count - 1):
            index, leader_epoch, offset, last_epoch, log_start, max_part = _take_wanted_12(body, position)
            position += _WANTED_12_BYTES
            wanted = FetchPartition(topic, topic_id, index, offset, max_part, leader_epoch, last_epoch, log_start)
            if body[position]:
                wanted, position = _with_tags(version, wanted, body, position, end)
            else:
                position += 1
            partitions.append(wanted)
        position = skip_tagged_fields(body, position, end) if body[position] else position + 1
    return partitions, position


def _with_tags(
    version: int, wanted: FetchPartition, body: memoryview, position: int, end: int
) -> tuple[FetchPartition, int]:
    count, position = read_uvarint(body, position)
    for _ in range(count):
        tag, start = read_uvarint(body, position)
        position = skip_tagged_field(body, position, end)
        _, start = read_uvarint(body, start)
        if tag == 0 and version >= FIRST_WITH_DIRECTORY_ID:
            if position - start != 16:
                raise MalformedRequest("replica_directory_id does not have 16 bytes")
            directory_id = bytes(body[start:position])
            wanted = wanted._replace(replica_directory_id=None if directory_id == ZERO_ID else directory_id)
        elif tag == 1 and version >= FIRST_WITH_HIGH_WATERMARK:
            if position - start != 8:
                raise MalformedRequest("high_watermark does not have 8 bytes")
            (high_watermark,) = _I64.unpack_from(body, start)
            wanted = wanted._replace(high_watermark=None if high_watermark == _NO_HIGH_WATERMARK else high_watermark)
    return wanted, position


def _take_request_tags(version: int, request: FetchRequest, body: memoryview, position: int, end: int) -> None:
    if end - position == _ONLY_REPLICA_STATE.size and version >= FIRST_WITH_REPLICA_STATE:
        count, tag, size, replica_id, replica_epoch, inner = _ONLY_REPLICA_STATE.unpack_from(body, position)
        if (count, tag, size, inner) == (1, 1, _REPLICA_STATE.size + 1, 0):
            request.replica_id, request.replica_epoch = replica_id, replica_epoch
            return
    count, position = read_uvarint(body, position)
    for _ in range(count):
        tag, start = read_uvarint(body, position)
        position = skip_tagged_field(body, position, end)
        _, start = read_uvarint(body, start)
        if tag == 0:
            request.cluster_id, start = read_string(body, start, end, True)
        elif tag == 1 and version >= FIRST_WITH_REPLICA_STATE:
            request.replica_id, request.replica_epoch = _REPLICA_STATE.unpack_from(body, start)
            start = skip_tagged_fields(body, start + _REPLICA_STATE.size, end)
        else:
            continue
        if start != position:
            raise MalformedRequest(f"tagged field {tag} does not have its declared length")


def _take_legacy_wanted(version: int, body: memoryview, position: int, end: int) -> tuple[list[FetchPartition], int]:
    layout = _legacy_layout(version)
    partitions: list[FetchPartition] = []
    topic_count, position = read_count(body, position, end, False, 6)
    for _ in range(topic_count):
        topic, _, position = read_topic(body, position, end, False, False)
        count, position = read_count(body, position, end, False, layout.size)
        for _ in range(count):
            leader_epoch = log_start = -1
            if version >= FIRST_WITH_LEADER_EPOCH:
                index, leader_epoch, offset, log_start, max_part = layout.unpack_from(body, position)
            elif version >= FIRST_WITH_LOG_START:
                index, offset, log_start, max_part = layout.unpack_from(body, position)
            else:
                index, offset, max_part = layout.unpack_from(body, position)
            position += layout.size
            partitions.append(FetchPartition(topic, None, index, offset, max_part, leader_epoch, -1, log_start))
    return partitions, position


def _take_rack(body: memoryview, position: int, end: int, flexible: bool) -> tuple[str, int]:
    rack_id, position = read_string(body, position, end, flexible)
    if rack_id is None:
        raise MalformedRequest("rack_id is null")
    return rack_id, position


def _legacy_layout(version: int) -> struct.Struct:
    if version >= FIRST_WITH_LEADER_EPOCH:
        return _WANTED_9
    return _WANTED_5 if version >= FIRST_WITH_LOG_START else _WANTED_4


def _take_forgotten(
    body: memoryview, position: int, end: int, flexible: bool, by_id: bool
) -> tuple[list[tuple[str | None, bytes | None, list[int]]], int]:
    forgotten = []
    topics, position = read_count(body, position, end, flexible, 3)
    for _ in range(topics):
        topic, topic_id, position = read_topic(body, position, end, flexible, by_id)
        count, position = read_count(body, position, end, flexible, 4)
        forgotten.append((topic, topic_id, list(struct.unpack_from(f">{count}i", body, position))))
        position += 4 * count
        if flexible:
            position = skip_tagged_fields(body, position, end)
    return forgotten, position


def encode_request(version: int, request: FetchRequest) -> list[Buffer]:
    """The body in one buffer. Fields that the version lacks are omitted."""
    if _encode_plain is not None and version >= FIRST_WITH_REPLICA_STATE:
        plain = _encode_plain(request)
        if plain is not None:
            return [plain]
    flexible, by_id = version >= FIRST_FLEXIBLE, version >= FIRST_WITH_TOPIC_IDS
    out = bytearray()
    if version < FIRST_WITH_REPLICA_STATE:
        out += _I32.pack(request.replica_id)
    out += struct.pack(">iiib", request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level)
    if version >= FIRST_WITH_SESSIONS:
        out += _SESSION.pack(request.session_id, request.session_epoch)
    put_by_topic(out, request.partitions, flexible, by_id, partial(_put_wanted, version))
    if version >= FIRST_WITH_SESSIONS:
        put_count(out, len(request.forgotten), flexible)
        for topic, topic_id, indexes in request.forgotten:
            put_topic(out, topic, topic_id, flexible, by_id)
            put_count(out, len(indexes), flexible)
            out += struct.pack(f">{len(indexes)}i", *indexes)
            if flexible:
                out.append(0)
    if version >= FIRST_WITH_RACK:
        put_string(out, request.rack_id, flexible)
    if flexible:
        _put_request_tags(out, version, request)
    return [out]


def _put_wanted(version: int, out: bytearray, wanted: FetchPartition) -> bytearray:
    _, _, index, offset, max_bytes, leader_epoch, last_epoch, log_start, directory_id, high_watermark = wanted
    if version < FIRST_WITH_LOG_START:
        out += _WANTED_4.pack(index, offset, max_bytes)
    elif version < FIRST_WITH_LEADER_EPOCH:
        out += _WANTED_5.pack(index, offset, log_start, max_bytes)
    elif version < FIRST_FLEXIBLE:
        out += _WANTED_9.pack(index, leader_epoch, offset, log_start, max_bytes)
    else:
        out += _WANTED_12.pack(index, leader_epoch, offset, last_epoch, log_start, max_bytes)
        has_directory = version >= FIRST_WITH_DIRECTORY_ID and directory_id not in (None, ZERO_ID)
        has_watermark = version >= FIRST_WITH_HIGH_WATERMARK and high_watermark not in (None, _NO_HIGH_WATERMARK)
        out.append(has_directory + has_watermark)
        if has_directory:
            assert directory_id is not None
            out += b"\0\x10" + directory_id
        if has_watermark:
            assert high_watermark is not None
            out += b"\1\x08" + _I64.pack(high_watermark)
    return out


def _put_request_tags(out: bytearray, version: int, request: FetchRequest) -> None:
    has_cluster = request.cluster_id is not None
    state = (request.replica_id, request.replica_epoch)
    has_state = version >= FIRST_WITH_REPLICA_STATE and state != NO_IDS
    out.append(has_cluster + has_state)
    if has_cluster:
        encoded = bytearray()
        put_string(encoded, request.cluster_id, True)
        out.append(0)
        put_uvarint(out, len(encoded))
        out += encoded
    if has_state:
        out += b"\1\x0d" + _REPLICA_STATE.pack(*state) + b"\0"
