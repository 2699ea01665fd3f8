"""Guards of transactional batches, alone and through the log that they protect.

Rules: transactions.md X36 to X38, X40; the bugs KAFKA-12671, 14884, 14904, 18957, 19446, 19690, 19999.
"""

from __future__ import annotations

from typing import Any

import pytest

from fenceline.errors import ErrorCode, PeerError
from fenceline.log.core.guards import VerificationGuard, VerificationGuards
from fenceline.log.core.producer_state import Origin
from fenceline.log.partition.partition_log import AppendInfo, PartitionLog
from fenceline.records.markers import end_marker
from fenceline.records.sequences import MAX_SEQUENCE
from fenceline.testing.sim_disk import SimDisk
from tests.log.helpers import batch, open_log

NOW = 1_000
PRODUCER = 5


@pytest.fixture
def log(disk: SimDisk) -> PartitionLog:
    return open_log(disk)


def ask(log: PartitionLog, sequence: int = 0, *, epoch: int = 0, adds: bool = False) -> VerificationGuard | None:
    return log.begin_verification(PRODUCER, epoch, sequence, adds_partition=adds, now_ms=NOW)


def send(
    log: PartitionLog,
    sequence: int,
    guard: VerificationGuard | None = None,
    *,
    epoch: int = 0,
    origin: Origin = Origin.CLIENT,
    **fields: Any,
) -> AppendInfo:
    fields.setdefault("transactional", True)
    made = batch(1, producer_id=PRODUCER, producer_epoch=epoch, base_sequence=sequence, **fields)
    info = log.append_as_leader(made, leader_epoch=0, now_ms=NOW, origin=origin, guard=guard)
    log.advance_high_watermark(log.log_end_offset)
    return info


def mark(log: PartitionLog, *, epoch: int = 0, version: int = 0, coordinator: int = 0) -> None:
    made = memoryview(end_marker(True, PRODUCER, epoch, coordinator, NOW))
    log.append_as_leader(made, leader_epoch=0, now_ms=NOW, origin=Origin.COORDINATOR, transaction_version=version)
    log.advance_high_watermark(log.log_end_offset)


def refused(code: ErrorCode, log: PartitionLog, *args: Any, **fields: Any) -> None:
    end = log.log_end_offset
    with pytest.raises(PeerError) as caught:
        send(log, *args, **fields)
    assert caught.value.code is code
    assert log.log_end_offset == end


def is_open(log: PartitionLog) -> bool:
    return any(each.transaction_first_offset >= 0 for each in log.producers)


def test_batch_that_opens_a_transaction_needs_a_guard(log: PartitionLog) -> None:
    refused(ErrorCode.INVALID_TXN_STATE, log, 0)
    guard = ask(log)
    assert guard is not None
    refused(ErrorCode.INVALID_TXN_STATE, log, 0, VerificationGuard(0, adds_partition=False, now_ms=NOW))
    send(log, 0, guard)
    assert ask(log, 1) is None, "it is open: the coordinator need not be asked again"
    send(log, 1)


def test_batches_of_one_producer_share_a_guard_while_they_wait(log: PartitionLog) -> None:
    first, second = ask(log, 0), ask(log, 1)
    assert first is second
    send(log, 0, first)
    send(log, 1, second)


def test_late_batch_after_the_marker_opens_no_transaction(log: PartitionLog) -> None:
    """KAFKA-12671, 18957: the coordinator had confirmed the partition when the transaction ended."""
    send(log, 0, ask(log, 0))
    guard = ask(log, 1, epoch=0)
    assert guard is None
    mark(log)
    refused(ErrorCode.INVALID_TXN_STATE, log, 1, guard)
    waiting = ask(log, 1)
    mark(log)  # the transaction that was asked about is over as well
    refused(ErrorCode.INVALID_TXN_STATE, log, 1, waiting)
    assert not is_open(log)


def test_late_batch_after_a_marker_that_is_the_first_batch_of_its_producer_opens_no_transaction(
    log: PartitionLog,
) -> None:
    """KAFKA-14884: nothing of the producer is in the log when the transaction ends."""
    guard = ask(log, 0)
    mark(log)
    refused(ErrorCode.INVALID_TXN_STATE, log, 0, guard)


def test_marker_of_version_2_leaves_the_guard_of_the_next_transaction(log: PartitionLog) -> None:
    """It carries the next epoch: the next transaction may have been added before the marker arrives."""
    send(log, 0, ask(log, 0, adds=True))
    guard = ask(log, 0, epoch=1, adds=True)
    mark(log, epoch=1, version=2)
    send(log, 0, guard, epoch=1)
    assert is_open(log)


def test_marker_voids_guards_of_older_epochs(log: PartitionLog) -> None:
    guard = ask(log, 0, adds=True)
    mark(log, epoch=1, version=2)
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, log, 0, guard)


def test_fenced_producer_gets_the_epoch_error_first(log: PartitionLog) -> None:
    """KAFKA-19690."""
    mark(log, epoch=3)
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, log, 0, None, epoch=2)
    refused(ErrorCode.INVALID_TXN_STATE, log, 0, None, epoch=3)


def test_later_batch_is_not_appended_before_an_earlier_one_that_waits(log: PartitionLog) -> None:
    """KAFKA-14904: the producer would be told that sequence 0 is a duplicate or lost."""
    guard = ask(log, 1)
    assert ask(log, 0) is guard
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log, 1, guard)
    send(log, 0, guard)
    send(log, 1)


