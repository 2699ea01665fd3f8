"""What the directories of brokers hold of a partition, Fenceline's or Kafka's: bytes, records, leader epochs.

Owns nothing; nobody has to have stopped for the bytes, but for the epochs: Fenceline writes them with a flush.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from fenceline.ids import METADATA_TOPIC
from fenceline.log.core.checkpoints import read_offsets
from fenceline.log.core.disk import OsDisk
from fenceline.log.core.file_names import EPOCH_FILE
from fenceline.log.directories.log_dir_offsets import RECOVERY_POINTS
from fenceline.log.directories.partition_dir import parse_partition_name
from fenceline.records.batch import BatchHeader, iter_headers
from fenceline.records.build import Record
from fenceline.records.decode import decode_all

_CHECKED_FROM: Final = 17
"""From this byte of a batch on, its checksum and what that covers."""


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


def change_unflushed_byte(log_dirs: Sequence[Path], rng: random.Random) -> str | None:
    """One that a batch's checksum covers, behind the recovery point of its log, of a node that does not run. The file
    and the position; None where all is flushed, as far as the node has written down."""
    found: list[tuple[Path, int, int]] = []
    for log_dir in log_dirs:
        flushed = read_offsets(OsDisk(), str(log_dir / RECOVERY_POINTS))
        for path in log_dir.glob("*/*.log"):
            where = parse_partition_name(path.parent.name)
            if where is None or where.topic == METADATA_TOPIC:
                continue
            found += [
                (path, header.position + _CHECKED_FROM, header.end_position)
                for header in iter_headers(path.read_bytes(), allow_partial_tail=True)
                if header.base_offset >= flushed.get(where, 0)
            ]
    if not found:
        return None
    path, start, end = rng.choice(found)
    position = rng.randrange(start, end)
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes((byte ^ 1 << rng.randrange(8),)))
    return f"{path} at {position}"
