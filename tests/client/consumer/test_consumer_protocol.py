"""The state machine of a member of the consumer protocol (KIP-848)."""

from __future__ import annotations

from uuid import uuid4

import pytest

from fenceline.client.consumer.consumer_protocol import ConsumerProtocol, ProtocolPhase, new_member_id

T = uuid4()


@pytest.fixture
def member() -> ConsumerProtocol:
    return ConsumerProtocol("group", "member", rack_id="rack", server_assignor="range")


def _join(member: ConsumerProtocol, epoch: int = 1, partitions: tuple[int, ...] = (0, 1)) -> None:
    member.subscribe(["t"])
    assert member.heartbeat() is not None
    member.answered(epoch, {T: partitions})


def test_nothing_is_sent_before_a_subscription(member: ConsumerProtocol) -> None:
    assert member.heartbeat() is None
    assert not member.is_due


def test_the_first_heartbeat_is_complete(member: ConsumerProtocol) -> None:
    member.subscribe(["b", "a"])
    assert member.heartbeat() == {
        "group_id": "group",
        "member_id": "member",
        "member_epoch": 0,
        "instance_id": None,
        "rack_id": "rack",
        "rebalance_timeout": 300_000,
        "subscribed_topic_names": ["a", "b"],
        "subscribed_topic_regex": "",
        "server_assignor": "range",
        "topic_partitions": [],
    }


def test_a_member_that_has_asked_to_join_must_leave(member: ConsumerProtocol) -> None:
    member.subscribe(["t"])
    assert not member.may_be_member
    member.heartbeat()
    assert (member.may_be_member, member.is_member) == (True, False)
    assert member.leave()["member_epoch"] == -1
    assert not member.may_be_member


def test_later_heartbeats_have_changes_only(member: ConsumerProtocol) -> None:
    _join(member)
    unchanged = {
        "group_id": "group",
        "member_id": "member",
        "member_epoch": 1,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": -1,
        "subscribed_topic_names": None,
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": None,
    }
    assert (member.phase, member.heartbeat()) == (ProtocolPhase.RECONCILING, unchanged)
    member.answered(1, None)
    assert member.phase is ProtocolPhase.RECONCILING
    member.reconciled([(T, 0), (T, 1)])
    assert member.is_due
    assert member.heartbeat() == {**unchanged, "topic_partitions": [{"topic_id": T, "partitions": [0, 1]}]}
    member.answered(2, None)
    assert (member.phase, member.is_due) == (ProtocolPhase.STABLE, False)
    assert member.heartbeat() == {**unchanged, "member_epoch": 2}


def test_what_is_owned_is_told_again_after_an_unanswered_heartbeat(member: ConsumerProtocol) -> None:
    _join(member)
    member.reconciled([(T, 0), (T, 1)])
    member.heartbeat()
    member.unanswered()
    fields = member.heartbeat()
    assert fields is not None
    assert fields["subscribed_topic_names"] == ["t"]
    assert fields["topic_partitions"] == [{"topic_id": T, "partitions": [0, 1]}]
    assert fields["rebalance_timeout"] == 300_000


def test_a_reconciliation_that_ends_after_the_heartbeat_was_sent_is_acknowledged_by_the_next(
    member: ConsumerProtocol,
) -> None:
    _join(member)
    member.heartbeat()
    member.reconciled([(T, 0), (T, 1)])
    member.answered(1, None)
    assert (member.phase, member.is_due) == (ProtocolPhase.ACKNOWLEDGING, True)


def test_a_newer_assignment_replaces_one_that_is_being_taken(member: ConsumerProtocol) -> None:
    _join(member)
    member.reconciled([(T, 0), (T, 1)])
    member.heartbeat()
    member.answered(2, {T: [1]})
    assert (member.phase, member.target) == (ProtocolPhase.RECONCILING, {(T, 1)})


def test_a_fenced_member_waits_until_its_partitions_are_dropped(member: ConsumerProtocol) -> None:
    _join(member, epoch=7)
    member.fenced()
    assert (member.heartbeat(), member.owned, member.is_member) == (None, frozenset(), False)
    # Answers and steps that were on their way are ignored.
    member.answered(8, {T: [0]})
    member.reconciled([(T, 0)])
    assert member.phase is ProtocolPhase.FENCED
    member.dropped()
    fields = member.heartbeat()
    assert fields is not None
    assert (fields["member_id"], fields["member_epoch"], fields["topic_partitions"]) == ("member", 0, [])
    joined = member.joined
    member.answered(9, {T: [0]})
    assert member.joined == joined + 1


@pytest.mark.parametrize(("instance_id", "epoch"), [(None, -1), ("instance", -2)])
def test_leaving(instance_id: str | None, epoch: int) -> None:
    member = ConsumerProtocol("group", "member", instance_id=instance_id)
    _join(member)
    fields = member.leave()
    assert (fields["member_epoch"], fields["topic_partitions"]) == (epoch, None)
    assert member.heartbeat() is None
    member.answered(3, {T: [0]})
    member.fenced()
    assert member.phase is ProtocolPhase.UNSUBSCRIBED


def test_changed_subscriptions_are_due(member: ConsumerProtocol) -> None:
    _join(member)
    member.subscribe(regex="t.*")
    assert member.is_due
    fields = member.heartbeat()
    assert fields is not None
    assert (fields["subscribed_topic_names"], fields["subscribed_topic_regex"]) == ([], "t.*")
    member.answered(2, None)
    assert not member.is_due


def test_member_ids_have_kafkas_form() -> None:
    assert new_member_id(bytes(range(16))) == "AAECAwQFBgcICQoLDA0ODw"
