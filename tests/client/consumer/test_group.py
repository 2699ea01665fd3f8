"""Groups on real brokers: assignment, rebalances, static members, and groups shared with librdkafka consumers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Consumer as ConfluentConsumer

from fenceline.client.admin.admin import Admin, NewTopic
from fenceline.client.consumer import group as group_module
from fenceline.client.consumer.consumer import AsyncConsumer, Consumer
from fenceline.client.core.errors import CommitFailedError, broker_error
from fenceline.client.producer.producer import Producer
from fenceline.errors import ErrorCode
from fenceline.ids import TopicPartition

MakeTopic = Callable[..., str]
Unique = Callable[[str], str]
_STRATEGIES = ["range", "roundrobin", "sticky", "cooperative-sticky"]


class Member:
    """A consumer that polls in its own thread and records its events."""

    def __init__(self, bootstrap: str, topics: list[str], **config: object) -> None:
        defaults = {
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": 100,
            "session.timeout.ms": 30_000,
            "auto.commit.interval.ms": 50,
        }
        self.values: list[bytes] = []
        self.assigned: list[list[TopicPartition]] = []
        self.revoked: list[list[TopicPartition]] = []
        self.error: BaseException | None = None
        self.consumer = Consumer(bootstrap, **{**defaults, **config})
        self.consumer.subscribe(topics, on_assigned=self.assigned.append, on_revoked=self.revoked.append)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self.values += [record.value or b"" for record in self.consumer.poll(100)]
            self.consumer.close()
        except BaseException as error:
            self.error = error

    @property
    def partitions(self) -> set[TopicPartition]:
        return set(self.consumer.assignment())

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(90)
        assert not self._thread.is_alive(), "the member did not stop"
        if self.error is not None:
            raise self.error

    def __enter__(self) -> Member:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _until(condition: Callable[[], bool], what: str, timeout_s: float = 90) -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, f"condition not reached: {what}"
        time.sleep(0.02)


def _balanced(members: list[Member], count: int) -> bool:
    shares = [m.partitions for m in members]
    return sum(map(len, shares)) == count == len(set().union(*shares)) and all(shares)


@pytest.mark.parametrize("strategy", _STRATEGIES)
def test_every_record_is_read_while_members_join_and_leave(
    bootstrap: str, make_topic: MakeTopic, unique: Unique, strategy: str
) -> None:
    topic, group = make_topic(6), unique("group")
    config = {"group.id": group, "partition.assignment.strategy": strategy}
    values = [b"%d" % i for i in range(900)]
    with Producer(bootstrap) as producer, ExitStack() as stack:
        first = stack.enter_context(Member(bootstrap, [topic], **config))
        _until(lambda: _balanced([first], 6), "the first has all")
        for i, value in enumerate(values[:300]):
            producer.send(topic, value, partition=i % 6)
        producer.flush()
        second = Member(bootstrap, [topic], **config)
        _until(lambda: _balanced([first, second], 6), "two share")
        assert len(second.partitions) == 3
        for i, value in enumerate(values[300:600]):
            producer.send(topic, value, partition=i % 6)
        producer.flush()
        _until(lambda: {*first.values, *second.values} >= set(values[:600]), "both read")
        second.stop()
        _until(lambda: _balanced([first], 6), "the first has all again")
        for i, value in enumerate(values[600:]):
            producer.send(topic, value, partition=i % 6)
        producer.flush()
        _until(lambda: {*first.values, *second.values} == set(values), "all is read")
    # No failures, so no duplicates: commits precede revocations.
    assert sorted([*first.values, *second.values]) == sorted(values)
    if strategy == "cooperative-sticky":
        assert all(len(given_up) <= 3 for given_up in first.revoked[:1]), (
            "only the partitions for the other member are revoked"
        )


def test_group_shared_with_librdkafka_members(bootstrap: str, make_topic: MakeTopic, unique: Unique) -> None:
    topic, group = make_topic(4), unique("group")
    for strategy in ("range", "cooperative-sticky"):
        config = {"group.id": f"{group}-{strategy}", "partition.assignment.strategy": strategy}
        other = ConfluentConsumer({**config, "bootstrap.servers": bootstrap, "heartbeat.interval.ms": 100})
        try:
            other.subscribe([topic])
            with Member(bootstrap, [topic], **config) as ours:

                def shared(ours: Member = ours, other: ConfluentConsumer = other) -> bool:
                    other.poll(0.05)
                    theirs = {TopicPartition(p.topic, p.partition) for p in other.assignment()}
                    return len(ours.partitions) == 2 and len(theirs) == 2 and not ours.partitions & theirs

                _until(shared, f"two and two by {strategy}")
        finally:
            other.close()


@pytest.mark.long
def test_classic_members_continue_during_group_migration(bootstrap: str, make_topic: MakeTopic, unique: Unique) -> None:
    """KIP-848: a consumer protocol member migrates the group; classic members keep fetching and committing."""
    topic, group = make_topic(4), unique("group")
    config = {"group.id": group, "partition.assignment.strategy": "range"}
    theirs: list[bytes | None] = []

    def send(stem: bytes) -> set[bytes]:
        values = {stem + b"%d" % i for i in range(40)}
        with Producer(bootstrap) as producer:
            for i, value in enumerate(sorted(values)):
                producer.send(topic, value, partition=i % 4)
        return values

    with ExitStack() as stack:
        first = stack.enter_context(Member(bootstrap, [topic], **config))
        _until(lambda: _balanced([first], 4), "the first has all")
        values = send(b"classic-")
        _until(lambda: set(first.values) == values, "the first has read all")
        new = ConfluentConsumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
            }
        )
        stack.callback(new.close)
        new.subscribe([topic])

        def shared(*ours: Member) -> bool:
            theirs.extend(message.value() for message in new.consume(500, 0.05) if message.error() is None)
            shares = [*(member.partitions for member in ours), {p.partition for p in new.assignment()}]
            return sum(map(len, shares)) == 4 and all(shares)

        _until(lambda: shared(first), "the first and the new one share")
        second = stack.enter_context(Member(bootstrap, [topic], **config))
        _until(lambda: shared(first, second), "three share")
        values |= send(b"migrated-")
        _until(lambda: shared(first, second) and {*first.values, *second.values, *theirs} == values, "all is read")
    # The first member committed what it had read before any other joined.
    assert not {value for value in [*second.values, *theirs] if value and value.startswith(b"classic-")}


def test_static_member_rejoins_with_its_partitions_without_a_rebalance(
    bootstrap: str, make_topic: MakeTopic, unique: Unique
) -> None:
    topic, group = make_topic(4), unique("group")
    config = {"group.id": group, "partition.assignment.strategy": "range", "session.timeout.ms": 30_000}
    with Member(bootstrap, [topic], **config, **{"group.instance.id": "a"}) as first:
        second = Member(bootstrap, [topic], **config, **{"group.instance.id": "b"})
        _until(lambda: _balanced([first, second], 4), "two share")
        before, rounds = second.partitions, len(first.assigned)
        second.stop()
        with Member(bootstrap, [topic], **config, **{"group.instance.id": "b"}) as again:
            _until(lambda: again.partitions == before, "the old partitions are back")
            assert len(first.assigned) == rounds


def test_added_partitions_trigger_a_rebalance(
    bootstrap: str, admin: Admin, make_topic: MakeTopic, unique: Unique
) -> None:
    topic = make_topic(1)
    with Member(bootstrap, [topic], **{"group.id": unique("group"), "metadata.max.age.ms": 200}) as member:
        _until(lambda: len(member.partitions) == 1, "one partition")
        admin.create_partitions({topic: 3})
        _until(lambda: len(member.partitions) == 3, "three partitions")


def test_pattern_subscription_picks_up_new_topics(bootstrap: str, admin: Admin, unique: Unique) -> None:
    stem = unique("pattern")
    admin.create_topics([NewTopic(f"{stem}.a", 1, 1)])
    with Consumer(bootstrap, group_id=unique("group"), metadata_max_age_ms=200) as consumer:
        consumer.subscribe(pattern=f"^{stem}\\..*")

        def topics() -> set[str]:
            consumer.poll(50)
            return {tp.topic for tp in consumer.assignment()}

        _until(lambda: topics() == {f"{stem}.a"}, "the first topic")
        admin.create_topics([NewTopic(f"{stem}.b", 1, 1)])
        _until(lambda: topics() == {f"{stem}.a", f"{stem}.b"}, "the second topic")
    admin.delete_topics([f"{stem}.a", f"{stem}.b"])


def test_listeners_may_commit_and_seek(bootstrap: str, make_topic: MakeTopic, unique: Unique, admin: Admin) -> None:
    tp, group = TopicPartition(make_topic(), 0), unique("group")
    with Producer(bootstrap) as producer:
        for i in range(10):
            producer.send(tp.topic, b"%d" % i)
    config = {"group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    with Consumer(bootstrap, **config) as consumer:
        consumer.subscribe(
            [tp.topic],
            on_assigned=lambda given: [consumer.seek(one, 4) for one in given] and None,
            on_revoked=lambda _: consumer.commit(),
        )
        found: list[bytes | None] = []
        while len(found) < 3:
            found += [r.value for r in consumer.poll(500, max_records=3 - len(found))]
        assert found == [b"4", b"5", b"6"]
    assert admin.list_group_offsets(group)[tp].offset == 7


def test_member_that_stops_polling_is_removed_and_its_commit_rejected(
    bootstrap: str, make_topic: MakeTopic, unique: Unique
) -> None:
    topic, group = make_topic(2), unique("group")
    config = {"group.id": group, "heartbeat.interval.ms": 50}
    lost: list[TopicPartition] = []
    slow = Consumer(bootstrap, **config, **{"max.poll.interval.ms": 400, "enable.auto.commit": False})
    slow.subscribe([topic], on_lost=lost.extend)
    _until(lambda: slow.poll(50) == [] and len(slow.assignment()) == 2, "assigned")
    with Member(bootstrap, [topic], **config) as other:
        _until(lambda: len(other.partitions) == 2, "the other has both")
        with pytest.raises(CommitFailedError, match=r"max\.poll\.interval\.ms"):
            slow.commit({TopicPartition(topic, 0): 0})
        _until(lambda: slow.poll(50) == [] and len(slow.assignment()) == 1, "the slow one is back")
    # At least once: on a busy machine the member may lose its partitions more often.
    assert set(lost) == {TopicPartition(topic, 0), TopicPartition(topic, 1)}
    slow.close()


def test_commit_to_a_loading_coordinator_does_not_overwrite_the_new_owners(
    bootstrap: str, make_topic: MakeTopic, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the response to one background commit is scripted: the coordinator loads until the rebalance is complete."""
    topic, group = make_topic(2), unique("group")
    config = {"group.id": group, "auto.offset.reset": "earliest", "heartbeat.interval.ms": 50}
    with Producer(bootstrap) as producer:
        for number in range(200):
            producer.send(topic, b"%d" % number, partition=number % 2)
    real_commit, held, is_loading = group_module.commit_once, list[asyncio.Task[None] | None](), [False]

    async def commit(*given: Any, **named: Any) -> None:
        if is_loading[0] and not held:
            held.append(asyncio.current_task())
        if is_loading[0] and asyncio.current_task() in held:
            raise broker_error(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "a test")
        await real_commit(*given, **named)

    monkeypatch.setattr(group_module, "commit_once", commit)

    async def story() -> int:
        first = AsyncConsumer(bootstrap, **config, **{"auto.commit.interval.ms": 10})
        other = AsyncConsumer(bootstrap, **config, **{"enable.auto.commit": False})
        async with first, other:
            first.subscribe([topic])
            read = 0
            while read < 20:
                read += len(await first.poll(100, max_records=20 - read))
            is_loading[0] = True
            while not held:
                await first.poll(0, max_records=1)
                await asyncio.sleep(0.02)
            # The commit before the revocation would replace the pending one.
            first._auto_commit._is_on = False
            other.subscribe([topic])
            rows = 0
            while len(other.assignment()) != 1 or rows < 50:
                await first.poll(20, max_records=1)
                rows += len(await other.poll(100))
            (tp,) = other.assignment()
            await other.commit()
            assert tp not in first.assignment()
            is_loading[0] = False
            await asyncio.gather(*filter(None, held), return_exceptions=True)
            found = (await other.committed([tp]))[tp]
            assert found is not None
            return found.offset

    assert asyncio.run(asyncio.wait_for(story(), 120)) == 100


