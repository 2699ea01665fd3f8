"""Logs that lose records, and the receipts of those losses."""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import UUID

from fenceline.ids import TopicPartition
from fenceline.log.core.config import LogConfig
from fenceline.log.core.disk import Disk
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.losses.check import Stored, stored_batches
from fenceline.losses.cutting import LogCut
from fenceline.losses.folder import ReceiptFolder
from fenceline.losses.receipt import LossCause, Receipt
from fenceline.records.build import build_batch
from fenceline.records.decode import decode_all
from fenceline.testing.sim_disk import SimDisk

TOPIC_ID = UUID("6f2d1c58-3c8e-4b52-9a0f-0123456789ab")
DIRECTORY = "/data/rain-3"
REPLICA, LEADER = 2, 5


def a_disk(seed: int = 0) -> SimDisk:
    disk = SimDisk(seed)
    disk.mkdir("/data")
    return disk


def open_log(
    disk: Disk, directory: str = DIRECTORY, *, partition: int = 3, topic_id: UUID = TOPIC_ID, **fields: Any
) -> PartitionLog:
    fields.setdefault("now_ms", 1_000)
    fields.setdefault("config", LogConfig(segment_bytes=600, index_interval_bytes=150))
    return PartitionLog.open(
        disk, directory, topic_partition=TopicPartition("rain", partition), topic_id=topic_id, **fields
    )


def stored_values(log: PartitionLog) -> list[str]:
    """The values of all records."""
    found: list[str] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        for header, records in decode_all(log.read(offset, 1 << 20, end_offset_exclusive=log.log_end_offset).load()):
            offset = header.next_offset
            found += [(record.value or b"").decode() for record in records]
    return found


def write(log: PartitionLog, epoch: int, batches: int, rng: Random | None = None) -> None:
    rng = rng or Random(0)
    for _ in range(batches):
        rows = [(1_000, b"key", b"v" * rng.randint(1, 40), ()) for _ in range(rng.randint(1, 4))]
        log.append_as_leader(memoryview(build_batch(rows)), leader_epoch=epoch, now_ms=1_000)


def a_safe_history(disk: SimDisk, rng: Random) -> tuple[list[Stored], int]:
    """The batches and the high watermark of a flushed log: batches missing afterwards were cut."""
    log = open_log(disk)
    for epoch in range(4):
        write(log, epoch, 4, rng)
    log.close()
    log = open_log(disk, clean=True)
    return stored_batches(log), log.advance_high_watermark(rng.randint(0, log.log_end_offset))


def cut(offset: int, *, truncates_fully: bool = False, time_ms: int = 7_000, **fields: Any) -> LogCut:
    return LogCut(
        offset,
        truncates_fully,
        LossCause.LEADER_STARTS_LATER if truncates_fully else LossCause.DIVERGENCE,
        "a test",
        REPLICA,
        LEADER,
        9,
        time_ms,
        **fields,
    )


def receipts_of(disk: Disk, directory: str = DIRECTORY) -> list[Receipt]:
    return list(ReceiptFolder(disk, directory).contents().receipts)
