"""What compaction leaves in a log: gaps up to some offset, and records that count only together with newer ones.

Owns two files of a partition's directory.

`fenceline-compacted-to`: one offset, in digits. A loss of power can take the end of a sealed segment and leave the next
one, which looks like a segment that was compacted. Compaction takes only what is safe on the disk, and writes this file
before it exchanges the first segment: a gap before a segment that begins above the offset is a loss.

`fenceline-complete-from`: an offset and a leader epoch. A record that compaction left out, here or at the leader that
the log was fetched from, has a newer one of its key below the offset. A log that is cut below it has neither, while a
replica that was elected uncleanly may still have the older one: such a log has to be fetched anew.

Never says what is lost, and never cuts.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fenceline.log.disk import Disk, read_file, replace_file

BOUND_FILE: Final = "fenceline-compacted-to"
COMPLETE_FILE: Final = "fenceline-complete-from"
_MOST_BYTES: Final = 20
_UNKNOWN: Final = 1 << 62


class CompleteFrom(NamedTuple):
    """A log that ends below `offset` may lack records that other replicas have. `leader_epoch`: the leader's that had
    everything up to there; -1: not known."""

    offset: int = 0
    leader_epoch: int = -1

    def raised(self, offset: int, leader_epoch: int) -> CompleteFrom:
        return CompleteFrom(offset, leader_epoch) if offset > self.offset else self

    def lowered(self, offset: int) -> CompleteFrom:
        return CompleteFrom(offset, self.leader_epoch) if offset < self.offset else self


def read_bound(disk: Disk, directory: str) -> int:
    """The offset; 0 where this log was never compacted. A file that cannot be read counts for everything below any
    offset, as compaction did take place. Raises OSError."""
    content = read_file(disk, f"{directory}/{BOUND_FILE}")
    if content is None:
        return 0
    offset = _number(content.strip())
    return _UNKNOWN if offset is None else offset


def raise_bound(disk: Disk, directory: str, offset: int) -> None:
    """Before segments below `offset` are exchanged. Durable when it returns. For a thread. Raises OSError."""
    if read_bound(disk, directory) < offset:
        replace_file(disk, f"{directory}/{BOUND_FILE}", b"%d\n" % offset)


def lower_bound(disk: Disk, directory: str, offset: int) -> None:
    """After the log was cut to `offset`: what is appended there now was not compacted. Durable when it returns. For a
    thread. Raises OSError."""
    if read_bound(disk, directory) > offset:
        replace_file(disk, f"{directory}/{BOUND_FILE}", b"%d\n" % offset)


def read_complete_from(disk: Disk, directory: str) -> CompleteFrom:
    """A file that cannot be read counts for any offset. Raises OSError."""
    content = read_file(disk, f"{directory}/{COMPLETE_FILE}")
    if content is None:
        return CompleteFrom()
    numbers = [_number(text) for text in content.split()]
    if len(numbers) != 2 or numbers[0] is None or numbers[1] is None:
        return CompleteFrom(_UNKNOWN)
    return CompleteFrom(numbers[0], numbers[1])


def encode_complete_from(complete_from: CompleteFrom) -> bytes:
    # Without an epoch that is known, any unclean election since the first one counts.
    return b"%d %d\n" % (complete_from.offset, max(complete_from.leader_epoch, 0))


def write_complete_from(disk: Disk, directory: str, complete_from: CompleteFrom) -> None:
    """Durable when it returns. For a thread. Raises OSError."""
    replace_file(disk, f"{directory}/{COMPLETE_FILE}", encode_complete_from(complete_from))


def forget_bounds(disk: Disk, directory: str) -> None:
    """The log was emptied. Durable when it returns. For a thread. Raises OSError."""
    lower_bound(disk, directory, 0)
    if read_complete_from(disk, directory).offset:
        write_complete_from(disk, directory, CompleteFrom())


def _number(text: bytes) -> int | None:
    return int(text) if text.isdigit() and len(text) <= _MOST_BYTES else None
