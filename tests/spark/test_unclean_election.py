"""Both sources across a real unclean election, on three brokers of Apache Kafka 4.3.1 and on three of Fenceline: the
case of `pyspark.md` S25, S26 and S32, with `unclean.leader.election.enable`, as it happens in production.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from deltalake import DeltaTable

import pyspark_fenceline
from fenceline.testing.mixed_cluster import MixedCluster
from fenceline.testing.waiting import eventually
from pyspark_fenceline.auditing import repair_files
from pyspark_fenceline.errors import Loss, LossKind, losses_of, parse
from tests.scheduling import CLUSTERS
from tests.spark.conftest import NEEDS_CONNECTOR
from tests.spark.queries import keep_equal, tracked
from tests.spark.sinks import OURS, THEIRS, Row, Sinks
from tests.support.unclean_story import FIRST, KEPT, LOST, SECOND, WAIT_S, UncleanStory, cluster_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.together(CLUSTERS), pytest.mark.timeout(600)]
END: Final = KEPT + LOST
KINDS: Final = ["fenceline", pytest.param("kafka", marks=pytest.mark.kafka)]


@pytest.fixture(scope="module", params=KINDS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    with cluster_of(request.param, tmp_path_factory.mktemp("unclean")) as running:
        running.wait_ready()
        running.wait_complete()
        yield running


@pytest.fixture
def story(cluster: MixedCluster) -> Iterator[UncleanStory]:
    made = UncleanStory(cluster)
    yield made
    made.mend()


def at(first: int, values: list[bytes]) -> list[Row]:
    return list(enumerate(values, first))


def found_in(losses: tuple[Loss, ...] | list[Loss] | None) -> list[tuple[LossKind, int | None, int]]:
    return [(loss.kind, loss.divergent_offset, loss.offset) for loss in losses or ()]


@NEEDS_CONNECTOR
def test_the_connector_continues_and_the_source_fails(spark: SparkSession, story: UncleanStory, tmp_path: Path) -> None:
    kept, lost = story.part()
    sinks = Sinks(spark, story.bootstrap, story.tp.topic, tmp_path)
    for word in (OURS, THEIRS):
        sinks.drain(word)
        assert sinks.rows(word) == at(0, [*kept, *lost])
    story.lead_uncleanly(SECOND, instead_of=FIRST)
    new = story.write(2 * LOST, "new")

    # The connector with failOnDataLoss=true: no error. Stale rows stay, and new records below 150 are never read.
    sinks.drain(THEIRS, failOnDataLoss=True)
    assert sinks.rows(THEIRS) == sorted([*at(0, [*kept, *lost]), *at(END, new[LOST:])])

    with pytest.raises(Exception, match="LOG_TRUNCATED") as caught:
        sinks.drain(OURS)
    assert found_in(parse(caught.value)) == [(LossKind.LOG_TRUNCATED, KEPT, END)]
    assert sinks.rows(OURS) == at(0, [*kept, *lost])

    query = sinks.drain(OURS, onTruncation="rewind", includeLeaderEpoch=True)
    assert sinks.rows(OURS) == sorted([*at(0, [*kept, *lost]), *at(KEPT, new)])
    reported = [loss for progress in query.recentProgress for loss in losses_of(progress)]
    assert found_in(reported) == [(LossKind.LOG_TRUNCATED, KEPT, END)]
    # The old leader returns and truncates its log: no further loss is reported.
    story.restart(FIRST)
    sinks.drain(OURS)
    assert len(sinks.rows(OURS)) == KEPT + LOST + len(new)


def test_a_running_query_detects_an_unclean_election(spark: SparkSession, story: UncleanStory, tmp_path: Path) -> None:
    given = {
        "kafka.bootstrap.servers": story.bootstrap,
        "subscribe": story.tp.topic,
        "startingOffsets": "earliest",
        "fetchOffset.numRetries": "1000",
        "includeLeaderEpoch": "true",
    }
    table = str(tmp_path / "table")

    def rows() -> list[Row]:
        read = spark.read.parquet(table).collect()
        return sorted((row.offset, bytes(row.value)) for row in read)

    frame = spark.readStream.format("fenceline").options(**given).load()
    query = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint")).start(table)
    try:
        kept, lost = story.part()
        query.processAllAvailable()
        assert rows() == at(0, [*kept, *lost])
        story.lead_uncleanly(SECOND, instead_of=FIRST)
        # Reported before anything is written in the new history.
        eventually(lambda: not query.isActive, "the query has ended", wait_s=WAIT_S)
    finally:
        query.stop()
    assert found_in(parse(query.exception())) == [(LossKind.LOG_TRUNCATED, KEPT, END)]

    frame = spark.readStream.format("fenceline").options(**given, onTruncation="rewind", statefulQuery=False).load()
    query = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint")).start(table)
    try:
        query.processAllAvailable()
        new = story.write(LOST // 2, "new")
        query.processAllAvailable()
        reported = [loss for progress in query.recentProgress for loss in losses_of(progress)]
        assert set(found_in(reported)) == {(LossKind.LOG_TRUNCATED, KEPT, END)}
        # Another election while it runs: back to the old history, which the other replica still has.
        story.lead_uncleanly(FIRST, instead_of=SECOND)
        newest = story.write(1, "newest")
        eventually(lambda: at(END, newest)[0] in rows(), "what came last", wait_s=WAIT_S)
    finally:
        query.stop()
    assert query.exception() is None
    read = set(rows())
    assert read == {*at(0, [*kept, *lost]), *at(KEPT, new), *at(END, newest)}
    # Records of the restored history are delivered again, in their original epoch.
    assert [offset for offset, value in rows() if value in lost] == sorted([*range(KEPT, END)] * 2)


def test_a_table_equals_the_log_again_after_its_stream_and_after_a_repair(
    spark: SparkSession, story: UncleanStory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same table twice: one is continued by its query, the other is repaired by Spark's tasks."""
    topic, table, copy = story.tp.topic, str(tmp_path / "table"), str(tmp_path / "copy")
    # Even for few files.
    monkeypatch.setattr(repair_files, "FEW_FILES", 0)

    def fill() -> None:
        # The third file has records from before and after the divergence point.
        frame = tracked(spark, story.bootstrap, topic, maxOffsetsPerTrigger=LOST - 10)
        keep_equal(frame, table, str(tmp_path / "checkpoint"), story.bootstrap)

    def audited(path: str) -> tuple[str, list[tuple[str, int, int, int]]]:
        found = pyspark_fenceline.audit(path, story.bootstrap, topic)
        rows = found.findings.collect()
        return found.verdict.outcome, sorted(
            (row.kind, row.start_offset, row.end_offset_exclusive, row.rows) for row in rows
        )

    def table_rows(path: str) -> list[Row]:
        found = DeltaTable(path).to_pyarrow_table(columns=["offset", "value"]).to_pylist()
        return sorted((row["offset"], row["value"]) for row in found)

    kept, lost = story.part()
    fill()
    assert audited(table) == ("equal", [])
    assert table_rows(table) == at(0, [*kept, *lost])
    story.lead_uncleanly(SECOND, instead_of=FIRST)
    new = story.write(2 * LOST, "new")
    differs = [("behind", KEPT, KEPT + 2 * LOST, 2 * LOST), ("stale", KEPT, END, LOST)]
    assert audited(table) == ("different", differs)
    shutil.copytree(table, copy)

    fill()
    (reported,) = [
        one["fenceline"]["repair"] for one in DeltaTable(table).history() if "repair" in one.get("fenceline", {})
    ]
    assert reported["removed_rows"] == LOST
    kinds = ("stale", "behind")
    done = pyspark_fenceline.repair(copy, story.bootstrap, topic, apply=True, kinds=kinds)
    assert (done.removed_rows, done.added_rows) == (LOST, 2 * LOST)
    assert f"{LOST} stale" in done.sentence()
    for path in (table, copy):
        assert table_rows(path) == at(0, [*kept, *new])
        assert audited(path) == ("equal", [])
    assert pyspark_fenceline.repair(copy, story.bootstrap, topic, apply=True, kinds=kinds).version is None
    # The old leader returns and truncates its log: nothing changes.
    story.restart(FIRST)
    version = DeltaTable(table).version()
    fill()
    assert DeltaTable(table).version() == version
    assert audited(table) == ("equal", [])


