"""A log's copy in another directory replaces it, with a crash at any step: no flushed record is lost, and the next
start finds one log.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Final
from uuid import UUID

import pytest
from immutables import Map

from fenceline.ids import TopicPartition
from fenceline.log.core.config import LogConfig
from fenceline.log.core.errors import StorageError
from fenceline.log.directories.future_log import FutureLog
from fenceline.log.directories.log_dir import LogDir
from fenceline.log.directories.log_dirs import LogDirs
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.metadata.image import MetadataImage
from fenceline.node.metadata.format import format_directory
from fenceline.node.replication.replica_directories import ReplicaDirectories
from fenceline.quorum.control_records import VoterEndpoint
from fenceline.records.batch import iter_headers
from fenceline.records.build import build_batch
from fenceline.testing.sim_disk import SimDisk
from fenceline.testing.simulation.disk import LifeDisk
from fenceline.testing.simulation.scheduler import ProcessEnded
from tests.node.api.handlers.fakes import broker_image, image_of, partition, topic_image
from tests.support.lives import a_life

TOPIC: Final = "rain"
WHERE: Final = TopicPartition(TOPIC, 0)
FIRST, SECOND = "/data", "/data2"
CLUSTER: Final = "AAAAAAAAQACAAAAAAAAAAA"
CONFIG: Final = LogConfig(segment_bytes=400)


def formatted(seed: int) -> SimDisk:
    disk = SimDisk(seed)
    for path in (FIRST, SECOND):
        disk.mkdir(path)
    format_directory(
        (FIRST, SECOND),
        cluster_id=CLUSTER,
        node_id=1,
        voter_endpoint=VoterEndpoint("CONTROLLER", "localhost", 9093),
        disk=disk,
        now_ms=0,
    )
    return disk


def opened(disk: SimDisk | LifeDisk) -> tuple[LogDir, LogDir]:
    return LogDir.open(FIRST, disk, node_id=1), LogDir.open(SECOND, disk, node_id=1)


def image(place: UUID | None) -> MetadataImage:
    """Metadata that assigns the replica to the directory with this id."""
    assert place is not None
    alone = partition((1,), leader=1, directories=(place,))
    found = image_of([topic_image(TOPIC, alone, number=7)], [broker_image(1)])
    return replace(found, features=Map({"metadata.version": 30}))


def write(log: PartitionLog, records: int, epoch: int = 1) -> None:
    for number in range(records):
        batch = build_batch([(number, b"k", b"v" * (number % 7), ())])
        log.append_as_leader(memoryview(batch), leader_epoch=epoch, now_ms=0)


def contents(log: PartitionLog, disk: SimDisk) -> bytes:
    return b"".join(disk.peek(segment.path, 0, segment.size_bytes) or b"" for segment in log.segments)


def copy_all(future: FutureLog, current: PartitionLog) -> None:
    while (copy_range := future.next_range(current)) is not None:
        future.copy(copy_range, 0)


def move(
    directories: tuple[LogDir, ...],
    current: PartitionLog,
    path: str | None,
    before_step: Callable[[], None] = lambda: None,
) -> None:
    """Move the log with the steps of a node, in their order."""
    source, target = directories
    future = FutureLog.open(source, target, current, path=path, config=CONFIG, now_ms=0)
    target.future_logs[WHERE] = future.log
    end = future.truncation_target(current)
    if end is not None:
        future.drop(end, current.log_start_offset)
    copy_all(future, current)
    future.follow_offsets(current)
    future.flush(0)
    target.checkpoint_work()()
    write(current, 3, epoch=2)
    assert future.append_rest(current, 0)
    before_step()
    log, removed = future.replace(current, CONFIG)
    write(log, 2, epoch=2)
    future.sync_renames()
    for log_dir in directories:
        log_dir.checkpoint_work()()
    work = log.flush_work()
    if work is not None:
        work.run()
    assert removed is not None
    removed.delete()


def start_again(disk: SimDisk, place: UUID | None) -> tuple[LogDirs, list[str]]:
    """Open the directories as the next start does; returns the paths of copies that continue."""
    log_dirs = LogDirs(opened(disk))
    directories = ReplicaDirectories(1, log_dirs, lambda: image(place), lambda *_: None, lambda: 0)
    pending_deletions = [removed for log_dir in log_dirs for removed in log_dir.pending_deletions()]
    for log_dir in log_dirs:
        directories.scan(log_dir)
    copies = [copy.path for log_dir in log_dirs for copy in directories.resolve_copies(log_dir)]
    for removed in pending_deletions:
        removed.delete()
    return log_dirs, copies


@pytest.mark.parametrize("seed", range(80))
def test_crash_at_any_step(seed: int) -> None:
    """After a restart there is one log with every flushed record; the move is complete, or continues and completes."""
    rng = Random(seed)
    disk = formatted(seed)
    topic_id = image(UUID(int=5)).topics_by_name[TOPIC].id

    life = a_life(disk, seed)
    directories = opened(life)
    current = directories[0].partition(WHERE, topic_id, CONFIG)
    write(current, 40)
    current.advance_high_watermark(40)
    work = current.flush_work()
    assert work is not None
    work.run()
    directories[0].checkpoint_work()()
    safe = contents(current, disk)
    if seed % 2:
        life.crash_after(rng.randint(1, 120))
    try:
        # The directories are renamed by the first few changes of the last step.
        move(directories, current, None, lambda: None if seed % 2 else life.crash_after(rng.randint(1, 6)))
    except ProcessEnded:
        pass
    else:
        life.forget()
        disk.crash()
    # The controller knows the new directory before the last step; a crash during the copy may precede its update.
    log_dirs, copies = start_again(disk, directories[1].directory_id)
    holder = log_dirs.holder(WHERE)
    assert holder is not None, "one directory holds the log"
    log = holder.partition(WHERE, topic_id, CONFIG)
    assert contents(log, disk)[: len(safe)] == safe
    assert log.epochs.entries[0] == (1, 0)
    if holder is log_dirs.opened[0]:
        assert len(copies) <= 1
        move(log_dirs.opened, log, copies[0] if copies else None)
        log = log_dirs.opened[1].open_logs[WHERE]
    else:
        assert copies == []
    assert contents(log, disk)[: len(safe)] == safe
    assert log.log_end_offset >= 40
    for log_dir in log_dirs:
        log_dir.close()
    again, copies = start_again(disk, directories[1].directory_id)
    assert copies == []
    assert again.holder(WHERE) is again.opened[1]
    found = again.opened[1].partition(WHERE, topic_id, CONFIG)
    assert found.log_end_offset == log.log_end_offset


@pytest.mark.parametrize("has_segments", [False, True])
def test_copy_keeps_epochs_whose_records_were_all_compacted(has_segments: bool) -> None:
    """Also before it becomes the log: a crash then leaves the files that the copy has written."""
    disk = formatted(1)
    source, target = opened(disk)
    topic_id = image(UUID(int=5)).topics_by_name[TOPIC].id
    current = source.partition(WHERE, topic_id, CONFIG)
    write(current, 3)
    if has_segments:
        current.log_end_offset = 20
        current.roll(0)
    left = build_batch([(0, b"k", b"v", ())], base_offset=20, leader_epoch=6)
    current.append_as_follower(memoryview(left), epoch_starts=((4, 8), (6, 15)))
    assert current.epochs.entries == ((1, 0), (4, 8), (6, 15))
    current.advance_high_watermark(21)
    future = FutureLog.open(source, target, current, path=None, config=CONFIG, now_ms=0)
    copy_all(future, current)
    assert future.log.epochs.entries == current.epochs.entries
    future.flush(0)
    directory = future.log.directory
    assert b"4 8\n6 15\n" in (disk.peek(f"{directory}/leader-epoch-checkpoint") or b"")
    future.follow_offsets(current)
    assert future.append_rest(current, 0)
    log, _ = future.replace(current, CONFIG)
    assert log.epochs.entries == ((1, 0), (4, 8), (6, 15))
    assert log.flush_due(0), "the epochs are due for a flush"


def test_copy_of_a_log_whose_first_segment_is_empty_starts_where_the_log_does() -> None:
    """Compaction has emptied it. With a start at the next one, consumers would be out of range after a restart."""
    disk = formatted(1)
    source, target = opened(disk)
    topic_id = image(UUID(int=5)).topics_by_name[TOPIC].id
    current = source.partition(WHERE, topic_id, CONFIG)
    current.start_segment(0, 0)
    current.log_end_offset = 20
    current.start_segment(20, 0)
    current.append_as_follower(memoryview(build_batch([(0, b"k", b"v", ())], base_offset=20, leader_epoch=6)))
    current.advance_high_watermark(21)
    future = FutureLog.open(source, target, current, path=None, config=CONFIG, now_ms=0)
    copy_all(future, current)
    assert [segment.base_offset for segment in future.log.segments] == [0]
    future.follow_offsets(current)
    assert future.append_rest(current, 0)
    log, _ = future.replace(current, CONFIG)
    assert (log.log_start_offset, log.log_end_offset) == (0, 21)


@pytest.mark.parametrize("refused", ["partition.metadata.tmp", ".log"])
def test_copy_that_fails_to_open_leaves_no_directory(refused: str) -> None:
    """A leftover directory prevented a clean shutdown of its data directory (operations, seed 31000032)."""
    disk = formatted(3)
    source, target = opened(disk)
    current = source.partition(WHERE, UUID(int=7), CONFIG)
    write(current, 3)
    disk.fail("open", refused, errno.ENOSPC)
    with pytest.raises(StorageError):
        FutureLog.open(source, target, current, path=None, config=CONFIG, now_ms=0)
    disk.heal()
    assert [name for name in disk.listdir(SECOND) if name.startswith(TOPIC)] == []


def test_copy_whose_first_append_failed_leaves_no_directory() -> None:
    disk = formatted(3)
    source, target = opened(disk)
    current = source.partition(WHERE, UUID(int=7), CONFIG)
    future = FutureLog.open(source, target, current, path=None, config=CONFIG, now_ms=0)
    write(current, 3)
    disk.capacity_bytes = disk.used_bytes
    copy_range = future.next_range(current)
    assert copy_range is not None
    with pytest.raises(StorageError):
        future.copy(copy_range, 0)
    disk.heal()
    assert future.abandon() is None
    assert [name for name in disk.listdir(SECOND) if name.startswith(TOPIC)] == []


@pytest.mark.parametrize("end", [9, 14])
def test_copy_restarts_when_the_log_start_moved_back_below_it(end: int) -> None:
    """After a crash the log has the records again that were deleted since the last checkpoint; the copy replaced it
    without them (operations, seed 33000547).
    """
    disk = formatted(3)
    source, target = opened(disk)
    current = source.partition(WHERE, UUID(int=7), CONFIG)
    write(current, 14)
    current.advance_high_watermark(14)
    current.advance_log_start(9)
    future = FutureLog.open(source, target, current, path=None, config=CONFIG, now_ms=0)
    copy_all(future, current)
    assert future.truncation_target(current) is None
    current.log_start_offset = 3
    current.truncate_to(end)
    drop_from = future.truncation_target(current)
    assert drop_from is not None
    future.drop(drop_from, current.log_start_offset)
    assert future.truncation_target(current) is None
    copy_all(future, current)
    future.follow_offsets(current)
    assert future.append_rest(current, 0)
    log, _ = future.replace(current, CONFIG)
    assert (log.log_start_offset, log.log_end_offset) == (3, end)
    assert [header.base_offset for header in iter_headers(contents(log, disk))] == list(range(3, end))
