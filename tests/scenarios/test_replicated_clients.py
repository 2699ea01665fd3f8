"""Third-party clients continue when leaders are killed: no record is lost, duplicated or reordered.

Three brokers, three replicas, min.insync.replicas=2, acks=all, idempotent producers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest

from fenceline.client.admin.admin import Admin
from fenceline.local_cluster.cluster import LocalCluster
from fenceline.testing.apache_kafka import run_tool
from fenceline.testing.history import History
from fenceline.testing.history_checks import check, summary
from fenceline.testing.waiting import eventually
from tests.support.replicated_chaos import GROUPS, SOON_MISSED, all_in_sync, create, ends, finish
from tests.support.replicated_groups import GroupLedger, KafkaPythonMember, LibrdkafkaMember, OwnMember
from tests.support.replicated_readers import AiokafkaReader, KafkaPythonReader, LibrdkafkaReader, OwnReader, Reader
from tests.support.replicated_senders import AiokafkaSender, KafkaPythonSender, LibrdkafkaSender, OwnSender, Sender
from tests.support.running_tool import RunningTool

pytestmark = [pytest.mark.long, pytest.mark.timeout(300), pytest.mark.usefixtures("quiet_clients")]

PARTITIONS: Final = 3
KILLS: Final = 2
_names = itertools.count()


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    name = f"clients-{next(_names)}"
    create(cluster.bootstrap, topic=name, partitions=PARTITIONS)
    eventually(lambda: all_in_sync(cluster.bootstrap, name), "the topic is there")
    return name


def leader_of(cluster: LocalCluster, topic: str, partition: int) -> int:
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        return admin.metadata([topic]).topics[topic].partitions[partition].leader


def read_everything(cluster: LocalCluster, history: History, topic: str) -> None:
    """Read the final log into the history, committed records only."""
    aside = History()
    reader = LibrdkafkaReader(cluster.bootstrap, aside, topic, PARTITIONS)
    reader.start()
    assert reader.finish(ends(cluster.bootstrap, topic, PARTITIONS)) == []
    for partition, polls in aside.consumers[0].polls.items():
        seen = [(o, v) for o, v in zip(polls.offsets, polls.values, strict=True) if o >= 0]
        history.log("end", partition, (offset for offset, _ in seen), (value for _, value in seen))


@pytest.mark.parametrize(
    ("sender_of", "reader_of"),
    [
        pytest.param(LibrdkafkaSender, LibrdkafkaReader, id="confluent-kafka"),
        pytest.param(KafkaPythonSender, KafkaPythonReader, id="kafka-python"),
        pytest.param(AiokafkaSender, AiokafkaReader, id="aiokafka"),
        pytest.param(OwnSender, OwnReader, id="fenceline"),
    ],
)
def test_a_client_continues_when_leaders_are_killed(
    cluster: LocalCluster, topic: str, sender_of: type[Sender], reader_of: type[Reader]
) -> None:
    history = History()
    where = (cluster.bootstrap, history, topic, PARTITIONS)
    sender, reader = sender_of(*where, 300), reader_of(*where)
    sender.start()
    reader.start()
    for number in range(KILLS):
        sender.await_more(20)
        node = leader_of(cluster, topic, number % PARTITIONS)
        cluster.kill(node)
        sender.await_more(20)
        cluster.restart(node)
        eventually(lambda: all_in_sync(cluster.bootstrap, topic), "all replicas are in sync", wait_s=120)
    verdict = finish(cluster, [sender], [reader], topic=topic, partitions=PARTITIONS)
    read_everything(cluster, history, topic)
    assert summary(check(history)) == ""
    assert verdict.given_up == []
    assert verdict.troubles == []
    assert verdict.truncations == 0


def test_clients_recover_when_the_whole_cluster_was_killed(cluster: LocalCluster, topic: str) -> None:
    """During the restart brokers answer while they know of no live broker."""
    history = History()
    where = (cluster.bootstrap, history, topic, PARTITIONS)
    senders = [LibrdkafkaSender(*where, 100), KafkaPythonSender(*where, 100), OwnSender(*where, 100)]
    readers = [LibrdkafkaReader(*where), KafkaPythonReader(*where), AiokafkaReader(*where), OwnReader(*where)]
    for each in (*senders, *readers):
        each.start()
    for sender in senders:
        sender.await_more(20)
    nodes = [place.node_id for place in cluster.layout.nodes]
    for node in nodes:
        cluster.kill(node)
    with ThreadPoolExecutor(len(nodes)) as pool:
        list(pool.map(cluster.restart, nodes))
    for sender in senders:
        sender.await_more(20)
    verdict = finish(cluster, senders, readers, topic=topic, partitions=PARTITIONS)
    read_everything(cluster, history, topic)
    assert summary(check(history)) == ""
    assert verdict.given_up == []
    assert verdict.troubles == []
    assert verdict.truncations == 0


def test_commits_of_a_group_survive_a_kill_of_its_coordinator(cluster: LocalCluster, topic: str) -> None:
    """An acknowledged commit is on all in-sync replicas of the offsets topic."""
    group = f"group-{topic}"
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": group, "enable.auto.commit": False, "log_level": 0}
    partition = confluent_kafka.TopicPartition(topic, 0)
    reported = 0
    for _ in range(KILLS):
        node = eventually(lambda: _coordinator(cluster, group), "the group has a coordinator")
        committing = confluent_kafka.Consumer(settings)

        def commit(offset: int, consumer: confluent_kafka.Consumer = committing) -> bool:
            at = confluent_kafka.TopicPartition(topic, 0, offset)
            try:
                answer = consumer.commit(offsets=[at], asynchronous=False)
            except confluent_kafka.KafkaException:
                return False
            assert answer is not None
            return answer[0].error is None

        for _ in range(50):
            wanted = reported + 1
            eventually(lambda wanted=wanted: commit(wanted), "a commit is answered")  # type: ignore[misc]
            reported = wanted
        cluster.kill(node)
        committing.close()
        reading = confluent_kafka.Consumer(settings)

        def committed(consumer: confluent_kafka.Consumer = reading) -> int | None:
            try:
                found = consumer.committed([partition], timeout=5)[0]
            except confluent_kafka.KafkaException:
                return None
            return found.offset if found.error is None else None

        assert eventually(committed, "the committed offset is returned", wait_s=120) == reported
        reading.close()
        cluster.restart(node)
        eventually(lambda: all_in_sync(cluster.bootstrap, "__consumer_offsets"), "all are in sync", wait_s=120)


def test_a_group_waits_for_a_coordinator_without_replicas() -> None:
    """As with Kafka: no other broker has the committed offsets, so none answers for the group."""
    overrides = {**SOON_MISSED, **GROUPS, "offsets.topic.replication.factor": "1"}
    with LocalCluster(3, overrides=overrides) as cluster:
        create(cluster.bootstrap, topic="alone", partitions=1)
        node = eventually(lambda: _coordinator(cluster, "g"), "the group has a coordinator")
        consumer = confluent_kafka.Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", "log_level": 0})
        at = confluent_kafka.TopicPartition("alone", 0, 5)

        def is_committed(ask: Callable[[], Sequence[confluent_kafka.TopicPartition] | None]) -> bool:
            try:
                reported = ask()
            except confluent_kafka.KafkaException:
                return False
            return reported is not None and reported[0].error is None and reported[0].offset == 5

        eventually(lambda: is_committed(lambda: consumer.commit(offsets=[at], asynchronous=False)), "it is committed")
        cluster.kill(node)
        assert not is_committed(lambda: consumer.committed([at], timeout=5))
        cluster.restart(node)
        eventually(
            lambda: is_committed(lambda: consumer.committed([at], timeout=5)), "it is returned again", wait_s=120
        )
        consumer.close()


def test_a_group_survives_a_kill_of_its_coordinator(cluster: LocalCluster, topic: str) -> None:
    """Members of three client libraries stay in the group: none starts below the committed offset or skips a record."""
    history = History()
    ledger = GroupLedger(topic, PARTITIONS)
    sender = LibrdkafkaSender(cluster.bootstrap, history, topic, PARTITIONS, 300)
    where = (cluster.bootstrap, history, ledger)
    members = [LibrdkafkaMember(*where), KafkaPythonMember(*where), OwnMember(*where)]
    for each in (sender, *members):
        each.start()
    for _ in range(KILLS):
        _await_commits(ledger, sender)
        node = eventually(lambda: _coordinator(cluster, ledger.group), "the group has a coordinator")
        cluster.kill(node)
        _await_commits(ledger, sender)
        cluster.restart(node)
        for each in (topic, "__consumer_offsets"):
            eventually(lambda name=each: all_in_sync(cluster.bootstrap, name), "all are in sync", wait_s=120)  # type: ignore[misc]
    sender.finish()
    reached = ends(cluster.bootstrap, topic, PARTITIONS)
    ledger.await_all(reached)
    for member in members:
        member.finish()
    read_everything(cluster, history, topic)
    assert summary(check(history)) == ""
    assert ledger.complaints(reached) == []
    assert sender.given_up == []


def _await_commits(ledger: GroupLedger, sender: Sender) -> None:
    """Wait until the group has committed a higher offset of every partition."""
    wanted = {partition: each + 1 for partition, each in ledger.committed().items()}
    eventually(lambda: ledger.reached(wanted), "more of each partition is committed", wait_s=120)
    assert sender.failure is None


def _coordinator(cluster: LocalCluster, group: str) -> int | None:
    """The broker that leads the one partition of the offsets topic."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, "log_level": 0})
    try:
        consumer.committed([confluent_kafka.TopicPartition("none", 0)], timeout=5)
    except confluent_kafka.KafkaException:
        return None
    finally:
        consumer.close()
    found = leader_of(cluster, "__consumer_offsets", 0)
    return found if found >= 0 else None


