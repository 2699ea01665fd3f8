"""Receipts of the ledger topic are attached to the truncation that they describe, and to no other."""

from __future__ import annotations

import json
import pickle
from typing import Any
from uuid import UUID

import pytest

from fenceline.client.consumer.consumer import Consumer
from fenceline.client.core.errors import LogTruncationError
from fenceline.client.core.loss_receipts import LossReceipt, newest_versions, parse_receipt
from fenceline.errors import ErrorCode
from fenceline.ids import LOSSES_TOPIC, encode_uuid
from fenceline.losses.receipt import Cause, LossClass, Receipt, encode, identified
from fenceline.records.build import build_batch
from fenceline.wire.apis import ApiKey
from tests.client.scripted_cluster import SILENT, ScriptedCluster
from tests.kip.test_kip320_consumer import QUICK, _cut_under, read, told

_OTHER = UUID(int=77)


def _receipt(**changes: Any) -> Receipt:
    facts: dict[str, Any] = {
        "topic": "t",
        "topic_id": None,
        "partition": 0,
        "start_offset": 6,
        "end_offset_exclusive": 10,
        "leader_epochs": (0,),
        "records": 4,
        "size_bytes": 400,
        "loss_class": LossClass.MAYBE_ACKNOWLEDGED,
        "known_by": "the high watermark",
        "cause": Cause.DIVERGENCE,
        "reason": "",
        "replica": 1,
        "leader": 2,
        "leader_epoch": 1,
        "time_ms": 5,
        "evidence": ("/data/lost+found/t-0/6.log",),
    }
    return identified(Receipt(**{**facts, **changes}))


def _publish(cluster: ScriptedCluster, *documents: bytes) -> None:
    from fenceline.client.producer.producer import Producer

    if LOSSES_TOPIC not in cluster.ids:
        cluster.add_topic(LOSSES_TOPIC, 2, leader=2)
    with Producer(cluster.bootstrap, **QUICK, **{"linger.ms": 0}) as producer:
        for number, document in enumerate(documents):
            producer.send(LOSSES_TOPIC, document, partition=number % 2).result(60)


def test_receipt_round_trips() -> None:
    written = _receipt(topic_id=_OTHER)
    found = parse_receipt(encode(written))
    assert found is not None
    assert (found.id, found.topic, found.topic_id, found.partition) == (written.id, "t", encode_uuid(_OTHER), 0)
    assert (found.start_offset, found.end_offset_exclusive, found.leader_epochs) == (6, 10, (0,))
    assert (found.records, found.size_bytes, found.loss_class, found.cause) == (
        4,
        400,
        "maybe_acknowledged",
        "divergence",
    )
    assert (found.replica, found.leader, found.time_ms, found.evidence) == (1, 2, 5, ("/data/lost+found/t-0/6.log",))


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b"7", b'{"id": "x"}', b"\xff", b'{"id":1,"topic":[]}'])
def test_records_that_are_no_receipts_are_skipped(raw: bytes) -> None:
    assert parse_receipt(raw) is None


@pytest.mark.parametrize("topic_id", ["x", "AAAA", 7])
def test_invalid_topic_id_makes_no_receipt(topic_id: object) -> None:
    fields = json.loads(encode(_receipt(topic_id=_OTHER)))
    assert parse_receipt(json.dumps(fields).encode()) is not None
    assert parse_receipt(json.dumps({**fields, "topic_id": topic_id}).encode()) is None


@pytest.mark.parametrize(
    ("changes", "tells"),
    [
        ({}, True),
        ({"start_offset": 0, "end_offset_exclusive": 7}, True),
        ({"start_offset": 9, "end_offset_exclusive": 99}, True),
        ({"start_offset": 0, "end_offset_exclusive": 6}, False),
        ({"start_offset": 10, "end_offset_exclusive": 11}, False),
        ({"leader_epochs": (3, 4)}, False),
        ({"leader_epochs": ()}, True),
    ],
)
def test_receipts_matching_a_range(changes: dict[str, Any], tells: bool) -> None:
    found = parse_receipt(encode(_receipt(**changes)))
    assert found is not None
    assert found.overlaps(6, 10, (0,)) is tells


