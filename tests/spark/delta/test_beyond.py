"""Tables with rows that cannot come from a log of this cluster: the sink reports them and writes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import pyspark_fenceline
from fenceline.client.reader.reader import RangeReader
from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.delta import plan as delta_plan
from pyspark_fenceline.delta.options import DeltaOptions, delta_options
from pyspark_fenceline.delta.sink import _TaskWriter
from pyspark_fenceline.delta.state import read_state
from pyspark_fenceline.delta.table_files import open_table
from tests.spark.conftest import Broker
from tests.spark.delta.test_plan import SCHEMA, Row, arrow, commit, records, table_rows, task, write
from tests.spark.fakes import FakeCluster, install_fake_cluster

pytestmark = pytest.mark.long

BY_PARTITION = ["topic", "partition"]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    return install_fake_cluster(monkeypatch, t=2)


@pytest.fixture
def options(tmp_path: Path) -> DeltaOptions:
    return delta_options({"path": str(tmp_path / "table"), "kafka.bootstrap.servers": "fake"})


def external_write(options: DeltaOptions, rows: Iterable[Row], partition_by: list[str] | None = None) -> None:
    """A writer that compares nothing."""
    write_deltalake(options.path, pa.Table.from_batches([arrow(rows)]), mode="append", partition_by=partition_by)


def parquet_files(path: str) -> set[Path]:
    return set(Path(path).rglob("*.parquet"))


def opened(options: DeltaOptions, *, overwrite: bool = False) -> None:
    _TaskWriter(options, SCHEMA, overwrite=overwrite)


@pytest.mark.parametrize("partition_by", [None, BY_PARTITION])
def test_rows_above_the_end_in_the_epoch_of_the_leader_are_rejected(
    cluster: FakeCluster, options: DeltaOptions, partition_by: list[str] | None
) -> None:
    for index in (0, 1):
        cluster.log("t", index).append(10)
    strange = [("t", 0, 12, 0), ("t", 0, 14, 0), ("t", 1, 10, 0)]
    external_write(options, [*records(cluster, 0, 10), *strange], partition_by)
    message = (
        r"cannot be from this cluster's log: t-0 offsets 12 to 14 \(2 rows of epoch 0, in which the log ends at 10\);"
        r" t-1 offsets 10 to 10 \(1 row of epoch 0"
    )
    with pytest.raises(OperatorError, match=message) as caught:
        opened(options)
    assert "repair" in caught.value.advice
    assert "another table" in caught.value.advice
    # A query that opened the table before they were added fails at its commit.
    before = table_rows(options)
    with pytest.raises(OperatorError, match=message):
        write(options, 0, records(cluster, 0, 10))
    assert table_rows(options) == before
    # A table that is replaced completely may have held any rows.
    opened(options, overwrite=True)


def test_rows_added_between_two_batches_are_rejected(cluster: FakeCluster, options: DeltaOptions) -> None:
    cluster.log("t").append(10)
    write(options, 0, records(cluster, 0, 10))
    external_write(options, [("t", 0, 12, 0)])
    cluster.log("t").append(1)
    with pytest.raises(OperatorError, match="t-0 offsets 12 to 12"):
        write(options, 1, records(cluster, 10, 11))


def test_rows_added_while_a_batch_is_written_are_rejected(cluster: FakeCluster, options: DeltaOptions) -> None:
    cluster.log("t").append(10)
    write(options, 0, records(cluster, 0, 5))
    files, evidence = task(options, records(cluster, 5, 10))
    external_write(options, [("t", 0, 12, 0)])
    with pytest.raises(OperatorError, match="t-0 offsets 12 to 12"):
        commit(options, 1, files, evidence)


def test_a_log_shortened_in_the_same_epoch_is_rejected(cluster: FakeCluster, options: DeltaOptions) -> None:
    """As with a topic of the same name in another cluster whose brokers provide no topic ids."""
    cluster.ids["t"] = None
    cluster.log("t").append(10)
    write(options, 0, records(cluster, 0, 10))
    del cluster.log("t").epochs[4:]
    cluster.log("t").append(1)
    with pytest.raises(OperatorError, match="t-0 offsets 5 to 9"):
        write(options, 1, records(cluster, 4, 5))


def test_records_appended_after_the_batch_was_read_are_accepted(cluster: FakeCluster, options: DeltaOptions) -> None:
    log = cluster.log("t")
    log.append(10)
    write(options, 0, records(cluster, 0, 5))
    files, evidence = task(options, records(cluster, 5, 10))
    log.append(10)
    # Another query is faster, and a third one is not compared.
    write(options, 0, records(cluster, 5, 15), app="other")
    external_write(options, records(cluster, 15, 18))
    opened(options)
    assert commit(options, 1, files, evidence)
    assert table_rows(options) == records(cluster, 0, 18)


def test_a_lagging_high_watermark_rejects_nothing(cluster: FakeCluster, options: DeltaOptions) -> None:
    cluster.log("t").append(10)
    external_write(options, records(cluster, 0, 10))
    # A newly elected leader does not know yet how far the followers have replicated.
    cluster.stale_ends[TopicPartition("t", 0)] = [7] * 8
    opened(options)
    write(options, 0, records(cluster, 5, 10))
    assert table_rows(options) == records(cluster, 0, 10)


def test_rows_of_other_epochs_above_the_end_are_stale_or_unknown(cluster: FakeCluster, options: DeltaOptions) -> None:
    log = cluster.log("t")
    log.append(10)
    log.elect(2)
    log.append(5)
    # Rows of an older epoch are stale. Rows of a newer one are unknown to this leader, which may have been deposed.
    external_write(options, [*records(cluster, 0, 10), ("t", 0, 16, 0), ("t", 0, 17, 1), ("t", 0, 18, 3)])
    opened(options)
    write(options, 0, records(cluster, 10, 15))
    assert table_rows(options) == [*records(cluster, 0, 15), ("t", 0, 18, 3)]


def test_a_recreated_topic_is_reported_as_recreated(cluster: FakeCluster, options: DeltaOptions) -> None:
    cluster.log("t").append(10)
    write(options, 0, records(cluster, 0, 10))
    external_write(options, [("t", 0, 10, 0)])
    cluster.delete("t")
    cluster.create("t", 2, id="another")
    cluster.log("t").append(4)
    opened(options)
    with pytest.raises(OperatorError, match="deleted and recreated: t"):
        write(options, 1, records(cluster, 0, 4))
    given = {"path": options.path, "kafka.bootstrap.servers": "fake", "onRecreated": "replace"}
    write(delta_options(given), 1, records(cluster, 0, 4))
    assert table_rows(options) == records(cluster, 0, 4)


def test_files_of_many_partitions_are_read_once(
    cluster: FakeCluster, options: DeltaOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their bounds cover all partitions together; the result is cached with the table."""
    cluster.log("t").append(100)
    cluster.log("t", 1).append(3)
    external_write(options, [*records(cluster, 0, 100), *records(cluster, 0, 3, 1)])
    opened(options)
    write(options, 0, [*records(cluster, 99, 100), *records(cluster, 2, 3, 1)])
    state = read_state(open_table(options))  # type: ignore[arg-type]
    assert state is not None
    assert {tp.partition: known.end_offset for tp, known in state.partitions.items()} == {0: 100, 1: 3}

    def refuse(*_: Any) -> Any:
        raise AssertionError("looked at the table's files")

    monkeypatch.setattr(delta_plan, "table_files", refuse)
    cluster.log("t", 1).append(1)
    write(options, 1, records(cluster, 3, 4, 1))
    assert table_rows(options) == [*records(cluster, 0, 100), *records(cluster, 0, 4, 1)]


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_stream_into_a_table_beyond_the_log_fails_before_writing(
    spark: Any, broker: Broker, topic: str, tmp_path: Path, checkpoint: str
) -> None:
    table = str(tmp_path / "table")
    broker.create(topic)
    broker.produce(topic, range(10))
    with RangeReader({"bootstrap.servers": broker.bootstrap}) as reader:
        rows = pa.Table.from_batches(list(reader.read({TopicPartition(topic, 0): (0, 10)})))
    rows = rows.select(["value", "topic", "partition", "offset", "leader_epoch"])
    above = rows.slice(7, 3)
    moved = above.set_column(above.schema.get_field_index("offset"), "offset", pa.compute.add(above["offset"], 5))
    write_deltalake(table, pa.concat_tables([rows.slice(0, 4), moved]), partition_by=BY_PARTITION)
    before = parquet_files(table)

    def drain() -> None:
        given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
        frame = spark.readStream.format("fenceline").options(**given, includeLeaderEpoch=True).load()
        frame = frame.select("value", "topic", "partition", "offset", "leader_epoch")
        writer = frame.writeStream.format("fenceline_delta").option("checkpointLocation", checkpoint)
        writer = writer.option("kafka.bootstrap.servers", broker.bootstrap)
        writer.trigger(availableNow=True).start(table).awaitTermination()

    with pytest.raises(Exception, match=rf"(?s){topic}-0 offsets 12 to 14 .*the log ends at 10.*repair") as caught:
        drain()
    assert "above the end of the log" in str(caught.value)
    assert parquet_files(table) == before
    assert DeltaTable(table).version() == 0
    # The advice helps: the rows are removed, the query continues, and the log's records are added when it reaches them.
    done = pyspark_fenceline.repair(table, broker.bootstrap, topic, apply=True, kinds=("beyond", "missing"))
    assert (done.removed_rows, done.added_rows) == (3, 6)
    broker.produce(topic, range(10, 20))
    drain()
    assert pyspark_fenceline.audit(table, broker.bootstrap, topic).verdict.is_equal
    values = DeltaTable(table).to_pyarrow_table().sort_by("offset")["value"].to_pylist()
    assert values == [b"%d" % number for number in range(20)]
