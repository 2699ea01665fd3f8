"""Shared parts of Produce and Fetch: topics with partitions, records between other bytes, hints at leaders.

Owns these parts for the two hand-written codecs. `take_*` read at a position and return the one after; they raise
struct.error or IndexError at the end of the buffer, which the codecs translate, and MalformedRequest for other errors.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from fenceline.wire.errors import MalformedRequest
from fenceline.wire.primitives import Buffer, put_uvarint, read_uvarint, skip_tagged_field, skip_tagged_fields

T = TypeVar("T", bound=tuple[Any, ...])

READ_ERRORS: Final = (struct.error, IndexError, UnicodeDecodeError)
"""Errors that the parsers translate into MalformedRequest."""

ZERO_ID: Final = bytes(16)
COPIED_BELOW_BYTES: Final = 1024
"""Records smaller than this are copied when they are sent, which is cheaper than another buffer."""

_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_take_i16: Final = _I16.unpack_from
_take_i32: Final = _I32.unpack_from


class LeaderEndpoint(NamedTuple):
    """The address of a leader in a hint."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


def runs_by_topic(partitions: Sequence[T], by_id: bool) -> list[Sequence[T]]:
    """Runs of neighbours with the same topic. The first two items of an element are the topic's name and id."""
    if len(partitions) == 1:
        return [partitions]
    key = 1 if by_id else 0
    runs: list[Sequence[T]] = []
    current: list[T] = []
    held = None
    for partition in partitions:
        if not current or partition[key] != held:
            current = [partition]
            held = partition[key]
            runs.append(current)
        else:
            current.append(partition)
    return runs


# --- writing ----------------------------------------------------------------------------------------------------------


def put_count(out: bytearray, count: int, flexible: bool) -> None:
    """The length of a non-null array."""
    if not flexible:
        out += _I32.pack(count)
    elif count < 127:
        out.append(count + 1)
    else:
        put_uvarint(out, count + 1)


def put_string(out: bytearray, text: str | None, flexible: bool) -> None:
    """A nullable string."""
    if text is None:
        out += b"\0" if flexible else b"\xff\xff"
        return
    encoded = text.encode()
    if not flexible:
        out += _I16.pack(len(encoded))
    else:
        put_count(out, len(encoded), True)
    out += encoded


def put_topic(out: bytearray, topic: str | None, topic_id: bytes | None, flexible: bool, by_id: bool) -> None:
    """A topic, by name or id. A missing name is written as "", a missing id as the zero id."""
    if by_id:
        out += topic_id or ZERO_ID
    else:
        put_string(out, topic or "", flexible)


def put_records(buffers: list[Buffer], out: bytearray, records: Buffer | None, flexible: bool) -> bytearray:
    """Records with their length; large ones as a separate buffer. Returns the bytearray to continue with."""
    if records is None:
        out += b"\0" if flexible else b"\xff\xff\xff\xff"
        return out
    size = len(records)
    if flexible:
        put_uvarint(out, size + 1)
    else:
        out += _I32.pack(size)
    if size < COPIED_BELOW_BYTES:
        out += records
        return out
    buffers.append(out)
    buffers.append(records)
    return bytearray()


def put_endpoints_tag(out: bytearray, endpoints: Sequence[LeaderEndpoint]) -> None:
    """The tagged fields at the end of a response: node endpoints in tag 0, if there are any."""
    if not endpoints:
        out.append(0)
        return
    tag = bytearray()
    put_count(tag, len(endpoints), True)
    for endpoint in endpoints:
        tag += _I32.pack(endpoint.node_id)
        put_string(tag, endpoint.host, True)
        tag += _I32.pack(endpoint.port)
        put_string(tag, endpoint.rack, True)
        tag.append(0)
    out += b"\1\0"
    put_uvarint(out, len(tag))
    out += tag


def put_by_topic(
    out: bytearray, partitions: Sequence[T], flexible: bool, by_id: bool, put: Callable[[bytearray, T], bytearray]
) -> bytearray:
    """An array of topics, each with an array of partitions written by `put`. Returns the bytearray to continue with."""
    runs = runs_by_topic(partitions, by_id)
    put_count(out, len(runs), flexible)
    for run in runs:
        first = run[0]
        put_topic(out, first[0], first[1], flexible, by_id)
        put_count(out, len(run), flexible)
        for partition in run:
            out = put(out, partition)
        if flexible:
            out.append(0)
    return out