def test_a_subtracting_count_equals_the_log(
    spark: SparkSession, story: UncleanStory, checkpoint: str, cluster: MixedCluster
) -> None:
    """Evidence is kept by a Fenceline replica when it truncates its log; a Kafka replica keeps none, so its
    directory is read before it restarts."""
    from pyspark.sql import functions as f

    counts: dict[bytes, int] = {}

    def keep(frame: DataFrame, _: int) -> None:
        counts.update({bytes(row.value): row.n for row in frame.collect()})

    def run(**options: Any) -> None:
        given = {
            "kafka.bootstrap.servers": story.bootstrap,
            "subscribe": story.tp.topic,
            "startingOffsets": "earliest",
            "onTruncation": "rewind",
            "includeRetractions": True,
        }
        frame = spark.readStream.format("fenceline").options(**given, **options).load()
        change = f.when(f.col("_change_type") == "delete", -1).otherwise(1)
        counted = frame.groupBy("value").agg(f.sum(change).alias("n"))
        writer = counted.writeStream.outputMode("update").foreachBatch(keep).trigger(availableNow=True)
        writer.option("checkpointLocation", checkpoint).start().awaitTermination()

    def has_receipt() -> bool:
        losses = spark.read.format("fenceline").option("kafka.bootstrap.servers", story.bootstrap)
        return losses.option("losses", True).option("subscribe", story.tp.topic).load().count() > 0

    kept, lost = story.part()
    run()
    assert counts == dict.fromkeys([*kept, *lost], 1)
    story.lead_uncleanly(SECOND, instead_of=FIRST)
    new = story.write(2 * LOST, "new")
    with pytest.raises(Exception, match="there is no receipt of the loss") as caught:
        run()
    assert f"offsets {KEPT} to {END - 1} of {story.tp} were not found" in str(caught.value)
    if story.is_kafka:
        run(retractionEvidence=cluster.node(FIRST).log_dir)
    else:
        story.restart(FIRST)
        eventually(has_receipt, "the receipt", wait_s=WAIT_S)
        run()
    assert counts == dict.fromkeys([*kept, *new], 1) | dict.fromkeys(lost, 0)
