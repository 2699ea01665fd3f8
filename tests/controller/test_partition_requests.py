"""AlterPartition, reassignments, directories and elections by config, rule by rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from fenceline.controller.elections import Election, change_partition
from fenceline.controller.partition_requests import (
    AlteredPartition,
    AlterPartition,
    AlterPartitionReassignments,
    AssignReplicasToDirs,
    BalanceLeaders,
    ElectionPassAnswer,
    ElectLeaders,
    ElectUncleanLeaders,
    IsrChange,
    IsrMember,
    ListPartitionReassignments,
    Reassignment,
)
from fenceline.controller.requests import (
    AllocateProducerIds,
    BrokerHeartbeat,
    ConfigChange,
    ConfigOperation,
    CreatePartitions,
    IncrementalAlterConfigs,
    NewPartitions,
    Request,
    UnregisterBroker,
)
from fenceline.errors import ErrorCode, PeerError
from fenceline.metadata.image import (
    LOST_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    ConfigResource,
    ConfigResourceType,
    LeaderRecoveryState,
)
from fenceline.metadata.records import ConfigRecord, PartitionChangeRecord
from tests.controller.helpers import Cluster

RECOVERED, RECOVERING = LeaderRecoveryState.RECOVERED, LeaderRecoveryState.RECOVERING
UNCLEAN = "unclean.leader.election.enable"


def alter(
    cluster: Cluster, topic: str, isr: tuple[int, ...], *, sender: int | None = None, **more: Any
) -> AlteredPartition:
    """The request of the leader of partition 0, unless `more` says otherwise."""
    partition = cluster.partition(topic)
    sender = partition.leader if sender is None else sender
    members = more.get("members") or tuple(IsrMember(b, cluster.epochs[b]) for b in isr)
    change = IsrChange(
        more.get("index", 0),
        more.get("leader_epoch", partition.leader_epoch),
        more.get("partition_epoch", partition.partition_epoch),
        members,
        more.get("state", 0),
    )
    topic_id = more.get("topic_id", cluster.image.topics_by_name[topic].id)
    ((_, (altered,)),) = cluster.ask(AlterPartition(sender, cluster.epochs[sender], ((topic_id, (change,)),))).topics
    return altered


def fence(cluster: Cluster, *brokers: int) -> None:
    for broker in brokers:
        cluster.heartbeat(broker, want_fence=True)


def move(cluster: Cluster, topic: str, target: tuple[int, ...] | None, **more: Any) -> Any:
    wanted = ((topic, (Reassignment(0, target),)),)
    return cluster.ask(AlterPartitionReassignments(wanted, **more)).topics[0][1][0].outcome


def configure(cluster: Cluster, topic: str, key: str, value: str | None) -> None:
    resource = ConfigResource(ConfigResourceType.TOPIC if topic else ConfigResourceType.BROKER, topic)
    operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
    answer = cluster.ask(IncrementalAlterConfigs(((resource, (ConfigChange(key, operation, value),)),)))
    assert not answer.resources[0].outcome.failed


# -- AlterPartition (recovery.md V16-V25) ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"topic_id": UUID(int=404)}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"index": 9}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"leader_epoch": 1, "partition_epoch": -1, "sender": 2}, ErrorCode.NOT_CONTROLLER),
        ({"partition_epoch": 1, "leader_epoch": -1}, ErrorCode.NOT_CONTROLLER),
        ({"leader_epoch": -1, "sender": 2}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"sender": 2, "partition_epoch": -1}, ErrorCode.INVALID_REQUEST),
        ({"partition_epoch": -1, "isr": (2,)}, ErrorCode.INVALID_UPDATE_VERSION),
        ({"isr": (1, 1)}, ErrorCode.INVALID_REQUEST),
        ({"isr": (1, 4)}, ErrorCode.INVALID_REQUEST),
        ({"isr": (2, 3)}, ErrorCode.INVALID_REQUEST),
        ({"isr": ()}, ErrorCode.INVALID_REQUEST),
        ({"state": 1}, ErrorCode.INVALID_REQUEST),
        ({"state": 1, "isr": (1,)}, ErrorCode.INVALID_REQUEST),
        ({"state": 7}, ErrorCode.INVALID_REQUEST),
        ({"state": -1}, ErrorCode.INVALID_REQUEST),
        ({"members": (IsrMember(1), IsrMember(2, 1))}, ErrorCode.INELIGIBLE_REPLICA),
        ({"state": 7, "members": (IsrMember(1), IsrMember(2, 1))}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_rejected_isr_changes(change: dict[str, Any], code: ErrorCode) -> None:
    """recovery.md V16, V17, V18, V19, V25, V20, V21, V22: in Kafka's order."""
    cluster = Cluster(4)
    cluster.create("t", (1, 2, 3))
    altered = alter(cluster, "t", **{"isr": (1, 2), **change})
    assert altered == AlteredPartition(change.get("index", 0), code)
    assert cluster.records == []


