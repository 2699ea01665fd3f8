"""Segment files at the last clean shutdown: the file is read back only with the broker epoch that wrote it."""

from __future__ import annotations

from fenceline.ids import TopicPartition
from fenceline.log.core.disk import replace_file
from fenceline.log.directories.first_segments import (
    FIRST_SEGMENTS,
    SegmentsAtStop,
    read_first_segments,
    write_first_segments,
)
from fenceline.testing.sim_disk import SimDisk

RAIN, WIND = TopicPartition("rain", 0), TopicPartition("wind", 3)


def a_disk() -> SimDisk:
    disk = SimDisk(0)
    disk.mkdir("/data")
    return disk


def test_file_is_read_only_with_the_broker_epoch_that_wrote_it() -> None:
    disk = a_disk()
    segments = {RAIN: SegmentsAtStop(7, 3), WIND: SegmentsAtStop(0, None)}
    write_first_segments(disk, "/data", 12, segments)
    assert read_first_segments(disk, "/data", 12) == segments
    assert read_first_segments(disk, "/data", 13) == {}
    assert read_first_segments(disk, "/data", -1) == {}


def test_rows_without_a_file_count_and_damaged_rows() -> None:
    disk = a_disk()
    for rows, expected in (
        (b'[["rain",0,7]]', {RAIN: SegmentsAtStop(7, None)}),
        (b'[["rain",0]]', {}),
        (b'[["rain",0,7,"x"]]', {}),
    ):
        replace_file(disk, f"/data/{FIRST_SEGMENTS}", b'{"version":0,"brokerEpoch":12,"firstSegments":' + rows + b"}")
        assert read_first_segments(disk, "/data", 12) == expected
