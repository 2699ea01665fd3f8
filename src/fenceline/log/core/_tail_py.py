"""The end of a log in pure Python: twin of `_tail.pyx`, and where its classes are documented.

Owns the state that every append changes: offsets and sizes, the state of the active segment, the last batches of each
producer. Never rolls, opens, flushes or rejects: `partition_log.py` handles every append that is not plain.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from fenceline.log.core.config import LogConfig
    from fenceline.log.core.disk import Disk
    from fenceline.log.core.epoch_cache import EpochCache
    from fenceline.log.core.errors import StorageError
    from fenceline.log.core.index import OffsetIndex, TimeIndex

ABI: Final = 11
"""Changes with every change of `_tail.pyx` or `_tail.pxd`, so that a build of older sources is not used."""

BATCHES_KEPT: Final = 5
WRITE_BYTES: Final = 64 << 10
"""Bytes in one write call. On the virtual machine that was measured, this costs less CPU and varies less than writing a
large batch at once. The cause is not proven (`docs/decisions/005-what-made-the-server-fast.md`)."""
NOT_PLAIN: Final = -1
NEWEST_BYTES: Final = 64 << 10
"""A batch of this size or more is not read at once."""
_BATCH_HEAD: Final = struct.Struct(">qiibIhi")
"""Of a record batch up to the delta of its last offset."""
_PRODUCER_COUNT: Final = struct.Struct(">i")
PRODUCER: Final = struct.Struct(">qhiqiqiq")
"""An entry of a producer snapshot."""
_BATCH_OVERHEAD: Final = 61
_LENGTH_PREFIX: Final = 12
_MAGIC: Final = 2


class BatchSeen(NamedTuple):
    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp_ms: int


_NO_BATCH: Final = BatchSeen(-1, -1, -1, -1, -1)


class ProducerEntry:
    """One producer id. `transaction_first_offset` is -1 if no transaction is open. Keeps the last five batches."""

    __slots__ = (
        "_batches",
        "coordinator_epoch",
        "epoch",
        "last_timestamp_ms",
        "producer_id",
        "transaction_first_offset",
    )

    def __init__(
        self,
        producer_id: int,
        epoch: int,
        coordinator_epoch: int,
        last_timestamp_ms: int,
        transaction_first_offset: int,
    ) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.coordinator_epoch = coordinator_epoch
        self.last_timestamp_ms = last_timestamp_ms
        self.transaction_first_offset = transaction_first_offset
        self._batches: list[BatchSeen] = []

    @property
    def batches(self) -> list[BatchSeen]:
        """The last batches, oldest first; a copy."""
        return self._batches[:]

    @property
    def last_sequence(self) -> int:
        return self._batches[-1].last_sequence if self._batches else -1

    @property
    def last_offset(self) -> int:
        return self._batches[-1].last_offset if self._batches else -1

    def remember(
        self, first_sequence: int, last_sequence: int, first_offset: int, last_offset: int, timestamp_ms: int
    ) -> None:
        """A batch was written; it replaces the oldest one that is kept."""
        if len(self._batches) == BATCHES_KEPT:
            del self._batches[0]
        self._batches.append(BatchSeen(first_sequence, last_sequence, first_offset, last_offset, timestamp_ms))

    def forget_batches(self) -> None:
        self._batches.clear()


def encode_producers(producers: dict[int, ProducerEntry]) -> bytearray:
    """The count and the entries of a producer snapshot, with the last batch of each (`formats.md F4`)."""
    content = bytearray(_PRODUCER_COUNT.pack(len(producers)))
    for producer in producers.values():
        batches = producer.batches
        last = batches[-1] if batches else _NO_BATCH
        content += PRODUCER.pack(
            producer.producer_id,
            producer.epoch,
            last.last_sequence,
            last.last_offset,
            last.last_offset - last.first_offset,
            producer.last_timestamp_ms,
            producer.coordinator_epoch,
            producer.transaction_first_offset,
        )
    return content


def expired_producers(producers: dict[int, ProducerEntry], until_ms: int) -> list[int]:
    """Those without an open transaction whose last record has this time or an earlier one."""
    return [
        producer.producer_id
        for producer in producers.values()
        if producer.transaction_first_offset < 0 and producer.last_timestamp_ms <= until_ms
    ]


class SegmentTail:
    """The state of the active segment that an append changes. See `segment.Segment`."""

    __slots__ = (
        "base_offset",
        "bytes_since_index",
        "created_ms",
        "fd",
        "first_timestamp_ms",
        "index",
        "indexes_saved",
        "jitter_ms",
        "last_batch_offset",
        "last_batch_position",
        "max_timestamp_ms",
        "max_timestamp_offset",
        "next_offset",
        "recently_used",
        "size_bytes",
        "time_index",
    )

    def __init__(self) -> None:
        self.base_offset = 0
        self.next_offset = 0
        self.size_bytes = 0
        self.created_ms = 0
        self.jitter_ms = 0
        self.first_timestamp_ms = -1
        """Of the first batch; -1 if it is unknown or has none."""
        self.max_timestamp_ms = -1
        self.max_timestamp_offset = -1
        self.bytes_since_index = 0
        self.last_batch_offset = -1
        self.last_batch_position = -1
        self.index: OffsetIndex | None = None
        self.time_index: TimeIndex | None = None
        self.indexes_saved = False
        self.recently_used = False
        self.fd = -1

    if TYPE_CHECKING:

        def indexes(self) -> tuple[OffsetIndex, TimeIndex]:
            """Both indexes, read from the disk if they are not in memory. Implemented by `Segment`."""
            ...

    def appended(
        self, base_offset: int, last_offset: int, max_timestamp_ms: int, size_bytes: int, interval_bytes: int
    ) -> None:
        """A batch was written at the end of the file."""
        position = self.size_bytes
        if position == 0:
            self.first_timestamp_ms = max_timestamp_ms
        if max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = max_timestamp_ms
            self.max_timestamp_offset = last_offset
        if self.bytes_since_index > interval_bytes:
            index, time_index = self.index, self.time_index
            if index is None or time_index is None:
                index, time_index = self.indexes()
            index.append(last_offset - self.base_offset, position)
            time_index.maybe_append(self.max_timestamp_ms, self.max_timestamp_offset - self.base_offset)
            self.bytes_since_index = 0
        self.bytes_since_index += size_bytes
        self.size_bytes = position + size_bytes
        self.next_offset = last_offset + 1
        self.last_batch_offset = base_offset
        self.last_batch_position = position
        self.indexes_saved = False


class LogTail:
    """The state of a log that an append changes. See `partition_log.PartitionLog`."""

    __slots__ = (
        "absent_records",
        "config",
        "disk",
        "durable_recovery_point",
        "epochs",
        "log_end_offset",
        "log_start_offset",
        "offline",
        "producers",
        "segments",
        "size_bytes",
    )

    def __init__(
        self, disk: Disk, config: LogConfig, epochs: EpochCache, producers: object, log_start_offset: int
    ) -> None:
        self.disk = disk
        self.config = config
        self.epochs = epochs
        self.producers = producers
        """`ProducerStates`, which is above this module."""
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_start_offset
        self.size_bytes = 0
        self.durable_recovery_point = 0
        """The highest value that the checkpoint on the disk may have for this log: nothing is appended below it."""
        self.absent_records = 0
        """Since the log was opened: the number of offsets up to the end of the fetched batches without a record."""
        self.segments: list[Any] = []
        self.offline: StorageError | None = None
        """Why nothing can be written any more; None while the log is writable."""

    def append_plain(self, records: memoryview, leader_epoch: int, now_ms: int) -> int:
        """Append one produced batch that needs no further checks. Returns its base offset, or NOT_PLAIN with nothing
        changed.

        Such a batch is the next one of a known producer, or has no producer id; it belongs to the producer's open
        transaction, or there is none. It needs no change except its offset and epoch, and fits into an open segment.
        The durable recovery point is not beyond the log end (`LogState._check_recovery_point`).
        `PartitionLog.append_as_leader` handles every other batch, and every error except StorageError. This twin always
        returns NOT_PLAIN.
        """
        return NOT_PLAIN

    def append_fetched(self, records: memoryview, leader_epoch: int, now_ms: int) -> int:
        """Append complete batches from the leader that need no further checks. Returns the number of bytes appended, or
        NOT_PLAIN with nothing changed. An incomplete batch at the end is left out.

        Such batches are data batches without a producer id or of known producers in their current epoch, none of which
        opens a transaction, in the log's latest leader epoch, with a valid CRC. They begin at the log end or above it,
        with gaps if the leader's log has them, and fit into the open segment. `PartitionLog.append_as_follower` handles
        all others. This twin always returns NOT_PLAIN.
        """
        return NOT_PLAIN

    def newest(self, offset: int, max_bytes: int, position: int) -> bytes | bytearray | None:
        """All bytes from the batch at `offset` to the log end, without a look-up: the read of a consumer that keeps up.
        `position`: where the batch lies in the active segment, -1 if unknown. Raises OSError.

        None if the position is unknown and the batch is not the last one, or if the range is large or not in the page
        cache: use a look-up then.
        """
        if not self.segments:
            return None
        segment = self.segments[-1]
        if position < 0:
            if segment.last_batch_offset != offset:
                return None
            position = segment.last_batch_position
        size = segment.size_bytes - position
        if segment.fd < 0 or not 0 < size <= max_bytes or size >= NEWEST_BYTES:
            return None
        segment.recently_used = True
        return self.disk.pread_resident(segment.fd, size, position)

    def batches_at(
        self,
        segment: SegmentTail,
        offset: int,
        end_offset_exclusive: int,
        max_bytes: int,
        at_least_one: bool,
        position: int,
    ) -> tuple[bytes | bytearray | memoryview, int] | None:
        """Complete batches of one segment from the one that contains `offset`, and its position, by a single read.

        At most `max_bytes`, below `end_offset_exclusive`; empty if the first batch is larger. `position`: of the batch,
        -1 if it must be looked up. Raises OSError.

        None if that needs more: a range of `NEWEST_BYTES` or more, bytes that are not in the page cache, a first batch
        that is larger although there has to be one, an index that does not fit the batches. `reading` handles these.
        """
        index = segment.index
        if index is None or segment.fd < 0:
            return None
        size = segment.size_bytes
        takes_all = end_offset_exclusive >= segment.next_offset
        high = size if takes_all else index.around(end_offset_exclusive - segment.base_offset)[1]
        low = latest = position
        if position < 0 and offset == segment.last_batch_offset:
            low = latest = segment.last_batch_position
        elif position < 0:
            low, latest = index.around(offset - segment.base_offset)
        if high < 0 or high > size:
            high = size
        if latest < 0:
            latest = size
        stop = min(high, latest + max_bytes)
        if not 0 < stop - low < NEWEST_BYTES:
            return None
        chunk = self.disk.pread_resident(segment.fd, stop - low, low)
        if chunk is None or len(chunk) != stop - low:
            return None
        segment.recently_used = True
        at, end, first, room = 0, 0, -1, stop - low
        while at + _BATCH_OVERHEAD <= room:
            base, length, _, magic, _, _, delta = _BATCH_HEAD.unpack_from(chunk, at)
            after = at + length + _LENGTH_PREFIX
            if magic != _MAGIC or after - at < _BATCH_OVERHEAD:
                return None
            if first < 0 and base + delta >= offset:
                if at == 0 and low > 0 and position < 0 and base > offset:
                    return None  # the index does not lead to the batch, unless compaction removed the offset
                first = at
                if takes_all and stop == size and room - at <= max_bytes:
                    end = room
                    break
            if first >= 0:
                if base + delta >= end_offset_exclusive or after - first > max_bytes:
                    break
                if after > room:
                    return None
                end = after
            at = after
        if first < 0 or (end == 0 and at_least_one):
            return None
        found = chunk if first == 0 and end == room else memoryview(chunk)[first : max(first, end)]
        return found, low + first
