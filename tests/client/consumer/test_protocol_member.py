"""Members of the consumer protocol (KIP-848) on real brokers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fenceline.client import Admin, CommittedOffset, Consumer, NewTopic, Producer
from fenceline.client.core.errors import CommitFailedError
from fenceline.errors import PeerError
from fenceline.ids import TopicPartition
from fenceline.testing.waiting import eventually
from fenceline.wire.apis import ApiKey
from tests.client.scripted_cluster import ScriptedCluster

MakeTopic = Callable[..., str]
Unique = Callable[[str], str]
PARTITIONS = 6


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    return make_topic(PARTITIONS)


@pytest.fixture
def group(unique: Unique) -> str:
    return unique("consumer-group")


@pytest.fixture
def join(bootstrap: str, group: str) -> Iterator[Callable[..., Consumer]]:
    with contextlib.ExitStack() as stack:

        def make(**config: Any) -> Consumer:
            settings = {"group.id": group, "group.protocol": "consumer", "auto.offset.reset": "earliest", **config}
            return stack.enter_context(Consumer(bootstrap, **settings))

        yield make


def _assigned(consumers: list[Consumer], topic: str, count: int = PARTITIONS) -> list[set[TopicPartition]]:
    """Poll all until they share the partitions."""

    def shared() -> list[set[TopicPartition]] | None:
        for consumer in consumers:
            consumer.poll(50)
        each = [set(consumer.assignment()) for consumer in consumers]
        wanted = {TopicPartition(topic, index) for index in range(count)}
        is_shared = set.union(*each) == wanted and sum(map(len, each)) == count and all(each)
        return each if is_shared else None

    return eventually(shared, "a shared assignment")


def test_one_member_reads_everything_and_commits(
    bootstrap: str, topic: str, group: str, join: Callable[..., Consumer], admin: Admin
) -> None:
    with Producer(bootstrap) as producer:
        for number in range(60):
            producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
    consumer = join()
    consumer.subscribe([topic])
    found: list[int] = []
    eventually(lambda: found.extend(int(r.value or b"") for r in consumer.poll(100)) or len(found) == 60, "60 records")
    assert sorted(found) == list(range(60))
    consumer.commit()
    assert {tp.partition: at.offset for tp, at in admin.list_group_offsets(group).items()} == dict.fromkeys(
        range(6), 10
    )
    assert consumer.group_metadata().generation_id >= 1
    assert admin.describe_groups([group])[group].state == "Stable"
    consumer.close()
    eventually(lambda: admin.describe_groups([group])[group].state == "Empty", "an empty group")


def test_partitions_move_between_members_without_loss(
    bootstrap: str, topic: str, join: Callable[..., Consumer]
) -> None:
    """Each record is read by exactly one member, although members join and leave: positions are committed before
    partitions are revoked."""
    events: list[tuple[str, str, list[TopicPartition]]] = []

    def subscribe(consumer: Consumer, name: str) -> None:
        consumer.subscribe(
            [topic],
            on_assigned=lambda tps: events.append((name, "assigned", tps)),
            on_revoked=lambda tps: events.append((name, "revoked", tps)),
        )

    first, second = join(), join()
    found: list[int] = []

    def take(*consumers: Consumer, until: int) -> None:
        def poll() -> bool:
            for consumer in consumers:
                found.extend(int(record.value or b"") for record in consumer.poll(50))
            return len(found) >= until

        eventually(poll, f"{until} records")

    with Producer(bootstrap) as producer:

        def send(start: int, end: int) -> None:
            for number in range(start, end):
                producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
            producer.flush()

        subscribe(first, "first")
        send(0, 60)
        take(first, until=60)
        subscribe(second, "second")
        _assigned([first, second], topic)
        send(60, 120)
        take(first, second, until=120)
        first.close()
        send(120, 180)
        take(second, until=180)
    assert sorted(found) == list(range(180))
    revoked = [tp for name, what, tps in events if (name, what) == ("first", "revoked") for tp in tps]
    assert len(revoked) == PARTITIONS


def test_a_fenced_member_loses_its_partitions_and_joins_again(topic: str, join: Callable[..., Consumer]) -> None:
    lost: list[TopicPartition] = []
    consumer = join()
    consumer.subscribe([topic], on_lost=lost.extend)
    (before,) = _assigned([consumer], topic)
    stale = consumer.group_metadata()
    protocol = consumer._async._group._protocol
    wrong_epoch = protocol.epoch + 100

    def is_fenced() -> bool:
        if not lost:
            protocol.epoch = wrong_epoch  # again: the answer of a heartbeat may have been on its way
        assert consumer.poll(50) == []
        return bool(lost)

    eventually(is_fenced, "lost partitions", wait_s=30)
    assert set(lost) == before
    _assigned([consumer], topic)
    assert consumer.group_metadata().member_id == stale.member_id
    consumer.commit()


def test_a_commit_of_a_former_membership_fails(topic: str, join: Callable[..., Consumer]) -> None:
    consumer = join(**{"enable.auto.commit": False})
    consumer.subscribe([topic])
    _assigned([consumer], topic)
    tp = TopicPartition(topic, 0)
    consumer.commit({tp: 0})
    core = consumer._async
    captured = core._capture_commit({tp: CommittedOffset(0)})
    core._group._protocol.fenced()
    with pytest.raises(CommitFailedError):
        consumer.commit({tp: 0})
    _assigned([consumer], topic)
    # The partition is assigned again, but another member may have committed it meanwhile.
    with pytest.raises(CommitFailedError, match="not a member any more"):
        consumer._run(core._send_commit(captured, None))
    consumer.commit({tp: 0})


def test_a_member_that_does_not_poll_leaves(topic: str, join: Callable[..., Consumer]) -> None:
    stuck, other = join(**{"max.poll.interval.ms": 1_000}), join()
    stuck.subscribe([topic])
    _assigned([stuck], topic)
    other.subscribe([topic])
    _assigned([other], topic)
    # It joins again with its next poll.
    _assigned([stuck, other], topic)


def test_a_static_member_gets_its_partitions_back(topic: str, join: Callable[..., Consumer]) -> None:
    first, second = (join(**{"group.instance.id": name}) for name in ("a", "b"))
    for consumer in (first, second):
        consumer.subscribe([topic])
    _, before = _assigned([first, second], topic)
    second.close()
    for _ in range(5):
        first.poll(50)
    assert not set(first.assignment()) & before
    again = join(**{"group.instance.id": "b"})
    again.subscribe([topic])
    eventually(lambda: first.poll(50) == [] and again.poll(50) == [] and set(again.assignment()) == before, "the same")


def test_two_members_with_one_instance_id(topic: str, join: Callable[..., Consumer]) -> None:
    first, second = join(**{"group.instance.id": "a"}), join(**{"group.instance.id": "a"})
    first.subscribe([topic])
    _assigned([first], topic)
    second.subscribe([topic])

    def poll() -> bool:
        second.poll(100)
        return False

    with pytest.raises(PeerError, match=r"group\.instance\.id"):
        _raised(poll)


def _raised(poll: Callable[[], bool]) -> None:
    for _ in range(200):
        poll()


def test_a_pattern_is_matched_by_the_coordinator(
    bootstrap: str, admin: Admin, unique: Unique, join: Callable[..., Consumer]
) -> None:
    stem = unique("pattern").replace("-", "_")
    names = [f"{stem}-a", f"{stem}-b"]
    admin.create_topics([NewTopic(name, 1, 1, {}) for name in [*names, f"other-{stem}"]])
    consumer = join(**{"metadata.max.age.ms": 500})
    consumer.subscribe(pattern=f"{stem}-.*")

    def topics() -> set[str]:
        consumer.poll(50)
        return {tp.topic for tp in consumer.assignment()}

    eventually(lambda: topics() == set(names), "both topics")
    consumer.unsubscribe()
    assert consumer.assignment() == []
    consumer.subscribe([names[0]])
    eventually(lambda: topics() == {names[0]}, "one topic")
    consumer.close()
    admin.delete_topics([*names, f"other-{stem}"])


def test_an_invalid_pattern_is_reported(join: Callable[..., Consumer]) -> None:
    consumer = join()
    consumer.subscribe(pattern="(")
    with pytest.raises(PeerError, match="RE2"):
        _raised(lambda: consumer.poll(100) == [])


def test_an_unknown_assignor_is_reported(topic: str, join: Callable[..., Consumer]) -> None:
    consumer = join(**{"group.remote.assignor": "best"})
    consumer.subscribe([topic])
    with pytest.raises(PeerError, match=r"group\.consumer\.assignors"):
        _raised(lambda: consumer.poll(100) == [])


def test_brokers_without_the_protocol() -> None:
    config = {"group.id": "g", "group.protocol": "consumer"}
    with ScriptedCluster() as cluster, Consumer(cluster.bootstrap, **config) as consumer:
        cluster.add_topic("t")
        assert ApiKey.CONSUMER_GROUP_HEARTBEAT not in cluster.versions
        consumer.subscribe(["t"])
        with pytest.raises(PeerError, match=r"use group\.protocol=classic"):
            _raised(lambda: consumer.poll(100) == [])
