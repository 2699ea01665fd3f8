"""Batches of the metadata log as a simulated node takes them: which of those that were fetched are good, what they say.

Pure bytes, no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence

from fenceline.errors import PeerError
from fenceline.metadata.delta import MetadataDelta
from fenceline.metadata.image import MetadataImage
from fenceline.quorum.control_records import ControlRecord, decode_control
from fenceline.records.batch import BatchHeader, check_crc, iter_headers, read_header
from fenceline.records.decode import decode_batch
from fenceline.testing.simulation.world import StoredBatch


def applied(image: MetadataImage, batches: Sequence[StoredBatch]) -> MetadataImage:
    """The image with more committed batches, at least one."""
    delta = MetadataDelta(image)
    for batch in batches:
        header = read_header(batch.content)
        if not header.is_control:
            for record in decode_batch(batch.content, header):
                delta.replay_value(record.value or b"")
    built, _ = delta.build(batches[-1].next_offset - 1, batches[-1].epoch)
    return built


def whole_batches(
    records: memoryview, base_offset: int, last_epoch: int, leader_epoch: int
) -> tuple[int, list[tuple[int, list[ControlRecord]]], str]:
    """Bytes of whole, undamaged batches that continue the log (K14), their control records, why it stopped."""
    good = 0
    controls: list[tuple[int, list[ControlRecord]]] = []
    try:
        for header in iter_headers(records, allow_partial_tail=True):
            check_crc(records, header)
            if header.base_offset != base_offset or not last_epoch <= header.leader_epoch <= leader_epoch:
                return good, controls, f"a batch at {header.base_offset} of epoch {header.leader_epoch} does not follow"
            if header.is_control:
                controls.append((header.base_offset, _controls(records, header)))
            base_offset, last_epoch, good = header.next_offset, header.leader_epoch, header.end_position
    except PeerError as error:
        return good, controls, error.message
    return good, controls, "no whole batch"


def _controls(records: memoryview, header: BatchHeader) -> list[ControlRecord]:
    return [control for one in decode_batch(records, header) if (control := decode_control(one.key, one.value))]