@pytest.mark.parametrize("state", ["fenced", "shutting down", "gone"])
def test_only_active_brokers_join(state: str) -> None:
    """V22, KIP-841."""
    cluster = Cluster(3)
    cluster.create("t", (1, 2, 3))
    cluster.create("kept", (3,))
    alter(cluster, "t", (1, 2))
    if state == "gone":
        cluster.ask(UnregisterBroker(3))
    else:
        cluster.heartbeat(3, want_fence=state == "fenced", want_shut_down=state != "fenced")
    assert alter(cluster, "t", (1, 2, 3)).code is ErrorCode.INELIGIBLE_REPLICA


@pytest.mark.parametrize(
    "request_of",
    [
        lambda broker, epoch: AlterPartition(broker, epoch, ()),
        lambda broker, epoch: AssignReplicasToDirs(broker, epoch, ()),
        lambda broker, epoch: BrokerHeartbeat(broker, epoch, 1 << 40),
        AllocateProducerIds,
    ],
)
def test_another_broker_epoch_fails_the_whole_request(request_of: Callable[[int, int], Request]) -> None:
    """C13; also of a broker that is not registered."""
    cluster = Cluster(1)
    for broker, epoch in ((1, cluster.epochs[1] + 1), (1, -1), (2, cluster.epochs[1])):
        before = cluster.image
        with pytest.raises(PeerError) as error:
            cluster.ask(request_of(broker, epoch))
        assert error.value.code is ErrorCode.STALE_BROKER_EPOCH
        assert cluster.image is before


def test_each_partition_of_a_request_is_checked_alone() -> None:
    """gaps.md G46, G22: a rejected partition does not affect the others."""
    cluster = Cluster(2)
    topic = cluster.create("t", *(((1, 2),) * 4))
    one, both = (IsrMember(1),), (IsrMember(1), IsrMember(1))
    changes = (
        IsrChange(0, 0, 0, one),
        IsrChange(1, 0, 0, one, leader_recovery_state=100),
        IsrChange(2, 0, 0, both),
        IsrChange(9, 0, 0, one),
        IsrChange(3, 0, 0, one),
    )
    asked = ((UUID(int=404), changes[:1]), (topic, changes))
    answer = cluster.ask(AlterPartition(1, cluster.epochs[1], asked))
    assert [[each.code for each in altered] for _, altered in answer.topics] == [
        [ErrorCode.UNKNOWN_TOPIC_ID],
        [
            ErrorCode.NONE,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.NONE,
        ],
    ]
    assert [cluster.partition("t", index).isr for index in range(4)] == [(1,), (1, 2), (1, 2), (1,)]