def test_last_version_of_each_receipt_counts() -> None:
    early, late = _receipt(time_ms=2, replica=9), _receipt(time_ms=5)
    without_evidence = _receipt(time_ms=5, evidence=())
    assert late.id == without_evidence.id
    assert newest_versions([late, early, without_evidence]) == [early, without_evidence]


def test_receipts_are_attached_to_the_truncation(cluster: ScriptedCluster) -> None:
    consumer, _, _ = _cut_under(cluster, **{"truncation.evidence.timeout.ms": 30_000})
    mine = _receipt(topic_id=cluster.ids["t"])
    gone = _receipt(topic_id=cluster.ids["t"], evidence=())
    _publish(
        cluster,
        encode(_receipt(replica=7, partition=1)),
        b"no receipt",
        encode(_receipt(replica=8, topic_id=_OTHER)),
        encode(_receipt(replica=6, topic="u")),
        encode(mine),
        encode(_receipt(replica=9, time_ms=2)),
        encode(gone),
    )
    with consumer:
        error = told(consumer)
        assert [(r.replica, r.evidence) for r in error.evidence] == [(9, mine.evidence), (1, ())]
        assert "Loss receipts: " in str(error)
        assert mine.id[:12] in str(error)
        again = pickle.loads(pickle.dumps(error))
        assert again.evidence == error.evidence
        assert all(isinstance(each, LossReceipt) for each in again.evidence)
        # More follow later, when other replicas learn of the new leader.
        _publish(cluster, encode(_receipt(replica=11, time_ms=9)))
        assert [r.replica for r in consumer.loss_receipts(error)] == [9, 1, 11]
        assert [len(each.evidence) for each in consumer.truncations()] == [2]


def test_truncations_of_many_partitions_share_one_ledger_lookup(cluster: ScriptedCluster) -> None:
    tps = cluster.add_topic("t", 5)
    _publish(cluster, *(encode(_receipt(partition=tp.partition, replica=10 + tp.partition)) for tp in tps[1:]))
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
        assert told(consumer).evidence == ()
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
    _publish(cluster, encode(_receipt()))
    # The ledger's leader also leads the partition, which is not read before the seek.
    cluster.node_rule = lambda node, key: SILENT if (node, key) == (2, silent) else None
    with consumer:
        error = told(consumer)
        assert isinstance(error, LogTruncationError)
        assert error.evidence == ()
        cluster.node_rule = None
        consumer.seek(tp, error.divergent_offset, error.divergent_epoch)
        assert read(consumer, 4) == new


def test_leaderless_ledger_is_polled_frequently(cluster: ScriptedCluster) -> None:
    """A cluster creates it at its first loss; retry backoff would use up the timeout."""
    times = {"truncation.evidence.timeout.ms": 5_000, "retry.backoff.ms": 400, "retry.backoff.max.ms": 1_000}
    consumer, _, _ = _cut_under(cluster, **times)
    _publish(cluster, encode(_receipt()))
    cluster.faults[ApiKey.LIST_OFFSETS] = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 12
    with consumer:
        assert len(told(consumer).evidence) == 1
    assert cluster.faults[ApiKey.LIST_OFFSETS] == []


def test_no_lookup_is_made_when_disabled(cluster: ScriptedCluster) -> None:
    consumer, _, _ = _cut_under(cluster, **{"truncation.evidence.timeout.ms": 0})
    _publish(cluster, encode(_receipt()))
    before = cluster.seen[ApiKey.LIST_OFFSETS]
    with consumer:
        assert told(consumer).evidence == ()
    assert cluster.seen[ApiKey.LIST_OFFSETS] == before
