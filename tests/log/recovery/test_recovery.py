"""Opening a damaged log: truncates above the recovery point, fails below it, rebuilds derived files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from fenceline.log.core.config import LogConfig
from fenceline.log.core.disk import OsDisk
from fenceline.log.core.errors import CorruptLog
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.records.batch import iter_headers
from tests.log.helpers import append, batch, open_log, read_all


class BitErrorDisk(OsDisk):
    """Flips one bit in the nth read of a file only."""

    def __init__(self, name: str, read: int, position: int) -> None:
        self._name, self._left, self._position = name, read, position
        self._watched: set[int] = set()

    def open_read(self, path: str) -> int:
        fd = super().open_read(path)
        (self._watched.add if path.endswith(self._name) else self._watched.discard)(fd)
        return fd

    def pread(self, fd: int, size_bytes: int, position: int) -> bytes:
        content = bytearray(super().pread(fd, size_bytes, position))
        at = self._position - position
        if fd in self._watched and 0 <= at < len(content):
            if self._left == 0:
                content[at] ^= 4
            self._left -= 1
        return bytes(content)


CONFIG = LogConfig(segment_bytes=2_000, index_interval_bytes=200)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Forty batches of two records in epochs 0 to 3, several segments, stopped cleanly."""
    log = open_log(OsDisk(), str(tmp_path / "rain-0"), config=CONFIG)
    for number in range(40):
        made = batch(2, producer_id=3, producer_epoch=0, base_sequence=number * 2)
        log.append_as_leader(made, leader_epoch=number // 10, now_ms=1_000)
    log.close()
    return tmp_path / "rain-0"


def reopen(directory: Path, *, recovery_point: int = 0, clean: bool = False) -> PartitionLog:
    return open_log(OsDisk(), str(directory), config=CONFIG, recovery_point=recovery_point, clean=clean)


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x40
    path.write_bytes(content)


def same_as_before(log: PartitionLog, end: int = 80) -> None:
    assert log.log_end_offset == end
    assert [header.base_offset for header, _ in read_all(log)] == list(range(0, end, 2))
    assert log.epochs.entries == tuple((e, s) for e, s in ((0, 0), (1, 20), (2, 40), (3, 60)) if s < end)
    assert [state.last_sequence for state in log.producers] == [end - 1]
    log.close(clean=False)


@pytest.mark.parametrize("pattern", ["*.index", "*.timeindex", "*.snapshot", "leader-epoch-checkpoint", "*[!g]"])
@pytest.mark.parametrize("clean", [True, False])
def test_derived_files_are_rebuilt(directory: Path, pattern: str, clean: bool) -> None:
    for path in directory.glob(pattern):
        if path.suffix != ".log" and path.is_file():
            path.unlink()
    log = reopen(directory, clean=clean, recovery_point=80)
    hit = log.offset_for_timestamp(1_001)
    assert hit is not None
    assert hit.offset == 1
    same_as_before(log)


@pytest.mark.parametrize("pattern", ["*.index", "*.timeindex", "*.snapshot", "leader-epoch-checkpoint"])
@pytest.mark.parametrize("clean", [True, False])
def test_damaged_derived_files_are_rebuilt(directory: Path, pattern: str, clean: bool) -> None:
    for path in directory.glob(pattern):
        path.write_bytes(b"\x7f\x01\x02\x03" * 9)
    same_as_before(reopen(directory, clean=clean, recovery_point=0))


@pytest.mark.parametrize("clean", [True, False])
def test_epochs_that_start_above_the_log_start_are_rebuilt(directory: Path, clean: bool) -> None:
    """The log start had moved to 30 and the epoch checkpoint with it; the log start checkpoint was not written when the
    process ended. A look-up of the end of epoch 0 returned 30 instead of 20 (epochs.md E13)."""
    (directory / "leader-epoch-checkpoint").write_text("0\n3\n1 30\n2 40\n3 60\n")
    log = reopen(directory, clean=clean, recovery_point=80)
    if clean:  # the checkpoints are from the same moment
        assert log.epochs.entries[0] == (1, 30)
        log.close()
    else:
        same_as_before(log)


@pytest.mark.parametrize(("at", "less"), [(3, 2), (3, 4), (7, 2)])
def test_wrong_index_entries_do_not_affect_reads(directory: Path, at: int, less: int) -> None:
    """Wrong positions (7) or wrong offsets (3) in every entry of every index."""
    for path in directory.glob("*.index"):
        content = bytearray(path.read_bytes())
        for byte in range(at, len(content), 8):
            content[byte] = max(0, content[byte] - less)
        path.write_bytes(content)
    log = reopen(directory, recovery_point=60)
    for offset in range(80):
        read = log.read(offset, 1, end_offset_exclusive=80)
        assert next(iter_headers(read.load())).base_offset == offset - offset % 2
    same_as_before(log)


@pytest.mark.parametrize("torn", [1, 11, 60, 61, 100])
def test_torn_tail_is_truncated_silently(directory: Path, torn: int) -> None:
    last = segments(directory)[-1]
    with last.open("ab") as tail:
        tail.write(bytes(batch(9, base_offset=80))[:torn])
    log = reopen(directory, recovery_point=60)
    assert log.recovery is not None
    assert (log.recovery.torn_bytes, log.recovery.cut_bytes, log.recovery.evidence) == (torn, 0, [])
    assert append(log, epoch=5) == 80
    log.close(clean=False)


def test_zeros_at_the_end_are_torn(directory: Path) -> None:
    with segments(directory)[-1].open("ab") as tail:
        tail.write(bytes(5000))
    same_as_before(reopen(directory))


def test_damage_above_the_recovery_point_is_truncated_and_kept_as_evidence(directory: Path) -> None:
    path = segments(directory)[-2]
    base = int(path.stem)
    size = len(batch(2))
    flip(path, 3 * size - 5)
    bytes_before = sum(found.stat().st_size for found in segments(directory))
    log = reopen(directory, recovery_point=base)
    report = log.recovery
    assert report is not None
    assert report.cut_bytes > 0
    assert "checksum" in report.reason
    assert path.name in report.reason
    kept = sum(os.path.getsize(found) for found in report.evidence)
    assert kept == report.cut_bytes == bytes_before - log.size_bytes
    same_as_before(log, base + 4)


def test_damage_below_the_recovery_point_takes_the_partition_offline(directory: Path) -> None:
    path = segments(directory)[-1]
    flip(path, 16)  # the magic of its first batch
    before = path.read_bytes()
    with pytest.raises(CorruptLog, match="below the recovery point 80") as caught:
        reopen(directory, recovery_point=80)
    assert (caught.value.path, caught.value.position) == (str(path), 0)
    assert path.read_bytes() == before


@pytest.mark.parametrize("count", [None, "known"])
def test_clean_start_opens_no_sealed_segment_to_detect_missing_ones(directory: Path, count: str | None) -> None:
    opened: list[str] = []

    class WatchedDisk(OsDisk):
        def open_read(self, path: str) -> int:
            opened.append(path)
            return super().open_read(path)

    number = len(segments(directory)) if count else None
    fields: dict[str, Any] = {"clean": True, "recovery_point": 80, "incarnation": UUID(int=7), "segment_count": number}
    assert open_log(WatchedDisk(), str(directory), config=CONFIG, **fields).log_end_offset == 80
    assert not set(opened) & {str(path) for path in segments(directory)[:-1]}
    opened.clear()
    fields["segment_count"] = number = len(segments(directory)) + 1
    assert open_log(WatchedDisk(), str(directory), config=CONFIG, **fields).log_end_offset == 80
    assert set(opened) >= {str(path) for path in segments(directory)}, (
        "a file is missing: all are opened to find the gap"
    )


def test_bit_error_of_one_read_is_not_taken_for_a_missing_segment(tmp_path: Path) -> None:
    """The bit error is in the offset delta of a segment's last batch, which then ends too early."""
    directory = tmp_path / "rain-0"
    log = open_log(OsDisk(), str(directory), config=CONFIG)
    for _ in range(30):
        append(log, 5)
    log.close()
    first = segments(directory)[0]
    last = list(iter_headers(first.read_bytes()))[-1]
    assert last.last_offset_delta == 4
    for read in range(4):
        disk = BitErrorDisk(first.name, read, last.position + 26)
        fields: dict[str, Any] = {"recovery_point": 150, "incarnation": UUID(int=7)}
        assert open_log(disk, str(directory), config=CONFIG, **fields).log_end_offset == 150


def test_broken_structure_after_a_clean_stop_takes_the_partition_offline(directory: Path) -> None:
    path = segments(directory)[-1]
    content = path.read_bytes()
    path.write_bytes(content[:-10])
    with pytest.raises(CorruptLog) as caught:
        reopen(directory, clean=True)
    said = str(caught.value)
    assert str(path) in said
    assert "at byte" in said
    assert "Restore" in said
    assert path.read_bytes() == content[:-10], "evidence is unchanged"


def test_an_unreadable_segment_takes_the_partition_offline(directory: Path) -> None:
    path = segments(directory)[0]
    path.unlink()
    path.mkdir()
    with pytest.raises(CorruptLog, match="cannot be read"):
        reopen(directory)


def test_missing_segment_is_detected(directory: Path) -> None:
    segments(directory)[-2].unlink()
    log = reopen(directory, recovery_point=0)
    assert log.recovery is not None
    assert "missing" in log.recovery.reason
    same_as_before(log, log.log_end_offset)


def test_leftovers_are_removed_and_an_unfinished_compaction_is_kept(directory: Path) -> None:
    (directory / "00000000000000000000.log.deleted").write_bytes(b"x")
    (directory / "00000000000000000777.index").write_bytes(bytes(8))
    (directory / "leader-epoch-checkpoint.tmp").write_bytes(b"x")
    same_as_before(reopen(directory))
    assert not [path for path in directory.iterdir() if path.name.endswith((".deleted", ".tmp")) or "777" in path.name]
    (directory / "00000000000000000000.log.swap").write_bytes(b"x")
    with pytest.raises(CorruptLog, match="compaction"):
        reopen(directory)


def test_records_below_a_log_start_past_the_end_never_come_back(directory: Path) -> None:
    log = open_log(OsDisk(), str(directory), config=CONFIG, log_start_offset=500)
    assert (log.log_start_offset, log.log_end_offset) == (500, 500)
    assert append(log, epoch=9) == 500
    log.close(clean=False)


def test_recovery_reads_only_past_the_recovery_point(directory: Path) -> None:
    log = reopen(directory, recovery_point=80)
    assert log.recovery is not None
    assert log.recovery.scanned_bytes <= 2_000
    same_as_before(log)


@pytest.mark.parametrize("wrong_byte", [3, 6, 13, 70], ids=["offset", "offset, low", "epoch", "records"])
def test_intermittent_read_errors_lose_no_record(tmp_path: Path, wrong_byte: int) -> None:
    """A bit error in one read of the last batch looks like a torn write; bytes that differ when read again are kept."""
    log = open_log(OsDisk(), str(tmp_path / "t-0"))
    append(log)
    last = log.size_bytes
    append(log)
    end = log.log_end_offset
    log.close(clean=False)
    content = segments(tmp_path / "t-0")[0].read_bytes()
    for read in range(3):
        disk = BitErrorDisk(".log", read, last + wrong_byte)
        refusal = ""
        try:
            opened = open_log(disk, str(tmp_path / "t-0"))
        except CorruptLog as error:
            refusal = error.advice
        else:
            assert opened.log_end_offset == end
            assert opened.latest_epoch == log.latest_epoch
            opened.close(clean=False)
        assert "returns different bytes on each read" in refusal or not refusal
    assert segments(tmp_path / "t-0")[0].read_bytes() == content


def test_bit_error_in_a_read_of_the_epoch_checkpoint_is_detected(tmp_path: Path) -> None:
    """The epochs are rebuilt from the batches instead."""
    log = open_log(OsDisk(), str(tmp_path / "t-0"))
    log.append_as_follower(batch(1, base_offset=0, leader_epoch=2))
    log.close()
    opened = open_log(BitErrorDisk("leader-epoch-checkpoint", 0, 4), str(tmp_path / "t-0"))
    assert opened.epochs.entries == ((2, 0),)


def _behind_a_gap(directory: Path, disk: OsDisk, *, rolls: bool) -> PartitionLog:
    """Epoch 0 at 0 to 4, then the compacted rest of epoch 2: a batch at 20. Epoch 1 started at 8, epoch 2 at 15."""
    log = open_log(disk, str(directory), config=LogConfig(cleanup_policy=frozenset({"compact"})))
    log.append_as_follower(batch(5, base_offset=0, leader_epoch=0))
    flush(log)
    if rolls:
        log.log_end_offset = 20
        log.roll(1_000)
    log.append_as_follower(batch(1, base_offset=20, leader_epoch=2), epoch_starts=((1, 8), (2, 15)))
    assert log.epochs.entries == ((0, 0), (1, 8), (2, 15))
    return log


def flush(log: PartitionLog) -> None:
    work = log.flush_work()
    assert work is not None
    work.run()


@pytest.mark.parametrize("rolls", [False, True], ids=["one segment", "two segments"])
@pytest.mark.parametrize(
    ("checkpoint", "expected"),
    [
        ("as it is", ((0, 0), (1, 8), (2, 15))),
        ("not flushed", ((0, 0), (2, 5))),
        ("lost", ((0, 0), (2, 5))),
        ("of another log", ((0, 0), (2, 5))),
    ],
)
def test_epochs_that_start_in_a_gap_are_never_assigned_too_high_an_offset(
    tmp_path: Path, checkpoint: str, rolls: bool, expected: tuple[tuple[int, int], ...]
) -> None:
    """Otherwise the previous epoch would appear too long, and a log that diverged there would not be truncated."""
    path = tmp_path / "rain-0"
    disk = OsDisk()
    log = _behind_a_gap(path, disk, rolls=rolls)
    file = path / "leader-epoch-checkpoint"
    if checkpoint != "not flushed":
        assert log.flush_due(0)
        flush(log)
        assert not log.flush_due(0)
    log.close(clean=False)
    if checkpoint == "lost":
        file.unlink()
    elif checkpoint == "of another log":
        file.write_text("0\n2\n0 0\n2 3\n")
    config = LogConfig(cleanup_policy=frozenset({"compact"}))
    again = open_log(OsDisk(), str(path), config=config, recovery_point=0)
    assert again.epochs.entries == expected
    assert again.end_offset_for_epoch(0)[1] in (5, 8)
    again.close()
    assert open_log(OsDisk(), str(path), config=config, clean=True).epochs.entries == expected


@pytest.mark.parametrize("clean", [False, True])
def test_a_batch_lost_with_the_tail_is_no_duplicate_when_it_is_sent_again(tmp_path: Path, clean: bool) -> None:
    """The producer snapshot of a later segment outlives the batches before it: the disk lost what had been synced."""
    path = tmp_path / "rain-0"
    log = open_log(OsDisk(), str(path), config=CONFIG)
    sizes = []
    for number in range(3):
        log.append_as_leader(
            batch(10, producer_id=7, producer_epoch=0, base_sequence=number * 10), leader_epoch=0, now_ms=0
        )
        sizes.append(log.size_bytes)
    log.roll(0)
    log.flush_work(0).run()
    log.close(clean=False)
    (path / f"{0:020}.log").write_bytes((path / f"{0:020}.log").read_bytes()[: sizes[1]])
    for suffix in ("log", "index", "timeindex"):
        (path / f"{30:020}.{suffix}").unlink(missing_ok=True)
    assert (path / f"{30:020}.snapshot").exists()

    log = open_log(OsDisk(), str(path), config=CONFIG, recovery_point=30, clean=clean)
    assert log.log_end_offset == 20
    assert [producer.last_offset for producer in log.producers] == [19]
    again = log.append_as_leader(batch(10, producer_id=7, producer_epoch=0, base_sequence=20), leader_epoch=0, now_ms=0)
    assert (again.base_offset, again.duplicate, log.log_end_offset) == (20, False, 30)
