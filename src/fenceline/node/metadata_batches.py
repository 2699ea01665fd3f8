"""Metadata records as record batches: of the log, and of whole snapshot files.

Owns grouping into batches and the control batches at both ends of a snapshot. Pure bytes, no I/O.

Rules: controller.md C3, C5; raft.md Q38; snapshots.md N6-N8.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from fenceline.controller.state import MAX_RECORDS
from fenceline.metadata.features import LATEST_METADATA_VERSION
from fenceline.metadata.image import MetadataImage
from fenceline.metadata.records import MetadataRecord, encode_record
from fenceline.metadata.snapshot import RECORDS_PER_BATCH, image_records
from fenceline.quorum.control_records import (
    ControlRecord,
    KRaftVersion,
    KRaftVoters,
    SnapshotFooter,
    SnapshotHeader,
    Voter,
    encode_control,
)
from fenceline.records.build import build_batch

_BATCH_RECORDS: Final = 1000


def record_batch(
    records: Iterable[MetadataRecord],
    metadata_version: int,
    timestamp_ms: int,
    *,
    base_offset: int = 0,
    epoch: int = -1,
) -> bytearray:
    """One batch; all its records bear the time of the append."""
    rows = [(timestamp_ms, None, encode_record(record, metadata_version), ()) for record in records]
    return build_batch(rows, base_offset=base_offset, leader_epoch=epoch)


def control_batch(
    records: Sequence[ControlRecord], timestamp_ms: int, *, base_offset: int = 0, epoch: int = -1
) -> bytearray:
    """One control batch."""
    rows = [(timestamp_ms, *encode_control(record), ()) for record in records]
    return build_batch(rows, base_offset=base_offset, leader_epoch=epoch, control=True)


def snapshot_batches(
    records: Iterable[MetadataRecord],
    *,
    metadata_version: int,
    epoch: int,
    now_ms: int,
    last_log_timestamp_ms: int,
    kraft_version: int = 0,
    voters: Sequence[Voter] = (),
) -> list[bytearray]:
    """The whole file: header (with voters from kraft.version 1 on, N7), records, footer. Offsets start at 0 (N6)."""
    opening: list[ControlRecord] = [SnapshotHeader(0, last_log_timestamp_ms)]
    if kraft_version >= 1:
        opening.append(KRaftVersion(0, kraft_version))
        if voters:
            opening.append(KRaftVoters(0, tuple(voters)))
    batches = [control_batch(opening, now_ms, epoch=epoch)]
    offset = len(opening)
    rest = iter(records)
    while group := list(islice(rest, RECORDS_PER_BATCH)):
        batches.append(record_batch(group, metadata_version, now_ms, base_offset=offset, epoch=epoch))
        offset += len(group)
    batches.append(control_batch([SnapshotFooter()], now_ms, base_offset=offset, epoch=epoch))
    return batches


def image_batches(
    image: MetadataImage,
    *,
    now_ms: int,
    last_log_timestamp_ms: int,
    kraft_version: int,
    voters: Sequence[Voter],
) -> list[bytearray]:
    """A snapshot of `image`, taken at its offset and epoch."""
    return snapshot_batches(
        image_records(image),
        metadata_version=image.metadata_version,
        epoch=image.epoch,
        now_ms=now_ms,
        last_log_timestamp_ms=last_log_timestamp_ms,
        kraft_version=kraft_version,
        voters=voters,
    )


class DecisionBatches:
    """Decisions' records gathered into batches: an atomic decision lies in one (C3), small ones share one."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._content = bytearray()
        self._group: list[MetadataRecord] = []
        self._version = 0

    def add(self, records: Sequence[MetadataRecord], atomic: bool, metadata_version: int) -> None:
        if self._group and (len(self._group) + len(records) > _BATCH_RECORDS or metadata_version != self._version):
            self._close()
        self._version = metadata_version
        if atomic:
            self._group.extend(records)
            return
        for start in range(0, len(records), MAX_RECORDS):
            self._group.extend(records[start : start + MAX_RECORDS])
            if len(self._group) >= MAX_RECORDS:
                self._close()

    def finish(self) -> bytearray:
        if self._group:
            self._close()
        return self._content

    def _close(self) -> None:
        self._content += record_batch(self._group, self._version or LATEST_METADATA_VERSION, self._now_ms)
        self._group = []
