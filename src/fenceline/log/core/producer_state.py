"""Producer state of one log: sequences, epochs, open transactions.

Owns the checks of idempotent and transactional appends as in Kafka 4.3.1, and the snapshot bytes of `formats.md F4`.
Never touches a file and never changes on a rejected batch: `check` only checks, `record` applies a batch that has been
written. The state always belongs to the log end offset.

Checks of a batch with a producer id, in this order (origin CLIENT):
- the first and last sequence of one of its last five batches in this epoch: a duplicate, answered with the old offset
- it would open a transaction, and has no valid guard (`guards.py`): 48; 47 if its epoch is below the last one seen
- an epoch below the last one seen: 47
- a sequence above that of an earlier batch which still waits for the coordinator: 45
- a new epoch that does not start at sequence 0: 45
- a sequence that does not follow the last one (2^31-1 is followed by 0): 45, where the log does not have that batch
  either (`out_of_sequence`)
- no transaction flag while its transaction is open: 48
An unknown producer may start with any sequence: its history was deleted or has expired (Kafka 4.3.1 no longer answers
59 here). With transaction version 2 it starts at 0, as each transaction does. Coordinator appends have no sequence,
replicated ones were checked by the leader.

Rules: transactions.md X36, X38, X40; formats.md F4.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

from fenceline.errors import ErrorCode, PeerError
from fenceline.log.core.guards import MAX_EPOCH, WITHOUT_VERIFICATION, VerificationGuard
from fenceline.log.core.tail import PRODUCER, BatchSeen, ProducerEntry, encode_producers, expired_producers
from fenceline.records.batch import BatchHeader
from fenceline.records.crc import crc32c
from fenceline.records.markers import EndMarker
from fenceline.records.sequences import MAX_SEQUENCE, is_after

SNAPSHOT_VERSION: Final = 1
_HEAD: Final = struct.Struct(">hI")
_COUNT: Final = struct.Struct(">i")


class Origin(Enum):
    """The source of an append, which decides how much of it is checked."""

    CLIENT = "client"
    COORDINATOR = "coordinator"


class CompletedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool
    last_stable_offset: int


class BadSnapshot(Exception):
    """A producer snapshot's bytes do not match F4; the log replays its batches instead."""


