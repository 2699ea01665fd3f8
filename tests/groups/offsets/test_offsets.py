"""Committed offsets: commits, visibility, deletion, expiry, transactions found in the log."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from fenceline.coordination import partition_for
from fenceline.errors import ErrorCode, InternalError
from fenceline.groups import records, removals
from fenceline.groups.classic import records as classic_records
from fenceline.groups.classic.records import GroupMetadataValue, GroupStored, MemberMetadata
from fenceline.groups.classic.states import GroupState
from fenceline.groups.messages import (
    AppendGroupRecords,
    DeleteOffsetsResponse,
    FetchedOffset,
    OffsetToCommit,
    TopicToFetch,
)
from fenceline.groups.offsets.offsets import OffsetSlot, StoredOffset, expires_at
from fenceline.groups.offsets.records import OffsetCommitted, offset_record
from fenceline.groups.settings import GroupSettings
from fenceline.groups.timers import TimerKey, TimerKind
from tests.groups.helpers import GROUP, START_MS, Ticket, World, subscription

NONE = ErrorCode.NONE
DAY_MS = 24 * 60 * 60 * 1000
ONE, TWO = UUID(int=1), UUID(int=2)


def test_commit_is_one_append_and_is_acknowledged_when_committed() -> None:
    world = World()
    world.hold_appends = True
    ticket = world.commit(offsets=tuple(OffsetToCommit("t", index, 10 + index, 3, "note") for index in range(20)))
    assert len(world.held) == 1
    assert len(world.held[0].records) == 20
    assert ticket.outcome is None
    assert world.offset() == -1, "not committed yet"
    world.release()
    assert ticket.outcome.errors == (NONE,) * 20
    assert world.fetch(TopicToFetch("t", (19,))).outcome.topics == (("t", (FetchedOffset(19, 29, 3, "note"),)),)


def test_fetch_returns_committed_offsets_and_a_stable_fetch_waits() -> None:
    world = World()
    world.commit(1)
    world.hold_appends = True
    world.commit(2)
    world.commit(3)
    assert world.offset() == 1
    everything = world.fetch(everything=True).outcome
    assert everything.topics == (("t", (FetchedOffset(0, 1),)),)
    stable = world.fetch(require_stable=True)
    world.release()
    assert world.offset() == 2
    assert stable.outcome is None
    world.release()
    assert stable.outcome.topics == (("t", (FetchedOffset(0, 3),)),)


@pytest.mark.parametrize(
    ("refused_with", "reported"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_rejected_commit_leaves_no_trace(refused_with: ErrorCode, reported: ErrorCode) -> None:
    world = World()
    world.hold_appends = True
    ticket = world.commit(5)
    world.release(refused_with)
    assert ticket.outcome.errors == (reported,)
    assert world.offset() == -1
    assert GROUP not in world.shard().state.classic


def test_rejected_commit_does_not_revert_a_later_one() -> None:
    world = World()
    world.commit(1)
    world.hold_appends = True
    first, second, third = world.commit(2), world.commit(3), world.commit(4)
    world.release(ErrorCode.KAFKA_STORAGE_ERROR)
    assert world.offset() == 1
    world.release()
    assert world.offset() == 3
    world.release(ErrorCode.KAFKA_STORAGE_ERROR)
    assert world.offset() == 3
    assert [ticket.outcome.errors[0] for ticket in (first, second, third)] == [
        ErrorCode.NOT_COORDINATOR,
        NONE,
        ErrorCode.NOT_COORDINATOR,
    ]


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        (None, NONE),
        ("", NONE),
        ("x" * 4096, NONE),
        ("x" * 4097, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        # Two UTF-16 code units each.
        ("\U0001f600" * 2048, NONE),
        ("\U0001f600" * 2049, ErrorCode.OFFSET_METADATA_TOO_LARGE),
    ],
)
def test_metadata_size_limit(metadata: str | None, error: ErrorCode) -> None:
    world = World()
    offsets = (OffsetToCommit("t", 0, 1, metadata=metadata), OffsetToCommit("t", 1, 2))
    assert world.commit(offsets=offsets).outcome.errors == (error, NONE)
    assert world.offset(partition=1) == 2
    assert world.offset(partition=0) == (1 if error is NONE else -1)


def test_commit_with_only_rejected_offsets_appends_nothing() -> None:
    world = World()
    world.commit(offsets=(OffsetToCommit("t", 0, 1, metadata="x" * 5000),))
    assert world.batches == []


def test_committed_offset_is_packed_if_its_bytes_hold_every_field() -> None:
    """In a thousand idle groups only packed offsets are numerous."""
    world = World()

    def is_packed(partition: int) -> bool:
        return isinstance(world.shard().state.offsets._by_group[GROUP]["t"][partition], bytes)

    world.hold_appends = True
    world.commit(offsets=(OffsetToCommit("t", 0, 9, 3), OffsetToCommit("t", 1, 2, metadata="m")))
    world.commit(offsets=(OffsetToCommit("t", 0, 10, 3),))
    world.release()
    assert not is_packed(0), "a pending write may still be reverted"
    world.release(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert (world.offset(), world.offset(partition=1)) == (9, 2)
    world.hold_appends = False
    world.commit(offsets=(OffsetToCommit("t", 0, 11, 3),))
    assert (is_packed(0), is_packed(1)) == (True, False)
    fetched = world.fetch(TopicToFetch("t", (0, 1))).outcome.topics[0][1]
    assert [(each.offset, each.leader_epoch, each.metadata) for each in fetched] == [(11, 3, ""), (2, -1, "m")]
    world.commit(offsets=(OffsetToCommit("t", 0, 5, 4),))
    assert not is_packed(0), "it is a rewind after a truncation"
    world.commit(offsets=(OffsetToCommit("t", 2, 5, 4),), retention_ms=10)
    assert not is_packed(2), "it has its own expiry"


def test_offset_of_another_topic_id_is_not_returned() -> None:
    world = World()
    world.commit(offsets=(OffsetToCommit("t", 0, 7, topic_id=ONE), OffsetToCommit("t", 1, 8)))
    assert world.fetch(TopicToFetch("t", (0, 1), ONE)).outcome.topics[0][1][0].offset == 7
    shown = world.fetch(TopicToFetch("t", (0, 1), TWO)).outcome.topics[0][1]
    assert [each.offset for each in shown] == [-1, 8], "an offset without a topic id applies to every topic of its name"


def test_offsets_survive_a_reload_with_all_their_fields() -> None:
    world = World()
    world.commit(offsets=(OffsetToCommit("t", 0, 7, 3, "note", ONE), OffsetToCommit("ü", 1, 8)))
    before = sorted(world.shard().state.offsets.slots(GROUP))
    world.reload()
    assert [(slot, value._replace(order=0)) for slot, value in sorted(world.shard().state.offsets.slots(GROUP))] == [
        (slot, value._replace(order=0)) for slot, value in before
    ]


# --- deletion ----------------------------------------


def test_deleted_offsets_stay_deleted_after_a_reload() -> None:
    world = World()
    world.commit(offsets=(OffsetToCommit("t", 0, 7), OffsetToCommit("t", 1, 8)))
    assert world.delete_offsets(("t", 0), ("t", 5)).outcome == DeleteOffsetsResponse(errors=(NONE, NONE))
    assert len(world.batches[-1]) == 1, "no tombstone for an offset that never existed"
    world.reload()
    assert (world.offset(partition=0), world.offset(partition=1)) == (-1, 8)


def test_offsets_of_subscribed_topics_are_not_deleted() -> None:
    world = World()
    members = world.stable("a")
    world.commit(member_id=members["a"], generation=1)
    world.commit(member_id=members["a"], generation=1, topic="other")
    answer = world.delete_offsets(("t", 0), ("other", 0)).outcome
    assert answer.errors == (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, NONE)


def test_undecodable_subscription_covers_every_topic() -> None:
    world = World()
    world.stable("a", protocols=(("range", b"\xff"),))
    assert world.delete_offsets(("x", 0)).outcome.errors == (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,)


def test_offsets_of_other_group_types_are_deleted_only_without_members() -> None:
    world = World()
    world.stable("a", protocol_type="connect", protocols=(("range", b""),))
    assert world.delete_offsets(("x", 0)).outcome.error is ErrorCode.NON_EMPTY_GROUP
    assert world.delete_offsets(("x", 0), group="none").outcome.error is ErrorCode.GROUP_ID_NOT_FOUND


def test_deletion_rejected_by_the_log_changes_nothing() -> None:
    world = World()
    world.commit(7)
    world.hold_appends = True
    ticket = world.delete_offsets(("t", 0))
    assert world.offset() == 7
    world.release(ErrorCode.KAFKA_STORAGE_ERROR)
    assert ticket.outcome == DeleteOffsetsResponse(ErrorCode.NOT_COORDINATOR)
    assert world.offset() == 7


def test_deleting_a_group_deletes_its_offsets() -> None:
    world = World()
    world.commit(7)
    world.commit(8, group="h")
    assert world.delete_groups(GROUP, "nobody", GROUP) == {GROUP: NONE, "nobody": ErrorCode.GROUP_ID_NOT_FOUND}
    world.reload()
    assert (world.offset(), world.offset(group="h")) == (-1, 8)
    assert GROUP not in world.shard().state.classic


def test_group_is_restored_if_its_deletion_is_rejected() -> None:
    world = World()
    world.commit(7)
    world.hold_appends = True
    duties = world.coordinator.delete_groups(ticket := Ticket("delete"), [GROUP], world.now)
    world.do(duties)
    world.release(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert ticket.outcome.errors == ((GROUP, ErrorCode.COORDINATOR_NOT_AVAILABLE),)
    assert world.group().state is GroupState.EMPTY
    assert world.offset() == 7


# --- expiry (KIP-211) ----------------------------------------


def _expire(world: World) -> None:
    world.shard().on_timer(TimerKey(TimerKind.EXPIRY), world.now)
    world.do(world.shard().pop_duties())


def test_offsets_of_a_simple_group_expire_after_their_commit() -> None:
    world = World(GroupSettings(initial_rebalance_delay_ms=0, offsets_retention_ms=DAY_MS))
    world.commit(1)
    world.advance(DAY_MS // 2)
    world.commit(2, partition=1)
    world.advance(DAY_MS // 2)
    assert (world.offset(), world.offset(partition=1)) == (-1, 2)
    world.advance(DAY_MS // 2 + world.settings.offsets_retention_check_interval_ms)
    assert GROUP not in world.shard().state.classic
    world.reload()
    assert GROUP not in world.shard().state.classic


def test_offsets_of_an_empty_group_expire_after_it_became_empty() -> None:
    world = World(GroupSettings(initial_rebalance_delay_ms=0, offsets_retention_ms=DAY_MS))
    members = world.stable("a")
    world.commit(1, member_id=members["a"], generation=1)
    for _ in range(2 * DAY_MS // 9_000):
        world.now = world.now._replace(wall_ms=world.now.wall_ms + 9_000, monotonic_ms=world.now.monotonic_ms + 9_000)
        world.heartbeat(members["a"], 1)
    _expire(world)
    assert world.offset() == 1, "a member is subscribed to the topic"
    world.leave((members["a"], None))
    world.advance(DAY_MS - 600_001)
    assert world.offset() == 1
    world.advance(1_200_002)
    assert GROUP not in world.shard().state.classic


def test_active_group_loses_only_offsets_of_unsubscribed_topics() -> None:
    world = World(GroupSettings(initial_rebalance_delay_ms=0, offsets_retention_ms=DAY_MS))
    members = world.stable("a", session_timeout_ms=1_800_000)
    world.commit(1, member_id=members["a"], generation=1)
    world.commit(2, member_id=members["a"], generation=1, topic="left")
    for _ in range(2 * DAY_MS // 1_000_000):
        world.advance(1_000_000)
        world.heartbeat(members["a"], 1)
    assert (world.offset(), world.offset("left")) == (1, -1)


def test_other_group_types_keep_all_offsets_while_they_have_members() -> None:
    world = World(GroupSettings(initial_rebalance_delay_ms=0, offsets_retention_ms=DAY_MS))
    member = world.stable("a", protocol_type="connect", session_timeout_ms=1_800_000)["a"]
    world.commit(1, member_id=member, generation=1)
    for _ in range(2 * DAY_MS // 1_000_000):
        world.advance(1_000_000)
        world.heartbeat(member, 1)
    assert world.offset() == 1


def test_commit_with_its_own_retention_expires_accordingly() -> None:
    world = World()
    world.commit(1, retention_ms=1_000_000)
    _, value = world.batches[-1][-1]
    assert value is not None
    assert value[:2] == b"\x00\x01", "version 1 has the expiry"
    world.reload()
    world.advance(999_999)
    assert world.offset() == 1
    world.advance(600_000)
    assert world.offset() == -1


# --- records ----------------------------------------


def test_the_bytes_of_an_offset_commit() -> None:
    slot = OffsetSlot("g", "t", 2)
    key, value = offset_record(slot, StoredOffset(5, 3, "m", START_MS))
    assert key.hex() == "000100016700017400000002"
    assert value is not None
    assert value.hex() == "0004000000000000000500000003026d" + START_MS.to_bytes(8).hex() + "00"
    assert records.decode(key, value) == OffsetCommitted(slot, StoredOffset(5, 3, "m", START_MS))
    _, with_id = offset_record(slot, StoredOffset(5, 3, "m", START_MS, -1, ONE))
    assert with_id is not None
    assert with_id.hex().endswith("010010" + ONE.hex)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0000000000000000000500016d0000000000000009", StoredOffset(5, -1, "m", 9)),
        ("0001000000000000000500016d0000000000000009000000000000000a", StoredOffset(5, -1, "m", 9, 10)),
        ("0002000000000000000500016d0000000000000009", StoredOffset(5, -1, "m", 9)),
        ("000300000000000000050000000400016d0000000000000009", StoredOffset(5, 4, "m", 9)),
        ("0004000000000000000500000004026d000000000000000900", StoredOffset(5, 4, "m", 9)),
    ],
)
def test_every_version_of_an_offset_commit_is_read(value: str, expected: StoredOffset) -> None:
    for key_type in ("0000", "0001"):
        key = bytes.fromhex(key_type + "00016700017400000002")
        meaning = records.decode(key, bytes.fromhex(value))
        assert meaning == OffsetCommitted(OffsetSlot("g", "t", 2), expected)


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_a_group_is_read(version: int) -> None:
    member = MemberMetadata("m", "i" if version >= 3 else None, "c", "/h", 7 if version else -1, 6, b"s", b"a")
    stored = GroupMetadataValue("consumer", 4, "range", "m", 9 if version >= 2 else -1, (member,))
    value = version.to_bytes(2) + classic_records._GROUP_VALUE.encode(version, stored)
    assert records.decode(b"\x00\x02\x00\x01g", value) == GroupStored("g", stored)
    world = World()
    world.shard().replay(b"\x00\x02\x00\x01g", value, world.now)
    assert world.group().members["m"].rebalance_timeout_ms == (7 if version else 6)


def test_undecodable_records_stop_the_load() -> None:
    for key, value in ((None, b""), (b"\x00", None), (b"\x00\x01\x00\x09g", None), (b"\x00\x02\x00\x01g", b"\x00\x63")):
        with pytest.raises(InternalError):
            records.decode(key, value)


def test_records_of_other_group_types_are_skipped() -> None:
    world = World()
    shard = world.shard()
    shard.replay(b"\x00\x0b\x00\x01g", b"\x00\x00\x00\x00\x00\x01\x00", world.now)
    shard.replay(b"\x00\x0d\x00\x01g\x00\x01m", b"\x00\x00\x01\x00", world.now)
    shard.replay(b"\x00\x63whatever", b"?", world.now)
    assert shard.state.skipped_record_count == 3
    assert world.join().outcome.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.commit().outcome.errors == (ErrorCode.UNKNOWN_MEMBER_ID,)
    shard.replay(b"\x00\x0b\x00\x01g", None, world.now)
    assert world.join().outcome is None


# --- transactions that Kafka left in the log ----------------------------------------


def _pair(offset: int, partition: int = 0) -> tuple[bytes, bytes | None]:
    return offset_record(OffsetSlot(GROUP, "t", partition), StoredOffset(offset, -1, "", START_MS))


def test_transactional_offsets_are_visible_after_the_transaction_ends() -> None:
    world = World()
    shard = world.shard()
    shard.replay(*_pair(5), world.now, transaction_of=9)
    assert world.offset() == -1
    assert world.fetch(require_stable=True).outcome.topics[0][1][0].error is ErrorCode.UNSTABLE_OFFSET_COMMIT
    shard.replay_marker(9, committed=True)
    assert world.offset() == 5
    shard.replay(*_pair(6), world.now, transaction_of=9)
    shard.replay_marker(9, committed=False)
    assert world.offset() == 5


def test_later_commit_survives_the_end_of_an_earlier_transaction() -> None:
    world = World()
    shard = world.shard()
    shard.replay(*_pair(5), world.now, transaction_of=9)
    world.commit(8)
    shard.replay_marker(9, committed=True)
    assert world.offset() == 8


def test_a_group_with_an_open_transaction_is_not_removed() -> None:
    world = World(GroupSettings(initial_rebalance_delay_ms=0, offsets_retention_ms=DAY_MS))
    world.shard().replay(*_pair(5), world.now, transaction_of=9)
    world.advance(3 * DAY_MS)
    assert GROUP in world.shard().state.classic


@pytest.mark.parametrize(
    ("key", "expected"), [("00000001", True), ("00000000", False), ("00000002", None), ("00", None)]
)
def test_transaction_markers(key: str, expected: bool | None) -> None:
    assert records.transaction_end(bytes.fromhex(key)) is expected


def test_subscriptions_are_read_in_every_version() -> None:
    world = World()
    newer = b"\x00\x03" + subscription("a", "b")[2:] + b"\x00\x00\x00\x00more"
    world.stable("x", protocols=(("range", newer),))
    assert world.group().subscribed_topics == {"a", "b"}


def test_retention_of_many_groups_is_checked_in_parts() -> None:
    """No request waits for it; a look removes offsets in one batch, and the next look follows soon."""
    groups = [name for name in (f"g-{number}" for number in range(100_000)) if partition_for(name, 50) == 7][:30]
    settings = GroupSettings(
        initial_rebalance_delay_ms=0, offsets_retention_ms=DAY_MS, offsets_retention_check_interval_ms=DAY_MS // 2
    )
    world = World(settings, partitions=[7])
    for group in groups:
        world.commit(group=group, offsets=tuple(OffsetToCommit("t", index, 1) for index in range(1_000)))
    world.advance(DAY_MS - 1)
    world.batches.clear()
    world.advance(world.settings.offsets_retention_check_interval_ms)
    while world.shard(groups[0]).state.classic:
        world.advance(1_000)
    assert sum(len(batch) for batch in world.batches) == len(groups) * 1_001
    assert max(len(batch) for batch in world.batches) <= 101
    assert len(world.batches) <= len(groups) * 10 + 1


class Looks:
    """Counts the offsets that the retention checks of a group look at, by round."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self._world = world
        self.count = 0
        monkeypatch.setattr(removals, "expires_at", self._counted)

    def _counted(self, *given: Any) -> int:
        self.count += 1
        return expires_at(*given)

    def of_a_round(self) -> int:
        """Looks at an offset that is kept are counted twice."""
        before = self.count
        self._world.advance(self._world.settings.offsets_retention_check_interval_ms + 1_000)
        return self.count - before


