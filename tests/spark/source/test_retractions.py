"""Streams that retract records lost by their logs. No Spark session, no broker: in-memory logs, evidence on disk."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from fenceline.client.core.loss_receipts import LossReceipt
from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.ids import TopicPartition, encode_uuid
from fenceline.log.core.checkpoints import encode_partition_metadata
from fenceline.log.core.config import LogConfig
from fenceline.log.core.disk import OsDisk
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.records.batch import Codec
from fenceline.records.build import build_batch
from pyspark_fenceline.common.lost_ranges import LostRange
from pyspark_fenceline.common.offsets import EpochStart
from pyspark_fenceline.common.schema import CHANGE_TYPE, check_schema, spark_schema
from pyspark_fenceline.errors import DataLossError, LossKind
from pyspark_fenceline.source import losses_table
from pyspark_fenceline.source.kept_rows import KeptPartition
from pyspark_fenceline.source.options import read_options
from pyspark_fenceline.source.stream import FencelineStreamReader
from pyspark_fenceline.source.tasks import RangesPartition, ReadPlan
from tests.spark.fakes import FakeCluster, FakeLog
from tests.spark.streams import ALL, Offset, cluster_with, ends

pytestmark = pytest.mark.usefixtures("no_idle_wait")
TOPIC_ID = UUID(int=7)
Row = tuple[str, int, int, bytes]
"""Change type, offset, leader epoch, value."""


def value(offset: int, epoch: int) -> bytes:
    return b"%d in %d" % (offset, epoch)


def keep_log(folder: Path, epochs: Sequence[int], *, start: int = 0, topic_id: UUID = TOPIC_ID) -> Path:
    """A replica's directory of `t-0`: record `i` has epoch `epochs[i]`, three records per batch."""
    place = folder / "t-0"
    log = PartitionLog.open(
        OsDisk(),
        str(place),
        topic_partition=TopicPartition("t", 0),
        topic_id=None,
        config=LogConfig(segment_bytes=4_000, index_interval_bytes=300),
        now_ms=1_000,
    )
    at = 0
    while at < len(epochs):
        size = next((n for n in (1, 2) if at + n >= len(epochs) or epochs[at + n] != epochs[at]), 3)
        rows = [(1_000 + each, b"k", value(each, epochs[at]), ()) for each in range(at, at + size)]
        batch = build_batch(rows, codec=Codec.NONE, producer_id=7, producer_epoch=0, base_sequence=at)
        log.append_as_leader(memoryview(batch), leader_epoch=epochs[at], now_ms=1_000)
        at += size
    log.close()
    (place / "partition.metadata").write_bytes(encode_partition_metadata(topic_id))
    return folder


def write_table(path: Path, epochs: Mapping[int, int], *, mode: Any = "append", **others: Any) -> str:
    """Rows of `t-0` by offset."""
    rows = {
        "topic": ["t"] * len(epochs),
        "partition": pa.array([0] * len(epochs), pa.int32()),
        "offset": pa.array(list(epochs), pa.int64()),
        "leader_epoch": pa.array(list(epochs.values()), pa.int32()),
        "value": pa.array([value(offset, epoch) for offset, epoch in epochs.items()], pa.binary()),
        **others,
    }
    write_deltalake(str(path), pa.table(rows), mode=mode)
    return str(path)


SCHEMA = "value binary, offset bigint, leader_epoch int, _change_type string"


