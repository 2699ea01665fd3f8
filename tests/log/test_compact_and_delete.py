"""`cleanup.policy=compact,delete`: old values of each key and old segments are removed; and `compact` alone,
which removes nothing by time or size.
"""

from __future__ import annotations

from fenceline.log.compaction import compaction
from fenceline.log.compaction.compaction import Limits
from fenceline.log.compaction.plan import Due
from fenceline.log.core.config import LogConfig
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.records.build import build_batch
from fenceline.records.decode import decode_batch
from fenceline.testing.sim_disk import SimDisk
from tests.log.compaction_story import compact_all, run
from tests.log.helpers import open_log, read_all

OLD_MS, NEW_MS, RETENTION_MS = 1_000, 1_000_000, 10_000
COMPACT = LogConfig(segment_bytes=500, index_interval_bytes=100, cleanup_policy=frozenset({"compact"}), retention_ms=1)
BOTH = LogConfig(
    segment_bytes=500,
    index_interval_bytes=100,
    cleanup_policy=frozenset({"compact", "delete"}),
    retention_ms=RETENTION_MS,
)


def write(log: PartitionLog, epoch: int, now_ms: int, keys: list[bytes]) -> None:
    for key in keys:
        made = memoryview(build_batch([(now_ms, key, b"%d" % now_ms, ())]))
        log.append_as_leader(made, leader_epoch=epoch, now_ms=now_ms)
    log.advance_high_watermark(log.log_end_offset)


def compact(log: PartitionLog, now_ms: int) -> None:
    compact_all(log, now_ms, Limits(secret=bytes(16)))


def records(log: PartitionLog) -> list[tuple[int, bytes | None, int]]:
    """Offset, key and timestamp."""
    return [
        (each.offset, each.key, each.timestamp)
        for header, content in read_all(log)
        for each in decode_batch(content, header._replace(position=0))
    ]


def filled(disk: SimDisk, config: LogConfig) -> PartitionLog:
    """Old records in epoch 0, new ones in epoch 3. Some keys are only old, some only new, some both."""
    log = open_log(disk, config=config)
    write(log, 0, OLD_MS, [b"both-%d" % (number % 4) for number in range(30)])
    write(log, 0, OLD_MS, [b"old-%d" % number for number in range(30)])
    log.roll(OLD_MS)
    write(log, 3, NEW_MS, [b"both-%d" % (number % 4) for number in range(30)])
    write(log, 3, NEW_MS, [b"new-%d" % number for number in range(20)])
    return log


def test_log_is_compacted_and_deleted_by_time(disk: SimDisk) -> None:
    log = filled(disk, BOTH)
    active = log.segments[-1].base_offset
    compact(log, NEW_MS)
    keys = [key for offset, key, _ in records(log) if offset < active]
    assert len(keys) == len(set(keys)), "compacted: a key has one value"
    assert sum(key.startswith(b"old") for key in keys if key is not None) == 30
    assert log.log_start_offset == 0, "compaction does not move the log start"

    removed = log.enforce_retention(NEW_MS + 1)
    assert {segment.reason for segment in removed} == {"time"}
    for segment in removed:
        segment.delete()
    assert log.log_start_offset == log.segments[0].base_offset >= max(segment.next_offset for segment in removed)
    assert log.epochs.entries[-1][0] == 3
    assert log.epochs.entries[0][1] == log.log_start_offset
    left = records(log)
    assert {time for _, _, time in left} == {NEW_MS}, "deleted: no record is older than the retention time"
    newest = {key: offset for offset, key, _ in left}
    assert newest.keys() == {b"both-%d" % n for n in range(4)} | {b"new-%d" % n for n in range(20)}

    # Compaction continues after the log start, also after a restart.
    write(log, 3, NEW_MS + 1, [b"new-%d" % number for number in range(20)])
    compact(log, NEW_MS + 1)
    start, active = log.log_start_offset, log.segments[-1].base_offset
    keys = [key for offset, key, _ in records(log) if offset < active]
    assert len(keys) == len(set(keys))
    found, end = records(log), log.log_end_offset
    log.close()
    log = open_log(disk, config=BOTH, clean=True, recovery_point=end, log_start_offset=start)
    assert (log.log_start_offset, log.log_end_offset, records(log)) == (start, end, found)


def test_log_is_compacted_and_deleted_by_size(disk: SimDisk) -> None:
    config = LogConfig(
        segment_bytes=500,
        index_interval_bytes=100,
        cleanup_policy=frozenset({"compact", "delete"}),
        retention_ms=-1,
        retention_bytes=1_200,
    )
    log = filled(disk, config)
    compact(log, NEW_MS)
    assert log.size_bytes > 2 * config.retention_bytes
    assert {segment.reason for segment in log.enforce_retention(NEW_MS)} == {"size"}
    assert config.retention_bytes <= log.size_bytes < config.retention_bytes + config.segment_bytes
    assert records(log)[-1][1] == b"new-19"


def test_compact_policy_alone_deletes_nothing_by_time_or_size(disk: SimDisk) -> None:
    log = filled(disk, COMPACT)
    before = records(log)
    assert log.enforce_retention(NEW_MS * 1_000) == []
    log.config = LogConfig(segment_bytes=500, cleanup_policy=frozenset({"compact"}), retention_bytes=1)
    assert log.enforce_retention(NEW_MS * 1_000) == []
    assert records(log) == before
    # Records deleted by DeleteRecords are removed with either policy.
    assert log.advance_log_start(40)
    assert {segment.reason for segment in log.enforce_retention(NEW_MS)} == {"log start"}
    assert records(log) == [each for each in before if each[0] >= log.segments[0].base_offset and each[0] >= 40]


def test_segments_deleted_by_retention_before_a_pass_starts(disk: SimDisk) -> None:
    """Nothing remains to be done: before, the log was marked as uncompactable and never checked again."""
    log = filled(disk, BOTH)
    active = log.segments[-1].base_offset
    due = Due(0, active, 1, 1.0)
    log.advance_log_start(active)
    log.enforce_retention(NEW_MS)
    assert len(log.segments) == 1
    work = compaction.begin(log, due, now_ms=NEW_MS, limits=Limits(secret=bytes(16)))
    assert run(log, work) == []
    assert work.end == active


def test_flush_keeps_the_index_of_a_segment_replaced_meanwhile(disk: SimDisk) -> None:
    """Indexes of a newest segment that a clean close saved: the segment ends after the start, and a flush begins."""
    config = LogConfig(segment_bytes=1 << 20, index_interval_bytes=100, cleanup_policy=frozenset({"compact"}))
    log = open_log(disk, config=config)
    write(log, 0, OLD_MS, [b"same"] * 30)
    log.close(clean=True)
    log = open_log(disk, config=config, clean=True, recovery_point=log.log_end_offset)
    log.roll(OLD_MS)
    work = log.flush_work(OLD_MS)
    assert work is not None
    due = Due(0, log.segments[-1].base_offset, 1, 1.0)
    assert run(log, compaction.begin(log, due, now_ms=NEW_MS, limits=Limits(secret=bytes(16))))
    work.run()
    segment = log.segments[0]
    assert disk.peek(segment.stem + ".index") == segment.indexes()[0].encode()
