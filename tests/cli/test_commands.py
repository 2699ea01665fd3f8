"""Every command against a running node: what a program reads (--json), what a person reads, and the errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fenceline.cli.app import app
from fenceline.errors import OperatorError
from fenceline.testing.apache_kafka import free_port
from fenceline.testing.node import EmbeddedNode


def run(node: EmbeddedNode, *arguments: str, stdin: str | None = None, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments), input=stdin, env={"FENCELINE_BOOTSTRAP": node.bootstrap})
    assert result.exit_code == code, result.output
    return result.output


def run_json(node: EmbeddedNode, *arguments: str, stdin: str | None = None) -> Any:
    return json.loads(run(node, *arguments, "--json", stdin=stdin))


def test_topics_are_created_listed_described_and_deleted(node: EmbeddedNode) -> None:
    made = run_json(node, "topics", "create", "life", "--partitions", "2", "--config", "retention.ms=1000")
    assert made["partitions"] == 2
    assert [row for row in run_json(node, "topics", "list") if row["topic"] == "life"] == [
        {"topic": "life", "id": made["id"], "partitions": 2, "internal": False}
    ]
    run(node, "topics", "grow", "life", "3")
    described = run_json(node, "topics", "describe", "life")
    assert [(row["partition"], row["leader"], row["leader_epoch"]) for row in described] == [
        (i, 1, 0) for i in range(3)
    ]
    assert run_json(node, "topics", "grow", "life", "--partitions", "4") == {"topic": "life", "partitions": 4}
    for given in ([], ["5", "--partitions", "5"]):
        with pytest.raises(OperatorError, match="must be given once"):
            CliRunner().invoke(app, ["topics", "grow", "life", *given], catch_exceptions=False)
    assert len(run_json(node, "topics", "describe", "life")) == 4
    assert run_json(node, "topics", "delete", "life") == {"deleted": ["life"]}
    assert "life" not in run(node, "topics", "list")


def test_settings(node: EmbeddedNode) -> None:
    run(node, "topics", "create", "settings")
    run(node, "configs", "set", "topic", "settings", "retention.ms=12345", "cleanup.policy=delete")
    rows = {row["setting"]: row for row in run_json(node, "configs", "describe", "topic", "settings")}
    assert rows["retention.ms"]["value"] == "12345"
    assert rows["retention.ms"]["source"] == "DYNAMIC_TOPIC_CONFIG"
    run(node, "configs", "set", "topic", "settings", "retention.ms=")
    rows = {row["setting"]: row for row in run_json(node, "configs", "describe", "topic", "settings", "--all")}
    assert rows["retention.ms"]["source"] != "DYNAMIC_TOPIC_CONFIG"


def test_produce_consume_and_offsets(node: EmbeddedNode) -> None:
    run(node, "topics", "create", "words", "--partitions", "1")
    lines = "".join(f"k{i}:v{i}\n" for i in range(5))
    sent = run_json(node, "produce", "words", "-K", ":", "--compression", "zstd", stdin=lines)
    assert [row["offset"] for row in sent] == list(range(5))
    read = [json.loads(line) for line in run(node, "consume", "words", "--json").splitlines()]
    assert [(row["key"], row["value"], row["offset"]) for row in read] == [(f"k{i}", f"v{i}", i) for i in range(5)]
    assert {row["leader_epoch"] for row in read} == {0}
    assert run(node, "consume", "words", "--from", "=3").splitlines() == ["k3: v3", "k4: v4"]
    assert run(node, "consume", "words", "-n", "1").splitlines() == ["k0: v0"]
    assert run_json(node, "offsets", "words") == [
        {"partition": 0, "start": 0, "end": 5, "records": 5, "leader_epoch": 0}
    ]


def test_groups(node: EmbeddedNode) -> None:
    run(node, "topics", "create", "grouped", "--partitions", "1")
    run(node, "produce", "grouped", stdin="a\nb\nc\n")
    run(node, "groups", "reset", "readers", "grouped", "--to-earliest", "--execute")
    described = run_json(node, "groups", "describe", "readers")
    assert described["offsets"] == [
        {
            "topic": "grouped",
            "partition": 0,
            "current_offset": 0,
            "epoch": None,
            "log_end": 3,
            "lag": 3,
            "mark": None,
            "member": None,
        }
    ]
    shown = run(node, "groups", "reset", "readers", "grouped", "--to-offset", "2")
    assert "--execute" in shown
    assert run_json(node, "groups", "describe", "readers")["offsets"][0]["lag"] == 3, "a dry run changes nothing"
    done = run_json(node, "groups", "reset", "readers", "grouped:0", "--to-offset", "2", "--execute")
    moved = {"topic": "grouped", "partition": 0, "current_offset": 0, "new_offset": 2, "epoch": 0, "lag": 1}
    assert done == {"group": "readers", "executed": True, "offsets": [moved]}
    (position,) = run_json(node, "groups", "describe", "readers")["offsets"]
    assert (position["lag"], position["epoch"], position["mark"]) == (1, 0, None)
    assert "readers" in [row["group"] for row in run_json(node, "groups", "list")]
    (listed,) = [row for row in run_json(node, "groups", "list", "--lag") if row["group"] == "readers"]
    assert (listed["state"], listed["members"], listed["lag"], listed["mark"]) == ("Empty", 0, 1, None)
    run(node, "groups", "delete", "readers")
    assert "readers" not in run(node, "groups", "list")


def test_log_dump_reads_batches_and_records(node: EmbeddedNode) -> None:
    run(node, "topics", "create", "dumped", "--partitions", "1")
    run(node, "produce", "dumped", stdin="one\ntwo\n")
    directory = str(node.log_dir / "dumped-0")
    batches = run_json(node, "log", "dump", directory)
    assert sum(row["records"] for row in batches) == 2
    assert {row["crc"] for row in batches} == {"ok"}
    records = run_json(node, "log", "dump", directory, "--records")
    assert [(row["offset"], row["value"]) for row in records] == [(0, "one"), (1, "two")]


def test_a_damaged_segment_is_reported_with_exit_code_1(node: EmbeddedNode, tmp_path: Path) -> None:
    run(node, "topics", "create", "damaged", "--partitions", "1")
    run(node, "produce", "damaged", stdin="something\n")
    segment = next((node.log_dir / "damaged-0").glob("*.log"))
    copy = tmp_path / segment.name
    content = bytearray(segment.read_bytes())
    content[-3] ^= 0xFF
    copy.write_bytes(content)
    assert "BAD" in run(node, "log", "dump", str(copy), code=1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("topics", "describe", "nowhere"), "There is no topic nowhere"),
        (("consume", "nowhere"), "There is no topic nowhere"),
        (("offsets", "nowhere"), "There is no topic nowhere"),
        (("topics", "list", "-b", "host:port"), "'host:port' is not the address of a broker"),
        (("topics", "create", "bad name"), "INVALID_TOPIC_EXCEPTION"),
        (("topics", "create", "x", "--config", "retention.ms"), "has no value"),
        (("configs", "set", "topic", "nowhere", "retention.ms=1"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (("log", "dump", "/nonexistent"), "does not exist"),
        (("groups", "delete", "nobody"), "GROUP_ID_NOT_FOUND"),
    ],
)
def test_errors_have_no_traceback_and_exit_with_1(node: EmbeddedNode, arguments: tuple[str, ...], said: str) -> None:
    output = run(node, *arguments, code=1)
    assert said in output
    assert "Traceback" not in output


def test_an_unreachable_node_is_reported(node: EmbeddedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fenceline.cli.output.TIMEOUT_MS", 1_000)
    monkeypatch.setattr("fenceline.cli.records.TIMEOUT_MS", 1_000)
    nowhere = f"127.0.0.1:{free_port()}"
    for command, stdin in ((("topics", "list"), None), (("produce", "any"), "line\n")):
        output = run(node, *command, "--bootstrap", nowhere, stdin=stdin, code=1)
        assert "No broker answered within 1000 ms" in output
        assert "Connection refused" in output


@pytest.mark.parametrize("start", ["=4", "=-1", "=x"])
def test_an_exact_offset_outside_of_the_log_is_rejected(node: EmbeddedNode, start: str) -> None:
    topic = f"exact{start.strip('=')}"
    run(node, "topics", "create", topic, "--partitions", "1")
    run(node, "produce", topic, stdin="a\nb\nc\n")
    output = run(node, "consume", topic, "--from", start, code=1)
    assert ("is not an offset" if start == "=x" else "the log starts at 0 and ends at 3") in output
    assert run(node, "consume", topic, "--from", "=3") == ""


def test_a_formatted_directory_is_not_formatted_again(node: EmbeddedNode, tmp_path: Path) -> None:
    directory = str(tmp_path / "fresh")
    made = run_json(node, "format", "--data-dir", directory)
    assert made["directories"] == [directory]
    assert "already formatted" in run(node, "format", "--data-dir", directory, code=1)
    assert (tmp_path / "fresh" / "meta.properties").read_text().count(made["cluster_id"]) == 1
