"""Metadata records as record batches, for the log and for snapshot files.

Owns grouping into batches and the control batches at both ends of a snapshot. Pure bytes, no I/O.

Rules: controller.md C3, C5; raft.md Q38; snapshots.md N6-N8, N10.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from fenceline.controller.state import MAX_RECORDS
from fenceline.metadata.features import LATEST_METADATA_VERSION
from fenceline.metadata.image import MetadataImage
from fenceline.metadata.partition_values import encode_records
from fenceline.metadata.records import MetadataRecord
from fenceline.metadata.snapshot import RECORDS_PER_BATCH, image_values
from fenceline.quorum.control_records import (
    ControlRecord,
    KRaftVersion,
    KRaftVoters,
    SnapshotFooter,
    SnapshotHeader,
    Voter,
    encode_control,
)
from fenceline.records.build import MAX_RECORD_OVERHEAD, Row, build_batch

_BATCH_RECORDS: Final = 1000
_SNAPSHOT_BATCH_BYTES: Final = 4 << 20
"""Kafka reads batches of snapshots up to 8 MiB (N6)."""


def record_batch(
    records: Iterable[MetadataRecord],
    metadata_version: int,
    timestamp_ms: int,
    *,
    base_offset: int = 0,
    epoch: int = -1,
) -> bytearray:
    """One batch; all its records have the time of the append."""
    rows = [(timestamp_ms, None, value, ()) for value in encode_records(records, metadata_version)]
    return build_batch(rows, base_offset=base_offset, leader_epoch=epoch)


def control_batch(
    records: Sequence[ControlRecord], timestamp_ms: int, *, base_offset: int = 0, epoch: int = -1
) -> bytearray:
    """One control batch."""
    rows = [(timestamp_ms, *encode_control(record), ()) for record in records]
    return build_batch(rows, base_offset=base_offset, leader_epoch=epoch, control=True)


class SnapshotBatches:
    """The batches of a snapshot of `image`, generated lazily: header (with voters from kraft.version 1 on, N7),
    records, footer. Offsets start at 0 (N6). Can be iterated once, in any thread.
    """

    def __init__(
        self,
        image: MetadataImage,
        *,
        now_ms: int,
        last_log_timestamp_ms: int,
        kraft_version: int,
        voters: Sequence[Voter],
    ) -> None:
        self._values = image_values(image)
        self._epoch = image.epoch
        self._now_ms = now_ms
        self._opening = _opening(last_log_timestamp_ms, kraft_version, voters)
        self.record_count = 0
        """Metadata records so far."""

    def __iter__(self) -> Iterator[bytearray]:
        yield control_batch(self._opening, self._now_ms, epoch=self._epoch)
        for batch, count in _value_batches(self._values, len(self._opening), self._epoch, self._now_ms):
            self.record_count += count
            yield batch
        offset = len(self._opening) + self.record_count
        yield control_batch([SnapshotFooter()], self._now_ms, base_offset=offset, epoch=self._epoch)


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
    """The content of a snapshot file of any records, as `SnapshotBatches`."""
    opening = _opening(last_log_timestamp_ms, kraft_version, voters)
    batches = [control_batch(opening, now_ms, epoch=epoch)]
    offset = len(opening)
    values = encode_records(records, metadata_version)
    for batch, count in _value_batches(values, offset, epoch, now_ms):
        batches.append(batch)
        offset += count
    batches.append(control_batch([SnapshotFooter()], now_ms, base_offset=offset, epoch=epoch))
    return batches


def _opening(last_log_timestamp_ms: int, kraft_version: int, voters: Sequence[Voter]) -> list[ControlRecord]:
    opening: list[ControlRecord] = [SnapshotHeader(0, last_log_timestamp_ms)]
    if kraft_version >= 1:
        opening.append(KRaftVersion(0, kraft_version))
        if voters:
            opening.append(KRaftVoters(0, tuple(voters)))
    return opening


def _value_batches(values: Iterable[bytes], offset: int, epoch: int, now_ms: int) -> Iterator[tuple[bytearray, int]]:
    """Batches and their record counts, bounded in records and bytes."""
    group: list[Row] = []
    size_bytes = 0
    for value in values:
        if group and (len(group) == RECORDS_PER_BATCH or size_bytes + len(value) > _SNAPSHOT_BATCH_BYTES):
            yield build_batch(group, base_offset=offset, leader_epoch=epoch), len(group)
            offset += len(group)
            group, size_bytes = [], 0
        group.append((now_ms, None, value, ()))
        size_bytes += len(value) + MAX_RECORD_OVERHEAD
    if group:
        yield build_batch(group, base_offset=offset, leader_epoch=epoch), len(group)


class DecisionBatches:
    """Groups the records of decisions into batches: an atomic decision is one batch (C3), small ones share one."""

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