def test_lowest_sequence_is_known_across_the_wrap(log: PartitionLog) -> None:
    guard = ask(log, MAX_SEQUENCE)
    assert ask(log, 0) is guard
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log, 0, guard)
    send(log, MAX_SEQUENCE, guard)
    send(log, 0)


@pytest.mark.parametrize("adds", [False, True])
def test_unknown_producer_starts_at_zero_under_version_2(log: PartitionLog, adds: bool) -> None:
    guard = ask(log, 7, adds=adds)
    if adds:
        refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log, 7, guard)
    else:
        send(log, 7, guard)


def test_duplicate_needs_no_guard(log: PartitionLog) -> None:
    send(log, 0, ask(log, 0))
    mark(log)
    assert send(log, 0).duplicate


def test_request_with_a_made_up_epoch_does_not_disturb_the_true_one(log: PartitionLog) -> None:
    guard = ask(log, 3, epoch=4)
    ask(log, 0, epoch=30_000)
    send(log, 3, guard, epoch=4)


def test_batches_of_a_coordinator_need_a_guard_if_they_bring_one(log: PartitionLog) -> None:
    guard = ask(log, -1)
    mark(log)
    refused(ErrorCode.INVALID_TXN_STATE, log, -1, guard, origin=Origin.COORDINATOR)
    send(log, -1, ask(log, -1), origin=Origin.COORDINATOR)
    assert is_open(log)


def test_new_leader_epoch_voids_all_guards(log: PartitionLog) -> None:
    guard = ask(log)
    log.assign_epoch(0)
    refused(ErrorCode.INVALID_TXN_STATE, log, 0, guard)


def test_unused_guards_age_out_as_producers_do(log: PartitionLog) -> None:
    day = log.config.producer_id_expiration_ms
    guard = ask(log)
    log.enforce_retention(NOW + day - 1)
    assert len(log.guards) == 1
    log.enforce_retention(NOW + day)
    assert not log.guards
    refused(ErrorCode.INVALID_TXN_STATE, log, 0, guard)


def test_guard_in_use_is_kept() -> None:
    guards = VerificationGuards()
    guard = guards.begin(1, 0, 5, adds_partition=False, now_ms=0)
    assert guards.begin(1, 0, 9, adds_partition=False, now_ms=60) is guard
    assert guard.lowest_sequence == 5
    guards.expire(150, 100)
    assert guards.valid(1, 0, guard) is guard
    assert guards.valid(1, 1, guard) is None
    assert guards.valid(2, 0, guard) is None


def test_guards_of_older_epochs_end_with_those_of_the_current_one() -> None:
    guards = VerificationGuards()
    for epoch in range(4):
        for producer_id in (1, 2):
            guards.begin(producer_id, epoch, 0, adds_partition=True, now_ms=0)
    guards.on_data(1, 2)
    guards.on_marker(2, 2)
    assert len(guards) == 1 + 2
    guards.on_data(1, 3)
    guards.on_data(2, 3)
    assert not guards


def test_repeated_marker_of_version_2_is_accepted(log: PartitionLog) -> None:
    """KAFKA-19999: the coordinator has not seen the answer, and would ask for ever."""
    send(log, 0, ask(log, adds=True))
    mark(log, epoch=1, version=2)
    mark(log, epoch=1, version=2)


def test_late_marker_of_version_2_does_not_end_the_next_transaction(log: PartitionLog) -> None:
    """KAFKA-19446."""
    send(log, 0, ask(log, adds=True))
    mark(log, epoch=1, version=2)
    send(log, 0, ask(log, epoch=1, adds=True), epoch=1)
    with pytest.raises(PeerError) as caught:
        mark(log, epoch=1, version=2)
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert is_open(log)


def test_last_epoch_is_ended_without_a_new_one(log: PartitionLog) -> None:
    """X40: 32767 cannot be bumped."""
    send(log, 0, ask(log, epoch=32_767, adds=True), epoch=32_767)
    mark(log, epoch=32_767, version=2)
    assert not is_open(log)


def test_late_batch_of_the_last_epoch_opens_no_transaction(log: PartitionLog) -> None:
    """Its marker has the epoch of the transaction that it ends, also with version 2."""
    guard = ask(log, epoch=32_767, adds=True)
    mark(log, epoch=32_767, version=2)
    refused(ErrorCode.INVALID_TXN_STATE, log, 0, guard, epoch=32_767)


def test_markers_of_versions_below_2_may_have_the_epoch_of_the_transaction(log: PartitionLog) -> None:
    send(log, 0, ask(log, epoch=3), epoch=3)
    for version in (0, 1):
        with pytest.raises(PeerError) as caught:
            mark(log, epoch=2, version=version)
        assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    mark(log, epoch=3, version=1)
    assert not is_open(log)


def test_marker_of_an_unknown_producer_is_written_and_fences(log: PartitionLog) -> None:
    mark(log, epoch=7, version=2, coordinator=3)
    with pytest.raises(PeerError) as caught:
        mark(log, epoch=7, version=2, coordinator=2)
    assert caught.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    [producer] = log.producers
    assert (producer.epoch, producer.coordinator_epoch) == (7, 3)
