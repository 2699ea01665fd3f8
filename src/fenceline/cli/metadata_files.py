"""Reads the metadata log and snapshots from the files of a stopped or running node, of Fenceline or Kafka.

Owns finding the files, iterating over their records, and the image at any offset that they hold. Never writes. A record
that this release does not know (of a newer Kafka) is reported and skipped, never fatal: these commands must work when
something is wrong.

The log of a running node may end in the middle of a batch: the complete batches are read. The files do not show whether
the newest records are committed.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fenceline.errors import InternalError, OperatorError, PeerError
from fenceline.log.core.disk import OsDisk
from fenceline.metadata.delta import MetadataDelta
from fenceline.metadata.image import EMPTY_IMAGE, MetadataImage
from fenceline.metadata.records import (
    API_KEYS,
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    MetadataRecord,
    decode_record,
)
from fenceline.node.metadata.metadata_log import DIRECTORY_NAME
from fenceline.node.metadata.snapshot_files import SnapshotDamaged, find_snapshots, read_snapshot, snapshot_of
from fenceline.quorum.control_records import (
    ControlRecord,
    KRaftVersion,
    KRaftVoters,
    QuorumControlType,
    Voter,
    decode_control,
)
from fenceline.quorum.log_view import SnapshotId
from fenceline.records.batch import check_crc, iter_headers
from fenceline.records.decode import decode_batch
from fenceline.wire.errors import MalformedRequest

if TYPE_CHECKING:
    from fenceline.records.batch import BatchHeader

_NAMES: Final = {api_key: record.__name__ for record, api_key in API_KEYS.items()}
_SNAPSHOT_ADVICE: Final = "Specify a *.checkpoint file or a node's data directory."


@dataclass(frozen=True, slots=True)
class MetadataEntry:
    """One record of a log or a snapshot. `record` is None if this release cannot read it."""

    offset: int
    epoch: int
    timestamp_ms: int
    name: str
    """The class of the record, or `unknown record type N`."""
    version: int
    record: MetadataRecord | ControlRecord | None
    problem: str
    value: bytes


@dataclass(slots=True)
class LoadedMetadata:
    """An image read from files, and the records that were skipped."""

    image: MetadataImage
    kraft_version: int = 0
    voters: tuple[Voter, ...] = ()
    timestamp_ms: int = 0
    """Timestamp of the last record."""
    source: str = ""
    """The snapshot that it was loaded from; "" if none."""
    problems: list[str] = field(default_factory=list)


class MetadataFiles:
    """The metadata directory of a node."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._disk = OsDisk()

    @classmethod
    def at(cls, path: Path) -> MetadataFiles:
        """`path`: a data directory or the directory of the metadata log. Raises OperatorError."""
        for directory in (path / DIRECTORY_NAME, path / "data" / DIRECTORY_NAME, path):
            if directory.is_dir() and (any(directory.glob("*.checkpoint")) or any(directory.glob("*.log"))):
                if directory == path and path.name != DIRECTORY_NAME and not any(path.glob("*.checkpoint")):
                    break
                return cls(directory)
        if not path.exists():
            raise OperatorError(
                f"{path} does not exist", "Specify a node's data directory (log.dirs in its server.properties)."
            )
        nodes = sorted(path.glob(f"*/data/{DIRECTORY_NAME}")) + sorted(path.glob(f"*/{DIRECTORY_NAME}"))
        if nodes:
            raise OperatorError(
                f"{path} has the directories of {len(nodes)} node{'s' * (len(nodes) != 1)}",
                f"Specify one of them, for example {nodes[0].parent}.",
            )
        raise OperatorError(
            f"{path} has no metadata log",
            f"Specify a node's data directory, or the directory {DIRECTORY_NAME} in it.",
        )

    @property
    def snapshots(self) -> list[SnapshotId]:
        """Oldest first, by name."""
        return find_snapshots(self._disk, str(self.directory))

    @property
    def start_offset(self) -> int:
        """Start offset of the log; -1 if there is no log."""
        found = self._segments()
        return int(found[0].stem) if found else -1

    def path_of(self, snapshot: SnapshotId) -> Path:
        return self.directory / snapshot.file_name

    def _segments(self) -> list[Path]:
        return sorted(path for path in self.directory.glob("*.log") if path.stem.isdigit())

    def log_entries(self, from_offset: int = 0) -> Iterator[MetadataEntry]:
        """Every record of the log. Raises OperatorError on damage."""
        segments = self._segments()
        for number, path in enumerate(segments):
            if number + 1 < len(segments) and int(segments[number + 1].stem) <= from_offset:
                continue
            with _content(path) as content:
                try:
                    for header in iter_headers(content, allow_partial_tail=number + 1 == len(segments)):
                        if header.next_offset > from_offset:
                            check_crc(content, header)
                            yield from _entries(content, header)
                except PeerError as error:
                    raise OperatorError(
                        f"{path} is damaged: {error.message}", "The records before the damage were read."
                    ) from error

    def image_at(self, offset: int | None = None) -> LoadedMetadata:
        """The image after the record at `offset`, or after the last. Raises OperatorError if the files do not hold it.

        Damaged snapshots are reported and skipped.
        """
        loaded = LoadedMetadata(EMPTY_IMAGE)
        problems: list[str] = []
        for snapshot in reversed(self.snapshots):
            if offset is not None and snapshot.end_offset > offset + 1:
                continue
            if snapshot.end_offset < self.start_offset:
                break
            try:
                loaded = load_snapshot(self.path_of(snapshot))
                break
            except SnapshotDamaged as error:
                problems.append(error.message)
        begin = loaded.image.offset + 1
        if begin < self.start_offset:
            raise OperatorError(
                f"The log in {self.directory} starts at offset {self.start_offset}, and no valid snapshot covers the"
                " records before it",
                "The earliest available offset is the end offset of the oldest valid snapshot minus 1."
                " See: fenceline snapshot list",
            )
        loaded.problems[:0] = problems
        replay = _Replay(loaded)
        for entry in self.log_entries(begin):
            if entry.offset < begin:
                continue
            if offset is not None and entry.offset > offset:
                break
            replay.apply(entry)
        loaded = replay.finish()
        if offset is not None and loaded.image.offset < offset:
            raise OperatorError(
                f"The log in {self.directory} ends at offset {loaded.image.offset}, before {offset}",
                "Specify an earlier offset.",
            )
        return loaded


