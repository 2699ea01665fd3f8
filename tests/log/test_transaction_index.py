"""Aborted transactions and the last stable offset after restarts, crashes and truncations, compared with the batches.

What a reader of committed records skips must follow from the log alone, however often its files were closed, cut or
read again. Rules: transactions.md X41, X42, X44, X45.
"""

from __future__ import annotations

import errno
from random import Random

import pytest

from fenceline.log.core.config import LogConfig
from fenceline.log.core.disk import read_file, replace_file
from fenceline.log.core.index import AbortedTransaction, decode_aborted, encode_aborted
from fenceline.log.core.producer_state import Origin
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.records.markers import end_marker, read_end_marker
from fenceline.testing.sim_disk import SimDisk
from tests.log.helpers import DIRECTORY, SMALL, batch, open_log, read_all

NOW = 1_000


def data(log: PartitionLog, producer_id: int, *, records: int = 1, size: int = 20) -> None:
    """One transactional batch, with the next sequence."""
    known = log.producers.get(producer_id)
    sequence = known.last_sequence + 1 if known is not None else 0
    made = batch(
        records, size=size, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=True
    )
    log.append_as_leader(made, leader_epoch=0, now_ms=NOW)
    log.advance_high_watermark(log.log_end_offset)


def end(log: PartitionLog, producer_id: int, *, commit: bool) -> None:
    made = memoryview(end_marker(commit, producer_id, 0, 0, NOW))
    log.append_as_leader(made, leader_epoch=0, now_ms=NOW, origin=Origin.COORDINATOR)
    log.advance_high_watermark(log.log_end_offset)


def expected(log: PartitionLog) -> tuple[list[AbortedTransaction], int]:
    """The aborted transactions and the last stable offset, by the batches alone."""
    ongoing: dict[int, int] = {}
    aborted = []
    for header, content in read_all(log):
        if not header.is_transactional:
            continue
        marker = read_end_marker(header._replace(position=0), memoryview(content)) if header.is_control else None
        if marker is None:
            ongoing.setdefault(header.producer_id, header.base_offset)
            continue
        first = ongoing.pop(header.producer_id, None)
        if first is not None and not marker.commit:
            stable = min(ongoing.values(), default=header.next_offset)
            aborted.append(AbortedTransaction(header.producer_id, first, header.base_offset, stable))
    return aborted, min(ongoing.values(), default=log.log_end_offset)


def check(log: PartitionLog) -> None:
    aborted, stable = expected(log)
    assert log.aborted_transactions(log.log_start_offset, log.log_end_offset) == aborted
    assert log.last_stable_offset == stable


def on_disk(disk: SimDisk, base: int) -> list[AbortedTransaction] | None:
    content = read_file(disk, f"{DIRECTORY}/{base:020d}.txnindex")
    return None if content is None else decode_aborted(content)


def test_entries_have_the_layout_of_kafka() -> None:
    """34 bytes: int16 0, then four int64 (X42)."""
    encoded = encode_aborted([AbortedTransaction(1, 2, 3, 4)])
    assert encoded.hex() == "0000" + "".join(f"{number:016x}" for number in (1, 2, 3, 4))


def test_file_exists_from_the_first_abort_in_the_segment_of_its_marker(disk: SimDisk) -> None:
    log = open_log(disk)
    data(log, 5)
    end(log, 5, commit=True)
    data(log, 5)
    log.roll(NOW)
    end(log, 5, commit=False)
    log.close()
    assert (on_disk(disk, 0), on_disk(disk, 3)) == (None, [AbortedTransaction(5, 2, 3, 4)])


def test_look_up_begins_in_the_segment_of_the_fetch_offset_and_ends_at_a_stable_entry(disk: SimDisk) -> None:
    log = open_log(disk)
    data(log, 1)  # 0
    data(log, 2)  # 1
    log.roll(NOW)
    end(log, 2, commit=False)  # 2, while 1 is open
    data(log, 3)  # 3
    end(log, 3, commit=False)  # 4
    log.roll(NOW)
    end(log, 1, commit=False)  # 5
    found = [[(each.producer_id) for each in log.aborted_transactions(*bounds)] for bounds in ((0, 1), (3, 4), (5, 6))]
    assert found == [[1], [3, 1], [1]]
    data(log, 4)
    end(log, 4, commit=False)
    assert [each.producer_id for each in log.aborted_transactions(0, 6)] == [2, 3, 1]


