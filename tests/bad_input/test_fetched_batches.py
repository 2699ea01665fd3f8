"""Invalid batches sent to a follower: rejected with the log unchanged, or appended completely.

Each field of a batch header is given invalid values with a matching checksum, so that only the checks of the log
protect the follower's disk from a faulty leader.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from fenceline.errors import FencelineError
from fenceline.ids import TopicPartition
from fenceline.log.core.config import LogConfig
from fenceline.log.core.tail import NOT_PLAIN
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.records.batch import compute_crc
from fenceline.records.build import build_batch
from fenceline.records.markers import end_marker
from fenceline.testing.sim_disk import SimDisk

WHERE = TopicPartition("rain", 0)
LEADER_EPOCH, NOW_MS = 5, 1_700_000_000_000
GAPS = LogConfig(cleanup_policy=frozenset({"compact"}))
"""Offsets may be missing, also where a segment ends."""
FIELDS = {
    "base_offset": (0, ">q"),
    "length": (8, ">i"),
    "leader_epoch": (12, ">i"),
    "magic": (16, ">b"),
    "attributes": (21, ">h"),
    "last_offset_delta": (23, ">i"),
    "base_timestamp": (27, ">q"),
    "max_timestamp": (35, ">q"),
    "producer_id": (43, ">q"),
    "producer_epoch": (51, ">h"),
    "base_sequence": (53, ">i"),
    "record_count": (57, ">i"),
}
"""Place and form in a batch."""


class CarefulLog(PartitionLog):
    """A log that never uses the fast path."""

    __slots__ = ()

    def append_fetched(self, records: memoryview, leader_epoch: int, now_ms: int) -> int:
        return NOT_PLAIN


def opened(disk: SimDisk, kind: type[PartitionLog] = PartitionLog) -> PartitionLog:
    return kind.open(
        disk, "/data/rain-0", topic_partition=WHERE, topic_id=None, config=GAPS, now_ms=NOW_MS, recovery_point=0
    )


def batch(offset: int, records: int = 3, **fields: Any) -> bytearray:
    rows = [(NOW_MS + number, b"k", b"v%d" % number, ()) for number in range(records)]
    return build_batch(rows, base_offset=offset, leader_epoch=LEADER_EPOCH, **fields)


def at(offset: int, built: bytearray) -> bytearray:
    """A batch as the leader would write it at this offset."""
    struct.pack_into(">q", built, 0, offset)
    struct.pack_into(">i", built, 12, LEADER_EPOCH)
    return built


def changed(built: bytearray, name: str, value: int) -> bytes:
    """The batch with another value in one field and a matching checksum."""
    position, form = FIELDS[name]
    struct.pack_into(form, built, position, value)
    struct.pack_into(">I", built, 17, compute_crc(built, 0, len(built)))
    return bytes(built)


KINDS: dict[str, Callable[[int], bytearray]] = {
    "plain": batch,
    "idempotent": lambda offset: batch(offset, producer_id=7, producer_epoch=0, base_sequence=3),
    "of a transaction": lambda offset: batch(
        offset, producer_id=8, producer_epoch=0, base_sequence=0, transactional=True
    ),
    "marker": lambda offset: at(offset, end_marker(False, 7, 0, 1, NOW_MS)),
}


def _values(form: str, rng: Random) -> Iterator[int]:
    bits = 8 * struct.calcsize(form)
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    yield from (low, low + 1, -2, -1, 0, 1, 2, high - 1, high)
    for _ in range(2):
        yield rng.randint(low, high)
        yield rng.randint(0, 200)


def _state(log: PartitionLog, disk: SimDisk) -> Any:
    files = {name: disk.peek(f"{log.directory}/{name}") for name in disk.listdir(log.directory)}
    return (
        log.log_start_offset,
        log.log_end_offset,
        log.size_bytes,
        log.epochs.entries,
        log.producers.encode(),
        files,
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("log_kind", [PartitionLog, CarefulLog])
@pytest.mark.parametrize("name", FIELDS)
def test_invalid_header_field_is_rejected(kind: str, log_kind: type[PartitionLog], name: str) -> None:
    rng = Random(f"{kind} {name}")
    for value in _values(FIELDS[name][1], rng):
        for behind in (b"", bytes(KINDS["plain"](6))):
            disk = SimDisk()
            disk.mkdir("/data")
            log = opened(disk, log_kind)
            log.append_as_follower(memoryview(batch(0, producer_id=7, producer_epoch=0, base_sequence=0)))
            before = _state(log, disk)
            try:
                sent = changed(KINDS[kind](3), name, value) + behind
            except struct.error:
                continue  # the length exceeds the bytes present: there is nothing to checksum
            try:
                info = log.append_as_follower(memoryview(sent), leader_epoch=LEADER_EPOCH, now_ms=NOW_MS)
            except FencelineError:
                assert _state(log, disk) == before, (value, bool(behind))
                continue
            if info.base_offset < 0:
                assert _state(log, disk) == before
                continue
            assert log.log_end_offset == info.last_offset + 1 > info.base_offset >= 3
            end, size, epochs = log.log_end_offset, log.size_bytes, log.epochs.entries
            log.close(clean=False)
            again = opened(disk)
            assert (again.log_end_offset, again.size_bytes, again.epochs.entries) == (end, size, epochs), value
            again.close(clean=False)


@pytest.mark.parametrize("log_kind", [PartitionLog, CarefulLog])
@pytest.mark.parametrize("kind", KINDS)
def test_bytes_damaged_in_transit_are_rejected(kind: str, log_kind: type[PartitionLog]) -> None:
    """Each byte of a batch except those before its checksum, which are checked against the log end offset."""
    sound = bytes(KINDS[kind](3))
    disk = SimDisk()
    disk.mkdir("/data")
    log = opened(disk, log_kind)
    log.append_as_follower(memoryview(batch(0)))
    before = _state(log, disk)
    for position in range(17, len(sound)):
        damaged = bytearray(sound)
        damaged[position] ^= 0x10
        with pytest.raises(FencelineError):
            log.append_as_follower(memoryview(damaged), leader_epoch=LEADER_EPOCH, now_ms=NOW_MS)
        assert _state(log, disk) == before, position
    assert log.append_as_follower(memoryview(sound), leader_epoch=LEADER_EPOCH).base_offset == 3


def test_empty_log_rejects_invalid_first_batch() -> None:
    """An empty log may start inside the leader's first batch, but only at a valid offset."""
    for offset, epoch in ((-5, 5), (-1, 5), (4, 9)):
        disk = SimDisk()
        disk.mkdir("/data")
        log = PartitionLog.open(
            disk,
            "/data/rain-0",
            topic_partition=WHERE,
            topic_id=None,
            config=LogConfig(),
            now_ms=0,
            log_start_offset=6,
        )
        sent = batch(offset, 20)
        struct.pack_into(">i", sent, 12, epoch)
        with pytest.raises(FencelineError):
            log.append_as_follower(memoryview(sent), leader_epoch=LEADER_EPOCH)
        assert (log.log_start_offset, log.log_end_offset) == (6, 6)


