"""Third-party clients in consumer protocol groups (KIP-848) on a running node: librdkafka and Kafka's Java client."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from fenceline.testing.apache_kafka import run_tool
from fenceline.testing.node import EmbeddedNode
from tests.support import client_threads

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

RECORDS = 400
PARTITIONS = 4
_names = itertools.count()


@pytest.fixture
def topic(fenceline_node: EmbeddedNode) -> str:
    """A fresh topic with records in all of its partitions."""
    name = f"next-{next(_names)}"
    admin = AdminClient({"bootstrap.servers": fenceline_node.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(60)
    fill(fenceline_node, name, RECORDS)
    return name


@pytest.fixture
def members() -> Iterator[ExitStack]:
    """Closes the consumers of a test."""
    with ExitStack() as stack:
        stack.enter_context(client_threads.quiet_clients())
        yield stack


def fill(node: EmbeddedNode, topic: str, count: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": node.bootstrap})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(60) == 0


def until(condition: Callable[[], bool], wait_s: float = 200) -> None:
    deadline = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < deadline, "the condition was not reached"


class Member:
    """A consumer and what it has read, as (topic, partition, offset)."""

    def __init__(
        self, stack: ExitStack, node: EmbeddedNode, group: str, *topics: str, protocol: str = "consumer", **more: Any
    ) -> None:
        settings = {
            "bootstrap.servers": node.bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **more,
        }
        self.consumer = confluent_kafka.Consumer(settings)
        self.read: list[tuple[Any, ...]] = []
        self.is_closed = False
        self.consumer.subscribe(list(topics))
        stack.callback(self.close)

    def poll(self) -> None:
        before = len(self.read)
        for message in self.consumer.consume(500, 0.1):
            error = message.error()
            assert error is None or error.retriable(), error
            if error is None:
                self.read.append((message.topic(), message.partition(), message.offset()))
        if len(self.read) > before:
            # Records of partitions that it no longer owns are read again by the next owner.
            with suppress(confluent_kafka.KafkaException):
                self.consumer.commit(asynchronous=False)

    @property
    def share(self) -> set[int]:
        return {each.partition for each in self.consumer.assignment()}

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.consumer.close()


def poll_until(members: list[Member], condition: Callable[[], bool]) -> None:
    def step() -> bool:
        for member in members:
            member.poll()
        return condition()

    until(step)


def described(node: EmbeddedNode, group: str) -> Any:
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    return admin.describe_consumer_groups([group])[group].result(60)


def test_two_members_share_partitions_without_duplicates(
    fenceline_node: EmbeddedNode, topic: str, members: ExitStack
) -> None:
    one = Member(members, fenceline_node, f"g-{topic}", topic)
    poll_until([one], lambda: len(one.read) >= RECORDS)
    assert one.share == set(range(PARTITIONS))
    two = Member(members, fenceline_node, f"g-{topic}", topic)
    poll_until([one, two], lambda: len(one.share) == 2 and len(two.share) == 2)
    fill(fenceline_node, topic, RECORDS)
    poll_until([one, two], lambda: len(one.read) + len(two.read) >= 2 * RECORDS)
    read = one.read + two.read
    assert len(read) == len(set(read)) == 2 * RECORDS
    assert not one.share & two.share
    one.close()
    poll_until([two], lambda: two.share == set(range(PARTITIONS)))
    group = described(fenceline_node, f"g-{topic}")
    assert str(group.type).lower().endswith("consumer")
    assert [len(member.assignment.topic_partitions) for member in group.members] == [PARTITIONS]


def test_member_resumes_from_the_committed_offset(fenceline_node: EmbeddedNode, topic: str, members: ExitStack) -> None:
    first = Member(members, fenceline_node, f"g-{topic}", topic)
    poll_until([first], lambda: len(first.read) >= RECORDS)
    first.close()
    fill(fenceline_node, topic, RECORDS)
    second = Member(members, fenceline_node, f"g-{topic}", topic)
    poll_until([second], lambda: len(second.read) >= RECORDS)
    assert not set(first.read) & set(second.read)


def test_static_member_regains_its_assignment(fenceline_node: EmbeddedNode, topic: str, members: ExitStack) -> None:
    other = Member(members, fenceline_node, f"g-{topic}", topic)
    settings = {"group.instance.id": "instance-1"}
    static = Member(members, fenceline_node, f"g-{topic}", topic, **settings)
    poll_until([other, static], lambda: len(other.share) == 2 and len(static.share) == 2)
    share = static.share
    static.close()
    again = Member(members, fenceline_node, f"g-{topic}", topic, **settings)
    poll_until([other, again], lambda: again.share == share)
    assert len(other.share) == 2


def test_a_group_is_migrated_while_it_reads(fenceline_node: EmbeddedNode, topic: str, members: ExitStack) -> None:
    """A classic consumer, one of the new protocol beside it, then the new one alone; then a classic one again."""
    group = f"g-{topic}"
    old = Member(members, fenceline_node, group, topic, protocol="classic", **{"session.timeout.ms": 30_000})
    poll_until([old], lambda: len(old.read) >= RECORDS)
    new = Member(members, fenceline_node, group, topic)
    poll_until([old, new], lambda: len(old.share) == 2 and len(new.share) == 2)
    old.close()
    poll_until([new], lambda: len(new.share) == PARTITIONS)
    back = Member(members, fenceline_node, group, topic, protocol="classic", **{"session.timeout.ms": 30_000})
    poll_until([new, back], lambda: len(back.share) == 2 and len(new.share) == 2)
    new.close()
    poll_until([back], lambda: len(back.share) == PARTITIONS)
    assert str(described(fenceline_node, group).type).lower().endswith("classic")
    fill(fenceline_node, topic, RECORDS)
    everybody = [old, new, back]
    poll_until([back], lambda: sum(len(each.read) for each in everybody) >= 2 * RECORDS)
    read = [where for each in everybody for where in each.read]
    assert len(set(read)) == 2 * RECORDS


def test_topics_are_matched_by_regex(fenceline_node: EmbeddedNode, topic: str, members: ExitStack) -> None:
    reader = Member(members, fenceline_node, f"g-{topic}", f"^{topic}(-more)?$")
    poll_until([reader], lambda: len(reader.read) >= RECORDS)
    admin = AdminClient({"bootstrap.servers": fenceline_node.bootstrap})
    admin.create_topics([NewTopic(f"{topic}-more", PARTITIONS, 1)])[f"{topic}-more"].result(60)
    fill(fenceline_node, f"{topic}-more", 40)
    poll_until([reader], lambda: len(reader.read) >= RECORDS + 40)
    assert {name for name, _, _ in reader.read} == {topic, f"{topic}-more"}


@pytest.mark.kafka
def test_kafkas_console_consumer_reads(fenceline_node: EmbeddedNode, topic: str) -> None:
    printed = run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        "--bootstrap-server",
        fenceline_node.bootstrap,
        "--topic",
        topic,
        "--from-beginning",
        "--max-messages",
        str(RECORDS),
        "--group",
        f"g-{topic}",
        "--command-property",
        "group.protocol=consumer",
    )
    assert {str(number) for number in range(RECORDS)} <= set(printed.split())
