"""Sequence, epoch and transaction checks of producers, through the log they write to.

Rules: transactions.md X36, X38, X40-X42.
"""

from __future__ import annotations

import struct
from typing import Any

import pytest

from fenceline.errors import ErrorCode, PeerError
from fenceline.log.core.producer_state import BadSnapshot, Origin, ProducerStates
from fenceline.log.partition.partition_log import AppendInfo, PartitionLog
from fenceline.records.build import build_batch
from fenceline.records.sequences import MAX_SEQUENCE
from fenceline.testing.sim_disk import SimDisk
from tests.log.helpers import DIRECTORY, batch, open_log


@pytest.fixture
def log(disk: SimDisk) -> PartitionLog:
    return open_log(disk)


def send(log: PartitionLog, sequence: int, records: int = 1, *, epoch: int = 0, **fields: Any) -> AppendInfo:
    made = batch(records, producer_id=5, producer_epoch=epoch, base_sequence=sequence, **fields)
    info = log.append_as_leader(made, leader_epoch=0, now_ms=1_000)
    log.advance_high_watermark(log.log_end_offset)
    return info


def marker(*, commit: bool, epoch: int = 0, coordinator: int = 0) -> memoryview:
    key, value = struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, coordinator)
    made = build_batch([(1_000, key, value, ())], producer_id=5, producer_epoch=epoch, transactional=True, control=True)
    return memoryview(made)


def mark(log: PartitionLog, *, commit: bool, epoch: int = 0, coordinator: int = 0, version: int = 0) -> None:
    made = marker(commit=commit, epoch=epoch, coordinator=coordinator)
    log.append_as_leader(made, leader_epoch=0, now_ms=1_000, origin=Origin.COORDINATOR, transaction_version=version)
    log.advance_high_watermark(log.log_end_offset)


def refused(code: ErrorCode, log: PartitionLog, *args: Any, **fields: Any) -> None:
    end = log.log_end_offset
    with pytest.raises(PeerError) as caught:
        send(log, *args, **fields)
    assert caught.value.code is code
    assert log.log_end_offset == end


def test_sequences_follow_each_other(log: PartitionLog) -> None:
    send(log, 0, 3)
    send(log, 3, 2)
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log, 6)
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log, 4)
    send(log, 5)


def test_last_five_batches_are_detected_as_duplicates(log: PartitionLog) -> None:
    for number in range(7):
        send(log, number * 2, 2)
    for number in range(2, 7):
        again = send(log, number * 2, 2)
        assert (again.duplicate, again.base_offset, again.last_offset) == (True, number * 2, number * 2 + 1)
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log, 2, 2)
    assert log.log_end_offset == 14


def reopened(disk: SimDisk, log: PartitionLog) -> PartitionLog:
    """Reopen after a clean shutdown: the snapshot has only the last batch of each producer."""
    log.close(clean=True)
    again = open_log(disk, clean=True)
    assert [len(producer.batches) for producer in again.producers] == [1]
    return again


def test_duplicates_missing_from_the_snapshot_are_found_in_the_log_after_a_restart(disk: SimDisk) -> None:
    """Five batches were in flight when a leader restarted: each of them is sent again (transactions.md X36)."""
    log = open_log(disk)
    first = log.log_end_offset
    for number in range(7):
        send(log, number * 2, 2)
        for _ in range(400):
            log.append_as_leader(batch(1), leader_epoch=0, now_ms=1_000)
    log = reopened(disk, log)
    end = log.log_end_offset
    for number in range(2, 7):
        again = send(log, number * 2, 2)
        assert (again.duplicate, again.base_offset, again.last_offset) == (True, first + number * 402, number * 402 + 1)
    assert log.log_end_offset == end
    send(log, 14)


def test_log_is_searched_once_for_a_batch_that_it_does_not_have(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(disk)
    for number in range(3):
        send(log, number * 2, 2)
    log = reopened(disk, log)
    searched: list[int] = []
    read = log.read

    def counted(offset: int, *args: Any, **fields: Any) -> Any:
        searched.append(offset)
        return read(offset, *args, **fields)

    monkeypatch.setattr(PartitionLog, "read", lambda self, *args, **fields: counted(*args, **fields))
    for _ in range(3):
        refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log, 2, 1)
        refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log, 7)
    assert searched == [0]


def test_log_is_not_searched_for_a_producer_with_five_remembered_batches(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(7):
        send(log, number * 2, 2)
    monkeypatch.setattr(PartitionLog, "read", None)
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log, 2, 2)


def test_part_of_a_batch_is_not_a_duplicate(log: PartitionLog) -> None:
    send(log, 0, 5)
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log, 0, 3)


def test_an_unknown_producer_may_start_anywhere(log: PartitionLog) -> None:
    assert not send(log, 77).duplicate
    send(log, 78)


