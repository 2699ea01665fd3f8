"""Batches and logs for the tests of this directory."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from fenceline.ids import TopicPartition
from fenceline.log.core.config import LogConfig
from fenceline.log.core.disk import Disk
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.records.batch import BatchHeader, iter_headers
from fenceline.records.build import build_batch

TP = TopicPartition("rain", 0)
TOPIC_ID = UUID("6f2d1c58-3c8e-4b52-9a0f-0123456789ab")
DIRECTORY = "/data/rain-0"
SMALL = LogConfig(segment_bytes=1_000, index_interval_bytes=150)
"""Segments of a few batches."""


def batch(records: int = 1, *, size: int = 20, timestamp: int = 1_000, **fields: Any) -> memoryview:
    """A batch as a producer sends it; `fields` are those of `build_batch`."""
    rows = [(timestamp + number, b"k%d" % number, b"v" * size, ()) for number in range(records)]
    return memoryview(build_batch(rows, **fields))


def open_log(disk: Disk, directory: str = DIRECTORY, *, config: LogConfig | None = None, **fields: Any) -> PartitionLog:
    fields.setdefault("now_ms", 1_000)
    return PartitionLog.open(
        disk, directory, topic_partition=TP, topic_id=TOPIC_ID, config=config or LogConfig(), **fields
    )


def append(log: PartitionLog, records: int = 1, *, epoch: int = 0, now_ms: int = 1_000, **fields: Any) -> int:
    """Append one batch and make it readable; returns its base offset."""
    info = log.append_as_leader(batch(records, **fields), leader_epoch=epoch, now_ms=now_ms)
    log.advance_high_watermark(log.log_end_offset)
    return info.base_offset


def read_all(log: PartitionLog, *, max_bytes: int = 1 << 20) -> list[tuple[BatchHeader, bytes]]:
    """Every batch from log start to log end, with its bytes."""
    found: list[tuple[BatchHeader, bytes]] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        read = log.read(offset, max_bytes, end_offset_exclusive=log.log_end_offset)
        records = read.load()
        assert len(records) > 0, f"nothing at {offset} of {log}"
        for header in iter_headers(records):
            found.append((header, bytes(records[header.position : header.end_position])))
            offset = header.next_offset
    return found


def watch_reads(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all reads of the disk from now on, in order."""
    seen: list[int] = []
    pread = disk.pread

    def counted(fd: int, size_bytes: int, position: int, /) -> bytes:
        seen.append(size_bytes)
        return pread(fd, size_bytes, position)

    monkeypatch.setattr(disk, "pread", counted)
    return seen


def files(disk: Disk) -> list[str]:
    return list(disk.listdir(DIRECTORY))