def test_each_partition_has_its_own_min_isr() -> None:
    """gaps.md G43: Kafka uses the replicas of partition 0 for all, and forgets the ISR of the others."""
    cluster = Cluster(3)
    cluster.create("t", (1, 2, 3), (1, 2, 3), configs={"min.insync.replicas": "2"})
    move(cluster, "t", (1,))
    assert cluster.partition("t").replicas == (1,)
    fence(cluster, 2, 3)
    assert (cluster.partition("t", 1).isr, cluster.partition("t", 1).elr) == ((1,), (3,))
    fence(cluster, 1)
    cluster.heartbeat(3)
    assert cluster.partition("t", 1).leader == 3
    assert cluster.partition("t", 1).leader_recovery_state is RECOVERED


def test_no_change_is_answered_and_not_written() -> None:
    """V23."""
    cluster = Cluster(2)
    cluster.create("t", (1, 2))
    assert alter(cluster, "t", (1, 2)) == AlteredPartition(0, ErrorCode.NONE, 1, 0, (1, 2), 0, 0)
    assert cluster.records == []


def test_a_partition_named_twice_changes_once() -> None:
    cluster = Cluster(2)
    topic = cluster.create("t", (1, 2))
    change = IsrChange(0, 0, 0, (IsrMember(1),))
    answer = cluster.ask(AlterPartition(1, cluster.epochs[1], ((topic, (change, change)),)))
    assert [each.code for each in answer.topics[0][1]] == [ErrorCode.NONE, ErrorCode.INVALID_UPDATE_VERSION]
    assert cluster.partition("t").partition_epoch == 1


def _recovering(cluster: Cluster) -> None:
    cluster.create("t", (1, 2), configs={UNCLEAN: "true"})
    alter(cluster, "t", (1,))
    fence(cluster, 1)


def test_the_leader_ends_its_recovery() -> None:
    """V23, V42: alone or with a larger ISR; no leader epoch starts."""
    for isr in ((2,), (2, 3)):
        cluster = Cluster(3)
        cluster.create("t", (1, 2, 3), configs={UNCLEAN: "true"})
        alter(cluster, "t", (1,))
        fence(cluster, 1)
        before = cluster.partition("t")
        assert (before.leader, before.isr, before.leader_recovery_state) == (2, (2,), RECOVERING)
        refused = alter(cluster, "t", (2, 3), state=1)
        assert refused.code is ErrorCode.INVALID_REQUEST, "V20"
        altered = alter(cluster, "t", isr)
        assert (altered.code, altered.leader_recovery_state) == (ErrorCode.NONE, 0)
        after = cluster.partition("t")
        assert (after.leader_epoch, after.isr, after.leader_recovery_state) == (before.leader_epoch, isr, RECOVERED)


def test_recovering_survives_elections_and_failovers() -> None:
    """V8, V14."""
    cluster = Cluster(2)
    _recovering(cluster)
    cluster.controller.activate(cluster.image, cluster.controller.next_offset, 0)
    fence(cluster, 2)
    lost = cluster.partition("t")
    assert (lost.leader, lost.leader_recovery_state) == (-1, RECOVERING)
    cluster.heartbeat(2)
    back = cluster.partition("t")
    assert (back.leader, back.isr, back.leader_recovery_state) == (2, (2,), RECOVERING)


# -- reassignments (C32-C34, K27) --------------------------------------------------------------------------------------


def test_a_reassignment_from_start_to_end() -> None:
    """C32, C33; C35: the leader that is removed gets 108 (recovery.md V24)."""
    cluster = Cluster(4)
    cluster.create("t", (1, 2))
    assert not move(cluster, "t", (3, 4)).failed
    partition = cluster.partition("t")
    assert (partition.replicas, partition.adding, partition.removing) == ((3, 4, 1, 2), (3, 4), (1, 2))
    assert partition.leader_epoch == 0
    listed = cluster.ask(ListPartitionReassignments()).topics
    assert [(name, [each.index for each in moving]) for name, moving in listed] == [("t", [0])]
    assert cluster.ask(ListPartitionReassignments((("t", (1,)), ("none", (0,))))).topics == ()
    assert alter(cluster, "t", (1, 2, 3)).code is ErrorCode.NONE
    assert alter(cluster, "t", (1, 2, 3, 4)).code is ErrorCode.NEW_LEADER_ELECTED
    done = cluster.partition("t")
    assert (done.replicas, done.isr, done.leader, done.leader_epoch) == ((3, 4), (3, 4), 3, 1)
    assert (done.adding, done.removing) == ((), ())
    assert cluster.ask(ListPartitionReassignments()).topics == ()


