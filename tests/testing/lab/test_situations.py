"""Each situation is true when its function returns, and is ruled out with a reason where the settings do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fenceline.client import Consumer, LogTruncationError, Producer, TopicPartition
from fenceline.client.core.errors import OffsetOutOfRangeError
from fenceline.errors import ErrorCode, FencelineError
from fenceline.local_cluster.probe import ask_node
from fenceline.testing.lab.cluster import LabCluster
from fenceline.testing.lab.situations import SituationImpossible
from fenceline.testing.waiting import eventually
from fenceline.wire.apis import ApiKey
from tests.testing.lab.conftest import isr_of

WAIT_S = 30


def write(cluster: LabCluster, topic: str, count: int, stem: str = "value", **settings: object) -> list[int]:
    with Producer({**cluster.client_settings, **settings}) as producer:
        sent = [producer.send(topic, f"{stem}-{number}".encode(), partition=0) for number in range(count)]
        return [each.result(WAIT_S).offset for each in sent]


@contextmanager
def reader(cluster: LabCluster, topic: str, offset: int = 0, **settings: object) -> Iterator[Consumer]:
    """At the offset of partition 0."""
    config = {**cluster.client_settings, "auto.offset.reset": "none", **settings}
    with Consumer(config) as consumer:
        tp = TopicPartition(topic, 0)
        consumer.assign([tp])
        consumer.seek(tp, offset)
        yield consumer


def read(consumer: Consumer, count: int) -> list[bytes | None]:
    values: list[bytes | None] = []

    def all_read() -> bool:
        values.extend(record.value for record in consumer.poll(100, max_records=count - len(values)))
        return len(values) >= count

    eventually(all_read, f"{count} records", wait_s=WAIT_S)
    return values


def poll_until_error(consumer: Consumer) -> None:
    """Raises the error of a poll, which must come."""
    ends_s = time.monotonic() + WAIT_S
    while time.monotonic() < ends_s:
        consumer.poll(100)


# --- elections --------------------------------------------------------------------------------------------------------


def test_an_unclean_election_loses_what_it_says(cluster: LabCluster, topic: str) -> None:
    write(cluster, topic, 3, "kept")
    made = cluster.situations.unclean_election(topic, lose=5)
    assert made.lost_values == [f"lost-{number}".encode() for number in range(5)]
    assert [record.offset for record in made.lost] == [3, 4, 5, 6, 7]
    assert made.divergent_offset == 3
    assert made.new_epoch > made.old_epoch
    assert cluster.leader(topic) == made.new_leader != made.old_leader
    # A replica that was killed may not have written down how far records were committed.
    assert {receipt.loss_class for receipt in made.receipts} <= {"committed", "maybe_acknowledged"}
    assert {receipt.replica for receipt in made.receipts} == set(cluster.nodes) - {made.new_leader}
    write(cluster, topic, 1, "after")
    with reader(cluster, topic) as consumer:
        assert read(consumer, 4) == [b"kept-0", b"kept-1", b"kept-2", b"after-0"]


def test_what_the_application_writes_can_be_lost(cluster: LabCluster) -> None:
    topic = cluster.create_topic(configs={"min.insync.replicas": 2})
    made = cluster.situations.unclean_election(topic, produce=lambda: write(cluster, topic, 2, "mine", acks="all"))
    assert made.lost_values == [b"mine-0", b"mine-1"]
    assert sum(receipt.records for receipt in cluster.losses(topic)) == 2 * len(made.receipts)


def test_a_truncated_position_that_is_valid_again_is_reported(cluster: LabCluster, topic: str) -> None:
    """KIP-320: the position is an offset of another history, which only the epoch tells."""
    write(cluster, topic, 2, "kept")
    with reader(cluster, topic, **{"metadata.max.age.ms": 100}) as consumer:

        def write_and_read() -> None:
            write(cluster, topic, 3, "lost")
            read(consumer, 5)

        made = cluster.situations.unclean_election(topic, produce=write_and_read, then_write=6)
        assert made.written[-1] >= 5
        with pytest.raises(LogTruncationError) as error:
            poll_until_error(consumer)
        assert error.value.divergent_offset == made.divergent_offset == 2


def test_growth_must_reach_the_lost_records(cluster: LabCluster, topic: str) -> None:
    with pytest.raises(SituationImpossible, match="do not reach"):
        cluster.situations.truncation_and_growth(topic, lose=5, grow=4)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"replication_factor": 1}, "has 1 replica"),
        ({"configs": {"min.insync.replicas": 3}}, "min.insync.replicas=3"),
    ],
)
def test_settings_that_rule_out_an_unclean_election(
    cluster: LabCluster, options: dict[str, object], reason: str
) -> None:
    topic = cluster.create_topic(**options)  # type: ignore[arg-type]
    with pytest.raises(SituationImpossible, match=reason) as error:
        cluster.situations.unclean_election(topic)
    assert error.value.advice


def test_a_topic_that_there_is_not(cluster: LabCluster) -> None:
    with pytest.raises(SituationImpossible, match="There is no partition nothing-0"):
        cluster.situations.unclean_election("nothing")


def test_an_isolated_leader_acknowledges_what_is_lost(cluster: LabCluster, topic: str) -> None:
    made = cluster.situations.isolated_leader(topic)
    assert made.new_epoch > made.epoch
    assert cluster.leader(topic) == made.new_leader
    made.fault.undo()
    eventually(
        lambda: made.node in isr_of(cluster, topic),
        "it follows",
        wait_s=WAIT_S,
    )


def test_a_leader_moves(cluster: LabCluster, topic: str) -> None:
    before = cluster.leader(topic)
    other = next(node for node in cluster.nodes if node != before)
    assert cluster.situations.leader_moved(topic, to=other).leader == other
    with pytest.raises(SituationImpossible, match="cannot become the leader"):
        cluster.situations.leader_moved(topic, to=other)


def test_a_leader_that_keeps_moving(cluster: LabCluster, topic: str) -> None:
    fault = cluster.situations.moving_leader(topic)
    assert write(cluster, topic, 20, **{"retry.backoff.ms": 10, "linger.ms": 0}) == list(range(20))
    first = cluster.partition(topic)
    assert first is not None
    eventually(
        lambda: (found := cluster.partition(topic)) is not None and found.leader_epoch > first.leader_epoch,
        "it moves on while no client writes",
        wait_s=WAIT_S,
    )
    fault.undo()


def test_a_broker_with_old_metadata_does_not_know_the_epoch(cluster: LabCluster, topic: str) -> None:
    write(cluster, topic, 1)
    made = cluster.situations.lagging_broker(topic)
    assert made.epoch > made.known_epoch
    asked = {"partition": 0, "current_leader_epoch": made.epoch, "leader_epoch": made.known_epoch}
    place = next(each for each in cluster.processes.layout.brokers if each.node_id == made.node)

    def code() -> ErrorCode:
        fields = {"replica_id": -1, "topics": [{"topic": topic, "partitions": [asked]}]}
        answer = ask_node(place.port or 0, ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, fields, 5, None)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    assert code() is ErrorCode.UNKNOWN_LEADER_EPOCH
    made.fault.undo()
    eventually(lambda: code() is not ErrorCode.UNKNOWN_LEADER_EPOCH, wait_s=WAIT_S)


# --- topics -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["offsets_out_of_range", "expiry"])
def test_offsets_that_are_gone(cluster: LabCluster, topic: str, how: str) -> None:
    write(cluster, topic, 10)
    with reader(cluster, topic) as consumer:
        read(consumer, 2)
        made = getattr(cluster.situations, how)(topic)
        assert (made.log_start, made.end_offset) == (10, 10)
        consumer.seek(TopicPartition(topic, 0), 2)
        with pytest.raises(OffsetOutOfRangeError):
            poll_until_error(consumer)
    entries = cluster.admin.describe_configs([("topic", topic)])["topic", topic]
    assert entries["retention.ms"].value != "1"
    write(cluster, topic, 2)
    assert len(cluster.admin.list_offsets({TopicPartition(topic, 0): "earliest"})) == 1


def test_a_part_of_the_records_is_deleted(cluster: LabCluster, topic: str) -> None:
    write(cluster, topic, 10)
    assert cluster.situations.offsets_out_of_range(topic, before=4).log_start == 4


def test_compacted_topics_neither_expire_nor_lose_a_prefix(cluster: LabCluster) -> None:
    topic = cluster.create_topic(configs={"cleanup.policy": "compact"})
    for situation in (cluster.situations.expiry, cluster.situations.offsets_out_of_range):
        with pytest.raises(SituationImpossible, match=r"cleanup\.policy=compact"):
            situation(topic)


def test_a_topic_is_another_one(cluster: LabCluster) -> None:
    topic = cluster.create_topic(partitions=2, configs={"retention.ms": "12345678"})
    write(cluster, topic, 3)
    made = cluster.situations.topic_recreated(topic, write=2)
    assert made.old_id != made.new_id
    assert made.old_end_offsets == (3, 0)
    entries = cluster.admin.describe_configs([("topic", topic)])["topic", topic]
    assert entries["retention.ms"].value == "12345678"
    with reader(cluster, topic) as consumer:
        assert read(consumer, 2) == list(made.written)


# --- groups -----------------------------------------------------------------------------------------------------------


class Application:
    """A consumer of a group in a thread."""

    def __init__(self, cluster: LabCluster, topic: str, **settings: object) -> None:
        self.group = f"group-of-{topic}"
        self.errors: list[FencelineError] = []
        self.values: list[bytes | None] = []
        self._cluster = cluster
        self._stopped = threading.Event()
        config = {
            **cluster.client_settings,
            "client.id": "app",
            "group.id": self.group,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 50,
            **settings,
        }
        if "group.protocol" not in settings:
            config["heartbeat.interval.ms"] = 100
        self._thread = threading.Thread(target=self._run, args=(topic, config))
        self._thread.start()
        eventually(lambda: self.state == "Stable", wait_s=WAIT_S)

    @property
    def state(self) -> str:
        return self._cluster.admin.describe_groups([self.group])[self.group].state

    def committed(self, topic: str) -> int:
        found = self._cluster.admin.list_group_offsets(self.group)
        return max((each.offset for tp, each in found.items() if tp.topic == topic), default=-1)

    def _run(self, topic: str, config: dict[str, object]) -> None:
        with Consumer(config) as consumer:
            consumer.subscribe([topic])
            while not self._stopped.is_set():
                try:
                    self.values += [record.value for record in consumer.poll(20)]
                except FencelineError as error:
                    self.errors.append(error)

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()


@pytest.fixture
def application(cluster: LabCluster, topic: str) -> Iterator[Application]:
    running = Application(cluster, topic)
    yield running
    running.close()


def test_a_coordinator_moves(cluster: LabCluster, topic: str, application: Application) -> None:
    made = cluster.situations.coordinator_moved(application.group)
    assert made.new != made.old
    write(cluster, topic, 3)
    eventually(lambda: application.committed(topic) == 3, wait_s=WAIT_S)


@pytest.mark.parametrize("handled", [True, False])
def test_a_lost_commit(cluster: LabCluster, topic: str, application: Application, handled: bool) -> None:
    made = cluster.situations.lost_commit(application.group, handled=handled)
    write(cluster, topic, 3)
    made.fault.wait_hits(wait_s=WAIT_S)
    eventually(lambda: application.committed(topic) == 3, "a later commit", wait_s=WAIT_S)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_rebalance_storm_passes(cluster: LabCluster, topic: str, protocol: str) -> None:
    application = Application(cluster, topic, **({"group.protocol": protocol} if protocol == "consumer" else {}))
    try:
        assert cluster.situations.rebalance_storm(application.group, members=2, rounds=2).joined == 4
        eventually(lambda: application.state == "Stable", wait_s=WAIT_S)
        write(cluster, topic, 3)
        eventually(lambda: len(application.values) >= 3, wait_s=WAIT_S)
    finally:
        application.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_zombie_member_is_removed_and_returns(cluster: LabCluster, topic: str, protocol: str) -> None:
    application = Application(cluster, topic, **({"group.protocol": protocol} if protocol == "consumer" else {}))
    try:
        made = cluster.situations.zombie_member(application.group)
        assert made.client_id == "app"
        write(cluster, topic, 3)
        eventually(lambda: application.committed(topic) == 3, wait_s=WAIT_S)
        members = cluster.admin.describe_groups([application.group])[application.group].members
        assert len(members) == 1
    finally:
        application.close()


def test_groups_that_rule_a_situation_out(cluster: LabCluster, application: Application) -> None:
    for situation in (cluster.situations.rebalance_storm, cluster.situations.zombie_member):
        with pytest.raises(SituationImpossible, match="no members"):
            situation("nobody")
    with pytest.raises(SituationImpossible, match="no member with client id other"):
        cluster.situations.zombie_member(application.group, client_id="other")


# --- transactions and records -----------------------------------------------------------------------------------------


def test_aborted_records_are_in_the_log_and_are_not_read(cluster: LabCluster, topic: str) -> None:
    made = cluster.situations.aborted_transaction(topic, values=[b"a", b"b"])
    assert made.offsets == (0, 1)
    write(cluster, topic, 1, "after")
    with reader(cluster, topic) as consumer:
        assert read(consumer, 3) == [b"a", b"b", b"after-0"]
    with reader(cluster, topic, **{"isolation.level": "read_committed"}) as consumer:
        assert read(consumer, 1) == [b"after-0"]


def test_a_hanging_transaction_blocks_committed_reads_until_it_ends(cluster: LabCluster, topic: str) -> None:
    write(cluster, topic, 1, "before")
    made = cluster.situations.hanging_transaction(topic)
    assert made.first_offset == 1
    write(cluster, topic, 1, "after")
    tp = TopicPartition(topic, 0)

    def stable() -> int:
        return cluster.admin.list_offsets({tp: "latest"}, isolation_level="read_committed")[tp].offset

    assert stable() == 1
    made.fault.undo()
    eventually(lambda: stable() == 4, wait_s=WAIT_S)


def test_a_zombie_producer_is_fenced(cluster: LabCluster, topic: str) -> None:
    name = f"tx-{topic}"
    with Producer({**cluster.client_settings, "transactional.id": name}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"value", partition=0)
        producer.flush()
        assert cluster.situations.zombie_producer(name).transactional_id == name
        with pytest.raises(FencelineError):
            producer.commit_transaction()


def test_a_poison_record(cluster: LabCluster, topic: str) -> None:
    made = cluster.situations.poison_record(topic)
    assert made.value is not None
    with pytest.raises(UnicodeDecodeError):
        made.value.decode()
    with reader(cluster, topic) as consumer:
        assert read(consumer, 1) == [made.value]


def test_a_damaged_batch_is_rejected_by_the_client(cluster: LabCluster, topic: str) -> None:
    with pytest.raises(SituationImpossible, match="has no records"):
        cluster.situations.damaged_batch(topic)
    write(cluster, topic, 3)
    made = cluster.situations.damaged_batch(topic)
    with reader(cluster, topic) as consumer:
        with pytest.raises(FencelineError):
            poll_until_error(consumer)
        made.fault.undo()
        consumer.seek(TopicPartition(topic, 0), 0)
        assert len(read(consumer, 3)) == 3


def test_the_disk_of_a_leader_is_full(cluster: LabCluster, topic: str) -> None:
    fault = cluster.situations.full_disk(topic)
    with Producer(cluster.client_settings) as producer:
        pending = producer.send(topic, b"value", partition=0)
        leader = cluster.leader(topic)
        eventually(lambda: "no space left" in cluster.log(leader), wait_s=WAIT_S)
        assert not pending.done()
        fault.undo()
        pending.result(WAIT_S)