# --- Kafka's own tools --------------------------------------------------------------------------------------------


@pytest.mark.kafka
def test_kafkas_verifiable_tools_continue_when_leaders_are_killed(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    history = History()
    producer = history.producer("VerifiableProducer")
    settings = tmp_path / "producer.properties"
    settings.write_text("retries=2147483647\ndelivery.timeout.ms=280000\nrequest.timeout.ms=10000\n")
    writing = RunningTool(
        "org.apache.kafka.tools.VerifiableProducer",
        *("--bootstrap-server", cluster.bootstrap, "--topic", topic, "--throughput", "200", "--acks", "-1"),
        *("--command-config", str(settings)),
    )
    reading = RunningTool(
        "org.apache.kafka.tools.VerifiableConsumer",
        *("--bootstrap-server", cluster.bootstrap, "--topic", topic, "--group-id", f"group-{topic}", "--verbose"),
        *("--group-protocol", "classic", "--reset-policy", "earliest"),
    )
    try:
        for number in range(KILLS):
            _await_more_lines(writing, "producer_send_success", 200)
            node = leader_of(cluster, topic, number % PARTITIONS)
            cluster.kill(node)
            _await_more_lines(writing, "producer_send_success", 200)
            cluster.restart(node)
            eventually(lambda: all_in_sync(cluster.bootstrap, topic), "all replicas are in sync", wait_s=120)
    finally:
        writing.end()
    reached = ends(cluster.bootstrap, topic, PARTITIONS)
    try:
        eventually(
            lambda: len({_place(each) for each in reading.events("record_data")}) >= sum(reached.values()),
            "the consumer has all",
            wait_s=120,
        )
    finally:
        reading.end()
    for each in writing.events("producer_send_success"):
        partition = (topic, int(each["partition"]))
        producer.sent(partition, int(each["value"]))
        producer.acknowledged(partition, int(each["value"]), int(each["offset"]))
    assert writing.events("producer_send_error") == []
    consumer = history.consumer("VerifiableConsumer")
    for each in reading.events():
        match each["name"]:
            case "partitions_assigned":  # continues at the committed offset
                consumer = history.consumer("VerifiableConsumer")
            case "record_data":
                consumer.polled((topic, int(each["partition"])), int(each["offset"]), int(each["value"]))
    read_everything(cluster, history, topic)
    assert summary(check(history)) == ""


def _place(event: dict[str, Any]) -> tuple[int, int]:
    return int(event["partition"]), int(event["offset"])


def _await_more_lines(tool: RunningTool, name: str, count: int) -> None:
    wanted = len(tool.events(name)) + count

    def look() -> bool:
        if not tool.is_running:
            raise RuntimeError("\n".join(tool.lines[-20:]))
        return len(tool.events(name)) >= wanted

    eventually(look, f"{count} more of {name}", wait_s=120, step_s=0.2)


@pytest.mark.kafka
def test_kafkas_console_tools_continue_when_leaders_are_killed(cluster: LocalCluster, topic: str) -> None:
    count = 2_000
    writing = RunningTool(
        "org.apache.kafka.tools.ConsoleProducer",
        *("--bootstrap-server", cluster.bootstrap, "--topic", topic),
        *("--command-property", "delivery.timeout.ms=280000", "--request-required-acks", "-1"),
    )
    node = 0
    for number in range(count):
        writing.say(str(number))
        if number == count // 2:
            eventually(lambda: sum(ends(cluster.bootstrap, topic, PARTITIONS).values()) > 0, "it writes")
            node = leader_of(cluster, topic, 0)
            cluster.kill(node)
    assert writing.end(by_eof=True) == 0, writing.lines
    cluster.restart(node)
    printed = run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", cluster.bootstrap, "--topic", topic, "--from-beginning"),
        *("--max-messages", str(count), "--timeout-ms", "60000"),
    )
    read = [int(line) for line in printed.splitlines() if line.isdigit()]
    assert sorted(read) == list(range(count))
    assert sum(ends(cluster.bootstrap, topic, PARTITIONS).values()) == count
