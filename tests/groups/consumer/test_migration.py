"""Online migration of groups: classic to consumer with the first consumer protocol member, and back."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from fenceline.errors import ErrorCode
from fenceline.groups.classic.states import GroupState
from fenceline.groups.consumer.embedded import read_assignment, read_subscription
from fenceline.groups.consumer.settings import MigrationPolicy
from fenceline.groups.messages import JoinResponse, Protocols
from tests.groups.consumer_world import AT_ONCE, Client, ConsumerWorld, id_of, settle
from tests.groups.helpers import GROUP, Ticket, subscription


def _assignment(*partitions: int, user_data: bytes = b"") -> bytes:
    body = struct.pack(">hi", 0, 1) + struct.pack(">h", 1) + b"t" + struct.pack(">i", len(partitions))
    body += b"".join(struct.pack(">i", each) for each in partitions)
    return body + struct.pack(">i", len(user_data)) + user_data


def _subscription_1(*topics: str, owned: tuple[int, ...] = ()) -> bytes:
    """Version 1: with the owned partitions of t."""
    body = struct.pack(">hi", 1, len(topics))
    for topic in topics:
        body += struct.pack(">h", len(topic)) + topic.encode()
    body += struct.pack(">i", -1)
    if not owned:
        return body + struct.pack(">i", 0)
    body += struct.pack(">i", 1) + struct.pack(">h", 1) + b"t" + struct.pack(">i", len(owned))
    return body + b"".join(struct.pack(">i", each) for each in owned)


def _protocols(*owned: int) -> Protocols:
    return (("range", _subscription_1("t", owned=owned)),)


def _first(world: ConsumerWorld, **fields: Any) -> JoinResponse:
    """The first member of a classic group, after the initial rebalance delay."""
    ticket = world.join(protocols=_protocols(), **fields)
    world.advance(0)
    assert isinstance(ticket.outcome, JoinResponse)
    return ticket.outcome


def _classic(world: ConsumerWorld, name: str, *partitions: int) -> str:
    """A stable classic group of one member with these partitions. Returns its member id."""
    joined = _first(world, client_id=name)
    member_id: str = joined.member_id
    world.sync(member_id, joined.generation, {member_id: _assignment(*partitions)})
    assert world.group().state is GroupState.STABLE
    return member_id


def _synced(world: ConsumerWorld, member_id: str, generation: int) -> frozenset[int]:
    answer = world.sync(member_id, generation).outcome
    assert answer.error is ErrorCode.NONE
    return read_assignment(answer.assignment).partitions.get("t", frozenset())


def test_first_consumer_member_converts_a_classic_group() -> None:
    world = ConsumerWorld()
    old = _classic(world, "old", 0, 1, 2, 3)
    new = Client(world, "new")
    assert new.beat() is ErrorCode.NONE
    assert world.has_consumers()
    assert GROUP not in world.shard().state.classic
    member = world.consumers().members[old]
    assert member.uses_classic
    assert member.assigned == {id_of("t"): dict.fromkeys(range(4), 1)}
    # The classic member is asked to rejoin, reports its partitions, revokes some, and syncs.
    assert world.heartbeat(old, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    joined = world.join(old, protocols=_protocols(0, 1, 2, 3)).outcome
    assert joined.error is ErrorCode.NONE
    kept = _synced(world, old, joined.generation)
    assert len(kept) == 2
    assert world.heartbeat(old, joined.generation) is ErrorCode.REBALANCE_IN_PROGRESS, (
        "it must rejoin to report the revoked partitions"
    )
    joined = world.join(old, protocols=_protocols(*kept)).outcome
    assert _synced(world, old, joined.generation) == kept
    settle(world, [new], rounds=1)
    assert new.owned == {id_of("t"): frozenset(range(4)) - kept}
    assert world.heartbeat(old, joined.generation) is ErrorCode.NONE


def test_member_waiting_in_a_rebalance_is_asked_to_rejoin() -> None:
    world = ConsumerWorld()
    old = _classic(world, "old", 0)
    waiting = world.join(client_id="second", protocols=_protocols())
    assert waiting.outcome is None
    Client(world, "new").beat()
    assert waiting.outcome.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert set(world.consumers().members) == {old, waiting.outcome.member_id, "new"}


def test_a_classic_consumer_joins_a_group_of_the_consumer_protocol() -> None:
    world = ConsumerWorld()
    one = Client(world, "one")
    one.beat()
    asked = world.join(protocols=_protocols(), must_know_member_id=True).outcome
    assert asked.error is ErrorCode.MEMBER_ID_REQUIRED
    joined = world.join(asked.member_id, protocols=_protocols()).outcome
    assert (joined.error, joined.protocol_name, joined.members) == (ErrorCode.NONE, "range", ())
    assert _synced(world, asked.member_id, joined.generation) == frozenset()
    settle(world, [one], rounds=3)
    assert world.heartbeat(asked.member_id, joined.generation) is ErrorCode.REBALANCE_IN_PROGRESS
    joined = world.join(asked.member_id, protocols=_protocols()).outcome
    assert len(_synced(world, asked.member_id, joined.generation)) == 2
    assert len(one.uses) == 2


def test_group_is_downgraded_when_its_last_consumer_member_leaves() -> None:
    world = ConsumerWorld()
    old = _classic(world, "old", 0, 1, 2, 3)
    new = Client(world, "new")
    new.beat()
    epoch = world.consumers().epoch
    new.leave()
    assert not world.has_consumers()
    group = world.group()
    assert (group.state, group.generation, list(group.members)) == (GroupState.PREPARING_REBALANCE, epoch, [old])
    rejoined = world.join(old, protocols=_protocols(0, 1, 2, 3)).outcome
    assert rejoined.generation == epoch + 1
    assert rejoined.leader == old


def test_crash_during_a_migration_changes_nothing() -> None:
    world = ConsumerWorld()
    old = _classic(world, "old", 0, 1, 2, 3)
    Client(world, "new").beat()
    before = world.consumers()
    world.reload()
    assert world.consumers() == before
    assert GROUP not in world.shard().state.classic
    world.beat("new", -1)
    world.reload()
    assert not world.has_consumers()
    assert list(world.group().members) == [old]


@pytest.mark.parametrize("drops_tombstones", [False, True])
@pytest.mark.parametrize("share", [0.3, 0.6, 1.0])
def test_compaction_during_a_migration_changes_nothing(share: float, drops_tombstones: bool) -> None:
    world = ConsumerWorld()

    def compact_and_crash() -> None:
        consumers, classic = dict(world.shard().state.consumer), _seen(world)
        world.compact(share, drops_tombstones=drops_tombstones)
        world.reload()
        assert (world.shard().state.consumer, _seen(world)) == (consumers, classic)

    world.commit(7)
    old = _classic(world, "old", 0, 1, 2, 3)
    compact_and_crash()
    for _ in range(2):
        new = Client(world, "new")
        new.beat()
        compact_and_crash()
        new.leave()
        compact_and_crash()
        joined = world.join(old, protocols=_protocols(0, 1, 2, 3)).outcome
        world.sync(old, joined.generation, {old: _assignment(0, 1, 2, 3)})
        compact_and_crash()
    world.leave((old, None))
    world.advance(0)
    compact_and_crash()
    assert world.offset() == 7
    world.delete_groups(GROUP)
    compact_and_crash()
    assert world.offset() == -1


def _seen(world: ConsumerWorld) -> object:
    group = world.shard().state.classic.get(GROUP)
    return group and (
        group.generation,
        group.protocol_type,
        {m.member_id: m.assignment for m in group.members.values()},
    )


def test_rejected_conversion_leaves_the_group_unchanged() -> None:
    world = ConsumerWorld()
    old = _classic(world, "old", 0)
    world.hold_appends = True
    asked = world.ask("new", 0, rebalance_timeout_ms=1_000, subscribed_names=("t",), owned={})
    while world.held:
        world.release(ErrorCode.NOT_ENOUGH_REPLICAS)
    world.hold_appends = False
    assert asked.outcome.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not world.has_consumers()
    assert world.heartbeat(old, 1) is ErrorCode.NONE


@pytest.mark.parametrize("policy", [MigrationPolicy.DISABLED, MigrationPolicy.DOWNGRADE])
def test_classic_group_is_not_upgraded_if_the_policy_forbids_it(policy: MigrationPolicy) -> None:
    world = ConsumerWorld(replace(AT_ONCE, migration_policy=policy))
    old = _classic(world, "old", 0)
    answer = world.enter("new", "t")
    assert answer.error is ErrorCode.GROUP_ID_NOT_FOUND
    assert answer.message is not None
    assert "online upgrade is disabled" in answer.message
    assert world.heartbeat(old, 1) is ErrorCode.NONE


@pytest.mark.parametrize("policy", [MigrationPolicy.DISABLED, MigrationPolicy.UPGRADE])
def test_consumer_group_is_not_downgraded_if_the_policy_forbids_it(policy: MigrationPolicy) -> None:
    world = ConsumerWorld(replace(AT_ONCE, migration_policy=policy))
    one = Client(world, "one")
    one.beat()
    asked = world.join(protocols=_protocols(), must_know_member_id=True).outcome
    world.join(asked.member_id, protocols=_protocols())
    one.leave()
    assert list(world.consumers().members) == [asked.member_id]


def test_group_with_a_custom_assignor_stays_classic() -> None:
    world = ConsumerWorld()
    joined = _first(world, client_id="old")
    world.sync(joined.member_id, joined.generation, {joined.member_id: _assignment(0, user_data=b"mine")})
    answer = world.enter("new", "t")
    assert answer.message is not None
    assert "custom assignor" in answer.message


def test_group_of_another_protocol_type_is_unchanged() -> None:
    world = ConsumerWorld()
    world.join(client_id="w", protocol_type="connect", protocols=(("p", b""),))
    assert world.enter("new", "t").error is ErrorCode.GROUP_ID_NOT_FOUND


def test_member_without_the_last_generations_protocol_is_converted() -> None:
    world = ConsumerWorld()
    both = (*_protocols(), ("sticky", _subscription_1("t", owned=(0,))))
    first = world.join(client_id="old", protocols=both)
    world.advance(0)
    old = first.outcome.member_id
    world.sync(old, 1, {old: _assignment(0)})
    assert world.group().protocol_name == "range"
    waiting = world.join(client_id="second", protocols=(("sticky", _subscription_1("t")),))
    assert Client(world, "new").beat() is ErrorCode.NONE
    assert set(world.consumers().members) == {old, waiting.outcome.member_id, "new"}


def test_silent_member_is_removed_although_a_downgrade_is_impossible() -> None:
    """A downgrade needs every subscription in a protocol that all members have in common."""
    world = ConsumerWorld()
    new = Client(world, "new")
    new.beat()
    for protocols in ((*_protocols(), ("other", b"nothing to read")), (("other", _subscription_1("t")),)):
        member_id = world.join(protocols=protocols, must_know_member_id=True).outcome.member_id
        assert world.join(member_id, protocols=protocols, session_timeout_ms=600_000).outcome.error is ErrorCode.NONE
    world.advance(AT_ONCE.session.default_ms)
    assert "new" not in world.consumers().members


def test_classic_group_stays_if_removal_of_the_empty_consumer_group_is_rejected() -> None:
    world = ConsumerWorld()
    world.enter("a", "t")
    world.beat("a", -1)
    world.hold_appends = True
    joining = world.join(protocols=_protocols(), session_timeout_ms=10_000)
    while world.held:
        world.release(ErrorCode.NOT_ENOUGH_REPLICAS)
    world.hold_appends = False
    world.advance(0)
    assert joining.outcome.error is ErrorCode.NONE
    assert not world.has_consumers()
    assert world.heartbeat(joining.outcome.member_id, joining.outcome.generation) is ErrorCode.NONE


def test_consumer_group_stays_if_removal_of_the_deleted_classic_group_is_rejected() -> None:
    world = ConsumerWorld()
    world.commit(7)
    world.hold_appends = True
    deletion = Ticket("delete groups")
    world.do(world.coordinator.delete_groups(deletion, (GROUP,), world.now))
    world.ask("a", 0, rebalance_timeout_ms=1_000, subscribed_names=("t",), owned={})
    world.release(ErrorCode.NOT_ENOUGH_REPLICAS)
    while world.held:
        world.release()
    world.hold_appends = False
    assert set(world.consumers().members) == {"a"}
    assert GROUP not in world.shard().state.classic
    assert world.offset() == 7


def test_empty_group_is_replaced_by_a_group_of_the_other_protocol() -> None:
    world = ConsumerWorld()
    world.commit(7)
    world.enter("a", "t")
    assert world.offset() == 7
    world.beat("a", -1)
    joined = _first(world)
    assert joined.error is ErrorCode.NONE
    assert not world.has_consumers()
    assert world.offset() == 7
    world.reload()
    assert not world.has_consumers()
    assert world.offset() == 7


def test_static_member_keeps_its_partitions_when_it_changes_its_protocol() -> None:
    world = ConsumerWorld()
    joined = _first(world, instance="i")
    world.sync(joined.member_id, joined.generation, {joined.member_id: _assignment(0, 1, 2, 3)}, group_instance_id="i")
    new = Client(world, "new", instance="i")
    new.beat()
    assert len(new.uses) == 4
    assert list(world.consumers().members) == ["new"]
    # And back: no member of the consumer protocol remains.
    back = world.join(instance="i", protocols=_protocols()).outcome
    assert back.error is ErrorCode.NONE
    assert not world.has_consumers()
    assert list(world.group().members) == [back.member_id]


def test_administrator_removes_members_of_either_protocol() -> None:
    world = ConsumerWorld()
    world.enter("a", "t")
    world.enter("b", "t", instance_id="i")
    left = world.leave(("a", None), ("", "i"), ("nobody", None)).outcome
    assert [each.error for each in left.members] == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert world.consumers().is_empty


def test_classic_requests_of_a_consumer_member_are_rejected() -> None:
    world = ConsumerWorld()
    world.enter("a", "t")
    assert world.heartbeat("a", 2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.sync("a", 2).outcome.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_join_with_an_incompatible_protocol_is_rejected() -> None:
    world = ConsumerWorld()
    world.enter("a", "t")
    assert world.join(protocol_type="connect", protocols=(("p", b""),)).outcome.error is (
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    )
    first = world.join("c1", protocols=_protocols()).outcome
    assert first.error is ErrorCode.NONE
    other = world.join("c2", protocols=(("sticky", _subscription_1("t")),)).outcome
    assert other.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_classic_member_that_does_not_rejoin_is_removed() -> None:
    world = ConsumerWorld()
    _classic(world, "old", 0, 1, 2, 3)
    new = Client(world, "new")
    new.beat()
    for _ in range(4):
        new.beat()
        world.advance(5_000)
    assert GROUP in world.shard().state.consumer
    assert list(world.consumers().members) == ["new"]
    settle(world, [new], rounds=2)
    assert len(new.uses) == 4


def test_member_that_changed_its_protocol_need_not_rejoin_as_classic() -> None:
    world = ConsumerWorld()
    old = _classic(world, "old", 0, 1, 2, 3)
    new = Client(world, "new")
    new.beat()
    assert world.heartbeat(old, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    member = Client(world, old)
    for _ in range(20):
        member.beat()
        new.beat()
        world.advance(5_000)
    assert member.errors == []
    assert set(world.consumers().members) == {old, "new"}


def test_embedded_consumer_metadata_is_read_in_all_versions() -> None:
    assert read_subscription(subscription("a", "b")).topics == ("a", "b")
    version_3 = struct.pack(">hi", 3, 0) + struct.pack(">i", -1) + struct.pack(">i", 0) + struct.pack(">i", 4)
    version_3 += struct.pack(">h", 2) + b"r1"
    read = read_subscription(version_3)
    assert (read.version, read.rack_id, read.owned) == (3, "r1", {})