def test_a_reordering_completes_at_once() -> None:
    """C33."""
    cluster = Cluster(2)
    cluster.create("t", (1, 2))
    move(cluster, "t", (2, 1))
    partition = cluster.partition("t")
    assert (partition.replicas, partition.leader, partition.leader_epoch, partition.adding) == ((2, 1), 1, 0, ())


def test_the_replication_factor_may_be_fixed() -> None:
    """K27: the size that the partition will have is checked."""
    cluster = Cluster(4)
    cluster.create("t", (1, 2))
    for target in ((1,), (1, 2, 3)):
        outcome = move(cluster, "t", target, allow_replication_factor_change=False)
        assert outcome.code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert not move(cluster, "t", (3, 4), allow_replication_factor_change=False).failed
    assert not move(cluster, "t", (3, 1), allow_replication_factor_change=False).failed


def test_a_changed_reassignment_forgets_no_replica() -> None:
    """Kafka keeps 4 on both lists, and waits forever."""
    cluster = Cluster(4)
    cluster.create("t", (1, 2))
    move(cluster, "t", (3, 4))
    move(cluster, "t", (3, 2))
    partition = cluster.partition("t")
    assert (partition.adding, partition.removing) == ((3,), (1, 4))
    move(cluster, "t", (3, 2))
    assert cluster.records == [], "the same request again changes nothing"
    alter(cluster, "t", (1, 2, 3))
    assert (cluster.partition("t").replicas, cluster.partition("t").adding) == ((3, 2), ())


def test_cancelling_a_reassignment() -> None:
    """C34."""
    cluster = Cluster(3)
    cluster.create("t", (1, 2))
    assert move(cluster, "t", None).code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    move(cluster, "t", (3, 2))
    assert not move(cluster, "t", None).failed
    partition = cluster.partition("t")
    assert (partition.replicas, partition.isr, partition.leader, partition.leader_epoch) == ((2, 1), (1, 2), 1, 1)


def test_cancelling_never_hides_a_loss() -> None:
    """V35, V9, gaps.md G20: only the new replica is in sync; it is replaced by one that lacks its records."""
    for allowed in ("false", "true"):
        cluster = Cluster(4)
        cluster.create("t", (1, 2), configs={UNCLEAN: allowed})
        move(cluster, "t", (3, 4, 2, 1))
        alter(cluster, "t", (1, 3))
        fence(cluster, 1)
        moving = cluster.partition("t")
        assert (moving.leader, moving.isr) == (3, (3,))
        outcome = move(cluster, "t", None)
        after = cluster.partition("t")
        if allowed == "false":
            assert outcome.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
            assert after == moving
        else:
            assert (after.leader, after.isr, after.replicas) == (2, (2,), (2, 1))
            assert after.leader_recovery_state is RECOVERING


def test_a_reassignment_that_ends_in_an_unclean_election_is_recovering() -> None:
    """V36, gaps.md G21: whatever the leader requested in the same request."""
    cluster = Cluster(3, features={"metadata.version": 30})
    cluster.create("t", (1, 2), configs={UNCLEAN: "true"})
    state = cluster.controller.state
    partition = cluster.partition("t")._replace(
        replicas=(3, 1), isr=(1,), adding=(3,), removing=(1,), leader_recovery_state=RECOVERING
    )
    record = change_partition(
        partition,
        UUID(int=1),
        0,
        may_lead=lambda broker: broker == 2 or broker == 3,
        min_isr=state.min_isr("t"),
        elr_enabled=False,
        election=Election.UNCLEAN,
        target_isr=(1,),
        recovery_state=RECOVERED,
    )
    assert record is not None
    assert (record.leader, record.isr, record.leader_recovery_state) == (3, (3,), -1)


