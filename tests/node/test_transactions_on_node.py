"""Transactions of our own client with a running node: read, process, write; restarts in every state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fenceline.client import Admin, CommittedOffset, Consumer, NewTopic, Producer, TopicPartition
from fenceline.client.producer.transaction_errors import ProducerFenced
from fenceline.testing.node import EmbeddedNode

pytestmark = pytest.mark.timeout(120)
SOURCE, TARGET, GROUP = "source", "target", "copy"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[EmbeddedNode]:
    with EmbeddedNode(data_dir=tmp_path) as running:
        with Admin(running.bootstrap) as admin:
            admin.create_topics([NewTopic(SOURCE, 1), NewTopic(TARGET, 2)])
        yield running


def committed_values(node: EmbeddedNode, partition: int = 0) -> list[bytes | None]:
    """What a READ_COMMITTED reader gets up to the last stable offset."""
    where = TopicPartition(TARGET, partition)
    with Consumer(node.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        consumer.assign([where])
        end = consumer.end_offsets([where])[where]
        found: list[bytes | None] = []
        while consumer.position(where) < end:
            found += [record.value for record in consumer.poll(5)]
        return found


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
