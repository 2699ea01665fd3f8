"""The life of a consumer protocol group at the coordinator, heartbeat by heartbeat (KIP-848)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fenceline.errors import ErrorCode
from fenceline.groups.consumer.model import ConsumerGroupState, MemberState
from fenceline.groups.consumer.records import CURRENT_KEY, MEMBER_KEY
from fenceline.groups.consumer.settings import ConsumerSettings, Interval
from fenceline.groups.messages import DescribedGroup, FetchOffsetsRequest, OffsetToCommit, TopicToFetch
from fenceline.groups.offsets.offsets import OffsetSlot
from tests.groups.consumer_world import AT_ONCE, REBALANCE_MS, Client, ConsumerWorld, id_of, parts, settle
from tests.groups.helpers import GROUP, Ticket


def _assigned(answer: object) -> dict[object, frozenset[int]]:
    assignment = answer.assignment  # type: ignore[attr-defined]
    assert assignment is not None
    return {topic_id: frozenset(indexes) for topic_id, indexes in assignment}


# --- joining, sharing, leaving ----------------------------------------


def test_first_member_gets_all_partitions() -> None:
    world = ConsumerWorld()
    answer = world.enter("a", "t")
    assert (answer.error, answer.member_id, answer.member_epoch) == (ErrorCode.NONE, "a", 2)
    assert answer.heartbeat_interval_ms == 5_000
    assert _assigned(answer) == parts(t=range(4))
    assert world.consumers().state is ConsumerGroupState.STABLE


def test_second_member_waits_until_the_first_has_revoked_partitions() -> None:
    world = ConsumerWorld()
    world.enter("a", "t")
    joined = world.enter("b", "t")
    assert _assigned(joined) == {}, "all partitions are still owned"
    assert world.consumers().state is ConsumerGroupState.RECONCILING
    # The first gets its reduced assignment at its old epoch, and stays there until it has revoked the rest.
    asked = world.beat("a", 2)
    assert asked.member_epoch == 2
    kept = _assigned(asked)[id_of("t")]
    assert len(kept) == 2
    assert world.consumers().members["a"].state is MemberState.UNREVOKED_PARTITIONS
    done = world.beat("a", 2, owned={id_of("t"): kept})
    assert done.member_epoch == 3
    given = world.beat("b", 3)
    assert _assigned(given)[id_of("t")] == frozenset(range(4)) - kept
    assert world.consumers().state is ConsumerGroupState.STABLE


def test_unchanged_assignment_is_sent_once() -> None:
    world = ConsumerWorld()
    world.enter("a", "t")
    assert world.beat("a", 2).assignment is None
    full = world.beat("a", 2, rebalance_timeout_ms=REBALANCE_MS, subscribed_names=("t",), owned=parts(t=range(4)))
    assert _assigned(full) == parts(t=range(4)), "a full heartbeat gets a full response"


def test_partitions_of_a_leaving_member_are_free_for_the_next_heartbeat() -> None:
    world = ConsumerWorld()
    clients = [Client(world, name) for name in "abc"]
    settle(world, clients)
    assert sorted(len(client.uses) for client in clients) == [1, 1, 2]
    clients[0].leave()
    assert world.consumers().state is ConsumerGroupState.ASSIGNING
    settle(world, clients[1:])
    assert sorted(len(client.uses) for client in clients[1:]) == [2, 2]


def test_last_member_leaves_an_empty_group() -> None:
    world = ConsumerWorld()
    world.enter("a", "t")
    left = world.beat("a", -1)
    assert (left.error, left.member_epoch) == (ErrorCode.NONE, -1)
    assert world.consumers().state is ConsumerGroupState.EMPTY
    assert not world.consumers().target
    assert not world.consumers().owners


def test_topics_are_created_expanded_and_deleted() -> None:
    world = ConsumerWorld(t=2)
    client = Client(world, "a", ("t", "later"))
    client.beat()
    assert len(client.uses) == 2
    world.set_topics(t=2, later=3)
    settle(world, [client])
    assert len(client.uses) == 5
    world.set_topics(t=4, later=3)
    settle(world, [client])
    assert len(client.uses) == 7
    world.set_topics(t=4)
    settle(world, [client])
    assert client.uses == {(str(id_of("t")), index) for index in range(4)}


def test_unchanged_metadata_does_not_bump_the_group_epoch() -> None:
    world = ConsumerWorld(t=2)
    world.enter("a", "t")
    world.set_topics(t=2, other=1)
    assert world.beat("a", 2).member_epoch == 2


def test_subscription_change_moves_only_affected_partitions() -> None:
    world = ConsumerWorld()
    client = Client(world, "a", ("t",))
    client.beat()
    client.topics = ("u",)
    settle(world, [client])
    assert client.uses == {(str(id_of("u")), index) for index in range(2)}


# --- epochs ----------------------------------------


def test_unknown_member_is_rejected() -> None:
    world = ConsumerWorld()
    assert world.error("a", 3) is ErrorCode.GROUP_ID_NOT_FOUND
    world.enter("a", "t")
    assert world.error("b", 2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.error("b", -1) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("epoch", [1, 3, 99])
def test_member_with_a_wrong_epoch_is_fenced(epoch: int) -> None:
    world = ConsumerWorld()
    world.enter("a", "t")
    assert world.error("a", epoch) is ErrorCode.FENCED_MEMBER_EPOCH


def test_previous_epoch_is_accepted_if_a_response_may_have_been_lost() -> None:
    world = ConsumerWorld()
    world.enter("a", "t")
    world.enter("b", "t")
    kept = _assigned(world.beat("a", 2))[id_of("t")]
    assert world.beat("a", 2, owned={id_of("t"): kept}).member_epoch == 3, "this response is lost"
    again = world.beat("a", 2, owned={id_of("t"): kept})
    assert (again.error, again.member_epoch) == (ErrorCode.NONE, 3)
    assert world.error("a", 2, owned=parts(t=range(4))) is ErrorCode.FENCED_MEMBER_EPOCH, (
        "it owns unassigned partitions"
    )
    assert world.error("a", 2) is ErrorCode.FENCED_MEMBER_EPOCH, "it does not report its partitions"


def test_rejoining_member_starts_without_partitions() -> None:
    world = ConsumerWorld()
    world.enter("a", "t")
    again = world.enter("a", "t")
    assert _assigned(again) == parts(t=range(4))
    assert again.member_epoch == 2


# --- time ----------------------------------------


def test_silent_member_is_removed_after_its_session_timeout() -> None:
    world = ConsumerWorld()
    world.enter("a", "t")
    world.advance(44_999)
    assert world.beat("a", 2).error is ErrorCode.NONE
    world.advance(45_000)
    assert world.error("a", 2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.consumers().state is ConsumerGroupState.EMPTY


def test_silent_member_is_removed_although_the_log_rejects_it_once() -> None:
    world = ConsumerWorld()
    world.enter("a", "t")
    world.hold_appends = True
    world.advance(AT_ONCE.session.default_ms)
    world.release(ErrorCode.NOT_ENOUGH_REPLICAS)
    world.hold_appends = False
    assert list(world.consumers().members) == ["a"]
    world.advance(AT_ONCE.session.default_ms)
    assert world.consumers().is_empty


def test_session_timeout_of_one_group_is_set_within_the_bounds() -> None:
    world = ConsumerWorld()
    world.set_group_config(GROUP, consumer_session_timeout_ms="60000", consumer_heartbeat_interval_ms="99000")
    assert world.enter("a", "t").heartbeat_interval_ms == 15_000
    world.advance(59_999)
    assert world.beat("a", 2).error is ErrorCode.NONE


def test_member_that_does_not_revoke_in_time_is_removed() -> None:
    world = ConsumerWorld()
    world.enter("a", "t")
    b = Client(world, "b")
    b.beat()
    for _ in range(REBALANCE_MS // 5_000):
        world.beat("a", 2, owned=parts(t=range(4)))
        b.beat()
        world.advance(5_000)
    assert world.error("a", 2, owned=parts(t=range(4))) is ErrorCode.UNKNOWN_MEMBER_ID
    settle(world, [b])
    assert len(b.uses) == 4


def test_changes_within_an_interval_are_assigned_together() -> None:
    world = ConsumerWorld(replace(AT_ONCE, assignment=Interval(1_000, 0, 15_000)))
    world.enter("a", "t")
    assert world.enter("b", "t").member_epoch == 2, "the former target"
    assert (world.consumers().epoch, world.consumers().assignment_epoch) == (3, 2)
    assert world.consumers().state is ConsumerGroupState.ASSIGNING
    world.advance(1_000)
    world.beat("b", 2)
    assert world.consumers().assignment_epoch == 3


def test_a_clock_that_is_set_back_does_not_delay_an_assignment() -> None:
    world = ConsumerWorld(replace(AT_ONCE, assignment=Interval(1_000, 0, 15_000)))
    world.enter("a", "t")
    world.now = world.now._replace(wall_ms=world.now.wall_ms - 3_600_000)
    world.enter("b", "t")
    assert (world.consumers().epoch, world.consumers().assignment_epoch) == (3, 3)


def test_a_clock_that_is_set_back_does_not_delay_the_topics_of_a_regex() -> None:
    world = ConsumerWorld(t1=1)
    world.enter("a", subscribed_names=None, subscribed_regex="t[0-9]")
    assert _assigned(world.beat("a", 1)) == parts(t1=[0])
    world.set_topics(t1=1, t2=1)
    world.now = world.now._replace(wall_ms=world.now.wall_ms - 3_600_000)
    world.beat("a", 2)
    assert _assigned(world.beat("a", 2)) == parts(t1=[0], t2=[0])


# --- rejected requests ---------------------------------------


@pytest.mark.parametrize(
    ("member_id", "epoch", "fields", "error"),
    [
        ("", 0, {}, ErrorCode.INVALID_REQUEST),
        ("a", 0, {"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ("a", 0, {"owned": None}, ErrorCode.INVALID_REQUEST),
        ("a", 0, {"owned": parts(t=[0])}, ErrorCode.INVALID_REQUEST),
        ("a", 0, {"subscribed_names": None}, ErrorCode.INVALID_REQUEST),
        ("a", 0, {"instance_id": " "}, ErrorCode.INVALID_REQUEST),
        ("a", 0, {"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ("a", 0, {"group": " "}, ErrorCode.INVALID_REQUEST),
        ("a", -2, {}, ErrorCode.INVALID_REQUEST),
        ("a", -3, {}, ErrorCode.INVALID_REQUEST),
        ("a", 0, {"server_assignor": "nobody's"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ("a", 0, {"subscribed_regex": "("}, ErrorCode.INVALID_REGULAR_EXPRESSION),
    ],
)
def test_invalid_request_changes_nothing(
    member_id: str, epoch: int, fields: dict[str, object], error: ErrorCode
) -> None:
    world = ConsumerWorld()
    asked = {"rebalance_timeout_ms": 1_000, "subscribed_names": ("t",), "owned": {}, **fields}
    answer = world.beat(member_id, epoch, **asked)
    assert answer.error is error
    assert answer.message
    assert not world.log
    assert not any(shard.state.consumer for shard in world.coordinator._active.values())


def test_an_older_client_is_given_an_id() -> None:
    world = ConsumerWorld()
    answer = world.enter("", "t", must_bring_member_id=False)
    assert answer.member_id is not None
    assert len(answer.member_id) == 22
    assert world.beat(answer.member_id, answer.member_epoch).error is ErrorCode.NONE


def test_full_group_rejects_new_members() -> None:
    world = ConsumerWorld(replace(AT_ONCE, max_size=1))
    world.enter("a", "t")
    assert world.enter("b", "t").error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.beat("a", 2).error is ErrorCode.NONE


def test_assignor_with_most_votes_is_chosen() -> None:
    world = ConsumerWorld()
    one = Client(world, "a", ("t", "u"))
    world.enter("a", "t", "u", server_assignor="range")
    one.beat()
    two = Client(world, "b", ("t", "u"))
    world.enter("b", "t", "u", server_assignor="range")
    settle(world, [one, two])
    assert one.owned == parts(t=[0, 1], u=[0])
    assert two.owned == parts(t=[2, 3], u=[1])


# --- regular expressions ----------------------------------------


def test_regex_is_resolved_after_the_response() -> None:
    world = ConsumerWorld(t1=1, t2=1, other=1)
    joined = world.enter("a", subscribed_names=None, subscribed_regex="t[0-9]")
    assert (_assigned(joined), joined.member_epoch) == ({}, 1)
    assert _assigned(world.beat("a", 1)) == parts(t1=[0], t2=[0])
    world.set_topics(t1=1, t2=1, t3=1, other=1)
    world.beat("a", 2)
    world.advance(10_001)
    world.beat("a", 2)
    assert _assigned(world.beat("a", 2)) == parts(t1=[0], t2=[0], t3=[0])


def test_unused_regex_is_removed() -> None:
    world = ConsumerWorld(t1=1, t2=1)
    world.enter("a", subscribed_names=None, subscribed_regex="t[0-9]")
    world.enter("b", subscribed_names=None, subscribed_regex="t[0-9]")
    world.beat("a", -1)
    assert list(world.consumers().regexes) == ["t[0-9]"]
    world.beat("b", -1)
    assert not world.consumers().regexes


def test_member_that_changes_from_regex_to_names_is_assigned_at_once() -> None:
    world = ConsumerWorld(t1=1, u1=1)
    world.enter("a", subscribed_names=None, subscribed_regex="t.*")
    epoch = world.beat("a", 1).member_epoch
    changed = world.beat("a", epoch, subscribed_regex="", subscribed_names=("u1",), owned={})
    assert _assigned(changed) == parts(u1=[0])


# --- the log ----------------------------------------


def test_loaded_group_equals_the_original() -> None:
    world = ConsumerWorld()
    clients = [Client(world, "a", ("t", "u")), Client(world, "b"), Client(world, "s", instance="i")]
    settle(world, clients)
    world.enter("r", subscribed_names=None, subscribed_regex="t|u")
    world.beat("b", -1)
    before = world.consumers()
    world.reload()
    assert world.consumers() == before
    clients[0].beat()
    assert clients[0].errors == []


def test_compacted_log_may_have_the_assignment_before_the_member_record() -> None:
    world = ConsumerWorld()
    epoch = world.enter("a", "t").member_epoch
    assert world.beat("a", epoch, rack_id="r2").error is ErrorCode.NONE
    before = world.consumers()
    world.compact(drops_tombstones=False)
    kinds = [int.from_bytes(key[:2]) for key, _ in world.log[world.partition()]]
    assert kinds.index(CURRENT_KEY) < kinds.index(MEMBER_KEY)
    world.reload()
    assert world.consumers() == before


def test_responses_wait_for_the_log_and_a_rejected_write_reverts_everything() -> None:
    world = ConsumerWorld()
    world.enter("a", "t")
    before = world.consumers()
    world.hold_appends = True
    asked = world.ask("b", 0, rebalance_timeout_ms=1_000, subscribed_names=("t",), owned={})
    assert asked.outcome is None
    alive = world.ask("a", 2)
    assert alive.outcome is None, "its response may be based on a pending write"
    world.release(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert asked.outcome.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    while world.held:
        world.release(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert world.consumers() == before
    assert alive.outcome.error is not ErrorCode.NONE


def test_response_based_on_a_rejected_write_is_replaced_by_an_error() -> None:
    """It changed nothing itself, but reports a change made by another request."""
    world = ConsumerWorld()
    world.enter("a", "t")
    world.set_topics(t=5, u=2)
    world.hold_appends = True
    first = world.ask("a", 2, owned=parts(t=range(4)))
    again = world.ask("a", 2, owned=parts(t=range(4)))
    assert len(world.held) == 1
    other = world.ask("z", 0, group="other", rebalance_timeout_ms=1_000, subscribed_names=(), owned={})
    while world.held:
        world.release(ErrorCode.NOT_ENOUGH_REPLICAS if world.held[0].partition == world.partition() else ErrorCode.NONE)
    assert first.outcome.error is again.outcome.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert other.outcome.error is ErrorCode.NONE
    assert world.consumers().members["a"].epoch == 2


def test_change_based_on_a_rejected_write_is_rejected_with_it() -> None:
    """Even if the log accepts its records."""
    world = ConsumerWorld()
    world.enter("a", "t")
    before = world.consumers()
    world.hold_appends = True
    one = world.ask("b", 0, rebalance_timeout_ms=1_000, subscribed_names=("t",), owned={})
    two = world.ask("c", 0, rebalance_timeout_ms=1_000, subscribed_names=("t",), owned={})
    world.release(ErrorCode.MESSAGE_TOO_LARGE)
    world.release()
    assert one.outcome.error is two.outcome.error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert world.consumers() == before


def test_deletion_rejected_by_the_log_is_reported() -> None:
    world = ConsumerWorld()
    world.enter("a", "t")
    world.beat("a", -1)
    world.hold_appends = True
    ticket = Ticket("delete")
    world.do(world.coordinator.delete_groups(ticket, [GROUP], world.now))
    while world.held:
        world.release(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert ticket.outcome.errors == ((GROUP, ErrorCode.COORDINATOR_NOT_AVAILABLE),)
    assert world.has_consumers()


def test_expanded_topics_are_assigned_again_after_a_rejected_write() -> None:
    world = ConsumerWorld()
    world.enter("a", "t")
    world.set_topics(t=5, u=2)
    world.hold_appends = True
    refused = world.ask("a", 2)
    world.release(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert refused.outcome.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.hold_appends = False
    answer = world.beat("a", 2, owned=parts(t=range(4)))
    assert answer.member_epoch == 3
    assert world.consumers().members["a"].assigned.keys() == parts(t=[0]).keys()
    assert sorted(world.consumers().members["a"].assigned[id_of("t")]) == [0, 1, 2, 3, 4]


def test_revocation_timeout_restarts_after_a_load() -> None:
    world = ConsumerWorld()
    world.enter("a", "t")
    world.enter("b", "t")
    world.beat("a", 2, owned=parts(t=range(4)))
    world.advance(REBALANCE_MS - 1_000)
    world.beat("a", 2, owned=parts(t=range(4)))
    world.beat("b", 3)
    world.reload()
    world.advance(REBALANCE_MS - 1_000)
    assert world.error("a", 2, owned=parts(t=range(4))) is ErrorCode.NONE
    assert world.error("b", 3) is ErrorCode.NONE
    world.advance(1_000)
    assert world.error("a", 2, owned=parts(t=range(4))) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.error("b", 3) is ErrorCode.NONE


def test_group_of_another_coordinator_is_unloaded() -> None:
    world = ConsumerWorld()
    world.enter("a", "t")
    world.do(world.coordinator.resign(world.coordinator.partition_of(GROUP), world.now))
    assert world.error("a", 2) is ErrorCode.NOT_COORDINATOR


def test_requests_during_a_load_must_retry() -> None:
    world = ConsumerWorld()
    partition = world.coordinator.partition_of(GROUP)
    world.do(world.coordinator.resign(partition, world.now))
    world.coordinator.begin_load(partition, 1, world.now)
    assert world.error("a", 2) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


# --- offsets ----------------------------------------


def _commit(world: ConsumerWorld, member_id: str, epoch: int, partition: int = 0, **more: object) -> ErrorCode:
    offset = OffsetToCommit("t", partition, 5, topic_id=id_of("t"))
    errors = world.commit(member_id=member_id, generation=epoch, offsets=(offset,), **more).outcome.errors
    code: ErrorCode = errors[0]
    return code


def test_commits_require_the_member_and_its_epoch() -> None:
    world = ConsumerWorld()
    world.enter("a", "t")
    assert _commit(world, "a", 2) is ErrorCode.NONE
    assert _commit(world, "a", 3) is ErrorCode.STALE_MEMBER_EPOCH
    assert _commit(world, "b", 2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert _commit(world, "", -1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert _commit(world, "a", 2, knows_group_not_found=False) is ErrorCode.UNSUPPORTED_VERSION
    world.beat("a", -1)
    assert _commit(world, "", -1) is ErrorCode.NONE, "an administrator, of an empty group"


def test_older_epoch_commits_partitions_assigned_by_then() -> None:
    world = ConsumerWorld()
    one, two = Client(world, "a"), Client(world, "b")
    one.beat()
    settle(world, [one, two])
    assert one.epoch == 3
    mine = next(iter(one.owned[id_of("t")]))
    others = next(iter(two.owned[id_of("t")]))
    assert _commit(world, "a", 2, mine) is ErrorCode.NONE, "assigned since that epoch"
    assert _commit(world, "a", 1, mine) is ErrorCode.STALE_MEMBER_EPOCH
    assert _commit(world, "a", 2, others) is ErrorCode.STALE_MEMBER_EPOCH


def _fetch_error(world: ConsumerWorld, member_id: str | None, epoch: int) -> ErrorCode:
    ticket = Ticket("fetch")
    request = FetchOffsetsRequest(GROUP, (TopicToFetch("t", (0,)),), False, member_id, epoch)
    world.do(world.coordinator.fetch_offsets(ticket, request))
    error: ErrorCode = ticket.outcome.error
    return error


def test_offset_fetches_of_members_require_their_epoch() -> None:
    world = ConsumerWorld()
    world.enter("a", "t")
    assert _fetch_error(world, None, -1) is ErrorCode.NONE
    assert _fetch_error(world, "a", 2) is ErrorCode.NONE
    assert _fetch_error(world, "a", 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert _fetch_error(world, "b", 2) is ErrorCode.UNKNOWN_MEMBER_ID


def test_offsets_of_subscribed_topics_are_kept() -> None:
    world = ConsumerWorld()
    world.enter("a", "t")
    _commit(world, "a", 2)
    errors = world.delete_offsets(("t", 0), ("u", 0)).outcome.errors
    assert errors == (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE)


# --- whole groups ---------------------------------------


def test_groups_are_listed_with_their_type() -> None:
    world = ConsumerWorld()
    world.enter("a", "t")
    world.commit(group="plain")
    listed = {each.group_id: each for each in world.coordinator.list_groups(frozenset(), frozenset())}
    assert (listed[GROUP].group_type, listed[GROUP].state, listed[GROUP].protocol_type) == (
        "consumer",
        "Stable",
        "consumer",
    )
    only = world.coordinator.list_groups(frozenset({"stable"}), frozenset({"consumer"}))
    assert [each.group_id for each in only] == [GROUP]
    assert [each.group_id for each in world.coordinator.list_groups(frozenset(), frozenset({"classic"}))] == ["plain"]


def test_a_group_is_described_by_its_own_api_only() -> None:
    world = ConsumerWorld()
    world.enter("a", "t", rack_id="r1")
    described = world.coordinator.describe_consumer_group(GROUP)
    assert (described.state, described.epoch, described.assignment_epoch, described.assignor) == (
        "Stable",
        2,
        2,
        "uniform",
    )
    assert described.members[0].member.rack_id == "r1"
    assert described.members[0].target == parts(t=range(4))
    with pytest.raises(Exception, match="is not a classic group"):
        world.coordinator.describe(GROUP)
    world.commit(group="plain")
    with pytest.raises(Exception, match="is not a consumer group"):
        world.coordinator.describe_consumer_group("plain")
    assert isinstance(world.coordinator.describe("plain"), DescribedGroup)


def test_only_an_empty_group_can_be_deleted() -> None:
    world = ConsumerWorld()
    world.enter("a", "t")
    _commit(world, "a", 2)
    assert world.delete_groups(GROUP) == {GROUP: ErrorCode.NON_EMPTY_GROUP}
    world.beat("a", -1)
    assert world.delete_groups(GROUP, "none") == {GROUP: ErrorCode.NONE, "none": ErrorCode.GROUP_ID_NOT_FOUND}
    assert not world.has_consumers()
    world.reload()
    assert not world.has_consumers()
    assert world.shard().state.offsets.latest(OffsetSlot(GROUP, "t", 0)) is None


def test_an_empty_group_expires_with_its_offsets() -> None:
    world = ConsumerWorld()
    world.enter("a", "t")
    _commit(world, "a", 2)
    world.beat("a", -1)
    world.advance(world.settings.offsets_retention_ms + 2 * world.settings.offsets_retention_check_interval_ms)
    assert not world.has_consumers()
    assert not world.shard().state.offsets.has_any(GROUP)


def test_settings_are_read_by_their_names() -> None:
    values = {
        "group.consumer.session.timeout.ms": "50000",
        "group.consumer.assignors": "range",
        "group.consumer.migration.policy": "Disabled",
        "group.consumer.max.size": 7,
        "group.consumer.assignment.interval.ms": 0,
    }
    read = ConsumerSettings.from_lookup(values.get)
    assert read.session.default_ms == 50_000
    assert (read.assignors, read.max_size, read.assignment.default_ms) == (("range",), 7, 0)
    assert not read.migration_policy.allows_upgrade
    assert not read.migration_policy.allows_downgrade
