"""Groups whose coordinator is killed: committed offsets stay known, and those that were truncated are marked."""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from fenceline.cli.app import app
from fenceline.client import NewTopic, Producer, TopicPartition
from fenceline.client.admin.admin import Admin
from fenceline.client.core.offsets import CommittedOffset
from fenceline.errors import ErrorCode
from fenceline.ids import CONSUMER_OFFSETS_TOPIC
from fenceline.local_cluster.cluster import LocalCluster
from fenceline.testing.waiting import eventually
from tests.support.committed_offsets import (
    NOT_NOW,
    commit,
    commit_many,
    coordinator_of,
    fetch,
    heartbeat,
    join_alone,
)
from tests.support.leaders import UNCLEAN, elect, order_replicas
from tests.support.raw import ConnectionClosed, RawConnection
from tests.support.replicated_chaos import all_in_sync, create
from tests.support.running_tool import RunningTool

pytestmark = [pytest.mark.long, pytest.mark.timeout(300), pytest.mark.usefixtures("quiet_clients")]

KEPT: Final = 100
LOST: Final = 50
_names = itertools.count()


def port_of(cluster: LocalCluster, node: int) -> int:
    port = next(each.port for each in cluster.layout.nodes if each.node_id == node)
    assert port is not None
    return port


# --- committed offsets ------------------------------------------------------------------------------------------------


class OffsetFetcher:
    """Fetches committed offsets of known groups from one broker in a loop, and collects invalid answers."""

    def __init__(self, port: int, groups: list[str], topic: str, offsets: dict[int, int], seed: int) -> None:
        self.answers: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._port, self._groups, self._topic, self._offsets = port, groups, topic, offsets
        self._rng = Random(seed)
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> OffsetFetcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stops.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stops.is_set():
            try:
                with RawConnection(self._port, timeout_s=20) as connection:
                    while not self._stops.is_set():
                        self._ask(connection)
                        self._stops.wait(0.002)
            except (OSError, ConnectionClosed):
                self.answers["not there"] += 1
                self._stops.wait(0.05)

    def _ask(self, connection: RawConnection) -> None:
        group = self._rng.choice(self._groups)
        reported = fetch(connection, group, self._topic, self._offsets)
        if isinstance(reported, ErrorCode):
            self.answers[reported.name] += 1
            if reported not in NOT_NOW:
                self.wrong.append(f"{group}: {reported.name}")
            return
        self.answers["fetched"] += 1
        offsets = {partition: offset for partition, (offset, _) in reported.items()}
        if offsets != self._offsets:
            self.wrong.append(f"{group}: {offsets}")


def test_a_committed_offset_is_never_reported_as_unknown(cluster: LocalCluster) -> None:
    """Coordinators move while they load, and one is killed: a committed offset is returned correctly or not yet."""
    topic, partitions = f"positions-{next(_names)}", 100
    create(cluster.bootstrap, topic=topic, partitions=partitions)
    groups = [f"{topic}-{number}" for number in range(1_000)]
    offsets = {partition: 1_000 + partition for partition in range(partitions)}
    first = port_of(cluster, 1)
    node = eventually(lambda: coordinator_of(first, groups[0]), "there is a coordinator")
    eventually(lambda: all_in_sync(cluster.bootstrap, CONSUMER_OFFSETS_TOPIC), "all are in sync", wait_s=120)
    commit_many(port_of(cluster, node), groups, topic, offsets)
    fetchers = [OffsetFetcher(port_of(cluster, each), groups, topic, offsets, each) for each in (1, 2, 3)]
    with fetchers[0], fetchers[1], fetchers[2]:
        for round_number in range(12):
            leader = 1 + round_number % 3
            order = [leader, *(each for each in (1, 2, 3) if each != leader)]
            order_replicas(first, CONSUMER_OFFSETS_TOPIC, {0: order})
            eventually(lambda: elect(first, CONSUMER_OFFSETS_TOPIC, [0]) is None, "it is elected")
        _await_more(fetchers)
        killed = eventually(lambda: coordinator_of(first, groups[0]), "there is a coordinator")
        cluster.kill(killed)
        _await_more([fetcher for number, fetcher in enumerate(fetchers, 1) if number != killed])
        cluster.restart(killed)
        eventually(lambda: all_in_sync(cluster.bootstrap, CONSUMER_OFFSETS_TOPIC), "all are in sync", wait_s=120)
    assert [wrong for fetcher in fetchers for wrong in fetcher.wrong] == []
    answers = sum((fetcher.answers for fetcher in fetchers), Counter())
    assert answers["fetched"] > 0
    assert answers["COORDINATOR_LOAD_IN_PROGRESS"] > 0, answers


