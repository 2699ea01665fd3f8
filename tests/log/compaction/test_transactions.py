"""Transactions in a compacted log: end markers stay for `delete.retention.ms` (KIP-534), and with their producer."""

from __future__ import annotations

import pytest

from fenceline.log.compaction import compaction
from fenceline.log.compaction.compaction import Limits
from fenceline.log.compaction.kernel import SLOT_BYTES
from fenceline.log.compaction.plan import Due
from fenceline.log.core.config import LogConfig
from fenceline.log.core.producer_state import Origin
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.records.aborted import AbortedTransactions
from fenceline.records.batch import BatchHeader
from fenceline.records.build import build_batch
from fenceline.records.decode import decode_batch
from fenceline.testing.sim_disk import SimDisk
from tests.log.compaction_story import compact_all, marker, run
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


def transactional(producer_id: int, sequence: int, *keys: bytes) -> memoryview:
    rows = [(1_000, key, b"in a transaction", ()) for key in keys]
    return memoryview(
        build_batch(rows, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=True)
    )


def committed_keys(log: PartitionLog) -> list[bytes | None]:
    """What a reader of committed records gets."""
    hiding = AbortedTransactions(
        (each.producer_id, each.first_offset)
        for each in log.aborted_transactions(log.log_start_offset, log.log_end_offset)
    )
    found: list[bytes | None] = []
    for header, content in read_all(log):
        if not hiding.hides(content, header._replace(position=0)) and not header.is_control:
            found += [record.key for record in decode_batch(content, header._replace(position=0))]
    return found


def test_aborted_data_goes_at_once_wherever_its_marker_lies() -> None:
    """KAFKA-8351: a transaction over several segments, its marker in the active one; the marker stays behind."""
    log = opened(SimDisk(3))
    for sequence, key in enumerate((b"a", b"b", b"c")):
        log.append_as_leader(transactional(7, sequence, key), leader_epoch=0, now_ms=1_000)
        log.append_as_leader(
            memoryview(build_batch([(1_000, b"kept%d" % sequence, b"", ())])), leader_epoch=0, now_ms=0
        )
        log.roll(1_000)
    log.append_as_leader(
        memoryview(marker(7, 1_000, commit=False)), leader_epoch=0, now_ms=0, origin=Origin.COORDINATOR
    )
    log.advance_high_watermark(log.log_end_offset)
    kept = [b"kept0", b"kept1", b"kept2"]
    assert committed_keys(log) == kept
    remaining = compacted(log, 2_000)
    assert [each.record_count for each in remaining if each.is_transactional] == [0, 1], "the last batch, the marker"
    assert committed_keys(log) == kept
    log.roll(1_000)
    log.append_as_leader(memoryview(build_batch([(1_000, b"new", b"", ())])), leader_epoch=0, now_ms=0)
    log.advance_high_watermark(log.log_end_offset)
    for now_ms in (3_000, 9_000, 19_000):
        [marked] = [each for each in compacted(log, now_ms) if each.is_control]
        assert marked.record_count == 1, "its transaction has a batch: without the marker it would be open again"
        assert [each.first_offset for each in log.aborted_transactions(0, log.log_end_offset)] == [0]
        assert committed_keys(log) == [*kept, b"new"]
    log.close()


@pytest.mark.parametrize("most_keys", [2, 3, 5, 8])
def test_markers_stay_if_the_map_ends_inside_their_transaction(most_keys: int) -> None:
    """KAFKA-13727: the pass ends where the map is full, and what lies behind keeps its markers and entries."""
    log = opened(SimDisk(4))
    sequences = {7: 0, 8: 0}
    for number in range(4):
        for producer_id in (7, 8):
            keys = [b"%d-%d-%d" % (producer_id, number, each) for each in range(2)]
            log.append_as_leader(transactional(producer_id, sequences[producer_id], *keys), leader_epoch=0, now_ms=0)
            sequences[producer_id] += 2
        for producer_id in (8, 7):
            made = marker(producer_id, 1_000, commit=producer_id == 8)
            log.append_as_leader(memoryview(made), leader_epoch=0, now_ms=0, origin=Origin.COORDINATOR)
    log.roll(1_000)
    log.append_as_leader(memoryview(build_batch([(1_000, b"end", b"", ())])), leader_epoch=0, now_ms=0)
    log.advance_high_watermark(log.log_end_offset)
    expected = committed_keys(log)
    if (work := log.flush_work(0)) is not None:
        work.run()
    first_dirty, now_ms = 0, 2_000
    for _ in range(20):
        due = Due(first_dirty, log.segments[-1].base_offset, 1, 1.0)
        pass_ = compaction.begin(
            log, due, now_ms=now_ms, limits=Limits(memory_bytes=SLOT_BYTES * most_keys, load_factor=1.0)
        )
        run(log, pass_)
        assert committed_keys(log) == expected
        first_dirty, now_ms = pass_.end, now_ms + RETENTION_MS
        if first_dirty >= due.end:
            break
    assert first_dirty == log.segments[-1].base_offset
    log.close()
