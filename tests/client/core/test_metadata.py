"""The metadata cache never lets an older answer replace a newer one (`epochs.md` E57-E60)."""

from __future__ import annotations

from types import SimpleNamespace
from uuid import UUID

import pytest

from fenceline.client.core.metadata import (
    BrokerAddress,
    ClusterMetadata,
    LeaderAndEpoch,
    MetadataCache,
    MetadataReader,
    PartitionMetadata,
    TopicMetadata,
    parse_metadata,
)
from fenceline.errors import ErrorCode
from fenceline.ids import ZERO_UUID, TopicPartition
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import write_response

_ID, _OTHER_ID = UUID(int=7), UUID(int=8)
_TP = TopicPartition("t", 0)
_BROKERS = {n: BrokerAddress(n, "h", 9000 + n) for n in (1, 2)}


def _answer(leader: int, epoch: int, topic_id: UUID = _ID, error: ErrorCode = ErrorCode.NONE) -> ClusterMetadata:
    partition = PartitionMetadata(leader, epoch, (1, 2), (1, 2), error)
    return ClusterMetadata("c", 1, _BROKERS, {"t": TopicMetadata("t", topic_id, {0: partition})})


def _cache(*answers: ClusterMetadata) -> MetadataCache:
    cache = MetadataCache()
    for answer in answers:
        cache.apply(answer, asked=["t"])
    return cache


def test_a_lower_epoch_keeps_the_old_partition() -> None:
    cache = _cache(_answer(1, 5), _answer(2, 4))
    assert cache.leader(_TP) == LeaderAndEpoch(1, 5)


@pytest.mark.parametrize("epoch", [5, 6])
def test_an_equal_or_greater_epoch_is_accepted(epoch: int) -> None:
    assert _cache(_answer(1, 5), _answer(2, epoch)).leader(_TP) == LeaderAndEpoch(2, epoch)


def test_another_topic_id_is_accepted_at_any_epoch() -> None:
    assert _cache(_answer(1, 5), _answer(2, 0, _OTHER_ID)).leader(_TP) == LeaderAndEpoch(2, 0)


def test_topic_id_is_accepted_at_any_epoch_when_none_was_known() -> None:
    assert _cache(_answer(1, 5, ZERO_UUID), _answer(2, 0)).leader(_TP) == LeaderAndEpoch(2, 0)


def test_an_absent_epoch_forgets_the_last_seen_one() -> None:
    cache = _cache(_answer(1, 5), _answer(2, -1))
    assert cache.leader(_TP) == LeaderAndEpoch(2, -1)


def test_a_newer_epoch_seen_elsewhere_hides_the_leader_until_metadata_has_it() -> None:
    cache = _cache(_answer(1, 5))
    assert not cache.note_epoch(_TP, 5)
    assert cache.note_epoch(_TP, 6)
    assert cache.leader(_TP) == LeaderAndEpoch(-1, 6)
    cache.apply(_answer(2, 6))
    assert cache.leader(_TP) == LeaderAndEpoch(2, 6)


def test_epoch_seen_before_metadata_is_remembered() -> None:
    """G8: a leader with an older epoch is not trusted."""
    cache = _cache()
    assert cache.note_epoch(_TP, 6)
    cache.apply(_answer(1, 5), asked=["t"])
    assert cache.leader(_TP) == LeaderAndEpoch(-1, 6)
    cache.apply(_answer(2, 6), asked=["t"])
    assert cache.leader(_TP) == LeaderAndEpoch(2, 6)


def test_a_hint_is_taken_only_when_newer_and_resolvable() -> None:
    cache = _cache(_answer(1, 5))
    assert not cache.accept_hint(_TP, 2, 5)
    assert not cache.accept_hint(_TP, 9, 6)
    assert not cache.accept_hint(TopicPartition("u", 0), 2, 6)
    assert cache.accept_hint(_TP, 2, 6)
    assert cache.leader(_TP) == LeaderAndEpoch(2, 6)
    assert cache.accept_hint(_TP, 9, 7, {9: BrokerAddress(9, "h", 1)})
    assert cache.leader(_TP) == LeaderAndEpoch(9, 7)


def test_a_partition_without_leader_has_an_epoch() -> None:
    cache = _cache(_answer(-1, 5, error=ErrorCode.LEADER_NOT_AVAILABLE))
    assert cache.leader(_TP) == LeaderAndEpoch(-1, 5)