def test_gap_too_large_for_a_segment_is_appended_in_two_steps() -> None:
    """Compaction leaves gaps; an index entry holds a relative offset of 31 bits."""
    disk = SimDisk()
    disk.mkdir("/data")
    log = opened(disk)
    far = 1 << 40
    sent = memoryview(bytes(batch(0)) + bytes(batch(far)))
    assert log.append_as_follower(sent, leader_epoch=LEADER_EPOCH).last_offset == 2
    assert log.append_as_follower(memoryview(batch(far)), leader_epoch=LEADER_EPOCH).last_offset == far + 2
    log.close(clean=False)
    assert opened(disk).log_end_offset == far + 3


def test_answer_larger_than_a_segment_is_appended_in_parts() -> None:
    """`replica.fetch.max.bytes` may exceed `segment.bytes`."""
    disk = SimDisk()
    disk.mkdir("/data")
    one = bytes(batch(0))
    log = PartitionLog.open(
        disk,
        "/data/rain-0",
        topic_partition=WHERE,
        topic_id=None,
        config=LogConfig(segment_bytes=len(one) + 20),
        now_ms=0,
    )
    sent = b"".join(bytes(batch(3 * number)) for number in range(3))
    for number in range(3):
        info = log.append_as_follower(memoryview(sent[number * len(one) :]), leader_epoch=LEADER_EPOCH)
        assert info.last_offset == 3 * number + 2
    assert log.size_bytes == len(sent)
