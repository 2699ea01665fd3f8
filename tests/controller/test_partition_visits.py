"""Decisions about all partitions of a broker are taken in steps, with others in between."""

from __future__ import annotations

from typing import Any

import pytest

from fenceline.controller.controller import Controller
from fenceline.controller.partition_requests import AlterPartition, ElectLeaderless, IsrChange, IsrMember
from fenceline.controller.requests import (
    BrokerHeartbeat,
    DeleteTopics,
    FenceEndedBroker,
    FenceStaleBroker,
    TopicReference,
)
from fenceline.controller.state import ControllerSettings
from fenceline.metadata.image import LeaderRecoveryState
from fenceline.metadata.node_records import BrokerRegistrationChangeRecord, RegisterBrokerRecord
from fenceline.metadata.records import PartitionChangeRecord
from tests.controller.helpers import CLUSTER, Cluster

PARTITIONS = 10
STEP = 3
EXPIRED_MS = 10_000


def _cluster(*replicas: tuple[int, ...], max_visits: int = STEP, **settings: Any) -> Cluster:
    cluster = Cluster(3, max_visits=max_visits, **settings)
    cluster.create("t", *(replicas or ((1, 2, 3),) * PARTITIONS))
    return cluster


def _all_steps(cluster: Cluster, request: Any) -> list[int]:
    """The numbers of records of the steps."""
    counts = []
    while True:
        decision = cluster.step(request)
        counts.append(len(decision.records))
        if not decision.more:
            return counts


def _fence_stale(cluster: Cluster) -> FenceStaleBroker:
    """All but broker 1 are heard of."""
    cluster.now_ms += EXPIRED_MS
    for broker in (2, 3):
        cluster.heartbeat(broker)
    return FenceStaleBroker()


def test_no_step_visits_more_than_its_share() -> None:
    """C16: the record that fences the broker is the last one."""
    cluster = _cluster()
    assert _all_steps(cluster, _fence_stale(cluster)) == [3, 3, 3, 1, 1]
    assert cluster.image.brokers[1].fenced
    assert all(p.leader == 2 and 1 not in p.isr for p in cluster.image.topics_by_name["t"].partitions)


def test_few_partitions_are_one_step() -> None:
    cluster = _cluster(*((1, 2, 3),) * STEP)
    assert _all_steps(cluster, _fence_stale(cluster)) == [STEP + 1]


@pytest.mark.parametrize("max_visits", [1, 2, STEP, PARTITIONS - 1, PARTITIONS, 1000])
def test_steps_lead_to_the_same_state(max_visits: int) -> None:
    """Fenced, back, replaced after a kill, and stopped: whatever the size of a step."""

    def story(cluster: Cluster) -> list[Any]:
        states = []
        cluster.ask(_fence_stale(cluster))
        states.append(cluster.image.topics_by_name["t"].partitions)
        cluster.heartbeat(1)
        states.append(cluster.image.topics_by_name["t"].partitions)
        cluster.now_ms += EXPIRED_MS
        cluster.heartbeat(1)
        cluster.heartbeat(3)
        cluster.register(2, incarnation=2)
        states.append(cluster.image.topics_by_name["t"].partitions)
        cluster.heartbeat(2)
        cluster.heartbeat(3, want_shut_down=True)
        states.append(cluster.image.topics_by_name["t"].partitions)
        return states

    mixed = ((1, 2), (1, 3), (2, 3), (3, 1), (2, 1), (1, 2), (3, 2), (1, 3), (2, 1), (3, 2))
    assert story(_cluster(*mixed, max_visits=max_visits)) == story(_cluster(*mixed, max_visits=1000))


def test_broker_that_is_added_again_meanwhile_is_removed_at_the_end() -> None:
    """A leader that still counts the broker as alive adds it to an ISR between two steps."""
    cluster = _cluster()
    request = _fence_stale(cluster)
    assert cluster.step(request).more
    topic = cluster.image.topics_by_name["t"]
    partition = topic.partitions[0]
    assert partition.isr == (2, 3)
    change = IsrChange(0, partition.leader_epoch, partition.partition_epoch, tuple(map(IsrMember, (2, 3, 1))))
    cluster.ask(AlterPartition(2, cluster.epochs[2], ((topic.id, (change,)),)))
    assert cluster.partition("t").isr == (2, 3, 1)
    cluster.ask(request)
    assert cluster.image.brokers[1].fenced
    assert cluster.partition("t").isr == (2, 3)


def test_fencing_that_has_begun_is_completed() -> None:
    """Half fenced, the broker would lead nothing again: it only returns when it is unfenced."""
    cluster = _cluster(*((1,),) * PARTITIONS)
    request = _fence_stale(cluster)
    assert cluster.step(request).more
    cluster.heartbeat(1)
    assert not cluster.image.brokers[1].fenced
    cluster.ask(FenceStaleBroker())
    assert cluster.image.brokers[1].fenced
    cluster.heartbeat(1)
    assert {p.leader for p in cluster.image.topics_by_name["t"].partitions} == {1}


