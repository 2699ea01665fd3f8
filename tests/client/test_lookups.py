"""Lookups of offsets and epoch ends: which broker is asked, with which epochs, and which errors are retried.

The cases of Kafka's OffsetFetcherTest and OffsetForLeaderEpochClientTest. Rules: `epochs.md E46-E51`, `E58`;
list_offsets.md L29-L33.
"""

from __future__ import annotations

from typing import Any

import pytest

from fenceline.client.admin.admin import Admin
from fenceline.client.consumer.consumer import Consumer
from fenceline.client.core.offsets import EpochEnd
from fenceline.client.producer.producer import Producer
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TopicPartition
from fenceline.wire.apis import ApiKey
from tests.client.scripted_cluster import ScriptedCluster

_QUICK = {"retry.backoff.ms": 1, "retry.backoff.max.ms": 5, "reconnect.backoff.ms": 1}
_KEYS = [ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH]


def _look_up(admin: Admin, key: ApiKey, *tps: TopicPartition) -> dict[TopicPartition, tuple[int, int]]:
    """(offset or end, epoch) of each partition: the log end, or the end of epoch 0."""
    if key is ApiKey.LIST_OFFSETS:
        return {tp: (each.offset, each.leader_epoch) for tp, each in admin.list_offsets(dict.fromkeys(tps, -1)).items()}
    ends = admin.offsets_for_leader_epoch(dict.fromkeys(tps, 0))
    return {tp: (each.end_offset, each.leader_epoch) for tp, each in ends.items()}


def _asked(cluster: ScriptedCluster, key: ApiKey) -> list[dict[TopicPartition, int]]:
    """Each request of one kind: partition -> current leader epoch."""
    return [
        {
            TopicPartition(
                str(getattr(topic, "name", None) or topic.topic),
                int(getattr(row, "partition_index", getattr(row, "partition", -1))),
            ): row.current_leader_epoch
            for topic in request.topics
            for row in topic.partitions
        }
        for kind, _, request in cluster.requests
        if kind is key
    ]


@pytest.mark.parametrize("key", _KEYS)
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ],
)
def test_retriable_errors_are_retried(cluster: ScriptedCluster, key: ApiKey, code: ErrorCode) -> None:
    """testOffsetValidationFencing, testFetchOffsetErrors, testGetOffsetsFencedLeaderEpoch, ...UnknownLeaderEpoch,
    OffsetForLeaderEpochClientTest.testRetriableError; E51, L29."""
    (tp,) = cluster.add_topic("t")
    cluster.faults[key] = [code, code]
    with Admin(cluster.bootstrap, **_QUICK) as admin:
        assert _look_up(admin, key, tp) == {tp: (0, 0)}
    assert len(_asked(cluster, key)) == 3


@pytest.mark.parametrize("key", _KEYS)
def test_authorization_failure_is_raised_immediately(cluster: ScriptedCluster, key: ApiKey) -> None:
    """OffsetForLeaderEpochClientTest.testUnauthorizedTopic; E51, L29."""
    (tp,) = cluster.add_topic("t")
    cluster.faults[key] = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    with Admin(cluster.bootstrap, **_QUICK) as admin, pytest.raises(PeerError) as refused:
        _look_up(admin, key, tp)
    assert refused.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert len(_asked(cluster, key)) == 1


@pytest.mark.parametrize("key", _KEYS)
def test_one_request_per_leader_with_all_its_partitions_and_epochs(cluster: ScriptedCluster, key: ApiKey) -> None:
    """testOffsetValidationRequestGrouping, testGetOffsetsIncludesLeaderEpoch; E47, L33."""
    tps = [*cluster.add_topic("a", 3), *cluster.add_topic("b", 2)]
    led_by_2 = {tps[1], tps[3]}
    for tp in led_by_2:
        cluster.logs[tp].elect(2)
    with Admin(cluster.bootstrap, **_QUICK) as admin:
        assert _look_up(admin, key, *tps).keys() == set(tps)
    asked = sorted(_asked(cluster, key), key=len)
    assert asked == [dict.fromkeys(led_by_2, 1), dict.fromkeys(set(tps) - led_by_2, 0)]


@pytest.mark.parametrize("key", _KEYS)
def test_moved_leader_is_found(cluster: ScriptedCluster, key: ApiKey) -> None:
    """testOffsetValidationFencing: the old epoch is fenced, metadata is asked, the new leader answers."""
    (tp,) = cluster.add_topic("t")
    with Admin(cluster.bootstrap, **_QUICK) as admin:
        _look_up(admin, key, tp)
        cluster.logs[tp].elect(2)
        assert _look_up(admin, key, tp) == {tp: (0, 1 if key is ApiKey.LIST_OFFSETS else 0)}
    assert _asked(cluster, key)[-1] == {tp: 1}


