"""Transactions of our own client with a running node: read, process, write; restarts in every state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from fenceline.client import Admin, CommittedOffset, NewTopic, Producer, TopicPartition
from fenceline.client.producer.transaction_errors import ProducerFenced
from fenceline.testing.apache_kafka import free_port
from fenceline.testing.node import EmbeddedNode
from tests.support.read_to_end import read_to_end

pytestmark = pytest.mark.timeout(120)
SOURCE, TARGET, GROUP = "source", "target", "copy"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[EmbeddedNode]:
    with EmbeddedNode(data_dir=tmp_path) as running:
        with Admin(running.bootstrap) as admin:
            admin.create_topics([NewTopic(SOURCE, 1), NewTopic(TARGET, 2)])
        yield running


def committed_values(node: EmbeddedNode, partition: int = 0) -> list[bytes | None]:
    """What a READ_COMMITTED reader gets."""
    return [record.value for record in read_to_end(node.bootstrap, [TopicPartition(TARGET, partition)])]


def committed_offset(node: EmbeddedNode) -> CommittedOffset | None:
    with Admin(node.bootstrap) as admin:
        return admin.list_group_offsets(GROUP).get(TopicPartition(SOURCE, 0))


def test_offsets_and_records_end_together(node: EmbeddedNode) -> None:
    """transactions.md X50, epochs.md E61: the epoch of the last consumed record is stored with the offset."""
    with Producer(node.bootstrap, transactional_id="copy") as producer:
        producer.init_transactions()
        for commit in (False, True):
            producer.begin_transaction()
            producer.send(TARGET, b"aborted" if not commit else b"a", partition=0)
            producer.send(TARGET, b"aborted" if not commit else b"b", partition=1)
            producer.send_offsets_to_transaction(
                {TopicPartition(SOURCE, 0): CommittedOffset(5, leader_epoch=0, metadata="m")}, GROUP
            )
            if commit:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
                assert committed_offset(node) is None
    assert committed_values(node, 0) == [b"a"]
    assert committed_values(node, 1) == [b"b"]
    found = committed_offset(node)
    assert found is not None
    assert (found.offset, found.leader_epoch, found.metadata) == (5, 0, "m")


def test_a_second_producer_fences_the_first(node: EmbeddedNode) -> None:
    """transactions.md X10: what the first one left open is aborted."""
    with Producer(node.bootstrap, transactional_id="copy") as zombie:
        zombie.init_transactions()
        zombie.begin_transaction()
        zombie.send(TARGET, b"lost", partition=0).result()
        with Producer(node.bootstrap, transactional_id="copy") as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send(TARGET, b"kept", partition=0)
            with pytest.raises(ProducerFenced):
                zombie.commit_transaction()
    assert committed_values(node) == [b"kept"]


def commit(producer: Producer) -> None:
    producer.commit_transaction()


def abort(producer: Producer) -> None:
    producer.abort_transaction()


@pytest.mark.parametrize("end", [commit, abort])
def test_a_transaction_survives_a_clean_restart(node: EmbeddedNode, end: Callable[[Producer], None]) -> None:
    """transactions.md X23: the coordinator loads its topic, the partition its producers."""
    with Producer(node.bootstrap, transactional_id="copy") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(TARGET, b"a", partition=0).result()
        node.stop()
        node.start()
        producer.send(TARGET, b"b", partition=1)
        end(producer)
    expected = [[b"a"], [b"b"]] if end is commit else [[], []]
    assert [committed_values(node, index) for index in (0, 1)] == expected


def test_an_uncleanly_elected_leader_has_open_transactions_aborted_everywhere(node: EmbeddedNode) -> None:
    """transactions.md X61, X62: a node that was killed may have lost records of its only replica. Its coordinator
    aborts the transaction; a marker by the leader alone would tear it."""
    with Producer(node.bootstrap, transactional_id="copy") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for partition in (0, 1):
            producer.send(TARGET, b"torn", partition=partition).result()
        node.kill()
        node.start()
        with pytest.raises(ProducerFenced):
            producer.commit_transaction()
    with Producer(node.bootstrap, transactional_id="copy") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send(TARGET, b"next", partition=0)
    assert [committed_values(node, index) for index in (0, 1)] == [[b"next"], []]


def test_metrics_of_the_coordinator(tmp_path: Path) -> None:
    """transactions.md X59. Ids are counted by state, and a restart's loads are timed."""
    metrics_port = free_port()
    overrides = {"fenceline.metrics.port": str(metrics_port), "transaction.state.log.num.partitions": "2"}
    with EmbeddedNode(data_dir=tmp_path, overrides=overrides) as node:
        with Admin(node.bootstrap) as admin:
            admin.create_topics([NewTopic(TARGET, 2)])
        producers = [Producer(node.bootstrap, transactional_id=f"copy {number}") for number in range(3)]
        for producer in producers:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(TARGET, b"a", partition=0).result()
        producers[0].commit_transaction()
        producers[1].abort_transaction()
        counted = "fenceline_transactional_ids"
        found = scraped(metrics_port)
        assert found[f'{counted}{{state="Ongoing"}}'] == 1
        assert found[f'{counted}{{state="Empty"}}'] == 0
        assert sum(value for name, value in found.items() if name.startswith(counted)) == 3
        assert found["fenceline_transaction_markers_waiting"] == 0
        assert found["fenceline_transaction_recovery_partitions"] == 0
        assert found["fenceline_transaction_state_load_seconds_count"] == 2
        for producer in producers:
            producer.close()


def scraped(port: int) -> dict[str, float]:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}
