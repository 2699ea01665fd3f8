"""Records waiting to be sent: batches per partition, bounded memory, sequence numbers of an idempotent producer.

Owns the buffer that callers fill from their threads and that the sender empties on its loop; one lock guards it.
Callers wait for memory here: those in threads in `wait_for_room`, coroutines of the sender's loop in `freed`.
Never does I/O. A batch keeps its bytes and sequence numbers from its first attempt on, so that the broker detects a
retry as the same batch.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections import deque
from collections.abc import Iterable
from typing import Final

from fenceline.client.core.deadline import Deadline
from fenceline.client.core.errors import BufferFull
from fenceline.client.core.surroundings import surroundings
from fenceline.client.producer.delivery import DeliveryOutcome
from fenceline.ids import TopicPartition
from fenceline.records.batch import Codec, compute_crc
from fenceline.records.build import BatchBuilder, Headers

_PRODUCER: Final = struct.Struct(">qhi")
_PRODUCER_AT: Final = 43
_CRC: Final = struct.Struct(">I")
_CRC_AT: Final = 17
_LOW_ATTRIBUTES_AT: Final = 22
_TRANSACTIONAL: Final = 0x10
MAX_EPOCH: Final = 32_767


class Batch:
    """A record batch of one partition. Open (`builder`) until sealed into `encoded`."""

    __slots__ = (
        "attempts",
        "base_sequence",
        "builder",
        "created_s",
        "encoded",
        "epoch",
        "outcome",
        "record_count",
        "retry_at_s",
        "size_bytes",
        "tp",
    )

    def __init__(
        self, tp: TopicPartition, builder: BatchBuilder | None, encoded: bytearray | None, count: int, created_s: float
    ) -> None:
        self.tp = tp
        self.builder = builder
        self.encoded = encoded
        self.record_count = count
        self.size_bytes = len(encoded) if encoded is not None else 0
        self.outcome = DeliveryOutcome(tp)
        self.created_s = created_s
        self.attempts = 0
        self.retry_at_s = 0.0
        self.base_sequence = -1
        self.epoch = -1

    @property
    def has_sequence(self) -> bool:
        return self.base_sequence >= 0


class PartitionQueue:
    """One partition's batches in order, with its sequence numbers and producer epoch (KIP-98; epochs are bumped per
    partition).

    Invariant: the sequence numbers of `in_flight` and of the batches at the head of `waiting` that have one are
    contiguous.
    """

    __slots__ = (
        "epoch",
        "in_flight",
        "is_known",
        "next_sequence",
        "producer_id",
        "retrying",
        "sequence_lost",
        "tp",
        "unresolved",
        "waiting",
    )

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.waiting: deque[Batch] = deque()
        self.in_flight: list[Batch] = []
        self.producer_id = -1
        self.epoch = -1
        self.next_sequence = 0
        self.is_known = False
        """The leader has acknowledged a batch of this epoch. Before that it accepts any sequence number as the first,
        so a second batch in flight could overtake a first one that failed, which would then never be accepted."""
        self.retrying = False
        """A batch failed and is retriable: to keep the order, nothing is sent until all in flight have a result."""
        self.sequence_lost = False
        """The leader has lost batches of this epoch: none of it is sent again."""
        self.unresolved = False
        """A batch expired and may be in the log or not: the next response shows whether the sequence continues."""

    def begin_epoch(self, producer_id: int, epoch: int) -> None:
        """Restart the sequence; waiting batches are not in the log and get new sequence numbers."""
        assert not self.in_flight, "a sequence restarts only if nothing is in flight"
        self.producer_id, self.epoch, self.next_sequence = producer_id, epoch, 0
        self.unresolved = self.is_known = self.sequence_lost = False
        for batch in self.waiting:
            batch.base_sequence = batch.epoch = -1

    def remove_sequenced(self) -> list[Batch]:
        """Remove and return the waiting batches that were sent before and have sequence numbers. Under the lock."""
        sent = [batch for batch in self.waiting if batch.has_sequence]
        self.waiting = deque(batch for batch in self.waiting if not batch.has_sequence)
        return sent


def stamp(
    encoded: bytearray, producer_id: int, epoch: int, base_sequence: int, *, is_transactional: bool = False
) -> None:
    """Write producer id, epoch and base sequence into an encoded batch, mark it as transactional if it is, and update
    its CRC."""
    if is_transactional:
        encoded[_LOW_ATTRIBUTES_AT] |= _TRANSACTIONAL
    _PRODUCER.pack_into(encoded, _PRODUCER_AT, producer_id, epoch, base_sequence)
    _CRC.pack_into(encoded, _CRC_AT, compute_crc(encoded, 0, len(encoded)))


class Accumulator:
    """Shared by the callers' threads and the sender."""

    def __init__(self, *, batch_size_bytes: int, buffer_bytes: int, codec: Codec, level: int | None) -> None:
        self.lock = threading.Lock()
        self._room = threading.Condition(self.lock)
        self._freed = asyncio.Event()
        """Set on the sender's loop, which frees all memory."""
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self.now_s = surroundings().monotonic_s
        self.dirty: dict[TopicPartition, None] = {}
        """Partitions with waiting batches, a set in the order of insertion."""
        self.incomplete: dict[Batch, None] = {}
        self.flushing = 0
        self.waiting_for_memory = 0
        """Callers that wait for memory: batches are sent without lingering meanwhile."""
        self.is_closed = False
        self.refusal: Exception | None = None
        """Why no record is accepted now: a transactional producer accepts them within a transaction only."""
        self._batch_size_bytes = batch_size_bytes
        self._free_bytes = buffer_bytes
        self._buffer_bytes = buffer_bytes
        self._codec = codec
        self._level = level

    def append(
        self,
        tp: TopicPartition,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        *,
        may_open: bool = True,
    ) -> tuple[DeliveryOutcome, int, bool] | None:
        """Append a record. Returns (its batch's outcome, its index in the batch, whether to wake the sender).

        None: the partition has no open batch with room and `may_open` is False, or the buffer is full. Raises
        `refusal`.
        """
        with self.lock:
            if self.refusal is not None:
                raise self.refusal.with_traceback(None)
            queue = self.queues.get(tp)
            if queue is None:
                queue = self.queues[tp] = PartitionQueue(tp)
            if queue.waiting:
                last = queue.waiting[-1]
                builder = last.builder
                if builder is not None and builder.try_append(timestamp, key, value, headers):
                    index = last.record_count
                    last.record_count = index + 1
                    return last.outcome, index, builder.size_bytes >= self._batch_size_bytes
            if not may_open:
                return None
            needed = max(self._batch_size_bytes, 128 + len(key or b"") + len(value or b""))
            if not self._reserve(needed):
                return None
            builder = BatchBuilder(self._batch_size_bytes)
            builder.try_append(timestamp, key, value, headers)
            batch = Batch(tp, builder, None, 1, self.now_s())
            batch.size_bytes = needed
            self._enqueue(queue, batch)
            return batch.outcome, 0, True

    def append_encoded(self, tp: TopicPartition, encoded: bytearray, record_count: int) -> DeliveryOutcome | None:
        """Append an encoded batch; None if the buffer is full. Raises `refusal`."""
        with self.lock:
            if self.refusal is not None:
                raise self.refusal.with_traceback(None)
            if not self._reserve(len(encoded)):
                return None
            queue = self.queues.get(tp)
            if queue is None:
                queue = self.queues[tp] = PartitionQueue(tp)
            batch = Batch(tp, None, encoded, record_count, self.now_s())
            self._enqueue(queue, batch)
            return batch.outcome

    def refuse(self, error: Exception | None) -> None:
        """Refuse records with this error from now on (None: accept them)."""
        with self.lock:
            self.refusal = error

    def wait_for_room(self, timeout_s: float) -> None:
        """Block until memory was freed. Raises BufferFull after `timeout_s`."""
        with self._room:
            self.waiting_for_memory += 1
            try:
                # Without a batch that is still to be released there is room by now.
                if self.incomplete and not self._room.wait(timeout_s):
                    raise self._full(timeout_s * 1000)
            finally:
                self.waiting_for_memory -= 1

    async def freed(self, deadline: Deadline) -> None:
        """`wait_for_room` for coroutines of the sender's loop."""
        self._freed.clear()
        self.waiting_for_memory += 1
        try:
            async with asyncio.timeout(deadline.left_ms / 1000):
                await self._freed.wait()
        except TimeoutError:
            raise self._full(deadline.timeout_ms) from None
        finally:
            self.waiting_for_memory -= 1

    def _full(self, timeout_ms: float) -> BufferFull:
        return BufferFull(
            f"buffer.memory={self._buffer_bytes} was full for {timeout_ms:.0f} ms: records are produced faster "
            "than brokers accept them. Raise buffer.memory or max.block.ms, or send more slowly."
        )

    def seal(self, batch: Batch) -> bytearray:
        """Close the batch for further records and return its bytes. Under the lock."""
        if batch.encoded is None:
            assert batch.builder is not None
            batch.encoded = batch.builder.build(codec=self._codec, level=self._level)
            batch.builder = None
            self._release(batch.size_bytes - len(batch.encoded))
            batch.size_bytes = len(batch.encoded)
        return batch.encoded

    def is_ready(self, batch: Batch, queue: PartitionQueue, now_s: float, linger_s: float) -> bool:
        """Whether the head of a queue should be sent now. Under the lock."""
        if batch.attempts:
            return now_s >= batch.retry_at_s
        if (
            batch.builder is None
            or self.flushing
            or self.waiting_for_memory
            or self.is_closed
            or len(queue.waiting) > 1
        ):
            return True
        return batch.builder.size_bytes >= self._batch_size_bytes or now_s >= batch.created_s + linger_s

    def release(self, batch: Batch) -> None:
        """Free the batch's memory. Called before its outcome is completed."""
        with self.lock:
            self.incomplete.pop(batch, None)
            self._release(batch.size_bytes)

    def outstanding(self) -> list[DeliveryOutcome]:
        with self.lock:
            return [batch.outcome for batch in self.incomplete]

    def batches(self) -> Iterable[Batch]:
        """All waiting batches. Under the lock."""
        for tp in self.dirty:
            yield from self.queues[tp].waiting

    def _enqueue(self, queue: PartitionQueue, batch: Batch) -> None:
        queue.waiting.append(batch)
        self.dirty[queue.tp] = None
        self.incomplete[batch] = None

    def _reserve(self, size_bytes: int) -> bool:
        # A record larger than the buffer is accepted if the buffer is empty; the broker rejects it.
        if size_bytes > self._free_bytes and self.incomplete:
            return False
        self._free_bytes -= size_bytes
        return True

    def _release(self, size_bytes: int) -> None:
        self._free_bytes += size_bytes
        if self.waiting_for_memory:
            self._room.notify_all()
            self._freed.set()
