"""Compaction of a damaged log reports the position, changes nothing, and allocates no memory for a false length."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fenceline.log.compaction import compaction
from fenceline.log.compaction.compaction import Compaction, Limits, Uncleanable
from fenceline.log.compaction.plan import Due
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.testing.sim_disk import SimDisk
from tests.log.compaction_story import run
from tests.log.helpers import DIRECTORY, SMALL, append, open_log, read_all, watch_reads
from tests.log.verify_helpers import flip

CONFIG = replace(SMALL, cleanup_policy=frozenset({"compact"}))


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    disk.mkdir("/data")
    return disk


def grown(disk: SimDisk, *sizes: int) -> PartitionLog:
    """One batch of two keys for each value size; flushed."""
    log = open_log(disk, config=replace(CONFIG, segment_bytes=20_000) if max(sizes) > 400 else CONFIG)
    for size in sizes:
        append(log, 2, size=size)
    log.roll(1_000)
    append(log)
    work = log.flush_work(1_000)
    assert work is not None
    work.run()
    return log


def begun(log: PartitionLog, first_dirty: int = 0) -> Compaction:
    due = Due(first_dirty, log.segments[-1].base_offset, 1, 1.0)
    return compaction.begin(log, due, now_ms=2_000, limits=Limits(memory_bytes=1 << 16, buffer_bytes=1_000))


@pytest.mark.parametrize(
    ("position", "mask"), [(57, 0x40), (58, 0x01), (59, 0x01), (60, 0x01), (17, 0x01), (80, 0x01), (23, 0x80)]
)
@pytest.mark.parametrize("is_clean", [True, False])
def test_damaged_batch_is_reported(disk: SimDisk, position: int, mask: int, is_clean: bool) -> None:
    """Also if an earlier compaction read it intact: then only the second pass reads it."""
    log = grown(disk, *[20] * 40)
    segments = list(log.segments)
    flip(disk, segments[0].path, position, mask)
    work = begun(log, segments[-2].base_offset if is_clean else 0)
    with pytest.raises(Uncleanable, match=DIRECTORY):
        run(log, work)
    assert log.segments == segments
    assert not [name for name in disk.listdir(DIRECTORY) if name.endswith((".cleaned", ".swap", ".deleted"))]


def test_no_memory_is_allocated_for_a_false_batch_length(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "MAX_UNVERIFIED_BYTES", 2_000)
    log = grown(disk, *[300] * 20, 1_500)
    flip(disk, log.segments[0].path, 10, 0x10)  # length of the first batch: 4,096 more
    seen = watch_reads(disk, monkeypatch)
    with pytest.raises(Uncleanable, match="checksum of the batch at offset 0 is wrong, or its length"):
        run(log, begun(log))
    assert max(seen) <= 2_000


def test_large_batch_is_compacted(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "MAX_UNVERIFIED_BYTES", 500)
    log = grown(disk, 20, 1_500, 20, 1_500, 1_500)
    run(log, begun(log))
    assert [header.base_offset for header, _ in read_all(log)] == [8, 10]
