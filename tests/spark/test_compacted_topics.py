"""Readers of a topic compacted by Fenceline and by Apache Kafka: consumer, range reader, source, audit and repair of
the sink's table. No Spark session.

Compacted records are no truncation, no loss and no missing rows; the remaining records are complete, each with its
offset and epoch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.streaming.datasource import ReadMaxRows

from fenceline.client.admin.admin import Admin, NewTopic
from fenceline.client.consumer.consumer import Consumer
from fenceline.client.core.epoch_history import EpochStart
from fenceline.client.producer.producer import Producer
from fenceline.client.reader.ranges import OffsetRange
from fenceline.client.reader.reader import RangeReader
from fenceline.ids import TopicPartition
from fenceline.log.core.checkpoints import read_offsets
from fenceline.log.core.disk import OsDisk
from fenceline.testing.apache_kafka import ApacheKafka, small_kafka
from fenceline.testing.node import EmbeddedNode
from fenceline.testing.waiting import eventually
from pyspark_fenceline.auditing.repair_table import repair_here
from pyspark_fenceline.auditing.table import Audit, audit_here, settings
from pyspark_fenceline.common import connect
from pyspark_fenceline.common.schema import spark_schema
from pyspark_fenceline.source.options import read_options
from pyspark_fenceline.source.stream import FencelineStreamReader
from pyspark_fenceline.source.tasks import ReadPlan, read_ranges

pytestmark = pytest.mark.timeout(400)

CLEANER = {"log.cleaner.backoff.ms": "100", "log.cleaner.enable": "true"}
TP = TopicPartition("keys", 0)
KEYS, RECORDS = 40, 3_000
"""In two epochs, half of them each. The first half of the keys is never written in the second one again."""
COLUMNS = ["key", "value", "topic", "partition", "offset", "leader_epoch"]


class Story(NamedTuple):
    bootstrap: str
    whole: pa.Table
    """All records, as before the compaction."""
    left: list[int]
    """Offsets of the remaining records."""
    newest: dict[bytes, bytes]
    epochs: tuple[EpochStart, ...]

    @property
    def holes(self) -> list[tuple[int, int]]:
        """Ranges of removed records between two remaining ones."""
        return [(one + 1, other) for one, other in zip(self.left, self.left[1:], strict=False) if other > one + 1]

    def epoch_at(self, offset: int) -> int:
        return int(self.whole["leader_epoch"][offset].as_py())


@pytest.fixture(scope="module", params=["fenceline", pytest.param("kafka", marks=pytest.mark.kafka)])
def story(request: pytest.FixtureRequest) -> Iterator[Story]:
    broker: EmbeddedNode | ApacheKafka = (
        small_kafka(overrides=CLEANER) if request.param == "kafka" else EmbeddedNode(overrides=CLEANER)
    )
    with broker:
        configs = {
            "cleanup.policy": "compact",
            "segment.bytes": str(1 << 20),
            "min.cleanable.dirty.ratio": "1.0",
            "delete.retention.ms": "86400000",
        }
        with Admin(broker.bootstrap) as admin:
            admin.create_topics([NewTopic(TP.topic, 1, 1, configs)])
        newest: dict[bytes, bytes] = {}
        write(broker.bootstrap, newest, range(KEYS))
        broker.stop()
        broker.start()
        write(broker.bootstrap, newest, range(KEYS // 2, KEYS))
        whole = rows_of(broker.bootstrap, 0, RECORDS)
        assert whole.num_rows == RECORDS
        with Admin(broker.bootstrap) as admin:
            admin.alter_configs({("topic", TP.topic): {"min.cleanable.dirty.ratio": "0.0"}})
        folder = broker.log_dir / str(TP)

        def compacted() -> bool:
            done = read_offsets(OsDisk(), str(broker.log_dir / "cleaner-offset-checkpoint")).get(TP, 0)
            return 0 < done == max(int(each.stem) for each in folder.glob("*.log"))

        eventually(compacted, "all sealed segments are compacted", wait_s=120)
        left = rows_of(broker.bootstrap, 0, RECORDS)["offset"].to_pylist()
        changes = [int(epoch) for epoch in whole["leader_epoch"].to_pylist()]
        starts = [EpochStart(changes[0], 0)]
        starts += [EpochStart(now, at) for at, now in enumerate(changes) if at and now != changes[at - 1]]
        yield Story(broker.bootstrap, whole, left, newest, tuple(starts))


def write(bootstrap: str, newest: dict[bytes, bytes], keys: range) -> None:
    rng = Random(keys.start)
    with Producer(bootstrap, **{"batch.size": 20_000}) as producer:
        for number in range(RECORDS // 2):
            # The last records of the first epoch and the first ones of the second are removed.
            key = b"k%d" % (rng.choice(keys) if number < RECORDS // 2 - 20 else keys[-1])
            value = rng.randbytes(1_500)
            newest[key] = value
            producer.send(TP.topic, value, key, partition=0)
        producer.flush()


def rows_of(bootstrap: str, first: int, end: int, epoch: int = -1, epochs: tuple[EpochStart, ...] = ()) -> pa.Table:
    with RangeReader(bootstrap) as reader:
        batches = list(reader.read({TP: OffsetRange(first, end, epoch, epochs=epochs)}))
    empty = pa.table({name: pa.array([]) for name in COLUMNS})
    return pa.Table.from_batches(batches).select(COLUMNS) if batches else empty


def offsets_of(table: pa.Table) -> list[int]:
    found: list[int] = table["offset"].to_pylist()
    return found


def test_both_epochs_are_compacted_to_the_newest_value_of_each_key(story: Story) -> None:
    assert len(story.epochs) == 2
    assert len(story.left) < RECORDS // 2
    assert {story.epoch_at(offset) for offset in story.left} == {start.epoch for start in story.epochs}
    assert min(story.left) > 0
    assert any(first < story.epochs[1].offset < end for first, end in story.holes), "where the second one began, too"


@pytest.mark.parametrize("arrow", [False, True])
def test_a_consumer_ends_with_the_newest_value_of_each_key(story: Story, arrow: bool) -> None:
    with Consumer(story.bootstrap, **{"auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([TP])
        found: list[tuple[int, int, bytes, bytes]] = []

        def poll() -> bool:
            if arrow:
                table = consumer.poll_arrow(200)
                columns = [table.column(name).to_pylist() for name in ("offset", "leader_epoch", "key", "value")]
                found.extend(zip(*columns, strict=True))
            else:
                found.extend((r.offset, r.leader_epoch, r.key or b"", r.value or b"") for r in consumer.poll(200))
            return consumer.position(TP) == RECORDS

        eventually(poll, "it is read to its end")
        assert [(offset, epoch) for offset, epoch, *_ in found] == [(o, story.epoch_at(o)) for o in story.left]
        assert {key: value for _, _, key, value in found} == story.newest
        assert consumer.lag(TP) == 0
        assert consumer.truncations() == []


def test_a_position_in_a_compacted_range_is_no_truncation(story: Story) -> None:
    """The position is validated against the leader's epochs (KIP-320), which need have no records left."""
    places = [hole for hole in story.holes if hole[1] - hole[0] > 2]
    first, second = places[0], places[-1]
    across = next(hole for hole in story.holes if hole[0] < story.epochs[1].offset < hole[1])
    with Consumer(story.bootstrap, **{"auto.offset.reset": "none"}) as consumer:
        consumer.assign([TP])
        for start, end in (first, across, second):
            for offset in (start, start + 1, end):
                consumer.seek(TP, offset, story.epoch_at(offset - 1))
                (record,) = eventually(lambda: consumer.poll(200, max_records=1), "the next one that is there")
                assert (record.offset, record.leader_epoch) == (end, story.epoch_at(end))
        assert consumer.truncations() == []


