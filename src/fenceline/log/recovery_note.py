"""A note beside the evidence, written before recovery cuts a log: what is lost by that, and why.

Owns the note's name and form. It is there before the first byte goes, so that no crash on the way hides a loss; who
makes a receipt of it removes it. Never stands in the way of recovery: a disk that takes no note is told by the log
alone.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from typing import Final

from fenceline.log.disk import Disk, read_file, replace_file
from fenceline.log.lost_and_found import EVIDENCE_DIR
from fenceline.log.lost_batches import LostBatches

NOTE_PREFIX: Final = "recovery-"
NOTE_SUFFIX: Final = ".note"


@dataclass(frozen=True, slots=True)
class RecoveryNote:
    """`torn`: the end of one write, with nothing whole behind it. `others`: what lay in `lost+found` before."""

    lost: LostBatches
    reason: str
    torn: bool
    time_ms: int
    others: tuple[str, ...]


def write_note(disk: Disk, directory: str, note: RecoveryNote) -> None:
    """Durable when it returns. The note of a recovery that a crash interrupted stays as it is."""
    folder = f"{directory}/{EVIDENCE_DIR}"
    path = f"{folder}/{NOTE_PREFIX}{note.lost.start_offset}{NOTE_SUFFIX}"
    with contextlib.suppress(OSError):
        if disk.stat(path) is None:
            disk.mkdir(folder)
            disk.fsync_dir(directory)
            replace_file(disk, path, json.dumps(asdict(note)).encode())


def read_note(disk: Disk, path: str) -> RecoveryNote | None:
    """None for what is no note. Raises OSError."""
    try:
        fields = json.loads(read_file(disk, path) or b"")
        lost = fields.pop("lost")
        lost["leader_epochs"] = tuple(lost["leader_epochs"])
        fields["others"] = tuple(fields["others"])
        return RecoveryNote(LostBatches(**lost), **fields)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
