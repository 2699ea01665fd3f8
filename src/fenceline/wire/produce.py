"""Produce (api key 0), versions 3 to 13, requests and responses, read and written by hand (`hot_path.md H3`, `H4`).

Owns the bytes around the records. Never parses records and never copies them, except small ones when they are sent,
because that saves a buffer.

Versions: 3 transactional id; 5 log start offset; 8 record errors and message; 9 flexible; 10 hints at the new leader;
13 topic ids instead of names. Responses are grouped by runs of one topic, so results keep the order of the request.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from fenceline.wire.errors import MalformedRequest
from fenceline.wire.partitioned import (
    READ_ERRORS,
    LeaderEndpoint,
    bad_count,
    put_count,
    put_endpoints_tag,
    put_records,
    put_string,
    put_topic,
    read_count,
    read_endpoints_tag,
    read_string,
    read_topic,
    runs_by_topic,
)
from fenceline.wire.primitives import Buffer, read_uvarint, skip_tagged_field, skip_tagged_fields

__all__ = [
    "LeaderEndpoint",
    "PartitionRecords",
    "PartitionResult",
    "ProduceRequest",
    "ProduceResponse",
    "encode_request",
    "encode_response",
    "parse_request",
    "parse_response",
    "put_flexible_result",
]

MIN_VERSION: Final = 3
MAX_VERSION: Final = 13
FIRST_FLEXIBLE: Final = 9
FIRST_WITH_TOPIC_IDS: Final = 13
_FIRST_WITH_LOG_START: Final = 5
_FIRST_WITH_RECORD_ERRORS: Final = 8
_FIRST_WITH_LEADER_HINTS: Final = 10

_NO_LEADER: Final = (-1, -1)

_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_take_i32: Final = _I32.unpack_from
_take_acks_timeout_count: Final = struct.Struct(">hiB").unpack_from
_take_acks_timeout_long_count: Final = struct.Struct(">hii").unpack_from
_take_index_and_length: Final = struct.Struct(">iB").unpack_from
_take_index_and_long_length: Final = struct.Struct(">ii").unpack_from
_RESULT_3: Final = struct.Struct(">ihqq")
_RESULT_5: Final = struct.Struct(">ihqqq")
_RESULT_PLAIN: Final = struct.Struct(">ihqqqBBB")
_LEADER_TAG: Final = struct.Struct(">BBBiib")
_LEADER: Final = struct.Struct(">ii")


class PartitionRecords(NamedTuple):
    """One partition's records. The topic is given by name before version 13, by its 16 raw bytes from then on."""

    topic: str | None
    topic_id: bytes | None
    index: int  # type: ignore[assignment]  # hides tuple.index
    records: memoryview | None


