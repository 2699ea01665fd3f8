"""The promised end: the log end that a node had acknowledged before its metadata log was reset, or truncated at a hole
(gaps.md G24).

Owns the file `promised-end` next to the log: `{"version":0,"epoch":E,"end_offset":N}`, replaced atomically, and durable
before the log is given up. While it exists, the node votes as if its log still ended there, and does not become a
candidate: a majority may have counted the records it acknowledged. Why: `docs/decisions/010`.

A hole is damage before valid batches. A power loss during a flush leaves one: of the bytes written since the last
flush, later ones may be on disk and earlier ones not. So does a disk that damages durable data. The files do not
distinguish the two, so batches after the damage count as acknowledged: their end is recorded before truncation, and
the rest is fetched from the other voters. This module scans all valid batches, and owns the order: decide, record, log
a warning. It never truncates (`log.recovery.recovery` does, and keeps the removed bytes), holds at most one batch and
one damaged range in memory, and blocks on the disk: only for a start.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from fenceline.errors import OperatorError, PeerError
from fenceline.log.core.disk import Disk, read_file, replace_file
from fenceline.log.core.errors import CorruptLog
from fenceline.log.core.file_names import LOG_SUFFIX, offset_in
from fenceline.log.core.scan import SEARCH_BYTES, BadBatch, Found, ReadTwice, UnstableRead, find_complete_batch, scan
from fenceline.node.logs import Logger
from fenceline.node.metadata import snapshot_files
from fenceline.quorum.control_records import KRaftVoters, Voter, decode_control
from fenceline.quorum.log_view import NO_PROMISED_END, QuorumLogEnd, SnapshotId
from fenceline.records.batch import read_header
from fenceline.records.decode import decode_batch
from fenceline.wire.errors import MalformedRequest

OthersHaveIt = Callable[[tuple[Voter, ...]], bool]
"""Whether other voters have the metadata, given the voters that a directory contains, if any."""

FILE_NAME: Final = "promised-end"

_log = Logger("metadata")


# -- the file ----------------------------------------------------------------------------------------------------------


def read(disk: Disk, directory: str) -> QuorumLogEnd:
    """The promised end, `NO_PROMISED_END` if there is none. Raises OperatorError: an unreadable file must not be
    ignored."""
    path = f"{directory}/{FILE_NAME}"
    content = read_file(disk, path)
    if content is None:
        return NO_PROMISED_END
    try:
        fields = json.loads(content)
        if fields["version"] != 0:
            raise ValueError(f"version {fields['version']} is not supported")
        return QuorumLogEnd(int(fields["epoch"]), int(fields["end_offset"]))
    except (ValueError, KeyError, TypeError) as error:
        raise OperatorError(
            f"Cannot read {path}: {error}",
            "The file holds the log end that this node had acknowledged before it lost its metadata log; it must not be"
            " deleted or recreated by hand. If a majority of the other voters is running, remove this voter, reformat"
            " this node and add it again.",
        ) from None


def write(disk: Disk, directory: str, end: QuorumLogEnd) -> None:
    """Durable when it returns. Raises OSError."""
    content = json.dumps({"version": 0, "epoch": end.epoch, "end_offset": end.offset}, separators=(",", ":"))
    replace_file(disk, f"{directory}/{FILE_NAME}", content.encode())


def forget(disk: Disk, directory: str) -> None:
    """Delete the file: the log has reached the promised end again. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(f"{directory}/{FILE_NAME}")


# -- a hole ------------------------------------------------------------------------------------------------------------


class ValidExtent(NamedTuple):
    """`end`: the highest epoch and offset of a directory's valid batches; `voters`: the newest set in them."""

    end: QuorumLogEnd
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
    promised = max(read(disk, directory), found.end)
    try:
        write(disk, directory, promised)
    except OSError as error:
        raise OperatorError(
            f"Cannot write {directory}/{FILE_NAME}: {error.strerror or error}",
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
        end = max(end, QuorumLogEnd(found.header.leader_epoch, found.header.next_offset))
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
