"""A metadata log of a voter with damage before whole batches: what is known of it before it is cut there (gaps.md G24).

A loss of power in a flush leaves such a log: of what was written since the last one, later bytes may be on the disk and
earlier ones not. So does a disk that has damaged what was safe. The files do not tell these apart, so what lies behind
the damage counts as acknowledged: its end is promised before anything goes (`promised_end`), and the rest is fetched
from those who have it. Why that is safe: `docs/decisions/010`.

Owns the walk over all that is whole, and the order: decide, promise, tell. Never cuts (`log.recovery` does, and keeps
what it cuts), and bounds what it holds in memory to one batch and one stretch of damage. Blocks on the disk: for a
start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from fenceline.errors import OperatorError, PeerError
from fenceline.log.disk import Disk
from fenceline.log.errors import CorruptLog
from fenceline.log.file_names import LOG_SUFFIX, offset_in
from fenceline.log.scan import SEARCH_BYTES, BadBatch, Found, ReadTwice, UnstableRead, find_complete_batch, scan
from fenceline.node import promised_end, snapshot_files
from fenceline.node.logs import Logger
from fenceline.quorum.control_records import KRaftVoters, Voter, decode_control
from fenceline.quorum.log_view import NOTHING, LogEnd, SnapshotId
from fenceline.records.batch import read_header
from fenceline.records.decode import decode_batch
from fenceline.wire.errors import MalformedRequest

OthersHaveIt = Callable[[tuple[Voter, ...]], bool]
"""Whether there is somebody else to fetch the metadata from, where a directory names these voters, or none."""


_log = Logger("metadata")


class WhatIsWhole(NamedTuple):
    """`end`: the highest epoch and offset of the whole batches of a directory; `voters`: the newest that they name."""

    end: LogEnd
    voters: tuple[Voter, ...]


def promise_what_follows(
    disk: Disk, directory: str, newest: SnapshotId, others_have_it: OthersHaveIt, damage: CorruptLog
) -> None:
    """Durable when it returns; the log may be cut at the damage then. `newest` snapshot, `NO_SNAPSHOT` for none.

    Raises `damage` where nobody else has what would go, or the disk does not read the same twice; OperatorError.
    """
    try:
        found = what_is_whole(disk, directory)
    except UnstableRead:
        raise damage from None
    voters = found.voters or snapshot_files.voters_of_damaged(disk, f"{directory}/{newest.file_name}")
    if not others_have_it(voters):
        raise damage
    promised = max(promised_end.read(disk, directory), found.end)
    try:
        promised_end.write(disk, directory, promised)
    except OSError as error:
        raise OperatorError(
            f"{directory}/{promised_end.FILE_NAME} can not be written: {error.strerror or error}",
            f"The metadata log is damaged ({damage.message}), and is cut only when this file says where it ended. Make"
            " room on the disk, and check that it is healthy; then start the node again.",
        ) from error
    _log.error(
        "metadata log ends before a damaged place",
        path=damage.path,
        position=damage.position,
        reason=damage.reason,
        acknowledged_offset=promised.offset,
        acknowledged_epoch=promised.epoch,
        advice="A loss of power in the middle of a write leaves this, or a failing disk: check it if power was not"
        " lost. What follows is kept in lost+found and fetched again from the other controllers. Until then this one"
        " can not lead and votes only for who has all that it may have acknowledged; where the controllers find no"
        " leader without it, start those that are down.",
    )


def what_is_whole(disk: Disk, directory: str) -> WhatIsWhole:
    """Of all segments, before and behind every damaged place. Raises OSError, and UnstableRead where the disk gives
    other bytes each time: no checksum covers epoch and offset of a batch."""
    end = NOTHING
    voters: tuple[Voter, ...] = ()
    for found in _whole_batches(disk, directory):
        end = max(end, LogEnd(found.header.leader_epoch, found.header.next_offset))
        if found.header.is_control:
            voters = _voters_in(found.content) or voters
    return WhatIsWhole(end, voters)


def _whole_batches(disk: Disk, directory: str) -> Iterator[Found]:
    bases = (offset_in(name, LOG_SUFFIX) for name in disk.listdir(directory))
    for base in sorted(base for base in bases if base is not None):
        path = f"{directory}/{base:020d}{LOG_SUFFIX}"
        stat = disk.stat(path)
        fd = disk.open_read(path)
        try:
            yield from _whole_batches_of(ReadTwice(disk), fd, stat.size_bytes if stat is not None else 0)
        finally:
            disk.close(fd)


def _whole_batches_of(disk: ReadTwice, fd: int, size_bytes: int) -> Iterator[Found]:
    position = 0
    while position < size_bytes:
        try:
            yield from scan(disk, fd, position, size_bytes, next_offset=0, crc_from_offset=0, full_content=True)
            return
        except BadBatch as bad:
            position = bad.position + 1
        while position < size_bytes:
            content = disk.pread(fd, SEARCH_BYTES, position)
            whole = find_complete_batch(memoryview(content))
            if whole is not None:
                position += whole
                break
            position += max(1, SEARCH_BYTES // 2)


def _voters_in(batch: memoryview) -> tuple[Voter, ...]:
    """The last set that a control batch names; none where it names none, or can not be understood."""
    try:
        records = [decode_control(record.key, record.value) for record in decode_batch(batch, read_header(batch))]
    except (PeerError, MalformedRequest):
        return ()
    sets = [record.voters for record in records if isinstance(record, KRaftVoters)]
    return sets[-1] if sets else ()
