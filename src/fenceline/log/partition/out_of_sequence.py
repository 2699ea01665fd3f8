"""Batches that arrive out of sequence although their producer has lost nothing, and the answer they get instead of 45
(OUT_OF_ORDER_SEQUENCE_NUMBER).

45 would report a data loss to the producer: clients that start a new epoch then write again what is in the log, or
what other leaders have but did not acknowledge yet. There are two such cases, as a producer has up to five batches in
flight.

The disk rejected a batch, and the ones after it arrive (`FailedBatches`, a short-lived record). If the log does not
know the producer, any sequence is accepted: a later batch would become its first, and the rejected one would be lost.
So the later batches get the same error as the rejected one, and the producer retries all of them in order. A batch that
could be the next one is never rejected.

A restarted node knows only the last batch of each producer, from the snapshot, and the producer sends one of the four
before it again (`find_earlier`). Kafka answers 45; here the log is searched, from the newest to the oldest batch, in
steps, for at most `MAX_SEARCH_BYTES`, and once for each producer whose batch is not found: an error stays cheap. It
reads on the loop: this happens only after restarts, and the end of a log is in the page cache.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fenceline.errors import ErrorCode, PeerError
from fenceline.log.core.errors import StorageError
from fenceline.log.core.producer_state import ProducerStates
from fenceline.log.core.tail import BATCHES_KEPT, BatchSeen
from fenceline.log.partition.readable_log import ReadableLog
from fenceline.records.batch import BatchHeader, iter_headers
from fenceline.records.sequences import is_after

KEPT_MS: Final = 10_000
"""A producer that has not retried the rejected batch by then has given up; it gets the sequence error."""
MAX_PRODUCERS: Final = 10_000
"""Producers of one partition; the oldest entry is dropped for a new one."""
MAX_SEARCH_BYTES: Final = 16 << 20
_STEPS: Final = (1_000, 10_000, 100_000)
"""How many offsets before the oldest known batch to search."""
_READ_BYTES: Final = 1 << 20


class _Failed(NamedTuple):
    epoch: int
    sequence: int
    at_ms: int
    reason: str


class FailedBatches:
    """Rejected batches of one log. False if there are none."""

    __slots__ = ("_failed",)

    def __init__(self) -> None:
        self._failed: dict[int, _Failed] = {}
        """By producer, the earliest."""

    def __bool__(self) -> bool:
        return bool(self._failed)

    def add(self, header: BatchHeader, error: StorageError, now_ms: int) -> None:
        """The disk rejected the batch with `error`."""
        if header.producer_id < 0:
            return
        known = self._failed.pop(header.producer_id, None)
        sequence = header.base_sequence
        if known is not None and known.epoch == header.producer_epoch and is_after(sequence, known.sequence):
            sequence = known.sequence
        elif len(self._failed) >= MAX_PRODUCERS:
            del self._failed[next(iter(self._failed))]
        self._failed[header.producer_id] = _Failed(header.producer_epoch, sequence, now_ms, error.told)

    def check(self, header: BatchHeader, producers: ProducerStates, now_ms: int) -> None:
        """Raises PeerError(KAFKA_STORAGE_ERROR) for a batch sent after a rejected one; the disk itself may be fine
        now."""
        known = self._failed.get(header.producer_id)
        if known is None:
            return
        producer = producers.get(header.producer_id)
        is_written = (
            producer is not None
            and producer.epoch == known.epoch
            and producer.last_sequence >= 0
            and not is_after(known.sequence, producer.last_sequence)
        )
        if is_written or header.producer_epoch != known.epoch or not 0 <= now_ms - known.at_ms < KEPT_MS:
            del self._failed[header.producer_id]
        elif is_after(header.base_sequence, known.sequence):
            raise PeerError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"sent after a batch that could not be written: {known.reason}"
            )


def find_earlier(log: ReadableLog, header: BatchHeader) -> BatchSeen | None:
    """The batch of the log with the producer, epoch and sequences of `header`; None if there is none, or if five newer
    ones are known (a producer has at most five in flight). Raises StorageError."""
    producer = log.producers.get(header.producer_id)
    if producer is None or producer.epoch != header.producer_epoch or header.base_sequence < 0:
        return None
    known = producer.batches
    if not 0 < len(known) < BATCHES_KEPT or producer.producer_id in log.producers.without_earlier:
        return None
    if not is_after(known[0].first_sequence, header.base_sequence):
        return None
    end, left_bytes = known[0].first_offset, MAX_SEARCH_BYTES
    for step in _STEPS:
        start = max(log.log_start_offset, known[0].first_offset - step)
        offset = start
        while offset < end and left_bytes > 0:
            records = log.read(offset, _READ_BYTES, end_offset_exclusive=end).load()
            left_bytes -= len(records)
            before = offset
            for each in iter_headers(records):
                offset = each.next_offset
                if (
                    each.producer_id == header.producer_id
                    and each.producer_epoch == header.producer_epoch
                    and each.base_sequence == header.base_sequence
                    and each.last_sequence == header.last_sequence
                    and not each.is_control
                ):
                    last = each.base_offset + each.last_offset_delta
                    return BatchSeen(each.base_sequence, each.last_sequence, each.base_offset, last, each.max_timestamp)
            if offset == before:
                break
        end = start
        if left_bytes <= 0 or end <= log.log_start_offset:
            break
    log.producers.without_earlier.add(producer.producer_id)
    return None
