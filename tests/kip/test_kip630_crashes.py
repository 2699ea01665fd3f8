"""A power loss between any two disk operations while a node writes, cleans, downloads or loads snapshots, and a second
one between any two of the following start.

Rules: snapshots.md N43-N53. Checked after every crash: the node starts; no committed record is lost; the image
matches its offset; no partial file is left except a resumable download; the log starts at 0 or a snapshot covers the
records before its start.
"""

from __future__ import annotations

from typing import Any

import pytest

from fenceline.log.core.disk import Disk
from fenceline.metadata.image import EMPTY_IMAGE
from fenceline.node.metadata import snapshot_files
from fenceline.node.metadata.metadata_log import MetadataLog
from fenceline.node.metadata.snapshot_files import SnapshotDamaged
from fenceline.quorum.log_view import NO_PROMISED_END, QuorumLogEnd, SnapshotId
from fenceline.testing.sim_disk import SimDisk
from fenceline.testing.simulation.disk import LifeDisk
from tests.kip.snapshot_directory import (
    DATA,
    DIRECTORY,
    EPOCH,
    History,
    crash_at_every_call,
    image_after,
    snapshot_of,
)

pytestmark = pytest.mark.timeout(300)


def _reopened(disk: SimDisk) -> MetadataLog:
    log = MetadataLog.open(disk, DATA, now_ms=0, segment_bytes=400)
    names = disk.listdir(DIRECTORY)
    assert not [name for name in names if name.endswith((".deleted", ".damaged"))]
    assert [name for name in names if name.endswith(".checkpoint")] == [each.file_name for each in log.snapshots]
    newest = log.newest_snapshot
    assert log.start_offset == 0 or newest.end_offset >= log.start_offset, "N51"
    assert log.start_offset <= log.partition_log.high_watermark <= log.end_offset, "N49"
    assert newest.end_offset <= log.partition_log.high_watermark, "N52"
    for each in log.snapshots:
        snapshot_files.verify_snapshot(disk, log.path_of(each), each)
    return log


def _boot(life: LifeDisk) -> None:
    """N43-N47, as at the start of a node."""
    MetadataLog.open(life, DATA, now_ms=0, segment_bytes=400).replay()


def test_crash_while_writing_and_cleaning() -> None:
    """N46: during generation the log holds everything; during cleaning both remain or one is deleted."""
    committed: dict[str, int] = {}
    images: dict[int, object] = {}

    def story(life: LifeDisk) -> None:
        committed["offset"] = -1
        history = History(life, segment_bytes=400)
        try:
            history.begin()
            for _ in range(4):
                history.grow(3)
                snapshot = history.snapshot()
                assert snapshot in history.log.snapshots
                log = history.log
                sizes = log.snapshot_sizes(log.snapshots)
                newest_bytes = sizes[log.snapshots[-1]]
                for delete in log.forget_oldest(sizes, 2 * newest_bytes, 0):
                    delete()
            assert log.start_offset > 0
            assert len(log.snapshots) < 4
        finally:
            committed["offset"] = history.committed_offset
            images.update(history.images)

    def check(disk: SimDisk) -> None:
        log = _reopened(disk)
        assert not [name for name in disk.listdir(DIRECTORY) if name.endswith(".part")]
        replayed = log.replay()
        offset = replayed.image.offset
        assert offset >= committed["offset"], "a committed record is lost"
        if offset in images:
            assert replayed.image == images[offset]
        again = MetadataLog.open(disk, DATA, now_ms=0, segment_bytes=400)
        assert (again.start_offset, again.end_offset, again.snapshots) == (
            log.start_offset,
            log.end_offset,
            log.snapshots,
        )

    assert crash_at_every_call(story, check) > 50


def test_crash_during_download_and_load() -> None:
    """N46: during the download the old log is intact; after the rename the load completes; G29: a download resumes."""
    theirs = SnapshotId(200, EPOCH + 1)
    image = image_after(9, theirs.end_offset, theirs.epoch)
    content = b"".join(snapshot_of(image, 77))
    pieces = [content[start : start + 500] for start in range(0, len(content), 500)]
    own: dict[str, object] = {}
    seen: set[str] = set()

    def story(life: LifeDisk) -> None:
        own["committed"] = -1
        history = History(life, segment_bytes=400)
        try:
            history.begin()
            history.grow(2)
            history.snapshot()
            history.grow(1)
        finally:
            own["committed"], own["image"] = history.committed_offset, history.image
        position = snapshot_files.begin_download(life, DIRECTORY, theirs, 2)
        assert position == 0
        for piece in pieces:
            snapshot_files.write_piece(life, DIRECTORY, theirs, 2, piece)
        snapshot_files.finish_download(life, DIRECTORY, theirs, 2, len(content))
        log = history.log
        log.snapshot_written(theirs)
        log.partition_log.truncate_fully_and_start_at(theirs.end_offset)
        for old in log.snapshots[:-1]:
            life.unlink(log.path_of(old))

    def check(disk: SimDisk) -> None:
        log = _reopened(disk)
        replayed = log.replay()
        if theirs in log.snapshots:
            seen.add("loaded")
            assert (log.start_offset, log.end_offset) == (200, 200)
            assert log.end == (theirs.epoch, 200), "N47"
            assert replayed.image == image
            return
        assert replayed.image.offset >= own["committed"]  # type: ignore[operator]
        if replayed.image.offset == own["committed"] >= 0:  # type: ignore[operator]
            assert replayed.image == own["image"]
        position = snapshot_files.begin_download(disk, DIRECTORY, theirs, 2)
        seen.add("resumed" if position else "begun")
        snapshot_files.write_piece(disk, DIRECTORY, theirs, 2, content[position:])
        snapshot_files.finish_download(disk, DIRECTORY, theirs, 2, len(content))
        assert MetadataLog.open(disk, DATA, now_ms=0).replay().image == image

    assert crash_at_every_call(story, check) > 20
    assert seen == {"loaded", "resumed", "begun"}


