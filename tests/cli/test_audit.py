"""What `fenceline audit` says to its own options; what an audit and a repair do is in `tests/spark/test_audit.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import Result
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from fenceline.cli.app import app
from fenceline.client import NewTopic, Producer, TopicPartition
from fenceline.client.admin import Admin
from fenceline.client.reader import RangeReader
from fenceline.testing.node import EmbeddedNode

pytest.importorskip("pyspark")
COLUMNS = ["value", "topic", "partition", "offset", "leader_epoch"]


@pytest.fixture
def node() -> Iterator[EmbeddedNode]:
    """With a topic `t` of 20 records."""
    with EmbeddedNode() as running:
        with Admin(running.bootstrap) as admin:
            admin.create_topics([NewTopic("t", 1)])
        with Producer(running.bootstrap) as producer:
            for number in range(20):
                producer.send("t", b"%d" % number, partition=0)
        yield running


@pytest.fixture
def rows(node: EmbeddedNode) -> pa.Table:
    with RangeReader({"bootstrap.servers": node.bootstrap}) as reader:
        return pa.Table.from_batches(list(reader.read({TopicPartition("t", 0): (0, 20)}))).select(COLUMNS)


@pytest.fixture
def table(rows: pa.Table, tmp_path: Path) -> str:
    """Behind from 15 on, with two holes."""
    path = str(tmp_path / "table")
    write_deltalake(path, pa.concat_tables([rows.slice(0, 5), rows.slice(7, 8)]))
    return path


def audit(node: EmbeddedNode, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["audit", *arguments], env={"FENCELINE_BOOTSTRAP": node.bootstrap})


def offsets(table: str) -> list[int]:
    found: list[Any] = DeltaTable(table).to_pyarrow_table()["offset"].to_pylist()
    return sorted(found)


def test_a_repair_leaves_to_a_stream_what_it_is_about_to_add(node: EmbeddedNode, table: str) -> None:
    result = audit(node, table, "--repair", "--no-catch-up")
    assert "added 2" in result.stdout
    assert "behind" in result.stdout
    # A table that is only behind does not differ.
    assert result.exit_code == 0
    assert offsets(table) == [*range(15)]
    result = audit(node, table)
    assert (result.exit_code, "behind" in result.stdout) == (0, True)
    assert audit(node, table, "--repair").exit_code == 0
    assert offsets(table) == [*range(20)]


def test_rows_of_which_the_log_says_nothing_go_when_asked(node: EmbeddedNode, rows: pa.Table, table: str) -> None:
    strange = rows.slice(0, 3).set_column(1, "topic", pa.array(["nowhere"] * 3))
    write_deltalake(table, strange, mode="append")
    assert audit(node, table, "--repair").exit_code == 1
    assert len(offsets(table)) == 23
    result = audit(node, table, "--repair", "--doubtful-rows", "delete")
    assert result.exit_code == 0
    assert "3 foreign" in result.stdout
    assert offsets(table) == [*range(20)]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--no-catch-up"], "Add --repair"),
        (["--doubtful-rows", "delete"], "Add --repair"),
        (["--repair", "--doubtful-rows", "perhaps"], "Use keep or delete"),
    ],
)
def test_what_makes_no_sense_is_refused(node: EmbeddedNode, table: str, arguments: list[str], word: str) -> None:
    result = audit(node, table, *arguments)
    assert result.exit_code == 1
    assert word in result.output
    assert offsets(table) == [*range(5), *range(7, 15)]
