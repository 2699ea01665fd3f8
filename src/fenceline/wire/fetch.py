"""Fetch (api key 1), versions 4 to 18, both directions of both messages, written by hand (`hot_path.md H3`, `H4`).

Owns the bytes around the records. Never looks into records and never copies them, except small ones on their way out.

Versions: 5 log start offset; 7 sessions (KIP-227); 9 leader epoch (KIP-320); 11 rack (KIP-392); 12 flexible, last
fetched epoch, divergence (KIP-595); 13 topic ids in place of names; 15 replica state in a tag; 16 node endpoints; 17
replica directory id; 18 the follower's high watermark (KIP-1166). Lists are grouped by runs of one topic.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from fenceline.wire.errors import MalformedRequest
from fenceline.wire.partitioned import (
    READ_ERRORS,
    NodeEndpoint,
    bad_count,
    put_count,
    put_endpoints_tag,
    put_records,
    put_string,
    put_topic,
    runs_by_topic,
    take_count,
    take_endpoints_tag,
    take_records,
    take_string,
    take_topic,
)
from fenceline.wire.primitives import Buffer, put_uvarint, skip_tagged_field, skip_tagged_fields, take_uvarint

__all__ = [
    "FetchPartition",
    "FetchRequest",
    "FetchResponse",
    "FetchedPartition",
    "NodeEndpoint",
    "encode_request",
    "encode_response",
    "parse_request",
    "parse_response",
]

MIN_VERSION: Final = 4
MAX_VERSION: Final = 18
FIRST_FLEXIBLE: Final = 12
FIRST_WITH_TOPIC_IDS: Final = 13
_FIRST_WITH_LOG_START: Final = 5
_FIRST_WITH_SESSIONS: Final = 7
_FIRST_WITH_LEADER_EPOCH: Final = 9
_FIRST_WITH_RACK: Final = 11
_FIRST_WITH_REPLICA_STATE: Final = 15
_FIRST_WITH_ENDPOINTS: Final = 16
_FIRST_WITH_DIRECTORY_ID: Final = 17
_FIRST_WITH_HIGH_WATERMARK: Final = 18

_NO_HIGH_WATERMARK: Final = 2**63 - 1
_NO_IDS: Final = (-1, -1)
_ZERO_ID: Final = bytes(16)

_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")
_HEAD_4: Final = struct.Struct(">iiiib")
_HEAD_7: Final = struct.Struct(">iiiibii")
_HEAD_15: Final = struct.Struct(">iiibii")
_WANTED_4: Final = struct.Struct(">iqi")
_WANTED_5: Final = struct.Struct(">iqqi")
_WANTED_9: Final = struct.Struct(">iiqqi")
_WANTED_12: Final = struct.Struct(">iiqiqi")
_take_wanted_12: Final = _WANTED_12.unpack_from
_WANTED_12_BYTES: Final = _WANTED_12.size
_REPLICA_STATE: Final = struct.Struct(">iq")
_FETCHED_4: Final = struct.Struct(">ihqq")
_FETCHED_5: Final = struct.Struct(">ihqqq")
_FETCHED_12_PLAIN: Final = struct.Struct(">ihqqqBi")
_ABORTED: Final = struct.Struct(">qq")
_EPOCH_END: Final = struct.Struct(">iq")
_LEADER: Final = struct.Struct(">ii")
_SNAPSHOT: Final = struct.Struct(">qi")


class FetchPartition(NamedTuple):
    """One partition that is asked for. The topic is named before version 13, given by its 16 raw bytes from then on.

    replica_directory_id: 16 raw bytes, None where the request has none. high_watermark: the follower's own, None where
    it does not take part (KIP-1166).
    """

    topic: str | None
    topic_id: bytes | None
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    replica_directory_id: bytes | None = None
    high_watermark: int | None = None


@dataclass(slots=True)
class FetchRequest:
    """A fetch request. `replica_id` -1 is a consumer; `forgotten`: (topic, topic id, partition indexes)."""

    cluster_id: str | None
    replica_id: int
    replica_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    partitions: list[FetchPartition]
    forgotten: list[tuple[str | None, bytes | None, list[int]]]
    rack_id: str


class FetchedPartition(NamedTuple):
    """The answer for one partition.

    diverging_epoch: (epoch, end offset). current_leader: (id, epoch). snapshot_id: (end offset, epoch).
    aborted_transactions: (producer id, first offset) each; None is null.
    """

    topic: str | None
    topic_id: bytes | None
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    diverging_epoch: tuple[int, int] | None = None
    current_leader: tuple[int, int] | None = None
    snapshot_id: tuple[int, int] | None = None
    aborted_transactions: Sequence[tuple[int, int]] | None = None
    preferred_read_replica: int = -1
    records: Buffer | None = None


@dataclass(slots=True)
class FetchResponse:
    """The answer to a fetch. Error code and session from version 7 on, `node_endpoints` from version 16 on."""

    partitions: Sequence[FetchedPartition]
    throttle_ms: int = 0
    error_code: int = 0
    session_id: int = 0
    node_endpoints: Sequence[NodeEndpoint] = ()


# --- requests ---------------------------------------------------------------------------------------------------------


def parse_request(version: int, body: memoryview) -> FetchRequest:
    """The request in `body`. Raises MalformedRequest."""
    if not MIN_VERSION <= version <= MAX_VERSION:
        raise MalformedRequest(f"Fetch has no version {version}")
    try:
        if version >= FIRST_FLEXIBLE:
            return _parse_flexible_request(version, body)
        return _parse_legacy_request(version, body)
    except READ_ERRORS as error:
        raise MalformedRequest(f"Fetch request v{version}: {error}") from None


def _parse_flexible_request(version: int, body: memoryview) -> FetchRequest:
    end = len(body)
    replica_id = -1
    if version >= _FIRST_WITH_REPLICA_STATE:
        max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch = _HEAD_15.unpack_from(body)
        position = _HEAD_15.size
    else:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch = _HEAD_7.unpack_from(body)
        position = _HEAD_7.size
    by_id = version >= FIRST_WITH_TOPIC_IDS
    partitions: list[FetchPartition] = []
    topic_count, position = take_count(body, position, end, True, 3)
    for _ in range(topic_count):
        topic, topic_id, position = take_topic(body, position, end, True, by_id)
        count = body[position]
        position += 1
        if count > 127:
            count, position = take_uvarint(body, position - 1)
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
    forgotten, position = _take_forgotten(body, position, end, True, by_id)
    rack_id, position = _take_rack(body, position, end, True)
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
    if body[position]:
        _take_request_tags(version, request, body, position, end)
    return request


def _with_tags(
    version: int, wanted: FetchPartition, body: memoryview, position: int, end: int
) -> tuple[FetchPartition, int]:
    count, position = take_uvarint(body, position)
    for _ in range(count):
        tag, start = take_uvarint(body, position)
        position = skip_tagged_field(body, position, end)
        _, start = take_uvarint(body, start)
        if tag == 0 and version >= _FIRST_WITH_DIRECTORY_ID:
            if position - start != 16:
                raise MalformedRequest("replica_directory_id is not 16 bytes")
            directory_id = bytes(body[start:position])
            wanted = wanted._replace(replica_directory_id=None if directory_id == _ZERO_ID else directory_id)
        elif tag == 1 and version >= _FIRST_WITH_HIGH_WATERMARK:
            if position - start != 8:
                raise MalformedRequest("high_watermark is not 8 bytes")
            (high_watermark,) = _I64.unpack_from(body, start)
            wanted = wanted._replace(high_watermark=None if high_watermark == _NO_HIGH_WATERMARK else high_watermark)
    return wanted, position


def _take_request_tags(version: int, request: FetchRequest, body: memoryview, position: int, end: int) -> None:
    count, position = take_uvarint(body, position)
    for _ in range(count):
        tag, start = take_uvarint(body, position)
        position = skip_tagged_field(body, position, end)
        _, start = take_uvarint(body, start)
        if tag == 0:
            request.cluster_id, start = take_string(body, start, end, True)
        elif tag == 1 and version >= _FIRST_WITH_REPLICA_STATE:
            request.replica_id, request.replica_epoch = _REPLICA_STATE.unpack_from(body, start)
            start = skip_tagged_fields(body, start + _REPLICA_STATE.size, end)
        else:
            continue
        if start != position:
            raise MalformedRequest(f"tagged field {tag} is not as long as it says")


def _parse_legacy_request(version: int, body: memoryview) -> FetchRequest:
    end = len(body)
    session_id, session_epoch = 0, -1
    if version >= _FIRST_WITH_SESSIONS:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch = _HEAD_7.unpack_from(body)
        position = _HEAD_7.size
    else:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation = _HEAD_4.unpack_from(body)
        position = _HEAD_4.size
    layout = _legacy_layout(version)
    partitions: list[FetchPartition] = []
    topic_count, position = take_count(body, position, end, False, 6)
    for _ in range(topic_count):
        topic, _, position = take_topic(body, position, end, False, False)
        count, position = take_count(body, position, end, False, layout.size)
        for _ in range(count):
            leader_epoch = log_start = -1
            if version >= _FIRST_WITH_LEADER_EPOCH:
                index, leader_epoch, offset, log_start, max_part = layout.unpack_from(body, position)
            elif version >= _FIRST_WITH_LOG_START:
                index, offset, log_start, max_part = layout.unpack_from(body, position)
            else:
                index, offset, max_part = layout.unpack_from(body, position)
            position += layout.size
            partitions.append(FetchPartition(topic, None, index, offset, max_part, leader_epoch, -1, log_start))
    forgotten: list[tuple[str | None, bytes | None, list[int]]] = []
    rack_id = ""
    if version >= _FIRST_WITH_SESSIONS:
        forgotten, position = _take_forgotten(body, position, end, False, False)
    if version >= _FIRST_WITH_RACK:
        rack_id = _take_rack(body, position, end, False)[0]
    return FetchRequest(
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


def _take_rack(body: memoryview, position: int, end: int, flexible: bool) -> tuple[str, int]:
    rack_id, position = take_string(body, position, end, flexible)
    if rack_id is None:
        raise MalformedRequest("rack_id is null")
    return rack_id, position


def _legacy_layout(version: int) -> struct.Struct:
    if version >= _FIRST_WITH_LEADER_EPOCH:
        return _WANTED_9
    return _WANTED_5 if version >= _FIRST_WITH_LOG_START else _WANTED_4


def _take_forgotten(
    body: memoryview, position: int, end: int, flexible: bool, by_id: bool
) -> tuple[list[tuple[str | None, bytes | None, list[int]]], int]:
    forgotten = []
    topics, position = take_count(body, position, end, flexible, 3)
    for _ in range(topics):
        topic, topic_id, position = take_topic(body, position, end, flexible, by_id)
        count, position = take_count(body, position, end, flexible, 4)
        forgotten.append((topic, topic_id, list(struct.unpack_from(f">{count}i", body, position))))
        position += 4 * count
        if flexible:
            position = skip_tagged_fields(body, position, end)
    return forgotten, position


def encode_request(version: int, request: FetchRequest) -> list[Buffer]:
    """The body, one buffer. Fields that the version lacks are left out."""
    flexible, by_id = version >= FIRST_FLEXIBLE, version >= FIRST_WITH_TOPIC_IDS
    out = bytearray()
    if version < _FIRST_WITH_REPLICA_STATE:
        out += _I32.pack(request.replica_id)
    out += struct.pack(">iiib", request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level)
    if version >= _FIRST_WITH_SESSIONS:
        out += _LEADER.pack(request.session_id, request.session_epoch)
    runs = runs_by_topic(request.partitions, by_id)
    put_count(out, len(runs), flexible)
    for run in runs:
        put_topic(out, run[0].topic, run[0].topic_id, flexible, by_id)
        put_count(out, len(run), flexible)
        for wanted in run:
            _put_wanted(out, version, wanted)
        if flexible:
            out.append(0)
    if version >= _FIRST_WITH_SESSIONS:
        put_count(out, len(request.forgotten), flexible)
        for topic, topic_id, indexes in request.forgotten:
            put_topic(out, topic, topic_id, flexible, by_id)
            put_count(out, len(indexes), flexible)
            out += struct.pack(f">{len(indexes)}i", *indexes)
            if flexible:
                out.append(0)
    if version >= _FIRST_WITH_RACK:
        put_string(out, request.rack_id, flexible)
    if flexible:
        _put_request_tags(out, version, request)
    return [out]


def _put_wanted(out: bytearray, version: int, wanted: FetchPartition) -> None:
    _, _, index, offset, max_bytes, leader_epoch, last_epoch, log_start, directory_id, high_watermark = wanted
    if version < _FIRST_WITH_LOG_START:
        out += _WANTED_4.pack(index, offset, max_bytes)
    elif version < _FIRST_WITH_LEADER_EPOCH:
        out += _WANTED_5.pack(index, offset, log_start, max_bytes)
    elif version < FIRST_FLEXIBLE:
        out += _WANTED_9.pack(index, leader_epoch, offset, log_start, max_bytes)
    else:
        out += _WANTED_12.pack(index, leader_epoch, offset, last_epoch, log_start, max_bytes)
        has_directory = version >= _FIRST_WITH_DIRECTORY_ID and directory_id not in (None, _ZERO_ID)
        has_watermark = version >= _FIRST_WITH_HIGH_WATERMARK and high_watermark not in (None, _NO_HIGH_WATERMARK)
        out.append(has_directory + has_watermark)
        if has_directory:
            assert directory_id is not None
            out += b"\0\x10" + directory_id
        if has_watermark:
            assert high_watermark is not None
            out += b"\1\x08" + _I64.pack(high_watermark)


def _put_request_tags(out: bytearray, version: int, request: FetchRequest) -> None:
    has_cluster = request.cluster_id is not None
    state = (request.replica_id, request.replica_epoch)
    has_state = version >= _FIRST_WITH_REPLICA_STATE and state != _NO_IDS
    out.append(has_cluster + has_state)
    if has_cluster:
        encoded = bytearray()
        put_string(encoded, request.cluster_id, True)
        out.append(0)
        put_uvarint(out, len(encoded))
        out += encoded
    if has_state:
        out += b"\1\x0d" + _REPLICA_STATE.pack(*state) + b"\0"


# --- responses --------------------------------------------------------------------------------------------------------


def encode_response(version: int, response: FetchResponse) -> list[Buffer]:
    """The body of the answer as buffers to send in one go; large records are not copied."""
    flexible, by_id = version >= FIRST_FLEXIBLE, version >= FIRST_WITH_TOPIC_IDS
    put = _put_flexible_fetched if flexible else _put_legacy_fetched
    buffers: list[Buffer] = []
    out = bytearray(_I32.pack(response.throttle_ms))
    if version >= _FIRST_WITH_SESSIONS:
        out += struct.pack(">hi", response.error_code, response.session_id)
    runs = runs_by_topic(response.partitions, by_id)
    put_count(out, len(runs), flexible)
    for run in runs:
        put_topic(out, run[0].topic, run[0].topic_id, flexible, by_id)
        put_count(out, len(run), flexible)
        for fetched in run:
            out = put(buffers, out, version, fetched)
        if flexible:
            out.append(0)
    if flexible:
        put_endpoints_tag(out, response.node_endpoints if version >= _FIRST_WITH_ENDPOINTS else ())
    if out:
        buffers.append(out)
    return buffers


def _put_flexible_fetched(buffers: list[Buffer], out: bytearray, version: int, fetched: FetchedPartition) -> bytearray:
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
    if diverging is not None and diverging != _NO_IDS:
        tags += b"\0\x0d" + _EPOCH_END.pack(*diverging) + b"\0"
        count += 1
    if leader is not None and leader != _NO_IDS:
        tags += b"\1\x09" + _LEADER.pack(*leader) + b"\0"
        count += 1
    if snapshot is not None and snapshot != _NO_IDS:
        tags += b"\2\x0d" + _SNAPSHOT.pack(*snapshot) + b"\0"
        count += 1
    out.append(count)
    out += tags
    return out


def _put_legacy_fetched(buffers: list[Buffer], out: bytearray, version: int, fetched: FetchedPartition) -> bytearray:
    _, _, index, code, watermark, stable, log_start, _, _, _, aborted, preferred, records = fetched
    if version >= _FIRST_WITH_LOG_START:
        out += _FETCHED_5.pack(index, code, watermark, stable, log_start)
    else:
        out += _FETCHED_4.pack(index, code, watermark, stable)
    if aborted is None:
        out += b"\xff\xff\xff\xff"
    else:
        out += _I32.pack(len(aborted))
        for producer_id, first_offset in aborted:
            out += _ABORTED.pack(producer_id, first_offset)
    if version >= _FIRST_WITH_RACK:
        out += _I32.pack(preferred)
    return put_records(buffers, out, records, False)


def parse_response(version: int, body: memoryview) -> FetchResponse:
    """The answer in `body`; its records are views into it. Raises MalformedRequest."""
    if not MIN_VERSION <= version <= MAX_VERSION:
        raise MalformedRequest(f"Fetch has no version {version}")
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
    if version >= _FIRST_WITH_SESSIONS:
        error_code, session_id = struct.unpack_from(">hi", body, position)
        position += 6
    partitions: list[FetchedPartition] = []
    topic_count, position = take_count(body, position, end, flexible, 3)
    for _ in range(topic_count):
        topic, topic_id, position = take_topic(body, position, end, flexible, by_id)
        count, position = take_count(body, position, end, flexible, _FETCHED_4.size)
        for _ in range(count):
            fetched, position = _take_fetched(version, body, position, end, topic, topic_id)
            partitions.append(fetched)
        if flexible:
            position = skip_tagged_fields(body, position, end)
    endpoints: tuple[NodeEndpoint, ...] = ()
    if flexible:
        endpoints = take_endpoints_tag(body, position, end, version >= _FIRST_WITH_ENDPOINTS)
    return FetchResponse(partitions, throttle_ms, error_code, session_id, endpoints)


def _take_fetched(
    version: int, body: memoryview, position: int, end: int, topic: str | None, topic_id: bytes | None
) -> tuple[FetchedPartition, int]:
    flexible = version >= FIRST_FLEXIBLE
    log_start = preferred = -1
    if version >= _FIRST_WITH_LOG_START:
        index, code, watermark, stable, log_start = _FETCHED_5.unpack_from(body, position)
        position += _FETCHED_5.size
    else:
        index, code, watermark, stable = _FETCHED_4.unpack_from(body, position)
        position += _FETCHED_4.size
    aborted, position = _take_aborted(body, position, end, flexible)
    if version >= _FIRST_WITH_RACK:
        (preferred,) = _I32.unpack_from(body, position)
        position += 4
    records, position = take_records(body, position, end, flexible)
    diverging = leader = snapshot = None
    if flexible:
        count, position = take_uvarint(body, position)
        for _ in range(count):
            tag, start = take_uvarint(body, position)
            position = skip_tagged_field(body, position, end)
            _, start = take_uvarint(body, start)
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
    count, position = take_count(body, position, end, flexible, _ABORTED.size)
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
        raise MalformedRequest("a tagged struct is not as long as it says")
    return first, second
