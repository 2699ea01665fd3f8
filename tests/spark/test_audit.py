"""Audit and repair without Spark, against a Fenceline node and Apache Kafka: every kind of difference, and its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from fenceline.cli.app import app
from fenceline.client.reader import RangeReader
from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from fenceline.testing.node import EmbeddedNode
from pyspark_fenceline.audit_judge import Kind
from pyspark_fenceline.audit_table import Audit, audit_here, settings
from pyspark_fenceline.repair_table import Repair, repair_here
from tests.spark.conftest import Broker
from tests.spark.test_truncation import cut

pytestmark = [pytest.mark.timeout(300)]
COLUMNS = ["value", "topic", "partition", "offset", "leader_epoch"]


def records(broker: Broker, topic: str, first: int, end: int, partition: int = 0) -> pa.Table:
    """Rows as the source gives them."""
    with RangeReader({"bootstrap.servers": broker.bootstrap}) as reader:
        batches = list(reader.read({TopicPartition(topic, partition): (first, end)}))
    if not batches:
        return pa.table({"value": pa.array([], pa.binary())})
    return pa.Table.from_batches(batches).select(COLUMNS)


def keep(table: Path, rows: pa.Table, **options: Any) -> str:
    write_deltalake(str(table), rows, mode="append", partition_by=["topic", "partition"], **options)
    return str(table)


def audited(broker: Broker, table: str, topics: str | None = None, **options: Any) -> Audit:
    return audit_here(table, settings(broker.bootstrap, topics, **options))


def repaired(broker: Broker, table: str, topics: str | None = None, **options: Any) -> Repair:
    return repair_here(table, settings(broker.bootstrap, topics, **options))


def told(found: Audit) -> list[tuple[str, int, int, int, int]]:
    return [
        (row["kind"], row["partition"], row["start_offset"], row["end_offset_exclusive"], row["rows"])
        for row in found.findings.to_pylist()
    ]


def with_epoch(rows: pa.Table, epoch: int | None) -> pa.Table:
    column = pa.array([epoch] * rows.num_rows, pa.int32())
    return rows.set_column(rows.schema.get_field_index("leader_epoch"), "leader_epoch", column)


def moved(rows: pa.Table, by: int) -> pa.Table:
    column = pa.compute.add(rows["offset"], by)
    return rows.set_column(rows.schema.get_field_index("offset"), "offset", column)


def test_a_table_that_is_the_log(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create(topic, 2)
    broker.produce(topic, range(500), partition=0)
    broker.produce(topic, range(20), partition=1)
    table = keep(tmp_path / "t", records(broker, topic, 0, 500))
    keep(tmp_path / "t", records(broker, topic, 0, 20, 1))
    found = audited(broker, table)
    assert found.verdict.is_equal, str(found)
    assert found.verdict.row_count == 520
    assert told(found) == []
    done = repaired(broker, table)
    assert done.version is None
    assert "Nothing was changed" in done.sentence()


def test_every_difference_is_found_and_mended(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create(topic, 2)
    for _ in range(5):
        broker.produce(topic, range(100), partition=0)
    broker.produce(topic, range(50), partition=1)
    whole = records(broker, topic, 0, 500)
    table = keep(tmp_path / "t", whole.slice(0, 100))
    keep(tmp_path / "t", whole.slice(150, 50))
    keep(tmp_path / "t", whole.slice(180, 40))
    keep(tmp_path / "t", moved(whole.slice(490, 10), 50))
    untouched = {file for file in DeltaTable(table).file_uris() if "partition=1" in file}
    keep(tmp_path / "t", whole.slice(300, 100))
    found = audited(broker, table, topic)
    assert told(found) == [
        ("missing", 0, 100, 150, 50),
        ("duplicate", 0, 180, 200, 20),
        ("missing", 0, 220, 300, 80),
        ("missing", 0, 400, 500, 100),
        ("beyond", 0, 540, 550, 10),
        ("behind", 1, 0, 50, 50),
    ]
    assert found.verdict.word == "different"
    assert "10 beyond" in str(found)
    before = set(DeltaTable(table).file_uris())

    done = repaired(broker, table, topic)
    assert done.removed_rows == 30
    assert done.added_rows == 280
    after = audited(broker, table, topic)
    assert after.verdict.is_equal, str(after)
    rows = DeltaTable(table).to_pyarrow_table().sort_by([("partition", "ascending"), ("offset", "ascending")])
    assert rows["offset"].to_pylist() == [*range(500), *range(50)]
    assert rows.slice(0, 500).select(COLUMNS).cast(whole.schema).equals(whole)
    # Only the file with rows beyond the log and one of the two with the same rows went.
    assert len(before - set(DeltaTable(table).file_uris())) == 2
    assert untouched <= set(DeltaTable(table).file_uris())
    version = DeltaTable(table).version()
    assert repaired(broker, table, topic).version is None
    assert DeltaTable(table).version() == version
    assert DeltaTable(table).history(1)[0]["fenceline"]["repair"]["removed_rows"] == 30


def test_a_table_may_begin_later_and_be_behind(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create(topic)
    broker.produce(topic, range(100))
    table = keep(tmp_path / "t", records(broker, topic, 40, 80))
    assert audited(broker, table).verdict.word == "different"
    found = audited(broker, table, starting="table")
    assert found.verdict.word == "behind"
    assert told(found) == [("behind", 0, 80, 100, 20)]
    chosen = settings(broker.bootstrap, topic, starting="table")
    assert repair_here(table, chosen, catch_up=False).version is None
    assert repair_here(table, chosen).added_rows == 20


def test_rows_below_the_logs_start_are_kept(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create(topic)
    broker.produce(topic, range(50))
    broker.produce(topic, range(50, 100))
    table = keep(tmp_path / "t", records(broker, topic, 20, 100))
    broker.admin.delete_records({TopicPartition(topic, 0): 50})
    found = audited(broker, table)
    assert found.verdict.is_equal
    assert told(found) == [("expired", 0, 0, 20, 0), ("expired", 0, 20, 50, 30)]
    assert repaired(broker, table).version is None


def test_rows_of_which_the_log_says_nothing_are_kept_unless_asked(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create(topic)
    broker.produce(topic, range(10))
    good = records(broker, topic, 0, 10)
    strange = good.set_column(
        good.schema.get_field_index("topic"), "topic", pa.array([f"{topic}-other"] * 10, pa.string())
    )
    table = keep(tmp_path / "t", good.slice(0, 6))
    keep(tmp_path / "t", strange)
    keep(tmp_path / "t", with_epoch(good.slice(6, 2), 99))
    keep(tmp_path / "t", with_epoch(good.slice(8, 2), None))
    found = audited(broker, table)
    kinds = {(row["kind"], row["rows"]) for row in found.findings.to_pylist()}
    assert kinds == {("foreign", 10), ("beyond", 2), ("missing", 2), ("unproven", 2)}
    assert not found.verdict.is_right
    done = repaired(broker, table)
    assert done.removed_rows == 0
    assert len(done.left) == 2
    repair_here(table, settings(broker.bootstrap), doubtful_rows="delete")
    assert audited(broker, table).verdict.is_equal
    assert DeltaTable(table).count() == 10


def test_empty_topics_and_many_partitions(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create(topic, 100)
    broker.produce(topic, range(10), partition=7)
    table = keep(tmp_path / "t", records(broker, topic, 0, 10, 7))
    found = audited(broker, table, topic)
    assert found.verdict.is_equal
    assert found.verdict.partition_count == 100


def test_tables_that_can_not_be_compared_are_refused(broker: Broker, topic: str, tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="no Delta table"):
        audited(broker, str(tmp_path / "nothing"))
    write_deltalake(str(tmp_path / "t"), pa.table({"offset": [1], "partition": [0]}))
    with pytest.raises(OperatorError, match="no column topic, leader_epoch"):
        audited(broker, str(tmp_path / "t"))
    broker.create(topic)
    broker.produce(topic, range(3))
    good = keep(tmp_path / "good", records(broker, topic, 0, 3))
    with pytest.raises(OperatorError, match=f"no topic {topic}-x"):
        audited(broker, good, f"{topic}-x")


def test_a_table_with_columns_of_its_own_is_not_filled_by_guessing(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create(topic)
    broker.produce(topic, range(5))
    rows = records(broker, topic, 0, 3)
    table = keep(tmp_path / "t", rows.append_column("parsed", pa.array([1, 2, 3])))
    with pytest.raises(OperatorError, match="parsed are not the source's") as caught:
        repaired(broker, table)
    assert "transform" in caught.value.advice


@pytest.mark.kafka
def test_control_batches_and_aborted_transactions_are_no_holes(
    apache_kafka: Broker, topic: str, tmp_path: Path
) -> None:
    from confluent_kafka import Producer

    broker = apache_kafka
    broker.create(topic)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for round_number in range(4):
        producer.begin_transaction()
        for number in range(5):
            producer.produce(topic, value=f"{round_number} {number}".encode())
        producer.flush()
        if round_number % 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    # Five records and a marker four times.
    every = records(broker, topic, 0, 24)
    assert every.num_rows == 20
    table = keep(tmp_path / "all", every)
    assert audited(broker, table).verdict.is_equal
    found = audited(broker, table, isolation_level="read_committed")
    assert told(found) == [("aborted", 0, 6, 11, 5), ("aborted", 0, 18, 23, 5)]
    done = repaired(broker, table, isolation_level="read_committed")
    assert done.removed_rows == 10
    assert audited(broker, table, isolation_level="read_committed").verdict.is_equal
    # For who wants all records, those of aborted transactions are missing now.
    assert told(audited(broker, table)) == [("missing", 0, 6, 11, 5), ("behind", 0, 18, 23, 5)]
    repaired(broker, table)
    assert audited(broker, table).verdict.is_equal


def test_a_truncated_log_and_a_poisoned_batch(tmp_path: Path) -> None:
    topic = "cut"
    with EmbeddedNode() as node:
        broker = Broker("fenceline", node.bootstrap)
        broker.create(topic)
        for start in (0, 100, 150):
            broker.produce(topic, range(start, start + 50 + 50 * (start == 0)))
        table = keep(tmp_path / "t", records(broker, topic, 0, 150))
        keep(tmp_path / "t", records(broker, topic, 150, 200))
        node.stop()
        cut(node, topic, 100)
        node.start()
        broker = Broker("fenceline", node.bootstrap)
        broker.produce(topic, range(1000, 1060))
        found = audited(broker, table)
        assert told(found) == [("behind", 0, 100, 160, 60), ("stale", 0, 100, 200, 100)]
        done = repaired(broker, table)
        assert (done.removed_rows, done.added_rows, done.files_removed) == (100, 60, 2)
        assert audited(broker, table).verdict.is_equal
        values = DeltaTable(table).to_pyarrow_table().sort_by("offset")["value"].to_pylist()
        assert values[100:] == [b"%d" % value for value in range(1000, 1060)]

        # A bit in the middle of the log turns, where the table has no rows.
        node.stop()
        (folder,) = node.log_dir.rglob(f"{topic}-0")
        (segment,) = folder.glob("*.log")
        with segment.open("r+b") as file:
            file.seek(-30, 2)
            byte = file.read(1)
            file.seek(-30, 2)
            file.write(bytes([byte[0] ^ 1]))
        node.start()
        broker = Broker("fenceline", node.bootstrap)
        short = keep(tmp_path / "short", records(broker, topic, 0, 100))
        broker.produce(topic, range(5))
        found = audited(broker, short)
        kinds = {row["kind"] for row in found.findings.to_pylist()}
        assert Kind.UNREADABLE in kinds or Kind.BEHIND in kinds
        done = repaired(broker, short)
        assert DeltaTable(short).count() >= 100


def command(broker: Broker, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["audit", *arguments], env={"FENCELINE_BOOTSTRAP": broker.bootstrap})


def test_the_command_says_it_and_repairs(fenceline_node: Broker, topic: str, tmp_path: Path) -> None:
    fenceline_node.create(topic)
    fenceline_node.produce(topic, range(100))
    rows = records(fenceline_node, topic, 0, 100)
    table = keep(tmp_path / "t", rows.slice(0, 60))
    keep(tmp_path / "t", rows.slice(70, 30))
    result = command(fenceline_node, table)
    assert result.exit_code == 1
    assert "missing" in result.stdout
    assert "60 to 69" in result.stdout
    assert "The table differs from the log (90 rows of 1 partitions: 10 missing)" in result.stdout
    result = command(fenceline_node, table, "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["verdict"]) == (1, "different")
    assert document["kinds"] == {"missing": {"ranges": 1, "rows": 10}}
    result = command(fenceline_node, table, "--repair")
    assert result.exit_code == 0, result.stdout
    assert "added 10" in result.stdout
    assert "The table equals the log" in result.stdout
    assert command(fenceline_node, str(tmp_path / "none")).exit_code == 1
