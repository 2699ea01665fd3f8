"""Batches of the metadata log, read back and looked at one by one: what no checksum covers is compared as well.

Owns how the log is read at a start and for a snapshot's header. Never decides what a batch means (`metadata_replay`),
and never repairs: damage is told with its place.

Rules: snapshots.md N14, N15, N40.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from fenceline.errors import OperatorError, PeerError
from fenceline.records.batch import check_crc, iter_headers

if TYPE_CHECKING:
    from fenceline.log.partition_log import PartitionLog
    from fenceline.records.batch import BatchHeader

_READ_BYTES: Final = 8 << 20
_ADVICE: Final = "The disk may be failing: check it. With other voters alive, format this node anew."


def batches_from(log: PartitionLog, directory: str, offset: int) -> Iterator[tuple[memoryview, BatchHeader]]:
    """Each batch from the one with `offset` to the log's end, in memory that is its reader's until the next one.

    Raises OperatorError where a batch is damaged or does not follow on the one before: no CRC covers a batch's offset.
    """
    end = log.log_end_offset
    last: BatchHeader | None = None
    while offset < end:
        read = log.read(offset, _READ_BYTES, end_offset_exclusive=end)
        records = read.records if read.resident else read.load()
        next_offset = offset
        for header in _checked(records, directory):
            follows = header.base_offset <= offset if last is None else header.base_offset == last.next_offset
            if not follows:
                raise OperatorError(
                    f"{directory}: the metadata log has a batch at offset {header.base_offset} where"
                    f" {offset if last is None else last.next_offset} was expected.",
                    _ADVICE,
                )
            known = log.epochs.epoch_for_offset(header.base_offset)
            if header.leader_epoch != known:  # no CRC covers either, and an epoch too high would win elections
                raise OperatorError(
                    f"{directory}: the metadata log has a batch of epoch {header.leader_epoch} at offset"
                    f" {header.base_offset}, and leader-epoch-checkpoint says {known}.",
                    _ADVICE,
                )
            last, next_offset = header, header.next_offset
            if next_offset > offset:
                yield records, header
        if next_offset <= offset:
            raise OperatorError(
                f"{directory}: the metadata log has nothing at offset {offset}, and ends at {end}.", _ADVICE
            )
        offset = next_offset


def timestamp_at_end_of(log: PartitionLog, directory: str, image_offset: int, epoch: int) -> Callable[[], int | None]:
    """What finds, in a thread, the append time in ms of the batch that ends with `image_offset`, which is committed;
    None where no batch of `epoch` ends there (N14, N15). It reads one batch, and raises OperatorError where that is
    damaged, StorageError. Raises StorageError."""
    read = log.read(image_offset, 1, end_offset_exclusive=image_offset + 1)

    def find() -> int | None:
        for header in _checked(read.records if read.resident else read.load(), directory):
            if header.last_offset == image_offset:
                return header.max_timestamp if header.leader_epoch == epoch else None
        return None

    return find


def _checked(records: memoryview, directory: str) -> Iterator[BatchHeader]:
    """Whole, undamaged batches. Raises OperatorError."""
    try:
        for header in iter_headers(records):
            check_crc(records, header)
            yield header
    except PeerError as error:
        raise OperatorError(f"The metadata log in {directory} is damaged: {error.message}", _ADVICE) from error
