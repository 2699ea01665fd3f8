"""Leader and ISR after a change (controller.md C27-C30, C33; since_4_0.md K21)."""

from __future__ import annotations

from itertools import combinations, permutations
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenceline.controller.elections import Election, change_partition
from fenceline.controller.partition_requests import (
    AlterPartition,
    BalanceLeaders,
    ElectLeaders,
    IsrChange,
    IsrMember,
)
from fenceline.controller.requests import FenceEndedBroker, FenceStaleBroker
from fenceline.errors import ErrorCode, PeerError
from fenceline.metadata.delta import MetadataDelta
from fenceline.metadata.image import EMPTY_IMAGE, LeaderRecoveryState, PartitionImage
from fenceline.metadata.records import PartitionChangeRecord, PartitionRecord, TopicRecord
from tests.controller.helpers import Cluster

TOPIC = UUID(int=9)
RECOVERED, RECOVERING = LeaderRecoveryState.RECOVERED, LeaderRecoveryState.RECOVERING


def _after(partition: PartitionImage, record: PartitionChangeRecord | None) -> PartitionImage:
    delta = MetadataDelta(EMPTY_IMAGE)
    delta.replay(TopicRecord("t", TOPIC))
    delta.replay(
        PartitionRecord(
            0,
            TOPIC,
            partition.replicas,
            partition.isr,
            partition.removing,
            partition.adding,
            partition.leader,
            partition.leader_recovery_state,
            partition.leader_epoch,
            partition.partition_epoch,
            partition.directories,
            partition.elr or None,
            partition.last_known_elr or None,
        )
    )
    if record is not None:
        delta.replay(record)
    image, _ = delta.build(1, 1)
    found = image.partition("t", 0)
    assert found is not None
    return found


def _change(partition: PartitionImage, alive: set[int], **more: object) -> PartitionImage:
    arguments = {"min_isr": 1, "elr_enabled": True, **more}
    record = change_partition(partition, TOPIC, 0, may_lead=lambda b: b in alive, **arguments)  # type: ignore[arg-type]
    return _after(partition, record)


def test_an_unchanged_leader_keeps_its_epoch_when_the_isr_shrinks() -> None:
    after = _change(PartitionImage((1, 2, 3), (1, 2, 3), 1), {1, 2}, target_isr=(1, 2))
    assert (after.leader, after.leader_epoch, after.partition_epoch) == (1, 0, 1)


def test_below_min_isr_removed_members_become_eligible() -> None:
    """C31 as K21 has it."""
    after = _change(PartitionImage((1, 2, 3), (1, 2), 1), {1}, target_isr=(1,), min_isr=2)
    assert (after.isr, after.elr) == ((1,), (2,))
    back = _change(after, {1, 2}, target_isr=(1, 2), min_isr=2)
    assert (back.isr, back.elr) == ((1, 2), ())


def test_an_eligible_replica_is_elected_cleanly_and_becomes_the_isr() -> None:
    lost = PartitionImage((1, 2), (), -1, 3, 4, elr=(1, 2), last_known_elr=(1,))
    after = _change(lost, {2}, min_isr=2)
    assert (after.leader, after.isr, after.elr, after.last_known_elr) == (2, (2,), (1,), ())
    assert after.leader_recovery_state is RECOVERED
    assert after.leader_epoch == 4


def test_the_last_known_leader_is_elected_uncleanly_without_eligible_replicas() -> None:
    """K21, C31; gaps.md G42: only while it is alive."""
    lost = PartitionImage((1, 2), (), -1, elr=(1,), last_known_elr=(2,))
    assert _change(lost, {2}).leader == -1
    gone = lost._replace(elr=())
    after = _change(gone, {2})
    assert (after.leader, after.isr, after.leader_recovery_state, after.last_known_elr) == (2, (2,), RECOVERING, ())
    assert _change(gone, {1}).leader == -1


@pytest.mark.parametrize("elr", [True, False])
def test_a_preferred_election_never_loses_records(elr: bool) -> None:
    """recovery.md V13."""
    lost = PartitionImage((1, 2), (2,), -1)
    for election, leader in ((Election.PREFERRED, -1), (Election.UNCLEAN, 1)):
        assert _change(lost, {1}, elr_enabled=elr, election=election).leader == leader


def test_without_elr_the_last_member_stays_in_the_isr() -> None:
    after = _change(PartitionImage((1,), (1,), 1), set(), target_isr=(), elr_enabled=False)
    assert (after.leader, after.isr, after.elr) == (-1, (1,), ())


def test_unclean_election_elects_any_live_replica_and_records_it() -> None:
    lost = PartitionImage((1, 2), (1,), -1)
    assert _change(lost, {2}, elr_enabled=False).leader == -1
    after = _change(lost, {2}, elr_enabled=False, election=Election.UNCLEAN)
    assert (after.leader, after.isr, after.leader_recovery_state) == (2, (2,), RECOVERING)


def test_no_change_writes_no_record() -> None:
    partition = PartitionImage((1, 2), (1, 2), 1)
    assert change_partition(partition, TOPIC, 0, may_lead=lambda b: True, min_isr=1, elr_enabled=True) is None


def test_a_reassignment_completes_when_the_added_replicas_are_in_sync() -> None:
    moving = PartitionImage((3, 1), (1,), 1, adding=(3,), removing=(1,), directories=(TOPIC, TOPIC))
    assert _change(moving, {1, 3}).replicas == (3, 1)
    after = _change(moving, {1, 3}, target_isr=(1, 3))
    assert (after.replicas, after.isr, after.leader, after.adding, after.removing) == ((3,), (3,), 3, (), ())
    assert after.leader_epoch == 1


