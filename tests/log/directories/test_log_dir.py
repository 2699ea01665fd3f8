"""A data directory: its owner, its lock, its checkpoints, its partitions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from fenceline.log.core.config import LogConfig
from fenceline.log.core.disk import OsDisk
from fenceline.log.core.errors import CorruptLog
from fenceline.log.directories.log_dir import SYNC_ALL_FROM, LogDir
from fenceline.log.directories.partition_dir import parse_partition_name
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.testing.sim_disk import SimDisk
from tests.log.helpers import TOPIC_ID, TP, append, read_all

META = "version=1\ncluster.id=AAAAAAAAQACAAAAAAAAAAA\nnode.id=4\ndirectory.id=mAElyxrEQ3mw_ELWKg5Mow\n"
CONFIG = LogConfig(segment_bytes=1_000)


class CountingDisk(OsDisk):
    syncs = 0

    def fsync_dir(self, path: str) -> None:
        self.syncs += 1
        super().fsync_dir(path)

    def sync_all(self, path: str) -> None:
        self.syncs += 1
        super().sync_all(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "meta.properties").write_text(META)
    return tmp_path


@pytest.fixture
def log_dir(path: Path) -> Iterator[LogDir]:
    opened = LogDir.open(str(path), OsDisk(), cluster_id="AAAAAAAAQACAAAAAAAAAAA", node_id=4)
    yield opened
    opened.close(clean=False)


def partition(log_dir: LogDir, tp: TopicPartition = TP) -> PartitionLog:
    return log_dir.partition(tp, TOPIC_ID, CONFIG, now_ms=1_000)


def reopened(log_dir: LogDir, *, clean: bool) -> LogDir:
    log_dir.close(clean=clean)
    return LogDir.open(log_dir.path, OsDisk())


@pytest.mark.parametrize(
    ("ids", "advice"),
    [
        ({"cluster_id": "BBBBBBBBQACAAAAAAAAAAA"}, "Set log.dirs to"),
        ({"node_id": 5}, "Set node.id=4"),
    ],
)
def test_directory_of_another_cluster_or_node_is_rejected(path: Path, ids: dict[str, object], advice: str) -> None:
    with pytest.raises(OperatorError, match="belongs to") as caught:
        LogDir.open(str(path), OsDisk(), **ids)  # type: ignore[arg-type]
    assert advice in caught.value.advice


@pytest.mark.parametrize(
    ("meta", "said"),
    [
        (None, "not formatted"),
        ("", "damaged"),
        ("version=0\nnode.id=1\ncluster.id=x", "has version 0; this release supports version 1"),
        ("version=1\ncluster.id=x", "damaged"),
    ],
)
def test_unformatted_directory_is_rejected(tmp_path: Path, meta: str | None, said: str) -> None:
    if meta is not None:
        (tmp_path / "meta.properties").write_text(meta)
    with pytest.raises(OperatorError, match=said):
        LogDir.open(str(tmp_path), OsDisk())


def test_second_node_on_a_directory_is_rejected(log_dir: LogDir) -> None:
    with pytest.raises(OperatorError, match=r"in use by node 4, process \d+"):
        LogDir.open(log_dir.path, OsDisk())


def test_clean_shutdown_mark_is_removed_before_logs_change_and_written_at_close(log_dir: LogDir) -> None:
    append(partition(log_dir))
    log_dir.broker_epoch = 12
    mark = Path(log_dir.path) / ".kafka_cleanshutdown"
    again = reopened(log_dir, clean=True)
    assert (again.clean, again.previous_broker_epoch) == (True, 12)
    assert mark.exists()
    again.begin()
    assert not mark.exists()
    third = reopened(again, clean=False)
    assert not third.clean
    third.close()
    assert not mark.exists(), "a partition with an unclean shutdown has not been opened since"
    fourth = LogDir.open(log_dir.path, OsDisk())
    partition(fourth)
    fourth.close()
    assert json.loads(mark.read_text()) == {"version": 0, "brokerEpoch": -1}


def test_clean_close_of_many_logs_syncs_the_disk_once(path: Path) -> None:
    """With one sync per log, a node with 1,000 partitions took more than 30 s to stop."""
    disk = CountingDisk()
    log_dir = LogDir.open(str(path), disk)
    log_dir.begin()
    for number in range(2 * SYNC_ALL_FROM):
        append(partition(log_dir, TopicPartition("many", number)))
    disk.syncs = 0
    log_dir.close()
    assert disk.syncs < SYNC_ALL_FROM
    again = LogDir.open(str(path), OsDisk())
    assert again.clean
    assert all((path / f"many-{number}" / f"{0:020d}.index").exists() for number in range(2 * SYNC_ALL_FROM))
    again.close(clean=False)


@pytest.mark.parametrize("mark", [None, b"", b'{"version":0,"brokerEpoch":12}', b"nonsense"])
@pytest.mark.parametrize("end", ["closed cleanly", "closed uncleanly", "given back", "killed"])
@pytest.mark.parametrize("damaged", [False, True])
def test_run_that_opened_no_log_leaves_the_mark_unchanged(
    log_dir: LogDir, mark: bytes | None, end: str, damaged: bool
) -> None:
    """For any state of the mark and any way to stop: no log was opened, and no broker registered."""
    append(partition(log_dir), 3)
    log_dir.close()
    path = Path(log_dir.path) / ".kafka_cleanshutdown"
    path.unlink()
    if mark is not None:
        path.write_bytes(mark)
    checkpoint = Path(log_dir.path) / "recovery-point-offset-checkpoint"
    if damaged:
        checkpoint.write_text("nonsense")
    before = {each.name: each.read_bytes() for each in Path(log_dir.path).iterdir() if each.is_file()}
    again = LogDir.open(log_dir.path, OsDisk())
    assert again.clean is (mark is not None and not damaged)
    match end:
        case "given back":
            again.give_back()
        case "killed":
            again._unlock()  # as the operating system does
        case _:
            again.close(clean=end == "closed cleanly")
    after = {each.name: each.read_bytes() for each in Path(log_dir.path).iterdir() if each.is_file()}
    assert after == before


def test_broker_that_registered_and_opened_no_log_writes_its_epoch(log_dir: LogDir) -> None:
    """The controller knows this epoch: with the previous one, the shutdown would count as unclean."""
    append(partition(log_dir))
    log_dir.broker_epoch = 12
    again = reopened(log_dir, clean=True)
    again.broker_epoch = 13
    last = reopened(again, clean=True)
    assert (last.clean, last.previous_broker_epoch) == (True, 13)
    last.close(clean=False)


def test_first_opened_log_removes_the_mark(log_dir: LogDir) -> None:
    """Also if `begin` was not called."""
    append(partition(log_dir))
    again = reopened(log_dir, clean=True)
    append(partition(again))
    assert not (Path(log_dir.path) / ".kafka_cleanshutdown").exists()
    again.close(clean=False)


def test_checkpoints_are_restored(log_dir: LogDir) -> None:
    log = partition(log_dir)
    for _ in range(60):
        append(log)
    log.advance_high_watermark(50)
    log.advance_log_start(33)
    again = reopened(log_dir, clean=True)
    assert again.high_watermark(TP) == 50
    log = partition(again)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset, log.recovery_point) == (33, 50, 60, 60)
    again.close(clean=False)


def test_only_changed_checkpoints_are_written(log_dir: LogDir) -> None:
    append(partition(log_dir))
    log_dir.checkpoint_work()()
    written = Path(log_dir.path) / "replication-offset-checkpoint"
    assert written.read_text() == "0\n1\nrain 0 1\n"
    written.unlink()
    log_dir.checkpoint_work()()
    assert not written.exists()


def test_damaged_checkpoint_causes_a_check_and_loses_no_data(log_dir: LogDir) -> None:
    append(partition(log_dir), 3)
    log_dir.close()
    (Path(log_dir.path) / "recovery-point-offset-checkpoint").write_text("0\n9\nnonsense")
    again = LogDir.open(log_dir.path, OsDisk())
    assert not again.clean
    assert partition(again).log_end_offset == 3
    again.close(clean=False)


def test_partitions_are_found_and_only_those(log_dir: LogDir) -> None:
    append(partition(log_dir))
    append(partition(log_dir, TopicPartition("a-b.c_d", 12)))
    assert partition(log_dir, TopicPartition("never", 0)).log_end_offset == 0
    for name in ("snow-1.0123456789abcdef-delete", "snow-2.0123456789abcdef-stray", "lost+found", "x"):
        (Path(log_dir.path) / name).mkdir()
    found = {str(found.topic_partition): found.topic_id for found in log_dir.existing()}
    assert found == {"rain-0": TOPIC_ID, "a-b.c_d-12": TOPIC_ID}
    assert [removed.path.rpartition("/")[2] for removed in log_dir.pending_deletions()] == [
        "snow-1.0123456789abcdef-delete"
    ]
    assert [(removed.topic_partition, removed.high_watermark) for removed in log_dir.strays()] == [
        (TopicPartition("snow", 2), 0)
    ]
    assert parse_partition_name("rain-x") is None


def test_stray_directory_keeps_its_high_watermark(log_dir: LogDir) -> None:
    append(partition(log_dir), 3)
    partition(log_dir).advance_high_watermark(2)
    stray = log_dir.set_aside_stray(TP)
    assert stray is not None
    assert (stray.topic_partition, stray.high_watermark) == (TP, 2)
    append(partition(log_dir), 9)
    partition(log_dir).advance_high_watermark(9)
    assert log_dir.strays() == [stray], "also while a new directory has its name"


def test_deletion_renames_now_and_removes_later(log_dir: LogDir) -> None:
    log = partition(log_dir)
    append(log)
    read = log.read(0, 1_000, end_offset_exclusive=1)
    removed = log_dir.delete_partition(TP)
    assert removed is not None
    assert Path(removed.path).name.startswith("rain-0.")
    assert len(read.records) > 0
    assert partition(log_dir).log_end_offset == 0, "a new topic of this name starts empty"
    removed.delete()
    assert not Path(removed.path).exists()
    assert log_dir.delete_partition(TopicPartition("never", 1)) is None
    log_dir.checkpoint_work()()


def test_damaged_partition_does_not_affect_the_others(log_dir: LogDir) -> None:
    other = TopicPartition("snow", 0)
    append(partition(log_dir), 3)
    append(partition(log_dir, other), 3)
    log_dir.close()
    [segment] = (Path(log_dir.path) / "rain-0").glob("*.log")
    segment.write_bytes(segment.read_bytes()[:-9])
    again = LogDir.open(log_dir.path, OsDisk())
    for _ in range(2):
        with pytest.raises(CorruptLog, match=r"00\.log"):
            partition(again)
    assert len(read_all(partition(again, other))) == 1
    assert set(again.offline) == {TP}
    again.close(clean=False)


def test_directory_of_an_older_topic_is_not_reused(log_dir: LogDir) -> None:
    append(partition(log_dir))
    log_dir.close()
    again = LogDir.open(log_dir.path, OsDisk())
    with pytest.raises(CorruptLog, match="belongs to topic id"):
        again.partition(TP, uuid4(), CONFIG)
    again.close(clean=False)


def test_many_partitions_close_together(log_dir: LogDir) -> None:
    for number in range(50):
        append(partition(log_dir, TopicPartition("rain", number)), 2)
    again = reopened(log_dir, clean=True)
    assert again.clean
    for number in range(50):
        log = partition(again, TopicPartition("rain", number))
        assert (log.log_end_offset, log.recovery_point) == (2, 2)
        assert log.recovery is not None
    again.close(clean=False)


def test_many_partitions_close_together_and_survive_a_power_cut() -> None:
    disk = SimDisk(7)
    disk.mkdir("/d")
    fd = disk.open_append("/d/meta.properties")
    disk.write(fd, META.encode())
    disk.fsync(fd)
    disk.fsync_dir("/d")
    log_dir = LogDir.open("/d", disk)
    for number in range(40):
        log = partition(log_dir, TopicPartition("rain", number))
        for _ in range(30):
            append(log)
    log_dir.close()
    disk.crash()
    again = LogDir.open("/d", disk)
    assert again.clean
    assert all(partition(again, TopicPartition("rain", n)).log_end_offset == 30 for n in range(40))


def test_ten_thousand_partitions_cost_little(log_dir: LogDir) -> None:
    import tracemalloc

    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    logs = [partition(log_dir, TopicPartition("rain", number)) for number in range(2_000)]
    never_written = (tracemalloc.get_traced_memory()[0] - before) / len(logs)
    for log in logs[:500]:
        append(log)
    # Logs that were not used recently have closed their descriptors.
    assert log_dir.files.open_count <= 1_024
    written = (tracemalloc.get_traced_memory()[0] - before - never_written * len(logs)) / 500 + never_written
    tracemalloc.stop()
    assert never_written < 4_096
    assert written < 4_096


def test_metadata_log_directory_does_not_prevent_the_clean_shutdown_mark(log_dir: LogDir) -> None:
    """Its owner opens it, so it is never among the opened partitions."""
    log_dir.disk.mkdir(f"{log_dir.path}/__cluster_metadata-0")
    append(partition(log_dir), 3)
    again = reopened(log_dir, clean=True)
    assert again.clean
    again.close(clean=False)


def test_invalid_directory_id_is_rejected(path: Path) -> None:
    (path / "meta.properties").write_text(META.replace("directory.id=", "directory.id=%%"))
    with pytest.raises(OperatorError, match=r"directory\.id=%%\S+ is not a valid id"):
        LogDir.open(str(path), OsDisk())


def test_checkpoint_looks_only_at_logs_with_files(log_dir: LogDir) -> None:
    started: list[TopicPartition] = []
    log_dir.on_segment = started.append
    logs = {where: partition(log_dir, where) for where in (TopicPartition("snow", index) for index in range(5))}
    assert len(list(log_dir.checkpoint_steps())) == 1
    for where in (TopicPartition("snow", 1), TopicPartition("snow", 3)):
        append(logs[where])
        append(logs[where])
    assert started == [TopicPartition("snow", 1), TopicPartition("snow", 3)]
    assert len(list(log_dir.checkpoint_steps())) == 3
    log_dir.delete_partition(TopicPartition("snow", 1))
    assert len(list(log_dir.checkpoint_steps())) == 2
    partition(log_dir, TopicPartition("snow", 1))
    assert len(list(log_dir.checkpoint_steps())) == 2
    log_dir.close()
    again = LogDir.open(log_dir.path, OsDisk())
    partition(again, TopicPartition("snow", 3))
    assert len(list(again.checkpoint_steps())) == 2, "it was found with files"
    again.close()


def test_log_that_is_deleted_while_a_checkpoint_is_prepared_has_no_entry(log_dir: LogDir) -> None:
    """Its topic may be made anew under the same name before the file is written."""
    other = TopicPartition("snow", 0)
    append(partition(log_dir))
    append(partition(log_dir, other))
    steps = log_dir.checkpoint_steps()
    next(steps)
    assert log_dir.delete_partition(other) is not None
    *_, work = steps
    assert work is not None
    work()
    assert (Path(log_dir.path) / "recovery-point-offset-checkpoint").read_text() == "0\n1\nrain 0 0\n"
