"""Exactly-once copies through three brokers whose processes are killed and paused (transactions.md X68).

The copies share nothing: each has its own source, target, group and transactional id.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import confluent_kafka
import pytest

from fenceline.client import Admin, NewTopic, TopicPartition
from fenceline.local_cluster.cluster import LocalCluster
from fenceline.testing.waiting import eventually
from tests.support import exactly_once_copy
from tests.support.exactly_once_copy import PARTITIONS, SOURCE, TARGET, Copy, LibrdkafkaProcess, OwnCopy, committed
from tests.support.replicated_chaos import GROUPS, SOON_MISSED

pytestmark = [pytest.mark.long, pytest.mark.timeout(600), pytest.mark.usefixtures("quiet_clients")]
RECORDS = 3_000
FAULTS = 6


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    overrides = {"transaction.state.log.replication.factor": "3", "transaction.state.log.min.isr": "2"}
    with LocalCluster(3, overrides={**SOON_MISSED, **GROUPS, **overrides}) as running:
        with Admin(running.bootstrap) as admin:
            topics = [NewTopic(name, PARTITIONS, 3, {"min.insync.replicas": "2"}) for name in (SOURCE, TARGET)]
            admin.create_topics(topics)
        yield running


def fill(cluster: LocalCluster, start: int, count: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    for number in range(start, start + count):
        producer.produce(SOURCE, str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(120) == 0


@pytest.mark.parametrize("copy_of", [LibrdkafkaProcess, OwnCopy], ids=["confluent-kafka", "fenceline"])
def test_every_record_is_copied_once(cluster: LocalCluster, copy_of: type[Copy]) -> None:
    rng = random.Random(exactly_once_copy.PARTITIONS)
    copy = copy_of(cluster.bootstrap, "copy")
    fill(cluster, 0, RECORDS // 2)
    copy.start()
    eventually(lambda: copy.commits > 0, "the copy has begun")
    for fault in range(FAULTS):
        before = copy.commits
        node = rng.choice((1, 2, 3))
        if fault % 3 == 2:
            cluster.pause(node)
            fill(cluster, RECORDS // 2 + fault * 100, 100)
            cluster.resume(node)
        else:
            cluster.kill(node)
            fill(cluster, RECORDS // 2 + fault * 100, 100)
            cluster.restart(node)
        eventually(
            lambda before=before: copy.commits > before,  # type: ignore[misc]
            "the copy goes on",
            wait_s=copy.longest_gap_s,
        )
    total = RECORDS // 2 + FAULTS * 100

    def is_done() -> bool:
        with Admin(cluster.bootstrap) as admin:
            committed = admin.list_group_offsets("copy")
        return [committed[TopicPartition(SOURCE, index)].offset for index in range(PARTITIONS)] == [
            total // PARTITIONS
        ] * PARTITIONS

    eventually(is_done, "everything is copied", wait_s=120)
    copy.finish()
    found = committed(cluster.bootstrap, TARGET)
    for index, numbers in found.items():
        assert numbers == list(range(index, total, PARTITIONS)), copy.errors
