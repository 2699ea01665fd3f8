"""The checkpoints of a log directory belong to one incarnation of a partition directory: a recreated partition inherits
nothing from a former directory of its name, with a kill or a power loss at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final
from uuid import UUID

import pytest

from fenceline.ids import TopicPartition
from fenceline.log.core.checkpoints import read_incarnations, read_offsets
from fenceline.log.core.config import LogConfig
from fenceline.log.core.disk import replace_file
from fenceline.log.core.errors import CorruptLog
from fenceline.log.directories.future_log import FutureLog
from fenceline.log.directories.log_dir import LogDir
from fenceline.log.directories.log_dir_offsets import (
    CLEANED,
    FIRST_SEGMENTS,
    HIGH_WATERMARKS,
    INCARNATIONS,
    LOG_STARTS,
    RECOVERY_POINTS,
    SegmentsAtStop,
    read_first_segments,
    write_first_segments,
)
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.testing.sim_disk import SimDisk
from fenceline.testing.simulation.disk import LifeDisk
from fenceline.testing.simulation.scheduler import ProcessEnded
from tests.log.helpers import TP, append, batch, read_all
from tests.support.lives import a_life

HOME: Final = "/d"
OTHER: Final = "/e"
META: Final = b"version=1\ncluster.id=AAAAAAAAQACAAAAAAAAAAA\nnode.id=4\ndirectory.id=mAElyxrEQ3mw_ELWKg5Mow\n"
CONFIG: Final = LogConfig(segment_bytes=400, index_interval_bytes=100)
FIRST_ID, SECOND_ID = UUID(int=71), UUID(int=72)
ALL: Final = (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_STARTS, CLEANED)


def machine(seed: int = 0) -> SimDisk:
    disk = SimDisk(seed)
    for path in (HOME, OTHER):
        disk.mkdir(path)
        replace_file(disk, f"{path}/meta.properties", META)
    return disk


def opened(disk: SimDisk | LifeDisk, path: str = HOME) -> LogDir:
    return LogDir.open(path, disk)


def killed(log_dir: LogDir) -> LogDir:
    """Kill the process and start the next one."""
    log_dir.close(clean=False)
    return LogDir.open(log_dir.path, log_dir.disk)


def partition(log_dir: LogDir, topic_id: UUID = FIRST_ID) -> PartitionLog:
    return log_dir.partition(TP, topic_id, CONFIG, now_ms=1_000)


def records_of(log: PartitionLog) -> dict[int, bytes]:
    """Batches by their base offset."""
    return {header.base_offset: content for header, content in read_all(log)}


def flush(log: PartitionLog) -> None:
    work = log.flush_work(1_000)
    if work is not None:
        work.run()


def used(log_dir: LogDir, records: int = 100, start: int = 50) -> PartitionLog:
    """A log with entries in every checkpoint, all of them durable."""
    log = partition(log_dir)
    for _ in range(records):
        append(log)
    flush(log)
    log.advance_log_start(start)
    log_dir.offsets.cleaned[TP] = 30
    log_dir.checkpoint_work()()
    assert read_offsets(log_dir.disk, f"{log_dir.path}/{RECOVERY_POINTS}") == {TP: records}
    return log


def deleted(log_dir: LogDir) -> None:
    removed = log_dir.delete_partition(TP)
    assert removed is not None
    removed.delete()


def set_aside(log_dir: LogDir) -> None:
    assert log_dir.set_aside_stray(TP) is not None


def moved_away(log_dir: LogDir) -> None:
    """Move the log to another directory; the copy there replaces it."""
    target = opened(log_dir.disk, OTHER)  # type: ignore[arg-type]
    current = log_dir.open_logs[TP]
    future = FutureLog.open(log_dir, target, current, path=None, config=CONFIG, now_ms=0)
    while (stretch := future.next_range(current)) is not None:
        future.copy(stretch, 0)
    future.follow_offsets(current)
    future.flush(0)
    assert future.append_rest(current, 0)
    _, removed = future.replace(current, CONFIG)
    assert removed is not None
    removed.delete()
    target.close(clean=False)


GONE: Final = (deleted, set_aside, moved_away)


@pytest.mark.parametrize("gone", GONE)
@pytest.mark.parametrize("topic_id", [FIRST_ID, SECOND_ID], ids=["the same topic", "another topic"])
@pytest.mark.parametrize("loses_power", [False, True])
def test_recreated_partition_inherits_no_offsets(
    gone: Callable[[LogDir], None], topic_id: UUID, loses_power: bool
) -> None:
    """Before the next checkpoint: the one on the disk still describes the former directory of this name."""
    disk = machine()
    log_dir = opened(disk)
    used(log_dir)
    gone(log_dir)
    log = partition(log_dir, topic_id)
    for _ in range(10):
        append(log)
    flush(log)
    before = records_of(log)
    assert read_offsets(disk, f"{HOME}/{LOG_STARTS}") == {TP: 50}, "no checkpoint was written in between"
    if loses_power:
        disk.crash()
        log_dir = opened(disk)
    else:
        log_dir = killed(log_dir)
    log = partition(log_dir, topic_id)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (0, 10, 0)
    assert records_of(log) == before
    assert log_dir.offsets.cleaned == {}
    assert log_dir.offsets.safe_recovery_point(TP) == 0
    assert log_dir.high_watermark(TP) == log_dir.checkpointed_high_watermark(TP) == 0
    log_dir.checkpoint_work()()
    assert read_offsets(disk, f"{HOME}/{LOG_STARTS}") == {}


def test_torn_end_of_a_recreated_topic_is_truncated_and_not_reported_as_damage() -> None:
    """It is below the recovery point of the former directory of this name."""
    disk = machine()
    log_dir = opened(disk)
    used(log_dir)
    deleted(log_dir)
    log = partition(log_dir, SECOND_ID)
    append(log, 3)
    append(log, 3)
    segment = log.segments[-1]
    disk.truncate(segment.fd, segment.size_bytes - 5)
    log = partition(killed(log_dir), SECOND_ID)
    assert (log.log_start_offset, log.log_end_offset) == (0, 3)


def test_stray_directory_does_not_get_the_high_watermark_of_its_successor() -> None:
    """Losses of a stray directory are classified by its own high watermark, not by that of its successor."""
    disk = machine()
    log_dir = opened(disk)
    used(log_dir)
    set_aside(log_dir)
    append(partition(log_dir, SECOND_ID), 7)
    log_dir.checkpoint_work()()
    log_dir = killed(log_dir)
    assert log_dir.high_watermark(TP) == 7
    assert [stray.high_watermark for stray in log_dir.strays()] == [0]


@pytest.mark.parametrize("clean", [False, True])
def test_renamed_stray_directory_is_not_mistaken_for_the_current_one(clean: bool) -> None:
    """An operator renames a stray directory back. After a clean shutdown the checkpoints describe the other directory;
    after a kill they still describe this one."""
    disk = machine()
    log_dir = opened(disk)
    old = used(log_dir)
    records = old.log_end_offset
    stray = log_dir.set_aside_stray(TP)
    assert stray is not None
    log = partition(log_dir)
    for _ in range(200):
        append(log)
    log.advance_log_start(150)
    log_dir.close(clean=clean)
    disk.rename(f"{HOME}/rain-0", f"{HOME}/rain-1")
    disk.rename(stray.path, f"{HOME}/rain-0")
    log = partition(opened(disk))
    assert (log.log_start_offset, log.log_end_offset) == (0 if clean else 50, records)


def test_copy_of_a_partition_has_its_own_entries() -> None:
    """An abandoned copy, and its name in the other directory: the next copy starts without entries."""
    disk = machine()
    source, target = opened(disk), opened(disk, OTHER)
    current = used(source)
    first = FutureLog.open(source, target, current, path=None, config=CONFIG, now_ms=0)
    target.future_logs[TP] = first.log
    while (stretch := first.next_range(current)) is not None:
        first.copy(stretch, 0)
    first.follow_offsets(current)
    first.flush(0)
    target.checkpoint_work()()
    assert read_offsets(disk, f"{OTHER}/{RECOVERY_POINTS}") == {TP: 100}
    assert first.abandon() is not None
    second = FutureLog.open(source, target, current, path=None, config=CONFIG, now_ms=0)
    target.future_logs[TP] = second.log
    second.start_at(0, 0)
    stretch = second.next_range(current)
    assert stretch is not None
    second.copy(stretch, 0)
    segment = second.log.segments[-1]
    disk.truncate(segment.fd, segment.size_bytes - 5)
    path, end = second.log.directory, second.log.log_end_offset
    again = killed(target)
    assert 0 < FutureLog.open(source, again, current, path=path, config=CONFIG, now_ms=0).log.log_end_offset < end


@pytest.mark.parametrize("clean", [False, True])
def test_checkpoints_of_kafka_are_used_only_after_its_clean_shutdown(clean: bool) -> None:
    """They name no incarnation. After a kill: recovery from 0, the log start of the log, no high watermark."""
    disk = machine()
    log_dir = opened(disk)
    used(log_dir)
    log_dir.close(clean=clean)
    rewrite_as_kafka(disk)
    log_dir = opened(disk)
    log = partition(log_dir)
    first = log.segments[0].base_offset
    assert log.log_end_offset == 100
    assert (log.log_start_offset, log.high_watermark) == ((50, 100) if clean else (first, first))
    log_dir.checkpoint_work()()
    again = partition(killed(log_dir))
    assert (again.log_start_offset, again.high_watermark) == (log.log_start_offset, log.high_watermark)


def rewrite_as_kafka(disk: SimDisk) -> None:
    disk.unlink(f"{HOME}/{INCARNATIONS}")
    replace_file(disk, f"{HOME}/rain-0/partition.metadata", b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAARw\n")


def test_directory_created_by_kafka_after_its_clean_shutdown() -> None:
    """The topic was deleted and recreated by Kafka: its files describe the new directory."""
    disk = machine()
    log_dir = opened(disk)
    used(log_dir)
    log_dir.close()
    named = disk.peek(f"{HOME}/{INCARNATIONS}")
    assert named is not None
    rewrite_as_kafka(disk)
    replace_file(disk, f"{HOME}/{INCARNATIONS}", named)
    log = partition(opened(disk))
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (50, 100, 100)


def test_entries_of_unopened_partitions_of_kafka_survive_a_crash() -> None:
    """Kafka's clean shutdown makes their owner certain; the partition may not have been opened since."""
    disk = machine()
    log_dir = opened(disk)
    used(log_dir)
    log_dir.close()
    rewrite_as_kafka(disk)
    log_dir = opened(disk)
    log_dir.checkpoint_work()()
    log = partition(killed(log_dir))
    assert (log.log_start_offset, log.high_watermark) == (50, 100)


