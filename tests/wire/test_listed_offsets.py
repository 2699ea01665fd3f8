"""Rows of ListOffsets responses equal the entities of the same bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenceline.wire import listed_offsets
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import write_response
from fenceline.wire.errors import MalformedRequest
from fenceline.wire.listed_offsets import ListedOffsets, read_listed_offsets

_rows = st.tuples(
    st.integers(0, 2**31 - 1),
    st.sampled_from([0, 1, 3, 6, 43, 74, 78]),
    st.integers(-1, 2**62),
    st.integers(-1, 2**62),
    st.integers(-1, 2**31 - 1),
)
_topics = st.dictionaries(st.text(min_size=1, max_size=200), st.lists(_rows, max_size=5), max_size=5)


def _body(version: int, topics: dict[str, list[Any]]) -> memoryview:
    names = ("partition_index", "error_code", "timestamp", "offset", "leader_epoch")
    fields = {
        "throttle_time": 7,
        "topics": [
            {"name": name, "partitions": [dict(zip(names, row, strict=True)) for row in rows]}
            for name, rows in topics.items()
        ],
    }
    return memoryview(write_response(ApiKey.LIST_OFFSETS, version, fields))


@given(_topics, st.integers(1, 11))
def test_what_was_written_is_read(topics: dict[str, list[Any]], version: int) -> None:
    if version < 4:
        topics = {name: [(*row[:4], -1) for row in rows] for name, rows in topics.items()}
    expected = [ListedOffsets(name, rows) for name, rows in topics.items()]
    assert read_listed_offsets(version, _body(version, topics)) == expected


def test_many_partitions_need_no_entities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listed_offsets, "read_response", None)
    topics = {f"t{number}": [(index, 0, -1, 5, 3) for index in range(200)] for number in range(200)}
    assert dict(read_listed_offsets(11, _body(11, topics))) == topics


def test_tagged_fields_are_skipped() -> None:
    body = bytes(_body(11, {"t": [(0, 0, -1, 5, 3)]}))
    assert body[-3:] == b"\0\0\0", "of the partition, the topic and the response"
    for place in (1, 2, 3):
        at = len(body) - place
        tagged = body[:at] + b"\1\x05\2hi" + body[at + 1 :]
        assert read_listed_offsets(11, memoryview(tagged)) == [ListedOffsets("t", [(0, 0, -1, 5, 3)])]


@given(st.integers(0, 60))
def test_incomplete_response_is_malformed(size: int) -> None:
    body = _body(11, {"topic": [(0, 0, -1, 5, 3), (1, 0, -1, 5, 3)]})
    if size < len(body):
        with pytest.raises(MalformedRequest):
            read_listed_offsets(11, body[:size])
