"""ListOffsets responses as rows: many partitions are read without an object for each.

Owns the layout of the flexible versions without tagged fields; any other response is read by `entities`. Decides
nothing.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_response
from fenceline.wire.primitives import read_uvarint

_FIRST_FLEXIBLE: Final = 6
_TOPICS_AT: Final = 4
"""Behind the throttle time."""
_ROW: Final = struct.Struct(">ihqqiB")
"""The partition, and the number of its tagged fields."""

ListedOffset = tuple[int, int, int, int, int]
"""Partition, error code, timestamp, offset, and leader epoch (-1: unknown)."""


class ListedOffsets(NamedTuple):
    """The partitions of one topic."""

    topic: str
    rows: list[ListedOffset]


def read_listed_offsets(version: int, body: memoryview) -> list[ListedOffsets]:
    """The content of a response. Raises MalformedRequest."""
    found = _read_plain(body) if version >= _FIRST_FLEXIBLE else None
    if found is not None:
        return found
    return [
        ListedOffsets(
            str(topic.name),
            [
                (
                    int(one.partition_index),
                    int(one.error_code),
                    int(one.timestamp),
                    int(one.offset),
                    int(getattr(one, "leader_epoch", -1)),
                )
                for one in topic.partitions
            ],
        )
        for topic in read_response(ApiKey.LIST_OFFSETS, version, body).topics
    ]


def _read_plain(body: memoryview) -> list[ListedOffsets] | None:
    """None for a response with tagged fields, or one that is not complete."""
    found: list[ListedOffsets] = []
    try:
        topics, position = read_uvarint(body, _TOPICS_AT)
        for _ in range(topics - 1):
            size, position = read_uvarint(body, position)
            name = str(body[position : position + size - 1], "utf-8")
            count, position = read_uvarint(body, position + size - 1)
            end = position + (count - 1) * _ROW.size
            rows: list[ListedOffset] = []
            for index, code, timestamp, offset, epoch, tags in _ROW.iter_unpack(body[position:end]):
                if tags:
                    return None
                rows.append((index, code, timestamp, offset, epoch))
            if len(rows) != count - 1 or body[end]:
                return None
            position = end + 1
            found.append(ListedOffsets(name, rows))
    except (struct.error, IndexError, ValueError):
        return None
    return found if position + 1 == len(body) and not body[position] else None
