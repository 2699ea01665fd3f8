"""Files of metadata snapshots: names, verified reading, writing, freezing and deletion.

Owns the rule that only complete files are loaded: header first, footer last, every CRC, contiguous offsets, the epoch
of the name in every batch (gaps.md G24). Does not interpret records. All functions block: they are for threads, for the
start of a node, and for commands that read directories.

A file is written under a name that ends in `.part`, made durable, and renamed: a file with a snapshot's own name is
complete, unless the disk has damaged it since. A damaged file is set aside under a name that ends in `.damaged`, which
neither Kafka nor Fenceline reads. Frozen files never change (N5) and are never opened for writing; Kafka also removes
the write permission, which has no effect on a process that runs as their owner. Unlike Kafka's, partial names have no
random part (N3): a snapshot has one writer, and the name of a download contains its source.

Rules: snapshots.md N1-N9, N16, N21, N33, N43, N46; gaps.md G24, G26, G29.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fenceline.errors import OperatorError, PeerError
from fenceline.log.core.disk import Disk, write_all
from fenceline.log.core.file_names import frozen_snapshot
from fenceline.quorum.control_records import (
    ControlRecord,
    KRaftVersion,
    KRaftVoters,
    SnapshotFooter,
    SnapshotHeader,
    Voter,
    decode_control,
)
from fenceline.quorum.log_view import SnapshotId
from fenceline.records.batch import check_crc, iter_headers
from fenceline.records.decode import decode_batch
from fenceline.wire.errors import MalformedRequest

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from fenceline.records.batch import BatchHeader
    from fenceline.records.build import Record

PART_SUFFIX: Final = ".part"
DELETED_SUFFIX: Final = ".deleted"
DAMAGED_SUFFIX: Final = ".damaged"

_DOWNLOAD: Final = re.compile(r"(\d{20})-(\d{10})-from-(-?\d+)\.checkpoint\.part")
_LEFTOVER: Final = re.compile(r".*\.checkpoint(\.part|\.deleted)")
_READ_BYTES: Final = 1 << 20
_MAX_BATCH_BYTES: Final = 64 << 20
"""Kafka writes at most 8 MiB (N6); a length above this limit is damage."""


class SnapshotDamaged(OperatorError):
    """A snapshot file that must not be loaded."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"The metadata snapshot {path} is damaged: {reason}",
            "Restore the file from a backup, or move it away if the log starts at an older snapshot or at offset 0, or"
            " if other voters of this cluster have the metadata.",
        )
        self.path = path
        self.reason = reason


@dataclass(frozen=True, slots=True)
class SnapshotContents:
    """Header and counts of a complete snapshot file. Times in ms."""

    size_bytes: int
    batch_count: int
    record_count: int
    """Number of metadata records, without control records."""
    last_contained_log_timestamp: int
    kraft_version: int
    voters: tuple[Voter, ...]


# -- names ------------------------------------------------------------------------------------------------------------


def snapshot_of(name: str) -> SnapshotId | None:
    """The id in a frozen snapshot's file name; None for any other name (N2)."""
    found = frozen_snapshot(name)
    return None if found is None else SnapshotId(*found)


def download_name(snapshot_id: SnapshotId, source: int) -> str:
    """The partial file of a download: its name contains the source, because only that node has exactly these bytes
    (G29)."""
    return f"{snapshot_id.end_offset:020d}-{snapshot_id.epoch:010d}-from-{source}.checkpoint{PART_SUFFIX}"


def find_snapshots(disk: Disk, directory: str) -> list[SnapshotId]:
    """Frozen snapshots by name, oldest first (N1). Raises OSError."""
    found = [snapshot for name in disk.listdir(directory) if (snapshot := snapshot_of(name)) is not None]
    return sorted(found, key=age)


def age(snapshot: SnapshotId) -> tuple[int, int]:
    """Sort key, oldest first (N1)."""
    return snapshot.epoch, snapshot.end_offset


def remove_leftovers(disk: Disk, directory: str) -> None:
    """Delete files left by a crash (N43): partial ones, and those marked for deletion.

    A download that can be resumed stays: the newest one, if it is newer than every snapshot. Raises OSError.
    """
    names = disk.listdir(directory)
    newest = max((age(each) for name in names if (each := snapshot_of(name)) is not None), default=(-1, -1))
    downloads = [(int(found[2]), int(found[1]), name) for name in names if (found := _DOWNLOAD.fullmatch(name))]
    kept = max((each for each in downloads if each[:2] > newest), default=None)
    for name in names:
        if _LEFTOVER.fullmatch(name) and (kept is None or name != kept[2]):
            _unlink(disk, f"{directory}/{name}")


# -- reading ----------------------------------------------------------------------------------------------------------


