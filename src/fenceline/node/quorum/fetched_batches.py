"""Checks which batches of a leader's response a follower may append.

Pure bytes, no I/O.

Rules: since_4_0.md K14; gaps.md G11.
"""

from __future__ import annotations

from fenceline.errors import PeerError
from fenceline.quorum.control_records import ControlRecord, decode_control
from fenceline.records.batch import check_crc, iter_headers
from fenceline.records.decode import decode_batch
from fenceline.wire.errors import MalformedRequest


def complete_batches(
    records: memoryview, base_offset: int, last_epoch: int, leader_epoch: int
) -> tuple[int, list[tuple[int, list[ControlRecord | None]]], str]:
    """Bytes of complete, valid batches that continue the log (K14, G11), their control records, why the scan ended."""
    good = 0
    controls: list[tuple[int, list[ControlRecord | None]]] = []
    try:
        for header in iter_headers(records, allow_partial_tail=True):
            check_crc(records, header)
            if header.base_offset != base_offset or not last_epoch <= header.leader_epoch <= leader_epoch:
                reason = f"the batch at {header.base_offset} of epoch {header.leader_epoch} does not continue the log"
                return good, controls, reason
            if header.is_control:
                decoded = decode_batch(records, header)
                controls.append((header.base_offset, [decode_control(one.key, one.value) for one in decoded]))
            base_offset, last_epoch, good = header.next_offset, header.leader_epoch, header.end_position
    except PeerError as error:
        return good, controls, error.message
    except MalformedRequest as error:
        return good, controls, str(error)
    return good, controls, "no complete batch"
