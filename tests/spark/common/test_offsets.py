from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.common.offsets import OffsetDecoder, PartitionPosition, SourceOffset, Unresolved, decode

T0, T1 = TopicPartition("flights", 0), TopicPartition("flights", 10)


def test_the_json_form_is_the_documented_one() -> None:
    offset = SourceOffset({T1: PartitionPosition(7, 2), T0: PartitionPosition(5)}, {"flights": "abc"})
    assert json.dumps(offset.encode()) == (
        '{"topics": {"flights": {"id": "abc", "partitions": {"0": {"leader_epoch": -1, "offset": 5}, '
        '"10": {"leader_epoch": 2, "offset": 7}}}}, "version": 1}'
    )


def test_the_json_does_not_depend_on_the_order_of_positions() -> None:
    positions = {T0: PartitionPosition(1, 1), T1: PartitionPosition(2, 2)}
    turned = dict(reversed(positions.items()))
    ids = {"flights": "x"}
    assert json.dumps(SourceOffset(positions, ids).encode()) == json.dumps(SourceOffset(turned, ids).encode())


_partitions = st.builds(TopicPartition, st.sampled_from(["a", "b", "c.d"]), st.integers(0, 12))
_positions = st.dictionaries(
    _partitions, st.builds(PartitionPosition, st.integers(0, 2**62), st.integers(-1, 9)), max_size=8
)


@given(_positions, st.none() | _positions)
def test_written_offsets_are_read_back(
    positions: dict[TopicPartition, PartitionPosition], start: dict[TopicPartition, PartitionPosition] | None
) -> None:
    def offset(of: dict[TopicPartition, PartitionPosition], begin: SourceOffset | None = None) -> SourceOffset:
        return SourceOffset(of, {tp.topic: f"id-{tp.topic}" for tp in of}, begin)

    made = offset(positions, None if start is None else offset(start))
    assert decode(json.loads(json.dumps(made.encode()))) == made


def test_the_unresolved_start_is_read_back() -> None:
    assert decode(Unresolved().encode()) == Unresolved()


def test_offsets_of_sparks_kafka_source_are_understood() -> None:
    found = decode({"flights": {"0": 5, "10": 7}})
    assert found == SourceOffset(
        {T0: PartitionPosition(5, -1), T1: PartitionPosition(7, -1)}, {"flights": None}, is_of_connector=True
    )


@pytest.mark.parametrize(
    "bad",
    [
        {"version": 2, "topics": {}},
        {"version": 1},
        {"version": 1, "topics": {"t": {"partitions": {"0": {"offset": 1}}}}},
        {"version": 1, "topics": {"t": 3}},
        {"logOffset": 3},
        {"t": {"0": "three"}},
        {"t": {"0": True}},
        5,
        "text",
        [1],
    ],
)
def test_other_formats_are_rejected(bad: object) -> None:
    with pytest.raises(OperatorError) as caught:
        decode(bad)
    assert caught.value.advice


def test_start_offsets_of_added_partitions_are_kept() -> None:
    positions = {T0: PartitionPosition(900, 0), T1: PartitionPosition(7, 0)}
    offset = SourceOffset(positions, {"flights": "id"}, added={T0: 800}, unproven={T1: 7})
    assert offset.encode()["added"] == {"flights": {"0": 800}}
    assert decode(offset.encode()) == offset


def test_decoder_decodes_equal_offsets_once() -> None:
    decoder = OffsetDecoder()
    first, second, third = (SourceOffset({T0: PartitionPosition(n, 1)}, {"flights": "x"}).encode() for n in (1, 2, 3))
    start, end = decoder(first), decoder(second)
    assert (start, end) == (decode(first), decode(second))
    copied = json.loads(json.dumps(second))
    assert decoder(copied) is end
    copied["topics"]["flights"]["partitions"]["0"]["offset"] = 9
    assert decoder(copied) == decode(copied)
    assert decoder(third) == decode(third)
