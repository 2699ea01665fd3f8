"""Validates the batches that a follower fetched from its leader, before any of them is written.

Owns the checks of complete batches: checksums, contiguity with the log end, epochs that never decrease. Writes nothing.
Plain batches bypass it (`tail.append_fetched`).

Rules: `epochs.md E26`, `gaps.md G11`.
"""

from __future__ import annotations

from collections.abc import Sequence

from fenceline.errors import InternalError
from fenceline.log.core.config import MAX_INT64
from fenceline.log.core.errors import EpochStartUnknown
from fenceline.log.core.scan import Found
from fenceline.log.core.segment import MAX_RELATIVE_OFFSET
from fenceline.log.partition.state import LogState
from fenceline.records.batch import check_crc, iter_headers
from fenceline.records.markers import read_end_marker


def validate_fetched(
    log: LogState, records: memoryview, leader_epoch: int, epoch_starts: Sequence[tuple[int, int]]
) -> list[Found]:
    """The batches to append, from the first of `records` on: without an incomplete one at the end, at most one
    segment's worth, and none after a gap in which its epoch begins unless that offset is known (`epoch_starts`). The
    first may begin before the end of an empty log.

    Raises RecordsError(2) on damage, InternalError if they do not continue the log or its epochs, EpochStartUnknown if
    the epoch start of the first batch is unknown.
    """
    found: list[Found] = []
    next_offset = log.log_end_offset
    epoch = log.epochs.latest_epoch
    for header in iter_headers(records, allow_partial_tail=True):
        check_crc(records, header)
        if found and (
            header.end_position > log.config.segment_bytes
            or header.last_offset - found[0].header.base_offset > MAX_RELATIVE_OFFSET
        ):
            break  # the rest is fetched again
        is_valid_range = 0 <= header.last_offset_delta < MAX_INT64 - header.base_offset
        if not is_valid_range or header.base_offset < next_offset:
            # An empty log may start inside the leader's first batch (DeleteRecords there).
            is_empty = not found and log.log_start_offset == log.log_end_offset
            if not is_empty or not 0 <= header.base_offset < next_offset <= header.last_offset:
                raise InternalError(
                    f"{log.topic_partition}: batch at offset {header.base_offset} does not continue the log "
                    f"at {next_offset}"
                )
        if header.leader_epoch >= 0:
            if not epoch <= header.leader_epoch <= leader_epoch:
                raise InternalError(
                    f"{log.topic_partition}: batch at offset {header.base_offset} has leader epoch "
                    f"{header.leader_epoch}, after {epoch} and from a leader in epoch {leader_epoch}"
                )
            if (
                header.leader_epoch > epoch
                and header.base_offset > next_offset
                and not any(each == header.leader_epoch for each, _ in epoch_starts)
            ):
                if found:
                    break  # when it is fetched again, it comes first
                raise EpochStartUnknown(log.topic_partition, header.leader_epoch, header.base_offset, next_offset)
            epoch = header.leader_epoch
        content = records[header.position : header.end_position]
        if header.is_control and header.producer_id >= 0:
            read_end_marker(header, content)  # an unreadable marker must be detected before the write
        found.append(Found(header.position, header, content))
        next_offset = header.next_offset
    return found