def read_snapshot(disk: Disk, path: str, snapshot_id: SnapshotId | None) -> Iterator[tuple[memoryview, BatchHeader]]:
    """Every batch of a snapshot file, verified before it is returned: (bytes, parsed header), read in parts.

    Without an id (Kafka's `bootstrap.checkpoint`) the epoch is not checked. Raises SnapshotDamaged at the first
    mismatch, or at the end if there is no footer; OSError.
    """
    state = _Checks(path, snapshot_id)
    for records, header in _batches(disk, path):
        state.check(records, header)
        yield records, header
    state.finish()


def verify_snapshot(
    disk: Disk, path: str, snapshot_id: SnapshotId | None, size_bytes: int | None = None
) -> SnapshotContents:
    """Verify the complete file (G24). Raises SnapshotDamaged, also if its size is not `size_bytes`; OSError."""
    state = _Checks(path, snapshot_id)
    for records, header in _batches(disk, path):
        state.check(records, header)
        if not header.is_control:
            _decoded(path, records, header)
    state.finish()
    if size_bytes is not None and state.size_bytes != size_bytes:
        raise SnapshotDamaged(path, f"it has {state.size_bytes} bytes instead of {size_bytes}")
    return state.contents()


def timestamp_of(disk: Disk, path: str) -> int | None:
    """`last_contained_log_timestamp` of the header, ms; None if the file does not start with one. Raises OSError."""
    try:
        for records, header in _batches(disk, path):
            first = _controls(path, records, header)[0] if header.is_control else None
            return first.last_contained_log_timestamp if isinstance(first, SnapshotHeader) else None
    except SnapshotDamaged:
        pass
    return None


def voters_of_damaged(disk: Disk, path: str) -> tuple[Voter, ...]:
    """The voters in the first batch of a file, as far as readable. Raises OSError."""
    voters: tuple[Voter, ...] = ()
    with contextlib.suppress(SnapshotDamaged):
        for records, header in _batches(disk, path):
            for control in _controls(path, records, header) if header.is_control else []:
                if isinstance(control, KRaftVoters):
                    voters = control.voters
            break
    return voters


def _batches(disk: Disk, path: str) -> Iterator[tuple[memoryview, BatchHeader]]:
    """Complete batches with a valid CRC. Raises SnapshotDamaged, also if the file does not exist."""
    try:
        fd = disk.open_read(path)
    except FileNotFoundError:
        raise SnapshotDamaged(path, "the file no longer exists") from None
    try:
        position = 0
        rest = b""
        while chunk := disk.pread(fd, _READ_BYTES, position):
            position += len(chunk)
            records = memoryview(rest + chunk)
            end = 0
            for header in iter_headers(records, allow_partial_tail=True):
                check_crc(records, header)
                yield records, header
                end = header.end_position
            rest = bytes(records[end:])
            if len(rest) > _MAX_BATCH_BYTES:
                raise SnapshotDamaged(path, f"it has a batch of more than {_MAX_BATCH_BYTES} bytes")
        if rest:
            raise SnapshotDamaged(path, f"it ends in the middle of a batch, at {position} bytes")
    except PeerError as error:
        raise SnapshotDamaged(path, error.message) from error
    finally:
        disk.close(fd)


class _Checks:
    """Checks across batches."""

    def __init__(self, path: str, snapshot_id: SnapshotId | None) -> None:
        self._path = path
        self._epoch = None if snapshot_id is None else snapshot_id.epoch
        self._header: SnapshotHeader | None = None
        self._has_footer = False
        self._next_offset = 0
        self._batch_count = 0
        self._record_count = 0
        self._kraft_version = 0
        self._voters: tuple[Voter, ...] = ()
        self.size_bytes = 0

    def check(self, records: memoryview, header: BatchHeader) -> None:
        if self._has_footer:
            raise SnapshotDamaged(self._path, "it has records after its footer")
        if header.base_offset != self._next_offset:
            raise SnapshotDamaged(self._path, f"offset {header.base_offset} follows {self._next_offset - 1}")
        if self._epoch is not None and header.leader_epoch != self._epoch:
            raise SnapshotDamaged(self._path, f"it belongs to a snapshot of epoch {header.leader_epoch}")
        if header.is_control:
            self._check_control(_controls(self._path, records, header))
        elif self._header is None:
            raise SnapshotDamaged(self._path, "it does not start with a header")
        else:
            self._record_count += header.record_count
        self._next_offset = header.next_offset
        self._batch_count += 1
        self.size_bytes += header.size_bytes

    def _check_control(self, controls: list[ControlRecord | None]) -> None:
        if self._header is None and not isinstance(controls[0], SnapshotHeader):
            raise SnapshotDamaged(self._path, "it does not start with a header")
        for control in controls:
            match control:
                case SnapshotHeader():
                    if self._header is not None:
                        raise SnapshotDamaged(self._path, "it has a second header")
                    self._header = control
                case SnapshotFooter():
                    self._has_footer = True
                case KRaftVersion():
                    self._kraft_version = control.k_raft_version
                case KRaftVoters():
                    self._voters = control.voters
                case _:
                    pass

    def finish(self) -> None:
        if not self._has_footer:
            raise SnapshotDamaged(self._path, "it has no footer" if self._batch_count else "it is empty")

    def contents(self) -> SnapshotContents:
        assert self._header is not None, "a footer follows a header"
        return SnapshotContents(
            self.size_bytes,
            self._batch_count,
            self._record_count,
            self._header.last_contained_log_timestamp,
            self._kraft_version,
            self._voters,
        )


