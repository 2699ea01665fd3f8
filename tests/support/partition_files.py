"""What the directories of brokers hold of a partition, Fenceline's or Kafka's: bytes, records, leader epochs.

Owns nothing; nobody has to have stopped for the bytes, but for the epochs: Fenceline writes them with a flush.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fenceline.log.file_names import EPOCH_FILE
from fenceline.records.batch import BatchHeader
from fenceline.records.build import Record
from fenceline.records.decode import decode_all


def log_bytes(log_dir: Path, topic: str, index: int = 0) -> bytes:
    """The records of a replica."""
    return b"".join(each.read_bytes() for each in sorted((log_dir / f"{topic}-{index}").glob("*.log")))


def evidence(log_dir: Path, topic: str, index: int) -> bytes:
    """What a Fenceline replica has cut off."""
    folder = log_dir / f"{topic}-{index}" / "lost+found"
    return b"".join(each.read_bytes() for each in sorted(folder.glob("*.log*")))


def batches(log_dir: Path, topic: str, index: int = 0) -> Iterator[tuple[BatchHeader, list[Record]]]:
    return decode_all(log_bytes(log_dir, topic, index))


def values(log_dir: Path, topic: str, index: int = 0) -> dict[int, bytes]:
    """Offset to value, without control records."""
    return {
        record.offset: record.value or b""
        for header, records in batches(log_dir, topic, index)
        if not header.is_control
        for record in records
    }


def epochs(log_dir: Path, topic: str, index: int = 0) -> list[tuple[int, int]]:
    """Epoch and start offset, of epochs that have records: one in which nothing was written is its leader's only."""
    end = max(header.next_offset for header, _ in batches(log_dir, topic, index))
    lines = (log_dir / f"{topic}-{index}" / EPOCH_FILE).read_text().splitlines()
    entries = [(int(epoch), int(start)) for epoch, start in (line.split() for line in lines[2:])]
    assert lines[0] == "0"
    assert int(lines[1]) == len(entries)
    return [(epoch, start) for epoch, start in entries if start < end]
