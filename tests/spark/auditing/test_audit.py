"""Audit and repair without Spark, against a Fenceline node and Apache Kafka: every kind of difference, and its
repair."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from fenceline.cli.app import app
from fenceline.client.producer.producer import Producer
from fenceline.client.reader.reader import RangeReader
from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from fenceline.records.batch import iter_headers
from fenceline.testing.node import EmbeddedNode
from pyspark_fenceline.auditing.repair_table import TableRepair, repair_here
from pyspark_fenceline.auditing.table import Audit, audit_here, settings
from tests.spark.conftest import Broker
from tests.spark.cut_log import restart_cut
from tests.spark.table_readers import check_readers

pytestmark = [pytest.mark.timeout(300)]
COLUMNS = ["value", "topic", "partition", "offset", "leader_epoch"]


def records(broker: Broker, topic: str, first: int, end: int, partition: int = 0) -> pa.Table:
    """Rows as the source returns them."""
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


EVERY_FAULT = ("stale", "beyond", "duplicate", "missing", "behind", "aborted")


def repaired(
    broker: Broker, table: str, topics: str | None = None, kinds: Sequence[str] | None = EVERY_FAULT, **options: Any
) -> TableRepair:
    return repair_here(table, settings(broker.bootstrap, topics, **options), apply=True, kinds=kinds)


def findings_of(found: Audit) -> list[tuple[str, int, int, int, int]]:
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


def test_a_table_equal_to_the_log_has_no_findings(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create(topic, 2)
    broker.produce(topic, range(500), partition=0)
    broker.produce(topic, range(20), partition=1)
    table = keep(tmp_path / "t", records(broker, topic, 0, 500))
    keep(tmp_path / "t", records(broker, topic, 0, 20, 1))
    found = audited(broker, table)
    assert found.verdict.is_equal, str(found)
    assert found.verdict.row_count == 520
    assert findings_of(found) == []
    done = repaired(broker, table)
    assert done.version is None
    assert "Nothing was changed" in done.sentence()


def test_every_difference_is_found_and_repaired(broker: Broker, topic: str, tmp_path: Path) -> None:
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
    assert findings_of(found) == [
        ("missing", 0, 100, 150, 50),
        ("duplicate", 0, 180, 200, 20),
        ("missing", 0, 220, 300, 80),
        ("missing", 0, 400, 500, 100),
        ("beyond", 0, 540, 550, 10),
        ("behind", 1, 0, 50, 50),
    ]
    assert found.verdict.outcome == "different"
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
    # Only the file with rows beyond the log and one of the two duplicate files were removed.
    assert len(before - set(DeltaTable(table).file_uris())) == 2
    assert untouched <= set(DeltaTable(table).file_uris())
    version = DeltaTable(table).version()
    assert repaired(broker, table, topic).version is None
    assert DeltaTable(table).version() == version
    added, removed = (entry["fenceline"]["repair"] for entry in DeltaTable(table).history(2))
    assert (removed["removed_rows"], removed["added_rows"]) == (30, 0)
    assert (added["removed_rows"], added["added_rows"]) == (0, 280)
    check_readers(table)


def test_a_table_may_begin_later_and_lag_behind(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create(topic)
    broker.produce(topic, range(100))
    table = keep(tmp_path / "t", records(broker, topic, 40, 80))
    assert audited(broker, table).verdict.outcome == "different"
    found = audited(broker, table, starting="table")
    assert found.verdict.outcome == "behind"
    assert findings_of(found) == [("behind", 0, 80, 100, 20)]
    chosen = settings(broker.bootstrap, topic, starting="table")
    assert repair_here(table, chosen, apply=True, kinds=("stale", "missing")).version is None
    assert repair_here(table, chosen, apply=True, kinds=("behind",)).added_rows == 20


def test_rows_below_the_logs_start_are_kept(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create(topic)
    broker.produce(topic, range(50))
    broker.produce(topic, range(50, 100))
    table = keep(tmp_path / "t", records(broker, topic, 20, 100))
    broker.admin.delete_records({TopicPartition(topic, 0): 50})
    found = audited(broker, table)
    assert found.verdict.is_equal
    assert findings_of(found) == [("expired", 0, 0, 20, 0), ("expired", 0, 20, 50, 30)]
    assert repaired(broker, table).version is None


def test_unprovable_rows_are_kept_unless_requested(broker: Broker, topic: str, tmp_path: Path) -> None:
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
    # The log has only one epoch: there the row without an epoch is proven.
    assert kinds == {("foreign", 10), ("newer", 2), ("missing", 2)}
    assert not found.verdict.is_right
    done = repaired(broker, table, kinds=("stale", "beyond", "duplicate", "aborted"))
    assert done.removed_rows == 0
    assert {one["kind"] for one in done.left} == {"foreign", "newer", "missing"}
    repaired(broker, table, kinds=("foreign", "newer", "missing"))
    assert audited(broker, table).verdict.is_equal
    assert DeltaTable(table).count() == 10


def test_an_empty_topic_and_an_empty_table(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create(topic, 3)
    other = broker.create(f"{topic}-full")
    broker.produce(other, range(3))
    table = keep(tmp_path / "t", records(broker, other, 0, 3).slice(0, 0))
    assert DeltaTable(table).count() == 0
    # Without a topic name there is nothing to compare.
    assert "0 rows of 0 partitions); nothing was compared" in str(audited(broker, table))
    found = audited(broker, table, topic)
    assert (found.verdict.outcome, found.verdict.row_count, found.verdict.partition_count) == ("equal", 0, 3)
    assert findings_of(found) == []
    assert repaired(broker, table, topic).version is None
    assert findings_of(audited(broker, table, other)) == [("behind", 0, 0, 3, 3)]
    # A row at an offset that the log never had.
    keep(tmp_path / "t", records(broker, other, 0, 1).set_column(1, "topic", pa.array([topic])))
    assert findings_of(audited(broker, table, topic)) == [("beyond", 0, 0, 1, 1)]
    assert repaired(broker, table, topic).removed_rows == 1
    assert audited(broker, table, topic).verdict.is_equal


def test_null_keys_and_null_values_are_records(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create(topic)
    nulls = pa.table({"key": pa.array([None, b"k", None, b""]), "value": pa.array([b"v", None, None, b""])})
    with Producer(broker.bootstrap) as producer:
        promise = producer.send_arrow(nulls, topic, key="key", value="value", partition=0)
        producer.flush()
        promise.result()
    with RangeReader({"bootstrap.servers": broker.bootstrap}) as reader:
        rows = pa.Table.from_batches(list(reader.read({TopicPartition(topic, 0): (0, 4)})))
    rows = rows.select(["key", *COLUMNS])
    table = keep(tmp_path / "t", rows.slice(3))
    assert findings_of(audited(broker, table)) == [("missing", 0, 0, 3, 3)]
    done = repaired(broker, table)
    assert (done.removed_rows, done.added_rows) == (0, 3)
    found = DeltaTable(table).to_pyarrow_table().sort_by("offset")
    assert found["key"].to_pylist() == [None, b"k", None, b""]
    assert found["value"].to_pylist() == [b"v", None, None, b""]
    assert audited(broker, table).verdict.is_equal


@pytest.mark.parametrize("partition_by", [None, ["topic", "partition"]])
@pytest.mark.long
def test_a_thousand_partitions(broker: Broker, topic: str, tmp_path: Path, partition_by: list[str] | None) -> None:
    broker.create(topic, 1000)
    with Producer(broker.bootstrap) as producer:
        promises = [
            producer.send(topic, b"%d" % number, partition=partition)
            for number in range(3)
            for partition in range(0, 1000, 2)
        ]
        producer.flush()
        for promise in promises:
            promise.result()
    with RangeReader({"bootstrap.servers": broker.bootstrap}) as reader:
        ranges = {TopicPartition(topic, partition): (0, 3) for partition in range(0, 1000, 2)}
        rows = pa.Table.from_batches(list(reader.read(ranges))).select(COLUMNS)
    assert rows.num_rows == 1500
    # The middle record of every tenth partition is missing, and partition 998 has its last one twice.
    gone = pa.compute.and_(
        pa.compute.equal(rows["offset"], 1),
        pa.compute.is_in(rows["partition"], pa.array(range(0, 1000, 20), pa.int32())),
    )
    last = rows.filter(pa.compute.and_(pa.compute.equal(rows["partition"], 998), pa.compute.equal(rows["offset"], 2)))
    table = str(tmp_path / "t")
    write_deltalake(table, pa.concat_tables([rows.filter(pa.compute.invert(gone)), last]), partition_by=partition_by)
    found = audited(broker, table, topic)
    assert found.verdict.partition_count == 1000
    holes = [("missing", partition, 1, 2, 1) for partition in range(0, 1000, 20)]
    assert findings_of(found) == [*holes, ("duplicate", 998, 2, 3, 1)]
    done = repaired(broker, table, topic)
    assert (done.removed_rows, done.added_rows) == (1, 50)
    assert audited(broker, table, topic).verdict.is_equal
    assert DeltaTable(table).count() == 1500


def test_tables_that_cannot_be_compared_are_rejected(broker: Broker, topic: str, tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="no Delta table"):
        audited(broker, str(tmp_path / "nothing"))
    write_deltalake(str(tmp_path / "t"), pa.table({"offset": [1], "partition": [0]}))
    with pytest.raises(OperatorError, match="no column topic"):
        audited(broker, str(tmp_path / "t"))
    broker.create(topic)
    broker.produce(topic, range(3))
    good = keep(tmp_path / "good", records(broker, topic, 0, 3))
    with pytest.raises(OperatorError, match=f"no topic {topic}-x"):
        audited(broker, good, f"{topic}-x")


def rewritten(table: Path, rows: pa.Table | None = None, **actions: dict[str, Any]) -> str:
    """A table with other actions in its first log entry."""
    plain = {"topic": ["t"] * 30, "partition": [0] * 30, "offset": list(range(30)), "leader_epoch": [0] * 30}
    write_deltalake(str(table), pa.table(plain) if rows is None else rows)
    entry = table / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    reported = [{kind: {**action, **actions.get(kind, {})} for kind, action in line.items()} for line in lines]
    entry.write_text("\n".join(json.dumps(line) for line in reported))
    return str(table)


def with_deleted_rows(table: Path, rows: pa.Table | None = None) -> str:
    """A table of 30 rows whose deletion vector deletes rows 3, 4, 7, 11, 18 and 29."""
    vector = {"storageType": "i", "pathOrInlineDv": "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"}
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    return rewritten(
        table,
        rows,
        protocol={"minReaderVersion": 3, "minWriterVersion": 7, **features},
        add={"deletionVector": {**vector, "sizeInBytes": 44, "cardinality": 6}},
    )


def test_rows_deleted_by_a_deletion_vector_are_ignored(fenceline_node: Broker, topic: str, tmp_path: Path) -> None:
    fenceline_node.create(topic)
    fenceline_node.produce(topic, range(30))
    table = with_deleted_rows(tmp_path / "t", records(fenceline_node, topic, 0, 30))
    found = audited(fenceline_node, table, topic)
    assert found.verdict.row_count == 24
    absent = [(kind, start, end) for kind, _, start, end, _ in findings_of(found)]
    assert absent == [
        ("missing", 3, 5),
        ("missing", 7, 8),
        ("missing", 11, 12),
        ("missing", 18, 19),
        ("behind", 29, 30),
    ]
    # Files with deletion vectors are not rewritten here.
    with pytest.raises(OperatorError, match="has deletion vectors") as caught:
        repaired(fenceline_node, table, topic)
    assert "PURGE" in caught.value.advice
    assert DeltaTable(table).version() == 0


def test_tables_with_column_mapping_are_rejected(tmp_path: Path) -> None:
    mapped = rewritten(tmp_path / "mapped", metaData={"configuration": {"delta.columnMapping.mode": "name"}})
    with pytest.raises(OperatorError, match="mapped by name"):
        audit_here(mapped, settings("127.0.0.1:1"))


def test_a_table_with_extra_columns_is_not_filled(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create(topic)
    broker.produce(topic, range(5))
    rows = records(broker, topic, 0, 3)
    table = keep(tmp_path / "t", rows.append_column("parsed", pa.array([1, 2, 3])))
    with pytest.raises(OperatorError, match="parsed are not the source's") as caught:
        repaired(broker, table)
    assert "transform" in caught.value.advice


@pytest.mark.kafka
def test_control_batches_and_aborted_transactions_are_no_gaps(apache_kafka: Broker, topic: str, tmp_path: Path) -> None:
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
    assert findings_of(found) == [("aborted", 0, 6, 11, 5), ("aborted", 0, 18, 23, 5)]
    done = repaired(broker, table, isolation_level="read_committed")
    assert done.removed_rows == 10
    assert audited(broker, table, isolation_level="read_committed").verdict.is_equal
    # At read_uncommitted, records of aborted transactions are now missing.
    assert findings_of(audited(broker, table)) == [("missing", 0, 6, 11, 5), ("behind", 0, 18, 23, 5)]
    repaired(broker, table)
    assert audited(broker, table).verdict.is_equal


def test_rows_of_a_truncated_log_are_stale(tmp_path: Path) -> None:
    topic = "cut"
    with EmbeddedNode() as node:
        broker = Broker("fenceline", node.bootstrap)
        broker.create(topic)
        for start in (0, 100, 150):
            broker.produce(topic, range(start, start + 50 + 50 * (start == 0)))
        table = keep(tmp_path / "t", records(broker, topic, 0, 150))
        keep(tmp_path / "t", records(broker, topic, 150, 200))
        restart_cut(node, topic, 100)
        broker = Broker("fenceline", node.bootstrap)
        broker.produce(topic, range(1000, 1060))
        found = audited(broker, table)
        assert findings_of(found) == [("behind", 0, 100, 160, 60), ("stale", 0, 100, 200, 100)]
        done = repaired(broker, table)
        assert (done.removed_rows, done.added_rows, done.files_removed) == (100, 60, 2)
        assert audited(broker, table).verdict.is_equal
        values = DeltaTable(table).to_pyarrow_table().sort_by("offset")["value"].to_pylist()
        assert values[100:] == [b"%d" % value for value in range(1000, 1060)]


def test_a_corrupt_batch_is_reported_and_its_neighbours_are_repaired(tmp_path: Path) -> None:
    topic = "poisoned"
    with EmbeddedNode() as node:
        broker = Broker("fenceline", node.bootstrap)
        broker.create(topic)
        # However the producer batches, no batch contains records of two calls.
        for start in range(0, 300, 50):
            broker.produce(topic, range(start, start + 50))
        whole = records(broker, topic, 0, 300)
        table = keep(tmp_path / "full", whole)
        short = keep(tmp_path / "short", pa.concat_tables([whole.slice(0, 70), whole.slice(260, 10)]))
        node.stop()
        first, end = corrupt_batch(node, topic, 150)
        node.start()
        broker = Broker("fenceline", node.bootstrap)
        # If the table has the rows, the batch is not needed.
        assert audited(broker, table).verdict.is_equal
        around = [
            ("missing", 0, 70, first, first - 70),
            ("unreadable", 0, first, end, 0),
            ("missing", 0, end, 260, 260 - end),
            ("behind", 0, 270, 300, 30),
        ]
        found = audited(broker, short)
        assert findings_of(found) == around
        assert found.verdict.outcome == "different"
        done = repaired(broker, short)
        assert done.added_rows == 300 - 80 - (end - first)
        assert [(one["kind"], one["start_offset"], one["end_offset_exclusive"]) for one in done.left] == [
            ("unreadable", first, end)
        ]
        assert "1 findings are left unchanged (unreadable)" in done.sentence()
        assert findings_of(audited(broker, short)) == [("unreadable", 0, first, end, 0)]
        offsets = DeltaTable(short).to_pyarrow_table(columns=["offset"])["offset"].to_pylist()
        assert sorted(offsets) == [offset for offset in range(300) if not first <= offset < end]


def corrupt_batch(node: EmbeddedNode, topic: str, offset: int) -> tuple[int, int]:
    """Flip a bit of the batch at `offset` in partition 0 of the stopped node; returns the offsets of the batch."""
    (folder,) = node.log_dir.rglob(f"{topic}-0")
    (segment,) = folder.glob("*.log")
    content = bytearray(segment.read_bytes())
    header = next(header for header in iter_headers(content) if header.base_offset == offset)
    content[header.position + header.size_bytes - 1] ^= 1
    segment.write_bytes(content)
    return header.base_offset, header.next_offset


def command(broker: Broker, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["audit", *arguments], env={"FENCELINE_BOOTSTRAP": broker.bootstrap})


def test_the_command_reports_and_repairs(fenceline_node: Broker, topic: str, tmp_path: Path) -> None:
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
    result = command(fenceline_node, table, "--repair", "--kind", "missing", "--apply")
    assert result.exit_code == 0, result.stdout
    assert "added 10" in result.stdout
    assert "The table equals the log" in result.stdout
    assert command(fenceline_node, str(tmp_path / "none")).exit_code == 1
