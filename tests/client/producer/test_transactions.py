"""The transactional producer against a scripted cluster: what is sent, and what each failure leads to."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fenceline.client import (
    AsyncProducer,
    CommittedOffset,
    ConsumerGroupMetadata,
    Producer,
    ProducerFenced,
    TransactionAbortable,
    TransactionAborted,
    TransactionFailed,
)
from fenceline.client.core.errors import TimedOut
from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.ids import TopicPartition
from fenceline.records.batch import iter_headers
from fenceline.testing.waiting import eventually
from fenceline.wire.apis import ApiKey
from tests.client.scripted_cluster import HANG_UP, REFUSE, SILENT, ScriptedCluster

_QUICK = {"retry.backoff.ms": 1, "retry.backoff.max.ms": 5, "reconnect.backoff.ms": 1, "reconnect.backoff.max.ms": 5}
_SMALL = {**_QUICK, "batch.size": 200, "linger.ms": 0, "transactional.id": "tx"}


@pytest.fixture(params=[2, 1], ids=["version2", "version1"])
def version(request: pytest.FixtureRequest, cluster: ScriptedCluster) -> int:
    cluster.transaction_version = request.param
    return int(request.param)


@pytest.fixture
def producer(cluster: ScriptedCluster, version: int) -> Iterator[Producer]:
    cluster.add_topic("t", 2)
    with Producer(cluster.bootstrap, **_SMALL) as made:
        made.init_transactions()
        yield made


def _sent(cluster: ScriptedCluster, key: ApiKey) -> list[tuple[int, Any]]:
    return [(version, request) for asked, version, request in cluster.requests if asked is key]


def _ends(cluster: ScriptedCluster) -> list[bool]:
    return [request.committed for _, request in _sent(cluster, ApiKey.END_TXN)]


def _headers(cluster: ScriptedCluster, tp: TopicPartition) -> list[tuple[int, int, bool]]:
    """(epoch, base sequence, whether it is transactional) of every batch."""
    found = []
    for raw in cluster.logs[tp].batches:
        found += [(h.producer_epoch, h.base_sequence, h.is_transactional) for h in iter_headers(raw)]
    return found


TP = TopicPartition("t", 0)


def test_commit_sends_everything_first(cluster: ScriptedCluster, producer: Producer, version: int) -> None:
    producer.begin_transaction()
    sent = [producer.send("t", b"%d" % i, partition=i % 2) for i in range(40)]
    producer.commit_transaction()
    assert [delivery.exception(0) for delivery in sent] == [None] * 40
    assert _ends(cluster) == [True]
    adds = _sent(cluster, ApiKey.ADD_PARTITIONS_TO_TXN)
    end_version = _sent(cluster, ApiKey.END_TXN)[0][0]
    assert (bool(adds), end_version) == (False, 5) if version == 2 else (True, 4)
    assert all(is_transactional for _, _, is_transactional in _headers(cluster, TP))


def test_epochs_and_sequences_of_following_transactions(
    cluster: ScriptedCluster, producer: Producer, version: int
) -> None:
    for end in (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        producer.send("t", b"a", partition=0).result(60)
        end()
    expected = (
        [(0, 0, True), (1, 0, True), (2, 0, True)] if version == 2 else [(0, 0, True), (0, 1, True), (0, 2, True)]
    )
    assert _headers(cluster, TP) == expected


def test_a_transaction_without_records_sends_nothing(cluster: ScriptedCluster, producer: Producer) -> None:
    producer.begin_transaction()
    producer.commit_transaction()
    producer.begin_transaction()
    producer.abort_transaction()
    assert _ends(cluster) == []


def test_records_are_accepted_within_a_transaction_only(cluster: ScriptedCluster, version: int) -> None:
    cluster.add_topic("t")
    with Producer(cluster.bootstrap, **_SMALL) as producer:
        with pytest.raises(OperatorError, match="Call init_transactions first"):
            producer.send("t", b"a")
        with pytest.raises(OperatorError, match="Call init_transactions first"):
            producer.begin_transaction()
        producer.init_transactions()
        with pytest.raises(OperatorError, match="Call begin_transaction first"):
            producer.send("t", b"a")
        with pytest.raises(OperatorError, match="Call begin_transaction first"):
            producer.commit_transaction()
        with pytest.raises(OperatorError, match="init_transactions is not possible"):
            producer.init_transactions()
        producer.begin_transaction()
        with pytest.raises(OperatorError, match="Call commit_transaction or abort_transaction first"):
            producer.begin_transaction()
    assert cluster.logs[TP].values() == []


def test_calls_of_a_producer_without_transactions_are_refused(cluster: ScriptedCluster) -> None:
    with (
        Producer(cluster.bootstrap, **_QUICK) as producer,
        pytest.raises(OperatorError, match=r"Set transactional\.id"),
    ):
        producer.init_transactions()


def test_abort_drops_what_was_not_sent(cluster: ScriptedCluster, version: int) -> None:
    cluster.add_topic("t")
    with Producer(cluster.bootstrap, **{**_SMALL, "linger.ms": 60_000, "batch.size": 100_000}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        unsent = producer.send("t", b"a")
        producer.abort_transaction()
        with pytest.raises(TransactionAborted, match="is being aborted"):
            unsent.result(0)
        assert (cluster.logs[TP].values(), _ends(cluster)) == ([], [])
        with producer.transaction():
            kept = producer.send("t", b"b")
        assert kept.result(0).offset == 0


def test_a_failed_delivery_makes_the_transaction_abortable(
    cluster: ScriptedCluster, producer: Producer, version: int
) -> None:
    producer.begin_transaction()
    producer.send("t", b"first", partition=0).result(60)
    cluster.faults[ApiKey.PRODUCE] = [ErrorCode.MESSAGE_TOO_LARGE]
    refused = producer.send("t", b"large", partition=0)
    with pytest.raises(PeerError, match=r"max\.message\.bytes"):
        refused.result(60)
    with pytest.raises(TransactionAbortable, match="Call abort_transaction") as caught:
        producer.send("t", b"too late", partition=1)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    with pytest.raises(TransactionAbortable):
        producer.commit_transaction()
    producer.abort_transaction()
    assert _ends(cluster) == [False]
    with producer.transaction():
        producer.send("t", b"again", partition=0)
    assert cluster.logs[TP].values() == [b"first", b"again"]
    # Below version 2 the producer asks for its next epoch, because sequence numbers were lost.
    asked = [request.producer_id for _, request in _sent(cluster, ApiKey.INIT_PRODUCER_ID)]
    assert (len(asked), _headers(cluster, TP)[-1]) == ((1, (1, 0, True)) if version == 2 else (2, (1, 0, True)))


def test_commit_raises_a_failure_that_it_met(cluster: ScriptedCluster, producer: Producer) -> None:
    producer.begin_transaction()
    cluster.fault_rule = lambda key: ErrorCode.INVALID_TXN_STATE if key is ApiKey.PRODUCE else None
    producer.send("t", b"a", partition=0)
    with pytest.raises(TransactionAbortable):
        producer.commit_transaction()
    cluster.fault_rule = None
    producer.abort_transaction()
    assert _ends(cluster) == [False]


def test_expired_records_make_the_transaction_abortable(cluster: ScriptedCluster, version: int) -> None:
    cluster.add_topic("t")
    with Producer(cluster.bootstrap, **{**_SMALL, "delivery.timeout.ms": 50}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        cluster.fault_rule = lambda key: ErrorCode.NOT_ENOUGH_REPLICAS if key is ApiKey.PRODUCE else None
        producer.send("t", b"a")
        with pytest.raises(TransactionAbortable, match=r"delivery\.timeout\.ms"):
            producer.commit_transaction()
        cluster.fault_rule = None
        producer.abort_transaction()
        with producer.transaction():
            producer.send("t", b"b")
    assert cluster.logs[TP].values() == [b"b"]


@pytest.mark.parametrize("code", [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.PRODUCER_FENCED])
def test_a_fatal_error_of_produce_ends_the_producer(
    cluster: ScriptedCluster, producer: Producer, code: ErrorCode
) -> None:
    producer.begin_transaction()
    cluster.faults[ApiKey.PRODUCE] = [code]
    with pytest.raises(PeerError):
        producer.send("t", b"a", partition=0).result(60)
    for call in (producer.commit_transaction, producer.abort_transaction, producer.begin_transaction):
        with pytest.raises(TransactionFailed) as caught:
            call()
        assert isinstance(caught.value, ProducerFenced) is (code is ErrorCode.PRODUCER_FENCED)


def test_a_newer_producer_fences_the_older_one(cluster: ScriptedCluster, producer: Producer) -> None:
    producer.begin_transaction()
    producer.send("t", b"a", partition=0).result(60)
    with Producer(cluster.bootstrap, **_SMALL) as newer:
        newer.init_transactions()
        newer.begin_transaction()
        newer.send("t", b"b", partition=0).result(60)
        with pytest.raises(ProducerFenced, match="Another producer has started"):
            producer.commit_transaction()
        with pytest.raises(ProducerFenced):
            producer.send("t", b"c")
        newer.commit_transaction()


@pytest.mark.parametrize("fault", [HANG_UP, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])
@pytest.mark.parametrize(
    "key",
    [
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.END_TXN,
        ApiKey.PRODUCE,
        ApiKey.FIND_COORDINATOR,
    ],
)
def test_transient_faults_are_retried(cluster: ScriptedCluster, version: int, key: ApiKey, fault: object) -> None:
    cluster.add_topic("t")
    cluster.faults[key] = [fault, fault, fault]
    with Producer(cluster.bootstrap, **_SMALL) as producer:
        producer.init_transactions()
        for value in (b"a", b"b"):
            with producer.transaction():
                producer.send("t", value)
                producer.send_offsets_to_transaction({TP: CommittedOffset(5, 3)}, "group")
    assert cluster.logs[TP].values() == [b"a", b"b"]
    assert cluster.committed[TP] == (5, 3)


@pytest.mark.parametrize("code", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID])
def test_offsets_of_a_former_member_make_the_transaction_abortable(
    cluster: ScriptedCluster, producer: Producer, code: ErrorCode
) -> None:
    cluster.faults[ApiKey.TXN_OFFSET_COMMIT] = [code]
    producer.begin_transaction()
    member = ConsumerGroupMetadata("group", 7, "member", "instance")
    with pytest.raises(TransactionAbortable):
        producer.send_offsets_to_transaction({TP: 5}, member)
    with pytest.raises(TransactionAbortable):
        producer.commit_transaction()
    producer.abort_transaction()
    ((_, request),) = _sent(cluster, ApiKey.TXN_OFFSET_COMMIT)
    assert (request.generation_id, request.member_id, request.group_instance_id) == (7, "member", "instance")
    assert _ends(cluster) == [False]


def test_old_brokers_cannot_check_a_member() -> None:
    old = {ApiKey.TXN_OFFSET_COMMIT: (0, 2), ApiKey.END_TXN: (0, 3)}
    with ScriptedCluster(versions=old) as cluster, Producer(cluster.bootstrap, **_SMALL) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_offsets_to_transaction({TP: CommittedOffset(1, 4)}, "group")
        assert cluster.committed[TP] == (1, 4)
        with pytest.raises(TransactionFailed, match="requires 3"):
            producer.send_offsets_to_transaction({TP: 5}, ConsumerGroupMetadata("group", 7, "member"))


@pytest.mark.parametrize("offsets", [{TP: -1}, {TP: CommittedOffset(-5)}])
def test_negative_offsets_are_refused(producer: Producer, offsets: dict[TopicPartition, int]) -> None:
    with producer.transaction():
        with pytest.raises(OperatorError, match="is not an offset"):
            producer.send_offsets_to_transaction(offsets, "group")
        with pytest.raises(OperatorError, match=r"group\.id"):
            producer.send_offsets_to_transaction({TP: 1}, "")


def test_a_commit_without_an_answer_can_only_be_repeated(cluster: ScriptedCluster, version: int) -> None:
    cluster.add_topic("t")
    with Producer(cluster.bootstrap, **{**_SMALL, "max.block.ms": 300, "request.timeout.ms": 100}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"a").result(60)
        cluster.fault_rule = lambda key: HANG_UP if key is ApiKey.END_TXN else None
        with pytest.raises(TimedOut):
            producer.commit_transaction()
        with pytest.raises(OperatorError, match="Call commit_transaction again"):
            producer.abort_transaction()
        with pytest.raises(OperatorError, match="Call commit_transaction again"):
            producer.send("t", b"b")
        cluster.fault_rule = None
        producer.commit_transaction()
        with producer.transaction():
            producer.send("t", b"c")
    assert cluster.logs[TP].values() == [b"a", b"c"]
    assert set(_ends(cluster)) == {True}


def test_the_block_of_a_transaction_that_fails_is_aborted(cluster: ScriptedCluster, producer: Producer) -> None:
    def fail() -> None:
        with producer.transaction():
            producer.send("t", b"a", partition=0).result(60)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert _ends(cluster) == [False]
    cluster.faults[ApiKey.PRODUCE] = [ErrorCode.MESSAGE_TOO_LARGE]
    with pytest.raises(TransactionAbortable), producer.transaction():
        producer.send("t", b"a", partition=0)
    assert _ends(cluster) == [False, False]
    with producer.transaction():
        producer.send("t", b"b", partition=0)
    assert _ends(cluster) == [False, False, True]


def test_close_aborts_an_open_transaction(cluster: ScriptedCluster, version: int) -> None:
    cluster.add_topic("t")
    with Producer(cluster.bootstrap, **_SMALL) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"a").result(60)
    assert _ends(cluster) == [False]


def test_records_of_other_threads_are_in_one_transaction_or_refused(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    """No record that is accepted while the transaction is committed enters a later one, or none."""
    stop, accepted = threading.Event(), []

    def send() -> None:
        while not stop.is_set():
            with contextlib.suppress(OperatorError):
                accepted.append(producer.send("t", b"x" * 50, partition=0))
            stop.wait(0.0005)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        for _ in range(20):
            producer.begin_transaction()
            producer.send("t", b"x" * 50, partition=0)
            producer.commit_transaction()
            # Everything that was accepted is acknowledged when the commit returns.
            assert all(delivery.done() for delivery in list(accepted))
    finally:
        stop.set()
        thread.join()
    assert [delivery.exception(0) for delivery in accepted] == [None] * len(accepted)


def test_the_change_to_version_2_begins_a_new_epoch(cluster: ScriptedCluster) -> None:
    cluster.add_topic("t")
    cluster.transaction_version = 1
    with Producer(cluster.bootstrap, **_SMALL) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("t", b"a")
        cluster.transaction_version = 2
        cluster.hang_up()
        # The new connections know the new level, at the latest after one more transaction.
        for value in (b"b", b"c"):
            with producer.transaction():
                producer.send("t", value)
    asked = [request.producer_id >= 0 for _, request in _sent(cluster, ApiKey.INIT_PRODUCER_ID)]
    assert asked == [False, True]
    assert [version for version, _ in _sent(cluster, ApiKey.END_TXN)][-1] == 5
    assert cluster.logs[TP].values() == [b"a", b"b", b"c"]


def test_brokers_before_kafka_2_5_cannot_continue_after_lost_records() -> None:
    old = {ApiKey.INIT_PRODUCER_ID: (0, 2), ApiKey.END_TXN: (0, 3), ApiKey.PRODUCE: (3, 8)}
    with ScriptedCluster(versions=old) as cluster:
        cluster.add_topic("t")
        with Producer(cluster.bootstrap, **_SMALL) as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("t", b"a")
            cluster.faults[ApiKey.PRODUCE] = [ErrorCode.MESSAGE_TOO_LARGE]
            producer.begin_transaction()
            producer.send("t", b"b")
            with pytest.raises(TransactionAbortable):
                producer.commit_transaction()
            with pytest.raises(TransactionFailed, match=r"before Kafka 2\.5"):
                producer.abort_transaction()
    assert _ends(cluster) == [True, False]


def test_init_that_is_not_authorized_can_be_repeated(cluster: ScriptedCluster) -> None:
    cluster.faults[ApiKey.INIT_PRODUCER_ID] = [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
    with Producer(cluster.bootstrap, **_SMALL) as producer:
        with pytest.raises(TransactionAbortable, match="needs an ACL"):
            producer.init_transactions()
        producer.init_transactions()


def test_an_invalid_timeout_has_advice(cluster: ScriptedCluster) -> None:
    cluster.faults[ApiKey.INIT_PRODUCER_ID] = [ErrorCode.INVALID_TRANSACTION_TIMEOUT]
    with (
        Producer(cluster.bootstrap, **{**_SMALL, "transaction.timeout.ms": 2**31 - 1}) as producer,
        pytest.raises(TransactionFailed, match=r"transaction\.max\.timeout\.ms"),
    ):
        producer.init_transactions()


def test_the_asynchronous_producer(cluster: ScriptedCluster, version: int) -> None:
    cluster.add_topic("t")

    async def fail(producer: AsyncProducer) -> None:
        async with producer.transaction():
            await (await producer.send("t", b"b"))
            raise ValueError("no")

    async def story() -> None:
        async with AsyncProducer(cluster.bootstrap, **_SMALL) as producer:
            await producer.init_transactions()
            async with producer.transaction():
                await producer.send("t", b"a")
            with pytest.raises(ValueError, match="no"):
                await fail(producer)

    asyncio.run(story())
    assert cluster.logs[TP].values() == [b"a", b"b"]
    assert _ends(cluster) == [True, False]


@pytest.mark.parametrize("kind", [TransactionAbortable, TransactionFailed, ProducerFenced])
def test_errors_can_be_pickled(kind: Callable[[ErrorCode, str], PeerError]) -> None:
    error = pickle.loads(pickle.dumps(kind(ErrorCode.PRODUCER_FENCED, "text")))
    assert (type(error), error.code, error.message) == (kind, ErrorCode.PRODUCER_FENCED, "text")
    assert pickle.loads(pickle.dumps(TransactionAborted("text"))).message == "text"


def test_silence_during_an_abort(cluster: ScriptedCluster, version: int) -> None:
    """Batches in flight without a response do not keep an abort from its time limit, and it can be repeated."""
    cluster.add_topic("t")
    with Producer(cluster.bootstrap, **{**_SMALL, "max.block.ms": 200, "request.timeout.ms": 400}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"a").result(60)
        cluster.faults[ApiKey.PRODUCE] = [SILENT]
        lost = producer.send("t", b"b")
        eventually(lambda: cluster.seen[ApiKey.PRODUCE] == 2, "the second batch sent")
        with pytest.raises(TimedOut):
            producer.abort_transaction()
        lost.exception(60)
        producer.abort_transaction()
    assert _ends(cluster) == [False]


def test_an_abort_does_not_wait_for_partitions_that_cannot_be_added(cluster: ScriptedCluster) -> None:
    cluster.transaction_version = 1
    cluster.add_topic("t", 2)
    with Producer(cluster.bootstrap, **{**_SMALL, "max.block.ms": 10_000}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        cluster.fault_rule = lambda key: code if key is ApiKey.ADD_PARTITIONS_TO_TXN else None
        waiting = producer.send("t", b"a", partition=0)
        eventually(lambda: cluster.seen[ApiKey.ADD_PARTITIONS_TO_TXN] >= 2, "a retry")
        producer.abort_transaction()
        with pytest.raises(TransactionAborted):
            waiting.result(0)
        cluster.fault_rule = None
        with producer.transaction():
            producer.send("t", b"b", partition=1)
    assert cluster.logs[TopicPartition("t", 1)].values() == [b"b"]
    assert _ends(cluster) == [False, True]


@pytest.mark.parametrize("seed", range(6))
def test_random_faults_cause_no_loss_duplicate_or_reordering(cluster: ScriptedCluster, version: int, seed: int) -> None:
    """Every request may fail in a way that a retry resolves; each transaction is committed."""
    rng = random.Random(seed)
    tps = cluster.add_topic("t", 3)
    faults = [HANG_UP, REFUSE, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS]
    keys = {
        ApiKey.PRODUCE,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.END_TXN,
    }

    def rule(key: ApiKey) -> object:
        if key in keys and rng.random() < 0.05:
            log = cluster.logs[rng.choice(tps)]
            log.elect(3 - log.leader)
        return rng.choice(faults) if key in keys and rng.random() < 0.25 else None

    values: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    with Producer(cluster.bootstrap, **_SMALL) as producer:
        producer.init_transactions()
        cluster.fault_rule = rule
        for number in range(15):
            with producer.transaction():
                for index in range(rng.randrange(30)):
                    partition = rng.randrange(3)
                    values[partition].append(b"%d:%d" % (number, index))
                    producer.send("t", values[partition][-1], partition=partition)
                producer.send_offsets_to_transaction({TP: CommittedOffset(number, 0)}, "group")
            assert cluster.committed[TP] == (number, 0)
        cluster.fault_rule = None
    assert {tp.partition: cluster.logs[tp].values() for tp in tps} == values
    assert set(_ends(cluster)) == {True}
