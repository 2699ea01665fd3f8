"""Up to where compaction may have left offsets out between two segments of a log.

Owns the file `fenceline-compacted-to` of a partition's directory: one offset, in digits. A loss of power can take the
end of a sealed segment and leave the next one, which looks like a segment that was compacted. Compaction takes only
what is safe on the disk, and writes this file before it exchanges the first segment: a gap before a segment that begins
above the offset is a loss. Never says what is lost.
"""

from __future__ import annotations

from typing import Final

from fenceline.log.disk import Disk, read_file, replace_file

BOUND_FILE: Final = "fenceline-compacted-to"
_MOST_BYTES: Final = 20


def read_bound(disk: Disk, directory: str) -> int:
    """The offset; 0 where this log was never compacted. A file that cannot be read counts for everything below any
    offset, as compaction did take place. Raises OSError."""
    content = read_file(disk, f"{directory}/{BOUND_FILE}")
    if content is None:
        return 0
    text = content.strip()
    return int(text) if text.isdigit() and len(text) <= _MOST_BYTES else 1 << 62


def raise_bound(disk: Disk, directory: str, offset: int) -> None:
    """Before segments below `offset` are exchanged. Durable when it returns. For a thread. Raises OSError."""
    if read_bound(disk, directory) < offset:
        replace_file(disk, f"{directory}/{BOUND_FILE}", b"%d\n" % offset)


def lower_bound(disk: Disk, directory: str, offset: int) -> None:
    """After the log was cut to `offset`: what is appended there now was not compacted. Durable when it returns. For a
    thread. Raises OSError."""
    if read_bound(disk, directory) > offset:
        replace_file(disk, f"{directory}/{BOUND_FILE}", b"%d\n" % offset)