@pytest.mark.parametrize("version", [3, 5])
def test_epoch_in_a_response_updates_the_last_seen_epoch(version: int) -> None:
    """testListOffsetUpdateEpoch, testListOffsetNoUpdateMissingEpoch; E58, L30: older metadata is ignored afterwards."""
    with ScriptedCluster(nodes=2, versions={ApiKey.LIST_OFFSETS: (1, version)}) as cluster:
        (tp,) = cluster.add_topic("t")
        with Admin(cluster.bootstrap, **_QUICK) as admin:
            admin.metadata(["t"])
            # A leader ahead of the metadata answers with a newer epoch.
            newer: Any = cluster.logs[tp]
            cluster._check = lambda log, node_id, epoch: ErrorCode.NONE  # type: ignore[method-assign]
            newer.leader_epoch = 5
            admin.list_offsets({tp: -1})
            seen = admin._async.cluster.metadata.leader(tp).epoch
    assert seen == (5 if version >= 4 else 0)


def test_guess_that_the_leader_cannot_reject_is_not_recorded_as_epoch() -> None:
    """The leader is older than Kafka 2.1; a newer broker has reported an epoch."""
    versions = {ApiKey.LIST_OFFSETS: (1, 3), ApiKey.METADATA: (0, 7)}
    with ScriptedCluster(nodes=2, versions=versions) as cluster, Admin(cluster.bootstrap, **_QUICK) as admin:
        (tp,) = cluster.add_topic("t")
        for _ in range(2):
            assert _look_up(admin, ApiKey.LIST_OFFSETS, tp) == {tp: (0, -1)}


def test_undefined_epoch_end_is_a_valid_response(cluster: ScriptedCluster) -> None:
    """OffsetForLeaderEpochClientTest.testOkResponse; E48: undefined is an answer."""
    (tp,) = cluster.add_topic("t")
    cluster.logs[tp].elect(2)
    with Admin(cluster.bootstrap, **_QUICK) as admin:
        assert admin.offsets_for_leader_epoch({tp: 9})[tp] == EpochEnd(-1, -1)
        assert admin.offsets_for_leader_epoch({tp: (0, 1)})[tp] == EpochEnd(0, 0)
        with pytest.raises(PeerError) as fenced:
            admin.offsets_for_leader_epoch({tp: (0, 0)})
    assert fenced.value.code is ErrorCode.FENCED_LEADER_EPOCH


def _stale_metadata(cluster: ScriptedCluster, tp: TopicPartition) -> None:
    """From now on metadata keeps reporting the current leader."""
    tells, log = cluster._metadata, cluster.logs[tp]
    leader, epoch = log.leader, log.leader_epoch

    def reported(node_id: int, request: Any, code: ErrorCode | None) -> dict[str, Any]:
        answer = tells(node_id, request, code)
        for topic in answer["topics"]:
            for partition in topic["partitions"]:
                partition["leader_id"], partition["leader_epoch"] = leader, epoch
        return answer

    cluster._metadata = reported  # type: ignore[method-assign]


def _read(consumer: Consumer, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    while len(found) < count:
        found += [record.value for record in consumer.poll(50)]
    return found


@pytest.mark.timeout(60)
def test_reader_follows_the_leader_hint(cluster: ScriptedCluster) -> None:
    """FetcherTest.testWhenFetchResponseReturnsALeaderShipChangeErrorAndNewLeaderInformation; E59: Fetch 16 on."""
    (tp,) = cluster.add_topic("t")
    with Producer(cluster.bootstrap, **_QUICK) as producer, Consumer(cluster.bootstrap, **_QUICK) as consumer:
        producer.send("t", b"before").result(30)
        consumer.assign([tp])
        consumer.seek(tp, 0)
        assert _read(consumer, 1) == [b"before"]
        _stale_metadata(cluster, tp)
        cluster.logs[tp].elect(2)
        producer.send("t", b"after").result(30)
        assert _read(consumer, 1) == [b"after"]
    assert cluster.logs[tp].values() == [b"before", b"after"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("version", "is_told"), [(1, False), (2, True), (3, True)])
def test_too_old_broker_is_not_asked_for_epoch_ends(version: int, is_told: bool) -> None:
    """OffsetFetcherTest.testOffsetValidationSkippedForOldBroker; but a broker that accepts a
    current leader epoch in the request is asked. Without it, a stale leader could answer."""
    versions = {ApiKey.OFFSET_FOR_LEADER_EPOCH: (0, version), ApiKey.FETCH: (4, 11)}
    with ScriptedCluster(nodes=2, versions=versions) as cluster:
        (tp,) = cluster.add_topic("t")
        with Producer(cluster.bootstrap, **_QUICK) as producer, Consumer(cluster.bootstrap, **_QUICK) as consumer:
            for value in (b"0", b"1", b"2"):
                producer.send("t", value, partition=0).result(30)
            consumer.assign([tp])
            consumer.seek(tp, 1, 0)
            assert _read(consumer, 2) == [b"1", b"2"]
        assert bool(_asked(cluster, ApiKey.OFFSET_FOR_LEADER_EPOCH)) is is_told