# -- log directories (C20) ---------------------------------------------------------------------------------------------

FIRST, SECOND = UUID(int=501), UUID(int=502)


def _assign(cluster: Cluster, broker: int, directory: UUID, topic: UUID, index: int = 0) -> ErrorCode:
    request = AssignReplicasToDirs(broker, cluster.epochs[broker], ((directory, ((topic, (index,)),)),))
    code: ErrorCode = cluster.ask(request).directories[0][1][0][1][0].code
    return code


def _with_two_directories() -> tuple[Cluster, UUID]:
    cluster = Cluster(1)
    cluster.register(2, log_dirs=(FIRST, SECOND))
    cluster.heartbeat(2)
    topic = cluster.create("t", (2, 1))
    assert _assign(cluster, 2, FIRST, topic) is ErrorCode.NONE
    return cluster, topic


def test_a_failed_directory_loses_its_leaders() -> None:
    cluster, _ = _with_two_directories()
    other = cluster.create("other", (2, 1))
    assert _assign(cluster, 2, SECOND, other) is ErrorCode.NONE
    cluster.heartbeat(2, offline_log_dirs=(FIRST,))
    assert (cluster.partition("t").leader, cluster.partition("t").isr) == (1, (1,))
    assert cluster.partition("other").leader == 2
    assert cluster.image.brokers[2].log_dirs == (SECOND,)
    cluster.heartbeat(2, offline_log_dirs=(FIRST,))
    assert cluster.records == []
    assert _assign(cluster, 2, FIRST, other) is ErrorCode.NONE
    assert cluster.partition("other").leader == 1, "that directory no longer exists"


def test_a_replica_without_a_directory_is_online() -> None:
    """C20: a broker may report that it holds a replica in no directory yet; a replica in a lost directory is
    offline.
    """
    cluster, topic = _with_two_directories()
    assert _assign(cluster, 2, UNASSIGNED_DIRECTORY, topic) is ErrorCode.NONE
    assert (cluster.partition("t").leader, cluster.partition("t").isr) == (2, (2, 1))
    assert _assign(cluster, 2, LOST_DIRECTORY, topic) is ErrorCode.NONE
    assert (cluster.partition("t").leader, cluster.partition("t").isr) == (1, (1,))


def test_a_broker_without_a_directory_is_fenced() -> None:
    cluster, _ = _with_two_directories()
    assert cluster.heartbeat(2, offline_log_dirs=(FIRST, SECOND)).is_fenced
    assert cluster.partition("t").leader == 1
    assert cluster.heartbeat(2, offline_log_dirs=(FIRST, SECOND)).is_fenced
    assert cluster.records == []


def test_rejected_assignments() -> None:
    cluster, topic = _with_two_directories()
    alone = cluster.create("alone", (1,))
    assert _assign(cluster, 2, FIRST, UUID(int=404)) is ErrorCode.UNKNOWN_TOPIC_ID
    assert _assign(cluster, 2, FIRST, topic, 7) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert _assign(cluster, 2, FIRST, alone) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    with pytest.raises(PeerError) as error:
        cluster.ask(AssignReplicasToDirs(2, 1, ()))
    assert error.value.code is ErrorCode.STALE_BROKER_EPOCH
    old = Cluster(1, features={"metadata.version": 16})
    with pytest.raises(PeerError) as unsupported:
        old.ask(AssignReplicasToDirs(1, old.epochs[1], ()))
    assert unsupported.value.code is ErrorCode.UNSUPPORTED_VERSION


# -- elections by config and by timer (V12, G45, C30) ------------------------------------------------------------------


