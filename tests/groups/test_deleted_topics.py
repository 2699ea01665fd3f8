"""Offsets of deleted topics: absent at once, deleted in slices; a topic made anew meanwhile keeps its own."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from random import Random
from uuid import UUID

import pytest

from fenceline.errors import ErrorCode
from fenceline.groups.messages import (
    AppendGroupMarker,
    AppendGroupRecords,
    CommittedPosition,
    OffsetToCommit,
    TopicToFetch,
)
from fenceline.groups.offsets.records import decode
from fenceline.groups.settings import GroupSettings
from fenceline.ids import ZERO_UUID
from tests.groups.helpers import GROUP, World
from tests.groups.offsets.test_transactional_offsets import OTHER, PRODUCER, TransactionalWorld
from tests.node.api.handlers.fakes import image_of, topic_image

OLD, NEW, KEPT = UUID(int=1), UUID(int=2), UUID(int=3)
MANY = 600
"""Partitions: more than one slice."""
SLICE = 250
RETRY_MS = 5_000


def _commit(world: World, offset: int, topic_id: UUID, *, topic: str = "t", group: str = GROUP, many: int = 1) -> None:
    offsets = tuple(OffsetToCommit(topic, index, offset, topic_id=topic_id) for index in range(many))
    assert set(world.commit(offsets=offsets, group=group).outcome.errors) == {ErrorCode.NONE}


def _delete(world: World, *topics: tuple[str, UUID]) -> None:
    world.do(world.coordinator.on_topics_deleted(topics or [("t", OLD)], world.now))


def _tombstones(world: World) -> Counter[tuple[str, str, int]]:
    """By slot: group, topic, partition."""
    return Counter(
        decode(key, None).slot for batch in world.batches for key, value in batch if value is None and key is not None
    )


def _beside(world: World) -> str:
    """Another group in the same partition of `__consumer_offsets`."""
    partition_of = world.coordinator.partition_of
    return next(name for name in map(str, range(10_000)) if partition_of(name) == partition_of(GROUP))


def _offsets(world: World, topic_id: UUID = ZERO_UUID, *, group: str = GROUP) -> dict[int, int]:
    """Of a group in topic t, as a client is told that names partitions."""
    asked = TopicToFetch("t", tuple(range(MANY)), topic_id)
    found = world.fetch(asked, group=group).outcome.topics[0][1]
    return {each.partition: each.offset for each in found if each.offset >= 0}


def _all_offsets(world: World, group: str = GROUP) -> dict[str, int]:
    """How many a client is told that asks for all of a group, by topic."""
    return {topic: len(found) for topic, found in world.fetch(group=group, everything=True).outcome.topics}


def test_each_offset_has_one_tombstone_and_no_turn_has_many() -> None:
    world = World()
    for group in ("a", "b", "c"):
        _commit(world, 7, OLD, group=group, many=MANY)
        _commit(world, 8, KEPT, topic="kept", group=group)
    _commit(world, 9, ZERO_UUID, group="without id")
    world.batches.clear()
    _delete(world)
    assert SLICE - 10 < sum(len(batch) for batch in world.batches) <= SLICE, "the first slice, at once"
    for group in ("a", "b", "c"):
        assert (_offsets(world, group=group), _all_offsets(world, group)) == ({}, {"kept": 1})
    at_ms, slices = world.now.monotonic_ms, []
    while world.coordinator.next_deadline_ms() is not None and len(slices) < 100:
        before = len(world.batches)
        world.advance(1)
        slices.append(sum(len(batch) for batch in world.batches[before:]))
    assert world.now.monotonic_ms > at_ms
    assert max(slices) <= SLICE
    slots = {(group, "t", index) for group in ("a", "b", "c") for index in range(MANY)} | {("without id", "t", 0)}
    assert _tombstones(world) == Counter(slots)
    assert not any(shard.state.offsets._deleted for shard in world.coordinator._active.values()), "all are gone"
    world.reload()
    for group in ("a", "b", "c"):
        assert (_offsets(world, group=group), _all_offsets(world, group)) == ({}, {"kept": 1})


def test_each_offset_is_compared_when_it_goes() -> None:
    world = World()
    _commit(world, 7, OLD, many=MANY)
    _commit(world, 8, KEPT, topic="kept")
    _delete(world)
    dropped = len(world.dropped)
    assert dropped == len(_tombstones(world)) == SLICE
    world.advance(1_000)
    assert world.dropped == [CommittedPosition(GROUP, "t", index, 7, -1, OLD) for index in range(MANY)]


def test_offsets_of_a_topic_made_anew_stay() -> None:
    """They are committed while the old ones are being deleted. Each old one is compared, also one that is replaced."""
    world = World()
    _commit(world, 70, OLD, many=MANY)
    _delete(world)
    done = set(_tombstones(world))
    _commit(world, 3, NEW, many=MANY - 10)
    new = dict.fromkeys(range(MANY - 10), 3)
    assert (_offsets(world), _offsets(world, NEW), _all_offsets(world)) == (new, new, {"t": len(new)})
    world.advance(10_000)
    assert set(_tombstones(world)) - done == {(GROUP, "t", index) for index in range(MANY - 10, MANY)}
    assert Counter((each.partition, each.offset) for each in world.dropped) == Counter(
        (index, 70) for index in range(MANY)
    )
    assert _offsets(world, NEW) == new
    world.image = image_of([topic_image("t", number=NEW.int)])
    world.reload()
    world.advance(10_000)
    assert _offsets(world, NEW) == new


def test_the_new_topic_is_deleted_as_well_while_the_old_ones_offsets_go() -> None:
    world = World()
    _commit(world, 70, OLD, many=MANY)
    _delete(world)
    _commit(world, 3, NEW, many=MANY)
    _commit(world, 3, NEW, group="another")
    _delete(world, ("t", NEW))
    assert (_offsets(world), _offsets(world, group="another")) == ({}, {})
    newest = UUID(int=9)
    _commit(world, 4, newest, group="another")
    world.advance(10_000)
    assert (_offsets(world), _offsets(world, group="another")) == ({}, {0: 4})
    world.reload()
    assert (_all_offsets(world), _all_offsets(world, "another")) == ({}, {"t": 1})


def test_a_topic_deleted_during_a_pass_has_another_one() -> None:
    """The first pass is beyond its groups."""
    world = World()
    beside = _beside(world)
    _commit(world, 1, KEPT, topic="kept", group=beside, many=3)
    _commit(world, 70, OLD, many=MANY)
    _delete(world)
    assert sum(_tombstones(world).values()) == SLICE - 1, "it has looked at the first group"
    _delete(world, ("kept", KEPT))
    assert _all_offsets(world, beside) == {}
    world.advance(1_000)
    assert sum(_tombstones(world).values()) == MANY + 3
    assert not world.shard().state.offsets._deleted


def test_a_rejected_commit_does_not_bring_the_old_offset_back() -> None:
    world = World()
    _commit(world, 70, OLD, many=SLICE + 1)
    world.hold_appends = True
    _delete(world)
    ticket = world.commit(offsets=(OffsetToCommit("t", SLICE, 3, topic_id=NEW),))
    assert _offsets(world, NEW) == {}, "it is not committed"
    world.release()
    world.advance(10)
    world.release(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert ticket.outcome.errors == (ErrorCode.COORDINATOR_NOT_AVAILABLE,)
    assert _offsets(world) == {}
    world.hold_appends = False
    world.advance(RETRY_MS + 100)
    assert len(_tombstones(world)) == SLICE + 1
    world.reload()
    assert _all_offsets(world) == {}


@pytest.mark.parametrize("many", [1, MANY])
def test_tombstones_that_the_log_rejects_are_written_later(many: int) -> None:
    world = World()
    _commit(world, 70, OLD, many=many)
    world.hold_appends = True
    _delete(world)
    world.release(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert (world.held, _offsets(world)) == ([], {}), "no second attempt at once; the offsets count as absent"
    world.advance(RETRY_MS - 1)
    assert world.held == []
    world.hold_appends = False
    world.advance(1_000)
    assert _tombstones(world) == Counter((GROUP, "t", index) for index in range(many))


def test_one_batch_of_a_partition_is_under_way() -> None:
    """A fetch of stable offsets waits until no write is pending, which has to come."""
    world = World()
    _commit(world, 70, OLD, many=MANY)
    world.hold_appends = True
    _delete(world)
    fetch = world.fetch(require_stable=True)
    world.advance(1_000)
    assert len(world.held) == 1
    assert fetch.outcome is None
    world.release()
    assert fetch.outcome is not None
    world.hold_appends = False
    world.advance(1_000)
    assert len(_tombstones(world)) == MANY


@pytest.mark.parametrize("commits", [True, False])
def test_an_offset_in_a_transaction_on_the_new_topic_stays(commits: bool) -> None:
    """A tombstone would delete it too; the old offset below it counts as absent, and goes when the transaction has
    aborted."""
    world = TransactionalWorld()
    _commit(world, 70, OLD, many=SLICE + 1)
    world.hold_appends = True
    _delete(world)
    world.commit_in(PRODUCER, *[3] * (SLICE + 1), topic_id=NEW)
    world.hold_appends = False
    while world.held:
        world.release()
    _commit(world, 5, KEPT, topic="kept")
    world.advance(2 * RETRY_MS)
    assert _offsets(world, NEW) == {}
    world.end(PRODUCER, commit=commits)
    world.advance(2 * RETRY_MS)
    new = dict.fromkeys(range(SLICE + 1), 3) if commits else {}
    for _ in range(2):
        assert _offsets(world) == new
        assert _all_offsets(world) == ({"kept": 1, "t": SLICE + 1} if commits else {"kept": 1})
        world.reload()
    positions = [(each.partition, each.offset) for each in world.dropped]
    assert set(positions) == {(index, 70) for index in range(SLICE + 1)}


def test_offsets_in_open_transactions_are_deleted() -> None:
    """They were meant for the deleted topic: the marker brings none of them, and a reader of stable offsets does not
    wait for it."""
    world = TransactionalWorld()
    _commit(world, 70, OLD, group=_beside(world), many=MANY)
    world.commit_in(PRODUCER, *[5] * MANY, topic_id=OLD)
    world.commit_in(OTHER, 7, topic_id=OLD)
    _delete(world)
    assert world.stable_error() is ErrorCode.NONE, "before there is a tombstone"
    world.advance(1_000)
    assert not world.shard().state.offsets.has_open_transactions
    world.end(PRODUCER)
    world.end(OTHER)
    for _ in range(2):
        assert (_offsets(world), _all_offsets(world)) == ({}, {})
        world.reload()


def test_an_old_offset_in_a_transaction_does_not_harm_a_new_one() -> None:
    world = TransactionalWorld()
    world.commit_in(PRODUCER, 70, topic_id=OLD)
    world.hold_appends = True
    ticket = world.commit(offsets=(OffsetToCommit("t", 0, 3, topic_id=NEW),))
    _delete(world)
    world.hold_appends = False
    while world.held:
        world.release()
    assert ticket.outcome.errors == (ErrorCode.NONE,)
    world.advance(10_000)
    world.end(PRODUCER)
    world.advance(10_000)
    for _ in range(2):
        assert _offsets(world, NEW) == {0: 3}
        world.reload()


@pytest.mark.parametrize("is_made_anew", [True, False])
def test_the_next_coordinator_deletes_what_is_left(is_made_anew: bool) -> None:
    """The first one resigned, or was killed, during the pass; the next one had seen the deletion before it led."""
    world = World()
    _commit(world, 70, OLD, many=MANY)
    _commit(world, 5, KEPT, topic="kept")
    _commit(world, 6, ZERO_UUID, topic="kept", group="without id")
    _delete(world)
    topics = [topic_image("kept", number=KEPT.int)]
    new = {}
    if is_made_anew:
        topics.append(topic_image("t", number=NEW.int))
        _commit(world, 3, NEW)
        new = {0: 3}
    world.image = image_of(topics)
    for partition in world.coordinator.active_partitions:
        world.do(world.coordinator.resign(partition, world.now))
    world.advance(10_000)
    assert len(_tombstones(world)) == SLICE, "a former coordinator writes nothing"
    world.dropped.clear()
    world.reload()
    world.advance(10_000)
    assert set(_tombstones(world)) == {(GROUP, "t", index) for index in range(MANY)}
    assert {each.partition for each in world.dropped} == set(range(SLICE, MANY)), "they are compared as well"
    assert _offsets(world, NEW) == new
    world.reload()
    assert _offsets(world) == new
    assert _all_offsets(world) == {"kept": 1} | ({"t": 1} if is_made_anew else {})
    assert _all_offsets(world, "without id") == {"kept": 1}, "whether it is of an older topic is not known"


def test_a_transaction_for_a_deleted_topic_is_found_by_the_next_coordinator() -> None:
    world = TransactionalWorld()
    world.commit_in(PRODUCER, 70, topic_id=OLD)
    world.image = image_of([topic_image("t", number=NEW.int)])
    world.reload()
    assert world.stable_error() is ErrorCode.NONE
    world.end(PRODUCER)
    assert _all_offsets(world) == {}


def test_without_metadata_nothing_is_deleted_after_a_load() -> None:
    world = World()
    _commit(world, 70, OLD)
    world.reload()
    world.advance(1_000)
    assert _offsets(world) == {0: 70}


def test_many_partitions_take_their_turns_one_after_the_other() -> None:
    """Groups in each partition of `__consumer_offsets`: one slice in a turn, not one for each."""
    world = World(GroupSettings(initial_rebalance_delay_ms=0))
    groups = [f"group {number}" for number in range(60)]
    for group in groups:
        _commit(world, 7, OLD, group=group, many=20)
    world.batches.clear()
    _delete(world)
    _delete(world, ("another", KEPT))
    assert sum(len(batch) for batch in world.batches) <= SLICE
    assert all(_all_offsets(world, group) == {} for group in groups)
    world.advance(1_000)
    assert sum(_tombstones(world).values()) == 20 * len(groups)


class _Life(TransactionalWorld):
    """Two groups commit offsets of a topic that is deleted and made anew, beside a model. Its log rejects tombstones at
    times."""

    def __init__(self, rng: Random) -> None:
        self.choose = rng
        self.rejects = True
        self.current = OLD
        self.order = 0
        self.groups = ["a", "b"]
        self.model: dict[tuple[str, int], tuple[int, int]] = {}
        """Group and partition: the number of the commit, and the offset."""
        self.open: dict[int, dict[tuple[str, int], tuple[int, int, UUID]]] = {PRODUCER: {}, OTHER: {}}
        self.gone: set[tuple[str, int, int, UUID]] = set()
        """Offsets that were committed when their topic was deleted."""
        super().__init__()
        self.image = image_of([topic_image("t", number=OLD.int)])

    def _append(self, duty: AppendGroupRecords | AppendGroupMarker) -> None:
        is_deletion = isinstance(duty, AppendGroupRecords) and all(value is None for _, value in duty.records)
        if is_deletion and self.rejects and self.choose.random() < 0.3:
            assert isinstance(duty, AppendGroupRecords)
            code = ErrorCode.NOT_ENOUGH_REPLICAS
            self.do(self.coordinator.append_failed(duty.partition, duty.write_id, code, self.now))
        else:
            super()._append(duty)

    def act(self) -> None:
        group, producer = self.choose.choice(self.groups), self.choose.choice((PRODUCER, OTHER))
        many = self.choose.randrange(1, 6)
        action = self.choose.choices(("commit", "in transaction", "end", "delete", "time", "load"), (6, 4, 4, 2, 6, 1))[
            0
        ]
        self.order += 1
        if action == "commit":
            _commit(self, self.order, self.current, group=group, many=many)
            self.model.update({(group, index): (self.order, self.order) for index in range(many)})
        elif action == "in transaction":
            self.commit_in(producer, *[self.order] * many, group=group, topic_id=self.current)
            pending = (self.order, self.order, self.current)
            self.open[producer].update({(group, index): pending for index in range(many)})
        elif action == "end":
            self.end_all(producer, commit=self.choose.random() < 0.6)
        elif action == "delete":
            self.gone |= {(*slot, offset, self.current) for slot, (_, offset) in self.model.items()}
            self.model.clear()
            before, self.current = self.current, UUID(int=self.current.int + 1)
            self.image = image_of([topic_image("t", number=self.current.int)])
            _delete(self, ("t", before))
        elif action == "time":
            self.advance(self.choose.choice((1, 7, 30, RETRY_MS)))
        else:
            self.reload()

    def end_all(self, producer: int, *, commit: bool) -> None:
        for partition in {self.coordinator.partition_of(group): group for group in self.groups}.values():
            self.end(producer, commit=commit, group=partition)
        for slot, (order, offset, topic_id) in self.open[producer].items():
            if commit and topic_id == self.current and order > self.model.get(slot, (0, 0))[0]:
                self.model[slot] = order, offset
        self.open[producer].clear()

    def verify(self) -> None:
        for group in self.groups:
            expected = {index: offset for (name, index), (_, offset) in self.model.items() if name == group}
            assert _offsets(self, self.current, group=group) == expected
            assert sum(_all_offsets(self, group).values()) >= len(expected)
        for shard in self.coordinator._active.values():
            offsets = shard.state.offsets
            assert offsets._readers == Counter(chain.from_iterable(offsets._by_group.values()))
        assert ("t" in self.coordinator.committed_topics()) >= bool(self.model)


@pytest.mark.parametrize("seed", range(20))
def test_random_lives(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of one to three tombstones. In the end no offset of a deleted topic is left, in the log neither."""
    monkeypatch.setattr("fenceline.groups.coordinator.LOOKS", 20 + 20 * (seed % 3))
    life = _Life(Random(seed))
    for _ in range(80):
        life.act()
        life.verify()
    life.rejects = False
    for producer in (PRODUCER, OTHER):
        life.end_all(producer, commit=True)
    life.advance(10 * RETRY_MS)
    for _ in range(2):
        life.verify()
        for group in life.groups:
            assert sum(_all_offsets(life, group).values()) == sum(name == group for name, _ in life.model)
            assert not life.shard(group).state.offsets._deleted
        life.reload()
        assert not any(shard.state.offsets._deleted for shard in life.coordinator._active.values()), (
            "in the log neither"
        )
    # A transaction for the deleted topic may end after the deletion: then its offset is compared.
    dropped: dict[tuple[str, int, UUID], int] = {}
    for each in life.dropped:
        where = (each.group_id, each.partition, each.topic_id)
        dropped[where] = max(dropped.get(where, 0), each.offset)
    for group, index, offset, topic_id in life.gone:
        assert dropped.get((group, index, topic_id), 0) >= offset, "each was compared with the log"
