"""Random operations on a log with crashes, compared with a model: no flushed record is lost, none is invented.

Every seed is one story; pytest names the failing seed, which can be run alone.
"""

from __future__ import annotations

from random import Random

import pytest

from fenceline.log.core.config import LogConfig
from fenceline.log.core.flush import FlushWork
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.records.batch import iter_headers
from fenceline.testing.sim_disk import SimDisk
from tests.log.helpers import batch, open_log, read_all


class Story:
    """A log and its expected content: `batches` are (base offset, next offset, epoch, producer id, bytes)."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.disk = SimDisk(seed)
        self.disk.mkdir("/data")
        interval = self.rng.choice([0, 200, 4096])
        self.config = LogConfig(segment_bytes=self.rng.choice([600, 3000, 20_000]), index_interval_bytes=interval)
        self.log = open_log(self.disk, config=self.config)
        self.batches: list[tuple[int, int, int, int, bytes]] = []
        self.sequences: dict[int, int] = {}
        self.epoch = 0
        self.flushed = 0
        self.checkpoint = 0
        self.flying: FlushWork | None = None

    # -- operations ---------------------------------------------------------------------------------------

    def append(self) -> None:
        if self.rng.random() < 0.05:
            self.epoch += self.rng.randint(1, 3)
        producer = self.rng.choice([-1, -1, 7, 8])
        records = self.rng.choice([1, 1, 3, 40])
        sequence = self.sequences.get(producer, 0) if producer >= 0 else -1
        made = batch(
            records,
            size=self.rng.choice([1, 30]),
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence,
        )
        if len(made) > self.config.segment_bytes:
            return
        info = self.log.append_as_leader(made, leader_epoch=self.epoch, now_ms=1_000)
        assert not info.duplicate
        if producer >= 0:
            self.sequences[producer] = sequence + records
        self.batches.append((info.base_offset, info.last_offset + 1, self.epoch, producer, bytes(made)))

    def append_replicated(self) -> None:
        """Several batches of a leader in one write."""
        base = self.log.log_end_offset
        piece = bytearray()
        for _ in range(self.rng.randint(1, 4)):
            records = self.rng.randint(1, 5)
            made = bytes(batch(records, base_offset=base, leader_epoch=self.epoch))
            self.batches.append((base, base + records, self.epoch, -1, made))
            base += records
            piece += made
        if len(piece) > self.config.segment_bytes:
            del self.batches[-sum(1 for _ in iter_headers(piece)) :]
            return
        self.log.append_as_follower(memoryview(piece), now_ms=1_000)

    def flush(self) -> None:
        if self.flying is not None:
            work, self.flying = self.flying, None
            work()
            work.complete()
            self.flushed = max(self.flushed, min(work.up_to_offset, self.log.log_end_offset))
            self.checkpoint = self.log.recovery_point
        else:
            self.flying = self.log.flush_work(1_000)

    def roll(self) -> None:
        self.log.roll(1_000)

    def truncate(self) -> None:
        if not self.batches or self.rng.random() < 0.7:
            return
        low = self.batches[max(0, len(self.batches) - 8)][0]
        offset = self.rng.randint(low, self.log.log_end_offset)
        self.log.truncate_to(offset)
        self.batches = [kept for kept in self.batches if kept[1] <= offset]
        end = self.batches[-1][1] if self.batches else offset if self.log.log_end_offset == offset else 0
        assert self.log.log_end_offset == end or not self.batches
        self.flushed = min(self.flushed, self.log.log_end_offset)
        self.checkpoint = min(self.checkpoint, self.log.recovery_point)
        self.flying = None
        self.rewind()

    def stop_cleanly(self) -> None:
        self.flying = None
        self.log.close()
        self.flushed = self.checkpoint = self.log.log_end_offset
        self.reopen(clean=True)
        self.same()

    def crash(self) -> None:
        self.flying = None
        self.disk.crash()
        self.reopen(clean=False)
        end = self.log.log_end_offset
        assert end >= self.flushed, f"flushed up to {self.flushed}, but the log ends at {end}"
        self.batches = [kept for kept in self.batches if kept[1] <= end]
        assert not self.batches or self.batches[-1][1] == end, "the log ends inside a batch"
        self.rewind()
        self.same()

    # -- invariants -------------------------------------------------------------------------------------

    def reopen(self, *, clean: bool) -> None:
        self.log = open_log(self.disk, config=self.config, recovery_point=self.checkpoint, clean=clean)

    def rewind(self) -> None:
        """Producers continue from the remaining batches."""
        self.sequences.clear()
        for base, after, _, producer, _ in self.batches:
            if producer >= 0:
                self.sequences[producer] = self.sequences.get(producer, 0) + after - base
        self.epoch = max(self.epoch, self.log.latest_epoch)

    def same(self) -> None:
        log = self.log
        found = read_all(log, max_bytes=self.rng.choice([1, 500, 1 << 20]))
        assert [content for _, content in found] == [kept[4] for kept in self.batches]
        epochs: dict[int, int] = {}
        for base, _, epoch, _, _ in self.batches:
            epochs.setdefault(epoch, base)
        assert log.epochs.entries == tuple(epochs.items())
        for producer, following in self.sequences.items():
            state = log.producers.get(producer)
            assert state is not None
            assert state.last_sequence == following - 1
        assert {state.producer_id for state in log.producers} == set(self.sequences)
        for base, after, _, _, _ in self.batches[:: max(1, len(self.batches) // 5)]:
            read = log.read(self.rng.randrange(base, after), 1, end_offset_exclusive=log.log_end_offset)
            assert next(iter_headers(read.load())).base_offset == base

    def live(self, steps: int) -> None:
        kinds = [self.append] * 12 + [self.append_replicated] * 2 + [self.flush] * 3
        kinds += [self.roll, self.truncate, self.crash, self.stop_cleanly, self.same]
        for _ in range(steps):
            self.rng.choice(kinds)()
        self.crash()
        self.stop_cleanly()
        assert isinstance(self.log, PartitionLog)


@pytest.mark.parametrize("seed", range(120))
def test_random_operations_with_crashes(seed: int) -> None:
    Story(seed).live(120)


@pytest.mark.parametrize("seed", range(120, 180))
def test_random_operations_with_crashes_and_syncs_of_the_whole_file_system(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """As if every flush had many segments."""
    monkeypatch.setattr("fenceline.log.partition.saving.TOGETHER_FROM", 1)
    monkeypatch.setattr("fenceline.log.core.flush.TOGETHER_FROM", 1)
    monkeypatch.setattr("fenceline.log.core.flush._AT_ONCE", 2)
    Story(seed).live(120)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("start", range(0, 6000, 500))
def test_long_random_operations_with_crashes(start: int) -> None:
    for seed in range(start + 1000, start + 1500):
        Story(seed).live(200)
