"""Commits below the former offset after a truncation: accepted, marked, and restored from the log."""

from __future__ import annotations

from uuid import UUID

import pytest

from fenceline.errors import ErrorCode
from fenceline.groups.messages import CommittedRewind, OffsetRewound
from fenceline.groups.offsets.offsets import OffsetSlot, StoredOffset
from fenceline.groups.offsets.rewinds import is_at_epoch_end, shows_truncation, step_back
from fenceline.ids import ZERO_UUID
from tests.groups.helpers import GROUP, START_MS, World

SLOT = OffsetSlot(GROUP, "t", 0)
ONE, OTHER = UUID(int=1), UUID(int=2)


@pytest.mark.parametrize(
    ("before", "after", "goes_back"),
    [
        pytest.param((100, 3), (90, 4), True, id="behind, with a newer epoch"),
        pytest.param((100, 3), (90, 3), False, id="sought back in the same epoch"),
        pytest.param((100, 3), (90, 2), False, id="sought back into an older epoch"),
        pytest.param((100, 3), (90, -1), False, id="reset without an epoch"),
        pytest.param((100, -1), (90, 4), False, id="former position without an epoch"),
        pytest.param((100, 3), (100, 4), False, id="unchanged"),
        pytest.param((100, 3), (110, 4), False, id="further on"),
        pytest.param((100, 0), (0, 1), True, id="to the very start"),
    ],
)
def test_rewind_rule(before: tuple[int, int], after: tuple[int, int], goes_back: bool) -> None:
    found = step_back((*before, ZERO_UUID), (*after, ZERO_UUID), 7)
    assert (found is not None and shows_truncation(found)) is goes_back
    if found is not None:
        assert found == CommittedRewind(*before, *after, 7)


@pytest.mark.parametrize(
    ("before", "after", "goes_back"),
    [(ONE, ONE, True), (ONE, OTHER, False), (ZERO_UUID, OTHER, True), (ONE, ZERO_UUID, True)],
)
def test_commit_to_a_recreated_topic_is_not_a_rewind(before: UUID, after: UUID, goes_back: bool) -> None:
    assert (step_back((100, 3, before), (90, 4, after), 7) is not None) is goes_back


@pytest.mark.parametrize(
    ("after", "epoch_end", "goes_back"),
    [((90, 3), 90, True), ((90, 3), 95, False), ((90, 3), -1, False), ((90, -1), 90, False), ((90, 2), 90, True)],
)
def test_commit_at_the_new_end_of_the_epoch(after: tuple[int, int], epoch_end: int, goes_back: bool) -> None:
    """A consumer that detected the truncation and commits before it reads on."""
    step = step_back((100, 3, ZERO_UUID), (*after, ZERO_UUID), 7)
    assert step is not None
    assert is_at_epoch_end(step, epoch_end) is goes_back


def test_coordinator_queries_the_local_log_for_the_epoch_end() -> None:
    world = World(epoch_end=lambda topic, partition, epoch: {("t", 0, 3): 90}.get((topic, partition, epoch), -1))
    world.commit_all({("t", 0): (100, 3), ("t", 1): (100, 3)})
    world.commit_all({("t", 0): (90, 3), ("t", 1): (90, 3)})
    expected = CommittedRewind(100, 3, 90, 3, START_MS)
    assert _mark(world) == expected
    assert world.reported == [OffsetRewound(GROUP, "t", 0, expected)]


def _mark(world: World) -> CommittedRewind | None:
    stored = world.shard().state.offsets.committed(SLOT)
    assert stored is not None
    return stored.rewound


def test_rewind_is_accepted_marked_and_reported_once() -> None:
    world = World()
    assert world.commit_all({("t", 0): (100, 3)}).outcome.errors == (ErrorCode.NONE,)
    assert _mark(world) is None
    world.advance(5)
    assert world.commit_all({("t", 0): (90, 4)}).outcome.errors == (ErrorCode.NONE,)
    expected = CommittedRewind(100, 3, 90, 4, START_MS + 5)
    assert _mark(world) == expected
    assert world.reported == [OffsetRewound(GROUP, "t", 0, expected)]
    world.commit_all({("t", 0): (200, 4)})
    assert _mark(world) == expected, "a position keeps its mark"
    assert len(world.reported) == 1
    fetched = world.fetch().outcome.topics[0][1][0]
    assert (fetched.offset, fetched.leader_epoch) == (200, 4)


def test_rewind_rejected_by_the_log_leaves_no_mark() -> None:
    world = World()
    world.commit_all({("t", 0): (100, 3)})
    world.hold_appends = True
    world.commit_all({("t", 0): (90, 4)})
    world.release(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert _mark(world) is None
    assert world.reported == []


def test_rewind_is_restored_by_a_load() -> None:
    world = World()
    for at in ((100, 3), (90, 4), (95, 4)):
        world.commit_all({("t", 0): at, ("t", 1): (at[0], 3)})
    expected = _mark(world)
    assert expected is not None
    world.reload()
    assert _mark(world) == expected
    other = world.shard().state.offsets.committed(OffsetSlot(GROUP, "t", 1))
    assert other is not None
    assert other.rewound is None
    assert world.reported == [OffsetRewound(GROUP, "t", 0, expected)], "a load reports nothing again"


def test_rewind_is_removed_with_the_offset() -> None:
    world = World()
    world.commit_all({("t", 0): (100, 3)})
    world.commit_all({("t", 0): (90, 4)})
    world.delete_offsets(("t", 0))
    world.commit_all({("t", 0): (95, 4)})
    assert _mark(world) is None


def test_transactional_commit_is_compared_when_its_transaction_ends() -> None:
    world = World()
    world.commit_all({("t", 0): (100, 3)})
    shard = world.shard()
    shard.state.offsets.put_open(9, SLOT, StoredOffset(90, 4, "", 5))
    assert _mark(world) is None
    shard.replay_marker(9, committed=True)
    assert _mark(world) == CommittedRewind(100, 3, 90, 4, 5)
