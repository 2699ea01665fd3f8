"""Batches sent after a batch whose append failed on the disk."""

from __future__ import annotations

import pytest

from fenceline.errors import ErrorCode, PeerError
from fenceline.log.core.errors import LogOffline, StorageError
from fenceline.log.core.producer_state import ProducerStates
from fenceline.log.partition.out_of_sequence import KEPT_MS, MAX_PRODUCERS, FailedBatches
from fenceline.records.batch import BatchHeader, read_header
from fenceline.records.build import build_batch

FULL = StorageError("no space left on the device", 28)


def batch(sequence: int, *, producer: int = 7, epoch: int = 0, records: int = 2) -> BatchHeader:
    rows = [(0, None, b"v", ())] * records
    content = build_batch(rows, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    return read_header(content)


def is_refused(failed: FailedBatches, header: BatchHeader, producers: ProducerStates, now_ms: int = 1_000) -> bool:
    found: PeerError | None = None
    try:
        failed.check(header, producers, now_ms)
    except PeerError as error:
        found = error
    # No disk error this time.
    assert found is None or (found.code is ErrorCode.KAFKA_STORAGE_ERROR and not isinstance(found, StorageError))
    return found is not None


@pytest.mark.parametrize("is_known", [False, True])
def test_batches_after_the_failed_one_are_rejected_until_it_is_resent(is_known: bool) -> None:
    failed, producers = FailedBatches(), ProducerStates()
    first = 0
    if is_known:
        producers.record(batch(0), 0)
        first = 2
    failed.add(batch(first), FULL, 1_000)
    assert is_refused(failed, batch(first + 2), producers)
    assert is_refused(failed, batch(first + 4), producers)
    assert not is_refused(failed, batch(first), producers)
    assert not is_refused(failed, batch(first + 2, producer=8), producers)
    producers.record(batch(first), first)
    assert not is_refused(failed, batch(first + 2), producers)
    assert not failed, "the failed batch is forgotten"


def test_resent_duplicate_of_an_appended_batch_is_left_to_the_log() -> None:
    failed, producers = FailedBatches(), ProducerStates()
    producers.record(batch(0), 0)
    failed.add(batch(2), FULL, 1_000)
    assert not is_refused(failed, batch(0), producers)
    assert failed


def test_only_the_earliest_failed_batch_is_accepted() -> None:
    failed, producers = FailedBatches(), ProducerStates()
    failed.add(batch(4), FULL, 1_000)
    failed.add(batch(6), FULL, 1_000)
    assert not is_refused(failed, batch(4), producers)
    assert is_refused(failed, batch(6), producers)


def test_sequences_wrap() -> None:
    failed, producers = FailedBatches(), ProducerStates()
    last = 2**31 - 2
    failed.add(batch(last), FULL, 1_000)
    assert is_refused(failed, batch(0), producers)
    producers.record(batch(last), 0)
    producers.record(batch(0), 2)
    assert not is_refused(failed, batch(2), producers)


def test_batch_of_a_new_epoch_is_accepted_at_once() -> None:
    failed, producers = FailedBatches(), ProducerStates()
    failed.add(batch(2), FULL, 1_000)
    assert not is_refused(failed, batch(0, epoch=1), producers)
    assert not failed


@pytest.mark.parametrize("now_ms", [1_000 + KEPT_MS, 999])
def test_failed_batch_expires_when_it_is_not_resent(now_ms: int) -> None:
    """Also if the clock was set back."""
    failed, producers = FailedBatches(), ProducerStates()
    failed.add(batch(2), FULL, 1_000)
    assert not is_refused(failed, batch(4), producers, now_ms)
    assert not failed


def test_number_of_failed_batches_is_bounded() -> None:
    failed, producers = FailedBatches(), ProducerStates()
    for producer in range(MAX_PRODUCERS + 5):
        failed.add(batch(0, producer=producer), FULL, 1_000)
    failed.add(batch(0, producer=-1), FULL, 1_000)
    reported = sum(is_refused(failed, batch(2, producer=producer), producers) for producer in range(MAX_PRODUCERS + 5))
    assert reported == MAX_PRODUCERS
    assert is_refused(failed, batch(2, producer=MAX_PRODUCERS + 4), producers)


def test_clients_are_told_no_path() -> None:
    failed, path = FailedBatches(), "/data/orders-0/00000000000000000000.log"
    refusals: list[PeerError] = [
        StorageError.of(f"appending to {path}", OSError(28, "No space left on device")),
        StorageError.of(f"appending to {path}", OSError(5, "Input/output error")),
        StorageError(f"{path} is corrupt"),
        LogOffline(f"{path} is corrupt"),
    ]
    assert isinstance(refusals[1], StorageError)
    failed.add(batch(0), refusals[1], 1_000)
    with pytest.raises(PeerError) as after:
        failed.check(batch(2), ProducerStates(), 1_000)
    told = [error.told for error in (*refusals, after.value)]
    assert "full" in told[0]
    assert "Input/output error" in told[1]
    assert told[2] == told[3]
    assert "Input/output error" in told[4]
    assert not [text for text in told if "/data" in text]
