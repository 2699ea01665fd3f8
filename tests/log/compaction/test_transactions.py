"""Transactions in a compacted log: end markers stay for `delete.retention.ms` (KIP-534), and with their producer."""

from __future__ import annotations

import pytest

from fenceline.log.compaction.compaction import Limits
from fenceline.log.core.config import LogConfig
from fenceline.log.core.producer_state import Origin
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.records.batch import BatchHeader
from fenceline.records.build import build_batch
from fenceline.testing.sim_disk import SimDisk
from tests.log.compaction_story import compact_all, marker
from tests.log.helpers import open_log, read_all

RETENTION_MS = 500


def opened(disk: SimDisk) -> PartitionLog:
    disk.mkdir("/data")
    return open_log(
        disk, config=LogConfig(cleanup_policy=frozenset({"compact"}), delete_retention_ms=RETENTION_MS), clean=True
    )


def compacted(log: PartitionLog, now_ms: int) -> list[BatchHeader]:
    """Compact all sealed segments again; returns the remaining batches."""
    compact_all(log, now_ms, Limits(memory_bytes=1 << 16))
    return [header for header, _ in read_all(log)]


@pytest.mark.parametrize("commit", [True, False])
def test_marker_is_removed_after_its_delete_horizon(commit: bool) -> None:
    disk = SimDisk(1)
    log = opened(disk)

    def append(batch: bytearray, origin: Origin) -> None:
        log.append_as_leader(memoryview(batch), leader_epoch=0, now_ms=1_000, origin=origin)

    row = (1_000, b"a", b"in a transaction", ())
    append(build_batch([row], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True), Origin.CLIENT)
    append(marker(7, 1_000, commit=commit), Origin.COORDINATOR)
    # The producer's last batch and the newest record of the key are later in the log.
    append(build_batch([row], producer_id=7, producer_epoch=0, base_sequence=1), Origin.CLIENT)
    append(build_batch([row]), Origin.CLIENT)
    log.roll(1_000)
    append(build_batch([row]), Origin.CLIENT)
    log.advance_high_watermark(log.log_end_offset)

    def markers(now_ms: int) -> list[tuple[int, bool]]:
        return [(each.base_offset, each.has_delete_horizon) for each in compacted(log, now_ms) if each.is_control]

    def aborted() -> list[tuple[int, int]]:
        return [(each.first_offset, each.last_offset) for each in log.aborted_transactions(0, log.log_end_offset)]

    assert markers(2_000) == [(1, False)], "its transaction existed until this pass"
    assert aborted() == ([] if commit else [(0, 1)])
    assert markers(3_000) == [(1, True)]
    assert aborted() == []
    assert markers(3_000 + RETENTION_MS - 1) == [(1, True)]
    assert markers(3_000 + RETENTION_MS) == []
    assert log.log_end_offset == 5
    log.close()
    log = opened(disk)
    assert log.log_end_offset == 5
    assert aborted() == [], "the transaction index agrees"
    log.close()


def test_last_marker_of_a_producer_is_kept() -> None:
    """As an empty batch, as in Apache Kafka."""
    log = opened(SimDisk(2))
    fence = [(1_000, bytes(4), bytes(6), ())]
    made = build_batch(fence, producer_id=9, producer_epoch=3, transactional=True, control=True)
    log.append_as_leader(memoryview(made), leader_epoch=0, now_ms=1_000, origin=Origin.COORDINATOR)
    row = (1_000, b"a", b"1", ())
    for _ in range(2):
        log.append_as_leader(memoryview(build_batch([row])), leader_epoch=0, now_ms=1_000)
        log.roll(1_000)
    log.append_as_leader(memoryview(build_batch([row])), leader_epoch=0, now_ms=1_000)
    log.advance_high_watermark(log.log_end_offset)
    for now_ms, records in ((2_000, 1), (2_000 + RETENTION_MS, 0), (9_000, 0)):
        assert [each.record_count for each in compacted(log, now_ms) if each.is_control] == [records]
    known = log.producers.get(9)
    assert known is not None
    assert known.epoch == 3
    log.close()
