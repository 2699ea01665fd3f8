"""Offsets in transactions: pending, committed, aborted, undone; beside a small model in random lives.

Rules: transactions.md X47 to X52, X66.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fenceline.errors import ErrorCode
from fenceline.groups.messages import (
    AppendGroupMarker,
    AppendGroupRecords,
    EndOfTransaction,
    OffsetToCommit,
    TopicToFetch,
    TransactionalCommit,
    TransactionalProducer,
)
from fenceline.groups.settings import GroupSettings
from tests.groups.helpers import GROUP, Ticket, World

DAY_MS = 24 * 60 * 60 * 1000
PRODUCER, OTHER = 9, 10


class _Logged(NamedTuple):
    key: bytes
    value: bytes | None
    producer_id: int | None


class TransactionalWorld(World):
    """Its log keeps transactional batches and markers."""

    def __init__(self, settings: GroupSettings | None = None) -> None:
        self.journal: dict[int, list[_Logged | EndOfTransaction]] = {}
        super().__init__(settings)

    def _append(self, duty: AppendGroupRecords | AppendGroupMarker) -> None:
        if isinstance(duty, AppendGroupMarker):
            partition = duty.end.partition
            self.journal.setdefault(partition, []).append(duty.end)
        else:
            partition = duty.partition
            producer_id = None if duty.producer is None else duty.producer.producer_id
            records = [_Logged(key, value, producer_id) for key, value in duty.records]
            self.journal.setdefault(partition, []).extend(records)
        self.do(self.coordinator.appended(partition, duty.write_id, self.now))

    def _load(self, partitions: Sequence[int] | range) -> None:
        for partition in partitions:
            shard, duties = self.coordinator.begin_load(partition, 0, self.now)
            assert shard is not None
            for entry in self.journal.get(partition, []):
                if isinstance(entry, EndOfTransaction):
                    shard.replay_marker(entry.producer_id, committed=entry.commit)
                else:
                    shard.replay(entry.key, entry.value, self.now, entry.producer_id)
            self.do([*duties, *self.coordinator.finish_load(shard, self.now)])

    def commit_in(self, producer_id: int, *offsets: int, group: str = GROUP, **fields: Any) -> Ticket:
        """Offsets of partitions 0, 1, ... in a transaction."""
        ticket = Ticket("transactional commit")
        request = TransactionalCommit(
            group,
            TransactionalProducer(producer_id, 0),
            fields.pop("generation", -1),
            fields.pop("member_id", ""),
            fields.pop("instance", None),
            tuple(OffsetToCommit("t", index, offset, **fields) for index, offset in enumerate(offsets)),
        )
        self.do(self.coordinator.commit_in_transaction(ticket, request, self.now))
        return ticket

    def end(self, producer_id: int, *, commit: bool = True, group: str = GROUP) -> Ticket:
        ticket = Ticket("marker")
        partition = self.coordinator.partition_of(group)
        end = EndOfTransaction(partition, producer_id, 0, 0, commit, 2)
        self.do(self.coordinator.end_transaction(ticket, end))
        return ticket

    def stable_error(self, partition: int = 0) -> ErrorCode:
        outcome = self.fetch(TopicToFetch("t", (partition,)), require_stable=True).outcome
        error: ErrorCode = outcome.topics[0][1][0].error
        return error


def test_pending_until_the_marker_is_committed() -> None:
    """X51: 88 while any producer has a pending offset; KAFKA-17507: the marker is answered when they are visible."""
    world = TransactionalWorld()
    world.commit(3)
    assert world.commit_in(PRODUCER, 5).outcome.errors == (ErrorCode.NONE,)
    assert (world.offset(), world.stable_error()) == (3, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    world.hold_appends = True
    marker = world.end(PRODUCER)
    assert marker.outcome is None
    assert world.offset() == 3
    world.release()
    assert marker.outcome.error is ErrorCode.NONE
    assert (world.offset(), world.stable_error()) == (5, ErrorCode.NONE)


def test_aborted_offsets_are_dropped() -> None:
    world = TransactionalWorld()
    world.commit(3)
    world.commit_in(PRODUCER, 5, 6)
    world.end(PRODUCER, commit=False)
    assert (world.offset(), world.offset(partition=1), world.stable_error()) == (3, -1, ErrorCode.NONE)


@pytest.mark.parametrize("order", [(PRODUCER, OTHER), (OTHER, PRODUCER)])
def test_of_two_transactions_the_later_record_counts(order: tuple[int, int]) -> None:
    """X50: the offset of the pending record counts, not the marker's."""
    world = TransactionalWorld()
    world.commit_in(PRODUCER, 5)
    world.commit_in(OTHER, 6)
    for producer_id in order:
        world.end(producer_id)
    assert world.offset() == 6
    world.reload()
    assert world.offset() == 6