class Story:
    """A query over an in-memory log; its rows are those that its tasks would deliver; evidence is read from disk."""

    def __init__(self, cluster: FakeCluster, **options: str) -> None:
        self.cluster = cluster
        cluster.ids["t"] = encode_uuid(TOPIC_ID)
        self.options = options
        self.reader = self.start()
        self.at: Offset = self.reader.initialOffset()
        self.rows: Counter[Row] = Counter()
        self.batches: list[tuple[Offset, Offset]] = []

    def start(self) -> FencelineStreamReader:
        """As after a restart of the driver."""
        given = {
            "kafka.bootstrap.servers": "h:1",
            "subscribe": "t",
            "startingOffsets": "earliest",
            "fetchOffset.retryIntervalMs": "0",
            "onTruncation": "rewind",
            "includeRetractions": "true",
            "includeLeaderEpoch": "true",
            **self.options,
        }
        parsed = read_options(given, streaming=True)
        whole = spark_schema(include_headers=False, include_leader_epoch=True, include_retractions=True)
        schema = type(whole)(
            [field for field in whole if field.name in ("value", "offset", "leader_epoch", CHANGE_TYPE)]
        )
        self.reader = FencelineStreamReader(parsed, ReadPlan(parsed.client, schema, parsed.policy), self.cluster)
        return self.reader

    def plan(self) -> Offset:
        """The end offset of the next batch, as stored in the checkpoint."""
        end: Offset = json.loads(json.dumps(self.reader.latestOffset(self.at, ALL)))
        if end != self.at:
            self.batches.append((self.at, end))
        return end

    def rows_of(self, start: Offset, end: Offset) -> Counter[Row]:
        rows: Counter[Row] = Counter()
        for partition in self.reader.partitions(start, end):
            if isinstance(partition, KeptPartition):
                for batch in self.reader.read(partition):
                    for row in batch.to_pylist():
                        rows[row[CHANGE_TYPE], row["offset"], row["leader_epoch"], row["value"]] += 1
            else:
                assert isinstance(partition, RangesPartition)
                assert partition.no_rewind
                for one in partition.task:
                    assert one.topic_partition == ("t", 0)
                    for offset in range(one.start_offset, one.end_offset_exclusive):
                        epoch = self.cluster.log("t").epochs[offset]
                        rows["insert", offset, epoch, value(offset, epoch)] += 1
        return rows

    def replay(self, end: Offset) -> Counter[Row]:
        """The rows of the batch that was planned up to `end`, read by a restarted driver."""
        self.start()
        rows = self.rows_of(self.at, end)
        self.rows += rows
        self.at = end
        return rows

    def run(self) -> Offset:
        """Plan, read and commit one batch."""
        end = self.plan()
        if end != self.at:
            self.rows += self.rows_of(self.at, end)
            self.at = end
        return end

    def sums(self) -> Counter[tuple[int, int]]:
        """The state of a subtracting aggregate: offset and epoch, each with its count."""
        found: Counter[tuple[int, int]] = Counter()
        for (change, offset, epoch, content), times in self.rows.items():
            assert content == value(offset, epoch)
            found[offset, epoch] += times if change == "insert" else -times
        assert all(times >= 0 for times in found.values())
        return +found

    def assert_equal_to_the_log(self, since: int = 0) -> None:
        epochs = self.cluster.log("t").epochs
        assert self.sums() == Counter((offset, epochs[offset]) for offset in range(since, len(epochs)))


@pytest.fixture
def evidence(tmp_path: Path) -> str:
    """The replica that led, with 150 records of epoch 0."""
    return str(keep_log(tmp_path / "node", [0] * 150))


def cut_at_100(cluster: FakeCluster) -> None:
    cluster.log("t").elect(2, keep=100)
    cluster.log("t").append(100)


def test_lost_rows_are_delivered_as_deletes(evidence: str) -> None:
    story = Story(cluster_with(150), retractionEvidence=evidence)
    story.run()
    cut_at_100(story.cluster)
    before = story.rows.copy()
    story.run()
    batch = story.rows - before
    assert {row for row in batch if row[0] == "delete"} == {("delete", o, 0, value(o, 0)) for o in range(100, 150)}
    assert {row for row in batch if row[0] == "insert"} == {("insert", o, 2, value(o, 2)) for o in range(100, 200)}
    assert set(batch.values()) == {1}
    story.assert_equal_to_the_log()
    # The next batch retracts nothing.
    story.cluster.log("t").append(10)
    assert "retractions" not in story.run()
    story.assert_equal_to_the_log()


def test_retractions_need_no_new_records(evidence: str) -> None:
    """The new history has no records yet."""
    story = Story(cluster_with(150), retractionEvidence=evidence)
    story.run()
    story.cluster.log("t").elect(2, keep=100)
    story.run()
    story.assert_equal_to_the_log()


