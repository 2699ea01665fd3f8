"""Batches of producers that the disk rejected, and the batches that were sent after them.

Owns a short-lived record of such batches. Never rejects a batch that could be the next one.

A producer has up to five batches in flight. If the disk rejects one, the ones after it arrive out of sequence: 45
(OUT_OF_ORDER_SEQUENCE_NUMBER) would report a data loss to the producer. librdkafka then starts a new epoch, and writes
again what other leaders have but did not acknowledge yet. If the log does not know the producer, any sequence is
accepted: a later batch would become its first, and the rejected one would be lost. So the later batches get the same
error as the rejected one, and the producer retries all of them in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from fenceline.errors import ErrorCode, PeerError
from fenceline.records.sequences import is_after

if TYPE_CHECKING:
    from fenceline.log.core.errors import StorageError
    from fenceline.log.core.producer_state import ProducerStates
    from fenceline.records.batch import BatchHeader

KEPT_MS: Final = 10_000
"""A producer that has not retried the rejected batch by then has given up; it gets the sequence error."""
MAX_PRODUCERS: Final = 10_000
"""Producers of one partition; the oldest entry is dropped for a new one."""


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
        self._failed[header.producer_id] = _Failed(header.producer_epoch, sequence, now_ms, error.message)

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
