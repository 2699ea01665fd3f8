"""Each fault on real processes: it is there, a client meets it, and it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fenceline.client import Producer
from fenceline.errors import OperatorError
from fenceline.testing.lab.cluster import LabCluster
from fenceline.testing.lab.faults import ActiveFault, ClusterFaults
from fenceline.testing.waiting import eventually
from tests.testing.lab.conftest import isr_of

WAIT_S = 30


def send(producer: Producer, topic: str, value: bytes = b"value") -> int:
    """Send one record; its offset."""
    return producer.send(topic, value, partition=0).result(WAIT_S).offset


def kinds(cluster: LabCluster, mark: int) -> list[str]:
    return [event.kind for event in cluster.timeline.since(mark)]


# --- requests ---------------------------------------------------------------------------------------------------------


def test_an_error_is_answered_so_many_times(cluster: LabCluster, topic: str, producer: Producer) -> None:
    fault = cluster.faults.fail_requests("Produce", "NOT_LEADER_OR_FOLLOWER", topic=topic, times=2)
    assert send(producer, topic) == 0
    assert fault.hits == 2


def test_other_topics_clients_and_apis_are_not_affected(cluster: LabCluster, topic: str, producer: Producer) -> None:
    by_topic = cluster.faults.fail_requests("Produce", "KAFKA_STORAGE_ERROR", topic="another")
    by_client = cluster.faults.fail_requests(None, "KAFKA_STORAGE_ERROR", client_id="another")
    by_api = cluster.faults.fail_requests("OffsetCommit", "KAFKA_STORAGE_ERROR")
    assert send(producer, topic) == 0
    assert [fault.hits for fault in (by_topic, by_client, by_api)] == [0, 0, 0]


def test_a_predicate_of_the_test_decides(cluster: LabCluster, topic: str, producer: Producer) -> None:
    seen: list[tuple[str, list[str]]] = []

    def when(request: object) -> bool:
        assert isinstance(request, dict)
        seen.append((request["client_id"], request["topics"]))
        return len(seen) == 1

    fault = cluster.faults.fail_requests("Produce", "NOT_LEADER_OR_FOLLOWER", when=when)
    assert send(producer, topic) == 0
    assert fault.hits == 1
    assert seen == [("app", [topic]), ("app", [topic])]


def test_a_predicate_that_fails_matches_nothing(cluster: LabCluster, topic: str, producer: Producer) -> None:
    mark = cluster.timeline.mark()
    cluster.faults.fail_requests("Produce", "NOT_LEADER_OR_FOLLOWER", when=lambda request: bool(request["nothing"]))
    assert send(producer, topic) == 0
    assert "a predicate failed" in kinds(cluster, mark)


def test_skipped_requests_pass(cluster: LabCluster, topic: str, producer: Producer) -> None:
    fault = cluster.faults.fail_requests("Produce", "NOT_LEADER_OR_FOLLOWER", topic=topic, skip=1, times=1)
    send(producer, topic)
    assert fault.hits == 0
    send(producer, topic)
    assert fault.hits == 1


@pytest.mark.parametrize("handled", [True, False])
def test_a_lost_answer_and_a_lost_request(cluster: LabCluster, topic: str, handled: bool) -> None:
    """Without idempotence, a retry after a lost answer is a second record."""
    lose = cluster.faults.lose_answers if handled else cluster.faults.lose_requests
    fault = lose("Produce", topic=topic, times=1)
    with Producer({**cluster.client_settings, "enable.idempotence": False, "retry.backoff.ms": 20}) as producer:
        assert send(producer, topic) == (1 if handled else 0)
    assert fault.hits == 1


def test_a_request_that_is_never_answered(cluster: LabCluster, topic: str, producer: Producer) -> None:
    fault = cluster.faults.hang_requests("Produce", topic=topic, times=1)
    assert send(producer, topic) == 0
    assert fault.hits == 1


def test_a_delayed_request_waits(cluster: LabCluster, topic: str, producer: Producer) -> None:
    send(producer, topic)
    with cluster.faults.delay_requests("Produce", 0.3, topic=topic):
        began_s = time.monotonic()
        send(producer, topic)
    assert time.monotonic() - began_s >= 0.3


def test_a_throttled_connection_is_not_read(cluster: LabCluster, topic: str, producer: Producer) -> None:
    send(producer, topic)
    fault = cluster.faults.throttle("Produce", 300, cluster.leader(topic), client_id="app", times=1)
    send(producer, topic)
    began_s = time.monotonic()
    send(producer, topic)
    assert time.monotonic() - began_s >= 0.2
    assert fault.hits == 1


def test_a_count_goes_on_in_a_restarted_node(cluster: LabCluster, topic: str, producer: Producer) -> None:
    leader = cluster.leader(topic)
    fault = cluster.faults.fail_requests("Produce", "NOT_LEADER_OR_FOLLOWER", leader, topic=topic, times=1)
    send(producer, topic)
    cluster.start_node(leader)
    if cluster.leader(topic) != leader:
        cluster.situations.leader_moved(topic, to=leader)
    send(producer, topic)
    assert fault.hits == 1


def test_requests_of_a_session_name_their_topics(cluster: LabCluster, topic: str, producer: Producer) -> None:
    """An incremental Fetch names no topic."""
    from fenceline.client import Consumer, TopicPartition

    with Consumer(cluster.client_settings, **{"client.id": "reader", "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        send(producer, topic)
        eventually(lambda: consumer.poll(100), wait_s=WAIT_S)
        with cluster.faults.delay_requests("Fetch", 0.01, topic=topic, client_id="reader") as fault:
            consumer.poll(100)
            consumer.poll(100)
            # The session's topics are named once there is a rule; a new session names them.
            cluster.faults.reset(cluster.leader(topic), client_id="reader")
            eventually(lambda: consumer.poll(50) or fault.hits, wait_s=WAIT_S)
            assert fault.hits


# --- network ----------------------------------------------------------------------------------------------------------


def elapsed_s(work: Callable[[], object]) -> float:
    began_s = time.monotonic()
    work()
    return time.monotonic() - began_s


def test_a_delay_is_one_way(cluster: LabCluster, topic: str, producer: Producer) -> None:
    send(producer, topic)
    with cluster.faults.delay(cluster.leader(topic), 0.1, jitter_s=0.01, client_id="app"):
        assert elapsed_s(lambda: send(producer, topic)) >= 0.2


def test_a_delayed_follower_delays_acknowledgements_of_all(cluster: LabCluster, topic: str, producer: Producer) -> None:
    send(producer, topic)
    leader = cluster.leader(topic)
    follower = next(node for node in cluster.nodes if node != leader)
    with cluster.faults.delay(follower, 0.1, peer=leader):
        assert elapsed_s(lambda: send(producer, topic)) >= 0.1


def test_bandwidth_is_limited(cluster: LabCluster, topic: str, producer: Producer) -> None:
    send(producer, topic)
    with cluster.faults.limit_bandwidth(cluster.leader(topic), 200_000, peer="clients"):
        assert elapsed_s(lambda: send(producer, topic, bytes(100_000))) >= 0.45


def test_a_client_is_cut_off_and_others_are_not(cluster: LabCluster, topic: str, producer: Producer) -> None:
    send(producer, topic)
    with cluster.faults.cut(cluster.leader(topic), client_id="app"):
        lost = producer.send(topic, b"held", partition=0)
        with Producer({**cluster.client_settings, "client.id": "other"}) as other:
            send(other, topic)
        assert not lost.done()
    assert lost.result(WAIT_S).offset == 2


@pytest.mark.parametrize("direction", ["in", "out"])
def test_one_way_cuts_of_clients(cluster: LabCluster, topic: str, producer: Producer, direction: str) -> None:
    """Requests that arrive are handled; what they append is the same, as the producer is idempotent."""
    send(producer, topic)
    leader = cluster.leader(topic)
    with cluster.faults.cut(leader, clients=True, direction=direction):  # type: ignore[arg-type]
        pending = producer.send(topic, b"held", partition=0)
        (appended,) = Path(cluster.root).glob(f"node-{leader}/data/{topic}-0/*.log")
        before = appended.stat().st_size
        if direction == "out":
            eventually(lambda: appended.stat().st_size > before, wait_s=WAIT_S)
        assert not pending.done()
    assert pending.result(WAIT_S).offset == 1


def test_a_follower_that_is_cut_off_leaves_the_isr_and_returns(
    cluster: LabCluster, topic: str, producer: Producer
) -> None:
    leader = cluster.leader(topic)
    quorum = cluster.processes.quorum()
    assert quorum is not None
    # The leader asks the active controller to remove the follower.
    follower = next(node for node in cluster.nodes if node not in (leader, quorum.leader_id))

    with cluster.faults.cut(leader, peers=[follower]):
        send(producer, topic)
        eventually(lambda: follower not in isr_of(cluster, topic), wait_s=WAIT_S)
    eventually(lambda: follower in isr_of(cluster, topic), wait_s=WAIT_S)


def test_two_cuts_of_a_node_end_one_by_one(cluster: LabCluster) -> None:
    first = cluster.faults.cut(1, peers=[2], direction="in")
    second = cluster.faults.cut(1, peers=[3])
    first.undo()
    assert [cut.peer for cut in cluster.processes.status_of(1).cuts] == [3]
    second.undo()
    assert cluster.processes.status_of(1).cuts == ()


def test_connections_are_reset(cluster: LabCluster, topic: str, producer: Producer) -> None:
    send(producer, topic)
    assert cluster.faults.reset(cluster.leader(topic), client_id="app") >= 1
    assert send(producer, topic) == 1


def test_a_half_open_connection_is_found_by_a_timeout(cluster: LabCluster, topic: str, producer: Producer) -> None:
    send(producer, topic)
    with cluster.faults.half_open(cluster.leader(topic), client_id="app"):
        assert elapsed_s(lambda: send(producer, topic)) >= 0.9


# --- disk, clock, processes -------------------------------------------------------------------------------------------


def test_a_full_disk_takes_nothing_until_there_is_room(cluster: LabCluster, topic: str, producer: Producer) -> None:
    send(producer, topic)
    leader = cluster.leader(topic)
    with cluster.faults.full_disk(leader):
        pending = producer.send(topic, b"held", partition=0)
        eventually(lambda: "no space left" in cluster.log(leader), wait_s=WAIT_S)
        assert not pending.done()
    assert pending.result(WAIT_S).offset == 1


def test_a_slow_disk_is_slow(cluster: LabCluster, topic: str, producer: Producer) -> None:
    send(producer, topic)
    with cluster.faults.slow_disk(cluster.leader(topic), 0.2):
        assert elapsed_s(lambda: send(producer, topic)) >= 0.2


def test_a_disk_has_one_fault_at_a_time(cluster: LabCluster) -> None:
    cluster.faults.full_disk(2)
    with pytest.raises(OperatorError, match="already has a fault"):
        cluster.faults.slow_disk(2, 0.1)


def test_a_node_whose_disk_fails_is_replaced(cluster: LabCluster, topic: str, producer: Producer) -> None:
    send(producer, topic)
    leader = cluster.leader(topic)
    with cluster.faults.failing_disk(leader):
        assert send(producer, topic) == 1
        eventually(lambda: cluster.leader(topic) != leader, wait_s=WAIT_S)
    assert cluster.processes.is_running(leader)


def test_a_torn_write_ends_the_node_in_the_middle_of_it(cluster: LabCluster, topic: str, producer: Producer) -> None:
    send(producer, topic)
    leader, mark = cluster.leader(topic), cluster.timeline.mark()
    (segment,) = Path(cluster.root).glob(f"node-{leader}/data/{topic}-0/*.log")
    before = segment.stat().st_size
    with cluster.faults.torn_write(leader, after_bytes=30, path=topic):
        assert send(producer, topic, bytes(500)) == 1
        assert segment.stat().st_size == before + 30
    assert {"torn write", "died", "leader elected", "started"} <= set(kinds(cluster, mark))
    eventually(lambda: segment.stat().st_size > before + 500, "the torn replica has followed", wait_s=WAIT_S)


def test_a_clock_that_is_set_forward_stamps_records(cluster: LabCluster) -> None:
    topic = cluster.create_topic(configs={"message.timestamp.type": "LogAppendTime"})
    with (
        cluster.faults.step_clock(cluster.leader(topic), 3600),
        cluster.faults.step_clock(cluster.leader(topic), 3600),
        Producer(cluster.client_settings) as producer,
    ):
        stamp_ms = producer.send(topic, b"value", partition=0).result(WAIT_S).timestamp
    assert stamp_ms / 1000 - time.time() > 7000
    assert cluster.control(cluster.leader(topic)).faults.clock_ahead_ms == 0


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_node_that_is_gone_comes_back(cluster: LabCluster, topic: str, producer: Producer, how: str) -> None:
    send(producer, topic)
    leader = cluster.leader(topic)
    fault: ActiveFault = getattr(cluster.faults, how)(leader)
    assert not cluster.processes.is_running(leader)
    assert send(producer, topic) == 1
    fault.undo()
    assert cluster.processes.is_running(leader)
    assert not fault.is_active


def test_a_paused_node_goes_on(cluster: LabCluster, topic: str, producer: Producer) -> None:
    leader = cluster.leader(topic)
    with cluster.faults.pause(leader):
        pending = producer.send(topic, b"held", partition=0)
        assert cluster.processes.status_of(leader).state == "paused"
    assert pending.result(WAIT_S).offset == 0


def test_a_slow_node_still_works(cluster: LabCluster, topic: str, producer: Producer) -> None:
    with cluster.faults.slow_cpu(cluster.leader(topic), share=0.2):
        assert send(producer, topic) == 0


# --- faults of faults -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        lambda faults: faults.pause(2),
        lambda faults: faults.kill(2),
        lambda faults: faults.cut(2),
        lambda faults: faults.delay(2, 0.1),
        lambda faults: faults.reset(2),
        lambda faults: faults.full_disk(2),
        lambda faults: faults.step_clock(2, 1),
        lambda faults: faults.slow_cpu(2, share=0.5),
        lambda faults: faults.fail_requests("Fetch", "NOT_LEADER_OR_FOLLOWER", 2),
    ],
)
def test_a_fault_of_a_node_that_is_down_says_so(cluster: LabCluster, fault: Callable[[ClusterFaults], object]) -> None:
    if cluster.processes.is_running(2):
        cluster.faults.kill(2)
    with pytest.raises(OperatorError, match=r"Node 2 is (down|not running)") as error:
        fault(cluster.faults)
    assert "start" in error.value.advice.lower()
    assert len(cluster.faults.active) <= 1


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (lambda faults: faults.kill(9), "There is no node 9"),
        (lambda faults: faults.fail_requests("Prodduce", "NOT_LEADER_OR_FOLLOWER"), "no API of Kafka"),
        (lambda faults: faults.fail_requests("Produce", "NOT_THE_LEADER"), "no error of Kafka"),
        (lambda faults: faults.limit_bandwidth(1, 0), "no bandwidth"),
        (lambda faults: faults.slow_cpu(1, share=1.5), "not a share"),
    ],
)
def test_a_fault_that_makes_no_sense_says_why(
    cluster: LabCluster, fault: Callable[[ClusterFaults], object], reason: str
) -> None:
    with pytest.raises(OperatorError, match=reason):
        fault(cluster.faults)
    assert cluster.faults.active == ()


def test_an_unknown_condition_of_a_request_fault(cluster: LabCluster) -> None:
    with pytest.raises(TypeError, match="topics"):
        cluster.faults.fail_requests("Produce", "NOT_LEADER_OR_FOLLOWER", topics="t")


def test_all_faults_end_together(cluster: LabCluster, topic: str, producer: Producer) -> None:
    faults = cluster.faults
    faults.delay(1, 0.01)
    faults.full_disk(3)
    faults.fail_requests("Produce", "NOT_LEADER_OR_FOLLOWER")
    faults.pause(1)
    faults.kill(2)
    faults.undo_all()
    assert faults.active == ()
    assert all(cluster.processes.status_of(node).state == "running" for node in cluster.nodes)
    assert send(producer, topic) == 0


def test_faults_survive_a_restart_of_the_node(cluster: LabCluster, topic: str, producer: Producer) -> None:
    send(producer, topic)
    leader = cluster.leader(topic)
    with cluster.faults.delay(leader, 0.1, client_id="app"):
        cluster.start_node(leader)
        if cluster.leader(topic) != leader:
            cluster.situations.leader_moved(topic, to=leader)
        send(producer, topic)
        assert elapsed_s(lambda: send(producer, topic)) >= 0.2
