"""Files of producer snapshots in a partition's directory (`formats.md F4`): which there are, and which may go.

Owns their names. What is in them is `producer_state.py`'s.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from fenceline.log.core.disk import Disk
from fenceline.log.core.file_names import SNAPSHOT_SUFFIX, offset_in, stem


def path_of(directory: str, offset: int) -> str:
    return stem(directory, offset) + SNAPSHOT_SUFFIX


def offsets_in(names: Iterable[str]) -> list[int]:
    """Offsets of the snapshots among a directory's names, newest first."""
    found = (offset_in(name, SNAPSHOT_SUFFIX) for name in names)
    return sorted((offset for offset in found if offset is not None), reverse=True)


def drop(disk: Disk, directory: str, names: Iterable[str], due: Callable[[int], bool]) -> None:
    """Unlink the snapshots whose offset `due` accepts. Raises OSError."""
    for offset in offsets_in(names):
        if due(offset):
            with contextlib.suppress(FileNotFoundError):
                disk.unlink(path_of(directory, offset))
