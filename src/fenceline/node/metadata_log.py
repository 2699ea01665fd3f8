"""The metadata log on the disk: `__cluster_metadata-0` with its segments, snapshots and `quorum-state`.

Owns file names, what is read at start, appends, and snapshot files. Never decides what to write; knows no cluster state
beyond turning bytes into an image. One thread of control; `FlushWork` and snapshot writing are for threads.

Reading back goes straight from batches into a delta: the newest snapshot, then the log from its end (N40). A metadata
transaction counts once it ends (C8); one that was cut off by a crash is reported, and its records left out.

Rules: formats.md F3-F5; raft.md Q11, Q12; snapshots.md N1-N10, N15, N16, N18-N21, N43, N44; gaps.md G24 (a snapshot
without its footer is refused).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from fenceline.errors import InternalError, OperatorError, PeerError
from fenceline.ids import METADATA_TOPIC, METADATA_TOPIC_ID, TopicPartition
from fenceline.log.config import LogConfig
from fenceline.log.disk import Disk, read_file, replace_file, write_all
from fenceline.log.errors import CorruptLog
from fenceline.log.flush import FlushWork
from fenceline.log.partition_log import PartitionLog
from fenceline.log.producer_state import Origin
from fenceline.metadata.delta import MetadataDelta
from fenceline.metadata.image import EMPTY_IMAGE, MetadataImage
from fenceline.metadata.records import API_KEYS as RECORD_KEYS
from fenceline.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    api_key_of,
)
from fenceline.quorum.control_records import (
    ControlRecord,
    KRaftVersion,
    KRaftVoters,
    SnapshotFooter,
    SnapshotHeader,
    Voter,
    decode_control,
)
from fenceline.quorum.election_state import FILE_NAME, ElectionState, decode_election, encode_election
from fenceline.quorum.quorum import LogEnd
from fenceline.records.batch import check_crc, iter_headers
from fenceline.records.decode import decode_batch

if TYPE_CHECKING:
    from fenceline.records.batch import BatchHeader

METADATA_PARTITION: Final = TopicPartition(METADATA_TOPIC, 0)
DIRECTORY_NAME: Final = f"{METADATA_TOPIC}-0"
MAX_BATCH_BYTES: Final = 8 << 20
_READ_BYTES: Final = 8 << 20
_SNAPSHOT: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_LEFTOVER: Final = re.compile(r".*\.checkpoint(\.part|\.deleted)|.*-\d{10}-.*\.checkpoint\.part")
_BEGIN: Final = RECORD_KEYS[BeginTransactionRecord]
_END: Final = RECORD_KEYS[EndTransactionRecord]
_ABORT: Final = RECORD_KEYS[AbortTransactionRecord]


class SnapshotId(NamedTuple):
    """N1: exclusive end offset and the epoch of the last record before it."""

    end_offset: int
    epoch: int

    @property
    def file_name(self) -> str:
        return f"{self.end_offset:020d}-{self.epoch:010d}.checkpoint"


NO_SNAPSHOT: Final = SnapshotId(0, 0)


@dataclass(slots=True)
class Replayed:
    """What the log said at start."""

    image: MetadataImage
    voters: tuple[Voter, ...] = ()
    kraft_version: int = 0
    voters_in_log: bool = False
    """Whether a KRAFT_VOTERS record is in the log or in a snapshot that stands for some of it."""
    record_count: int = 0
    log_record_count: int = 0
    """Records that came from the log, not from a snapshot."""
    open_transaction: bool = False
    """C6: the writer died inside of a metadata transaction."""
    last_timestamp_ms: int = 0
    snapshot: SnapshotId = field(default=NO_SNAPSHOT)


class MetadataLog:
    """See the module."""

    def __init__(self, disk: Disk, directory: str, log: PartitionLog, snapshots: list[SnapshotId]) -> None:
        self._disk = disk
        self.directory = directory
        self._log = log
        self.snapshots = snapshots
        """Ids on the disk, oldest first; (0, 0) among them where the directory was formatted with voters."""

    @classmethod
    def open(
        cls, disk: Disk, log_dir: str, *, now_ms: int, segment_bytes: int = 1 << 30, segment_ms: int = 604_800_000
    ) -> MetadataLog:
        """Open or create the log under `log_dir`. Raises OperatorError (CorruptLog among them)."""
        directory = f"{log_dir}/{DIRECTORY_NAME}"
        if disk.stat(directory) is None:
            disk.mkdir(directory)
            disk.fsync_dir(log_dir)
        snapshots: list[SnapshotId] = []
        for name in disk.listdir(directory):
            found = _SNAPSHOT.fullmatch(name)
            if found is not None:
                snapshots.append(SnapshotId(int(found[1]), int(found[2])))
            elif _LEFTOVER.fullmatch(name):
                with contextlib.suppress(FileNotFoundError):
                    disk.unlink(f"{directory}/{name}")
        snapshots.sort(key=lambda snapshot: (snapshot.epoch, snapshot.end_offset))
        config = LogConfig(
            segment_bytes=segment_bytes,
            segment_ms=segment_ms,
            retention_bytes=-1,
            retention_ms=-1,
            max_message_bytes=MAX_BATCH_BYTES,
        )
        newest = snapshots[-1] if snapshots else NO_SNAPSHOT
        try:
            log = PartitionLog.open(
                disk,
                directory,
                topic_partition=METADATA_PARTITION,
                topic_id=METADATA_TOPIC_ID,
                config=config,
                recovery_point=newest.end_offset,  # a snapshot stands only for what was flushed (N15)
                now_ms=now_ms,
                only_torn=True,
            )
        except CorruptLog as error:
            raise OperatorError(
                f"The metadata log is damaged: {error.message}",
                "The node does not start, because the topics that are described behind this place would be gone."
                f" Restore {error.path} from a backup. Where there is none, cutting the file there"
                f" (truncate -s {error.position} {error.path}) goes on with what lies before it: the partitions of"
                " topics that are unknown then are set aside as -stray, not deleted.",
            ) from error
        if log.log_start_offset > 0 and newest.end_offset < log.log_start_offset:
            raise OperatorError(
                f"{directory} begins at offset {log.log_start_offset} and no snapshot stands for what was before.",
                "A snapshot file (*.checkpoint) is missing. Restore it, or format this node anew if others vote.",
            )
        if newest.end_offset > log.log_end_offset:
            log.truncate_fully_and_start_at(newest.end_offset)
        opened = cls(disk, directory, log, snapshots)
        log.advance_high_watermark(newest.end_offset)
        return opened

    # -- state -------------------------------------------------------------------------------------------------------

    @property
    def end_offset(self) -> int:
        return self._log.log_end_offset

    @property
    def start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def size_bytes(self) -> int:
        return self._log.size_bytes

    @property
    def partition_log(self) -> PartitionLog:
        """For those who serve reads of the log."""
        return self._log

    @property
    def end(self) -> LogEnd:
        """N47: an empty log that starts at a snapshot has the snapshot's epoch."""
        epoch = self._log.latest_epoch
        if epoch < 0:
            newest = self.snapshots[-1] if self.snapshots else NO_SNAPSHOT
            epoch = newest.epoch if newest.end_offset == self._log.log_end_offset else 0
        return LogEnd(epoch, self._log.log_end_offset)

    def read_election(self) -> ElectionState | None:
        """Raises OperatorError on a broken file (Q12)."""
        path = f"{self.directory}/{FILE_NAME}"
        content = read_file(self._disk, path)
        return None if content is None else decode_election(content, path)

    def write_election(self, state: ElectionState, kraft_version: int, voter_ids: tuple[int, ...]) -> None:
        """Durable when it returns (Q12)."""
        replace_file(self._disk, f"{self.directory}/{FILE_NAME}", encode_election(state, kraft_version, voter_ids))

    # -- appending ---------------------------------------------------------------------------------------------------

    def append(self, batches: bytearray, epoch: int, now_ms: int) -> int:
        """Append ready batches; offsets and epoch are assigned in place. Returns the offset of the first record.

        Raises StorageError with the log unchanged.
        """
        view = memoryview(batches)
        info = self._log.append_as_leader(view, leader_epoch=epoch, now_ms=now_ms, origin=Origin.COORDINATOR)
        return info.base_offset

    def flush_work(self) -> FlushWork | None:
        """To be run in a thread, then `done()` on the loop. None when all is flushed."""
        return self._log.flush_work()

    def flush(self) -> None:
        """Flush here and now."""
        work = self._log.flush_work()
        if work is not None:
            work()
            work.done()

    def advance_high_watermark(self, offset: int) -> None:
        self._log.advance_high_watermark(offset)

    def close(self) -> None:
        self._log.close(clean=True)

    # -- reading back ------------------------------------------------------------------------------------------------

    def replay(self) -> Replayed:
        """The image of the whole log. Raises InternalError for records that do not fit, OperatorError on damage."""
        replayed = Replayed(EMPTY_IMAGE)
        reader = _Reader(replayed)
        for snapshot in reversed(self.snapshots):
            if snapshot.end_offset >= self.start_offset:
                reader.snapshot(self._snapshot_batches(snapshot), snapshot, f"{self.directory}/{snapshot.file_name}")
                break
        reader.log(self._log_batches(replayed.snapshot.end_offset))
        reader.finish(self._log.log_end_offset - 1, self.end.epoch)
        return replayed

    def _log_batches(self, offset: int) -> Iterator[tuple[memoryview, BatchHeader]]:
        end = self._log.log_end_offset
        while offset < end:
            read = self._log.read(offset, _READ_BYTES, end_offset_exclusive=end)
            records = read.records if read.resident else read.load()
            next_offset = offset
            for header in iter_headers(records):
                next_offset = header.next_offset
                if next_offset > offset:
                    yield records, header
            if next_offset <= offset:
                raise InternalError(f"the metadata log can not be read at offset {offset}")
            offset = next_offset

    def _snapshot_batches(self, snapshot: SnapshotId) -> Iterator[tuple[memoryview, BatchHeader]]:
        path = f"{self.directory}/{snapshot.file_name}"
        content = read_file(self._disk, path)
        if content is None:
            raise OperatorError(f"{path} has vanished.", "Restore the file and start again.")
        records = memoryview(content)
        try:
            for header in iter_headers(records):
                check_crc(records, header)
                yield records, header
        except PeerError as error:
            raise OperatorError(
                f"The metadata snapshot {path} is damaged: {error.message}",
                "Delete the file if the log reaches back to an older snapshot or to offset 0; else restore it.",
            ) from error

    # -- snapshots ---------------------------------------------------------------------------------------------------

    def write_snapshot(self, snapshot: SnapshotId, batches: Sequence[bytes | bytearray]) -> int:
        """N16, for a thread. The caller registers it by `snapshot_written` on the loop. Returns its size in bytes."""
        path = f"{self.directory}/{snapshot.file_name}"
        part = path + ".part"
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(part)
        fd = self._disk.open_append(part)
        try:
            for batch in batches:
                write_all(self._disk, fd, batch)
            self._disk.fsync(fd)
        finally:
            self._disk.close(fd)
        self._disk.rename(part, path)
        self._disk.fsync_dir(self.directory)
        return sum(map(len, batches))

    def snapshot_written(self, snapshot: SnapshotId) -> None:
        self.snapshots.append(snapshot)

    def clean(self, max_bytes: int, now_ms: int) -> None:
        """N18, for a thread: while the log and its snapshots are too large, the oldest snapshot goes and the log
        starts at the next one."""
        while len(self.snapshots) >= 2 and max_bytes >= 0:
            size = self._log.size_bytes
            for snapshot in self.snapshots:
                found = self._disk.stat(f"{self.directory}/{snapshot.file_name}")
                size += found.size_bytes if found is not None else 0
            if size <= max_bytes:
                return
            oldest, following = self.snapshots[0], self.snapshots[1]
            self._log.advance_log_start(following.end_offset)
            for removed in self._log.enforce_retention(now_ms):
                removed.delete()
            del self.snapshots[0]
            self._disk.unlink(f"{self.directory}/{oldest.file_name}")