def test_members_of_a_thousand_groups_survive_a_kill_of_their_coordinator(cluster: LocalCluster) -> None:
    """Each member keeps its generation, at a coordinator that has only read its record."""
    name, first = f"stay-{next(_names)}", port_of(cluster, 1)
    groups = [f"{name}-{number}" for number in range(1_000)]
    node = eventually(lambda: coordinator_of(first, groups[0]), "there is a coordinator")
    eventually(lambda: all_in_sync(cluster.bootstrap, CONSUMER_OFFSETS_TOPIC), "all are in sync", wait_s=120)
    with RawConnection(port_of(cluster, node)) as connection:
        members = {group: join_alone(connection, group, 240_000) for group in groups}
        assert {heartbeat(connection, group, member) for group, member in members.items()} == {ErrorCode.NONE}
    cluster.kill(node)
    staying = port_of(cluster, 1 + node % 3)

    def another() -> int | None:
        found = coordinator_of(staying, groups[0])
        return found if found != node else None

    successor = eventually(another, "another one coordinates", wait_s=120)
    with RawConnection(port_of(cluster, successor)) as connection:
        eventually(
            lambda: not isinstance(fetch(connection, groups[0], "none", [0]), ErrorCode), "it has loaded", wait_s=120
        )
        assert {heartbeat(connection, group, member) for group, member in members.items()} == {ErrorCode.NONE}
        assert heartbeat(connection, groups[0], "somebody else") is ErrorCode.UNKNOWN_MEMBER_ID
    cluster.restart(node)
    eventually(lambda: all_in_sync(cluster.bootstrap, CONSUMER_OFFSETS_TOPIC), "all are in sync", wait_s=120)


def test_a_static_member_rejoins_at_the_next_coordinator(cluster: LocalCluster) -> None:
    """It keeps its generation and assignment; the previous member of the same instance id is fenced."""
    group, topic, first = f"static-{next(_names)}", f"static-topic-{next(_names)}", port_of(cluster, 1)
    create(cluster.bootstrap, topic=topic, partitions=1)
    node = eventually(lambda: coordinator_of(first, group), "there is a coordinator")
    eventually(lambda: all_in_sync(cluster.bootstrap, CONSUMER_OFFSETS_TOPIC), "all are in sync", wait_s=120)
    with RawConnection(port_of(cluster, node)) as connection:
        old = join_alone(connection, group, 240_000, instance="one")
        assert commit(connection, group, topic, {0: 5}, 3, generation=1, member_id=old, instance="one") == {
            ErrorCode.NONE
        }
    cluster.kill(node)
    staying = port_of(cluster, 1 + node % 3)

    def another() -> int | None:
        found = coordinator_of(staying, group)
        return found if found != node else None

    successor = eventually(another, "another one coordinates", wait_s=120)
    with RawConnection(port_of(cluster, successor)) as connection:
        new = join_alone(connection, group, 240_000, instance="one")
        assert new != old
        assert fetch(connection, group, topic, [0]) == {0: (5, 3)}
        codes = [heartbeat(connection, group, each, "one") for each in (old, new)]
        assert codes == [ErrorCode.FENCED_INSTANCE_ID, ErrorCode.NONE]
        for each, code in ((old, ErrorCode.FENCED_INSTANCE_ID), (new, ErrorCode.NONE)):
            codes = commit(connection, group, topic, {0: 6}, 3, generation=1, member_id=each, instance="one")
            assert codes == {code}
    cluster.restart(node)
    eventually(lambda: all_in_sync(cluster.bootstrap, CONSUMER_OFFSETS_TOPIC), "all are in sync", wait_s=120)