def test_missing_partition_metadata_is_written_again() -> None:
    """Without it nothing proves which directory the entries belong to."""
    disk = machine()
    log_dir = opened(disk)
    used(log_dir)
    disk.unlink(f"{HOME}/rain-0/partition.metadata")
    log_dir = killed(log_dir)
    log = partition(log_dir)
    assert log.log_start_offset == log.segments[0].base_offset
    assert log.flush_due(1_000)
    flush(log)
    log_dir.checkpoint_work()()
    assert log_dir.identity_of(log.directory) == log.identity
    assert partition(killed(log_dir)).high_watermark == log.high_watermark


def test_incarnation_checkpoint_is_written_when_directories_are_added_or_removed() -> None:
    disk = machine()
    log_dir = opened(disk)
    log = used(log_dir)
    path = f"{HOME}/{INCARNATIONS}"
    assert read_incarnations(disk, path) == {TP: log.identity.text}
    disk.unlink(path)
    append(log)
    log_dir.checkpoint_work()()
    assert disk.peek(path) is None, "an append does not write it"
    deleted(log_dir)
    log_dir.checkpoint_work()()
    assert read_incarnations(disk, path) == {}


def test_entry_without_a_directory_is_removed() -> None:
    disk = machine()
    log_dir = opened(disk)
    used(log_dir)
    deleted(log_dir)
    log_dir = killed(log_dir)
    assert log_dir.orphans == [TP]
    assert log_dir.offsets.partitions == set()
    log_dir.checkpoint_work()()
    assert [read_offsets(disk, f"{HOME}/{name}") for name in ALL] == [{}] * 4


