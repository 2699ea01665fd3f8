"""Transactions of our producer on real brokers, with the protocols of transaction.version 2 and below."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator

import pytest
from confluent_kafka import Consumer as ConfluentConsumer

from fenceline.client import (
    Admin,
    CommittedOffset,
    Consumer,
    NewTopic,
    Producer,
    ProducerFenced,
    TransactionAbortable,
    TransactionFailed,
    TransactionHandle,
    TransactionOwner,
    transaction_writer,
)
from fenceline.client.producer.transaction_requests import TransactionRequests
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TopicPartition
from fenceline.testing.waiting import eventually
from tests.support.read_to_end import read_to_end

pytestmark = pytest.mark.kafka
Unique = Callable[[str], str]


@pytest.fixture
def broker(kafka_bootstrap: str) -> str:
    return kafka_bootstrap


@pytest.fixture(params=[2, 1], ids=["version2", "version1"])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The protocol that the producer uses: a broker accepts the older one at every level (X27)."""
    if request.param == 1:
        monkeypatch.setattr(TransactionRequests, "is_version_2", lambda self: False)
    return int(request.param)


@pytest.fixture
def topic(broker: str, unique: Unique) -> Iterator[str]:
    name = unique("transactions")
    with Admin(broker) as admin:
        admin.create_topics([NewTopic(name, 3, 1, {})])
        eventually(lambda: admin.describe_configs([("topic", name)]), f"{name} described")
        yield name


def _read(broker: str, topic: str, level: str = "read_committed") -> dict[int, list[bytes | None]]:
    """All values of each partition at this isolation level. No transaction is open."""
    tps = [TopicPartition(topic, index) for index in range(3)]
    found: dict[int, list[bytes | None]] = {tp.partition: [] for tp in tps}
    for record in read_to_end(broker, tps, level):
        found[record.partition].append(record.value)
    return found


def test_only_committed_records_are_visible(broker: str, topic: str, unique: Unique, version: int) -> None:
    rng = random.Random(version)
    committed: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    everything: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    with Producer(broker, transactional_id=unique("id"), linger_ms=0, batch_size=300) as producer:
        producer.init_transactions()
        for number in range(30):
            producer.begin_transaction()
            wanted = [(rng.randrange(3), b"%d:%d" % (number, index)) for index in range(rng.randrange(12))]
            for partition, value in wanted:
                producer.send(topic, value, partition=partition)
            if keep := rng.random() < 0.6:
                producer.commit_transaction()
            else:
                producer.flush()
                producer.abort_transaction()
            for partition, value in wanted:
                everything[partition].append(value)
                if keep:
                    committed[partition].append(value)
    assert _read(broker, topic) == committed
    assert _read(broker, topic, "read_uncommitted") == everything


def test_offsets_become_visible_with_their_epochs_by_the_commit(
    broker: str, topic: str, unique: Unique, version: int
) -> None:
    tp, group = TopicPartition(topic, 0), unique("group")
    with Producer(broker, transactional_id=unique("id")) as producer, Admin(broker) as admin:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_offsets_to_transaction({tp: CommittedOffset(1, 0, "first")}, group)
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send(topic, b"a", partition=0)
        producer.send_offsets_to_transaction({tp: CommittedOffset(2, 0, "second")}, group)
        producer.commit_transaction()
        assert admin.list_group_offsets(group) == {tp: CommittedOffset(2, 0, "second")}


def test_a_member_of_a_group_copies_exactly_once(broker: str, topic: str, unique: Unique, version: int) -> None:
    """Reads, writes and commits in one transaction; half of the transactions are aborted, and then read again."""
    target, group, values = topic, unique("group"), [b"%03d" % index for index in range(100)]
    source = unique("source")
    with Admin(broker) as admin:
        admin.create_topics([NewTopic(source, 1, 1, {})])
    with Producer(broker) as plain:
        for value in values:
            plain.send(source, value)
    tp, number = TopicPartition(source, 0), 0
    config = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False, "max.poll.records": 10}
    with (
        Consumer(broker, **config, **{"isolation.level": "read_committed"}) as consumer,
        Producer(broker, transactional_id=unique("id")) as producer,
    ):
        producer.init_transactions()
        consumer.subscribe([source])
        copied = 0
        while copied < len(values):
            records = consumer.poll(500)
            if not records:
                continue
            number += 1
            producer.begin_transaction()
            for record in records:
                producer.send(target, record.value, partition=0)
            assert consumer.group_metadata().generation_id >= 1
            producer.send_offsets_to_transaction(records.next_offsets(), consumer.group_metadata())
            if number % 2:
                producer.abort_transaction()
                found = consumer.committed([tp])[tp]
                consumer.seek(tp, CommittedOffset(0) if found is None else found)
            else:
                producer.commit_transaction()
                copied += len(records)
    assert _read(broker, target)[0] == values
    # Another client sees the same.
    other = ConfluentConsumer({"bootstrap.servers": broker, "group.id": group})
    from confluent_kafka import TopicPartition as Theirs

    ((found,),) = [other.committed([Theirs(source, 0)], 30)]
    other.close()
    assert found.offset == len(values)


def test_a_former_member_cannot_commit(broker: str, topic: str, unique: Unique, version: int) -> None:
    group = unique("group")
    with Producer(broker, transactional_id=unique("id")) as producer:
        producer.init_transactions()
        config = {"group.id": group, "auto.offset.reset": "earliest"}
        with Consumer(broker, **config) as consumer:
            consumer.subscribe([topic])
            eventually(lambda: consumer.poll(200) == [] and consumer.assignment(), "an assignment")
            member = consumer.group_metadata()
        producer.begin_transaction()
        with pytest.raises(TransactionAbortable):
            producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, member)
        producer.abort_transaction()
        with producer.transaction():
            producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, group)