def test_ranges_may_begin_and_end_at_compacted_offsets(story: Story) -> None:
    rng = Random(1)
    edges = [place for hole in story.holes for place in hole]
    for _ in range(60):
        first, end = sorted(rng.choice([rng.choice(edges), rng.randrange(RECORDS)]) for _ in range(2))
        epoch = story.epoch_at(first - 1) if first else -1
        found = rows_of(story.bootstrap, first, end, epoch, story.epochs)
        assert offsets_of(found) == [offset for offset in story.left if first <= offset < end], (first, end)
    hole = max(story.holes, key=lambda hole: hole[1] - hole[0])
    assert rows_of(story.bootstrap, *hole, story.epoch_at(hole[0] - 1), story.epochs).num_rows == 0


def test_the_source_returns_remaining_records_in_batches_of_offsets(story: Story) -> None:
    given = {"kafka.bootstrap.servers": story.bootstrap, "subscribe": TP.topic, "startingOffsets": "earliest"}
    options = read_options(given, streaming=True)
    schema = spark_schema(include_headers=False, include_leader_epoch=True)
    plan = ReadPlan(options.client, schema, options.policy)
    source = FencelineStreamReader(options, plan)
    try:
        at: dict[str, Any] = source.initialOffset()
        found: list[tuple[int, int]] = []
        while (end := json.loads(json.dumps(source.latestOffset(at, ReadMaxRows(100))))) != at:
            for task in source.partitions(at, end):
                for batch in read_ranges(plan, task):
                    found += zip(batch["offset"].to_pylist(), batch["leader_epoch"].to_pylist(), strict=True)
            at = end
            if at["topics"][TP.topic]["partitions"]["0"]["offset"] == RECORDS:
                break
        assert found == [(offset, story.epoch_at(offset)) for offset in story.left]
    finally:
        for kind in ("cluster", "reader"):
            connect.forget(kind, options.client)