def _lost(cluster: Cluster, name: str = "t") -> None:
    cluster.create(name, (1, 2), configs={"min.insync.replicas": "1"})
    alter(cluster, name, (1,))


@pytest.mark.parametrize("where", ["t", ""])
def test_allowing_unclean_elections_takes_effect_at_once(where: str) -> None:
    """G45: Kafka waits for its next pass, up to five minutes."""
    cluster = Cluster(2)
    _lost(cluster)
    fence(cluster, 1)
    assert cluster.partition("t").leader == -1
    cluster.ask(ElectUncleanLeaders())
    assert cluster.records == []
    configure(cluster, where, UNCLEAN, "true")
    assert [type(record) for record in cluster.records] == [ConfigRecord, PartitionChangeRecord]
    partition = cluster.partition("t")
    assert (partition.leader, partition.isr, partition.leader_recovery_state) == (2, (2,), RECOVERING)


def test_a_topic_that_forbids_unclean_elections_is_unchanged() -> None:
    cluster = Cluster(2)
    _lost(cluster)
    configure(cluster, "t", UNCLEAN, "false")
    fence(cluster, 1)
    configure(cluster, "", UNCLEAN, "true")
    assert cluster.partition("t").leader == -1
    configure(cluster, "t", UNCLEAN, None)
    assert cluster.partition("t").leader == 2


def test_new_replicas_become_leaders_in_the_next_pass() -> None:
    """V12."""
    cluster = Cluster(3)
    cluster.create("t", (1,), configs={UNCLEAN: "true"})
    fence(cluster, 1)
    move(cluster, "t", (1, 2))
    assert cluster.partition("t").leader == -1
    assert cluster.ask(ElectUncleanLeaders()) == ElectionPassAnswer(more=False)
    assert (cluster.partition("t").leader, cluster.partition("t").leader_recovery_state) == (2, RECOVERING)


def test_a_pass_moves_a_thousand_leaders_and_reports_that_more_wait() -> None:
    """C30."""
    cluster = Cluster(2)
    cluster.create("t", *(((1, 2),) * 1500))
    fence(cluster, 1)
    cluster.heartbeat(1)
    topic = cluster.image.topics_by_name["t"]
    members = (IsrMember(2), IsrMember(1))
    changes = tuple(IsrChange(i, p.leader_epoch, p.partition_epoch, members) for i, p in enumerate(topic.partitions))
    cluster.ask(AlterPartition(2, cluster.epochs[2], ((topic.id, changes),)))
    assert cluster.ask(BalanceLeaders()) == ElectionPassAnswer(more=True)
    assert len(cluster.records) == 1000
    assert cluster.ask(BalanceLeaders()) == ElectionPassAnswer(more=False)
    assert len(cluster.records) == 500


def test_a_response_for_all_lists_partitions_that_needed_an_election() -> None:
    """C29."""
    cluster = Cluster(2)
    cluster.create("a", (1, 2), (2, 1))
    cluster.create("b", (2, 1))
    fence(cluster, 1)
    answer = dict(cluster.ask(ElectLeaders(0)).topics)
    assert {name: [(each.index, each.outcome.code) for each in rows] for name, rows in answer.items()} == {
        "a": [(0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)],
        "b": [],
    }
    assert dict(cluster.ask(ElectLeaders(1)).topics) == {"a": (), "b": ()}


def test_too_many_changes_in_one_request() -> None:
    """C3."""
    cluster = Cluster(2)
    cluster.create("t", *(((1, 2),) * 6000))
    cluster.ask(CreatePartitions((NewPartitions("t", 10_001, ((1, 2),) * 4001),)))
    wanted = tuple(Reassignment(index, (2, 1)) for index in range(10_001))
    with pytest.raises(PeerError) as error:
        cluster.ask(AlterPartitionReassignments((("t", wanted),)))
    assert error.value.code is ErrorCode.POLICY_VIOLATION
    assert cluster.partition("t").replicas == (1, 2)