def test_truncation_keeps_the_aborted_transactions_below_it(disk: SimDisk) -> None:
    """The newest snapshot lies in the middle of the segment: what ended before it is not replayed."""
    log = open_log(disk)
    data(log, 5)
    end(log, 5, commit=False)
    log.close()
    log = open_log(disk, clean=True, high_watermark=2)
    for _ in range(3):
        data(log, 5)
        end(log, 5, commit=False)
    log.truncate_to(6)
    check(log)
    assert len(log.aborted_transactions(0, 6)) == 3
    log.close()
    check(open_log(disk, clean=True, high_watermark=6))


def test_crash_after_a_clean_stop_in_the_middle_of_a_segment(disk: SimDisk) -> None:
    log = open_log(disk)
    data(log, 5)
    end(log, 5, commit=False)
    log.close()
    recovery_point = log.recovery_point
    log = open_log(disk, clean=True, high_watermark=2)
    data(log, 5)
    end(log, 5, commit=False)
    disk.unlink(f"{DIRECTORY}/{0:020d}.txnindex")
    check(open_log(disk, recovery_point=recovery_point, high_watermark=4))


def test_recovery_drops_entries_of_markers_that_were_lost(disk: SimDisk) -> None:
    """Apache Kafka writes an entry at once; after a crash it can name a marker that the log does not have."""
    log = open_log(disk)
    data(log, 5)
    end(log, 5, commit=False)
    log.close(clean=False)
    entries = [AbortedTransaction(5, 0, 1, 2), AbortedTransaction(5, 2, 3, 4)]
    replace_file(disk, f"{DIRECTORY}/{0:020d}.txnindex", encode_aborted(entries))
    check(open_log(disk, high_watermark=2))
    assert on_disk(disk, 0) == entries[:1], "the next start may trust the segment"


def test_entries_that_recovery_drops_on_a_full_disk_are_dropped_by_the_next_save(disk: SimDisk) -> None:
    log = open_log(disk)
    data(log, 5)
    log.close(clean=False)
    replace_file(disk, f"{DIRECTORY}/{0:020d}.txnindex", encode_aborted([AbortedTransaction(5, 0, 1, 2)]))
    disk.fail("open", ".txnindex.tmp", errno.ENOSPC)
    log = open_log(disk, high_watermark=1)
    check(log)
    disk.heal()
    log.close()
    assert on_disk(disk, 0) == []
    check(open_log(disk, clean=True, high_watermark=1))


def test_crash_after_a_flush_that_ended_where_the_segment_was_sealed(disk: SimDisk) -> None:
    """The flush did not write the indexes of the active segment, and the recovery point is the segment's end."""
    log = open_log(disk)
    data(log, 5)
    end(log, 5, commit=False)
    work = log.flush_work(NOW)
    assert work is not None
    work.run()
    log.roll(NOW)
    assert on_disk(disk, 0) is None, "otherwise this tests nothing"
    log = open_log(disk, recovery_point=log.recovery_point, high_watermark=2)
    assert [segment.base_offset for segment in log.segments] == [0, 2]
    check(log)
    assert on_disk(disk, 0) == [AbortedTransaction(5, 0, 1, 2)], "the next start may trust the segment"


