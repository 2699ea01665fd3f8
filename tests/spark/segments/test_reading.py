"""The segments source without a Spark session: the rows that its tasks return."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from fenceline.log.core.config import LogConfig
from fenceline.log.core.disk import OsDisk
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.records.batch import Codec
from fenceline.records.build import build_batch
from pyspark_fenceline_segments.columns import full_schema
from pyspark_fenceline_segments.options import Mode, segment_options
from pyspark_fenceline_segments.planning import pack
from pyspark_fenceline_segments.reading import DamagedSegment
from pyspark_fenceline_segments.source import SegmentsDataSource
from tests.spark.schemas import struct

ROWS = 90


def make_log(directory: Path, *, epochs: int = 3) -> None:
    """30 records in 10 batches for each epoch, with every codec, in small segments."""
    log = PartitionLog.open(
        OsDisk(),
        str(directory),
        topic_partition=TopicPartition("rain", 2),
        topic_id=None,
        config=LogConfig(segment_bytes=1_500, index_interval_bytes=300),
        now_ms=1_000,
    )
    for number in range(10 * epochs):
        first = log.log_end_offset
        rows = [(1_000 + first + each, b"k%d" % each, b"v%d" % (first + each), (("h", b"x"),)) for each in range(3)]
        made = build_batch(rows, codec=Codec(number % 5), producer_id=7, producer_epoch=0, base_sequence=first)
        log.append_as_leader(memoryview(made), leader_epoch=number // 10, now_ms=1_000)
    log.close()


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    make_log(tmp_path / "one" / "rain-2")
    return tmp_path / "one" / "rain-2"


def rows(path: Path | str, *, schema: str | None = None, **options: Any) -> list[dict[str, Any]]:
    given = {"path": str(path), **{name: str(value) for name, value in options.items()}}
    source = SegmentsDataSource(given)
    reader = source.reader(struct(schema) if schema is not None else source.schema())
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [row for batch in batches for row in pa.Table.from_batches([batch]).to_pylist()]


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x40
    path.write_bytes(content)


def segments(partition: Path) -> list[Path]:
    return sorted(partition.glob("*.log"))


def test_a_row_for_each_batch(partition: Path) -> None:
    found = sorted(rows(partition), key=lambda row: row["base_offset"])
    assert [(row["base_offset"], row["last_offset"], row["records"]) for row in found] == [
        (first, first + 2, 3) for first in range(0, ROWS, 3)
    ]
    assert [row["leader_epoch"] for row in found] == [0] * 10 + [1] * 10 + [2] * 10
    assert [row["codec"] for row in found[:5]] == ["none", "gzip", "snappy", "lz4", "zstd"]
    assert {(row["topic"], row["partition"], row["replica"]) for row in found} == {("rain", 2, str(partition.parent))}
    assert all(row["crc_ok"] is True and row["problem"] is None for row in found)
    assert all(row["max_timestamp"].timestamp() == (1_002 + row["base_offset"]) / 1000 for row in found)
    assert {(row["producer_id"], row["is_control"], row["is_transactional"]) for row in found} == {(7, False, False)}
    assert sum(row["size"] for row in found) == sum(path.stat().st_size for path in segments(partition))


def test_without_checks_validity_is_null(partition: Path) -> None:
    flip(segments(partition)[0], 70)
    found = rows(partition, verify=False)
    assert len(found) == 30
    assert {row["crc_ok"] for row in found} == {None}


def test_corruption_has_a_separate_row(partition: Path) -> None:
    first, second, *_ = segments(partition)
    flip(first, 70)
    flip(second, 16)
    damaged = sorted((row for row in rows(partition) if not row["crc_ok"]), key=lambda row: row["file"])
    assert [(row["file"], row["position"], row["base_offset"]) for row in damaged] == [
        (str(first), 0, 0),
        (str(second), 0, None),
    ]
    assert "checksum of the batch at offset 0" in damaged[0]["problem"]
    assert sum(row["size"] for row in rows(partition)) == sum(path.stat().st_size for path in segments(partition))


def test_records_are_those_of_the_log(partition: Path) -> None:
    found = sorted(rows(partition, mode="records", includeHeaders=True), key=lambda row: row["offset"])
    assert [row["offset"] for row in found] == list(range(ROWS))
    assert [row["value"] for row in found] == [b"v%d" % offset for offset in range(ROWS)]
    assert [row["leader_epoch"] for row in found] == [offset // 30 for offset in range(ROWS)]
    assert found[0]["headers"] == [{"key": "h", "value": b"x"}]
    assert found[4]["timestamp"].timestamp() == 1.004


def test_corrupt_records_end_the_query_unless_tolerated(partition: Path) -> None:
    flip(segments(partition)[0], 70)
    with pytest.raises(DamagedSegment, match=r"at byte 0: the checksum .* failOnDamage=false"):
        rows(partition, mode="records")
    found = rows(partition, mode="records", failOnDamage=False)
    assert sorted(row["offset"] for row in found) == list(range(3, ROWS))


def test_undecodable_records_with_a_valid_checksum(partition: Path) -> None:
    from fenceline.records.batch import compute_crc

    path = segments(partition)[0]
    content = bytearray(path.read_bytes())
    size = int.from_bytes(content[8:12], "big") + 12
    content[61] ^= 2
    content[17:21] = compute_crc(content, 0, size).to_bytes(4, "big")
    path.write_bytes(content)
    with pytest.raises(DamagedSegment, match="record 0 of the batch is corrupt"):
        rows(partition, mode="records")
    assert len(rows(partition, mode="records", failOnDamage=False)) == ROWS - 3


def test_findings_equal_those_of_the_command(partition: Path) -> None:
    assert rows(partition, mode="findings") == []
    flip(segments(partition)[1], 70)
    (found,) = rows(partition.parent, mode="findings")
    assert (found["severity"], found["kind"], found["position"]) == ("error", "crc", 0)
    assert (found["topic"], found["partition"], found["replica"]) == ("rain", 2, str(partition.parent))
    assert found["file"] == str(segments(partition)[1])
    assert found["advice"]


def test_findings_compare_replicas_of_one_partition(partition: Path, tmp_path: Path) -> None:
    make_log(tmp_path / "two" / "rain-2")
    make_log(tmp_path / "two" / "rain-0", epochs=1)
    assert rows(tmp_path, mode="findings", maxPartitions=5) == []
    last = segments(tmp_path / "two" / "rain-2")[-1]
    content = bytearray(last.read_bytes())
    content[12:16] = (9).to_bytes(4, "big")
    last.write_bytes(content)
    found = rows(tmp_path, mode="findings", maxPartitions=5)
    assert {row["kind"] for row in found} == {"epochs", "divergence"}
    assert "divergence" not in {row["kind"] for row in rows(tmp_path, mode="findings", compare=False)}


def test_a_log_being_written_has_no_corrupt_end(partition: Path) -> None:
    last = segments(partition)[-1]
    last.write_bytes(last.read_bytes()[:-10])
    assert [row["crc_ok"] for row in rows(partition.parent)].count(False) == 1
    (partition.parent / "meta.properties").write_text("")
    assert [row["crc_ok"] for row in rows(partition.parent)].count(False) == 0
    assert len(rows(partition.parent, mode="records")) == ROWS - 3


def test_evidence_is_marked_and_can_be_excluded(partition: Path) -> None:
    log = PartitionLog.open(
        OsDisk(),
        str(partition),
        topic_partition=TopicPartition("rain", 2),
        topic_id=None,
        config=LogConfig(segment_bytes=1_500),
        now_ms=1_000,
    )
    log.truncate_to(45)
    log.close()
    found = rows(partition)
    assert max(row["last_offset"] for row in found if not row["evidence"]) == 44
    assert max(row["last_offset"] for row in found if row["evidence"]) == ROWS - 1
    assert not [row for row in rows(partition, evidence=False) if row["evidence"]]


def test_columns_can_be_chosen(partition: Path) -> None:
    assert list(rows(partition, schema="crc_ok boolean, base_offset long")[0]) == ["crc_ok", "base_offset"]
    with pytest.raises(OperatorError, match="there is no column key"):
        rows(partition, schema="key binary")


def test_several_paths_globs_and_topics(partition: Path, tmp_path: Path) -> None:
    make_log(tmp_path / "two" / "rain-2", epochs=1)
    assert len(rows(tmp_path / "*")) == 40
    assert len(rows(f"file:{tmp_path}/t*")) == 10
    given = {"paths": json.dumps([str(partition), str(tmp_path / "two")])}
    assert len(segment_options(given).paths) == 2
    assert len(rows(tmp_path, topics="rain, snow")) == 40
    assert rows(tmp_path, topics="snow") == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs the paths"),
        ({"path": "/x", "mode": "rows"}, "must be batches, records or findings"),
        ({"path": "/x", "subscribe": "t"}, "Unknown option 'subscribe'"),
        ({"path": "s3://bucket/x"}, "not a local path"),
        ({"paths": "x"}, "JSON array"),
        ({"path": "/x", "verify": "maybe"}, "must be true or false"),
    ],
)
def test_invalid_options_are_rejected_with_a_clear_message(options: dict[str, str], words: str) -> None:
    with pytest.raises(OperatorError, match=words):
        segment_options(options)


def test_streaming_reads_are_rejected(partition: Path) -> None:
    with pytest.raises(OperatorError, match=r"format\('fenceline_segments'\) does not support streaming reads"):
        SegmentsDataSource({"path": str(partition)}).streamReader(struct("crc_ok boolean"))


def test_a_path_without_segments_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="does not exist"):
        rows(tmp_path / "nothing")
    with pytest.raises(OperatorError, match="No file on the driver's machine matches"):
        rows(tmp_path / "nothing*")
    with pytest.raises(OperatorError, match="contains no log"):
        rows(tmp_path)


def test_tasks_are_of_about_equal_sizes() -> None:
    assert pack(["a", "b", "c", "d"], [5, 1, 1, 3], 2) == [["a"], ["b", "c", "d"]]
    assert pack(["a"], [0], 8) == [["a"]]
    assert pack([], [], 8) == []


@pytest.mark.parametrize("mode", Mode)
def test_every_mode_has_the_location_columns(mode: Mode) -> None:
    names = full_schema(mode, include_headers=True).fieldNames()
    assert {"topic", "partition", "replica", "file"} <= set(names)
