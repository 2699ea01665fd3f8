"""A hole in a voter's metadata log: damage before valid batches, examined before the log is truncated (gaps.md G24).

A power loss during a flush leaves such a log: of the bytes written since the last flush, later ones may be on disk and
earlier ones not. So does a disk that damages durable data. The files do not distinguish the two, so batches after the
damage count as acknowledged: their end is recorded (`promised_end`) before truncation, and the rest is fetched
from the other voters. Why that is safe: `docs/decisions/010`.

Owns the scan of all valid batches, and the order: decide, record, log a warning. Never truncates
(`log.recovery.recovery` does, and keeps the removed bytes). Holds at most one batch and one damaged range
in memory. Blocks on the disk: only for a start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from fenceline.errors import OperatorError, PeerError
from fenceline.log.core.disk import Disk
from fenceline.log.core.errors import CorruptLog
from fenceline.log.core.file_names import LOG_SUFFIX, offset_in
from fenceline.log.core.scan import SEARCH_BYTES, BadBatch, Found, ReadTwice, UnstableRead, find_complete_batch, scan
from fenceline.node.logs import Logger
from fenceline.node.metadata import promised_end, snapshot_files
from fenceline.quorum.control_records import KRaftVoters, Voter, decode_control
from fenceline.quorum.log_view import NO_PROMISED_END, LogEnd, SnapshotId
from fenceline.records.batch import read_header
from fenceline.records.decode import decode_batch
from fenceline.wire.errors import MalformedRequest

OthersHaveIt = Callable[[tuple[Voter, ...]], bool]
"""Whether other voters have the metadata, given the voters that a directory contains, if any."""


_log = Logger("metadata")


class ValidExtent(NamedTuple):
    """`end`: the highest epoch and offset of a directory's valid batches; `voters`: the newest set in them."""

    end: LogEnd
    voters: tuple[Voter, ...]


def record_promised_end(
    disk: Disk, directory: str, newest: SnapshotId, others_have_it: OthersHaveIt, damage: CorruptLog
) -> None:
    """Record the acknowledged end, durable on return; after that the log may be truncated at the damage. `newest`
    snapshot, `NO_SNAPSHOT` for none.

    Raises `damage` if no other voter has the removed records, or two reads of the disk differ; OperatorError.
    """
    try:
        found = valid_extent(disk, directory)
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
            f"Cannot write {directory}/{promised_end.FILE_NAME}: {error.strerror or error}",
            f"The metadata log is damaged ({damage.message}). It is truncated only after this file records its"
            " end. Free"
            " disk space and check the disk, then restart the node.",
        ) from error
    _log.error(
        "truncating the metadata log before a damaged range",
        path=damage.path,
        position=damage.position,
        reason=damage.reason,
        acknowledged_offset=promised.offset,
        acknowledged_epoch=promised.epoch,
        advice="The cause is a power loss during a write, or a failing disk: check it if there was no power loss. The"
        " removed part is kept in lost+found and fetched again from the other controllers. Until then this controller"
        " cannot lead, and votes only for candidates that have all records it may have acknowledged. If there is no"
        " leader meanwhile, start the controllers that are down.",
    )


def valid_extent(disk: Disk, directory: str) -> ValidExtent:
    """Scan all segments, before and after each damaged range. Raises OSError, and UnstableRead if two reads of the disk
    differ: no checksum covers the epoch and offset of a batch."""
    end = NO_PROMISED_END
    voters: tuple[Voter, ...] = ()
    for found in _valid_batches(disk, directory):
        end = max(end, LogEnd(found.header.leader_epoch, found.header.next_offset))
        if found.header.is_control:
            voters = _voters_in(found.content) or voters
    return ValidExtent(end, voters)


def _valid_batches(disk: Disk, directory: str) -> Iterator[Found]:
    bases = (offset_in(name, LOG_SUFFIX) for name in disk.listdir(directory))
    for base in sorted(base for base in bases if base is not None):
        path = f"{directory}/{base:020d}{LOG_SUFFIX}"
        stat = disk.stat(path)
        fd = disk.open_read(path)
        try:
            yield from _valid_batches_of(ReadTwice(disk), fd, stat.size_bytes if stat is not None else 0)
        finally:
            disk.close(fd)


def _valid_batches_of(disk: ReadTwice, fd: int, size_bytes: int) -> Iterator[Found]:
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
    """The voter set of a control batch; empty if it has none, or cannot be decoded."""
    try:
        records = [decode_control(record.key, record.value) for record in decode_batch(batch, read_header(batch))]
    except (PeerError, MalformedRequest):
        return ()
    sets = [record.voters for record in records if isinstance(record, KRaftVoters)]
    return sets[-1] if sets else ()