@pytest.mark.parametrize(
    "spoil", [b"\x00", encode_aborted([AbortedTransaction(5, 0, 1, 2)])[:-1], b"\x00\x07" + bytes(32)]
)
@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize("is_full", [True, False])
def test_damaged_file_is_rebuilt_from_the_batches(disk: SimDisk, spoil: bytes, is_last: bool, is_full: bool) -> None:
    """Without it a reader of committed records would get what was aborted, and nothing would say so."""
    log = open_log(disk)
    data(log, 4)
    log.roll(NOW)
    data(log, 5)
    end(log, 5, commit=False)
    end(log, 4, commit=False)
    if not is_last:
        log.roll(NOW)
        data(log, 6)
    log.close()
    replace_file(disk, f"{DIRECTORY}/{1:020d}.txnindex", spoil)
    if is_full:
        disk.fail("open", ".txnindex.tmp", errno.ENOSPC)
    log = open_log(disk, clean=True, high_watermark=log.log_end_offset)
    check(log)
    assert len(log.aborted_transactions(0, log.log_end_offset)) == 2
    disk.heal()
    log.close()
    assert on_disk(disk, 1) == [AbortedTransaction(5, 1, 2, 0), AbortedTransaction(4, 0, 3, 4)]


def test_deleted_records_of_an_open_transaction(disk: SimDisk) -> None:
    """X44: DeleteRecords goes past it, the entry stays, and the last stable offset is the log start."""
    log = open_log(disk, config=SMALL)
    for _ in range(30):
        data(log, 5)
    log.advance_log_start(20)
    log.enforce_retention(NOW)
    assert (log.log_start_offset, log.last_stable_offset) == (20, 20)
    assert [each.transaction_first_offset for each in log.producers] == [0]
    end(log, 5, commit=False)
    assert log.last_stable_offset == 31
    assert log.aborted_transactions(20, 31) == [AbortedTransaction(5, 0, 30, 31)]


def test_retention_by_time_goes_past_an_open_transaction(disk: SimDisk) -> None:
    log = open_log(disk, config=LogConfig(segment_bytes=1_000, retention_ms=10))
    for _ in range(30):
        data(log, 5)
    log.enforce_retention(NOW + 60_000)
    assert log.log_start_offset == log.last_stable_offset == 30
    assert [each.transaction_first_offset for each in log.producers] == [0]


class Story:
    """Random operations on a log of transactions."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.disk = SimDisk(seed)
        self.disk.mkdir("/data")
        self.config = LogConfig(
            segment_bytes=self.rng.choice([600, 2_000, 20_000]), index_interval_bytes=self.rng.choice([0, 150, 4096])
        )
        self.log = open_log(self.disk, config=self.config)
        self.checkpoint = 0

    def append(self) -> None:
        data(self.log, self.rng.randint(1, 4), records=self.rng.choice([1, 3]), size=self.rng.choice([1, 100]))

    def decide(self) -> None:
        end(self.log, self.rng.randint(1, 4), commit=self.rng.random() < 0.3)

    def plain(self) -> None:
        self.log.append_as_leader(batch(), leader_epoch=0, now_ms=NOW)

    def roll(self) -> None:
        self.log.roll(NOW)

    def flush(self) -> None:
        work = self.log.flush_work(NOW)
        if work is not None:
            work.run()
            self.checkpoint = self.log.recovery_point

    def truncate(self) -> None:
        low = max(0, self.log.log_end_offset - 20)
        self.log.truncate_to(self.rng.randint(low, self.log.log_end_offset))
        self.checkpoint = min(self.checkpoint, self.log.recovery_point)

    def stop(self) -> None:
        self.log.close()
        self.checkpoint = self.log.log_end_offset
        self._reopen(clean=True)

    def crash(self) -> None:
        self.disk.crash()
        self._reopen(clean=False)

    def _reopen(self, *, clean: bool) -> None:
        self.log = open_log(
            self.disk, config=self.config, clean=clean, recovery_point=self.checkpoint, high_watermark=1 << 60
        )

    def run(self) -> None:
        steps = [*[self.append] * 10, *[self.decide] * 8, self.plain, self.plain, self.roll, self.flush]
        steps += [self.truncate, self.stop, self.crash]
        for _ in range(120):
            self.rng.choice(steps)()
            self.log.advance_high_watermark(self.log.log_end_offset)
            check(self.log)


@pytest.mark.parametrize("seed", range(60))
def test_stories(seed: int) -> None:
    Story(seed).run()