def test_new_process_is_not_fenced_for_the_old_one() -> None:
    cluster = _cluster()
    request = _fence_stale(cluster)
    assert cluster.step(request).more
    cluster.register(1, incarnation=2)
    cluster.heartbeat(1)
    assert not cluster.image.brokers[1].fenced
    cluster.ask(FenceStaleBroker())
    assert not cluster.image.brokers[1].fenced


def test_report_of_an_ended_process_is_followed_to_the_end() -> None:
    cluster = _cluster()
    request = FenceEndedBroker(1, cluster.epochs[1], cluster.now_ms)
    assert _all_steps(cluster, request) == [3, 3, 3, 1, 1]
    assert cluster.image.brokers[1].fenced
    assert cluster.controller.state.sessions.gone_count == 1


def test_topic_that_is_deleted_meanwhile_is_left_out() -> None:
    cluster = _cluster(max_visits=4)
    cluster.create("u", *((1, 2),) * PARTITIONS)
    request = _fence_stale(cluster)
    assert cluster.step(request).more
    for name in ("t", "u"):
        cluster.ask(DeleteTopics((TopicReference(name),)))
    cluster.ask(request)
    assert cluster.image.brokers[1].fenced


def test_registration_is_the_last_record() -> None:
    """C12, K23: the broker epoch is the offset of the first record of the last step; nothing of the broker is left."""
    cluster = _cluster()
    cluster.now_ms += EXPIRED_MS
    before = cluster.controller.next_offset
    cluster.register(1, incarnation=2)
    kinds = [type(record) for record in cluster.records]
    assert kinds == [PartitionChangeRecord] * PARTITIONS + [RegisterBrokerRecord]
    assert cluster.epochs[1] == cluster.image.brokers[1].epoch == before + PARTITIONS
    assert cluster.image.brokers[1].fenced


def test_next_controller_completes_the_elections() -> None:
    """C16: the broker is unfenced with the first step; without its successor it is not elected for the rest."""
    cluster = _cluster(*((1,),) * PARTITIONS)
    cluster.ask(_fence_stale(cluster))
    beat = BrokerHeartbeat(1, cluster.epochs[1], current_metadata_offset=cluster.image.offset)
    decision = cluster.step(beat)
    assert decision.more
    assert isinstance(decision.records[0], BrokerRegistrationChangeRecord)
    assert [p.leader for p in cluster.image.topics_by_name["t"].partitions].count(-1) == PARTITIONS - STEP
    successor = Controller(ControllerSettings(CLUSTER, max_visits=STEP))
    successor.activate(cluster.image, cluster.controller.next_offset, 0)
    cluster.controller = successor
    assert _all_steps(cluster, ElectLeaderless()) == [3, 3, 1, 0]
    assert {p.leader for p in cluster.image.topics_by_name["t"].partitions} == {1}
    assert _all_steps(cluster, ElectLeaderless()) == [0]


def test_next_controller_completes_a_shutdown() -> None:
    """With the broker's next heartbeat."""
    cluster = _cluster()
    beat = BrokerHeartbeat(1, cluster.epochs[1], current_metadata_offset=cluster.image.offset, want_shut_down=True)
    assert cluster.step(beat).more
    successor = Controller(ControllerSettings(CLUSTER, max_visits=STEP))
    successor.activate(cluster.image, cluster.controller.next_offset, 0)
    cluster.controller = successor
    answer = cluster.ask(beat)
    assert not answer.should_shut_down
    assert 1 not in {p.leader for p in cluster.image.topics_by_name["t"].partitions}


def test_discarded_step_is_decided_again() -> None:
    """C2."""
    cluster = _cluster()
    request = _fence_stale(cluster)
    assert cluster.step(request).more
    image, offset = cluster.image, cluster.controller.next_offset
    cluster.controller.decide(request, cluster.now_ms, cluster.rng)
    cluster.controller.reset(image, offset)
    cluster.ask(request)
    assert all(p.leader == 2 for p in cluster.image.topics_by_name["t"].partitions)


def test_only_broker_takes_long_steps() -> None:
    """Nothing else is decided while it starts: after a kill it comes back with few commits."""
    cluster = Cluster(1, max_visits=STEP)
    cluster.create("t", *((1,),) * PARTITIONS)
    cluster.now_ms += EXPIRED_MS
    cluster.register(1, incarnation=2)
    assert [type(record) for record in cluster.records].count(PartitionChangeRecord) == PARTITIONS
    beat = BrokerHeartbeat(1, cluster.epochs[1], current_metadata_offset=cluster.image.offset)
    assert _all_steps(cluster, beat) == [PARTITIONS + 1]
    states = {p.leader_recovery_state for p in cluster.image.topics_by_name["t"].partitions}
    assert states == {LeaderRecoveryState.RECOVERING}
