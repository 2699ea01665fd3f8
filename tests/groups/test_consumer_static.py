"""Static members of the consumer protocol (KIP-345, KIP-848): an instance keeps its partitions while it is absent."""

from __future__ import annotations

from fenceline.errors import ErrorCode
from fenceline.groups.consumer.model import STATIC_LEAVING_EPOCH
from tests.groups.consumer_world import AT_ONCE, Client, ConsumerWorld, id_of, parts, settle


def _enter(world: ConsumerWorld, member_id: str, instance: str = "i") -> object:
    return world.enter(member_id, "t", instance_id=instance)


def test_returning_instance_keeps_its_partitions_under_a_new_id() -> None:
    world = ConsumerWorld()
    _enter(world, "a")
    epoch = world.consumers().epoch
    left = world.beat("a", -2, instance_id="i")
    assert (left.error, left.member_epoch) == (ErrorCode.NONE, -2)
    assert world.consumers().members["a"].epoch == STATIC_LEAVING_EPOCH
    back = world.enter("b", "t", instance_id="i")
    assert back.error is ErrorCode.NONE
    assert dict(back.assignment or ()) == {id_of("t"): (0, 1, 2, 3)}
    assert world.consumers().epoch == epoch, "the other members are not affected"
    assert list(world.consumers().members) == ["b"]
    assert world.error("a", 2, instance_id="i") is ErrorCode.FENCED_INSTANCE_ID


def test_present_instance_keeps_its_id() -> None:
    world = ConsumerWorld()
    _enter(world, "a")
    assert world.enter("b", "t", instance_id="i").error is ErrorCode.UNRELEASED_INSTANCE_ID
    assert world.beat("a", 2, instance_id="i").error is ErrorCode.NONE


def test_absent_instance_is_removed_after_its_session_timeout() -> None:
    world = ConsumerWorld()
    _enter(world, "a")
    other = Client(world, "o")
    settle(world, [other])
    world.beat("a", -2, instance_id="i")
    for _ in range(12):
        other.beat()
        world.advance(5_000)
    settle(world, [other])
    assert list(world.consumers().members) == ["o"]
    assert len(other.uses) == 4


def test_instance_whose_return_is_rejected_is_removed_after_its_session_timeout() -> None:
    world = ConsumerWorld()
    _enter(world, "a")
    world.beat("a", -2, instance_id="i")
    back = world.enter("b", instance_id="i", subscribed_regex="(")
    assert back.error is ErrorCode.INVALID_REGULAR_EXPRESSION
    world.advance(AT_ONCE.session.default_ms)
    assert world.consumers().is_empty


def test_session_of_an_instance_that_returns_under_its_own_id_is_tracked() -> None:
    world = ConsumerWorld()
    _enter(world, "a")
    world.beat("a", -2, instance_id="i")
    _enter(world, "a")
    assert list(world.consumers().members) == ["a"]
    world.advance(AT_ONCE.session.default_ms)
    assert world.consumers().is_empty


def test_an_instance_can_leave_for_good() -> None:
    world = ConsumerWorld()
    _enter(world, "a")
    assert world.error("other", -1, instance_id="i") is ErrorCode.FENCED_INSTANCE_ID
    assert world.beat("a", -1, instance_id="i").error is ErrorCode.NONE
    assert world.consumers().is_empty
    assert not world.consumers().static_members


def test_unknown_instance_is_rejected() -> None:
    world = ConsumerWorld()
    _enter(world, "a")
    assert world.error("a", 2, instance_id="j") is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.error("a", -2, instance_id="j") is ErrorCode.UNKNOWN_MEMBER_ID


def test_partitions_of_an_absent_instance_are_not_reassigned() -> None:
    world = ConsumerWorld()
    one = Client(world, "a", instance="i")
    two = Client(world, "b")
    settle(world, [one, two])
    held = one.owned
    world.beat("a", -2, instance_id="i")
    settle(world, [two], rounds=3)
    assert len(two.uses) == 2
    back = Client(world, "a2", instance="i")
    back.beat()
    assert back.owned == held
    assert parts(t=range(4)).keys() == back.owned.keys()


def test_member_that_joins_with_another_instance_id_loses_the_former_one() -> None:
    world = ConsumerWorld()
    world.enter("a", "t", instance_id="i")
    assert world.enter("a", "t", instance_id="j").error is ErrorCode.NONE
    assert dict(world.consumers().static_members) == {"j": "a"}
    before = world.consumers()
    world.reload()
    assert world.consumers() == before
    assert world.enter("b", "t", instance_id="i").error is ErrorCode.NONE, "no member uses the former instance id"
