"""Writes that are not replicated in time: waiting requests get a retriable error, the write stays pending."""

from __future__ import annotations

from fenceline.errors import ErrorCode
from fenceline.groups.messages import AppendGroupRecords
from tests.groups.helpers import GROUP, Ticket, World


def _late(world: World, duty: AppendGroupRecords) -> None:
    world.do(world.coordinator.append_is_late(duty.partition, duty.write_id, world.now))


def test_late_commit_is_not_visible_until_it_is_committed() -> None:
    world = World()
    world.commit_all({("t", 0): (5, 1)})
    world.hold_appends = True
    commit = world.commit_all({("t", 0): (9, 1)})
    _late(world, world.held[0])
    assert commit.outcome.errors == (ErrorCode.COORDINATOR_NOT_AVAILABLE,)
    assert world.offset() == 5
    world.release()
    assert world.offset() == 9


def test_late_commit_that_is_rejected_leaves_no_trace() -> None:
    world = World()
    world.commit_all({("t", 0): (5, 1)})
    world.hold_appends = True
    world.commit_all({("t", 0): (9, 1)})
    _late(world, world.held[0])
    world.release(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert world.offset() == 5


def test_stable_fetch_waiting_for_a_late_commit_must_retry() -> None:
    """Java clients before 3.9 retry NOT_COORDINATOR, and fail with COORDINATOR_NOT_AVAILABLE."""
    world = World()
    world.hold_appends = True
    world.commit_all({("t", 0): (9, 1)})
    fetch = world.fetch(require_stable=True)
    assert fetch.outcome is None
    _late(world, world.held[0])
    assert fetch.outcome.error is ErrorCode.NOT_COORDINATOR
    world.release()


def test_late_deletion_removes_the_group_only_when_it_is_committed() -> None:
    for end, is_left in ((ErrorCode.NONE, False), (ErrorCode.NOT_LEADER_OR_FOLLOWER, True)):
        world = World()
        world.commit_all({("t", 0): (5, 1)})
        world.hold_appends = True
        deletion = Ticket("delete groups")
        world.do(world.coordinator.delete_groups(deletion, (GROUP,), world.now))
        _late(world, world.held[0])
        assert deletion.outcome.errors == ((GROUP, ErrorCode.COORDINATOR_NOT_AVAILABLE),)
        world.release(end)
        assert (GROUP in world.shard().state.classic) is is_left
        offset = world.offset()
        assert offset == (5 if is_left else -1)


def test_completed_write_is_not_late() -> None:
    world = World()
    world.hold_appends = True
    commit = world.commit_all({("t", 0): (9, 1)})
    duty = world.held[0]
    world.release()
    _late(world, duty)
    assert commit.outcome.errors == (ErrorCode.NONE,)


def test_each_slot_shows_its_committed_offset_among_many_pending_writes() -> None:
    world = World()
    world.commit_all({("t", 0): (1, 1), ("u", 0): (1, 1)})
    world.hold_appends = True
    for offset in range(2, 6):
        world.commit_all({("t" if offset % 2 else "u", 0): (offset, 1)})

    def seen() -> tuple[int, int]:
        return world.offset("t"), world.offset("u")

    assert seen() == (1, 1)
    world.release()
    assert seen() == (1, 2)
    world.release(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert seen() == (1, 2)
    world.release()
    assert seen() == (1, 4)
    world.release()
    assert seen() == (5, 4)
    assert world.shard().state.offsets._pending_writes == {}
    assert world.shard().state.offsets._undos == {}