def test_a_marker_that_the_log_rejects_is_undone() -> None:
    """X52: refused = undone; the offsets are pending again, and the next marker ends them."""
    world = TransactionalWorld()
    world.commit(3)
    world.commit_in(PRODUCER, 5)
    world.hold_appends = True
    marker = world.end(PRODUCER)
    world.release(ErrorCode.TRANSACTION_COORDINATOR_FENCED)
    world.hold_appends = False
    assert marker.outcome.error is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert (world.offset(), world.stable_error()) == (3, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    world.end(PRODUCER)
    assert world.offset() == 5


def test_a_commit_that_the_log_rejects_leaves_no_trace() -> None:
    world = TransactionalWorld()
    world.hold_appends = True
    commit = world.commit_in(PRODUCER, 5)
    world.release(ErrorCode.NOT_ENOUGH_REPLICAS)
    world.hold_appends = False
    assert commit.outcome.errors == (ErrorCode.COORDINATOR_NOT_AVAILABLE,)
    assert GROUP not in world.shard().state.classic
    world.end(PRODUCER)
    assert (world.offset(), world.stable_error()) == (-1, ErrorCode.NONE)


def test_a_rejected_second_commit_keeps_the_first() -> None:
    world = TransactionalWorld()
    world.commit_in(PRODUCER, 5)
    world.hold_appends = True
    world.commit_in(PRODUCER, 6)
    world.release(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    world.hold_appends = False
    world.end(PRODUCER)
    assert world.offset() == 5


def test_a_tombstone_drops_pending_offsets_of_all_producers() -> None:
    """X50. A deletion that the log rejects keeps them."""
    world = TransactionalWorld()
    world.commit_in(PRODUCER, 5)
    world.commit_in(OTHER, 6)
    world.hold_appends = True
    world.delete_offsets(("t", 0))
    world.release(ErrorCode.NOT_ENOUGH_REPLICAS)
    world.hold_appends = False
    assert world.stable_error() is ErrorCode.UNSTABLE_OFFSET_COMMIT
    world.delete_offsets(("t", 0))
    assert world.stable_error() is ErrorCode.NONE
    world.end(PRODUCER)
    world.end(OTHER)
    assert world.offset() == -1


def test_a_group_with_pending_offsets_is_not_expired() -> None:
    """KAFKA-19163, 19164."""
    world = TransactionalWorld(GroupSettings(initial_rebalance_delay_ms=0, offsets_retention_ms=DAY_MS))
    world.commit_in(PRODUCER, 5)
    world.advance(3 * DAY_MS)
    assert GROUP in world.shard().state.classic
    world.end(PRODUCER)
    assert world.offset() == 5
    world.advance(3 * DAY_MS)
    assert GROUP not in world.shard().state.classic


def test_members_of_a_classic_group() -> None:
    """X48."""
    world = TransactionalWorld()
    assert world.commit_in(PRODUCER, 5, generation=3).outcome.errors == (ErrorCode.ILLEGAL_GENERATION,)
    assert GROUP not in world.shard().state.classic
    member = world.stable("a")["a"]
    generation = world.group().generation
    cases: list[tuple[dict[str, Any], ErrorCode]] = [
        ({}, ErrorCode.NONE),
        ({"member_id": member, "generation": generation}, ErrorCode.NONE),
        ({"member_id": member, "generation": generation - 1}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "unknown", "generation": generation}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": generation}, ErrorCode.UNKNOWN_MEMBER_ID),
    ]
    for fields, code in cases:
        assert world.commit_in(PRODUCER, 5, **fields).outcome.errors == (code,), fields


def test_too_large_metadata_only_fails_its_partition() -> None:
    world = TransactionalWorld()
    assert world.commit_in(PRODUCER, 5, metadata="x" * 5_000).outcome.errors == (ErrorCode.OFFSET_METADATA_TOO_LARGE,)
    assert GROUP not in world.shard().state.classic


def test_marker_for_a_partition_that_is_not_coordinated_here() -> None:
    world = TransactionalWorld()
    world.do(world.coordinator.resign(world.coordinator.partition_of(GROUP), world.now))
    assert world.end(PRODUCER).outcome.error is ErrorCode.NOT_COORDINATOR
    assert world.commit_in(PRODUCER, 1).outcome.errors == (ErrorCode.NOT_COORDINATOR,)


def test_epoch_and_metadata_are_kept() -> None:
    """epochs.md E61, KIP-320: offsets committed in a transaction carry leader epochs."""
    world = TransactionalWorld()
    world.commit_in(PRODUCER, 5, leader_epoch=7, metadata="m")
    world.end(PRODUCER)
    for _ in range(2):
        (found,) = world.fetch().outcome.topics[0][1]
        assert (found.offset, found.leader_epoch, found.metadata) == (5, 7, "m")
        world.reload()


# --- random lives ----------------------------------------

_PRODUCERS = (PRODUCER, OTHER, 11)
_ACTS = st.one_of(
    st.tuples(st.just("commit"), st.integers(0, 1)),
    st.tuples(st.just("commit in"), st.sampled_from(_PRODUCERS), st.integers(1, 2), st.booleans()),
    st.tuples(st.just("end"), st.sampled_from(_PRODUCERS), st.booleans(), st.booleans()),
    st.tuples(st.just("delete"), st.integers(0, 1), st.booleans()),
    st.tuples(st.just("reload")),
)


class _Model:
    """The visible offset of two partitions: (position in the log, offset)."""

    def __init__(self) -> None:
        self.visible: dict[int, tuple[int, int]] = {}
        self.pending: dict[int, dict[int, tuple[int, int]]] = {}
        self.position = 0

    def end(self, producer_id: int, commit: bool) -> None:
        for partition, value in self.pending.pop(producer_id, {}).items():
            if commit and value > self.visible.get(partition, (-1, -1)):
                self.visible[partition] = value

    def delete(self, partition: int) -> None:
        self.visible.pop(partition, None)
        for pending in self.pending.values():
            pending.pop(partition, None)


@settings(max_examples=150, deadline=None)
@given(st.lists(_ACTS, max_size=25))
def test_random_lives(acts: list[tuple[Any, ...]]) -> None:
    world, model = TransactionalWorld(), _Model()
    for offset, act in enumerate(acts):
        model.position += 1
        match act:
            case ("commit", partition):
                world.commit(offset, partition=partition)
                model.visible[partition] = (model.position, offset)
            case ("commit in", producer_id, count, is_rejected):
                world.hold_appends = is_rejected
                world.commit_in(producer_id, *([offset] * count))
                if is_rejected:
                    world.release(ErrorCode.NOT_ENOUGH_REPLICAS)
                else:
                    pending = model.pending.setdefault(producer_id, {})
                    pending.update(dict.fromkeys(range(count), (model.position, offset)))
            case ("end", producer_id, commit, is_rejected):
                world.hold_appends = is_rejected
                world.end(producer_id, commit=commit)
                if is_rejected:
                    world.release(ErrorCode.TRANSACTION_COORDINATOR_FENCED)
                else:
                    model.end(producer_id, commit)
            case ("delete", partition, is_rejected):
                world.hold_appends = is_rejected
                world.delete_offsets(("t", partition))
                if world.held:
                    world.release(ErrorCode.NOT_ENOUGH_REPLICAS)
                elif not is_rejected:
                    model.delete(partition)
            case _:
                world.reload()
        world.hold_appends = False
        for partition in (0, 1):
            assert world.offset(partition=partition) == model.visible.get(partition, (0, -1))[1]
            is_pending = any(partition in pending for pending in model.pending.values())
            expected = ErrorCode.UNSTABLE_OFFSET_COMMIT if is_pending else ErrorCode.NONE
            assert world.stable_error(partition) is expected