def test_evidence_named_by_receipts_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = keep_log(tmp_path / "node", [0] * 150) / "t-0"
    (kept / "lost+found").mkdir()
    paths = []
    for segment in sorted(kept.glob("*.log")):
        target = kept / "lost+found" / f"{segment.name}.0"
        segment.rename(target)
        paths.append(str(target))
    receipt = LossReceipt(
        "a" * 20, "t", encode_uuid(TOPIC_ID), 0, 100, 150, (0,), 50, 1, "committed", "divergence", 2, 3, 1, tuple(paths)
    )
    reported: list[LossReceipt] = []
    monkeypatch.setattr(losses_table.LossesReader, "receipts", lambda *_: reported)
    story = Story(cluster_with(150))
    story.run()
    cut_at_100(story.cluster)
    # The replica writes the receipt only after its restart.
    with pytest.raises(DataLossError, match="there is no receipt of the loss"):
        story.plan()
    reported.append(receipt._replace(evidence=("/elsewhere/t-0/lost+found/x",)))
    with pytest.raises(DataLossError, match="is on node 2"):
        story.plan()
    reported.append(receipt._replace(topic_id=encode_uuid(UUID(int=8))))
    with pytest.raises(DataLossError, match="is on node 2"):
        story.plan()
    reported.append(receipt)
    story.run()
    story.assert_equal_to_the_log()


def test_evidence_of_another_topic_of_the_same_name_is_ignored(tmp_path: Path) -> None:
    other = keep_log(tmp_path / "node", [0] * 150, topic_id=UUID(int=8))
    story = Story(cluster_with(150), retractionEvidence=str(other))
    story.run()
    cut_at_100(story.cluster)
    with pytest.raises(DataLossError, match="belongs to another topic of that name"):
        story.plan()


def test_evidence_of_another_epoch_is_ignored(tmp_path: Path) -> None:
    other = keep_log(tmp_path / "node", [0] * 120 + [1] * 30)
    story = Story(cluster_with(150), retractionEvidence=str(other))
    story.run()
    cut_at_100(story.cluster)
    with pytest.raises(DataLossError, match="offsets 120 to 149 of t-0 were not found") as caught:
        story.plan()
    assert str(caught.value).startswith("t-0 was truncated below position ")
    for way in ("retractionEvidence", "retractionTable", "new checkpointLocation"):
        assert way in str(caught.value)
    (loss,) = caught.value.losses
    assert (loss.kind, loss.divergent_offset) == (LossKind.LOG_TRUNCATED, 100)


def test_several_epochs_and_several_elections(tmp_path: Path) -> None:
    cluster = cluster_with(50)
    cluster.log("t").elect(1)
    cluster.log("t").append(50)
    old = keep_log(tmp_path / "old", [0] * 50 + [1] * 50)
    new = keep_log(tmp_path / "new", [0] * 40 + [2] * 30)
    story = Story(cluster, retractionEvidence=f"{old}, {new}")
    story.run()
    cluster.log("t").elect(2, keep=40)
    cluster.log("t").append(30)
    story.run()
    cluster.log("t").elect(3, keep=45)
    cluster.log("t").append(5)
    story.run()
    story.assert_equal_to_the_log()
    assert [batch[1].get("retractions") is not None for batch in story.batches] == [False, True, True]


def test_the_old_history_comes_back(tmp_path: Path) -> None:
    old, new = keep_log(tmp_path / "old", [0] * 150), keep_log(tmp_path / "new", [0] * 100 + [2] * 20)
    story = Story(cluster_with(150), retractionEvidence=f"{old},{new}")
    story.run()
    story.cluster.log("t").elect(2, keep=100)
    story.cluster.log("t").append(20)
    story.run()
    story.cluster.log("t").epochs[100:] = [0] * 50
    story.cluster.log("t").elect(3)
    story.run()
    story.assert_equal_to_the_log()


