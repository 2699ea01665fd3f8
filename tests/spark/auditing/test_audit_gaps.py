"""Offsets without a row that are no loss: transaction markers, aborted records, compacted records. The tables are
written by the sink, from a log of Apache Kafka that has all of them, and audited as Spark jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
from deltalake import DeltaTable

import pyspark_fenceline
from fenceline.client.admin.admin import Admin, NewTopic
from fenceline.client.reader.reader import RangeReader
from fenceline.ids import TopicPartition
from fenceline.log.core.checkpoints import read_offsets
from fenceline.log.core.disk import OsDisk
from fenceline.testing.apache_kafka import ApacheKafka, small_kafka
from fenceline.testing.waiting import eventually
from tests.spark.queries import keep_equal, tracked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(400)]
TP: Final = TopicPartition("keys", 0)
TRANSACTIONS, RECORDS_EACH, KEYS = 20, 100, 40
END: Final = TRANSACTIONS * (RECORDS_EACH + 1)
"""Each transaction ends with a marker."""
COLUMNS: Final = ["topic", "partition", "offset", "leader_epoch"]
COMMITTED: Final = "read_committed"
UNCOMMITTED: Final = "read_uncommitted"
CONFIGS: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "1.0",
    "delete.retention.ms": "86400000",
}


def is_aborted(transaction: int) -> bool:
    return transaction % 4 == 1


def offsets_of(transaction: int) -> range:
    first = transaction * (RECORDS_EACH + 1)
    return range(first, first + RECORDS_EACH)


ABORTED: Final = [offset for number in range(TRANSACTIONS) if is_aborted(number) for offset in offsets_of(number)]
WRITTEN: Final = [offset for number in range(TRANSACTIONS) for offset in offsets_of(number)]


@pytest.fixture
def kafka() -> Iterator[ApacheKafka]:
    """With the topic `keys`, not compacted yet."""
    from confluent_kafka import Producer

    with small_kafka(overrides={"log.cleaner.backoff.ms": "100", "log.cleaner.enable": "true"}) as running:
        with Admin(running.bootstrap) as admin:
            admin.create_topics([NewTopic(TP.topic, 1, 1, CONFIGS)])
        rng = Random(1)
        producer = Producer({"bootstrap.servers": running.bootstrap, "transactional.id": "a", "linger.ms": 50})
        producer.init_transactions(60)
        for number in range(TRANSACTIONS):
            producer.begin_transaction()
            for _ in range(RECORDS_EACH):
                producer.produce(TP.topic, rng.randbytes(1_500), b"k%d" % rng.randrange(KEYS), 0)
            if is_aborted(number):
                producer.flush()
                producer.abort_transaction(60)
            else:
                producer.commit_transaction(60)
        yield running


def compact(kafka: ApacheKafka) -> None:
    """Compact all segments except the last."""
    with Admin(kafka.bootstrap) as admin:
        admin.alter_configs({("topic", TP.topic): {"min.cleanable.dirty.ratio": "0.0"}})
    checkpoint, folder = kafka.log_dir / "cleaner-offset-checkpoint", kafka.log_dir / str(TP)

    def compacted() -> bool:
        done = read_offsets(OsDisk(), str(checkpoint)).get(TP, 0)
        return 0 < done == max(int(each.stem) for each in folder.glob("*.log"))

    eventually(compacted, "all sealed segments are compacted", wait_s=120)


def in_log(kafka: ApacheKafka, level: str) -> list[int]:
    with RangeReader({"bootstrap.servers": kafka.bootstrap, "isolation.level": level}) as reader:
        return [offset for found in reader.read({TP: (0, END)}) for offset in found["offset"].to_pylist()]


def in_table(table: str) -> list[int]:
    return sorted(DeltaTable(table).to_pyarrow_table(columns=["offset"])["offset"].to_pylist())


class Audited(NamedTuple):
    is_equal: bool
    offsets: dict[str, list[int]]
    """Offsets by kind of finding."""


def audited(
    spark: SparkSession, kafka: ApacheKafka, table: Any, level: str, *, everything: bool | None = None
) -> Audited:
    report = pyspark_fenceline.audit(
        table, kafka.bootstrap, TP.topic, spark=spark, isolation_level=level, everything=everything
    )
    found: dict[str, list[int]] = {}
    for row in report.findings.orderBy("start_offset").collect():
        found.setdefault(row.kind, []).extend(range(row.start_offset, row.end_offset_exclusive))
    return Audited(report.verdict.is_equal, found)


def test_markers_aborted_records_and_compacted_records_are_not_missing(
    spark: SparkSession, kafka: ApacheKafka, tmp_path: Path
) -> None:
    tables = {level: str(tmp_path / level) for level in (COMMITTED, UNCOMMITTED)}

    def fill(level: str, table: str) -> None:
        frame = tracked(spark, kafka.bootstrap, TP.topic, **{"kafka.isolation.level": level})
        keep_equal(frame, table, f"{table}-state", kafka.bootstrap, **{"kafka.isolation.level": level})

    for level, table in tables.items():
        fill(level, table)
    assert in_table(tables[UNCOMMITTED]) == WRITTEN
    assert in_table(tables[COMMITTED]) == sorted(set(WRITTEN) - set(ABORTED))

    for level, table in tables.items():
        assert audited(spark, kafka, table, level) == (True, {})
        assert audited(spark, kafka, table, level, everything=True) == (True, {})
    assert audited(spark, kafka, tables[UNCOMMITTED], COMMITTED) == (False, {"aborted": ABORTED})
    last = max(in_table(tables[COMMITTED]))
    assert audited(spark, kafka, tables[COMMITTED], UNCOMMITTED).offsets["missing"] == [o for o in ABORTED if o < last]

    compact(kafka)
    left = in_log(kafka, COMMITTED)
    assert len(left) < len(WRITTEN) // 2
    # A table from before the compaction keeps the removed records; only a full read of the log reports them.
    gone = sorted(set(in_table(tables[COMMITTED])) - set(left))
    assert audited(spark, kafka, tables[COMMITTED], COMMITTED, everything=True) == (True, {"compacted": gone})
    assert audited(spark, kafka, tables[UNCOMMITTED], UNCOMMITTED).is_equal
    # A table read now has the remaining records, and only those can be missing.
    after = str(tmp_path / "after")
    fill(COMMITTED, after)
    assert in_table(after) == left
    assert audited(spark, kafka, after, COMMITTED) == (True, {})
    taken = [left[3], *left[len(left) // 2 : len(left) // 2 + 5]]
    frame = spark.createDataFrame(DeltaTable(after).to_pyarrow_table(columns=COLUMNS))
    short = frame.where(~frame["offset"].isin(taken))
    assert audited(spark, kafka, short, COMMITTED) == (False, {"missing": sorted(taken)})
