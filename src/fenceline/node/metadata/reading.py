"""Reads batches of the metadata log and verifies them one by one, including fields that no checksum covers.

Owns reading the log at a start and for a snapshot's header. Never interprets a batch (`metadata.replay`), and never
repairs: damage is reported with its position.

Rules: snapshots.md N14, N15, N40.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from fenceline.errors import OperatorError, PeerError
from fenceline.records.batch import check_crc, iter_headers

if TYPE_CHECKING:
    from fenceline.log.partition.partition_log import PartitionLog
    from fenceline.records.batch import BatchHeader

_READ_BYTES: Final = 8 << 20
_ADVICE: Final = "The disk may be failing: check it. Reformat this node if the other voters are running."


def batches_from(log: PartitionLog, directory: str, offset: int) -> Iterator[tuple[memoryview, BatchHeader]]:
    """Each batch from the one with `offset` to the log's end, in memory that is valid until the next one.

    Raises OperatorError if a batch is damaged or not contiguous: the CRC does not cover a batch's offset.
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
                    f"{directory}: the metadata log has a batch at offset {header.base_offset}, expected"
                    f" {offset if last is None else last.next_offset}.",
                    _ADVICE,
                )
            known = log.epochs.epoch_for_offset(header.base_offset)
            if header.leader_epoch != known:  # the CRC covers neither, and an epoch too high would win elections
                raise OperatorError(
                    f"{directory}: the metadata log has a batch of epoch {header.leader_epoch} at offset"
                    f" {header.base_offset}, but leader-epoch-checkpoint has epoch {known}.",
                    _ADVICE,
                )
            last, next_offset = header, header.next_offset
            if next_offset > offset:
                yield records, header
        if next_offset <= offset:
            raise OperatorError(
                f"{directory}: the metadata log has no batch at offset {offset}, but ends at {end}.", _ADVICE
            )
        offset = next_offset


def timestamp_at_end_of(log: PartitionLog, directory: str, image_offset: int, epoch: int) -> Callable[[], int | None]:
    """Returns a function for a thread that finds the append time in ms of the committed batch that ends with
    `image_offset`; None if no batch of `epoch` ends there (N14, N15). It reads one batch, and raises OperatorError if
    that is damaged, StorageError. Raises StorageError."""
    read = log.read(image_offset, 1, end_offset_exclusive=image_offset + 1)

    def find() -> int | None:
        for header in _checked(read.records if read.resident else read.load(), directory):
            if header.last_offset == image_offset:
                return header.max_timestamp if header.leader_epoch == epoch else None
        return None

    return find


def _checked(records: memoryview, directory: str) -> Iterator[BatchHeader]:
    """Complete, valid batches. Raises OperatorError."""
    try:
        for header in iter_headers(records):
            check_crc(records, header)
            yield header
    except PeerError as error:
        raise OperatorError(f"The metadata log in {directory} is damaged: {error.message}", _ADVICE) from error