def test_one_partition_of_several_is_cut(evidence: str) -> None:
    story = Story(cluster_with(150, 40), retractionEvidence=evidence)
    story.at = story.plan()
    cut_at_100(story.cluster)
    end = story.plan()
    assert ends(end) == {"t-0": 200, "t-1": 40}
    assert [(one["partition"], one["offset"], one["end_offset_exclusive"]) for one in end["retractions"]] == [
        (0, 100, 150)
    ]
    assert end["since"] == {"t": {"0": 0, "1": 0}}
    # A partition added later is delivered from its beginning.
    story.cluster.logs[TopicPartition("t", 2)] = FakeLog([2] * 5, 2)
    story.at = end
    assert story.plan()["since"] == {"t": {"0": 0, "1": 0, "2": 0}}


def test_unauthorized_receipts_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PeerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not allowed")

    monkeypatch.setattr(losses_table.LossesReader, "partitions", refuse)
    story = Story(cluster_with(150))
    story.run()
    cut_at_100(story.cluster)
    with pytest.raises(DataLossError, match="not authorized to read loss receipts"):
        story.plan()
    story.options["retractionEvidence"] = str(keep_log(tmp_path / "node", [0] * 150))
    story.start()
    story.run()
    story.assert_equal_to_the_log()


def test_records_never_delivered_are_not_retracted(tmp_path: Path) -> None:
    """The query started after the divergence point."""
    kept = keep_log(tmp_path / "node", [0] * 150)
    cluster = cluster_with(120)
    story = Story(cluster, retractionEvidence=str(kept), startingOffsets="latest")
    story.run()
    cluster.log("t").append(30)
    story.run()
    assert story.sums().total() == 30
    cut_at_100(cluster)
    end = story.run()
    assert [(one["offset"], one["end_offset_exclusive"]) for one in end["retractions"]] == [(120, 150)]
    story.assert_equal_to_the_log(since=100)
    # All records from there on have been delivered.
    assert end["since"] == {"t": {"0": 100}}


# From a table ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_repaired", [False, True])
def test_lost_rows_are_read_from_the_history_of_a_table(tmp_path: Path, is_repaired: bool) -> None:
    table = write_table(tmp_path / "table", dict.fromkeys(range(90), 0))
    write_table(tmp_path / "table", dict.fromkeys(range(90, 150), 0))
    if is_repaired:
        # Its own query was first.
        DeltaTable(table).delete("offset >= 100 and leader_epoch = 0")
        write_table(tmp_path / "table", dict.fromkeys(range(100, 200), 2))
    story = Story(cluster_with(150), retractionTable=table)
    story.run()
    cut_at_100(story.cluster)
    end = story.run()
    story.assert_equal_to_the_log()
    assert {one["table"]["version"] for one in end["retractions"]} == {DeltaTable(table).version()}


def test_a_table_that_lacks_rows(tmp_path: Path) -> None:
    table = write_table(tmp_path / "table", {o: 0 for o in range(150) if o not in (110, 111, 130)})
    story = Story(cluster_with(150), retractionTable=table)
    story.run()
    cut_at_100(story.cluster)
    with pytest.raises(DataLossError, match="offsets 110 to 111, 130 to 130 of t-0 were not found"):
        story.plan()


def test_evidence_and_table_together(tmp_path: Path) -> None:
    evidence = keep_log(tmp_path / "node", [0] * 130)
    table = write_table(tmp_path / "table", dict.fromkeys(range(100, 150), 0) | {120: 0})
    write_table(tmp_path / "table", dict.fromkeys(range(140, 150), 0))
    story = Story(cluster_with(150), retractionEvidence=str(evidence), retractionTable=table)
    story.run()
    cut_at_100(story.cluster)
    end = story.run()
    story.assert_equal_to_the_log()
    assert [(one["offset"], one["end_offset_exclusive"], "table" in one) for one in end["retractions"]] == [
        (100, 130, False),
        (130, 150, True),
    ]


def test_a_vacuumed_table_is_reported(tmp_path: Path) -> None:
    table = write_table(tmp_path / "table", dict.fromkeys(range(150), 0))
    DeltaTable(table).delete("offset >= 100")
    opened = DeltaTable(table)
    opened.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    story = Story(cluster_with(150), retractionTable=table)
    story.run()
    cut_at_100(story.cluster)
    with pytest.raises(DataLossError, match="vacuumed"):
        story.plan()


