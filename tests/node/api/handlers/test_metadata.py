from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from fenceline.errors import ErrorCode
from fenceline.metadata.image import LOST_DIRECTORY, UNASSIGNED_DIRECTORY, Endpoint
from fenceline.node.api.handlers import metadata_encoding
from fenceline.node.replication.absent_brokers import NO_ABSENT, Absent
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import write_response
from tests.node.api.handlers.fakes import FakeBroker, ask, broker_image, image_of, partition, topic_image


def metadata(broker: FakeBroker, version: int, *names: str, listener: str = "PLAINTEXT", **more: Any) -> Any:
    fields = {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": True, **more}
    return asyncio.run(ask(broker, ApiKey.METADATA, version, listener, **fields))


@pytest.mark.parametrize("version", range(14))
def test_fast_encoder_matches_the_schema(version: int) -> None:
    """The encoder compared with the generic codec, with every field set."""
    brokers = (broker_image(1, rack="r"), broker_image(2), broker_image(3, fenced=True))
    topic = topic_image("t", partition((1, 2), leader_epoch=7), partition((2, 1), isr=(2,)), number=99)
    broker = FakeBroker(image_of([topic], brokers), {"auto.create.topics.enable": "false"})
    row = {"partitions": []}
    for index, each in enumerate(topic.partitions):
        row["partitions"].append(
            {
                "error_code": 0,
                "partition_index": index,
                "leader_id": each.leader,
                "leader_epoch": each.leader_epoch,
                "replica_nodes": each.replicas,
                "isr_nodes": each.isr,
                "offline_replicas": (),
            }
        )
    expected = {
        "brokers": [
            {"node_id": 1, "host": "host1", "port": 9092, "rack": "r"},
            {"node_id": 2, "host": "host2", "port": 9092, "rack": None},
        ],
        "cluster_id": "cluster",
        "controller_id": 1,
        "cluster_authorized_operations": -(2**31),
        "topics": [
            {
                "error_code": 0,
                "name": "t",
                "topic_id": topic.id,
                "is_internal": False,
                "topic_authorized_operations": -(2**31),
                **row,
            },
            {
                "error_code": 3,
                "name": "__consumer_offsets",
                "is_internal": True,
                "topic_authorized_operations": -(2**31),
            },
        ],
    }
    request = [{"name": "t"}, {"name": "__consumer_offsets"}]
    answer = metadata(broker, version, topics=request)
    from fenceline.wire.entities import read_response

    assert answer == read_response(ApiKey.METADATA, version, write_response(ApiKey.METADATA, version, expected))


def test_fenced_replicas_are_offline_and_omitted_in_version_0() -> None:
    brokers = (broker_image(1), broker_image(2, fenced=True))
    broker = FakeBroker(image_of([topic_image("t", partition((1, 2)))], brokers))
    reported = metadata(broker, 9, "t").topics[0].partitions[0]
    assert (reported.error_code, reported.replica_nodes, reported.isr_nodes, reported.offline_replicas) == (
        0,
        (1, 2),
        (1, 2),
        (2,),
    )
    oldest = metadata(broker, 0, "t").topics[0].partitions[0]
    assert (oldest.error_code, oldest.replica_nodes) == (ErrorCode.REPLICA_NOT_AVAILABLE, (1,))
    assert [each.node_id for each in metadata(broker, 9, "t").brokers] == [1]


@pytest.mark.parametrize("version", [0, 8, 13])
def test_broker_lists_itself_when_every_broker_is_fenced(version: int) -> None:
    """As when a whole cluster starts: a client that gets an empty broker list could not ask any broker again."""
    fenced = [broker_image(each, fenced=True) for each in (1, 2)]
    reported = metadata(FakeBroker(image_of([topic_image("t", partition((1, 2), leader=-1))], fenced)), version, "t")
    assert [each.node_id for each in reported.brokers] == [1]
    assert reported.topics[0].partitions[0].leader_id == -1
    one_lives = [fenced[0], broker_image(2)]
    assert [each.node_id for each in metadata(FakeBroker(image_of([], one_lives)), version).brokers] == [2]
    unknown = [broker_image(2, fenced=True)]
    assert metadata(FakeBroker(image_of([], unknown)), version).brokers == ()


def test_a_partition_without_leader() -> None:
    broker = FakeBroker(image_of([topic_image("t", partition((1,), isr=(), leader=-1, leader_epoch=4))]))
    reported = metadata(broker, 9, "t").topics[0].partitions[0]
    assert (reported.error_code, reported.leader_id, reported.leader_epoch) == (ErrorCode.LEADER_NOT_AVAILABLE, -1, 4)


@pytest.mark.parametrize(("version", "code"), [(5, ErrorCode.LEADER_NOT_AVAILABLE), (6, ErrorCode.LISTENER_NOT_FOUND)])
def test_leader_without_this_listener(version: int, code: ErrorCode) -> None:
    brokers = (
        broker_image(1),
        broker_image(2, endpoints=(Endpoint("PLAINTEXT", "a", 1, 0), Endpoint("INSIDE", "b", 2, 0))),
    )
    broker = FakeBroker(image_of([topic_image("t", partition((1, 2)))], brokers))
    answer = metadata(broker, version, "t", listener="INSIDE")
    assert [(each.host, each.port) for each in answer.brokers] == [("b", 2)]
    reported = answer.topics[0].partitions[0]
    assert (reported.error_code, reported.leader_id, reported.offline_replicas) == (code, -1, (1,))


@pytest.mark.parametrize("version", [0, 8, 13])
def test_disconnected_leader_is_hidden_from_clients_of_its_topic(version: int) -> None:
    topic = topic_image("t", partition((1, 2), leader=2, leader_epoch=4), partition((1, 2), leader_epoch=5))
    broker = FakeBroker(image_of([topic], (broker_image(1), broker_image(2))))
    before = metadata(broker, version, "t")
    broker.absent = Absent(disconnected=frozenset({2}))
    answer = metadata(broker, version, "t")
    left, led = answer.topics[0].partitions
    assert (left.error_code, left.leader_id, left.isr_nodes) == (ErrorCode.LEADER_NOT_AVAILABLE, -1, (1, 2))
    assert version < 7 or left.leader_epoch == 4
    assert (led.error_code, led.leader_id) == (0, 1)
    assert answer.brokers == before.brokers
    everything = metadata(broker, version, topics=[] if version == 0 else None)
    assert [each.leader_id for each in everything.topics[0].partitions] == [2, 1], (
        "requests for all topics show the metadata unchanged"
    )
    assert metadata(broker, version, "t") == answer
    broker.absent = NO_ABSENT
    assert metadata(broker, version, "t") == before


def test_disconnected_leader_is_hidden_in_requests_by_topic_id() -> None:
    topic = topic_image("t", partition((1, 2), leader=2))
    broker = FakeBroker(image_of([topic], (broker_image(1), broker_image(2))))
    broker.absent = Absent(disconnected=frozenset({2}))
    answer = metadata(broker, 13, topics=[{"topic_id": topic.id, "name": None}])
    assert answer.topics[0].partitions[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE


def test_recently_fenced_broker_is_still_listed() -> None:
    brokers = (broker_image(1), broker_image(2, fenced=True), broker_image(3, fenced=True))
    topic = topic_image("t", partition((1, 2), isr=(1,), leader_epoch=5))
    broker = FakeBroker(image_of([topic], brokers))
    broker.absent = Absent(recently_fenced=frozenset({2}))

    def named(**fields: Any) -> list[int]:
        return [each.node_id for each in metadata(broker, 12, **fields).brokers]

    assert named(topics=[{"name": "t"}]) == [1, 2]
    assert metadata(broker, 12, "t").topics[0].partitions[0].offline_replicas == (2,)
    assert named(topics=None) == named(topics=[]) == [1], "requests for all topics list live brokers only"
    broker.absent = Absent(recently_fenced=frozenset({2, 3}))
    assert named(topics=[{"name": "t"}]) == [1, 2, 3]
    broker.absent = NO_ABSENT
    assert named(topics=[{"name": "t"}]) == [1]


def test_a_lost_directory_is_an_offline_replica() -> None:
    lost = partition((1,), directories=(LOST_DIRECTORY,))
    unknown = partition((1,), directories=(UUID(int=4711),))
    unassigned = partition((1,), directories=(UNASSIGNED_DIRECTORY,))
    broker = FakeBroker(image_of([topic_image("t", lost, unknown, unassigned)]))
    reported = metadata(broker, 9, "t").topics[0].partitions
    assert [each.offline_replicas for each in reported] == [(1,), (1,), ()]


def test_missing_topic_is_created_and_returned() -> None:
    broker = FakeBroker(image_of([topic_image("t")]))
    answer = metadata(broker, 9, "t", "new", "bad/name", "__cluster_metadata", "__transaction_state")
    assert broker.created == [("new",)]
    assert {each.name: each.error_code for each in answer.topics} == {
        "t": 0,
        "new": 0,
        "bad/name": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "__cluster_metadata": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "__transaction_state": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_failed_auto_creation_returns_unknown_topic() -> None:
    answer = metadata(FakeBroker(image_of()), 9, "refused")
    assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("version", "flag", "enabled", "created"),
    [(4, True, True, True), (4, False, True, False), (3, False, True, True), (4, True, False, False)],
)
def test_when_topics_are_auto_created(version: int, flag: bool, enabled: bool, created: bool) -> None:
    broker = FakeBroker(image_of(), {"auto.create.topics.enable": str(enabled).lower()})
    metadata(broker, version, "new", allow_auto_topic_creation=flag)
    assert bool(broker.created) is created


def test_full_responses_are_cached_until_the_image_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = [topic_image(f"t{n}") for n in range(100)]
    broker = FakeBroker(image_of(topics))
    encoded: list[str] = []
    original = metadata_encoding.MetadataEncoder._encode_topic

    def count(encoder: metadata_encoding.MetadataEncoder, topic: Any) -> bytes:
        encoded.append(topic.name)
        return original(encoder, topic)

    monkeypatch.setattr(metadata_encoding.MetadataEncoder, "_encode_topic", count)
    first = metadata(broker, 12, topics=None)
    broker.image = replace(broker.image, offset=11)
    assert metadata(broker, 12, topics=None) == first
    assert len(encoded) == 100, "a new offset alone does not invalidate the cache"
    broker.image = replace(
        broker.image, topics_by_name=broker.image.topics_by_name.set("t5", topic_image("t5", partition(), partition()))
    )
    changed = metadata(broker, 12, topics=None)
    assert len({each.name: each for each in changed.topics}["t5"].partitions) == 2
    broker.image = replace(broker.image, brokers=broker.image.brokers.set(1, broker_image(1, fenced=True)))
    assert metadata(broker, 12, topics=None).controller_id == -1


def test_equal_partitions_are_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 partitions on one node differ in their index only."""
    broker = FakeBroker(image_of([topic_image("big", *([partition()] * 10_000))]))
    calls: list[object] = []
    original = metadata_encoding.MetadataEncoder._encode_partition

    def count(encoder: metadata_encoding.MetadataEncoder, each: Any) -> tuple[bytes, bytes]:
        calls.append(each)
        return original(encoder, each)

    monkeypatch.setattr(metadata_encoding.MetadataEncoder, "_encode_partition", count)
    answer = metadata(broker, 12, "big")
    assert [each.partition_index for each in answer.topics[0].partitions] == list(range(10_000))
    assert len(calls) == 1


def describe(broker: FakeBroker, **fields: Any) -> Any:
    return asyncio.run(ask(broker, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, **fields))


def test_cursor_returns_every_partition_once() -> None:
    topics = [topic_image(f"t{n}", *([partition()] * n)) for n in range(1, 6)]
    broker = FakeBroker(image_of(topics))
    seen: list[tuple[str, int]] = []
    cursor = None
    for _ in range(100):
        answer = describe(broker, topics=[], response_partition_limit=2, cursor=cursor)
        seen += [(topic.name, each.partition_index) for topic in answer.topics for each in topic.partitions]
        cursor = answer.next_cursor and {
            "topic_name": answer.next_cursor.topic_name,
            "partition_index": answer.next_cursor.partition_index,
        }
        if cursor is None:
            break
    assert seen == [(f"t{n}", index) for n in range(1, 6) for index in range(n)]


def test_partition_limit_of_the_node_applies() -> None:
    broker = FakeBroker(image_of([topic_image("t", *([partition()] * 9))]), {"max.request.partition.size.limit": "4"})
    answer = describe(broker, topics=[{"name": "t"}], response_partition_limit=2000)
    assert len(answer.topics[0].partitions) == 4
    assert answer.next_cursor.partition_index == 4


def test_eligible_leaders_are_described() -> None:
    broker = FakeBroker(image_of([topic_image("t", partition((1,), isr=(), leader=-1, elr=(1,), last_known_elr=(2,)))]))
    reported = describe(broker, topics=[{"name": "t"}], response_partition_limit=1).topics[0].partitions[0]
    assert (reported.eligible_leader_replicas, reported.last_known_elr, reported.leader_id) == ((1,), (2,), -1)


def test_request_without_creation_is_answered_synchronously() -> None:
    broker = FakeBroker(image_of([topic_image("t")]))
    fields = {"topics": [{"name": "t"}], "allow_auto_topic_creation": True}
    assert isinstance(broker.call(ApiKey.METADATA, 12, **fields), bytes)
