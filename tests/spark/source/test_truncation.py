"""A log that is truncated below a checkpoint and grows again beyond it: the case that offsets alone never show
(`pyspark.md` S32). The log is truncated in the stopped node's files, as after an unclean election.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fenceline.testing.node import EmbeddedNode
from pyspark_fenceline.errors import Loss, LossKind, losses_of, parse
from tests.spark.conftest import Broker
from tests.spark.cut_log import node_to_cut, restart_cut
from tests.spark.queries import batch, drain, rows, stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_a_truncated_log_that_grew_again_ends_the_query(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    table, topic = str(tmp_path / "table"), "cut"
    with EmbeddedNode() as node:
        broker = Broker("fenceline", node.bootstrap)
        broker.create(topic)
        broker.produce(topic, range(100))
        broker.produce(topic, range(100, 150))
        drain(stream(spark, broker.bootstrap, topic), table, checkpoint)
        assert len(rows(table)) == 150

        restart_cut(node, topic, 100)
        broker = Broker("fenceline", node.bootstrap)
        broker.produce(topic, range(1000, 1100))
        assert batch(spark, broker.bootstrap, topic).count() == 200

        with pytest.raises(Exception, match="LOG_TRUNCATED") as caught:
            drain(stream(spark, broker.bootstrap, topic), table, checkpoint)
        losses = parse(caught.value)
        assert losses is not None
        (loss,) = losses
        assert (loss.kind, loss.offset, loss.divergent_offset) == (LossKind.LOG_TRUNCATED, 150, 100)
        assert len(rows(table)) == 150

        # With the rewind policy it reads all of the new history, from the divergence point.
        drain(stream(spark, broker.bootstrap, topic, onTruncation="rewind"), table, checkpoint)
        new = [value for _, offset, value in rows(table) if offset >= 100 and int(value) >= 1000]
        assert new == [b"%d" % value for value in range(1000, 1100)]


@pytest.fixture
def node() -> Iterator[EmbeddedNode]:
    """With a topic `t` of 150 records, 100 of them in separate batches."""
    with node_to_cut() as running:
        yield running


def cut_and_grow(node: EmbeddedNode) -> Broker:
    """The log keeps 100 of its records, followed by 100 others."""
    restart_cut(node, "t", 100)
    broker = Broker("fenceline", node.bootstrap)
    broker.produce("t", range(1000, 1100))
    return broker


def losses_in(error: BaseException | None) -> list[tuple[LossKind, int | None, int]]:
    assert error is not None
    return [(loss.kind, loss.divergent_offset, loss.offset) for loss in parse(error) or ()]


def values(spark: SparkSession, table: str) -> list[int]:
    return sorted(int(row.value) for row in spark.read.parquet(table).collect())


def test_a_batch_read_fails_when_the_log_is_truncated_after_planning(spark: SparkSession, node: EmbeddedNode) -> None:
    """Whatever its options: no later batch would read the skipped records."""
    before = Broker("fenceline", node.bootstrap)
    frames = [batch(spark, before.bootstrap, "t"), batch(spark, before.bootstrap, "t", onTruncation="rewind")]
    for frame in frames:
        assert frame._jdf.queryExecution().toRdd().getNumPartitions() == 1
    after = cut_and_grow(node)
    for frame in frames:
        with pytest.raises(Exception, match="run the query again") as caught:
            frame.collect()
        assert losses_in(caught.value) == [(LossKind.LOG_TRUNCATED, 100, 150)]
    assert batch(spark, after.bootstrap, "t").count() == 200


@pytest.mark.parametrize("policy", ["fail", "rewind"])
def test_a_stream_detects_a_truncation_between_plan_and_read(
    spark: SparkSession, node: EmbeddedNode, tmp_path: Path, checkpoint: str, policy: str
) -> None:
    """Losses found by executors (`pyspark.md` S14): the batch was planned while all its records existed."""
    table, seen = str(tmp_path / "table"), list[int]()

    def write(frame: DataFrame, batch_id: int) -> None:
        # By now Spark has the batch's tasks, and has run none of them.
        if not seen:
            cut_and_grow(node)
        seen.append(batch_id)
        frame.write.mode("append").parquet(table)

    def run(**options: Any) -> Any:
        frame = stream(spark, node.bootstrap, "t", **options)
        writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    if policy == "fail":
        with pytest.raises(Exception, match="LOG_TRUNCATED") as caught:
            run()
        assert losses_in(caught.value) == [(LossKind.LOG_TRUNCATED, 100, 150)]
        assert not list(Path(table).glob("*.parquet"))
        # The batch is in the checkpoint, and is replanned from there: that is reported, too (S8).
        with pytest.raises(Exception, match="LOG_TRUNCATED") as caught:
            run()
        assert losses_in(caught.value) == [(LossKind.LOG_TRUNCATED, 100, 150)]
    queries = [run(onTruncation="rewind"), run(onTruncation="rewind")]
    losses = [loss for query in queries for progress in query.recentProgress for loss in losses_of(progress)]
    assert (LossKind.LOG_TRUNCATED, 100, 150) in [(loss.kind, loss.divergent_offset, loss.offset) for loss in losses]
    # A restarted node has been elected twice since the plan: records read under it may be read again.
    assert sorted(set(values(spark, table))) == [*range(100), *range(1000, 1100)]


def test_a_replayed_batch_detects_a_truncation(
    spark: SparkSession, node: EmbeddedNode, tmp_path: Path, checkpoint: str
) -> None:
    """Spark replays an uncommitted batch without requesting offsets first (S8)."""
    table = str(tmp_path / "table")

    def run(**options: Any) -> list[Loss]:
        frame = stream(spark, node.bootstrap, "t", **options)
        writer = frame.writeStream.format("parquet").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start(table)
        query.awaitTermination()
        return [loss for progress in query.recentProgress for loss in losses_of(progress)]

    run()
    newest = max(Path(checkpoint, "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for written in (newest, *(Path(table) / "_spark_metadata").glob(f"*{newest.name}*")):
        written.unlink()
        written.with_name(f".{written.name}.crc").unlink(missing_ok=True)
    cut_and_grow(node)
    with pytest.raises(Exception, match="LOG_TRUNCATED") as caught:
        run()
    assert losses_in(caught.value) == [(LossKind.LOG_TRUNCATED, 100, 150)]
    losses = run(onTruncation="rewind")
    assert [(loss.divergent_offset, loss.resume_offset) for loss in losses] == [(100, 100)]
    assert values(spark, table) == [*range(100), *range(1000, 1100)]