def test_groups_of_which_nothing_can_have_expired_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(GroupSettings(initial_rebalance_delay_ms=0, offsets_retention_ms=DAY_MS))
    looks = Looks(world, monkeypatch)
    world.commit(1)
    assert looks.of_a_round() == 2
    world.commit(2, partition=1)
    assert looks.of_a_round() == 0, "it expires after the other"
    world.commit(3, partition=2, retention_ms=1)
    assert looks.of_a_round() == 2 + 2 + 1, "it has its own retention"
    assert world.offset(partition=2) == -1
    assert looks.of_a_round() == 0
    world.advance(DAY_MS)
    assert world.offset() == world.offset(partition=1) == -1


def test_an_offset_whose_removal_was_rejected_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(GroupSettings(initial_rebalance_delay_ms=0, offsets_retention_ms=DAY_MS))
    world.commit(1)
    world.advance(DAY_MS // 2)
    world.commit(2, partition=1)
    world.hold_appends = True
    world.advance(DAY_MS // 2 + world.settings.offsets_retention_check_interval_ms)
    world.release(ErrorCode.NOT_ENOUGH_REPLICAS)
    world.hold_appends = False
    assert world.offset() == 1
    assert Looks(world, monkeypatch).of_a_round() == 2 + 1
    assert (world.offset(), world.offset(partition=1)) == (-1, 2)


def test_a_large_group_goes_once_all_of_its_offsets_are_removed() -> None:
    """A part of the removals is not decided when the last part is written."""
    world = World(GroupSettings(initial_rebalance_delay_ms=0, offsets_retention_ms=DAY_MS))
    world.commit(offsets=tuple(OffsetToCommit("t", index, 1) for index in range(250)))
    world.hold_appends = True
    world.advance(DAY_MS + world.settings.offsets_retention_check_interval_ms)
    assert [len(each.records) for each in world.held if isinstance(each, AppendGroupRecords)] == [99, 100, 51]
    world.release(ErrorCode.NOT_ENOUGH_REPLICAS)
    world.release()
    world.release()
    assert GROUP in world.shard().state.classic
    assert sum(world.offset(partition=index) == 1 for index in range(250)) == 99
    world.hold_appends = False
    world.advance(world.settings.offsets_retention_check_interval_ms + 1_000)
    assert GROUP not in world.shard().state.classic


def test_large_group_is_deleted_in_batches_that_the_log_accepts() -> None:
    world = World()
    for start in range(0, 12_000, 1_000):
        world.commit(offsets=tuple(OffsetToCommit("t", start + index, 1) for index in range(1_000)))
    world.batches.clear()
    assert world.delete_groups(GROUP) == {GROUP: NONE}
    assert [len(batch) for batch in world.batches] == [5_000, 5_000, 2_001]
    world.reload()
    assert GROUP not in world.shard().state.classic


def test_a_group_that_commits_while_it_is_looked_at_stays() -> None:
    world = World(GroupSettings(initial_rebalance_delay_ms=0, offsets_retention_ms=DAY_MS))
    world.commit(offsets=tuple(OffsetToCommit("t", index, 1) for index in range(250)))
    world.batches.clear()
    world.advance(DAY_MS - 1)
    while not world.batches:
        world.advance(10)
    assert sum(world.offset(partition=index) == 1 for index in range(250)) == 151
    world.commit(7, topic="u")
    world.commit(8, partition=249)
    world.advance(1_000)
    assert GROUP in world.shard().state.classic
    assert (world.offset("u"), world.offset(partition=249), world.offset(partition=0)) == (7, 8, -1)
    world.advance(DAY_MS + world.settings.offsets_retention_check_interval_ms)
    assert GROUP not in world.shard().state.classic


def test_shards_share_the_time_of_retention_checks() -> None:
    """Whatever the number of partitions, there is a look every 20 ms."""
    world = World(GroupSettings(initial_rebalance_delay_ms=0, offsets_retention_ms=DAY_MS))
    groups = [f"g-{number}" for number in range(20)]
    for group in groups:
        world.commit(group=group, offsets=tuple(OffsetToCommit("t", index, 1) for index in range(500)))
    assert len({world.shard(group).partition for group in groups}) > 10
    world.batches.clear()
    while not world.batches:
        world.advance(1_000)
    before = len(world.batches)
    world.advance(1_000)
    assert 40 <= len(world.batches) - before <= 70
    world.advance(10_000)
    assert not any(world.shard(group).state.classic for group in groups)
    assert world.coordinator._retention_rounds.count == 0
    world.advance(DAY_MS)
    assert world.coordinator._retention_rounds.count == 0