def test_a_table_without_the_columns_is_rejected_immediately(tmp_path: Path) -> None:
    path = tmp_path / "table"
    rows = {"topic": ["t"], "partition": pa.array([0], pa.int32()), "offset": [1], "value": ["text"]}
    write_deltalake(str(path), pa.table(rows))
    story = Story(cluster_with(150), retractionTable=str(path))
    with pytest.raises(OperatorError, match="no column leader_epoch int, no column value binary"):
        story.run()


def test_a_table_created_later_is_used(tmp_path: Path) -> None:
    story = Story(cluster_with(150), retractionTable=str(tmp_path / "table"))
    story.run()
    cut_at_100(story.cluster)
    with pytest.raises(DataLossError, match="there is no table at"):
        story.plan()
    write_table(tmp_path / "table", dict.fromkeys(range(150), 0))
    story.run()
    story.assert_equal_to_the_log()


def test_rows_of_an_older_topic_of_the_same_name_are_ignored(tmp_path: Path) -> None:
    """The table's sink removed them when the topic was recreated."""
    path = tmp_path / "table"
    write_table(path, dict.fromkeys(range(150), 0))
    entry = path / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    (about,) = [action["commitInfo"] for action in actions if "commitInfo" in action]
    topics = {"t": {"id": encode_uuid(UUID(int=8)), "partitions": {"0": [0, 150]}}}
    about["fenceline"] = {"state": {"topics": topics, "version": 1}}
    entry.write_text("\n".join(map(json.dumps, actions)))
    DeltaTable(str(path)).delete()
    write_table(path, dict.fromkeys(range(120), 0))
    story = Story(cluster_with(150), retractionTable=str(path))
    story.run()
    cut_at_100(story.cluster)
    with pytest.raises(DataLossError, match="offsets 120 to 149 of t-0 were not found"):
        story.plan()


def test_a_replay_without_the_table_version_fails(tmp_path: Path) -> None:
    table = write_table(tmp_path / "table", dict.fromkeys(range(150), 0))
    story = Story(cluster_with(150), retractionTable=table)
    story.run()
    cut_at_100(story.cluster)
    end = story.plan()
    shutil.rmtree(table)
    write_table(tmp_path / "table", dict.fromkeys(range(200, 210), 2))
    write_table(tmp_path / "table", dict.fromkeys(range(210, 220), 2))
    end["retractions"][0]["table"]["version"] = 7
    story.start()
    with pytest.raises(OperatorError, match=r"Version 7 of the table at .* no longer exists"):
        story.rows_of(story.at, end)


# Replays --------------------------------------------------------------------------------------------------------------


def test_a_replay_retracts_the_same_rows(evidence: str) -> None:
    story = Story(cluster_with(150), retractionEvidence=evidence)
    story.run()
    cut_at_100(story.cluster)
    end = story.plan()
    first = story.rows_of(story.at, end)
    story.start()
    assert story.rows_of(story.at, end) == first


def test_a_replay_without_its_rows_fails(evidence: str) -> None:
    story = Story(cluster_with(150), retractionEvidence=evidence)
    story.run()
    cut_at_100(story.cluster)
    end = story.plan()
    shutil.rmtree(evidence)
    story.start()
    with pytest.raises(DataLossError, match="offsets 100 to 149 of t-0 were not found"):
        story.rows_of(story.at, end)


def test_a_replay_reads_the_table_as_it_was(tmp_path: Path) -> None:
    table = write_table(tmp_path / "table", dict.fromkeys(range(150), 0))
    story = Story(cluster_with(150), retractionTable=table)
    story.run()
    cut_at_100(story.cluster)
    end = story.plan()
    first = story.rows_of(story.at, end)
    # Later versions are not read, nor is another table.
    write_table(tmp_path / "table", dict.fromkeys(range(100, 150), 0), mode="overwrite", value=pa.array([b"x"] * 50))
    story.options["retractionTable"] = str(tmp_path / "other")
    story.start()
    assert story.rows_of(story.at, end) == first