class ProducerStates:
    """All producers of one log, with the first offsets of undecided transactions."""

    __slots__ = ("_ongoing", "_producers", "_unreplicated", "snapshot_offset", "without_earlier")

    def __init__(self) -> None:
        self._producers: dict[int, ProducerEntry] = {}
        # first offset -> producer id, ascending: transactions are added at the log end
        self._ongoing: dict[int, int] = {}
        # first offset -> offset of the marker; decided, but the marker may not be replicated yet
        self._unreplicated: dict[int, int] = {}
        self.snapshot_offset = -1
        """End offset of the newest snapshot on disk; -1 if there is none."""
        self.without_earlier: set[int] = set()
        """Producers whose earlier batches were not found in the log (`out_of_sequence`)."""

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[ProducerEntry]:
        return iter(self._producers.values())

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._producers.get(producer_id)

    # -- checks -------------------------------------------------------------------------------------------------

    def is_open(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer has an open transaction in its current epoch, and that is `epoch`."""
        producer = self._producers.get(producer_id)
        return producer is not None and producer.transaction_first_offset >= 0 and producer.epoch == epoch

    def check(
        self,
        header: BatchHeader,
        origin: Origin,
        where: object,
        end_offset: int,
        guard: VerificationGuard | None = WITHOUT_VERIFICATION,
    ) -> BatchSeen | None:
        """Check that a data batch may be appended at `end_offset`; returns the earlier batch if it is a duplicate.

        `where` names the partition in messages. `guard`: of a transactional batch, as `VerificationGuards.valid`
        returned it. Raises PeerError 45, 47, 48.
        """
        producer = self._producers.get(header.producer_id)
        epoch = header.producer_epoch
        if producer is not None and origin is Origin.CLIENT and epoch == producer.epoch:
            last_sequence = header.last_sequence
            for seen in producer.batches:
                if seen.last_sequence == last_sequence and seen.first_sequence == header.base_sequence:
                    return seen
        if header.is_transactional and not self.is_open(header.producer_id, epoch):
            self._check_opens(producer, header, origin, where, end_offset, guard)
        if producer is None:
            return None
        self._check_epoch(producer, epoch, where, end_offset, strictly_newer=False)
        if origin is Origin.CLIENT:
            first = header.base_sequence
            if epoch != producer.epoch:
                if first != 0:
                    raise PeerError(
                        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                        f"Producer {producer.producer_id} starts epoch {epoch} in {where} at offset {end_offset} "
                        f"with sequence {first} instead of 0 (last known epoch {producer.epoch})",
                    )
            elif not (first == producer.last_sequence + 1 or (first == 0 and producer.last_sequence == MAX_SEQUENCE)):
                raise PeerError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"Out of order sequence number for producer {producer.producer_id} at offset {end_offset} in "
                    f"partition {where}: {first} (incoming seq. number), {producer.last_sequence} (current end "
                    "sequence number)",
                )
        if producer.transaction_first_offset >= 0 and not header.is_transactional:
            raise PeerError(
                ErrorCode.INVALID_TXN_STATE,
                f"Producer {producer.producer_id} wrote a non-transactional batch to {where} at offset {end_offset} "
                "while its transaction is open",
            )
        return None

    def _check_opens(
        self,
        producer: ProducerEntry | None,
        header: BatchHeader,
        origin: Origin,
        where: object,
        end_offset: int,
        guard: VerificationGuard | None,
    ) -> None:
        """A batch would open a transaction: the coordinator must know of it (X36 to X38). Raises PeerError 45, 47, 48.

        The epoch comes first: a fenced producer must not get a code after which it would try again (KAFKA-19690).
        """
        if producer is not None:
            self._check_epoch(producer, header.producer_epoch, where, end_offset, strictly_newer=False)
        if guard is None:
            raise PeerError(
                ErrorCode.INVALID_TXN_STATE,
                f"Record of producer {header.producer_id} at offset {end_offset} in {where} was not part of an ongoing "
                "transaction",
            )
        if origin is not Origin.CLIENT or guard is WITHOUT_VERIFICATION:
            return
        first = header.base_sequence
        is_unknown = producer is None or producer.last_offset < 0
        if guard.adds_partition and is_unknown and first != 0:
            raise PeerError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Invalid sequence number for producer {header.producer_id} at offset {end_offset} in {where}: {first} "
                "(incoming seq. number), expected 0: the partition knows no batch of the producer",
            )
        if is_after(first, guard.lowest_sequence):
            raise PeerError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Out of order sequence number for producer {header.producer_id} at offset {end_offset} in {where}: "
                f"{first} (incoming seq. number), {guard.lowest_sequence} (earliest seen sequence)",
            )

    def check_marker(
        self, header: BatchHeader, marker: EndMarker, where: object, end_offset: int, transaction_version: int
    ) -> None:
        """Check that an end marker of the coordinator may be appended. Raises PeerError 47, 52.

        With transaction version 2 its epoch must be above the producer's, so that a late marker cannot end the next
        transaction (KAFKA-19446); except for a repeat of the marker that ended the transaction (KAFKA-19999), and for
        the last epoch, which cannot be bumped (X40).
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return
        is_repeated = producer.transaction_first_offset < 0 or producer.epoch == MAX_EPOCH
        strictly = transaction_version >= 2 and not is_repeated
        self._check_epoch(producer, header.producer_epoch, where, end_offset, strictly_newer=strictly)
        if producer.coordinator_epoch > marker.coordinator_epoch:
            raise PeerError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"Marker for producer {producer.producer_id} in {where} at offset {end_offset} has coordinator epoch "
                f"{marker.coordinator_epoch}, which is older than the current coordinator epoch "
                f"{producer.coordinator_epoch}",
            )

    @staticmethod
    def _check_epoch(
        producer: ProducerEntry, epoch: int, where: object, end_offset: int, *, strictly_newer: bool
    ) -> None:
        if epoch < producer.epoch or (strictly_newer and epoch == producer.epoch):
            raise PeerError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"Epoch of producer {producer.producer_id} at offset {end_offset} in {where} is {epoch}, which is "
                f"older than the last seen epoch {producer.epoch}",
            )

    # -- what has been written ----------------------------------------------------------------------------------

    def record(self, header: BatchHeader, base_offset: int) -> None:
        """A data batch with a producer id is in the log, its first record at `base_offset`."""
        producer = self._producers.get(header.producer_id)
        if producer is None:
            producer = ProducerEntry(header.producer_id, header.producer_epoch, -1, header.max_timestamp, -1)
            self._producers[header.producer_id] = producer
        elif producer.epoch != header.producer_epoch:
            producer.epoch = header.producer_epoch
            producer.forget_batches()
        producer.last_timestamp_ms = header.max_timestamp
        producer.remember(
            header.base_sequence,
            header.last_sequence,
            base_offset,
            base_offset + header.last_offset_delta,
            header.max_timestamp,
        )
        if header.is_transactional and producer.transaction_first_offset < 0:
            producer.transaction_first_offset = base_offset
            self._ongoing[base_offset] = producer.producer_id

    def record_marker(self, header: BatchHeader, marker: EndMarker, offset: int) -> CompletedTransaction | None:
        """An end marker is in the log at `offset`; None if it ended no transaction."""
        producer = self._producers.get(header.producer_id)
        if producer is None:
            producer = ProducerEntry(header.producer_id, header.producer_epoch, -1, marker.timestamp_ms, -1)
            self._producers[header.producer_id] = producer
        first = producer.transaction_first_offset
        if producer.epoch != header.producer_epoch:
            producer.epoch = header.producer_epoch
            producer.forget_batches()
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.last_timestamp_ms = marker.timestamp_ms
        producer.transaction_first_offset = -1
        if first < 0:
            return None
        self._ongoing.pop(first, None)
        self._unreplicated[first] = offset
        stable = next(iter(self._ongoing), offset + 1)
        return CompletedTransaction(header.producer_id, first, offset, not marker.commit, stable)

    @property
    def first_unstable_offset(self) -> int:
        """First offset of a transaction that is open, or decided by a marker that may not be replicated; -1 if none."""
        ongoing, decided = self._ongoing, self._unreplicated
        if not ongoing and not decided:
            return -1
        return min([*decided, *([next(iter(ongoing))] if ongoing else [])])

    @property
    def oldest_open(self) -> ProducerEntry | None:
        """The producer whose open transaction began first; None if none is open. May be called in any thread."""
        for producer_id in tuple(self._ongoing.values()):
            return self._producers.get(producer_id)
        return None

    def high_watermark_moved(self, high_watermark: int) -> None:
        """Markers below the high watermark decide their transactions for consumers, too."""
        if self._unreplicated:
            self._unreplicated = {first: at for first, at in self._unreplicated.items() if at >= high_watermark}

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Remove producers that wrote nothing for that long and have no open transaction. Returns how many."""
        expired = expired_producers(self._producers, now_ms - expiration_ms)
        for producer_id in expired:
            del self._producers[producer_id]
        return len(expired)

    def clear(self) -> None:
        self._producers.clear()
        self._ongoing.clear()
        self._unreplicated.clear()
        self.without_earlier.clear()

    # -- snapshots ----------------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """Snapshot version 1. It holds only the last batch of each producer, as in Kafka."""
        body = encode_producers(self._producers)
        return _HEAD.pack(SNAPSHOT_VERSION, crc32c(body)) + body

    def load(self, content: bytes, *, now_ms: int, expiration_ms: int) -> None:
        """Replace all state by a snapshot's. Raises BadSnapshot with nothing changed."""
        try:
            version, crc = _HEAD.unpack_from(content)
            (count,) = _COUNT.unpack_from(content, _HEAD.size)
            rows = list(PRODUCER.iter_unpack(content[_HEAD.size + _COUNT.size :]))
        except struct.error as error:
            raise BadSnapshot(str(error)) from None
        if version != SNAPSHOT_VERSION:
            raise BadSnapshot(f"unknown version {version}")
        if crc != crc32c(content[_HEAD.size :]) or count != len(rows):
            raise BadSnapshot("the checksum or the count is wrong")
        self.clear()
        for producer_id, epoch, last_sequence, last_offset, delta, timestamp_ms, coordinator_epoch, first in rows:
            if first < 0 and now_ms - timestamp_ms >= expiration_ms:
                continue
            first_sequence = (last_sequence - delta) & MAX_SEQUENCE if last_sequence >= 0 else -1
            producer = ProducerEntry(producer_id, epoch, coordinator_epoch, timestamp_ms, first)
            if last_offset >= 0:
                producer.remember(first_sequence, last_sequence, last_offset - delta, last_offset, timestamp_ms)
            self._producers[producer_id] = producer
            if first >= 0:
                self._ongoing[first] = producer_id
        self._ongoing = dict(sorted(self._ongoing.items()))
