"""`append_plain` and `append_fetched`: an append that they accept has the result of the full checks."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from fenceline.errors import FencelineError, PeerError
from fenceline.log.core import _tail_py, tail
from fenceline.log.core.config import LogConfig
from fenceline.log.core.errors import StorageError
from fenceline.log.core.tail import NOT_PLAIN, WRITE_BYTES
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.records.batch import Codec, assign_in_place
from fenceline.records.build import build_batch
from fenceline.records.markers import abort_marker
from fenceline.testing.sim_disk import SimDisk
from tests.log.helpers import DIRECTORY, TOPIC_ID, TP, batch
from tests.records.produce_cases import CASES, HOUR_MS, MAX_MESSAGE_BYTES, TOPICS, Case, rows

NOW = 1_700_000_000_000


class CarefulLog(PartitionLog):
    """Never uses the fast path."""

    __slots__ = ()

    def append_plain(self, records: memoryview, leader_epoch: int, now_ms: int) -> int:
        return NOT_PLAIN

    def append_fetched(self, records: memoryview, leader_epoch: int, now_ms: int) -> int:
        return NOT_PLAIN


class Pair:
    """The same log twice, one without the fast path. Every append goes to both and must have the same result."""

    def __init__(self, config: LogConfig) -> None:
        self.logs: list[PartitionLog] = []
        for kind in (PartitionLog, CarefulLog):
            disk = SimDisk()
            disk.mkdir("/data")
            self.logs.append(
                kind.open(disk, DIRECTORY, topic_partition=TP, topic_id=TOPIC_ID, config=config, now_ms=NOW)
            )

    def append(self, content: bytes, *, epoch: int = 0, version: int = 9, now_ms: int = NOW) -> Any:
        outcomes: list[Any] = []
        for log in self.logs:
            records = memoryview(bytearray(content))
            try:
                info = log.append_as_leader(records, leader_epoch=epoch, now_ms=now_ms, version=version)
                outcomes.append(info)
            except PeerError as error:
                outcomes.append((error.code, error.message))
        assert outcomes[0] == outcomes[1]
        return outcomes[0]

    def fetch(self, content: bytes, *, leader_epoch: int, now_ms: int = NOW) -> Any:
        """As `append`, for batches fetched from a leader."""
        outcomes: list[Any] = []
        for log in self.logs:
            try:
                outcomes.append(log.append_as_follower(memoryview(content), leader_epoch=leader_epoch, now_ms=now_ms))
            except (PeerError, FencelineError) as error:
                outcomes.append((type(error), str(error)))
        assert outcomes[0] == outcomes[1]
        return outcomes[0]

    def check(self) -> None:
        states = [self._state(log) for log in self.logs]
        assert states[0] == states[1]

    @staticmethod
    def _state(log: PartitionLog) -> list[Any]:
        disk = log.disk
        last = log.segments[-1] if log.segments else None
        state: list[Any] = [
            log.log_end_offset,
            log.size_bytes,
            log.epochs.entries,
            log.producers.encode(),
            [producer.batches for producer in log.producers],
            [
                (s.base_offset, s.size_bytes, s.next_offset, s.first_timestamp_ms, s.max_timestamp_ms)
                for s in log.segments
            ],
            last and (last.max_timestamp_offset, last.bytes_since_index, last.last_batch_position, last.recently_used),
        ]
        log.close()
        for name in disk.listdir(DIRECTORY):
            fd = disk.open_read(f"{DIRECTORY}/{name}")
            state.append((name, disk.pread(fd, 1 << 30, 0)))
            disk.close(fd)
        return state


def counting(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> Callable[[], int]:
    """How many appends so far the fast log left to the full checks."""
    careful = 0
    original = PartitionLog._write

    def write(self: PartitionLog, *args: Any) -> Any:
        nonlocal careful
        careful += self is pair.logs[0]
        return original(self, *args)

    monkeypatch.setattr(PartitionLog, "_write", write)
    return lambda: careful


@pytest.mark.parametrize("compressed", [True, False], ids=["opened", "closed"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_has_the_result_of_the_full_checks(case: Case, compressed: bool) -> None:
    settings = {"max.message.bytes": str(MAX_MESSAGE_BYTES), "message.timestamp.after.max.ms": str(HOUR_MS)}
    config = LogConfig.from_mapping(
        settings | TOPICS[case.topic] | {"fenceline.validate.compressed.records": str(compressed).lower()}
    )
    pair = Pair(config)
    pair.append(build_batch(rows(NOW)))
    for _ in range(2):  # the second time the producer is known
        pair.append(case.make(NOW), version=case.version)
    pair.check()


@pytest.mark.compiled
def test_plain_append_uses_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(LogConfig())
    careful = counting(monkeypatch, pair)
    for number in range(10):
        pair.append(bytes(batch(3, producer_id=7, producer_epoch=0, base_sequence=3 * number, timestamp=NOW)))
    assert careful() == 1, "only the first one, which creates the segment and has an unknown producer"
    pair.append(bytes(batch(1, producer_id=7, producer_epoch=0, base_sequence=30, timestamp=NOW)), epoch=1)
    assert careful() == 2, "a new leader epoch"
    pair.check()


@pytest.mark.parametrize("seed", range(40))
def test_random_appends_have_the_result_of_the_full_checks(seed: int) -> None:
    """Several producers with duplicates, gaps, new epochs and transactions; rolls, index entries, large batches."""
    rng = Random(seed)
    config = LogConfig(
        segment_bytes=rng.choice([3_000, 200_000]),
        index_interval_bytes=rng.choice([0, 150, 4096]),
        segment_ms=rng.choice([50, 1 << 40]),
        segment_index_bytes=rng.choice([48, 1 << 20]),
    )
    pair = Pair(config)
    sequences = dict.fromkeys((-1, 3, 4), 0)
    epochs = dict.fromkeys(sequences, 0)
    leader_epoch, now = 0, NOW
    for _ in range(120):
        producer = rng.choice(list(sequences))
        count = rng.randint(1, 4)
        sequence = sequences[producer]
        chance = rng.random()
        if chance < 0.05:
            sequence = max(0, sequence - count)
        elif chance < 0.08:
            sequence += rng.randint(1, 3)
        elif chance < 0.1:
            epochs[producer] += 1
            sequence = rng.choice([0, sequence])
        elif chance < 0.12:
            leader_epoch += 1
        now += rng.randint(0, 9)
        idempotent = producer >= 0
        size = rng.choice([1, 20, 300]) if config.segment_bytes < 10_000 or rng.random() < 0.9 else WRITE_BYTES
        made = batch(
            count,
            size=size,
            timestamp=now - rng.randint(0, 60),
            codec=rng.choice([Codec.NONE, Codec.NONE, Codec.LZ4]),
            producer_id=producer,
            producer_epoch=max(0, epochs[producer] - (rng.random() < 0.03)) if idempotent else -1,
            base_sequence=sequence if idempotent else -1,
            transactional=idempotent and rng.random() < 0.05,
        )
        outcome = pair.append(bytes(made), epoch=leader_epoch, now_ms=now)
        if hasattr(outcome, "duplicate") and not outcome.duplicate:
            sequences[producer] = sequence + count
    pair.check()


@pytest.mark.compiled
def test_both_paths_keep_the_same_producer_state() -> None:
    rng = Random(1)
    twins = [kind(9, 1, -1, 5, -1) for kind in (tail.ProducerEntry, _tail_py.ProducerEntry)]
    for number in range(40):
        for producer in twins:
            if number % 17 == 16:
                producer.forget_batches()
            producer.remember(number, number + 1, 2 * number, 2 * number + 1, 100 + number)
        if rng.random() < 0.7:
            assert twins[0].batches == twins[1].batches
            assert (twins[0].last_sequence, twins[0].last_offset) == (twins[1].last_sequence, twins[1].last_offset)


def of_leader(made: memoryview, offset: int, epoch: int) -> bytes:
    """The batch as its leader appended it."""
    content = memoryview(bytearray(made))
    assign_in_place(content, 0, offset, epoch)
    return bytes(content)


@pytest.mark.compiled
def test_plain_fetched_batches_use_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(LogConfig())
    careful = counting(monkeypatch, pair)
    for number in range(10):
        first, second = (
            batch(3, producer_id=7, producer_epoch=0, base_sequence=6 * number + each, timestamp=NOW) for each in (0, 3)
        )
        at = 6 * number
        pair.fetch(
            of_leader(first, at, 2) + of_leader(second, at + 3, 2) + of_leader(second, at + 6, 2)[:-1], leader_epoch=3
        )
    assert careful() == 1, "only the first one, which creates the segment and has an unknown producer and epoch"
    pair.fetch(of_leader(batch(1, timestamp=NOW), 60, 3), leader_epoch=3)
    assert careful() == 2, "a new leader epoch"
    assert pair.logs[0].log_end_offset == 61
    pair.check()


@pytest.mark.parametrize("seed", range(60))
def test_random_fetch_responses_have_the_result_of_the_full_checks(seed: int) -> None:
    """Gaps, leader and producer epochs, transactions and markers, damage, truncated and repeated batches; rolls."""
    rng = Random(seed)
    config = LogConfig(
        segment_bytes=rng.choice([3_000, 200_000]),
        index_interval_bytes=rng.choice([0, 150, 4096]),
        segment_ms=rng.choice([50, 1 << 40]),
        segment_index_bytes=rng.choice([48, 1 << 20]),
    )
    pair = Pair(config)
    now, leader_epoch = NOW, 0
    epochs = dict.fromkeys((-1, 3, 4), 0)
    sequences = dict.fromkeys(epochs, 0)
    for _ in range(80):
        now += rng.randint(0, 9)
        leader_epoch += rng.random() < 0.05
        answer = bytearray()
        offset = pair.logs[0].log_end_offset
        if rng.random() < 0.04:
            offset = max(0, offset - rng.randint(1, 3))
        for _ in range(rng.choice([0, 1, 1, 2, 3, 6])):
            offset += rng.randint(1, 5) * (rng.random() < 0.05)
            producer, count = rng.choice(list(epochs)), rng.randint(1, 4)
            if rng.random() < 0.02:
                epochs[producer] += 1
            if producer >= 0 and rng.random() < 0.05:
                made, count = memoryview(abort_marker(producer, epochs[producer], 0, now)), 1
            else:
                made = batch(
                    count,
                    size=WRITE_BYTES if rng.random() < 0.03 and config.segment_bytes > WRITE_BYTES else 20,
                    timestamp=now - rng.randint(0, 60),
                    codec=rng.choice([Codec.NONE, Codec.LZ4]),
                    producer_id=producer,
                    producer_epoch=epochs[producer] if producer >= 0 else -1,
                    base_sequence=sequences[producer] if producer >= 0 else -1,
                    transactional=producer >= 0 and rng.random() < 0.05,
                )
                sequences[producer] += count if producer >= 0 else 0
            epoch = leader_epoch + rng.choice([-1, 1]) * (rng.random() < 0.02)
            answer += of_leader(made, offset, max(0, epoch))
            offset += count
        if answer and rng.random() < 0.04:
            answer[rng.randrange(len(answer))] ^= 1 << rng.randrange(8)
        if rng.random() < 0.2:
            del answer[len(answer) - rng.randint(0, min(90, len(answer))) :]
        pair.fetch(bytes(answer), leader_epoch=leader_epoch, now_ms=now)
    assert pair.logs[0].log_end_offset > 50
    pair.check()


@pytest.mark.compiled
def test_full_disk_leaves_a_follower_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(LogConfig())
    pair.fetch(of_leader(batch(2, timestamp=NOW), 0, 0), leader_epoch=0)

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    for log in pair.logs:
        monkeypatch.setattr(log.disk, "write", full)
    kind, message = pair.fetch(of_leader(batch(2, timestamp=NOW), 2, 0), leader_epoch=0)
    assert kind is StorageError
    assert "appending to" in message
    monkeypatch.undo()
    pair.fetch(of_leader(batch(2, timestamp=NOW), 2, 0), leader_epoch=0)
    assert pair.logs[0].log_end_offset == 4
    pair.check()