# --- reading ----------------------------------------------------------------------------------------------------------


def read_count(body: Buffer, position: int, end: int, flexible: bool, smallest_bytes: int) -> tuple[int, int]:
    """The length of a non-nullable array whose elements have at least `smallest_bytes` each."""
    if flexible:
        count, position = read_uvarint(body, position)
        count -= 1
    else:
        (count,) = _take_i32(body, position)
        position += 4
    if not 0 <= count * smallest_bytes <= end - position:
        raise bad_count(count, end - position)
    return count, position


def bad_count(count: int, room_bytes: int) -> MalformedRequest:
    """The error for an invalid array length."""
    if count < 0:
        return MalformedRequest("a non-nullable array is null")
    return MalformedRequest(f"an array claims {count} elements in {room_bytes} bytes")


def read_string(body: Buffer, position: int, end: int, flexible: bool) -> tuple[str | None, int]:
    """A nullable string."""
    if flexible:
        size, position = read_uvarint(body, position)
        size -= 1
    else:
        (size,) = _take_i16(body, position)
        position += 2
    if size < 0:
        return None, position
    start = position
    position += size
    if position > end:
        raise MalformedRequest("a string exceeds the message")
    return str(body[start:position], "utf-8"), position


def read_topic(
    body: Buffer, position: int, end: int, flexible: bool, by_id: bool
) -> tuple[str | None, bytes | None, int]:
    """(name, None, position) or (None, id, position), by version."""
    if by_id:
        topic_id = bytes(body[position : position + 16])
        if len(topic_id) < 16:
            raise MalformedRequest("a topic id is truncated")
        return None, topic_id, position + 16
    topic, position = read_string(body, position, end, flexible)
    if topic is None:
        raise MalformedRequest("a topic name is null")
    return topic, None, position


def read_by_topic(
    body: memoryview,
    position: int,
    end: int,
    flexible: bool,
    by_id: bool,
    smallest_bytes: int,
    take: Callable[[memoryview, int, int, str | None, bytes | None], tuple[T, int]],
) -> tuple[list[T], int]:
    """Reads what `put_by_topic` writes; `take(body, position, end, topic, topic_id)` reads a partition."""
    partitions: list[T] = []
    topics, position = read_count(body, position, end, flexible, 3)
    for _ in range(topics):
        topic, topic_id, position = read_topic(body, position, end, flexible, by_id)
        count, position = read_count(body, position, end, flexible, smallest_bytes)
        for _ in range(count):
            partition, position = take(body, position, end, topic, topic_id)
            partitions.append(partition)
        if flexible:
            position = skip_tagged_fields(body, position, end) if body[position] else position + 1
    return partitions, position


def read_records(body: memoryview, position: int, end: int, flexible: bool) -> tuple[memoryview | None, int]:
    """Records as a view of the body, or None for null."""
    if flexible:
        size, position = read_uvarint(body, position)
        size -= 1
    else:
        (size,) = _take_i32(body, position)
        position += 4
    if size < 0:
        return None, position
    start = position
    position += size
    if position > end:
        raise MalformedRequest("records exceed the message")
    return body[start:position], position


def read_endpoints_tag(body: Buffer, position: int, end: int, known: bool) -> tuple[LeaderEndpoint, ...]:
    """The tagged fields at the end of a response. `known`: whether the version has node endpoints in tag 0."""
    endpoints: list[LeaderEndpoint] = []
    tags, position = read_uvarint(body, position)
    for _ in range(tags):
        if body[position] != 0 or not known:
            position = skip_tagged_field(body, position, end)
            continue
        size, start = read_uvarint(body, position + 1)
        count, position = read_count(body, start, end, True, 11)
        for _ in range(count):
            (node_id,) = _take_i32(body, position)
            host, position = read_string(body, position + 4, end, True)
            (port,) = _take_i32(body, position)
            rack, position = read_string(body, position + 4, end, True)
            position = skip_tagged_fields(body, position, end)
            if host is None:
                raise MalformedRequest("a node's host is null")
            endpoints.append(LeaderEndpoint(node_id, host, port, rack))
        if position != start + size:
            raise MalformedRequest("node_endpoints does not have its declared length")
    return tuple(endpoints)
