"""The bounds that compaction leaves in a log: gaps up to an offset, and records that need the newer ones of their keys.

Owns two files of a partition's directory.

`fenceline-compacted-to`: one offset, in digits. A power loss can remove the end of a sealed segment and keep the next
one; the result looks like a compacted segment. Compaction reads only data that is safe on the disk, and writes this
file before it replaces the first segment: a gap before a segment with a base offset above this offset is a loss.

`fenceline-complete-from`: an offset and a leader epoch. For each record that compaction removed, here or at the leader
that the log was fetched from, a newer record of its key exists below the offset. A log that is truncated below the
offset has neither record, while a replica that is elected uncleanly may still have the older one: such a log must be
fetched again from the start.

Never decides what is lost, and never truncates.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fenceline.log.core.disk import Disk, read_file, replace_file

BOUND_FILE: Final = "fenceline-compacted-to"
COMPLETE_FILE: Final = "fenceline-complete-from"
_MAX_FILE_BYTES: Final = 20
_UNKNOWN: Final = 1 << 62


class CompleteFrom(NamedTuple):
    """A log that ends below `offset` may lack records that other replicas have. `leader_epoch`: of the leader that had
    everything up to the offset; -1 if unknown."""

    offset: int = 0
    leader_epoch: int = -1

    def raised(self, offset: int, leader_epoch: int) -> CompleteFrom:
        return CompleteFrom(offset, leader_epoch) if offset > self.offset else self

    def lowered(self, offset: int) -> CompleteFrom:
        return CompleteFrom(offset, self.leader_epoch) if offset < self.offset else self


COMPLETE: Final = CompleteFrom()
"""Of a log that lacks nothing."""


def read_bound(disk: Disk, directory: str) -> int:
    """The offset; 0 if this log was never compacted. An unreadable file counts as the highest offset, because the log
    was compacted. Raises OSError."""
    content = read_file(disk, f"{directory}/{BOUND_FILE}")
    if content is None:
        return 0
    offset = _number(content.strip())
    return _UNKNOWN if offset is None else offset


def raise_bound(disk: Disk, directory: str, offset: int) -> None:
    """Call it before segments below `offset` are replaced. Durable on return. For a thread. Raises OSError."""
    if read_bound(disk, directory) < offset:
        replace_file(disk, f"{directory}/{BOUND_FILE}", b"%d\n" % offset)


def lower_bound(disk: Disk, directory: str, offset: int) -> None:
    """Call it after the log was truncated to `offset`: new records there are not compacted. Durable on return. For a
    thread. Raises OSError."""
    if read_bound(disk, directory) > offset:
        replace_file(disk, f"{directory}/{BOUND_FILE}", b"%d\n" % offset)


def read_complete_from(disk: Disk, directory: str) -> CompleteFrom:
    """An unreadable file counts as the highest offset. Raises OSError."""
    content = read_file(disk, f"{directory}/{COMPLETE_FILE}")
    if content is None:
        return COMPLETE
    numbers = [_number(text) for text in content.split()]
    if len(numbers) != 2 or numbers[0] is None or numbers[1] is None:
        return CompleteFrom(_UNKNOWN)
    return CompleteFrom(numbers[0], numbers[1])


def encode_complete_from(complete_from: CompleteFrom) -> bytes:
    # If the epoch is unknown, any unclean election since the first one counts.
    return b"%d %d\n" % (complete_from.offset, max(complete_from.leader_epoch, 0))


def write_complete_from(disk: Disk, directory: str, complete_from: CompleteFrom) -> None:
    """Durable on return. For a thread. Raises OSError."""
    replace_file(disk, f"{directory}/{COMPLETE_FILE}", encode_complete_from(complete_from))


def forget_bounds(disk: Disk, directory: str) -> None:
    """Call it after the log was emptied. Durable on return. For a thread. Raises OSError."""
    lower_bound(disk, directory, 0)
    if read_complete_from(disk, directory).offset:
        write_complete_from(disk, directory, COMPLETE)


def _number(text: bytes) -> int | None:
    return int(text) if text.isdigit() and len(text) <= _MAX_FILE_BYTES else None