def test_the_older_of_two_producers_is_fenced(broker: str, topic: str, unique: Unique, version: int) -> None:
    key = unique("id")
    with Producer(broker, transactional_id=key) as older, Producer(broker, transactional_id=key) as newer:
        older.init_transactions()
        older.begin_transaction()
        older.send(topic, b"lost", partition=0).result(60)
        newer.init_transactions()
        with newer.transaction():
            newer.send(topic, b"kept", partition=0)
        with pytest.raises(PeerError):
            older.send(topic, b"too late", partition=0).result(60)
        with pytest.raises((TransactionAbortable, ProducerFenced)):
            older.commit_transaction()
        with pytest.raises(ProducerFenced):
            older.abort_transaction()
    assert _read(broker, topic)[0] == [b"kept"]


def test_a_rejected_record_aborts_one_transaction_only(broker: str, topic: str, unique: Unique, version: int) -> None:
    with Producer(broker, transactional_id=unique("id"), **{"max.request.size": 5_000_000}) as producer:
        producer.init_transactions()
        for value in (b"a", b"b"):
            producer.begin_transaction()
            producer.send(topic, b"aborted", partition=0)
            producer.send(topic, bytes(2_000_000), partition=1)
            with pytest.raises(TransactionAbortable, match=r"max\.message\.bytes"):
                producer.commit_transaction()
            producer.abort_transaction()
            with producer.transaction():
                producer.send(topic, value, partition=0)
                producer.send(topic, value, partition=1)
    found = _read(broker, topic)
    assert (found[0], found[1]) == ([b"a", b"b"], [b"a", b"b"])


def test_tables_are_written_in_transactions(broker: str, topic: str, unique: Unique, version: int) -> None:
    import pyarrow as pa

    table = pa.table({"value": pa.array([b"%d" % index for index in range(1000)], pa.binary())})
    config = {"compression.type": "zstd", "batch.size": 1000}
    with Producer(broker, transactional_id=unique("id"), **config) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send_arrow(table, topic, partition=2)
        producer.begin_transaction()
        producer.send_arrow(table, topic, partition=2).result(60)
        producer.abort_transaction()
    assert _read(broker, topic)[2] == table["value"].to_pylist()


def test_a_transaction_that_takes_too_long_is_fenced_by_the_coordinator(
    broker: str, topic: str, unique: Unique
) -> None:
    """The coordinator looks every ten seconds. It answers a late commit with 48 or 90 (X19)."""
    with Producer(broker, transactional_id=unique("id"), **{"transaction.timeout.ms": 100}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"late", partition=0).result(60)
        tp = TopicPartition(topic, 0)
        with Consumer(broker, **{"isolation.level": "read_committed"}) as consumer:
            eventually(lambda: consumer.end_offsets([tp])[tp] == 2, "the abort marker")
        with pytest.raises(TransactionFailed, match=r"transaction\.timeout\.ms"):
            producer.commit_transaction()
    assert _read(broker, topic)[0] == []


def test_an_invalid_timeout_is_rejected_with_advice(broker: str, unique: Unique) -> None:
    with (
        Producer(broker, transactional_id=unique("id"), **{"transaction.timeout.ms": 2_000_000_000}) as producer,
        pytest.raises(TransactionFailed, match=r"transaction\.max\.timeout\.ms"),
    ):
        producer.init_transactions()


def test_writers_of_other_processes_and_their_owner(broker: str, topic: str, unique: Unique) -> None:
    """Batches of an exactly-once sink: some are aborted, some by a next owner; replays are skipped by the progress."""
    key, at = unique("query"), TopicPartition(topic, 0)
    config = {"linger.ms": 0, "batch.size": 200}

    def write(handle: TransactionHandle, batch: int, partitions: Collection[int] = (0, 1, 2)) -> None:
        for partition in partitions:
            with transaction_writer(broker, handle, **config) as writer:
                for index in range(20):
                    writer.send(topic, b"%d:%d" % (batch, index), partition=partition)

    with TransactionOwner(broker, key) as owner:
        handle = owner.begin()
        assert owner.progress([at]) == {}
        write(handle, 0)
        handle = owner.commit(handle, {at: CommittedOffset(0, -1, "query 0")})
        write(handle, 1, [0, 1])
        handle = owner.abort(handle)
        write(handle, 1)
        zombie = handle
    with TransactionOwner(broker, key) as owner:
        # The owner died before its commit: everything of batch 1 is aborted.
        handle = owner.begin()
        assert owner.progress([at]) == {at: CommittedOffset(0, -1, "query 0")}
        write(handle, 1)
        with pytest.raises((TransactionAbortable, ProducerFenced)):
            write(zombie, 1, [2])
        with pytest.raises(TransactionAbortable) as caught, transaction_writer(broker, handle, **config) as writer:
            writer.send(topic, b"a second writer, with another batch", partition=1)
        assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        handle = owner.abort(handle)
        write(handle, 1)
        handle, before = owner.commit(handle, {at: CommittedOffset(1, -1, "query 1")}), handle
        assert owner.progress([at])[at].offset == 1
        # The commit is repeated because its answer was lost: EndTxn is answered again, and nothing more is committed.
        with pytest.raises(TransactionFailed):
            owner.commit(before, {at: CommittedOffset(9)})
        assert owner.progress([at])[at].offset == 1
    expected = [b"%d:%d" % (batch, index) for batch in (0, 1) for index in range(20)]
    assert _read(broker, topic) == {0: expected, 1: expected, 2: expected}