def _controls(path: str, records: memoryview, header: BatchHeader) -> list[ControlRecord | None]:
    """The records of one control batch, at least one; None for an unknown type."""
    try:
        found = [decode_control(one.key, one.value) for one in _decoded(path, records, header)]
    except MalformedRequest as error:
        raise SnapshotDamaged(path, str(error)) from error
    return found or [None]


def _decoded(path: str, records: memoryview, header: BatchHeader) -> list[Record]:
    try:
        return decode_batch(records, header)
    except PeerError as error:
        raise SnapshotDamaged(path, error.message) from error


# -- writing ----------------------------------------------------------------------------------------------------------


def write_snapshot(disk: Disk, path: str, batches: Iterable[Buffer]) -> int:
    """N16: write the file under a partial name, flush it, rename it; returns its size in bytes.

    Raises OSError and leaves no partial file.
    """
    part = path + PART_SUFFIX
    _unlink(disk, part)
    size_bytes = 0
    try:
        fd = disk.open_append(part)
        try:
            for batch in batches:
                write_all(disk, fd, batch)
                size_bytes += memoryview(batch).nbytes
            disk.fsync(fd)
        finally:
            disk.close(fd)
        freeze_snapshot(disk, part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            _unlink(disk, part)
        raise
    return size_bytes


def freeze_snapshot(disk: Disk, part: str, path: str) -> None:
    """Rename a durable file to its final name. Raises OSError."""
    disk.rename(part, path)
    disk.fsync_dir(path.rsplit("/", 1)[0])


def set_aside(disk: Disk, path: str) -> str:
    """Rename a damaged file so that it is no longer read; returns its new path. Raises OSError."""
    kept = path + DAMAGED_SUFFIX
    disk.rename(path, kept)
    disk.fsync_dir(path.rsplit("/", 1)[0])
    return kept


def mark_deleted(disk: Disk, path: str) -> str:
    """N21, first half: rename the file at once, open readers can finish; returns the path to unlink. Raises OSError."""
    marked = path + DELETED_SUFFIX
    with contextlib.suppress(FileNotFoundError):
        disk.rename(path, marked)
    return marked


def unlink_marked(disk: Disk, path: str) -> None:
    """N21, second half. Raises OSError; a missing file is fine."""
    _unlink(disk, path)


def _unlink(disk: Disk, path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(path)


# -- downloads --------------------------------------------------------------------------------------------------------


def begin_download(disk: Disk, directory: str, snapshot_id: SnapshotId, source: int) -> int:
    """Create or resume the partial file; returns the position to resume at. Deletes other downloads. Raises OSError.

    After a crash the file is truncated to its last complete batch.
    """
    name = download_name(snapshot_id, source)
    for other in disk.listdir(directory):
        if other != name and _DOWNLOAD.fullmatch(other):
            _unlink(disk, f"{directory}/{other}")
    path = f"{directory}/{name}"
    whole_bytes = 0
    if disk.stat(path) is not None:
        state = _Checks(path, snapshot_id)
        with contextlib.suppress(SnapshotDamaged):
            for records, header in _batches(disk, path):
                state.check(records, header)
        whole_bytes = state.size_bytes
    fd = disk.open_append(path)
    try:
        disk.truncate(fd, whole_bytes)
    finally:
        disk.close(fd)
    return whole_bytes


def write_piece(disk: Disk, directory: str, snapshot_id: SnapshotId, source: int, content: Buffer) -> None:
    """Append to the partial file. Raises OSError."""
    fd = disk.open_append(f"{directory}/{download_name(snapshot_id, source)}")
    try:
        write_all(disk, fd, content)
    finally:
        disk.close(fd)


def finish_download(
    disk: Disk, directory: str, snapshot_id: SnapshotId, source: int, size_bytes: int
) -> SnapshotContents:
    """G24: verify the file, flush it, rename it. Raises SnapshotDamaged, OSError."""
    part = f"{directory}/{download_name(snapshot_id, source)}"
    contents = verify_snapshot(disk, part, snapshot_id, size_bytes)
    fd = disk.open_append(part)
    try:
        disk.fsync(fd)
    finally:
        disk.close(fd)
    freeze_snapshot(disk, part, f"{directory}/{snapshot_id.file_name}")
    return contents


def drop_download(disk: Disk, directory: str, snapshot_id: SnapshotId, source: int) -> None:
    """Raises OSError; a missing file is fine."""
    _unlink(disk, f"{directory}/{download_name(snapshot_id, source)}")