def test_entry_of_a_directory_missing_after_a_clean_shutdown_is_kept() -> None:
    """Until the partition is created again, also across a clean shutdown and start."""
    disk = machine()
    log_dir = opened(disk)
    used(log_dir)
    log_dir.close()
    disk.rename(f"{HOME}/rain-0", "/elsewhere")
    for _ in range(2):
        log_dir = opened(disk)
        assert (log_dir.missing, log_dir.orphans) == ({TP: 100}, [])
        log_dir.close()
    log_dir = opened(disk)
    append(partition(log_dir), 4)
    log = partition(killed(log_dir))
    assert (log.log_start_offset, log.log_end_offset) == (0, 4), "the recreated partition inherits nothing"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (LOG_STARTS, "rain 0 -1"),
        (LOG_STARTS, "rain 0 900000000000"),
        (LOG_STARTS, f"rain 0 {2**70}"),
        (LOG_STARTS, "rain 0 40\nrain 0 50"),
        (RECOVERY_POINTS, "rain 0 -1"),
        (RECOVERY_POINTS, "rain 0 900000000000"),
        (RECOVERY_POINTS, f"rain 0 {2**70}"),
        (RECOVERY_POINTS, "rain 0 10\nrain 0 100"),
        (HIGH_WATERMARKS, "rain 0 -7"),
        (HIGH_WATERMARKS, "rain 0 900000000000"),
        (HIGH_WATERMARKS, "rain 0 1\nrain 0 2"),
        (CLEANED, "rain 0 -7"),
        (CLEANED, "rain 0 900000000000"),
        (INCARNATIONS, "rain 0 AAAAAAAAAAAAAAAAAAAAAA"),
        (INCARNATIONS, "rain 0 AAAAAAAAAAAAAAAAAAAAAA\nrain 0 AAAAAAAAAAAAAAAAAAAAAB"),
    ],
)
@pytest.mark.parametrize("clean", [False, True])
def test_invalid_checkpoint_line_loses_no_record(name: str, line: str, clean: bool) -> None:
    disk = machine()
    log_dir = opened(disk)
    log = used(log_dir)
    there = records_of(log)
    log_dir.close(clean=clean)
    rows = line.split("\n")
    replace_file(disk, f"{HOME}/{name}", f"0\n{len(rows)}\n{line}\n".encode())
    log_dir = opened(disk)
    log = partition(log_dir)
    assert log.log_end_offset == 100
    assert log.log_start_offset <= 50
    assert {offset: content for offset, content in records_of(log).items() if offset >= 50} == there
    assert log.log_start_offset <= log.high_watermark <= 100
    log_dir.checkpoint_work()()
    append(log)
    assert partition(killed(log_dir)).log_end_offset == 101


