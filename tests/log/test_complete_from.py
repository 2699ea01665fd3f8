"""`complete_from`: the offset up to which a log depends on newer records than those that compaction removed."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

import pytest

from fenceline.log.compaction.compaction import Limits
from fenceline.log.core.compaction_bound import COMPLETE_FILE, CompleteFrom, read_complete_from
from fenceline.log.core.config import LogConfig
from fenceline.log.core.disk import replace_file
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.records.build import build_batch
from fenceline.records.crc import crc32c
from fenceline.testing.sim_disk import SimDisk
from tests.log.compaction_story import compact_all
from tests.losses.helpers import DIRECTORY, a_disk, open_log

COMPACT: Final = LogConfig(segment_bytes=400, cleanup_policy=frozenset({"compact"}))
OURS: Final[dict[str, Any]] = {"config": COMPACT, "incarnation": UUID(int=7)}


def compacted(disk: SimDisk) -> PartitionLog:
    log = open_log(disk, **OURS)
    for key in (b"a", b"b", b"c", b"a", b"b", b"c", b"d", b"e", b"a", b"b"):
        made = build_batch([(1_000, key, b"v" * 90, ())])
        log.append_as_leader(memoryview(made), leader_epoch=3, now_ms=1_000)
    log.advance_high_watermark(10)
    compact_all(log, 2_000, Limits(secret=bytes(16)))
    return log


def fetched(log: PartitionLog, offset: int) -> None:
    made = build_batch([(1_000, b"a", b"v", ())], base_offset=offset, leader_epoch=3)
    log.append_as_follower(memoryview(made), leader_epoch=3, now_ms=1_000, epoch_starts=((3, 0),))


def test_compaction_raises_complete_from_to_the_end_of_its_input() -> None:
    disk = a_disk()
    log = compacted(disk)
    end = log.segments[-1].base_offset
    assert log.complete_from == CompleteFrom(end, 3)
    log.close(clean=False)
    again = open_log(disk, **OURS)
    assert again.complete_from == CompleteFrom(end, -1), "also after a crash, with an unknown epoch"


def test_truncation_does_not_lower_complete_from() -> None:
    """If the node stops before the log is emptied, it must be emptied after the restart."""
    disk = a_disk()
    log = compacted(disk)
    relied_on = log.complete_from
    log.truncate_to(4)
    assert log.complete_from == relied_on
    log.close(clean=False)
    again = open_log(disk, **OURS)
    assert again.complete_from == relied_on
    again.truncate_fully_and_start_at(0)
    assert again.complete_from == CompleteFrom()
    again.close(clean=False)
    assert open_log(disk, **OURS).complete_from == CompleteFrom()


@pytest.mark.parametrize("is_clean", [True, False])
def test_complete_from_of_a_follower_is_persisted(is_clean: bool) -> None:
    """A flush persists it, and so does a clean shutdown."""
    disk = a_disk()
    log = open_log(disk, **OURS)
    fetched(log, 5)
    log.raise_complete_from(20, 3)
    log.raise_complete_from(18, 4)
    assert log.complete_from == CompleteFrom(20, 3)
    if not is_clean:
        work = log.flush_work(2_000)
        assert work is not None
        work.run()
        assert log.flush_work(3_000) is None, "nothing is left to write"
    log.close(clean=is_clean)
    again = open_log(disk, clean=is_clean, recovery_point=6, **OURS)
    assert again.complete_from == CompleteFrom(20, 3)
    assert not is_clean or again.flush_work(2_000) is None, "it is durable"


@pytest.mark.parametrize("end", [6, 20])
def test_the_log_of_a_leader_is_complete_from_its_end(end: int) -> None:
    """An uncleanly elected leader that was in sync emptied its log when it followed the next leader (`operations`,
    seed 43000294)."""
    disk = a_disk()
    log = open_log(disk, **OURS)
    fetched(log, end - 1)
    log.raise_complete_from(20, 3)
    log.assign_epoch(4)
    assert log.complete_from == CompleteFrom(end, 3)
    log.close()
    assert open_log(disk, clean=True, **OURS).complete_from == CompleteFrom(end, 3)


@pytest.mark.parametrize("has_gap", [True, False])
def test_a_crash_before_the_flush(has_gap: bool) -> None:
    """Recovery finds a gap: it is no longer known which newer records the remaining ones depend on."""
    disk = a_disk()
    log = open_log(disk, **OURS)
    fetched(log, 0)
    fetched(log, 3 if has_gap else 1)
    log.raise_complete_from(20, 3)
    log.close(clean=False)
    again = open_log(disk, **OURS)
    assert again.complete_from == (CompleteFrom(5, 3) if has_gap else CompleteFrom())


@pytest.mark.parametrize("is_known", [True, False])
def test_gaps_of_a_topic_that_is_not_compacted_any_more(is_known: bool) -> None:
    """A gap after a crash is compaction's only in a log that is known to have been compacted (`operations`, seed
    1559)."""
    disk = a_disk()
    options = OURS | {"config": LogConfig()}
    log = open_log(disk, **options)
    for offset in (0, 4, 8):
        fetched(log, offset)
    if is_known:
        log.raise_complete_from(6, 3)
        work = log.flush_work(2_000)
        assert work is not None
        work.run()
    log.close(clean=False)
    again = open_log(disk, **options)
    assert again.log_end_offset == 9
    assert again.complete_from == (CompleteFrom(10, 3) if is_known else CompleteFrom())


@pytest.mark.parametrize(
    ("batches", "lacks"),
    [([(0, 1), (1, 2)], False), ([(0, 1), (2, 2)], True), ([(2, 1)], True), ([(0, 3), (3, 1)], False)],
)
def test_an_append_says_whether_the_leader_lacks_records(batches: list[tuple[int, int]], lacks: bool) -> None:
    """With and without the plain path, which takes the batches after the first append. `batches`: offset, records."""
    for before in ([], [0]):
        log = open_log(a_disk(), **OURS)
        for offset in before:
            fetched(log, offset)
        content = b"".join(
            build_batch([(1_000, b"a", b"v", ())] * records, base_offset=len(before) + offset, leader_epoch=3)
            for offset, records in batches
        )
        made = log.append_as_follower(memoryview(content), leader_epoch=3, now_ms=1_000, epoch_starts=((3, 0),))
        assert made.lacks_records == lacks


def test_an_append_says_that_records_were_removed_from_a_batch() -> None:
    for before in ([], [0]):
        log = open_log(a_disk(), **OURS)
        for offset in before:
            fetched(log, offset)
        content = bytearray(build_batch([(1_000, b"a", b"v", ())], base_offset=len(before), leader_epoch=3))
        content[23:27] = (4).to_bytes(4, "big")  # the last of five offsets
        content[17:21] = crc32c(content[21:]).to_bytes(4, "big")
        assert log.append_as_follower(memoryview(content), leader_epoch=3, epoch_starts=((3, 0),)).lacks_records


def test_log_of_kafka_may_be_compacted_up_to_the_active_segment() -> None:
    disk = a_disk()
    log = open_log(disk, config=COMPACT)
    for _ in range(10):
        made = build_batch([(1_000, b"key", b"v" * 90, ())])
        log.append_as_leader(memoryview(made), leader_epoch=3, now_ms=1_000)
    log.close()
    again = open_log(disk, clean=True, config=COMPACT)
    assert again.complete_from == CompleteFrom(again.segments[-1].base_offset, -1) > CompleteFrom(0)


@pytest.mark.parametrize("content", [b"", b"12", b"twelve 3", b"1 2 3", b"9" * 30 + b" 1", b"12 -3"])
def test_damaged_file_applies_to_every_offset(content: bytes) -> None:
    disk = a_disk()
    disk.mkdir(DIRECTORY)
    replace_file(disk, f"{DIRECTORY}/{COMPLETE_FILE}", content)
    assert read_complete_from(disk, DIRECTORY).offset > 1 << 60
