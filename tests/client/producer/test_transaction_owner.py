"""Transactions of several processes, against a scripted cluster."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from fenceline.client import (
    CommittedOffset,
    Producer,
    ProducerFenced,
    TransactionAbortable,
    TransactionHandle,
    TransactionOwner,
    transaction_writer,
)
from fenceline.errors import ErrorCode, OperatorError
from fenceline.ids import TopicPartition
from fenceline.records.batch import iter_headers
from fenceline.wire.apis import ApiKey
from tests.client.scripted_cluster import HANG_UP, ScriptedCluster

_QUICK: dict[str, Any] = {
    "retry.backoff.ms": 1,
    "retry.backoff.max.ms": 5,
    "reconnect.backoff.ms": 1,
    "reconnect.backoff.max.ms": 5,
    "linger.ms": 0,
}
PROGRESS = TopicPartition("t", 0)


@pytest.fixture
def owner(cluster: ScriptedCluster) -> Iterator[TransactionOwner]:
    cluster.add_topic("t", 2)
    with TransactionOwner(cluster.bootstrap, "query", **_QUICK) as made:
        yield made


def _write(cluster: ScriptedCluster, handle: TransactionHandle, partition: int, *values: bytes) -> None:
    with transaction_writer(cluster.bootstrap, handle, **_QUICK) as writer:
        for value in values:
            writer.send("t", value, partition=partition)


def test_several_writers_and_one_commit(cluster: ScriptedCluster, owner: TransactionOwner) -> None:
    handle = owner.begin()
    assert owner.progress([PROGRESS]) == {}
    for batch in (7, 8):
        given = pickle.loads(pickle.dumps(handle))
        for partition in (0, 1):
            _write(cluster, given, partition, b"a", b"b")
        handle, before = owner.commit(handle, {PROGRESS: CommittedOffset(batch, -1)}), handle
        assert handle == TransactionHandle("query", before.producer_id, before.epoch + 1)
        assert owner.progress([PROGRESS])[PROGRESS].offset == batch
    for partition in (0, 1):
        batches = cluster.logs[TopicPartition("t", partition)].batches
        headers = [header for raw in batches for header in iter_headers(raw)]
        assert all(header.is_transactional for header in headers)
        assert sorted({(header.producer_epoch, header.base_sequence) for header in headers})[0] == (0, 0)
        # Each transaction's sequence numbers start at 0.
        assert {header.producer_epoch for header in headers if header.base_sequence == 0} == {0, 1}
    versions = {version for key, version, _ in cluster.requests if key in (ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT)}
    assert versions == {5}


def test_a_next_owner_fences_the_former_one_and_its_writers(cluster: ScriptedCluster, owner: TransactionOwner) -> None:
    former = owner.begin()
    _write(cluster, former, 0, b"a")
    with TransactionOwner(cluster.bootstrap, "query", **_QUICK) as next_owner:
        newest = next_owner.begin()
        _write(cluster, newest, 0, b"b")
        with pytest.raises(TransactionAbortable):
            _write(cluster, former, 0, b"c")
        with pytest.raises(ProducerFenced):
            owner.commit(former, {PROGRESS: 1})
        with pytest.raises(ProducerFenced):
            owner.abort(former)
        assert PROGRESS not in cluster.committed
        next_owner.commit(newest, {PROGRESS: 2})
    assert cluster.logs[PROGRESS].values() == [b"a", b"b"]


def test_a_second_attempt_of_a_writer_fails(cluster: ScriptedCluster, owner: TransactionOwner) -> None:
    handle = owner.begin()
    _write(cluster, handle, 0, b"a", b"b", b"c")
    with pytest.raises(TransactionAbortable) as caught:
        _write(cluster, handle, 0, b"another batch, at the first sequence number")
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    handle = owner.abort(handle)
    _write(cluster, handle, 0, b"again")
    owner.commit(handle, {PROGRESS: 1})


def test_a_writer_waits_for_every_acknowledgement(cluster: ScriptedCluster, owner: TransactionOwner) -> None:
    handle = owner.begin()
    cluster.faults[ApiKey.PRODUCE] = [None, ErrorCode.MESSAGE_TOO_LARGE]
    with pytest.raises(TransactionAbortable, match="MESSAGE_TOO_LARGE"):
        _write(cluster, handle, 0, b"a", b"b" * 131_072)
    assert not [key for key, *_ in cluster.requests if key is ApiKey.END_TXN]


def test_a_writer_cannot_end_the_transaction(cluster: ScriptedCluster, owner: TransactionOwner) -> None:
    handle = owner.begin()
    with transaction_writer(cluster.bootstrap, handle, **_QUICK) as writer:
        for call in (writer.commit_transaction, writer.abort_transaction):
            with pytest.raises(OperatorError, match="Its owner ends the transaction"):
                call()
        with pytest.raises(OperatorError):
            writer.begin_transaction()
    with Producer(cluster.bootstrap, **{**_QUICK, "transactional.id": "query"}) as other:
        with pytest.raises(OperatorError, match="has not joined"):
            other.leave_transaction()
        with pytest.raises(OperatorError, match=r"transactional\.id other"):
            other.join_transaction(TransactionHandle("other", 1, 1))


def test_a_writer_that_fails_does_not_end_the_transaction(cluster: ScriptedCluster, owner: TransactionOwner) -> None:
    handle = owner.begin()

    def fail() -> None:
        with transaction_writer(cluster.bootstrap, handle, **_QUICK) as writer:
            writer.send("t", b"a", partition=0).result(60)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not [key for key, *_ in cluster.requests if key is ApiKey.END_TXN]


@pytest.mark.parametrize(
    "key", [ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID, ApiKey.OFFSET_FETCH]
)
@pytest.mark.parametrize("fault", [HANG_UP, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR])
def test_transient_faults_are_retried(
    cluster: ScriptedCluster, owner: TransactionOwner, key: ApiKey, fault: object
) -> None:
    cluster.faults[key] = [fault, fault]
    handle = owner.begin()
    owner.progress([PROGRESS])
    _write(cluster, handle, 0, b"a")
    owner.commit(handle, {PROGRESS: 4})
    assert owner.progress([PROGRESS])[PROGRESS].offset == 4


def test_unstable_progress_is_waited_for(cluster: ScriptedCluster, owner: TransactionOwner) -> None:
    cluster.faults[ApiKey.OFFSET_FETCH] = [ErrorCode.UNSTABLE_OFFSET_COMMIT] * 3
    assert owner.progress([PROGRESS]) == {}
    requests = [request for key, _, request in cluster.requests if key is ApiKey.OFFSET_FETCH]
    assert [request.require_stable for request in requests] == [True] * 4


def test_older_clusters_are_refused(cluster: ScriptedCluster) -> None:
    cluster.transaction_version = 1
    with (
        TransactionOwner(cluster.bootstrap, "query", **_QUICK) as owner,
        pytest.raises(OperatorError, match=r"requires transaction\.version 2"),
    ):
        owner.begin()
    with pytest.raises(OperatorError, match=r"requires transaction\.version 2"):
        _write(cluster, TransactionHandle("query", 101, 0), 0, b"a")


def test_bad_input_is_refused(owner: TransactionOwner) -> None:
    handle = owner.begin()
    with pytest.raises(OperatorError, match="needs the progress"):
        owner.commit(handle, {})
    with pytest.raises(OperatorError, match="is not an offset"):
        owner.commit(handle, {PROGRESS: -1})
    with pytest.raises(OperatorError, match=r"transactional\.id other"):
        owner.abort(TransactionHandle("other", 1, 1))
