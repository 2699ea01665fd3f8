"""Brokers whose process has ended, as a probe found: fenced before their session expires, and unfenced after a false
alarm.

Which reports are accepted, and that a live broker loses nothing by a false alarm. The probes are in
`node.controller.presence`.
"""

from __future__ import annotations

from uuid import UUID

import pytest

from fenceline.controller.brokers import BrokerControlState, begin_sessions, state_of
from fenceline.controller.partition_requests import AlterPartition, IsrChange, IsrMember
from fenceline.controller.requests import FenceEndedBroker, FenceStaleBroker, RegisterBroker
from fenceline.controller.sessions import Sessions
from fenceline.errors import ErrorCode, PeerError
from fenceline.metadata.features import SUPPORTED
from fenceline.metadata.image import Endpoint
from fenceline.metadata.node_records import BrokerRegistrationChangeRecord
from tests.controller.helpers import CLUSTER, Cluster

LOOKED_MS = 50


@pytest.fixture
def cluster() -> Cluster:
    """Two brokers, with heartbeats at 0; a probe runs at `LOOKED_MS`."""
    cluster = Cluster(2, knows_connections=True)
    cluster.create("t", (1, 2))
    cluster.now_ms = 150
    return cluster


def gone(cluster: Cluster, broker: int = 1, *, epoch: int | None = None, since_ms: int = LOOKED_MS) -> None:
    cluster.ask(FenceEndedBroker(broker, cluster.epochs[broker] if epoch is None else epoch, since_ms))


def sessions(cluster: Cluster) -> Sessions:
    return cluster.controller.state.sessions


def test_a_gone_broker_is_fenced_at_once_and_others_lead(cluster: Cluster) -> None:
    """C16: out of every ISR and leaders elsewhere first, then fenced."""
    before = cluster.partition("t")
    gone(cluster)
    assert cluster.records[-1] == BrokerRegistrationChangeRecord(1, cluster.epochs[1], fenced=1)
    after = cluster.partition("t")
    assert (after.leader, after.isr, after.leader_epoch) == (2, (2,), before.leader_epoch + 1)
    assert not sessions(cluster).has(1, cluster.epochs[1])
    assert sessions(cluster).gone_count == 1
    cluster.now_ms += 8_000
    cluster.heartbeat(2)
    cluster.now_ms += 2_000
    cluster.ask(FenceStaleBroker())
    assert cluster.records == [], "it has no session that could expire"


def test_a_broker_with_a_later_heartbeat_is_alive(cluster: Cluster) -> None:
    sessions(cluster).contact(1, cluster.epochs[1], LOOKED_MS + 1)
    gone(cluster)
    assert cluster.records == []
    assert sessions(cluster).has(1, cluster.epochs[1])
    gone(cluster, since_ms=LOOKED_MS + 1)
    assert cluster.image.brokers[1].fenced, "no heartbeat arrived after the later probe"


def test_a_connected_broker_is_alive(cluster: Cluster) -> None:
    sessions(cluster).set_connected(1, cluster.epochs[1], connected=True)
    gone(cluster)
    assert cluster.records == []
    sessions(cluster).set_connected(1, cluster.epochs[1], connected=False)
    gone(cluster)
    assert cluster.image.brokers[1].fenced


@pytest.mark.parametrize(("broker", "epoch"), [(1, 99_999), (7, 1)])
def test_a_report_about_another_incarnation_is_ignored(cluster: Cluster, broker: int, epoch: int) -> None:
    gone(cluster, broker, epoch=epoch)
    assert cluster.records == []
    assert all(not each.fenced for each in cluster.image.brokers.values())


def test_a_live_broker_returns_by_its_next_heartbeat(cluster: Cluster) -> None:
    """A false alarm: same broker epoch, in sync again once the leader reports so, and the next alarm is ignored."""
    gone(cluster)
    answer = cluster.heartbeat(1)
    assert not answer.is_fenced
    assert sessions(cluster).false_alarm_count == 1
    assert cluster.image.brokers[1].epoch == cluster.epochs[1]
    partition = cluster.partition("t")
    members = tuple(IsrMember(broker, cluster.epochs[broker]) for broker in (1, 2))
    change = IsrChange(0, partition.leader_epoch, partition.partition_epoch, members, 0)
    topic_id = cluster.image.topics_by_name["t"].id
    ((_, (altered,)),) = cluster.ask(AlterPartition(2, cluster.epochs[2], ((topic_id, (change,)),))).topics
    assert altered.code is ErrorCode.NONE
    assert set(cluster.partition("t").isr) == {1, 2}
    gone(cluster, since_ms=cluster.now_ms + 1)
    assert cluster.records == [], "only its session counts from here on"
    cluster.now_ms += 9_000
    cluster.heartbeat(2)
    cluster.ask(FenceStaleBroker())
    assert cluster.image.brokers[1].fenced


