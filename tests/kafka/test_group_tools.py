"""Kafka's group tools on a Fenceline cluster of three nodes and on a Kafka cluster; and Fenceline's tool on both.

The groups are equal on both sides: some have only externally committed offsets, one has librdkafka members. The
output is compared line by line (`side_by_side.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest
from typer.testing import CliRunner

from fenceline.cli.app import app
from fenceline.client.admin.admin import Admin
from fenceline.client.core.offsets import CommittedOffset
from fenceline.client.producer.producer import Producer
from fenceline.ids import TopicPartition
from fenceline.testing.waiting import eventually
from tests.kafka.side_by_side import Both, Side, both_clusters
from tests.scheduling import CLUSTERS
from tests.support import client_threads

pytestmark = [pytest.mark.kafka, pytest.mark.together(CLUSTERS), pytest.mark.timeout(600)]

BROKERS: Final = ("--bootstrap-server", "@brokers")
TOPIC: Final = "read"
PARTITIONS: Final = 2
RECORDS: Final = 40
CHANCE: Final = r"\S*[0-9a-f]{8}-[0-9a-f]{4}-\S+|/127\.0\.0\.1|rdkafka|(BROKER|127\.0\.0\.1:)\S* \(\d+\)"
"""Ids of members, where they are, and which of three brokers happens to coordinate the group."""

BY_CHANCE: Final = rf"{CHANCE}|(?<![\w+/-])[\w+/-]{{22}}(?![\w+/-])"
"""Clients of the consumer protocol make ids of another form; librdkafka's have + and / in them."""


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    with both_clusters(tmp_path_factory.mktemp("groups")) as both:
        both.run(
            "topics",
            *BROKERS,
            "--create",
            "--topic",
            TOPIC,
            "--partitions",
            str(PARTITIONS),
            "--replication-factor",
            "3",
        )
        list(both.threads.map(_prepare, both.sides))
        yield both


@pytest.fixture
def both(clusters: Both) -> Iterator[Both]:
    yield clusters
    clusters.check()


def _prepare(side: Side) -> None:
    with Producer({"bootstrap.servers": side.words["@brokers"], "acks": "all"}) as producer:
        for each in [producer.send(TOPIC, b"x", partition=n % PARTITIONS) for n in range(RECORDS)]:
            each.result(60)


def commit(both: Both, group: str, offsets: dict[int, tuple[int, int]]) -> None:
    """The same positions on both sides: partition to (offset, leader epoch)."""

    def on(side: Side) -> None:
        wanted = {TopicPartition(TOPIC, index): CommittedOffset(*at) for index, at in offsets.items()}
        with Admin({"bootstrap.servers": side.words["@brokers"]}) as admin:
            eventually(lambda: admin.alter_group_offsets(group, wanted) is None, f"{group} commits", wait_s=120)

    list(both.threads.map(on, both.sides))


def reported(both: Both, *words: str, leave_out: str = CHANCE) -> str:
    return both.run("consumer-groups", *BROKERS, *words, "--timeout", "60000", leave_out=leave_out)


def test_groups_without_members(both: Both) -> None:
    commit(both, "idle", {0: (5, 0), 1: (20, 0)})
    commit(both, "half", {1: (3, -1)})
    shown = reported(both, "--describe", "--group", "idle")
    assert "5 20 15" in " ".join(shown.split())
    reported(both, "--describe", "--group", "half")
    reported(both, "--describe", "--group", "idle", "--members")
    reported(both, "--describe", "--group", "idle", "--members", "--verbose")
    reported(both, "--describe", "--group", "idle", "--state")
    reported(both, "--describe", "--group", "idle", "--offsets", "--verbose")
    reported(both, "--describe", "--all-groups")
    reported(both, "--describe", "--all-groups", "--state")
    reported(both, "--list")
    reported(both, "--list", "--state")
    reported(both, "--list", "--state", "Empty")
    reported(both, "--list", "--type")
    reported(both, "--list", "--type", "classic")
    both.run("groups", *BROKERS, "--list")
    both.run("groups", *BROKERS, "--list", "--group-type", "classic")
    both.run("groups", *BROKERS, "--list", "--consumer")
    reported(both, "--describe", "--group", "nobody")
    reported(both, "--describe", "--group", "nobody", "--members")
    reported(both, "--describe", "--group", "nobody", "--state")