class _Reader:
    """Batches in, image out."""

    def __init__(self, replayed: Replayed) -> None:
        self._result = replayed
        self._delta = MetadataDelta(EMPTY_IMAGE)
        self._pending: list[bytes] | None = None

    def snapshot(self, batches: Iterator[tuple[memoryview, BatchHeader]], snapshot: SnapshotId, path: str) -> None:
        controls: list[ControlRecord] = []
        for records, header in batches:
            controls += self._batch(records, header)
        if not controls or not isinstance(controls[0], SnapshotHeader) or not isinstance(controls[-1], SnapshotFooter):
            raise OperatorError(
                f"{path} is not a whole snapshot: its first or last record is missing.",
                "Delete the file if the log reaches back to an older snapshot or to offset 0; else restore it.",
            )
        result = self._result
        result.snapshot = snapshot
        result.last_timestamp_ms = controls[0].last_contained_log_timestamp
        # The snapshot that formatting writes stands for nothing of the log: a new cluster's log must name its voters.
        result.voters_in_log = result.voters_in_log and snapshot != NO_SNAPSHOT

    def log(self, batches: Iterator[tuple[memoryview, BatchHeader]]) -> None:
        before = self._result.record_count
        for records, header in batches:
            self._batch(records, header)
            self._result.last_timestamp_ms = header.max_timestamp
        self._result.log_record_count = self._result.record_count - before

    def finish(self, last_offset: int, epoch: int) -> None:
        self._result.open_transaction = self._pending is not None
        self._result.image, _ = self._delta.build(last_offset, epoch)

    def _batch(self, records: memoryview, header: BatchHeader) -> list[ControlRecord]:
        decoded = decode_batch(records, header)
        self._result.record_count += len(decoded)
        if header.is_control:
            controls = [control for one in decoded if (control := decode_control(one.key, one.value)) is not None]
            for control in controls:
                self._control(control)
            return controls
        replay = self._delta.replay_value
        for one in decoded:
            value = one.value
            if value is None:
                raise InternalError(f"the metadata log has a record without a value at offset {one.offset}")
            key = api_key_of(value)
            if self._pending is not None or key in (_BEGIN, _END, _ABORT):
                self._transaction(key, value)
            else:
                replay(value)
        return []

    def _control(self, control: ControlRecord) -> None:
        match control:
            case KRaftVersion():
                self._result.kraft_version = control.k_raft_version
            case KRaftVoters():
                self._result.voters = control.voters
                self._result.voters_in_log = True
            case _:
                pass

    def _transaction(self, key: int, value: bytes) -> None:
        if key == _BEGIN:
            if self._pending is not None:
                raise InternalError("a metadata transaction begins inside of another")
            self._pending = []
        elif self._pending is None:
            raise InternalError("a metadata transaction ends that never began")
        elif key == _END:
            for pending in self._pending:
                self._delta.replay_value(pending)
            self._pending = None
        elif key == _ABORT:
            self._pending = None
        else:
            self._pending.append(value)
