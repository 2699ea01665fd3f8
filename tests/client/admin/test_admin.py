"""Admin against real brokers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fenceline.client.admin.admin import Admin, NewTopic
from fenceline.client.core.errors import BrokersUnreachable, ClientError
from fenceline.client.core.offsets import CommittedOffset, EpochEnd
from fenceline.client.producer.producer import Producer
from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.ids import ZERO_UUID, TopicPartition
from fenceline.testing.apache_kafka import free_port
from fenceline.testing.waiting import eventually
from tests.support.committed_offsets import join_alone
from tests.support.raw import RawConnection

MakeTopic = Callable[..., str]


def test_cluster_and_topics(admin: Admin, make_topic: MakeTopic) -> None:
    topic = make_topic(3)
    cluster = admin.describe_cluster()
    assert cluster.cluster_id
    assert [b.port for b in cluster.brokers]
    found = admin.metadata([topic]).topics[topic]
    assert found.id != ZERO_UUID
    assert sorted(found.partitions) == [0, 1, 2]
    leader, leader_epoch, replicas, isr = found.partitions[0][:4]
    assert leader == replicas[0] == isr[0] == cluster.brokers[0].node_id
    assert leader_epoch == 0
    assert topic in admin.metadata().topics


def test_create_reports_the_topic_and_rejects_a_duplicate(admin: Admin, unique: Callable[[str], str]) -> None:
    topic = unique("made")
    made = admin.create_topics([NewTopic(topic, 2, 1, {"retention.ms": "5000"})])[topic]
    assert (made.name, made.num_partitions, made.replication_factor) == (topic, 2, 1)
    with pytest.raises(ClientError) as refused:
        admin.create_topics([topic])
    assert refused.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
    admin.create_partitions({topic: 4})
    admin.delete_topics([topic])
    with pytest.raises(PeerError) as gone:
        admin.delete_topics([topic])
    assert gone.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_missing_topic_is_described_with_its_error(admin: Admin) -> None:
    found = admin.metadata(["never-made"]).topics["never-made"]
    assert (found.error, dict(found.partitions)) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, {})
    with pytest.raises(PeerError) as refused:
        admin.list_offsets({TopicPartition("never-made", 0): "latest"}, timeout_ms=1_500)
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_list_offsets_with_every_spec(admin: Admin, bootstrap: str, make_topic: MakeTopic) -> None:
    tp = TopicPartition(make_topic(), 0)
    assert admin.list_offsets({tp: "latest"})[tp][:2] == (0, 0)
    assert admin.list_offsets({tp: "max_timestamp"})[tp][:2] == (-1, -1)
    with Producer(bootstrap) as producer:
        for at in (1_000, 3_000, 2_000):
            producer.send(tp.topic, b"v", timestamp_ms=at)
    specs: dict[str | int, tuple[int, int]] = {
        "earliest": (0, -1),
        "latest": (3, -1),
        "max_timestamp": (1, 3_000),
        1_500: (1, 3_000),
        4_000: (-1, -1),
    }
    for spec, expected in specs.items():
        found = admin.list_offsets({tp: spec})[tp]
        assert (found.offset, found.timestamp) == expected, spec
    with pytest.raises(OperatorError, match="not an offset"):
        admin.list_offsets({tp: "newest"})


def test_offset_bounds_are_both_ends_of_each_log(admin: Admin, bootstrap: str, make_topic: MakeTopic) -> None:
    filled, empty = TopicPartition(make_topic(), 0), TopicPartition(make_topic(), 0)
    with Producer(bootstrap) as producer:
        for _ in range(5):
            producer.send(filled.topic, b"v")
    admin.delete_records({filled: 3})
    found = admin.offset_bounds([filled, empty])
    assert {tp: (start.offset, end.offset) for tp, (start, end) in found.items()} == {filled: (3, 5), empty: (0, 0)}
    assert found[filled][1].leader_epoch == 0


def test_epoch_end_offsets(admin: Admin, bootstrap: str, make_topic: MakeTopic) -> None:
    tp = TopicPartition(make_topic(), 0)
    with Producer(bootstrap) as producer:
        producer.send(tp.topic, b"v")
    assert admin.offsets_for_leader_epoch({tp: 0})[tp] == EpochEnd(0, 1)
    assert admin.offsets_for_leader_epoch({tp: (0, 0)})[tp] == EpochEnd(0, 1)
    assert admin.offsets_for_leader_epoch({tp: 7})[tp] == EpochEnd(-1, -1)


def test_delete_records_advances_the_log_start(admin: Admin, bootstrap: str, make_topic: MakeTopic) -> None:
    tp = TopicPartition(make_topic(), 0)
    with Producer(bootstrap) as producer:
        for _ in range(5):
            producer.send(tp.topic, b"v")
    assert admin.delete_records({tp: 3}) == {tp: 3}
    assert admin.list_offsets({tp: "earliest"})[tp].offset == 3
    assert admin.delete_records({tp: -1}) == {tp: 5}
    with pytest.raises(PeerError) as refused:
        admin.delete_records({tp: 50})
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_configs_are_altered_incrementally(admin: Admin, make_topic: MakeTopic) -> None:
    topic = make_topic(retention_ms="5000")
    resource = ("topic", topic)
    entry = admin.describe_configs([resource])[resource]["retention.ms"]
    assert (entry.value, entry.source, entry.is_sensitive) == ("5000", "DYNAMIC_TOPIC_CONFIG", False)
    admin.alter_configs({resource: {"retention.ms": None, "segment.bytes": "2000000"}})

    def look() -> bool:
        found = admin.describe_configs([resource])[resource]
        assert found["retention.ms"].source != "DYNAMIC_TOPIC_CONFIG"
        return found["segment.bytes"].value == "2000000"

    assert eventually(look)
    with pytest.raises(PeerError) as refused:
        admin.alter_configs({resource: {"segment.bytes": "many"}})
    assert refused.value.code is ErrorCode.INVALID_CONFIG


def test_broker_config_is_requested_from_that_broker(admin: Admin) -> None:
    node_id = admin.describe_cluster().brokers[0].node_id
    resource = ("broker", str(node_id))
    assert admin.describe_configs([resource])[resource]["node.id"].value == str(node_id)


def test_group_offsets_without_members(admin: Admin, make_topic: MakeTopic, unique: Callable[[str], str]) -> None:
    group, tp = unique("offsets"), TopicPartition(make_topic(2), 1)
    admin.alter_group_offsets(group, {tp: CommittedOffset(7, 3, "note")})
    assert admin.list_group_offsets(group) == {tp: CommittedOffset(7, 3, "note")}
    assert admin.list_group_offsets(group, [TopicPartition(tp.topic, 0)]) == {}
    assert group in [g.group_id for g in admin.list_groups()]
    assert admin.describe_groups([group])[group].members == ()
    admin.delete_group_offsets(group, [tp])
    assert admin.list_group_offsets(group) == {}
    admin.delete_groups([group])
    assert group not in [g.group_id for g in admin.list_groups()]


def test_group_with_undecodable_assignments_is_described(
    admin: Admin, bootstrap: str, unique: Callable[[str], str]
) -> None:
    group, (host, _, port) = unique("odd"), bootstrap.rpartition(":")
    with RawConnection(int(port), host=host) as connection:
        member_id = join_alone(connection, group, 60_000, assignment=b"odd")
        described = admin.describe_groups([group])[group]
        assert [(each.member_id, each.assignment) for each in described.members] == [(member_id, ())]


def test_producers_are_described(admin: Admin, bootstrap: str, make_topic: MakeTopic) -> None:
    tp = TopicPartition(make_topic(), 0)
    with Producer(bootstrap) as producer:
        for _ in range(3):
            producer.send(tp.topic, b"v")
    (found,) = admin.describe_producers([tp])[tp]
    assert (found.producer_epoch, found.last_sequence) == (0, 2)


def test_unreachable_bootstrap_fails_with_a_clear_error_in_time() -> None:
    with Admin(f"127.0.0.1:{free_port()}") as admin, pytest.raises(BrokersUnreachable) as error:
        admin.describe_cluster(timeout_ms=300)
    assert "advertised.listeners" in str(error.value)


def test_closed_client_rejects_calls(bootstrap: str) -> None:
    admin = Admin(bootstrap)
    admin.close()
    admin.close()
    with pytest.raises(OperatorError, match="closed"):
        admin.describe_cluster()