# --- tables -----------------------------------------------------------------------------------------------------------


def keep(path: Path, rows: pa.Table) -> str:
    write_deltalake(str(path), rows, mode="append", partition_by=["topic", "partition"])
    return str(path)


def audited(story: Story, table: str, **options: Any) -> Audit:
    return audit_here(table, settings(story.bootstrap, TP.topic, **options))


def offsets_of_kind(found: Audit, kind: str) -> list[int]:
    return [
        offset
        for row in found.findings.to_pylist()
        if row["kind"] == kind
        for offset in range(row["start_offset"], row["end_offset_exclusive"])
    ]


def test_a_table_from_before_the_compaction_equals_the_log(story: Story, tmp_path: Path) -> None:
    table = keep(tmp_path / "t", story.whole)
    found = audited(story, table)
    assert found.verdict.is_equal, str(found)
    # A full read of the log also reports rows that the log no longer has.
    found = audited(story, table, everything=True)
    assert found.verdict.is_equal, str(found)
    assert offsets_of_kind(found, "compacted") == sorted(set(range(RECORDS)) - set(story.left))
    assert {row["kind"] for row in found.findings.to_pylist()} == {"compacted"}
    assert repair_here(table, settings(story.bootstrap, TP.topic), apply=True).version is None


@pytest.mark.parametrize("everything", [False, True])
def test_a_table_from_after_the_compaction_equals_the_log(story: Story, tmp_path: Path, everything: bool) -> None:
    after = story.whole.take(pa.array(story.left))
    table = keep(tmp_path / "whole", after)
    found = audited(story, table, everything=everything)
    assert found.verdict.is_equal, str(found)
    assert found.findings.num_rows == 0

    gone = story.left[3:9] + story.left[len(story.left) // 2 : len(story.left) // 2 + 5]
    kept = [offset for offset in story.left if offset not in gone]
    table = keep(tmp_path / "short", story.whole.take(pa.array(kept)))
    found = audited(story, table, everything=everything)
    assert offsets_of_kind(found, "missing") == gone
    chosen = settings(story.bootstrap, TP.topic, everything=everything)
    done = repair_here(table, chosen, apply=True, kinds=("missing",))
    assert (done.removed_rows, done.added_rows) == (0, len(gone))
    rows = DeltaTable(table).to_pyarrow_table().sort_by("offset").select(COLUMNS).cast(after.schema)
    assert rows.equals(after)
