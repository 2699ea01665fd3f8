"""Names of the files of one partition (`formats.md F4`), including metadata snapshots (`snapshots.md N2`).

Owns the segment and the offset that a name encodes. Never opens anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

EPOCH_FILE: Final = "leader-epoch-checkpoint"
METADATA_FILE: Final = "partition.metadata"
BOOTSTRAP_FILE: Final = "bootstrap.checkpoint"
"""The first records of a cluster's metadata, next to `meta.properties`: also a snapshot."""

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIXES: Final = (".index", ".timeindex", ".txnindex")
SNAPSHOT_SUFFIX: Final = ".snapshot"
DELETED_SUFFIX: Final = ".deleted"
CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
OFFSET_DIGITS: Final = 20
_FROZEN: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint")


def stem(directory: str, offset: int) -> str:
    """Path of the files of a segment, or of a producer snapshot, without their suffix: the offset in 20 digits."""
    return f"{directory}/{offset:0{OFFSET_DIGITS}d}"


def offset_in(name: str, suffix: str) -> int | None:
    """The offset in a file name; None if the name has another suffix or no offset."""
    digits = name[:OFFSET_DIGITS]
    return int(digits) if name.endswith(suffix) and digits.isdigit() else None


def is_segment(name: str) -> bool:
    """Whether it is a segment's `.log` file, and not a file with a suffix after it."""
    return len(name) == OFFSET_DIGITS + len(LOG_SUFFIX) and offset_in(name, LOG_SUFFIX) is not None


def segment_bases(names: Iterable[str]) -> list[int]:
    """Base offsets of the segments among a directory's names, ascending."""
    return sorted(int(name[:OFFSET_DIGITS]) for name in names if is_segment(name))


def frozen_snapshot(name: str) -> tuple[int, int] | None:
    """(end offset, epoch) in the name of a frozen metadata snapshot; None for any other name."""
    found = _FROZEN.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[2]))


def is_metadata_snapshot(name: str) -> bool:
    """Whether it is a metadata snapshot, including the bootstrap snapshot of a node."""
    return name == BOOTSTRAP_FILE or frozen_snapshot(name) is not None