def _await_more(fetchers: list[OffsetFetcher]) -> None:
    before = sum(fetcher.answers["fetched"] for fetcher in fetchers)
    eventually(
        lambda: sum(fetcher.answers["fetched"] for fetcher in fetchers) > before,
        "positions are fetched again",
        wait_s=120,
    )


# --- a truncation -----------------------------------------------------------------------------------------------------


def groups_json(cluster: LocalCluster, *words: str) -> Any:
    result = CliRunner().invoke(app, ["groups", *words, "--json", "--bootstrap", cluster.bootstrap])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def described(cluster: LocalCluster, group: str) -> dict[str, Any]:
    found: dict[str, Any] = groups_json(cluster, "describe", group)
    return found


def position(cluster: LocalCluster, group: str) -> dict[str, Any]:
    row: dict[str, Any] = described(cluster, group)["offsets"][0]
    return row


@pytest.fixture
def cut(cluster: LocalCluster) -> Iterator[tuple[str, int, int]]:
    """A topic and two epochs. Two groups have committed KEPT + LOST in the first epoch; an unclean election has
    truncated the log at KEPT."""
    topic = f"cut-{next(_names)}"
    partition = TopicPartition(topic, 0)
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        configs = {"min.insync.replicas": "1", "retention.ms": "-1"}
        admin.create_topics([NewTopic(topic, assignments={0: [1, 2]}, configs=configs)])

        def isr() -> set[int]:
            return set(admin.metadata([topic]).topics[topic].partitions[0].isr)

        def leader() -> int:
            return admin.metadata([topic]).topics[topic].partitions[0].leader

        def write(count: int) -> bool:
            with Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"}) as producer:
                deliveries = [producer.send(topic, b"x", partition=0) for _ in range(count)]
                for each in deliveries:
                    each.result(60)
            return True

        eventually(lambda: leader() == 1, "node 1 leads")
        write(KEPT)
        cluster.kill(2)
        eventually(lambda: isr() == {1}, "one is in sync")
        write(LOST)
        old = admin.list_offsets({partition: "latest"})[partition]
        assert old.offset == KEPT + LOST
        for group in ("one", "other"):
            admin.alter_group_offsets(f"{topic}-{group}", {partition: CommittedOffset(old.offset, old.leader_epoch)})
        cluster.kill(1)
        cluster.restart(2)

        def is_elected() -> bool:
            elect(port_of(cluster, 2), topic, [0], UNCLEAN)
            return leader() == 2

        eventually(is_elected, "the other one is elected uncleanly")
        eventually(lambda: write(20), "it serves")
        new = admin.list_offsets({partition: "latest"})[partition]
    yield topic, old.leader_epoch, new.leader_epoch
    cluster.restart(1)
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        eventually(lambda: isr() == {1, 2}, "both are in sync")


