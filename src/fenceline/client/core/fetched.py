"""The records of a Fetch response that a reader may see: complete batches from an offset on, without control records.

Owns the scan that consumer and range reader share: it checks CRCs, drops records before the position or behind the end
of a range, control batches and (read_committed) aborted transactions, and returns the next offset and the last leader
epoch. Records are decoded later, directly from the response's buffer. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fenceline.client.core.epoch_history import EpochStart
from fenceline.client.core.errors import ClientError
from fenceline.client.core.offsets import CommittedOffset
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TopicPartition
from fenceline.records.aborted import AbortedTransactions
from fenceline.records.batch import CRC_COVERS_FROM, BatchHeader, Codec, iter_headers
from fenceline.records.crc import crc32c
from fenceline.records.decode import decode_rows

if TYPE_CHECKING:
    import pyarrow as pa


class ConsumerRecord(NamedTuple):
    """One record. timestamp in ms since 1970; timestamp_type 0 create time, 1 log append time."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    leader_epoch: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class ConsumerRecords(list[ConsumerRecord]):
    """The result of a poll: a list of records, and the next offset of each partition."""

    __slots__ = ("_next_offsets",)

    def __init__(
        self,
        records: Iterable[ConsumerRecord] = (),
        next_offsets: Mapping[TopicPartition, CommittedOffset] | None = None,
    ) -> None:
        super().__init__(records)
        self._next_offsets = {} if next_offsets is None else next_offsets

    def __reduce__(self) -> tuple[Any, ...]:
        return ConsumerRecords, (list(self), dict(self._next_offsets))

    def next_offsets(self) -> dict[TopicPartition, CommittedOffset]:
        """The next offset of every partition whose position this poll advanced, and the leader epoch of the last
        record before it (-1: unknown), as `commit` and `seek` accept them (KIP-320, KIP-1094; E55).
        """
        return dict(self._next_offsets)


class FetchedRun(NamedTuple):
    """Contiguous batches in `records`, of which only offsets in [start_offset, end_offset_exclusive) are visible."""

    records: memoryview
    start_offset: int
    end_offset_exclusive: int


class Fetched(NamedTuple):
    """One partition's part of a Fetch response. `next_offset`: the offset to fetch next; `last_epoch`: the leader
    epoch of the last batch before it.
    """

    topic: str
    partition: int
    runs: tuple[FetchedRun, ...]
    start_offset: int
    next_offset: int
    last_epoch: int
    size_bytes: int
    record_count: int
    """Upper bound: the counts of complete batches, also if only a part of the first or last one is visible."""
    epoch_starts: tuple[EpochStart, ...] = ()
    """The starts of epochs other than the one before `start_offset`."""
    is_compressed: bool = False
    largest_batch_bytes: int = 0


def scan(
    tp: TopicPartition,
    buf: memoryview,
    from_offset: int,
    epoch: int,
    *,
    end_offset_exclusive: int = 2**63 - 1,
    aborted: AbortedTransactions | None = None,
    check_crcs: bool = True,
    max_leader_epoch: int = -1,
) -> tuple[Fetched, BatchHeader | None]:
    """Split `buf` (the records of a Fetch response, with a possibly incomplete last batch) into visible runs.

    The second value is the first batch whose epoch is above `max_leader_epoch` (-1: no limit), at which the scan
    stopped. The scan also stops at a damaged batch. If that is the first one, raises ClientError(CORRUPT_MESSAGE) for
    a wrong CRC, or RecordsError for bytes that are not batches.
    """
    runs: list[FetchedRun] = []
    run_start = run_end = -1
    run_first_offset = run_next_offset = from_offset
    next_offset, size_bytes, record_count, largest_batch_bytes = from_offset, 0, 0, 0
    newer: BatchHeader | None = None
    is_compressed = False
    epoch_starts: list[EpochStart] = []
    try:
        for header in iter_headers(buf, allow_partial_tail=True):
            position, base_offset, batch_bytes, leader_epoch, _, crc, _, delta, *_, count = header
            if base_offset + delta < from_offset:
                continue
            if base_offset >= end_offset_exclusive:
                next_offset = max(next_offset, end_offset_exclusive)
                break
            if 0 <= max_leader_epoch < leader_epoch:
                newer = header
                break
            if check_crcs and crc32c(buf[position + CRC_COVERS_FROM : position + batch_bytes]) != crc:
                raise ClientError(
                    ErrorCode.CORRUPT_MESSAGE,
                    f"{tp}: the batch at offset {header.base_offset} has a wrong checksum. Read it again; if the error "
                    f"persists, the broker's segment is damaged. The next batch starts at offset {header.next_offset}, "
                    "according to the header.",
                )
            hidden = (aborted is not None and aborted.hides(buf, header)) or header.is_control
            if hidden or position != run_end:
                if run_end > run_start >= 0:
                    runs.append(FetchedRun(buf[run_start:run_end], run_first_offset, run_next_offset))
                run_start = run_end = position
                run_first_offset = max(from_offset, base_offset)
            if leader_epoch != epoch:
                # From the end of the previous batch: compaction may have removed records of this epoch in between.
                epoch = leader_epoch
                epoch_starts.append(EpochStart(epoch, next_offset))
            next_offset = min(base_offset + delta + 1, end_offset_exclusive)
            if hidden:
                run_start = run_end = -1
            else:
                run_end = position + batch_bytes
                run_next_offset = next_offset
                size_bytes += batch_bytes
                largest_batch_bytes = max(largest_batch_bytes, batch_bytes)
                is_compressed = is_compressed or header.codec is not Codec.NONE
                record_count += count
    except PeerError:
        # Return the batches before the damage; the next Fetch starts at the damaged one.
        if next_offset == from_offset:
            raise
    if run_end > run_start >= 0:
        runs.append(FetchedRun(buf[run_start:run_end], run_first_offset, run_next_offset))
    fetched = Fetched(
        tp.topic,
        tp.partition,
        tuple(runs),
        from_offset,
        next_offset,
        epoch,
        size_bytes,
        record_count,
        tuple(epoch_starts),
        is_compressed,
        largest_batch_bytes,
    )
    return fetched, newer


def to_records(fetched: Fetched) -> list[ConsumerRecord]:
    """The records as tuples, in offset order."""
    found: list[ConsumerRecord] = []
    topic, partition = fetched.topic, fetched.partition
    for run in fetched.runs:
        for header in iter_headers(run.records):
            found += decode_rows(
                run.records, header, ConsumerRecord, topic, partition, run.start_offset, run.end_offset_exclusive
            )
    return found


def to_arrow(pieces: Sequence[Fetched], **options: Any) -> pa.RecordBatch:
    """All pieces as one RecordBatch, in the given order; `options` and columns as in `fenceline.records.arrow`."""
    from fenceline.records.arrow import batches_to_arrow

    chunks = [(piece.topic, piece.partition, run.records) for piece in pieces for run in piece.runs]
    starts = [run.start_offset for piece in pieces for run in piece.runs]
    ends = [run.end_offset_exclusive for piece in pieces for run in piece.runs]
    # The scan has checked the CRCs, unless check.crcs=false.
    return batches_to_arrow(chunks, start_offsets=starts, end_offsets_exclusive=ends, check_crc=False, **options)