def test_unsubscribing_leaves_the_group(bootstrap: str, make_topic: MakeTopic, unique: Unique, admin: Admin) -> None:
    topic, group = make_topic(1), unique("group")
    with Consumer(bootstrap, group_id=group) as consumer:
        consumer.subscribe([topic])
        _until(lambda: consumer.poll(50) == [] and len(consumer.assignment()) == 1, "assigned")
        assert consumer.subscription() == {topic}
        assert len(admin.describe_groups([group])[group].members) == 1
        consumer.unsubscribe()
        assert consumer.assignment() == []
        assert admin.describe_groups([group])[group].state == "Empty"
        consumer.assign([TopicPartition(topic, 0)])
        assert consumer.poll(10) == []


@pytest.mark.parametrize("ends", ["close", "unsubscribe"])
def test_a_member_that_is_still_joining_leaves(
    bootstrap: str, make_topic: MakeTopic, unique: Unique, admin: Admin, ends: str
) -> None:
    """Its join waits for a member that does not poll. The group must not wait for its session instead."""
    topic, group = make_topic(1), unique("group")
    with Consumer(bootstrap, group_id=group, **{"heartbeat.interval.ms": 100}) as first:
        first.subscribe([topic])
        _until(lambda: first.poll(50) == [] and len(first.assignment()) == 1, "assigned")
        joining = Consumer(bootstrap, group_id=group)
        joining.subscribe([topic])
        _until(
            lambda: joining.poll(50) == [] and len(admin.describe_groups([group])[group].members) == 2,
            "the second member joins",
        )
        getattr(joining, ends)()
        _until(lambda: len(admin.describe_groups([group])[group].members) == 1, "it has left")
        joining.close()
        _until(lambda: first.poll(50) == [] and len(first.assignment()) == 1, "assigned again")