def test_groups_are_reset(both: Both) -> None:
    commit(both, "moved", {0: (10, 0), 1: (10, 0)})
    reset = ("--reset-offsets", "--group", "moved")
    for how in (
        ("--to-earliest",),
        ("--to-latest",),
        ("--to-current",),
        ("--to-offset", "7"),
        ("--to-offset", "700"),
        ("--shift-by", "-3"),
        ("--shift-by", "300"),
        ("--to-datetime", "2020-01-01T00:00:00.000"),
        ("--by-duration", "P7D"),
        ("--by-duration", "PT0S"),
    ):
        reported(both, *reset, "--topic", TOPIC, *how, "--dry-run")
    reported(both, *reset, "--topic", f"{TOPIC}:1", "--to-offset", "4", "--execute")
    reported(both, *reset, "--all-topics", "--shift-by", "2", "--execute")
    reported(both, *reset, "--all-topics", "--to-current", "--export", "--dry-run")
    reported(both, "--describe", "--group", "moved")
    reported(both, *reset, "--topic", "no-such-topic", "--to-latest", "--execute")


def test_groups_are_reset_from_a_file(both: Both, tmp_path: Path) -> None:
    commit(both, "planned", {0: (10, 0), 1: (10, 0)})
    commit(both, "planned-2", {0: (11, 0)})
    one, two, wrong = (tmp_path / name for name in ("one.csv", "two.csv", "wrong.csv"))
    one.write_text(f"{TOPIC},0,6\n{TOPIC},1,300\n")
    two.write_text(f"planned,{TOPIC},0,2\nplanned-2,{TOPIC},0,3\n")
    wrong.write_text(f"{TOPIC},zero,1\n")
    reset = ("--reset-offsets", "--group", "planned")
    reported(both, *reset, "--from-file", str(one), "--dry-run")
    reported(both, *reset, "--from-file", str(one), "--execute")
    reported(both, "--describe", "--group", "planned")
    reported(both, *reset, "--group", "planned-2", "--from-file", str(two), "--execute")
    reported(both, "--describe", "--group", "planned", "--group", "planned-2")
    reported(both, *reset, "--from-file", str(wrong), "--execute")


def test_groups_are_deleted(both: Both) -> None:
    commit(both, "doomed", {0: (10, 0), 1: (10, 0)})
    reported(both, "--delete-offsets", "--group", "doomed", "--topic", f"{TOPIC}:0")
    reported(both, "--describe", "--group", "doomed")
    reported(both, "--delete-offsets", "--group", "doomed", "--topic", "no-such-topic")
    reported(both, "--delete", "--group", "doomed")
    reported(both, "--delete", "--group", "doomed")
    reported(both, "--delete-offsets", "--group", "doomed", "--topic", TOPIC)
    reported(both, "--list")


@contextmanager
def members(both: Both, group: str, **settings: Any) -> Iterator[None]:
    """A static member of librdkafka's on each side, that has read all of the topic and committed it."""

    def join(side: Side) -> confluent_kafka.Consumer:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": side.words["@brokers"],
                "group.id": group,
                "group.instance.id": "instance-1",
                "client.id": "reader",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                **settings,
            }
        )
        consumer.subscribe([TOPIC])
        read = 0
        while read < RECORDS:
            read += sum(message.error() is None for message in consumer.consume(100, 1.0))
        consumer.commit(asynchronous=False)
        return consumer

    with ExitStack() as stack:
        stack.enter_context(client_threads.quiet_clients())
        consumers = list(both.threads.map(join, both.sides))
        for consumer in consumers:
            stack.callback(consumer.close)
        yield


def test_a_group_with_members(both: Both) -> None:
    settings = {"session.timeout.ms": 60_000, "partition.assignment.strategy": "range"}
    with members(both, "live", **settings):
        live = ("--group", "live")
        reported(both, "--describe", *live)
        reported(both, "--describe", *live, "--members")
        reported(both, "--describe", *live, "--members", "--verbose")
        reported(both, "--describe", *live, "--state")
        reported(both, "--list", "--state", "Stable")
        reported(both, "--reset-offsets", *live, "--topic", TOPIC, "--to-earliest", "--execute")
        reported(both, "--delete-offsets", *live, "--topic", TOPIC)
        reported(both, "--delete", *live)
    reported(both, "--delete", "--group", "live")