def test_a_batch_of_lost_records_is_replayed_from_evidence(evidence: str) -> None:
    """It may have been written already: the sink keeps the first version, and the state must match it."""
    story = Story(cluster_with(120), retractionEvidence=evidence)
    story.run()
    story.cluster.log("t").append(30)
    end = story.plan()
    written = story.rows_of(story.at, end)
    story.cluster.log("t").elect(2, keep=130)
    story.cluster.log("t").append(5)
    assert story.replay(end) == written
    story.run()
    story.assert_equal_to_the_log()


def test_a_batch_above_the_truncation_is_replayed_completely(evidence: str) -> None:
    story = Story(cluster_with(120), retractionEvidence=evidence)
    story.run()
    story.cluster.log("t").append(30)
    end = story.plan()
    cut_at_100(story.cluster)
    story.replay(end)
    assert Counter(dict.fromkeys(range(150), 1)) == Counter(offset for offset, _ in story.sums().elements())
    story.run()
    story.assert_equal_to_the_log()


def test_the_first_batch_is_replayed(evidence: str) -> None:
    story = Story(cluster_with(150), retractionEvidence=evidence)
    end = story.plan()
    cut_at_100(story.cluster)
    story.replay(end)
    assert story.sums() == Counter((o, 0) for o in range(150))
    story.run()
    story.assert_equal_to_the_log()


def test_a_retracting_batch_whose_new_records_are_lost_too(tmp_path: Path) -> None:
    old, new = keep_log(tmp_path / "old", [0] * 150), keep_log(tmp_path / "new", [0] * 100 + [2] * 100)
    story = Story(cluster_with(150), retractionEvidence=f"{old},{new}")
    story.run()
    cut_at_100(story.cluster)
    end = story.plan()
    first = story.rows_of(story.at, end)
    story.cluster.log("t").elect(5, keep=110)
    story.cluster.log("t").append(3)
    assert story.replay(end) == first
    story.run()
    story.assert_equal_to_the_log()


def test_compacted_topics_are_rejected_when_the_query_starts() -> None:
    cluster = cluster_with(150)
    cluster.policies["t"] = "compact,delete"
    with pytest.raises(OperatorError, match="Rows of t cannot be retracted: the topic is compacted"):
        Story(cluster).plan()


def test_a_topic_compacted_later_is_rejected(evidence: str) -> None:
    story = Story(cluster_with(150), retractionEvidence=evidence)
    story.run()
    story.cluster.policies["t"] = "compact"
    cut_at_100(story.cluster)
    with pytest.raises(OperatorError, match="is compacted"):
        story.plan()


def test_a_topic_whose_configuration_may_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_with(150)

    def refuse(_: object) -> None:
        raise PeerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not allowed")

    monkeypatch.setattr(cluster, "cleanup_policies", refuse)
    with pytest.raises(OperatorError, match="It is not known whether rows of t can be retracted"):
        Story(cluster).plan()


# Rejections -----------------------------------------------------------------------------------------------------------


def test_a_checkpoint_made_without_retractions_is_rejected(evidence: str) -> None:
    story = Story(cluster_with(150), retractionEvidence=evidence)
    end = story.run()
    del end["since"]
    story.start()
    with pytest.raises(OperatorError, match="made without includeRetractions"):
        story.reader.latestOffset(end, ALL)


def test_an_unknown_divergence_point_is_rejected(evidence: str) -> None:
    story = Story(cluster_with(150), retractionEvidence=evidence)
    end = story.run()
    place = end["topics"]["t"]["partitions"]["0"]
    del place["epochs"]
    place["leader_epoch"] = 1
    story.cluster.log("t").elect(2, keep=100)
    with pytest.raises(DataLossError, match="is not known"):
        story.start().latestOffset(end, ALL)


def test_records_of_the_new_history_that_expired_before_they_were_read(evidence: str) -> None:
    story = Story(cluster_with(150), retractionEvidence=evidence)
    story.run()
    cut_at_100(story.cluster)
    story.cluster.log("t").start = 120
    with pytest.raises(
        DataLossError, match="now starts at 120, and it is not known which of the rows from 0 up to there were lost"
    ):
        story.plan()