def test_deleted_topics_are_removed() -> None:
    cache = _cache(_answer(1, 5))
    unknown = TopicMetadata("t", ZERO_UUID, {}, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    cache.apply(ClusterMetadata("c", 1, _BROKERS, {"t": unknown}), asked=["t"])
    assert cache.leader(_TP) == LeaderAndEpoch(-1, -1)
    cache = _cache(_answer(1, 5))
    cache.apply(ClusterMetadata("c", 1, _BROKERS, {}), complete=True)
    assert "t" not in cache.topics


def test_transient_error_does_not_remove_a_topic() -> None:
    cache = _cache(_answer(1, 5))
    refused = TopicMetadata("t", ZERO_UUID, {}, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    cache.apply(ClusterMetadata("c", 1, _BROKERS, {"t": refused}), asked=["t"])
    assert cache.leader(_TP) == LeaderAndEpoch(1, 5)


@pytest.mark.parametrize(("version", "epoch"), [(8, -1), (9, 4)])
def test_epochs_of_old_metadata_versions_are_not_trusted(version: int, epoch: int) -> None:
    partition = SimpleNamespace(
        partition_index=0, error_code=0, leader_id=1, leader_epoch=4, replica_nodes=(1,), isr_nodes=(1,)
    )
    topic = SimpleNamespace(name="t", error_code=0, is_internal=False, partitions=(partition,))
    response = SimpleNamespace(
        brokers=(SimpleNamespace(node_id=1, host="h", port=1, rack=None),),
        cluster_id="c",
        controller_id=1,
        topics=(topic,),
    )
    assert parse_metadata(version, response).topics["t"].partitions[0].leader_epoch == epoch


def _looked_up(cache: MetadataCache) -> MetadataCache:
    """The cache after a look, whose result must not outlive the next change."""
    cache.leader(_TP)
    return cache


def test_looked_up_leader_changes_with_metadata_epochs_hints_and_brokers() -> None:
    cache = _looked_up(_cache(_answer(1, 5)))
    cache.apply(_answer(2, 6), asked=["t"])
    assert cache.leader(_TP) == LeaderAndEpoch(2, 6)
    assert cache.note_epoch(_TP, 7)
    assert cache.leader(_TP) == LeaderAndEpoch(-1, 7)
    assert cache.accept_hint(_TP, 1, 8)
    assert cache.leader(_TP) == LeaderAndEpoch(1, 8)
    cache.forget_brokers()
    assert cache.leader(_TP) == LeaderAndEpoch(-1, 8)
    cache.apply(_answer(1, 8), asked=["t"])
    assert cache.leader(_TP) == LeaderAndEpoch(1, 8)
    cache.apply(ClusterMetadata("c", 1, {2: _BROKERS[2]}, {}))
    assert cache.leader(_TP) == LeaderAndEpoch(-1, 8), "the leader has left the cluster"
    cache.apply(ClusterMetadata("c", 1, _BROKERS, {}))
    assert cache.leader(_TP) == LeaderAndEpoch(1, 8)
    cache.apply(ClusterMetadata("c", 1, _BROKERS, {}), asked=["t"])
    assert cache.leader(_TP) == LeaderAndEpoch(-1, -1), "the topic was deleted"


def test_equal_answer_changes_nothing_but_the_version() -> None:
    cache = _looked_up(_cache(_answer(1, 5)))
    cache.note_epoch(_TP, 6)
    before = cache.update_version
    cache.apply(_answer(1, 5), asked=["t"])
    assert cache.leader(_TP) == LeaderAndEpoch(-1, 6), "newer metadata is still awaited (E58)"
    assert cache.update_version == before + 1


def _response(*topics: str, epoch: int = 3) -> memoryview:
    partition = {"partition_index": 0, "leader_id": 1, "leader_epoch": epoch, "replica_nodes": [1], "isr_nodes": [1]}
    fields = {
        "brokers": [{"node_id": 1, "host": "h", "port": 9, "rack": None}],
        "cluster_id": "c",
        "controller_id": 1,
        "topics": [{"name": name, "topic_id": _ID, "partitions": [partition]} for name in topics],
    }
    return memoryview(write_response(ApiKey.METADATA, 12, fields))


def test_equal_bytes_are_read_once() -> None:
    read = MetadataReader()
    first, second = read(12, _response("a", "b")), read(12, _response("a"))
    assert set(first[1].topics) == {"a", "b"}
    for _ in range(3):
        assert read(12, _response("a", "b")) is first
        assert read(12, _response("a")) is second
    changed = read(12, _response("a", epoch=4))
    assert changed[1].topics["a"].partitions[0].leader_epoch == 4
    assert read(11, _response("a", epoch=4)) is not changed, "of another version"
