"""`fenceline transactions` with a running node, and Kafka's own tool beside it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fenceline.cli.app import app
from fenceline.client import Admin, NewTopic, Producer, TopicPartition
from fenceline.client.producer.transaction_errors import ProducerFenced
from fenceline.testing.apache_kafka import run_tool
from fenceline.testing.node import EmbeddedNode

pytestmark = pytest.mark.timeout(120)
WHERE = TopicPartition("orders", 1)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    with EmbeddedNode(data_dir=tmp_path_factory.mktemp("node")) as running:
        with Admin(running.bootstrap) as admin:
            admin.create_topics([NewTopic("orders", 2)])
        yield running


def run(node: EmbeddedNode, *arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["transactions", *arguments, "-b", node.bootstrap])
    assert result.exit_code == code, result.output
    return result.output


def run_json(node: EmbeddedNode, *arguments: str) -> Any:
    return json.loads(run(node, *arguments, "--json"))


@pytest.fixture
def producer(node: EmbeddedNode, request: pytest.FixtureRequest) -> Iterator[Producer]:
    """With a transaction that has one record."""
    with Producer(node.bootstrap, transactional_id=request.node.name) as opened:
        opened.init_transactions()
        opened.begin_transaction()
        opened.send("orders", b"a", partition=1).result()
        yield opened
        with contextlib.suppress(ProducerFenced):
            opened.abort_transaction()


def test_list_and_describe(node: EmbeddedNode, producer: Producer) -> None:
    name = "test_list_and_describe"
    (listed,) = run_json(node, "list", "--pattern", name)
    assert (listed["transactional_id"], listed["state"]) == (name, "Ongoing")
    assert run_json(node, "list", "--pattern", name, "--state", "Empty") == []
    assert run_json(node, "list", "--pattern", name, "--longer-than", "3600") == []
    described = run_json(node, "describe", name)
    assert described["state"] == "Ongoing"
    (row,) = described["partitions"]
    assert (row["partition"], row["state"]) == ("orders-1", "open")
    text = run(node, "describe", name)
    assert f"{name}: Ongoing, coordinator 1" in text
    producer.commit_transaction()
    assert run_json(node, "describe", name)["partitions"] == []
    producer.begin_transaction()


def test_unknown_id(node: EmbeddedNode) -> None:
    output = run(node, "describe", "nobody", code=1)
    assert "There is no transactional id nobody" in output


def test_abort_by_id_fences_the_producer(node: EmbeddedNode, producer: Producer) -> None:
    document = run_json(node, "abort", "test_abort_by_id_fences_the_producer")
    assert document["was"] == "Ongoing"
    with pytest.raises(ProducerFenced):
        producer.commit_transaction()


def test_nothing_hangs_while_a_coordinator_knows_it(node: EmbeddedNode, producer: Producer) -> None:
    assert run_json(node, "find-hanging", "--max-transaction-timeout", "-1") == []
    output = run(node, "abort", "orders:1", "--start-offset", "999999", code=1)
    assert "find-hanging" in output


def test_bad_partition(node: EmbeddedNode) -> None:
    assert "TOPIC:PARTITION" in run(node, "abort", "orders", "--start-offset", "1", code=1)


@pytest.mark.kafka
@pytest.mark.long
def test_kafkas_tool(node: EmbeddedNode, producer: Producer) -> None:
    """transactions.md X60: kafka-transactions lists and describes what ours does."""

    def kafka(*arguments: str) -> str:
        return run_tool("org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", node.bootstrap, *arguments)

    listed = kafka("list")
    assert "test_kafkas_tool" in listed
    assert "Ongoing" in listed
    assert "orders-1" in kafka("describe", "--transactional-id", "test_kafkas_tool")
    producers = kafka("describe-producers", "--topic", "orders", "--partition", "1")
    assert len(producers.splitlines()) > 1
    assert "orders" not in kafka("find-hanging", "--topic", "orders", "--max-transaction-timeout", "0")


def test_a_hanging_transaction_is_found_and_ended(tmp_path: Path) -> None:
    """The topic of the coordinators is deleted and made anew: no coordinator knows the open transaction."""
    with EmbeddedNode(data_dir=tmp_path) as node, Admin(node.bootstrap) as admin:
        admin.create_topics([NewTopic("orders", 2)])
        with Producer(node.bootstrap, transactional_id="lost") as opened:
            opened.init_transactions()
            opened.begin_transaction()
            opened.send("orders", b"a", partition=1).result()
            admin.delete_topics(["__transaction_state"])
        with Producer(node.bootstrap, transactional_id="other") as opened:
            opened.init_transactions()
        (row,) = run_json(node, "find-hanging", "--max-transaction-timeout", "-1")
        assert (row["partition"], row["start_offset"]) == ("orders-1", 0)
        command = row["abort_with"].split()[2:]
        assert "is aborted" in run(node, *command)
        assert run_json(node, "find-hanging", "--max-transaction-timeout", "-1") == []
        (producer,) = admin.describe_producers([WHERE])[WHERE]
        assert producer.transaction_start_offset == -1