def snapshot_entries(path: Path) -> Iterator[MetadataEntry]:
    """Every record of a snapshot file. Raises SnapshotDamaged, at the latest at the end."""
    for records, header in read_snapshot(OsDisk(), str(path), snapshot_of(path.name)):
        yield from _entries(records, header)


def load_snapshot(path: Path) -> LoadedMetadata:
    """The image in a snapshot file; a name without a snapshot id counts as offset 0. Raises SnapshotDamaged."""
    if not path.is_file():
        raise OperatorError(f"{path} is not a file", _SNAPSHOT_ADVICE)
    snapshot = snapshot_of(path.name) or SnapshotId(0, 0)
    loaded = LoadedMetadata(EMPTY_IMAGE, source=path.name)
    replay = _Replay(loaded)
    for entry in snapshot_entries(path):
        replay.apply(entry)
    return replay.finish(snapshot.end_offset - 1, snapshot.epoch)


class _Replay:
    """Applies entries to an image; those that cannot be applied are reported and skipped."""

    def __init__(self, loaded: LoadedMetadata) -> None:
        self._loaded = loaded
        self._delta = MetadataDelta(loaded.image)
        self._offset, self._epoch = loaded.image.offset, loaded.image.epoch
        self._pending: list[MetadataEntry] | None = None

    def apply(self, entry: MetadataEntry) -> None:
        loaded = self._loaded
        self._offset, self._epoch = entry.offset, entry.epoch
        loaded.timestamp_ms = entry.timestamp_ms
        match entry.record:
            case None:
                loaded.problems.append(f"offset {entry.offset}: {entry.name} version {entry.version}: {entry.problem}")
            case KRaftVersion():
                loaded.kraft_version = entry.record.k_raft_version
            case KRaftVoters():
                loaded.voters = entry.record.voters
            case BeginTransactionRecord():
                self._pending = []
            case EndTransactionRecord():
                for each in self._pending or []:
                    self._apply_record(each)
                self._pending = None
            case AbortTransactionRecord():
                self._pending = None
            case _ if type(entry.record) not in API_KEYS:
                pass  # another control record
            case _ if self._pending is not None:
                self._pending.append(entry)
            case _:
                self._apply_record(entry)

    def _apply_record(self, entry: MetadataEntry) -> None:
        try:
            self._delta.replay(entry.record)  # type: ignore[arg-type]
        except (InternalError, ValueError, IndexError) as error:
            self._loaded.problems.append(f"offset {entry.offset}: {entry.name}: {error}")

    def finish(self, offset: int | None = None, epoch: int | None = None) -> LoadedMetadata:
        loaded = self._loaded
        if self._pending is not None:
            loaded.problems.append(f"{len(self._pending)} records of an open metadata transaction")
        try:
            loaded.image, _ = self._delta.build(
                self._offset if offset is None else offset, self._epoch if epoch is None else epoch
            )
        except InternalError as error:
            raise OperatorError(
                f"The records cannot be applied: {error}", "Print them with: fenceline metadata dump"
            ) from error
        return loaded


@contextmanager
def _content(path: Path) -> Iterator[memoryview]:
    if path.stat().st_size == 0:
        yield memoryview(b"")
        return
    with path.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        content = memoryview(mapped)
        try:
            yield content
        finally:
            content.release()


def _entries(records: memoryview, header: BatchHeader) -> Iterator[MetadataEntry]:
    """Raises PeerError for malformed records."""
    for one in decode_batch(records, header):
        value = one.value or b""
        if header.is_control:
            name, version, record, problem = _control(one.key, value)
        else:
            name, version, record, problem = _metadata(value)
        yield MetadataEntry(one.offset, header.leader_epoch, one.timestamp, name, version, record, problem, value)


def _control(key: bytes | None, value: bytes) -> tuple[str, int, Any, str]:
    kind = int.from_bytes((key or b"")[2:4], "big", signed=True) if key is not None and len(key) >= 4 else -1
    name = QuorumControlType(kind).name if kind in list(QuorumControlType) else f"unknown control record type {kind}"
    try:
        record = decode_control(key, value)
    except MalformedRequest as error:
        return name, 0, None, str(error)
    return name, 0, record, "" if record is not None else "unknown in this release"


def _metadata(value: bytes) -> tuple[str, int, Any, str]:
    fields = list(_varints(value, 3))
    if len(fields) < 3 or fields[0] != 1:
        return "unknown record", -1, None, f"its frame starts with {value[:3].hex() or 'nothing'}"
    _, api_key, version = fields
    name = _NAMES.get(api_key, f"unknown record type {api_key}")
    try:
        return name, version, decode_record(value), ""
    except (OperatorError, MalformedRequest):
        return name, version, None, f"{len(value)} bytes that this release cannot read"


def _varints(value: bytes, count: int) -> Iterator[int]:
    position = 0
    for _ in range(count):
        shift = result = 0
        while position < len(value) and shift < 35:
            byte = value[position]
            position += 1
            result |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                yield result
                break
        else:
            return