@pytest.mark.parametrize("line", ["rain 0 -1", f"rain 0 {2**63}", "rain 0 3\nrain 0 4"])
def test_invalid_checkpoint_line_does_not_affect_the_others(line: str) -> None:
    disk = machine()
    rows = line.split("\n")
    replace_file(disk, f"{HOME}/{HIGH_WATERMARKS}", f"0\n{len(rows) + 2}\na 0 5\n{line}\nb 0 6\n".encode())
    rejected: list[str] = []
    found = read_offsets(disk, f"{HOME}/{HIGH_WATERMARKS}", rejected)
    assert found == {TopicPartition("a", 0): 5, TopicPartition("b", 0): 6}
    assert len(rejected) == 1
    assert rejected[0].startswith(f"{HOME}/{HIGH_WATERMARKS}: rain-0 ")
    same = f"0\n2\n{rows[0].replace('-1', '1').replace(str(2**63), '1')}\nrain 0 {'3' if len(rows) > 1 else '1'}\n"
    replace_file(disk, f"{HOME}/{HIGH_WATERMARKS}", same.encode())
    assert len(read_offsets(disk, f"{HOME}/{HIGH_WATERMARKS}")) == 1, "two equal lines are not a contradiction"


# -- B2: the durable recovery point and the log's end ---


def follower_batch(base: int, records: int, size: int = 9) -> memoryview:
    return batch(records, size=size, base_offset=base, leader_epoch=0)