def _partitions() -> st.SearchStrategy[PartitionImage]:
    def build(draw: st.DrawFn) -> PartitionImage:
        replicas = tuple(draw(st.permutations([1, 2, 3, 4]))[: draw(st.integers(1, 4))])
        isr = tuple(b for b in replicas if draw(st.booleans()))
        elr = tuple(sorted(b for b in replicas if b not in isr and draw(st.booleans())))
        leader = draw(st.sampled_from([-1, *isr]))
        last = (draw(st.sampled_from(replicas)),) if leader == -1 and draw(st.booleans()) else ()
        return PartitionImage(replicas, isr, leader, 5, 7, elr=elr, last_known_elr=last)

    return st.composite(build)()


@given(
    partition=_partitions(),
    alive=st.sets(st.integers(1, 4)),
    election=st.sampled_from(Election),
    min_isr=st.integers(1, 3),
    elr=st.booleans(),
    leaving=st.integers(0, 4),
)
def test_invariants_of_every_change(
    partition: PartitionImage, alive: set[int], election: Election, min_isr: int, elr: bool, leaving: int
) -> None:
    if not elr:
        partition = partition._replace(elr=(), last_known_elr=())
    target = tuple(b for b in partition.isr if b != leaving)
    record = change_partition(
        partition,
        TOPIC,
        0,
        may_lead=lambda b: b in alive and b != leaving,
        min_isr=min_isr,
        elr_enabled=elr,
        election=election,
        target_isr=target,
    )
    after = _after(partition, record)
    assert (record is None) == (after == partition), "a record that changes nothing is never written (C9)"
    assert set(after.isr) <= set(after.replicas)
    assert set(after.elr) <= set(after.replicas)
    assert not set(after.isr) & set(after.elr)
    assert after.leader == -1 or after.leader in after.isr
    assert after.leader == -1 or (after.leader in alive and after.leader != leaving)
    assert after.leader_epoch == partition.leader_epoch + (record is not None and record.leader != -2)
    if len(after.isr) >= min_isr and elr:
        assert not after.elr
    if after.leader not in (-1, partition.leader):
        clean = after.leader in partition.isr or (not target and after.leader in {*partition.elr, *partition.isr})
        assert clean or after.leader_recovery_state is RECOVERING, "a data loss is not recorded"
    if after.leader == -1 and alive - {leaving}:
        assert not set(after.isr) & (alive - {leaving}), "an in-sync replica is alive and there is no leader"


def test_elect_leaders_answers() -> None:
    cluster = Cluster(2)
    cluster.create("t", (1, 2), (2, 1))
    asked = ElectLeaders(0, (("t", (0, 5)), ("none", (0,))))
    ((_, first), (_, second)) = cluster.ask(asked).topics
    assert [each.outcome.code for each in first] == [
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert second[0].outcome.message == "No such topic as none"
    with pytest.raises(PeerError) as error:
        cluster.ask(ElectLeaders(2, None))
    assert error.value.message == "Unknown election type 2"


def test_leadership_goes_back_to_the_preferred_replica() -> None:
    cluster = Cluster(2)
    cluster.create("t", (1, 2))
    cluster.now_ms = 9000
    cluster.heartbeat(2)
    cluster.ask(FenceStaleBroker())
    assert cluster.partition("t").leader == 2
    ((_, outcomes),) = cluster.ask(ElectLeaders(0, None)).topics
    assert outcomes[0].outcome.code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    cluster.heartbeat(1)
    cluster.ask(BalanceLeaders())
    assert cluster.records == [], "it is alive but not in sync"


@pytest.mark.parametrize(("percentage", "leaders"), [(0, 1), (49, 1), (50, 2), (100, 2)])
def test_a_small_leader_imbalance_is_left_unchanged(percentage: int, leaders: int) -> None:
    """G45: broker 1 should lead two partitions, and leads one of them."""
    cluster = Cluster(2, leader_imbalance_percentage=percentage)
    cluster.create("t", (1, 2), (1, 2), (2, 1))
    cluster.ask(FenceEndedBroker(1, cluster.epochs[1], cluster.now_ms))
    cluster.heartbeat(1)
    topic = cluster.image.topics_by_name["t"]
    for index in (0, 1, 2):
        partition = cluster.partition("t", index)
        members = tuple(IsrMember(broker, cluster.epochs[broker]) for broker in (1, 2))
        change = IsrChange(index, partition.leader_epoch, partition.partition_epoch, members, 0)
        cluster.ask(AlterPartition(2, cluster.epochs[2], ((topic.id, (change,)),)))
    cluster.ask(ElectLeaders(0, (("t", (1,)),)))
    assert [cluster.partition("t", index).leader for index in (0, 1, 2)] == [2, 1, 2]
    cluster.ask(BalanceLeaders())
    assert cluster.partition("t", 0).leader == leaders


def test_some_replica_leads_while_an_in_sync_replica_lives() -> None:
    for replicas in permutations((1, 2, 3)):
        for size in range(4):
            for alive in map(set, combinations((1, 2, 3), size)):
                after = _change(PartitionImage(replicas, replicas, replicas[0]), alive)
                assert (after.leader in alive) == bool(alive)