@dataclass(slots=True)
class ProduceRequest:
    """A produce request; partitions in the order of the wire."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    partitions: list[PartitionRecords]


class PartitionResult(NamedTuple):
    """The result of one partition. `record_errors`: (index in the batch, message). `current_leader`: (id, epoch)."""

    topic: str | None
    topic_id: bytes | None
    index: int  # type: ignore[assignment]  # hides tuple.index
    error_code: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[tuple[int, str | None]] = ()
    error_message: str | None = None
    current_leader: tuple[int, int] | None = None


@dataclass(slots=True)
class ProduceResponse:
    """The response to a produce request. `node_endpoints` from version 10 on."""

    results: Sequence[PartitionResult]
    throttle_ms: int = 0
    node_endpoints: Sequence[LeaderEndpoint] = field(default=())


# --- requests ---------------------------------------------------------------------------------------------------------


def parse_request(version: int, body: memoryview) -> ProduceRequest:
    """The request in `body`; its records are views of it. Raises MalformedRequest."""
    if not MIN_VERSION <= version <= MAX_VERSION:
        raise MalformedRequest(f"unsupported Produce version {version}")
    try:
        if version >= FIRST_FLEXIBLE:
            return _parse_flexible_request(body, version >= FIRST_WITH_TOPIC_IDS)
        return _parse_legacy_request(body)
    except READ_ERRORS as error:
        raise MalformedRequest(f"Produce request v{version}: {error}") from None


def _parse_flexible_request(body: memoryview, by_id: bool) -> ProduceRequest:
    end = len(body)
    if body[0] == 0:
        transactional_id, position = None, 1
    else:
        transactional_id, position = read_string(body, 0, end, True)
    acks, timeout_ms, topic_count = _take_acks_timeout_count(body, position)
    position += 7
    if topic_count > 127:
        topic_count, position = read_uvarint(body, position - 1)
    if not 0 < topic_count <= (end - position) // 3 + 1:
        raise bad_count(topic_count - 1, end - position)
    partitions: list[PartitionRecords] = []
    topic = topic_id = None
    for _ in range(topic_count - 1):
        if by_id:
            topic_id = bytes(body[position : position + 16])
            position += 16
        else:
            size = body[position]
            position += 1
            if size > 127:
                size, position = read_uvarint(body, position - 1)
            if size == 0:
                raise MalformedRequest("a topic name is null")
            start = position
            position += size - 1
            topic = str(body[start:position], "utf-8")
        count = body[position]
        position += 1
        if count > 127:
            count, position = read_uvarint(body, position - 1)
        if not 0 < count <= (end - position) // 6 + 1:
            raise bad_count(count - 1, end - position)
        for _ in range(count - 1):
            index, size = _take_index_and_length(body, position)
            position += 5
            if size > 127:
                size, position = read_uvarint(body, position - 1)
            if size:
                start = position
                position += size - 1
                records = body[start:position]
            else:
                records = None
            # A length out of bounds fails here: the byte after the records is missing.
            if body[position]:
                position = skip_tagged_fields(body, position, end)
            else:
                position += 1
            partitions.append(PartitionRecords(topic, topic_id, index, records))
        position = skip_tagged_fields(body, position, end) if body[position] else position + 1
    skip_tagged_fields(body, position, end)
    return ProduceRequest(transactional_id, acks, timeout_ms, partitions)


def _parse_legacy_request(body: memoryview) -> ProduceRequest:
    end = len(body)
    transactional_id, position = read_string(body, 0, end, False)
    acks, timeout_ms, topic_count = _take_acks_timeout_long_count(body, position)
    position += 10
    if not 0 <= topic_count * 6 <= end - position:
        raise bad_count(topic_count, end - position)
    partitions: list[PartitionRecords] = []
    for _ in range(topic_count):
        topic, position = read_string(body, position, end, False)
        if topic is None:
            raise MalformedRequest("a topic name is null")
        count, position = read_count(body, position, end, False, 8)
        for _ in range(count):
            index, size = _take_index_and_long_length(body, position)
            position += 8
            if size >= 0:
                start = position
                position += size
                if position > end:
                    raise MalformedRequest("records exceed the request")
                records = body[start:position]
            else:
                records = None
            partitions.append(PartitionRecords(topic, None, index, records))
    return ProduceRequest(transactional_id, acks, timeout_ms, partitions)


def encode_request(version: int, request: ProduceRequest) -> list[Buffer]:
    """The body as buffers to send together; large records are not copied."""
    flexible, by_id = version >= FIRST_FLEXIBLE, version >= FIRST_WITH_TOPIC_IDS
    runs = runs_by_topic(request.partitions, by_id)
    buffers: list[Buffer] = []
    out = bytearray()
    put_string(out, request.transactional_id, flexible)
    out += _I16.pack(request.acks) + _I32.pack(request.timeout_ms)
    put_count(out, len(runs), flexible)
    for run in runs:
        put_topic(out, run[0].topic, run[0].topic_id, flexible, by_id)
        put_count(out, len(run), flexible)
        for partition in run:
            out += _I32.pack(partition.index)
            out = put_records(buffers, out, partition.records, flexible)
            if flexible:
                out.append(0)
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    if out:
        buffers.append(out)
    return buffers


# --- responses --------------------------------------------------------------------------------------------------------


def encode_response(version: int, response: ProduceResponse) -> bytes:
    """The body of the response."""
    flexible, by_id = version >= FIRST_FLEXIBLE, version >= FIRST_WITH_TOPIC_IDS
    results = response.results
    runs: Sequence[Sequence[PartitionResult]] = (results,) if len(results) == 1 else runs_by_topic(results, by_id)
    out = bytearray()
    put_count(out, len(runs), flexible)
    for run in runs:
        first = run[0]
        put_topic(out, first.topic, first.topic_id, flexible, by_id)
        put_count(out, len(run), flexible)
        for result in run:
            if flexible:
                put_flexible_result(out, version, result)
            else:
                _put_legacy_result(out, version, result)
        if flexible:
            out.append(0)
    out += _I32.pack(response.throttle_ms)
    if flexible:
        put_endpoints_tag(out, response.node_endpoints if version >= _FIRST_WITH_LEADER_HINTS else ())
    return bytes(out)


def put_flexible_result(out: bytearray, version: int, result: PartitionResult) -> None:
    """The result of one partition, versions 9 to 13."""
    _, _, index, code, base_offset, append_time_ms, log_start, record_errors, message, leader = result
    if not record_errors and message is None and leader is None:
        out += _RESULT_PLAIN.pack(index, code, base_offset, append_time_ms, log_start, 1, 0, 0)
        return
    out += _RESULT_5.pack(index, code, base_offset, append_time_ms, log_start)
    put_count(out, len(record_errors), True)
    for batch_index, text in record_errors:
        out += _I32.pack(batch_index)
        put_string(out, text, True)
        out.append(0)
    put_string(out, message, True)
    if leader is None or leader == _NO_LEADER or version < _FIRST_WITH_LEADER_HINTS:
        out.append(0)
    else:
        out += _LEADER_TAG.pack(1, 0, 9, leader[0], leader[1], 0)


def _put_legacy_result(out: bytearray, version: int, result: PartitionResult) -> None:
    _, _, index, code, base_offset, append_time_ms, log_start, record_errors, message, _ = result
    if version < _FIRST_WITH_LOG_START:
        out += _RESULT_3.pack(index, code, base_offset, append_time_ms)
        return
    out += _RESULT_5.pack(index, code, base_offset, append_time_ms, log_start)
    if version < _FIRST_WITH_RECORD_ERRORS:
        return
    out += _I32.pack(len(record_errors))
    for batch_index, text in record_errors:
        out += _I32.pack(batch_index)
        put_string(out, text, False)
    put_string(out, message, False)


def parse_response(version: int, body: memoryview) -> ProduceResponse:
    """The response in `body`. Raises MalformedRequest."""
    if not MIN_VERSION <= version <= MAX_VERSION:
        raise MalformedRequest(f"unsupported Produce version {version}")
    try:
        return _parse_response(version, body)
    except READ_ERRORS as error:
        raise MalformedRequest(f"Produce response v{version}: {error}") from None


def _parse_response(version: int, body: memoryview) -> ProduceResponse:
    flexible, by_id = version >= FIRST_FLEXIBLE, version >= FIRST_WITH_TOPIC_IDS
    end = len(body)
    results: list[PartitionResult] = []
    topic_count, position = read_count(body, 0, end, flexible, 3)
    for _ in range(topic_count):
        topic, topic_id, position = read_topic(body, position, end, flexible, by_id)
        count, position = read_count(body, position, end, flexible, 22)
        for _ in range(count):
            result, position = _take_result(version, body, position, end, topic, topic_id)
            results.append(result)
        if flexible:
            position = skip_tagged_fields(body, position, end)
    (throttle_ms,) = _take_i32(body, position)
    endpoints: tuple[LeaderEndpoint, ...] = ()
    if flexible:
        endpoints = read_endpoints_tag(body, position + 4, end, version >= _FIRST_WITH_LEADER_HINTS)
    return ProduceResponse(results, throttle_ms, endpoints)


def _take_result(
    version: int, body: memoryview, position: int, end: int, topic: str | None, topic_id: bytes | None
) -> tuple[PartitionResult, int]:
    flexible = version >= FIRST_FLEXIBLE
    log_start = -1
    record_errors: list[tuple[int, str | None]] = []
    message = leader = None
    if version < _FIRST_WITH_LOG_START:
        index, code, base_offset, append_time_ms = _RESULT_3.unpack_from(body, position)
        position += _RESULT_3.size
    else:
        index, code, base_offset, append_time_ms, log_start = _RESULT_5.unpack_from(body, position)
        position += _RESULT_5.size
    if version >= _FIRST_WITH_RECORD_ERRORS:
        count, position = read_count(body, position, end, flexible, 5)
        for _ in range(count):
            (batch_index,) = _take_i32(body, position)
            text, position = read_string(body, position + 4, end, flexible)
            record_errors.append((batch_index, text))
            if flexible:
                position = skip_tagged_fields(body, position, end)
        message, position = read_string(body, position, end, flexible)
    if flexible:
        count, position = read_uvarint(body, position)
        for _ in range(count):
            if body[position] == 0 and version >= _FIRST_WITH_LEADER_HINTS:
                size, start = read_uvarint(body, position + 1)
                leader_id, leader_epoch = _LEADER.unpack_from(body, start)
                leader = (leader_id, leader_epoch)
                position = skip_tagged_fields(body, start + 8, end)
                if position != start + size:
                    raise MalformedRequest("current_leader does not have its declared length")
            else:
                position = skip_tagged_field(body, position, end)
    result = PartitionResult(
        topic,
        topic_id,
        index,
        code,
        base_offset,
        append_time_ms,
        log_start,
        tuple(record_errors),
        message,
        leader,
    )
    return result, position
