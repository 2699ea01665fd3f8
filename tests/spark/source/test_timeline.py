"""The timeline of a batch: Spark's phases and the recorded spans of the same time, as text and as a picture."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fenceline.errors import OperatorError
from pyspark_fenceline import batch_timeline
from pyspark_fenceline.source.options import read_options
from tests.spark.streams import ALL, cluster_with, make

BEGIN = datetime(2026, 1, 2, 3, 4, 5, 250_000, tzinfo=UTC)
BEGIN_MS = BEGIN.timestamp() * 1000


def progress(**durations: int) -> dict[str, Any]:
    return {"timestamp": "2026-01-02T03:04:05.250Z", "batchId": 7, "numInputRows": 20_000, "durationMs": durations}


def record(directory: Path, process: str, *spans: tuple[str, float, float]) -> None:
    lines = [json.dumps({"name": n, "begin_ms": BEGIN_MS + b, "end_ms": BEGIN_MS + e}) for n, b, e in spans]
    (directory / f"{process}.jsonl").write_text("\n".join(lines) + "\n")


def test_phases_follow_one_another_and_spans_of_other_batches_are_left_out(tmp_path: Path) -> None:
    record(tmp_path, "worker-9", ("fetch and decode", 60, 70), ("fetch and decode", 150, 160))
    record(tmp_path, "planner-8", ("latestOffset", -50, -40), ("latestOffset", 1, 4), ("metadata", 1, 2))
    found = batch_timeline(
        progress(triggerExecution=100, latestOffset=5, walCommit=20, queryPlanning=0, addBatch=50, commitOffsets=20),
        tmp_path,
    )
    shown = [(one.process, one.name, round(one.begin_ms - BEGIN_MS), round(one.duration_ms)) for one in found.spans]
    assert shown == [
        ("Spark", "latestOffset", 0, 5),
        ("Spark", "walCommit", 5, 20),
        ("Spark", "addBatch", 25, 50),
        ("Spark", "commitOffsets", 75, 20),
        ("planner-8", "latestOffset", 1, 3),
        ("planner-8", "metadata", 1, 1),
        ("worker-9", "fetch and decode", 60, 10),
    ]
    assert str(found).splitlines()[0] == "batch 7: 20000 rows, 100 ms"
    assert "worker-9         fetch and decode" in str(found)


def test_the_picture_is_well_formed_and_nested_spans_are_below(tmp_path: Path) -> None:
    record(tmp_path, "planner-8", ("partitions <&>", 1, 40), ("metadata", 2, 10))
    root = ElementTree.fromstring(batch_timeline(progress(triggerExecution=100, addBatch=90), tmp_path).svg())
    name = "{http://www.w3.org/2000/svg}"
    bars = {bar[0].text: float(bar.attrib["y"]) for bar in root.iter(f"{name}rect") if len(bar)}
    assert list(bars) == ["addBatch 90.0 ms", "partitions <&> 39.0 ms", "metadata 8.0 ms"]
    assert bars["addBatch 90.0 ms"] < bars["partitions <&> 39.0 ms"] < bars["metadata 8.0 ms"]


def test_a_directory_without_the_batch_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="nothing about batch 7"):
        batch_timeline(progress(triggerExecution=100), tmp_path)


def test_the_planner_records_its_calls_and_looks(tmp_path: Path) -> None:
    reader = make(cluster_with(10), timelineDirectory=str(tmp_path))
    end = reader.latestOffset(reader.initialOffset(), ALL)
    reader.partitions(reader.initialOffset(), end)
    names = [json.loads(line)["name"] for file in tmp_path.iterdir() for line in file.read_text().splitlines()]
    assert names == ["metadata", "bounds of the logs", "latestOffset", "metadata", "bounds of the logs", "partitions"]


def test_a_batch_read_has_no_timeline() -> None:
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "timelineDirectory": "/t"}
    assert read_options(given, streaming=True).timeline_directory == "/t"
    with pytest.raises(OperatorError, match="for streams only"):
        read_options(given, streaming=False)
