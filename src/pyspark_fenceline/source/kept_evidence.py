"""Finds lost rows in segment files: in the evidence that receipts name, and in data directories of nodes.

Owns which files may hold them, and which of their batches do: those of exactly these offsets and leader epochs.
Evidence is on the disk of the node that truncated its log, or in a copy of its data directory; nothing is fetched over
the network. A gap between batches (in a compacted log) counts as missing, because it is unknown what the query read
there. Never changes a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from fenceline.client.core.loss_receipts import LossReceipt
from fenceline.ids import encode_uuid
from fenceline.log.core.checkpoints import BadCheckpoint, read_partition_metadata
from fenceline.log.core.disk import OsDisk
from fenceline.log.core.file_names import METADATA_FILE
from fenceline.log.core.lost_and_found import EVIDENCE_DIR
from fenceline.log.core.scan import BadBatch, scan_past_damage
from pyspark_fenceline.common.lost_ranges import EpochSpan, LostRange
from pyspark_fenceline.source.kept_rows import KeptSpan, SegmentLocation

_OFFSET_DIGITS: Final = 20


@dataclass(slots=True)
class EvidenceFound:
    """`notes`: why rows are missing, each a clause of a message."""

    spans: list[KeptSpan] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def find_in_evidence(
    lost: LostRange, receipts: Sequence[LossReceipt], directories: Sequence[str], *, committed_only: bool
) -> EvidenceFound:
    """Find the rows of a range in segment files. `directories`: data directories of nodes, or copies. `committed_only`:
    the query has not read aborted transactions, which lost files do not always identify."""
    found = EvidenceFound()
    paths = dict.fromkeys(_named_by_receipts(lost, receipts, directories, found.notes))
    for directory in directories:
        paths |= dict.fromkeys(_files_below(lost, directory, found.notes))
    for path in paths:
        try:
            found.spans += _spans_in(path, lost, found.notes, committed_only=committed_only)
        except OSError as error:
            found.notes.append(f"{path} cannot be read ({error.strerror or error})")
    return found


def _named_by_receipts(
    lost: LostRange, receipts: Sequence[LossReceipt], directories: Sequence[str], notes: list[str]
) -> Iterator[str]:
    matching = [
        receipt
        for receipt in receipts
        if (receipt.topic, receipt.partition) == lost.topic_partition
        and lost.topic_id in (None, receipt.topic_id or lost.topic_id)
        and receipt.overlaps(lost.start_offset, lost.end_offset_exclusive, [start.epoch for start in lost.epochs])
    ]
    if not matching:
        notes.append("there is no receipt of the loss: a replica writes it after a restart, when it truncates its log")
    for receipt in matching:
        if not receipt.evidence:
            notes.append(f"receipt {receipt.id[:12]} has no evidence ({receipt.evidence_note or 'none was kept'})")
        for path in receipt.evidence:
            # In a copy, the path below the data directory is the same.
            copies = ["/".join((directory.rstrip("/"), *path.split("/")[-3:])) for directory in directories]
            here = next((each for each in (path, *copies) if os.path.isfile(each)), None)
            if here is not None:
                yield here
            else:
                notes.append(f"the evidence of receipt {receipt.id[:12]} is on node {receipt.replica} ({path})")


def _files_below(lost: LostRange, directory: str, notes: list[str]) -> Iterator[str]:
    """Segments and evidence of the partition's directories, including those that were set aside."""
    name = str(lost.topic_partition)
    try:
        children = sorted(os.listdir(directory))
    except OSError as error:
        notes.append(f"{directory} cannot be read ({error.strerror or error})")
        return
    for child in children:
        folder = f"{directory.rstrip('/')}/{child}"
        if (child != name and not child.startswith(f"{name}.")) or not os.path.isdir(folder):
            continue
        if not _is_of_topic(folder, lost.topic_id):
            notes.append(f"{folder} belongs to another topic of that name")
            continue
        yield from _segments_in(folder)
        yield from _segments_in(f"{folder}/{EVIDENCE_DIR}")


def _is_of_topic(folder: str, topic_id: str | None) -> bool:
    try:
        own = read_partition_metadata(OsDisk(), f"{folder}/{METADATA_FILE}")
    except (BadCheckpoint, OSError):
        own = None
    return topic_id is None or own is None or encode_uuid(own) == topic_id


def _segments_in(folder: str) -> Iterator[str]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        if name[:_OFFSET_DIGITS].isdigit() and name[_OFFSET_DIGITS:].startswith(".log"):
            yield f"{folder}/{name}"


def _spans_in(path: str, lost: LostRange, notes: list[str], *, committed_only: bool) -> list[KeptSpan]:
    """Offsets of the range in one file, by epoch; batches with a wrong checksum are ignored. Raises OSError."""
    base = os.path.basename(path)[:_OFFSET_DIGITS]
    if base.isdigit() and int(base) >= lost.end_offset_exclusive:
        return []
    wanted = lost.spans()
    spans: list[tuple[EpochSpan, int]] = []
    for position, start, end, epoch, is_undecided in _batches(path, lost.start_offset):
        if start >= lost.end_offset_exclusive:
            break
        if not any(
            one.leader_epoch == epoch and one.start_offset < end and start < one.end_offset_exclusive for one in wanted
        ):
            continue
        if committed_only and is_undecided:
            notes.append(f"{path} has records of transactions, and which of them were aborted is unknown")
            return []
        if spans and (spans[-1][0].leader_epoch, spans[-1][0].end_offset_exclusive) == (epoch, start):
            spans[-1] = (spans[-1][0]._replace(end_offset_exclusive=end), spans[-1][1])
        else:
            spans.append((EpochSpan(start, end, epoch), position))
    return [KeptSpan(lost.topic_partition, span, SegmentLocation(path, position)) for span, position in spans]


def _batches(path: str, from_offset: int) -> Iterator[tuple[int, int, int, int, bool]]:
    """Position, first offset, end offset, epoch and whether it is transactional, of each complete batch."""
    disk = OsDisk()
    found = disk.stat(path)
    if found is None:
        return
    fd = disk.open_read(path)
    try:
        for one in scan_past_damage(disk, fd, found.size_bytes, crc_from_offset=from_offset):
            if not isinstance(one, BadBatch) and one.header.next_offset > from_offset:
                header = one.header
                is_undecided = header.is_transactional and not header.is_control
                yield one.position, header.base_offset, header.next_offset, header.leader_epoch, is_undecided
    finally:
        disk.close(fd)