@pytest.mark.parametrize("kept", [0, 5, 64, 200])
def test_torn_append_into_a_log_that_restarted_inside_a_batch(kept: int) -> None:
    """A follower starts at a leader's log start inside a batch: that append starts below the end offset of the log, and
    a crash leaves `kept` bytes of it."""
    disk = machine()
    log_dir = opened(disk)
    log = partition(log_dir)
    log.append_as_follower(follower_batch(0, 10))
    flush(log)
    log_dir.checkpoint_work()()
    log.truncate_fully_and_start_at(50)
    log_dir.checkpoint_work()()
    assert read_offsets(disk, f"{HOME}/{RECOVERY_POINTS}") == {TP: 0}
    log.append_as_follower(follower_batch(40, 20, size=1))
    assert (log.log_start_offset, log.log_end_offset) == (40, 60)
    disk.truncate(log.segments[-1].fd, kept)
    log_dir = killed(log_dir)
    assert partition(log_dir).log_end_offset <= 50


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_append_below_the_durable_recovery_point_is_rejected(role: str) -> None:
    """A truncated log accepts appends after the checkpoint is durable; the log itself enforces this."""
    disk = machine()
    log_dir = opened(disk)
    log = used(log_dir, start=0)
    assert log.durable_recovery_point == 100
    log.truncate_to(60)

    def write() -> None:
        if role == "leader":
            log.append_as_leader(batch(), leader_epoch=0, now_ms=0)
        else:
            log.append_as_follower(follower_batch(60, 1))

    with pytest.raises(Exception, match="recovery point 100") as caught:
        write()
    assert not getattr(caught.value, "disk_full", True)
    assert log.log_end_offset == 60
    assert log.offline is None
    log_dir.checkpoint_work()()
    write()
    assert (log.log_end_offset, log.durable_recovery_point) == (61, 60)


def test_failed_checkpoint_does_not_lower_the_durable_recovery_point() -> None:
    disk = machine()
    log_dir = opened(disk)
    log = used(log_dir, start=0)
    log.truncate_to(60)
    disk.fail("rename", f"{RECOVERY_POINTS}.tmp")
    with pytest.raises(Exception, match=RECOVERY_POINTS):
        log_dir.checkpoint_work()()
    assert log.durable_recovery_point == 100
    disk.heal()
    log_dir.checkpoint_work()()
    assert log.durable_recovery_point == 60


# -- any order, any crash ---


@dataclass
class _Incarnation:
    """The expected content of one incarnation of a partition directory."""

    topic_id: UUID
    batches: list[bytes] = field(default_factory=list)
    """One record each; the first has offset 0."""
    start: int = 0
    safe: int = 0
    """Offsets that were flushed."""


@pytest.mark.parametrize("seed", range(150))
def test_random_incarnations_of_one_partition_name(seed: int) -> None:
    """Topics of one name are created and deleted, replicas move away and return; only a power loss loses records, and
    no flushed ones. No log start and no high watermark is of another incarnation."""
    rng = Random(f"names {seed}")
    disk = machine(seed)
    model = _Incarnation(FIRST_ID)
    number = 100
    for _ in range(rng.randint(2, 6)):
        life = a_life(disk, seed, rng.randint(5, 300) if rng.random() < 0.6 else -1)
        loses_power = False
        try:
            log_dir = opened(life)
            log = _compare(log_dir, model)
            checkpoints = rng.choice((0.0, 0.05, 0.3))
            for _ in range(rng.randint(1, 60)):
                draw = rng.random()
                if draw < checkpoints:
                    log_dir.checkpoint_work()()
                elif draw < 0.4:
                    content = batch(size=rng.randint(1, 60))
                    model.batches.append(b"")  # may be complete if the machine stops during the write
                    log.append_as_leader(content, leader_epoch=0, now_ms=0)
                    model.batches[-1] = bytes(content)
                    log.advance_high_watermark(log.log_end_offset)
                elif draw < 0.55:
                    end = log.log_end_offset
                    flush(log)
                    model.safe = end
                elif draw < 0.65 and log.log_end_offset:
                    model.start = max(model.start, rng.randint(0, log.log_end_offset))
                    log.advance_log_start(model.start)
                elif draw < 0.7:
                    for removed in log.enforce_retention(0):
                        removed.delete()
                elif draw < 0.8:
                    gone, kept = rng.choice((deleted, set_aside)), model
                    number += rng.randint(0, 1)
                    model = _Incarnation(UUID(int=number))
                    if kept.batches and log.is_written:
                        gone(log_dir)
                        make_renames_durable(life)
                    else:
                        log_dir.delete_partition(TP)
                    log = partition(log_dir, model.topic_id)
            clean = rng.random() < 0.3
            log_dir.close(clean=clean)
            model.safe = len(model.batches) if clean else model.safe
        except ProcessEnded:
            loses_power = True
        if not loses_power and rng.random() < 0.3:
            life.forget()
            disk.crash()
            loses_power = True
        life.end()
        if loses_power:
            model = _after_power(disk, model)
    _compare(opened(disk), model)


