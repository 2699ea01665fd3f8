"""What was sent behind a batch that the disk refused."""

from __future__ import annotations

import pytest

from fenceline.errors import ErrorCode, PeerError
from fenceline.log.errors import StorageError
from fenceline.log.producer_state import ProducerStates
from fenceline.log.refused_batches import KEPT_MS, MOST, RefusedBatches
from fenceline.records.batch import BatchHeader, read_header
from fenceline.records.build import build_batch

FULL = StorageError("no space left on the device", 28)


def batch(sequence: int, *, producer: int = 7, epoch: int = 0, records: int = 2) -> BatchHeader:
    rows = [(0, None, b"v", ())] * records
    content = build_batch(rows, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    return read_header(content)


def is_refused(refused: RefusedBatches, header: BatchHeader, producers: ProducerStates, now_ms: int = 1_000) -> bool:
    found: PeerError | None = None
    try:
        refused.check(header, producers, now_ms)
    except PeerError as error:
        found = error
    # The disk refused nothing this time.
    assert found is None or (found.code is ErrorCode.KAFKA_STORAGE_ERROR and not isinstance(found, StorageError))
    return found is not None


@pytest.mark.parametrize("is_known", [False, True])
def test_what_was_sent_behind_it_comes_again_as_well(is_known: bool) -> None:
    refused, producers = RefusedBatches(), ProducerStates()
    first = 0
    if is_known:
        producers.record(batch(0), 0)
        first = 2
    refused.refused(batch(first), FULL, 1_000)
    assert is_refused(refused, batch(first + 2), producers)
    assert is_refused(refused, batch(first + 4), producers)
    assert not is_refused(refused, batch(first), producers)
    assert not is_refused(refused, batch(first + 2, producer=8), producers)
    producers.record(batch(first), first)
    assert not is_refused(refused, batch(first + 2), producers)
    assert not refused, "it is forgotten then"


def test_a_resent_batch_that_lies_there_is_the_logs_to_tell() -> None:
    refused, producers = RefusedBatches(), ProducerStates()
    producers.record(batch(0), 0)
    refused.refused(batch(2), FULL, 1_000)
    assert not is_refused(refused, batch(0), producers)
    assert refused


def test_the_earliest_is_what_is_waited_for() -> None:
    refused, producers = RefusedBatches(), ProducerStates()
    refused.refused(batch(4), FULL, 1_000)
    refused.refused(batch(6), FULL, 1_000)
    assert not is_refused(refused, batch(4), producers)
    assert is_refused(refused, batch(6), producers)


def test_sequences_wrap() -> None:
    refused, producers = RefusedBatches(), ProducerStates()
    last = 2**31 - 2
    refused.refused(batch(last), FULL, 1_000)
    assert is_refused(refused, batch(0), producers)
    producers.record(batch(last), 0)
    producers.record(batch(0), 2)
    assert not is_refused(refused, batch(2), producers)


def test_a_new_epoch_waits_for_nothing() -> None:
    refused, producers = RefusedBatches(), ProducerStates()
    refused.refused(batch(2), FULL, 1_000)
    assert not is_refused(refused, batch(0, epoch=1), producers)
    assert not refused


@pytest.mark.parametrize("now_ms", [1_000 + KEPT_MS, 999])
def test_who_does_not_come_again_has_given_up(now_ms: int) -> None:
    """Also where the clock was set back."""
    refused, producers = RefusedBatches(), ProducerStates()
    refused.refused(batch(2), FULL, 1_000)
    assert not is_refused(refused, batch(4), producers, now_ms)
    assert not refused


def test_what_is_remembered_is_bounded() -> None:
    refused, producers = RefusedBatches(), ProducerStates()
    for producer in range(MOST + 5):
        refused.refused(batch(0, producer=producer), FULL, 1_000)
    refused.refused(batch(0, producer=-1), FULL, 1_000)
    told = sum(is_refused(refused, batch(2, producer=producer), producers) for producer in range(MOST + 5))
    assert told == MOST
    assert is_refused(refused, batch(2, producer=MOST + 4), producers)