def test_second_power_loss_during_start() -> None:
    """N43-N47: for any state after the first crash, and any time of the second."""
    theirs = SnapshotId(200, EPOCH + 1)
    content = b"".join(snapshot_of(image_after(5, theirs.end_offset, theirs.epoch), 77))
    committed: dict[str, int] = {}

    def story(life: LifeDisk) -> None:
        committed["offset"] = -1
        history = History(life, segment_bytes=400)
        try:
            history.begin()
            for _ in range(2):
                history.grow(1)
                history.snapshot()
        finally:
            committed["offset"] = history.committed_offset
        log = history.log
        for delete in log.forget_oldest(log.snapshot_sizes(log.snapshots), 0, 0):
            delete()
        snapshot_files.begin_download(life, DIRECTORY, theirs, 2)
        snapshot_files.write_piece(life, DIRECTORY, theirs, 2, content)
        snapshot_files.finish_download(life, DIRECTORY, theirs, 2, len(content))
        log.partition_log.truncate_fully_and_start_at(theirs.end_offset)
        for old in log.snapshots:
            life.unlink(log.path_of(old))

    def check(disk: SimDisk) -> None:
        log = _reopened(disk)
        if theirs in log.snapshots:
            assert (log.start_offset, log.end) == (200, (theirs.epoch, 200))
        assert log.replay().image.offset >= committed["offset"]

    assert crash_at_every_call(story, check, boot=_boot, seeds=1) > 30


def test_crash_while_the_log_is_reset() -> None:
    """G24: at any moment the directory holds the log, or the acknowledged end is recorded."""
    done: dict[str, QuorumLogEnd] = {}
    seen: set[str] = set()

    def boot(disk: Disk) -> MetadataLog:
        try:
            log = MetadataLog.open(disk, DATA, now_ms=0, segment_bytes=400)
            log.replay_committed()
        except SnapshotDamaged as damage:
            MetadataLog.reset(disk, DATA, damage, now_ms=0)
            log = MetadataLog.open(disk, DATA, now_ms=0, segment_bytes=400)
            assert log.replay_committed().image.topics_by_name == EMPTY_IMAGE.topics_by_name
        return log

    def story(life: LifeDisk) -> None:
        done["end"] = NO_PROMISED_END
        history = History(life, segment_bytes=400)
        history.begin()
        for _ in range(2):
            history.grow(2)
            history.snapshot()
        log = history.log
        for delete in log.forget_oldest(log.snapshot_sizes(log.snapshots), 0, 0):
            delete()
        history.grow(1)
        done["end"] = log.end
        assert log.start_offset > 0
        (only,) = log.snapshots
        fd = life.open_append(log.path_of(only))
        life.truncate(fd, 200)
        life.fsync(fd)
        life.close(fd)
        boot(life)

    def check(disk: SimDisk) -> None:
        log = boot(disk)
        assert max(log.end, log.promised) >= done["end"]
        if log.promised == NO_PROMISED_END:
            seen.add("whole")
            return
        seen.add("anew")
        assert (log.start_offset, log.end, log.snapshots) == (0, NO_PROMISED_END, [])
        names = disk.listdir(DIRECTORY)
        assert len([name for name in names if name.endswith(".damaged")]) == 1
        assert disk.listdir(f"{DIRECTORY}/lost+found") or disk.listdir(f"{DATA}/lost+found")

    assert crash_at_every_call(story, check, boot=boot, seeds=1) > 30
    assert seen == {"whole", "anew"}


@pytest.mark.long
def test_crash_while_the_log_is_ended_before_a_hole() -> None:
    """G24: at any moment acknowledged records are in the log, or its end is recorded and its bytes are kept."""
    done: dict[str, Any] = {}
    seen: set[str] = set()

    def boot(disk: Disk) -> MetadataLog:
        return MetadataLog.open(disk, DATA, now_ms=0, segment_bytes=400, others_have_it=lambda voters: True)

    def story(life: LifeDisk) -> None:
        done.clear()
        history = History(life, segment_bytes=400)
        history.begin()
        history.grow(2)
        history.snapshot()
        history.grow(6)
        log = history.log
        torn = log.partition_log.segments[-3]
        last = log.partition_log.segments[-1]
        done["last"] = life.pread(life.open_read(last.path), last.size_bytes, 0)
        fd = life.open_append(torn.path)
        done["end"], done["kept"] = log.end, torn.base_offset
        life.truncate(fd, 0)
        life.write(fd, bytes(torn.size_bytes))
        life.fsync(fd)
        boot(life)

    def check(disk: SimDisk) -> None:
        log = boot(disk)
        if "end" not in done:
            return
        assert max(log.end, log.promised) >= done["end"]
        if log.promised == NO_PROMISED_END:
            seen.add("whole")
            return
        seen.add("cut")
        assert log.end_offset == done["kept"]
        assert log.promised == done["end"]
        assert log.replay_committed().image.offset == log.newest_snapshot.end_offset - 1
        folder = f"{DIRECTORY}/lost+found"
        assert any(disk.peek(f"{folder}/{name}") == done["last"] for name in disk.listdir(folder))

    assert crash_at_every_call(story, check, boot=boot, seeds=1) > 30
    assert seen == {"whole", "cut"}