def test_sequence_wraps(log: PartitionLog) -> None:
    send(log, MAX_SEQUENCE - 1, 4)
    assert [state.last_sequence for state in log.producers] == [1]
    assert send(log, MAX_SEQUENCE - 1, 4).duplicate
    send(log, 2)


def test_sequence_after_the_maximum_is_zero(log: PartitionLog) -> None:
    send(log, MAX_SEQUENCE)
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log, 1)
    send(log, 0)


def test_a_new_epoch_starts_at_zero_and_fences_the_old(log: PartitionLog) -> None:
    send(log, 0)
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log, 1, epoch=1)
    send(log, 0, epoch=1)
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, log, 1, epoch=0)
    assert send(log, 0, epoch=1).duplicate


def test_an_open_transaction_holds_the_stable_offset(log: PartitionLog) -> None:
    log.append_as_leader(batch(3), leader_epoch=0, now_ms=1_000)
    send(log, 0, 2, transactional=True)
    assert (log.high_watermark, log.last_stable_offset) == (5, 3)
    refused(ErrorCode.INVALID_TXN_STATE, log, 2)
    send(log, 2, transactional=True)
    assert log.last_stable_offset == 3
    mark(log, commit=False)
    assert log.last_stable_offset == log.log_end_offset == 7
    assert [entry[:3] for entry in log.aborted_transactions(0, 7)] == [(5, 3, 6)]
    assert log.aborted_transactions(0, 3) == []


def test_a_decided_transaction_waits_for_its_marker_to_be_replicated(log: PartitionLog) -> None:
    send(log, 0, transactional=True)
    log.append_as_leader(marker(commit=True), leader_epoch=0, now_ms=1_000, origin=Origin.COORDINATOR)
    log.append_as_leader(batch(), leader_epoch=0, now_ms=1_000)
    log.advance_high_watermark(1)
    assert log.producers.first_unstable_offset == 0
    assert log.last_stable_offset == 0
    log.advance_high_watermark(2)
    assert log.last_stable_offset == 2


def test_markers_are_fenced(log: PartitionLog) -> None:
    send(log, 0, epoch=3, transactional=True)
    with pytest.raises(PeerError) as old:
        mark(log, commit=True, epoch=2)
    assert old.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(PeerError) as same:
        mark(log, commit=True, epoch=3, version=2)
    assert same.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    mark(log, commit=True, epoch=4, coordinator=9, version=2)
    mark(log, commit=True, epoch=4, coordinator=9, version=2)  # repeats a marker that was already written
    with pytest.raises(PeerError) as zombie:
        mark(log, commit=True, epoch=4, coordinator=8)
    assert zombie.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED


@pytest.mark.parametrize("clean", [True, False])
def test_state_survives_a_restart(log: PartitionLog, disk: SimDisk, clean: bool) -> None:
    send(log, 0, 3)
    send(log, 3, transactional=True)
    if clean:
        log.close()
    again = open_log(disk, clean=clean, high_watermark=4)
    # A snapshot has the last batch only, and batches below it are not replayed.
    assert [len(state.batches) for state in again.producers] == [1 if clean else 2]
    assert send(again, 3, transactional=True).duplicate
    assert again.last_stable_offset == 3
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, again, 9, transactional=True)
    mark(again, commit=False)
    assert [entry[:3] for entry in again.aborted_transactions(0, 9)] == [(5, 3, 4)]


def test_a_damaged_snapshot_is_replaced_by_the_batches(log: PartitionLog, disk: SimDisk) -> None:
    send(log, 0, 3)
    log.close()
    fd = disk.open_append(f"{DIRECTORY}/{3:020d}.snapshot")
    content = bytearray(disk.pread(fd, 1000, 0))
    content[20] ^= 1
    disk.truncate(fd, 0)
    disk.write(fd, content)
    again = open_log(disk, clean=True)
    assert send(again, 0, 3).duplicate


def test_idle_producers_expire_but_not_in_a_transaction(log: PartitionLog) -> None:
    send(log, 0)
    day = log.config.producer_id_expiration_ms
    log.enforce_retention(1_000 + day - 1)
    assert len(log.producers) == 1
    log.enforce_retention(1_000 + day)
    assert len(log.producers) == 0
    send(log, 0, transactional=True)
    log.enforce_retention(1_000 + 2 * day)
    assert len(log.producers) == 1


@pytest.mark.parametrize("spoil", [b"", b"\x00\x01", b"\x00\x02" + bytes(8), b"\x00\x01" + bytes(8)])
def test_invalid_snapshot_is_ignored(log: PartitionLog, spoil: bytes) -> None:
    send(log, 0)
    with pytest.raises(BadSnapshot):
        log.producers.load(spoil, now_ms=0, expiration_ms=1)
    assert len(log.producers) == 1
    copy = ProducerStates()
    copy.load(log.producers.encode(), now_ms=0, expiration_ms=1 << 40)
    assert [state.last_sequence for state in copy] == [0]
