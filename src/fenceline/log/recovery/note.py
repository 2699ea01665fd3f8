"""A note next to the evidence, written before recovery truncates a log: what is lost, and why.

Owns the note's name and form. It exists before the first byte is removed, so that no crash hides a loss; the code that
writes the receipt removes it. If the disk cannot store the note, nothing is cut.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Final

from fenceline.log.core.disk import Disk, read_file, replace_file
from fenceline.log.core.lost_and_found import EVIDENCE_DIR
from fenceline.log.core.lost_batches import CutTransaction, LostBatches

NOTE_PREFIX: Final = "recovery-"
NOTE_SUFFIX: Final = ".note"


@dataclass(frozen=True, slots=True)
class RecoveryNote:
    """`torn`: the end of one write, with no complete batch after it. `others`: files that were in `lost+found` before.
    `deleted_below`: the log start, if all of this lay below it; else 0. `is_missing`: nothing was cut, the files end
    before data that was safe. `is_untold`: complete files are lost, which no truncation can have reported before.
    `is_set_aside`: the directory was set aside with them, and its last checkpoint has `known_high_watermark`."""

    lost: LostBatches
    reason: str
    torn: bool
    time_ms: int
    others: tuple[str, ...]
    deleted_below: int = 0
    is_missing: bool = False
    is_untold: bool = False
    is_set_aside: bool = False
    known_high_watermark: int = 0


def write_note(disk: Disk, directory: str, note: RecoveryNote) -> None:
    """Durable on return. Raises OSError: nothing may be cut then.

    The note of an interrupted recovery stays, as it holds more; evidence deleted since is removed from its `others`,
    because the next attempt may reuse the name.
    """
    folder = f"{directory}/{EVIDENCE_DIR}"
    path = f"{folder}/{NOTE_PREFIX}{note.lost.start_offset}{NOTE_SUFFIX}"
    disk.mkdir(folder)
    disk.fsync_dir(directory)
    before = read_note(disk, path) if disk.stat(path) is not None else None
    if before is not None:
        note = replace(before, others=tuple(name for name in before.others if name in note.others))
    if before != note:
        replace_file(disk, path, json.dumps(asdict(note)).encode())
    else:
        # Its name may exist in memory only, if the process was killed between the two.
        disk.fsync_dir(folder)


def read_note(disk: Disk, path: str) -> RecoveryNote | None:
    """None if the file is no note. Raises OSError."""
    try:
        fields = json.loads(read_file(disk, path) or b"")
        lost = fields.pop("lost")
        lost["leader_epochs"] = tuple(lost["leader_epochs"])
        lost["transactions"] = tuple(CutTransaction(*each) for each in lost.get("transactions", ()))
        fields["others"] = tuple(fields["others"])
        return RecoveryNote(LostBatches(**lost), **fields)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
