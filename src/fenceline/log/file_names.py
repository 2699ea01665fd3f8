"""Names of the files of one partition (`formats.md F4`).

Owns what a name says: which segment, which offset. Never opens anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

EPOCH_FILE: Final = "leader-epoch-checkpoint"
METADATA_FILE: Final = "partition.metadata"
LOG_SUFFIX: Final = ".log"
INDEX_SUFFIXES: Final = (".index", ".timeindex", ".txnindex")
SNAPSHOT_SUFFIX: Final = ".snapshot"
DELETED_SUFFIX: Final = ".deleted"
CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
OFFSET_DIGITS: Final = 20


def stem(directory: str, offset: int) -> str:
    """Path of the files of a segment, or of a producer snapshot, without their suffix: the offset in 20 digits."""
    return f"{directory}/{offset:0{OFFSET_DIGITS}d}"


def offset_in(name: str, suffix: str) -> int | None:
    """The offset that a file is named after; None when it does not end so, or is named after no offset."""
    digits = name[:OFFSET_DIGITS]
    return int(digits) if name.endswith(suffix) and digits.isdigit() else None


def is_segment(name: str) -> bool:
    """Whether it is a segment's `.log`, and nothing that is only called after one."""
    return len(name) == OFFSET_DIGITS + len(LOG_SUFFIX) and offset_in(name, LOG_SUFFIX) is not None


def segment_bases(names: Iterable[str]) -> list[int]:
    """Base offsets of the segments among a directory's names, rising."""
    return sorted(int(name[:OFFSET_DIGITS]) for name in names if is_segment(name))