def test_the_last_in_sync_replica_stays_in_the_isr_and_leads_again(cluster: Cluster) -> None:
    """C28: nothing is lost if no other replica has the records."""
    gone(cluster, 2)
    before = cluster.partition("t")
    gone(cluster, 1)
    assert cluster.partition("t").leader == -1
    cluster.heartbeat(1)
    after = cluster.partition("t")
    assert (after.leader, after.isr, after.leader_recovery_state) == (1, (1,), before.leader_recovery_state)
    assert after.leader_epoch == before.leader_epoch + 2


def test_gone_in_controlled_shutdown(cluster: Cluster) -> None:
    cluster.heartbeat(1, want_shut_down=True)
    assert state_of(cluster.image.brokers[1]) is BrokerControlState.CONTROLLED_SHUTDOWN
    gone(cluster, since_ms=cluster.now_ms)
    assert state_of(cluster.image.brokers[1]) is BrokerControlState.FENCED


def test_an_uncommitted_report_may_be_repeated(cluster: Cluster) -> None:
    """C2: the append failed, the broker is unchanged."""
    before, offset = cluster.image, cluster.controller.next_offset
    gone(cluster)
    cluster.controller.reset(before, offset)
    assert sessions(cluster).has(1, cluster.epochs[1])
    gone(cluster, since_ms=cluster.now_ms)
    assert cluster.image.brokers[1].fenced


def test_another_controller_epoch_accepts_reports_again(cluster: Cluster) -> None:
    gone(cluster)
    cluster.heartbeat(1)
    begin_sessions(cluster.controller.state, cluster.now_ms)
    gone(cluster, since_ms=cluster.now_ms)
    assert cluster.image.brokers[1].fenced


# -- the next incarnation ----------------------------------------------------------------------------------------------


def test_a_new_incarnation_does_not_wait_for_a_gone_broker(cluster: Cluster) -> None:
    gone(cluster)
    assert cluster.register(1, incarnation=2, log_dirs=(UUID(int=777),)) > 0


def test_a_new_incarnation_does_not_wait_for_a_fenced_gone_broker(cluster: Cluster) -> None:
    cluster.heartbeat(1, want_fence=True)
    gone(cluster, since_ms=cluster.now_ms)
    assert cluster.records == []
    cluster.heartbeat(1)
    assert sessions(cluster).false_alarm_count == 0, "nothing was written for it"
    gone(cluster, since_ms=cluster.now_ms)
    assert cluster.image.brokers[1].fenced, "so a report is accepted once more"
    cluster.register(1, incarnation=2, log_dirs=(UUID(int=777),))


def test_an_incarnation_with_the_same_directory_and_address_replaces_the_broker(cluster: Cluster) -> None:
    """A process that is killed and restarted at once: a probe could only find the new one."""
    before = cluster.partition("t")
    cluster.register(1, incarnation=2)
    assert cluster.image.brokers[1].fenced
    after = cluster.partition("t")
    assert (after.leader, after.isr, after.leader_epoch) == (2, (2,), before.leader_epoch + 1), "K23"
    with pytest.raises(PeerError):
        cluster.heartbeat(1, epoch=1)


def test_without_directory_ids_the_session_must_expire() -> None:
    cluster = Cluster(1, knows_connections=True, features={"metadata.version": 16})
    with pytest.raises(PeerError, match="Another broker"):
        cluster.register(1, incarnation=2)


@pytest.mark.parametrize("changed", ["connected", "directory", "address", "kafka"])
def test_an_incarnation_without_proof_waits(changed: str) -> None:
    cluster = Cluster(1, knows_connections=changed != "kafka")
    if changed == "connected":
        sessions(cluster).set_connected(1, cluster.epochs[1], connected=True)
    request = RegisterBroker(
        1,
        CLUSTER,
        UUID(int=2),
        (Endpoint("PLAINTEXT", "host1", 9093 if changed == "address" else 9092, 0),),
        SUPPORTED,
        log_dirs=(UUID(int=777 if changed == "directory" else 10_001),),
    )
    with pytest.raises(PeerError) as refused:
        cluster.ask(request)
    assert refused.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
