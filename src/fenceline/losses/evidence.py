"""Reads the lost records from the evidence of a receipt.

Owns which batches of the kept files belong to the loss. Never changes evidence. Blocks on the disk: for commands and
threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from fenceline.log.core.disk import Disk
from fenceline.log.core.scan import BadBatch, scan_past_damage
from fenceline.losses.folder import ReceiptFolder, ReceiptOutbox
from fenceline.losses.receipt import Receipt
from fenceline.records.batch import BatchHeader, crc_is_valid, read_header


@dataclass(slots=True)
class EvidenceReader:
    """Reads once; afterwards the unreadable parts are known."""

    disk: Disk
    receipt: Receipt
    paths: tuple[str, ...]
    damaged_batches: int = 0
    """Batches of the loss that are incomplete."""
    _seen: set[tuple[int, int]] = field(default_factory=set)

    def batches(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Header (at position 0) and bytes of each complete batch of the loss, each once. Raises OSError."""
        for path in self.paths:
            found = self.disk.stat(path)
            if found is None:
                raise FileNotFoundError(2, "the evidence does not exist", path)
            yield from self._batches_of(path, found.size_bytes)

    def _batches_of(self, path: str, size_bytes: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        receipt = self.receipt
        fd = self.disk.open_read(path)
        try:
            for found in scan_past_damage(self.disk, fd, size_bytes, crc_from_offset=None, full_content=True):
                if isinstance(found, BadBatch):
                    self.damaged_batches += 1
                    continue
                if found.header.next_offset <= receipt.start_offset:
                    continue
                if found.header.base_offset >= receipt.end_offset_exclusive:
                    continue
                header = read_header(found.content)
                if not crc_is_valid(found.content, header):
                    self.damaged_batches += 1
                    continue
                key = (header.base_offset, header.leader_epoch)
                if key not in self._seen:
                    self._seen.add(key)
                    yield header, found.content
        finally:
            self.disk.close(fd)


def is_here(disk: Disk, receipt: Receipt) -> bool:
    """Whether the evidence can be read on this machine, and is that of the receipt: other nodes have files of the same
    names, and a node keeps the receipt near them."""
    try:
        for path in receipt.evidence:
            log_dir, directory, _, _ = path.rsplit("/", 3)
            folders = (ReceiptFolder(disk, f"{log_dir}/{directory}"), ReceiptOutbox(disk, log_dir))
            if not any(folder.is_known(receipt.id) for folder in folders):
                return False
            disk.close(disk.open_read(path))
    except (OSError, ValueError):
        return False
    return bool(receipt.evidence)


def places(receipt: Receipt, data_dir: str | None) -> tuple[str, ...]:
    """Paths of the evidence: as the node recorded them, or below a data directory that was moved."""
    if data_dir is None:
        return receipt.evidence
    # The directory may have been set aside under another name than the partition's.
    return tuple("/".join((data_dir.rstrip("/"), *path.split("/")[-3:])) for path in receipt.evidence)