def make_renames_durable(life: LifeDisk) -> None:
    """The renames of a removed directory are durable: directories that return after a power loss have another test."""
    life.fsync_dir(HOME)


def _compare(log_dir: LogDir, model: _Incarnation) -> PartitionLog:
    found = log_dir.topic_id_of(log_dir.partition_path(TP))
    if found not in (None, model.topic_id):
        log_dir.set_aside_stray(TP)
    log = partition(log_dir, model.topic_id)
    assert log.log_start_offset <= max(model.start, 0), "log start of another incarnation"
    assert log.high_watermark <= len(model.batches)
    assert log.log_end_offset == len(model.batches) or not model.batches[log.log_end_offset :]
    contents = records_of(log)
    assert all(contents.get(offset) == model.batches[offset] for offset in range(model.start, len(model.batches))), (
        "records are lost"
    )
    log.advance_high_watermark(log.log_end_offset)
    return log


def _after_power(disk: SimDisk, model: _Incarnation) -> _Incarnation:
    """The log may have fewer records than were written, but has all flushed ones."""
    log_dir = opened(disk)
    where = log_dir.partition_path(TP)
    found = log_dir.topic_id_of(where) if disk.stat(where) is not None else None
    if found != model.topic_id:
        assert not model.safe, "a flushed directory is lost"
        if disk.stat(where) is not None:
            log_dir.set_aside_stray(TP)
        log_dir.close(clean=False)
        return _Incarnation(model.topic_id)
    try:
        log = partition(log_dir, model.topic_id)
    except CorruptLog as error:
        raise AssertionError(f"offline: {error.message}") from error
    end = log.log_end_offset
    if not model.batches:
        # The machine stopped during the rename: the former directory is back.
        model.batches, model.start = [b""] * end, log.log_start_offset
    assert model.safe <= end <= len(model.batches), "flushed records are lost"
    for offset, content in records_of(log).items():
        assert content == model.batches[offset] or not model.batches[offset]
        model.batches[offset] = content
    assert log.log_start_offset <= model.start
    del model.batches[end:]
    model.start = min(model.start, end)
    log_dir.close(clean=False)
    return model


def test_first_segments_are_read_only_with_the_broker_epoch_that_wrote_them() -> None:
    disk = machine()
    segments = {TP: SegmentsAtStop(7, 3), TopicPartition("wind", 3): SegmentsAtStop(0, None)}
    write_first_segments(disk, HOME, 12, segments)
    assert read_first_segments(disk, HOME, 12) == segments
    assert read_first_segments(disk, HOME, 13) == {}
    assert read_first_segments(disk, HOME, -1) == {}


def test_first_segments_without_a_file_count_and_damaged_rows() -> None:
    disk = machine()
    for rows, expected in (
        (b'[["rain",0,7]]', {TP: SegmentsAtStop(7, None)}),
        (b'[["rain",0]]', {}),
        (b'[["rain",0,7,"x"]]', {}),
    ):
        replace_file(disk, f"{HOME}/{FIRST_SEGMENTS}", b'{"version":0,"brokerEpoch":12,"firstSegments":' + rows + b"}")
        assert read_first_segments(disk, HOME, 12) == expected
