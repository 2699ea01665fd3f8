"""The options and output of `fenceline audit`; audits and repairs: `tests/spark/auditing/test_audit.py`."""

from __future__ import annotations

import json
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
from fenceline.client.admin.admin import Admin
from fenceline.client.reader.reader import RangeReader
from fenceline.testing.node import EmbeddedNode

pytest.importorskip("pyspark")
COLUMNS = ["value", "topic", "partition", "offset", "leader_epoch"]


@pytest.fixture
def node() -> Iterator[EmbeddedNode]:
    """A node with a topic `t` of 20 records."""
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
    """A table that ends before offset 15 and lacks offsets 5 and 6."""
    path = str(tmp_path / "table")
    write_deltalake(path, pa.concat_tables([rows.slice(0, 5), rows.slice(7, 8)]))
    return path


def audit(node: EmbeddedNode, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["audit", *arguments], env={"FENCELINE_BOOTSTRAP": node.bootstrap})


def offsets(table: str) -> list[int]:
    found: list[Any] = DeltaTable(table).to_pyarrow_table()["offset"].to_pylist()
    return sorted(found)


def test_a_repair_changes_nothing_until_it_is_applied(node: EmbeddedNode, table: str) -> None:
    version = DeltaTable(table).version()
    result = audit(node, table, "--repair", "--kind", "missing")
    assert "Would remove 0 rows and add 2" in result.stdout
    assert "--apply" in result.stdout
    assert result.exit_code == 1
    assert (offsets(table), DeltaTable(table).version()) == ([*range(5), *range(7, 15)], version)


def test_a_repair_changes_only_the_requested_kinds(node: EmbeddedNode, table: str) -> None:
    # Without --kind only rows that are proven wrong are removed, and there are none.
    result = audit(node, table, "--repair", "--apply")
    assert "Nothing was changed; 1 findings are left unchanged (missing)" in result.stdout
    assert result.exit_code == 1
    result = audit(node, table, "--repair", "--kind", "missing", "--apply")
    assert "added 2" in result.stdout
    # Rows that a stream will still add are not missing: a table that is only behind does not differ.
    assert "behind" in result.stdout
    assert result.exit_code == 0
    assert offsets(table) == [*range(15)]
    assert audit(node, table, "--repair", "--kind", "stale,behind", "--apply").exit_code == 0
    assert offsets(table) == [*range(20)]


def test_foreign_rows_are_removed_on_request(node: EmbeddedNode, rows: pa.Table, table: str) -> None:
    strange = rows.slice(0, 3).set_column(1, "topic", pa.array(["nowhere"] * 3))
    write_deltalake(table, strange, mode="append")
    assert audit(node, table, "--repair", "--kind", "missing", "--apply").exit_code == 1
    assert len(offsets(table)) == 18
    result = audit(node, table, "--repair", "--kind", "foreign", "--apply")
    assert result.exit_code == 0
    assert "3 foreign" in result.stdout
    assert offsets(table) == [*range(15)]


@pytest.fixture
def led_twice(tmp_path: Path) -> Iterator[tuple[EmbeddedNode, str]]:
    """A topic `t` of 20 records in two epochs, and a table of it without `leader_epoch`, as the connector writes it."""
    with EmbeddedNode() as running:
        with Admin(running.bootstrap) as admin:
            admin.create_topics([NewTopic("t", 1)])
        for restart in (False, True):
            if restart:
                running.stop()
                running.start()
            with Producer(running.bootstrap) as producer:
                for number in range(10):
                    producer.send("t", b"%d" % number, partition=0)
        with RangeReader({"bootstrap.servers": running.bootstrap}) as reader:
            found = pa.Table.from_batches(list(reader.read({TopicPartition("t", 0): (0, 20)}))).select(COLUMNS)
        path = str(tmp_path / "table")
        write_deltalake(path, found.drop_columns("leader_epoch"))
        yield running, path


def test_unproven_rows_have_a_verdict_and_an_exit_code_of_their_own(led_twice: tuple[EmbeddedNode, str]) -> None:
    node, table = led_twice
    result = audit(node, table)
    assert result.exit_code == 3
    assert "The table is not proven to equal the log (20 rows of 1 partitions: 20 unproven)" in result.stdout
    assert "20 of 20 rows have no epoch" in result.stdout
    assert "--backfill" in result.stdout
    assert json.loads(audit(node, table, "--json").stdout)["verdict"] == "unproven"
    # Compared by value, all rows match the log.
    assert audit(node, table, "--by-values").exit_code == 0
    # The epochs are added on request.
    result = audit(node, table, "--backfill")
    assert "20 rows would get their epochs" in result.stdout
    assert (result.exit_code, DeltaTable(table).version()) == (3, 0)
    result = audit(node, table, "--backfill", "--apply")
    assert "20 rows got their epochs" in result.stdout
    assert result.exit_code == 0
    assert "equals the log" in audit(node, table).stdout


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--kind", "stale"], "Add --repair"),
        (["--apply"], "Add --repair or --backfill"),
        (["--repair", "--backfill"], "cannot be combined"),
        (["--backfill", "--where", "true"], "Remove --where"),
        (["--repair", "--kind", "unproven"], "does not support findings of the kind unproven"),
        (["--row-key", "line"], "no column line"),
        (["--deleted", "list.txt"], "format of the file of deleted rows"),
        (["--deleted", "list.csv"], "cannot be read"),
    ],
)
def test_invalid_options_are_rejected(node: EmbeddedNode, table: str, arguments: list[str], word: str) -> None:
    result = audit(node, table, *arguments)
    assert result.exit_code == 1
    assert word in result.output
    assert offsets(table) == [*range(5), *range(7, 15)]


def test_rows_listed_as_deleted_are_not_missing(node: EmbeddedNode, table: str, tmp_path: Path) -> None:
    listed = tmp_path / "deleted.csv"
    listed.write_text("topic,partition,offset\nt,0,5\nt,0,6\n")
    result = audit(node, table, "--deleted", str(listed), "--repair", "--kind", "missing,behind", "--apply")
    assert result.exit_code == 0
    assert "The table equals the log except for rows that were deleted on purpose" in result.stdout
    assert offsets(table) == [*range(5), *range(7, 20)]
