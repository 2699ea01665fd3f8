"""Records in a directory that is set aside although its partition stays on this node: noted, and kept as evidence.

Owns the order: the note first, durably, then the segment files move to the directory's `lost+found`, last to first.
After a crash between any two steps the next start sets the directory aside again, with the same note. Never decides
what is set aside and never renames the directory. Blocks on the disk: for a thread.
"""

from __future__ import annotations

from bisect import bisect_right

from fenceline.log.core.disk import Disk
from fenceline.log.core.file_names import INDEX_SUFFIXES, LOG_SUFFIX, OFFSET_DIGITS, segment_bases, stem
from fenceline.log.core.lost_and_found import evidence_in, keep_file
from fenceline.log.core.lost_batches import LostPiece, count_lost
from fenceline.log.recovery.files import clean_up, drop
from fenceline.log.recovery.note import RecoveryNote, write_note


def keep_records(
    disk: Disk, directory: str, start_offset: int, reason: str, *, high_watermark: int, now_ms: int
) -> RecoveryNote | None:
    """Count the records from `start_offset` on, write the note, move the segments that hold them. None if there are
    none.

    `high_watermark`: of the last checkpoint, if that describes this directory; else 0. Raises OSError, CorruptLog:
    every file that was moved is covered by a note.
    """
    names = clean_up(disk, directory).names
    bases = segment_bases(names)
    bases = bases[max(0, bisect_right(bases, start_offset) - 1) :]
    paths = [stem(directory, base) + LOG_SUFFIX for base in bases]
    sizes = [found.size_bytes if (found := disk.stat(path)) is not None else 0 for path in paths]
    lost = count_lost(
        disk, [LostPiece(path, 0, size) for path, size in zip(paths, sizes, strict=True)], start_offset=start_offset
    )
    if not lost.records and not lost.unreadable_bytes:
        return None
    others = tuple(evidence_in(disk, directory))
    note = RecoveryNote(lost, reason, False, now_ms, others, is_set_aside=True, known_high_watermark=high_watermark)
    write_note(disk, directory, note)
    for base, path in zip(reversed(bases), reversed(paths), strict=True):
        keep_file(disk, directory, path)
        drop(disk, directory, names, [f"{base:0{OFFSET_DIGITS}d}{suffix}" for suffix in INDEX_SUFFIXES])
    return note