def test_transactional_evidence_is_rejected_at_read_committed(tmp_path: Path) -> None:
    node = tmp_path / "node"
    keep_log(node, [0] * 150)
    for segment in sorted((node / "t-0").glob("*.log")):
        segment.unlink()
    rows = [(1_000, b"k", value(each, 0), ()) for each in range(150)]
    batch = build_batch(rows, leader_epoch=0, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    (node / "t-0" / f"{0:020}.log").write_bytes(batch)
    for level, word in (("read_committed", "records of transactions"), ("read_uncommitted", None)):
        story = Story(cluster_with(150), retractionEvidence=str(node), **{"kafka.isolation.level": level})
        story.run()
        cut_at_100(story.cluster)
        if word is not None:
            with pytest.raises(DataLossError, match=word):
                story.plan()
        else:
            story.run()
            story.assert_equal_to_the_log()


BASE = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "includeRetractions": "true", "onTruncation": "rewind"}


@pytest.mark.parametrize(
    "others",
    [
        {"onTruncation": "fail"},
        {"onExpired": "continue"},
        {"onRecreated": "restart"},
        {"failOnDataLoss": "false"},
    ],
)
def test_retractions_are_for_truncations_only(others: dict[str, str]) -> None:
    with pytest.raises(OperatorError, match="includeRetractions needs onTruncation=rewind"):
        read_options({**BASE, **others}, streaming=True)


def test_batch_reads_and_incomplete_options_are_rejected() -> None:
    with pytest.raises(OperatorError, match="is for streams"):
        read_options(BASE, streaming=False)
    with pytest.raises(OperatorError, match="requires includeRetractions"):
        read_options({**BASE, "includeRetractions": "false", "retractionTable": "/x"}, streaming=True)


def test_a_schema_without_the_change_type_is_rejected() -> None:
    schema = spark_schema(include_headers=False, include_leader_epoch=False)
    with pytest.raises(OperatorError, match="has no column _change_type"):
        check_schema(schema, include_headers=False, include_leader_epoch=False, include_retractions=True)
    whole = spark_schema(include_headers=False, include_leader_epoch=False, include_retractions=True)
    check_schema(whole, include_headers=False, include_leader_epoch=False, include_retractions=True)
    with pytest.raises(OperatorError, match="includeRetractions=true"):
        check_schema(whole, include_headers=False, include_leader_epoch=False)


def test_a_range_is_split_at_its_epochs() -> None:
    lost = LostRange(TopicPartition("t", 0), 5, 20, (EpochStart(0, 0), EpochStart(2, 10), EpochStart(4, 15)))
    assert lost.spans() == [(5, 10, 0), (10, 15, 2), (15, 20, 4)]
    assert lost.part(10, 12).epochs == (EpochStart(2, 10),)
    with pytest.raises(ValueError, match="offset 5 is not known"):
        LostRange(TopicPartition("t", 0), 5, 20, (EpochStart(2, 10),))


def test_end_offsets_move_back(evidence: str) -> None:
    story = Story(cluster_with(150), retractionEvidence=evidence)
    story.run()
    story.cluster.log("t").elect(2, keep=100)
    story.cluster.log("t").append(3)
    assert ends(story.run()) == {"t-0": 103}


def test_corrupt_and_compacted_evidence_is_missing(tmp_path: Path) -> None:
    node = keep_log(tmp_path / "node", [0] * 150)
    segment = sorted((node / "t-0").glob("*.log"))[-1]
    first = int(segment.name[:20])
    content = bytearray(segment.read_bytes())
    content[80] ^= 1
    segment.write_bytes(content)
    story = Story(cluster_with(150), retractionEvidence=str(node))
    story.run()
    cut_at_100(story.cluster)
    with pytest.raises(DataLossError, match=f"offsets {first} to {first + 2} of t-0 were not found"):
        story.plan()
    # Compaction also leaves a gap: the records read there are unknown.
    size = int.from_bytes(content[8:12], "big") + 12
    segment.write_bytes(content[size:])
    with pytest.raises(DataLossError, match=f"offsets {first} to {first + 2} of t-0 were not found"):
        story.plan()
