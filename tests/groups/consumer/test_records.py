"""Records of the consumer protocol: round trips, and older formats."""

from __future__ import annotations

import struct

import pytest

from fenceline.errors import InternalError
from fenceline.groups import records as all_records
from fenceline.groups.consumer import records
from fenceline.groups.consumer.model import (
    ClassicMember,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    ResolvedRegex,
)
from fenceline.groups.consumer.replay import applied
from tests.groups.consumer_world import id_of, parts

MEMBER = ConsumerMember(
    "m",
    5,
    4,
    MemberState.UNREVOKED_PARTITIONS,
    "i",
    "r",
    "c",
    "/h",
    300,
    frozenset({"t", "u"}),
    "x.*",
    "range",
    ClassicMember(10_000, (("range", b"\0\1"), ("roundrobin", b""))),
    {id_of("t"): {0: 3, 2: 5}},
    {id_of("u"): {1: 3}},
)
MEANINGS: list[records.ConsumerMeaning] = [
    records.EpochStored("g", records.EpochValue(3, -7)),
    records.EpochStored("g", None),
    records.OldMetadataStored("g", exists=False),
    records.member_stored("g", MEMBER),
    records.MemberStored("g", "m", None),
    records.TargetEpochStored("g", records.TargetEpochValue(4, 1_700_000_000_000)),
    records.TargetEpochStored("g", None),
    records.TargetStored("g", "m", parts(t=[0, 5])),
    records.TargetStored("g", "m", {}),
    records.TargetStored("g", "m", None),
    records.current_stored("g", MEMBER),
    records.CurrentStored("g", "m", None),
    records.RegexStored("g", "x.*", ResolvedRegex(frozenset({"xa", "xb"}), 17, 5)),
    records.RegexStored("g", "x.*", None),
]


@pytest.mark.parametrize("meaning", MEANINGS, ids=lambda meaning: f"{type(meaning).__name__}")
def test_records_round_trip(meaning: records.ConsumerMeaning) -> None:
    assert all_records.decode(*records.encode(meaning)) == meaning


def test_member_is_built_from_its_two_records() -> None:
    group = applied(None, records.member_stored("g", MEMBER))
    group = applied(group, records.current_stored("g", MEMBER))
    assert group is not None
    assert group.members["m"] == MEMBER
    group.check()


def test_partitions_without_epochs_get_the_epoch_of_the_member() -> None:
    """As in records written before Kafka 4.3."""
    topic = records.HeldTopic(id_of("t"), (1, 2), None)
    assert records.held_of((topic,), 7) == {id_of("t"): {1: 7, 2: 7}}
    assert records.held_of((topic,), -2) == {id_of("t"): {1: 0, 2: 0}}


def test_undefined_member_state_is_unknown() -> None:
    assert records.state_of(9) is MemberState.UNKNOWN


def test_topic_metadata_of_kafka_4_0_is_tracked_until_its_tombstone() -> None:
    key = struct.pack(">hh", 4, 1) + b"g"
    meaning = all_records.decode(key, b"\0\0\1\0")
    group = applied(ConsumerGroup("g"), meaning)  # type: ignore[arg-type]
    assert group is not None
    assert group.has_old_metadata
    group = applied(group, records.OldMetadataStored("g", exists=False))
    assert group is not None
    assert not group.has_old_metadata


def test_tombstones_of_missing_entries_are_ignored() -> None:
    for meaning in MEANINGS:
        if records.encode(meaning)[1] is None:
            assert applied(None, meaning) is None


def test_older_record_of_a_former_owner_does_not_change_the_owner() -> None:
    """In a compacted log the record of a former owner may follow that of the current owner."""
    held = {id_of("t"): {0: 1}}
    group = applied(None, records.current_stored("g", ConsumerMember("old", 2, assigned=held)))
    group = applied(group, records.current_stored("g", ConsumerMember("new", 3, assigned=held)))
    group = applied(group, records.current_stored("g", ConsumerMember("old", 3)))
    assert group is not None
    assert group.owners[(id_of("t"), 0)] == "new"


def test_undecodable_bytes_stop_the_load() -> None:
    key, _ = records.encode(MEANINGS[0])
    with pytest.raises(InternalError, match="cannot be read"):
        all_records.decode(key, b"\0\0\1")
    with pytest.raises(InternalError, match="cannot be read"):
        all_records.decode(key, b"\0\7\1\1\1\1\1")
