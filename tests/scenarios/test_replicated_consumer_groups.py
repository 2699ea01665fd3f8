"""Groups of the consumer protocol whose coordinator is killed: members keep their assignments and epochs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

import confluent_kafka
import pytest

from fenceline.client import NewTopic, Producer
from fenceline.client.admin.admin import Admin
from fenceline.errors import ErrorCode
from fenceline.ids import CONSUMER_OFFSETS_TOPIC
from fenceline.local_cluster.cluster import LocalCluster
from fenceline.testing.apache_kafka import run_tool
from fenceline.testing.waiting import eventually
from tests.support.committed_offsets import NOT_NOW, coordinator_of
from tests.support.consumer_members import LONG_MS, BareMember, describe, settle
from tests.support.raw import RawConnection
from tests.support.replicated_chaos import all_in_sync, create

pytestmark = [pytest.mark.long, pytest.mark.timeout(300), pytest.mark.usefixtures("quiet_clients")]

MEMBERS: Final = 300
PARTITIONS: Final = 400
RECORDS: Final = 600
_names = itertools.count()
_T = TypeVar("_T")


def port_of(cluster: LocalCluster, node: int) -> int:
    port = next(each.port for each in cluster.layout.nodes if each.node_id == node)
    assert port is not None
    return port


class NextCoordinators:
    """The coordinators of a group after its first coordinator was killed."""

    def __init__(self, cluster: LocalCluster, group: str, killed: int) -> None:
        self._cluster = cluster
        self._group = group
        self._killed = killed
        self._asked = port_of(cluster, 1 + killed % 3)

    def port(self) -> int:
        """The port of the current coordinator."""

        def another() -> int | None:
            found = coordinator_of(self._asked, self._group)
            return found if found != self._killed else None

        return port_of(self._cluster, eventually(another, "another one coordinates", wait_s=120))

    def answer_to(self, ask: Callable[[RawConnection], _T]) -> _T:
        """Ask until a coordinator answers that has loaded the group and still coordinates it: on a busy machine it may
        move again, as sessions are short."""

        def answer() -> tuple[_T] | None:
            with RawConnection(self.port()) as connection:
                found = ask(connection)
            return None if isinstance(found, ErrorCode) and found in NOT_NOW else (found,)

        return eventually(answer, "it has loaded", wait_s=120)[0]


@contextmanager
def killed_coordinator(cluster: LocalCluster, group: str) -> Iterator[NextCoordinators]:
    """Kill the coordinator and wait for its successor; restart it at the end."""
    eventually(lambda: all_in_sync(cluster.bootstrap, CONSUMER_OFFSETS_TOPIC), "all are in sync", wait_s=120)
    killed = eventually(lambda: coordinator_of(port_of(cluster, 1), group), "there is a coordinator")
    cluster.kill(killed)
    try:
        successors = NextCoordinators(cluster, group, killed)
        successors.port()
        yield successors
    finally:
        cluster.restart(killed)


def test_members_of_a_large_group_keep_their_epochs_and_assignments(cluster: LocalCluster) -> None:
    """The new coordinator has only read their records, and knows the assignment of every member."""
    group = topic = f"large-{next(_names)}"
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
    first = eventually(lambda: coordinator_of(port_of(cluster, 1), group), "there is a coordinator")
    members = [BareMember(group, f"member-{number}", topic) for number in range(MEMBERS)]
    with RawConnection(port_of(cluster, first)) as connection:
        before = settle(connection, group, members)
    assert sorted(each for member in members for each in member.uses) == list(range(PARTITIONS))
    epochs = [member.epoch for member in members]
    with killed_coordinator(cluster, group) as successors:
        assert successors.answer_to(lambda connection: describe(connection, group)) == before
        assert {successors.answer_to(member.beat) for member in members} == {ErrorCode.NONE}
        assert [member.epoch for member in members] == epochs
        assert successors.answer_to(lambda connection: describe(connection, group)) == before
        assert successors.answer_to(BareMember(group, "somebody else", topic).beat) is ErrorCode.NONE


def test_a_reconciliation_continues_at_the_next_coordinator(cluster: LocalCluster) -> None:
    """The coordinator is killed while one member must revoke partitions and another waits for them."""
    group = topic = f"halfway-{next(_names)}"
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        admin.create_topics([NewTopic(topic, 4, 1)])
    first = eventually(lambda: coordinator_of(port_of(cluster, 1), group), "there is a coordinator")
    old, new = BareMember(group, "old", topic), BareMember(group, "new", topic)
    with RawConnection(port_of(cluster, first)) as connection:
        settle(connection, group, [old])
        assert new.beat(connection) is ErrorCode.NONE
        eventually(lambda: old.beat(connection) is ErrorCode.NONE and len(old.owned) and len(list(old.uses)) == 2)
        before = describe(connection, group)
        assert isinstance(before, dict)
        assert before["group_state"] == "Reconciling"
    with killed_coordinator(cluster, group) as successors:
        assert successors.answer_to(lambda connection: describe(connection, group)) == before
        assert successors.answer_to(new.beat) is ErrorCode.NONE
        assert list(new.uses) == [], "partitions that another member still owns are not assigned"
        after = successors.answer_to(lambda connection: settle(connection, group, [old, new]))
    assert after["group_epoch"] == before["group_epoch"]
    assert sorted([*old.uses, *new.uses]) == list(range(4))


def test_librdkafka_continues_after_a_kill_of_the_coordinator(cluster: LocalCluster) -> None:
    """No record is read twice or skipped, and every member keeps its partitions."""
    group = topic = f"reads-on-{next(_names)}"
    create(cluster.bootstrap, topic=topic, partitions=3)
    consumers = [
        confluent_kafka.Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "max.poll.interval.ms": LONG_MS,
                "log_level": 0,
            }
        )
        for _ in range(3)
    ]
    read: list[tuple[int, int]] = []

    def poll() -> None:
        for consumer in consumers:
            found = [message for message in consumer.consume(200, 0.05) if message.error() is None]
            read.extend((message.partition(), message.offset()) for message in found)
            if found:
                # Commits fail while the coordinator is down; no member restarts, so none needs them.
                with suppress(confluent_kafka.KafkaException):
                    consumer.commit(asynchronous=False)

    def shares() -> list[set[int]]:
        return [{each.partition for each in consumer.assignment()} for consumer in consumers]

    def read_all(count: int) -> bool:
        poll()
        return len(read) >= count

    try:
        for consumer in consumers:
            consumer.subscribe([topic])

        def is_shared() -> bool:
            poll()
            return sorted(map(len, shares())) == [1, 1, 1]

        eventually(is_shared, "they share", wait_s=120)
        with Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"}) as producer:
            write(producer, topic, RECORDS)
            eventually(lambda: read_all(RECORDS), "all is read", wait_s=120)
            before = shares()
            with killed_coordinator(cluster, group):
                write(producer, topic, RECORDS)
                eventually(lambda: read_all(2 * RECORDS), "they read on", wait_s=120)
            write(producer, topic, RECORDS)
            eventually(lambda: read_all(3 * RECORDS), "they read on", wait_s=120)
        assert shares() == before
    finally:
        for consumer in consumers:
            consumer.close()
    assert len(read) == len(set(read)) == 3 * RECORDS


def write(producer: Producer, topic: str, count: int) -> None:
    for each in [producer.send(topic, b"x", partition=number % 3) for number in range(count)]:
        each.result(120)


@pytest.mark.kafka
def test_kafkas_tools_read_and_describe_after_a_kill_of_the_coordinator(cluster: LocalCluster) -> None:
    """A console consumer leaves a group whose coordinator is killed; the next one continues, as the tool shows."""
    group = topic = f"tools-{next(_names)}"
    create(cluster.bootstrap, topic=topic, partitions=3)

    def console(count: int) -> str:
        return run_tool(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", cluster.bootstrap, "--topic", topic, "--from-beginning", "--group", group),
            *("--max-messages", str(count), "--command-property", "group.protocol=consumer"),
        )

    def tool(*words: str) -> list[list[str]]:
        printed = run_tool(
            "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
            *("--bootstrap-server", cluster.bootstrap, "--timeout", "60000", *words),
        )
        return [line.split() for line in printed.splitlines()]

    with Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"}) as producer:
        write(producer, topic, 30)
        assert "Processed a total of 30 messages" in console(30)
        with killed_coordinator(cluster, group):
            write(producer, topic, 60)
            assert "Processed a total of 60 messages" in console(60)
            rows: dict[str, Any] = {
                row[2]: row for row in tool("--describe", "--group", group) if row[:2] == [group, topic]
            }
            assert {index: row[3:6] for index, row in rows.items()} == {str(n): ["30", "30", "0"] for n in range(3)}
            assert [group, "Consumer"] in tool("--list", "--type")
            assert ["Empty", "0"] in [row[-2:] for row in tool("--describe", "--group", group, "--state")]
