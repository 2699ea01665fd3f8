"""The invariants of a shard: in the other tests they hold after every event, here each broken one must be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from immutables import Map

from fenceline.groups.classic.model import ClassicGroup
from fenceline.groups.shard import Shard
from fenceline.groups.timers import TimerKind
from tests.groups.consumer_world import AT_ONCE, ConsumerWorld
from tests.groups.helpers import GROUP, World


def _classic() -> tuple[World, ClassicGroup, str]:
    world = World()
    members = world.stable("a", "b")
    return world, world.group(), members["b"]


def _disarm(shard: Shard, kind: TimerKind, member_id: str = "") -> None:
    shard.timers.disarm(kind, GROUP, member_id)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda shard, group, _: shard.timers.arm(TimerKind.JOIN, GROUP, "", 1), "a join phase has an end"),
        (lambda shard, group, b: _disarm(shard, TimerKind.SESSION, b), "has no session"),
        (lambda shard, group, _: group.pending_joins.add("c"), "has no deadline"),
        (lambda shard, group, b: group.pending_joins.add(b), "not pending as well"),
        (lambda shard, group, _: setattr(group, "leader_id", "c"), "the leader is a member"),
        (lambda shard, group, b: (_disarm(shard, TimerKind.SYNC), group.pending_syncs.add(b)), "without end"),
        (lambda shard, group, _: shard.state.offsets._undos.update({7: {("g", "t", 0): None}}), "belong together"),
    ],
)
def test_broken_invariant_of_a_classic_group_is_found(
    damage: Callable[[Shard, ClassicGroup, str], object], why: str
) -> None:
    world, group, member_id = _classic()
    world.shard().check()
    damage(world.shard(), group, member_id)
    with pytest.raises(AssertionError, match=why):
        world.shard().check()


def test_broken_invariant_of_a_consumer_group_is_found() -> None:
    world = ConsumerWorld()
    world.enter("a", "t")
    world.enter("b", "t")
    world.shard().check()
    before = world.consumers()
    for group, why in (
        (replace(before, owners=Map()), "owners match"),
        (replace(before, static_members=Map({"i": "a"})), "an instance id belongs to its member"),
        (replace(before, subscription_counts=Map()), "subscription counts match"),
    ):
        world.shard().state.consumer[GROUP] = group
        with pytest.raises(AssertionError, match=why):
            world.shard().check()
    world.shard().state.consumer[GROUP] = before
    _disarm(world.shard(), TimerKind.SESSION, "a")
    with pytest.raises(AssertionError, match="has no session"):
        world.shard().check()


def test_epochs_never_go_back() -> None:
    world = ConsumerWorld(AT_ONCE)
    world.enter("a", "t")
    group = world.consumers()
    group.check_step(group, "a")
    with pytest.raises(AssertionError, match="epoch"):
        replace(group, epoch=group.epoch - 1).check_step(group, "a")
    with pytest.raises(AssertionError, match="future epoch"):
        replace(group, assignment_epoch=group.epoch + 1).check_step(group, "a")
    older = group.with_member(replace(group.members["a"], epoch=1))
    with pytest.raises(AssertionError, match="epoch 2 before 1"):
        older.check_step(group, "a")
