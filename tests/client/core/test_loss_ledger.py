"""Receipts of the ledger topic are attached to the truncation that they describe, and to no other."""

from __future__ import annotations

import pickle
from uuid import UUID

import pytest

from fenceline.client.consumer.consumer import Consumer
from fenceline.client.core.errors import LogTruncationError
from fenceline.client.core.loss_receipts import LossReceipt
from fenceline.errors import ErrorCode
from fenceline.ids import LOSSES_TOPIC
from fenceline.losses.receipt import encode
from fenceline.records.build import build_batch
from fenceline.wire.apis import ApiKey
from tests.client.core.test_loss_receipts import receipt
from tests.client.scripted_cluster import SILENT, ScriptedCluster
from tests.kip.test_kip320_consumer import QUICK, _cut_under, read, reported

_OTHER = UUID(int=77)


def _publish(cluster: ScriptedCluster, *documents: bytes) -> None:
    from fenceline.client.producer.producer import Producer

    if LOSSES_TOPIC not in cluster.ids:
        cluster.add_topic(LOSSES_TOPIC, 2, leader=2)
    with Producer(cluster.bootstrap, **QUICK, **{"linger.ms": 0}) as producer:
        for number, document in enumerate(documents):
            producer.send(LOSSES_TOPIC, document, partition=number % 2).result(60)


def test_receipts_are_attached_to_the_truncation(cluster: ScriptedCluster) -> None:
    consumer, _, _ = _cut_under(cluster, **{"truncation.evidence.timeout.ms": 30_000})
    mine = receipt(topic_id=cluster.ids["t"])
    gone = receipt(topic_id=cluster.ids["t"], evidence=())
    _publish(
        cluster,
        encode(receipt(replica=7, partition=1)),
        b"no receipt",
        encode(receipt(replica=8, topic_id=_OTHER)),
        encode(receipt(replica=6, topic="u")),
        encode(mine),
        encode(receipt(replica=9, time_ms=2)),
        encode(gone),
    )
    with consumer:
        error = reported(consumer)
        assert [(r.replica, r.evidence) for r in error.evidence] == [(9, mine.evidence), (1, ())]
        assert "Loss receipts: " in str(error)
        assert mine.id[:12] in str(error)
        again = pickle.loads(pickle.dumps(error))
        assert again.evidence == error.evidence
        assert all(isinstance(each, LossReceipt) for each in again.evidence)
        # More follow later, when other replicas learn of the new leader.
        _publish(cluster, encode(receipt(replica=11, time_ms=9)))
        assert [r.replica for r in consumer.loss_receipts(error)] == [9, 1, 11]
        assert [len(each.evidence) for each in consumer.truncations()] == [2]


def test_truncations_of_many_partitions_share_one_ledger_lookup(cluster: ScriptedCluster) -> None:
    tps = cluster.add_topic("t", 5)
    _publish(cluster, *(encode(receipt(partition=tp.partition, replica=10 + tp.partition)) for tp in tps[1:]))
    config = {**QUICK, "truncation.evidence.timeout.ms": 30_000, "on.truncation": "rewind"}
    with Consumer(cluster.bootstrap, **config) as consumer:
        consumer.assign(tps)
        for tp in tps:
            for _ in range(10):
                cluster.logs[tp].append(build_batch([(0, None, b"read", ())]))
            consumer.seek(tp, 0)
        read(consumer, 50)
        seen = cluster.seen[ApiKey.LIST_OFFSETS]
        # The consumer learns of it only after all truncations.
        with cluster.lock:
            for tp in tps:
                cluster.logs[tp].elect(2, cut_to=6)
                cluster.logs[tp].append(build_batch([(0, None, b"new", ())]))
        assert read(consumer, 5) == [b"new"] * 5
        met = {error.partition: [receipt.replica for receipt in error.evidence] for error in consumer.truncations()}
        assert met == {0: [], 1: [11], 2: [12], 3: [13], 4: [14]}
        assert consumer.assignment() == tps
    # Earliest and latest; at most once more if the partitions' responses arrive separately.
    assert cluster.seen[ApiKey.LIST_OFFSETS] - seen <= 2 * len(tps) - 2


def test_lookup_without_a_ledger_finds_nothing_and_creates_no_topic(cluster: ScriptedCluster) -> None:
    consumer, _, _ = _cut_under(cluster)
    with consumer:
        assert reported(consumer).evidence == ()
    asked = [
        request
        for key, _, request in cluster.requests
        if key is ApiKey.METADATA and any(topic.name == LOSSES_TOPIC for topic in request.topics or ())
    ]
    assert len(asked) == 1
    assert not asked[0].allow_auto_topic_creation


@pytest.mark.parametrize("silent", [ApiKey.LIST_OFFSETS, ApiKey.FETCH], ids=lambda key: key.name)
def test_error_does_not_wait_for_an_unresponsive_ledger(cluster: ScriptedCluster, silent: ApiKey) -> None:
    # Long enough for the lookups before a Fetch, and much shorter than the request timeout.
    times = {"truncation.evidence.timeout.ms": 1_000, "request.timeout.ms": 600_000}
    consumer, tp, new = _cut_under(cluster, **times)
    _publish(cluster, encode(receipt()))
    # The ledger's leader also leads the partition, which is not read before the seek.
    cluster.node_rule = lambda node, key: SILENT if (node, key) == (2, silent) else None
    with consumer:
        error = reported(consumer)
        assert isinstance(error, LogTruncationError)
        assert error.evidence == ()
        cluster.node_rule = None
        consumer.seek(tp, error.divergent_offset, error.divergent_epoch)
        assert read(consumer, 4) == new


def test_leaderless_ledger_is_polled_frequently(cluster: ScriptedCluster) -> None:
    """A cluster creates it at its first loss; retry backoff would use up the timeout."""
    times = {"truncation.evidence.timeout.ms": 5_000, "retry.backoff.ms": 400, "retry.backoff.max.ms": 1_000}
    consumer, _, _ = _cut_under(cluster, **times)
    _publish(cluster, encode(receipt()))
    cluster.faults[ApiKey.LIST_OFFSETS] = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 12
    with consumer:
        assert len(reported(consumer).evidence) == 1
    assert cluster.faults[ApiKey.LIST_OFFSETS] == []


def test_no_lookup_is_made_when_disabled(cluster: ScriptedCluster) -> None:
    consumer, _, _ = _cut_under(cluster, **{"truncation.evidence.timeout.ms": 0})
    _publish(cluster, encode(receipt()))
    before = cluster.seen[ApiKey.LIST_OFFSETS]
    with consumer:
        assert reported(consumer).evidence == ()
    assert cluster.seen[ApiKey.LIST_OFFSETS] == before
