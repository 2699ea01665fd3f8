"""The start of a log: retention and DeleteRecords."""

from __future__ import annotations

import pytest

from fenceline.errors import ErrorCode, PeerError
from fenceline.log.core.config import LogConfig
from fenceline.log.core.errors import StorageError
from fenceline.testing.sim_disk import SimDisk
from tests.log.helpers import SMALL, append, files, open_log


def test_retention_by_size_and_time_stops_at_the_high_watermark(disk: SimDisk) -> None:
    log = open_log(disk, config=LogConfig(segment_bytes=200, retention_ms=100, retention_bytes=-1))
    for number in range(5):
        append(log, size=100, timestamp=1_000 + number * 50)
    log.advance_high_watermark(2)
    removed = log.enforce_retention(1_000_000)
    assert [segment.base_offset for segment in removed] == [0, 1]
    assert (log.log_start_offset, log.high_watermark) == (2, 2)
    assert any(name.endswith(".deleted") for name in files(disk))
    for segment in removed:
        segment.delete()
    assert not any(name.endswith(".deleted") for name in files(disk))
    log.advance_high_watermark(5)
    assert [s.base_offset for s in log.enforce_retention(1_000 + 200 + 1)] == [2]
    log.config = LogConfig(segment_bytes=200, retention_ms=-1, retention_bytes=log.segments[-1].size_bytes)
    assert [s.base_offset for s in log.enforce_retention(0)] == [3]
    log.config = LogConfig(segment_bytes=200, retention_ms=0)
    assert [s.reason for s in log.enforce_retention(1_000_000)] == ["time"]
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (5, 5, 0)
    assert append(log) == 5
    assert open_log(disk, log_start_offset=5).log_end_offset == 6


@pytest.mark.parametrize("config", [LogConfig(segment_bytes=200, retention_ms=100), LogConfig(retention_bytes=0)])
def test_retention_keeps_the_last_records_if_the_log_must_not_be_emptied(disk: SimDisk, config: LogConfig) -> None:
    """`operations`, seed 9320087."""
    log = open_log(disk, config=LogConfig(segment_bytes=200))
    for _ in range(3):
        append(log, size=100, timestamp=1_000)
    log.advance_high_watermark(3)
    log.config = config
    assert [segment.base_offset for segment in log.enforce_retention(1_000_000, may_empty=False)] == [0, 1]
    assert (log.log_start_offset, log.log_end_offset) == (2, 3)
    assert [segment.base_offset for segment in log.enforce_retention(1_000_000)] == [2]
    assert (log.log_start_offset, log.log_end_offset) == (3, 3)


def test_delete_records(disk: SimDisk) -> None:
    log = open_log(disk, config=SMALL)
    for number in range(40):
        append(log, epoch=number // 10)
    log.advance_high_watermark(35)
    with pytest.raises(PeerError) as caught:
        log.advance_log_start(36)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.advance_log_start(25)
    assert not log.advance_log_start(20)
    assert log.epochs.entries == ((2, 25), (3, 30))
    gone = log.enforce_retention(1_000)
    assert gone
    assert all(segment.next_offset <= 25 and segment.reason == "log start" for segment in gone)
    again = open_log(disk, config=SMALL, log_start_offset=25)
    assert (again.log_start_offset, again.log_end_offset) == (25, 40)


def test_a_failing_rename_leaves_the_size_of_the_log_right(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario `quorum`, seed 1817: a disk failed between two segments that were removed together, and the size of
    those that were left for the next start stayed in the log's."""
    log = open_log(disk, config=LogConfig(segment_bytes=200))
    for _ in range(5):
        append(log, size=100)
    bases = [segment.base_offset for segment in log.segments]
    assert len(bases) >= 4
    log.advance_log_start(bases[3])
    rename = disk.rename

    def fails(source: str, target: str) -> None:
        if f"{bases[1]:020}" in source:
            raise OSError(5, "Input/output error", source)
        rename(source, target)

    monkeypatch.setattr(disk, "rename", fails)
    with pytest.raises(StorageError):
        log.enforce_retention(now_ms=1)
    log.check()
    assert [segment.base_offset for segment in log.segments] == bases[3:]
    monkeypatch.undo()
    assert log.enforce_retention(now_ms=2) == []