def test_a_group_of_the_consumer_protocol(both: Both) -> None:
    """KIP-848: the epochs, states and types that the tool prints."""
    with members(both, "next", **{"group.protocol": "consumer"}):
        following = ("--group", "next")
        reported(both, "--describe", *following, leave_out=BY_CHANCE)
        reported(both, "--describe", *following, "--verbose", leave_out=BY_CHANCE)
        reported(both, "--describe", *following, "--members", leave_out=BY_CHANCE)
        reported(both, "--describe", *following, "--members", "--verbose", leave_out=BY_CHANCE)
        reported(both, "--describe", *following, "--state", leave_out=BY_CHANCE)
        reported(both, "--describe", *following, "--state", "--verbose", leave_out=BY_CHANCE)
        reported(both, "--list", "--type", "consumer", leave_out=BY_CHANCE)
        reported(both, "--delete", *following, leave_out=BY_CHANCE)
    reported(both, "--list", "--type", leave_out=BY_CHANCE)


def test_all_groups_at_once(both: Both) -> None:
    """After the others: no group is left."""
    commit(both, "first", {0: (10, 0), 1: (10, 0)})
    commit(both, "second", {0: (11, 0)})
    reset = ("--reset-offsets", "--all-groups", "--topic", TOPIC)
    reported(both, *reset, "--to-offset", "4", "--dry-run")
    reported(both, *reset, "--to-offset", "4", "--export", "--dry-run")
    reported(both, *reset, "--to-offset", "4", "--execute")
    reported(both, "--describe", "--all-groups", leave_out=BY_CHANCE)
    reported(both, "--describe", "--all-groups", "--offsets", leave_out=BY_CHANCE)
    reported(both, "--describe", "--all-groups", "--members", leave_out=BY_CHANCE)
    # They are printed in the order in which brokers list them.
    reported(both, "--delete", "--all-groups", leave_out=r"'[^']*'")
    reported(both, "--list")


# --- our own tool, on both --------------------------------------------------------------------------------------------


def ours_on_both(both: Both, *words: str) -> list[Any]:
    def run(side: Side) -> Any:
        result = CliRunner().invoke(app, ["groups", *words, "--json", "--bootstrap", side.words["@brokers"]])
        assert result.exit_code == 0, result.output
        return json.loads(result.output)

    return [run(side) for side in both.sides]


def same_on_both(both: Both, *words: str, of: Callable[[Any], Any] = lambda found: found) -> Any:
    theirs, ours = (of(found) for found in ours_on_both(both, *words))
    assert theirs == ours
    return ours


def test_fenceline_tool_prints_the_same_for_kafkas_cluster(both: Both) -> None:
    """Marks too: any cluster's answers are sufficient to find them."""
    commit(both, "marked", {0: (15, 0), 1: (12, 0)})
    commit(both, "marked", {0: (10, 1), 1: (11, 0)})
    commit(both, "marked", {1: (70, -1)})

    def without_times(found: Any) -> Any:
        for each in found["rewinds"]:
            assert each.pop("at_ms") > 0
        return found

    found = same_on_both(both, "describe", "marked", of=without_times)
    assert [(each["current_offset"], each["epoch"], each["mark"]) for each in found["offsets"]] == [
        (10, 1, "rewound"),
        (70, None, "beyond"),
    ]
    assert [tuple(each.values()) for each in found["rewinds"]] == [(TOPIC, 0, 15, 0, 10, 1)]
    same_on_both(both, "reset", "marked", TOPIC, "--to-earliest")
    same_on_both(both, "reset", "marked", "--all-topics", "--shift-by", "-2", "--execute")
    same_on_both(both, "reset", "marked", f"{TOPIC}:1", "--to-datetime", "2020-01-01T00:00:00", "--execute")
    same_on_both(both, "describe", "marked", of=without_times)
    same_on_both(both, "list", "--lag", of=lambda found: [each for each in found if each["group"] == "marked"])
    same_on_both(both, "delete", "marked", "--topic", f"{TOPIC}:0")
    same_on_both(both, "delete", "marked")
    same_on_both(both, "list", of=lambda found: [each for each in found if each["group"] == "marked"])