def test_committed_offsets_beyond_a_truncation_are_marked(cluster: LocalCluster, cut: tuple[str, int, int]) -> None:
    topic, old_epoch, new_epoch = cut
    one, other, partition = f"{topic}-one", f"{topic}-other", TopicPartition(topic, 0)
    before = position(cluster, one)
    assert before == {
        "topic": topic,
        "partition": 0,
        "current_offset": KEPT + LOST,
        "epoch": old_epoch,
        "log_end": KEPT + 20,
        "lag": 0,
        "mark": "truncated",
        "member": None,
    }
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        # One group has read on; one detected the truncation and commits the divergent offset.
        admin.alter_group_offsets(one, {partition: CommittedOffset(KEPT + 10, new_epoch)})
        admin.alter_group_offsets(other, {partition: CommittedOffset(KEPT, old_epoch)})
        taken = admin.list_group_offsets(one)[partition]
        assert (taken.offset, taken.leader_epoch) == (KEPT + 10, new_epoch)
        for group in (one, other):
            assert position(cluster, group)["mark"] == "rewound"
        admin.alter_group_offsets(one, {partition: CommittedOffset(KEPT + 20, new_epoch)})
    found = described(cluster, one)
    assert found["offsets"][0]["mark"] == "rewound"
    assert [
        (each["topic"], each["from_offset"], each["from_epoch"], each["to_offset"], each["to_epoch"])
        for each in found["rewinds"]
    ] == [(topic, KEPT + LOST, old_epoch, KEPT + 10, new_epoch)]
    listed = {row["group"]: row for row in groups_json(cluster, "list", "--lag")}
    assert [(listed[group]["lag"], listed[group]["mark"]) for group in (one, other)] == [
        (0, "rewound"),
        (20, "rewound"),
    ]
    moved = groups_json(cluster, "reset", other, topic, "--to-offset", str(KEPT + 1), "--execute")["offsets"]
    assert [(row["current_offset"], row["new_offset"], row["epoch"]) for row in moved] == [(KEPT, KEPT + 1, new_epoch)]
    moved = groups_json(cluster, "reset", other, topic, "--shift-by", "-1", "--execute")["offsets"]
    assert [(row["current_offset"], row["new_offset"], row["epoch"]) for row in moved] == [(KEPT + 1, KEPT, old_epoch)]
    lines = [line for node in cluster.layout.nodes for line in node.log_file.read_text().splitlines()]
    assert (
        len([line for line in lines if "committed offset reset after log truncation" in line and f'"{one}"' in line])
        == 1
    )


# --- Kafka's consumer -------------------------------------------------------------------------------------------------


@pytest.mark.kafka
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_kafkas_consumer_continues_when_its_coordinator_is_killed(cluster: LocalCluster, protocol: str) -> None:
    """A member that is in the group, and one that joins afterwards: each continues at the committed offset."""
    topic, group = f"java-{next(_names)}", f"java-group-{next(_names)}"
    create(cluster.bootstrap, topic=topic, partitions=1)
    first = port_of(cluster, 1)
    with Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"}) as producer:

        def write(count: int) -> None:
            for each in [producer.send(topic, b"x", partition=0) for _ in range(count)]:
                each.result(120)

        def consumer() -> RunningTool:
            return RunningTool(
                "org.apache.kafka.tools.VerifiableConsumer",
                *("--bootstrap-server", cluster.bootstrap, "--topic", topic, "--group-id", group, "--verbose"),
                *("--group-protocol", protocol, "--reset-policy", "earliest"),
            )

        def committed(tool: RunningTool) -> int:
            return max(
                (
                    int(each["offset"])
                    for event in tool.events("offsets_committed")
                    if event["success"]
                    for each in event["offsets"]
                ),
                default=0,
            )

        reading = consumer()
        try:
            write(500)
            eventually(lambda: committed(reading) >= 500, "it commits", wait_s=120)
            killed = eventually(lambda: coordinator_of(first, group), "the group has a coordinator")
            cluster.kill(killed)
            write(500)
            eventually(lambda: committed(reading) >= 1_000, "it commits at another coordinator", wait_s=120)
        finally:
            reading.end()
        cluster.restart(killed)
        again = consumer()
        try:
            write(100)
            eventually(lambda: committed(again) >= 1_100, "the next one goes on", wait_s=120)
        finally:
            again.end()
    read = [int(event["offset"]) for event in reading.events("record_data")]
    assert read == list(range(1_000)), "it never left the group"
    assert [int(event["offset"]) for event in again.events("record_data")] == list(range(1_000, 1_100))
