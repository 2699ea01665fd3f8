"""Batches of producers that the disk refused, and what was sent behind them.

Owns the memory of such refusals, for moments. Never refuses what could be the next batch.

A producer has up to five batches on their way. Where the disk refuses one, those behind it come next, and are not next
in sequence: 45 (OUT_OF_ORDER_SEQUENCE_NUMBER) would tell a producer that something was lost. librdkafka then begins a
new epoch, under which it writes once more what other leaders have but did not acknowledge yet. And of a producer that
the log does not know any sequence is taken: what came behind would be its first batch, and the refused one lost. So
they get what the one before them got, and all of them are sent again, in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from fenceline.errors import ErrorCode, PeerError
from fenceline.records.sequences import is_after

if TYPE_CHECKING:
    from fenceline.log.errors import StorageError
    from fenceline.log.producer_state import ProducerStates
    from fenceline.records.batch import BatchHeader

KEPT_MS: Final = 10_000
"""Who has not sent the refused batch again by then has given it up, and shall hear that one is missing."""
MOST: Final = 10_000
"""Producers of one partition; the one refused first is forgotten for the next."""


class _Refused(NamedTuple):
    epoch: int
    sequence: int
    at_ms: int
    reason: str


class RefusedBatches:
    """Those of one log. True while there are some."""

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        self._refused: dict[int, _Refused] = {}
        """By producer, the earliest."""

    def __bool__(self) -> bool:
        return bool(self._refused)

    def refused(self, header: BatchHeader, error: StorageError, now_ms: int) -> None:
        """The disk did not take it, for `error`."""
        if header.producer_id < 0:
            return
        known = self._refused.pop(header.producer_id, None)
        sequence = header.base_sequence
        if known is not None and known.epoch == header.producer_epoch and is_after(sequence, known.sequence):
            sequence = known.sequence
        elif len(self._refused) >= MOST:
            del self._refused[next(iter(self._refused))]
        self._refused[header.producer_id] = _Refused(header.producer_epoch, sequence, now_ms, error.message)

    def check(self, header: BatchHeader, producers: ProducerStates, now_ms: int) -> None:
        """Raises PeerError(KAFKA_STORAGE_ERROR) for what was sent behind one: nothing is wrong with the disk now."""
        known = self._refused.get(header.producer_id)
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
            del self._refused[header.producer_id]
        elif is_after(header.base_sequence, known.sequence):
            raise PeerError(ErrorCode.KAFKA_STORAGE_ERROR, f"sent behind a batch that was refused: {known.reason}")
