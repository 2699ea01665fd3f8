"""A checkpoint's offset log, as Spark 4.2 writes it, for tests without Spark."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fenceline.ids import TopicPartition
from pyspark_fenceline.common.offsets import PartitionPosition, SourceOffset


def entry(*sources: Any, version: str = "v1", planned_ms: int = 1) -> str:
    """Each of `sources` is an offset's JSON, or a raw line."""
    about = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": planned_ms, "conf": {}})
    lines = [source if isinstance(source, str) else json.dumps(source) for source in sources]
    return "\n".join([version, about, *lines])


def offset_of(positions: Mapping[TopicPartition, tuple[int, int]], ids: Mapping[str, str | None]) -> dict[str, Any]:
    """`positions`: next offset and the epoch of the record before it."""
    held = {tp: PartitionPosition(offset, epoch) for tp, (offset, epoch) in positions.items()}
    return SourceOffset(held, {tp.topic: ids.get(tp.topic) for tp in held}).encode()


def write_entry(folder: Path, query_id: str, batch_id: int, text: str) -> None:
    (folder / "offsets").mkdir(parents=True, exist_ok=True)
    (folder / "metadata").write_text(json.dumps({"id": query_id}))
    (folder / "offsets" / str(batch_id)).write_text(text)


def write_commit(folder: Path, batch_id: int, at_ms: int) -> None:
    """The batch's entry in the commit log, written at that time."""
    (folder / "commits").mkdir(parents=True, exist_ok=True)
    path = folder / "commits" / str(batch_id)
    path.write_text('v1\n{"nextBatchWatermarkMs":0}')
    os.utime(path, ns=(at_ms * 1_000_000, at_ms * 1_000_000))
