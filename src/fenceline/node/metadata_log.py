"""The metadata log on the disk: `__cluster_metadata-0` with its segments, snapshots and `quorum-state`.

Owns file names, appends, flushes and snapshot files. Never decides what to write, and never looks into a record (see
`metadata_replay`). One thread of control; `LogFlush` and the writing of snapshots are for threads.

A full disk: the batches of a flush are what counts. Where they are safe, and only what can be made anew from them
(indexes, epochs, producer snapshots) finds no room, the flush has succeeded, and the rest is due with the next one.

Rules: formats.md F3-F5; raft.md Q11, Q12; snapshots.md N1-N10, N15, N16, N18-N21.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from fenceline.errors import InternalError, OperatorError, PeerError
from fenceline.ids import METADATA_TOPIC, METADATA_TOPIC_ID, TopicPartition
from fenceline.log.config import LogConfig
from fenceline.log.disk import Disk, read_file, replace_file, write_all
from fenceline.log.errors import CorruptLog, StorageError
from fenceline.log.flush import FlushWork
from fenceline.log.partition_log import PartitionLog
from fenceline.log.producer_state import Origin
from fenceline.node.metadata_replay import NO_SNAPSHOT, Replay, Replayed
from fenceline.quorum.election_state import FILE_NAME, ElectionState, decode_election, encode_election
from fenceline.quorum.log_view import LogEnd, SnapshotId
from fenceline.records.batch import check_crc, iter_headers

if TYPE_CHECKING:
    from fenceline.records.batch import BatchHeader

METADATA_PARTITION: Final = TopicPartition(METADATA_TOPIC, 0)
DIRECTORY_NAME: Final = f"{METADATA_TOPIC}-0"
MAX_BATCH_BYTES: Final = 8 << 20
_READ_BYTES: Final = 8 << 20
_SNAPSHOT: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_LEFTOVER: Final = re.compile(r".*\.checkpoint(\.part|\.deleted)|.*-\d{10}-.*\.checkpoint\.part")


class LogFlush:
    """One flush of the metadata log: call it in a thread, then `end` on the loop."""

    def __init__(self, disk: Disk, work: FlushWork) -> None:
        self._disk = disk
        self._work = work
        self._put_off: StorageError | None = None

    def __call__(self) -> None:
        """Blocks until every batch is on the disk. Raises StorageError; `end` must be told of it."""
        try:
            self._work()
        except StorageError as error:
            if not (error.disk_full and self._work.batches_safe):
                raise
            self._put_off = error
            # The directories come last in the work; without them a power cut could take a new segment away.
            try:
                for directory in self._work.directories:
                    self._disk.fsync_dir(directory)
            except OSError as failure:
                raise StorageError.of("flushing the directory of the metadata log", failure) from failure

    def end(self, error: StorageError | None) -> StorageError | None:
        """The thread is done and raised `error`, or nothing. What a full disk has put off to the next flush."""
        if error is None and self._put_off is None:
            self._work.done()
        else:
            self._work.failed(error or self._put_off or StorageError("flush ended without a reason"))
        return self._put_off if error is None else None


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

    def begin_flush(self) -> LogFlush | None:
        """Everything up to the log's end; None when all is flushed. Raises StorageError when it can not be begun."""
        work = self._log.flush_work()
        return None if work is None else LogFlush(self._disk, work)

    def flush(self) -> StorageError | None:
        """Flush here and now (blocks); what a full disk has put off. Raises StorageError."""
        flush = self.begin_flush()
        if flush is None:
            return None
        try:
            flush()
        except StorageError as error:
            flush.end(error)
            raise
        return flush.end(None)

    def advance_high_watermark(self, offset: int) -> None:
        self._log.advance_high_watermark(offset)

    def close(self) -> None:
        self._log.close(clean=True)

    # -- reading back ------------------------------------------------------------------------------------------------

    def replay(self) -> Replayed:
        """The image of the whole log. Raises InternalError for records that do not fit, OperatorError on damage."""
        replay = Replay()
        for snapshot in reversed(self.snapshots):
            if snapshot.end_offset >= self.start_offset:
                path = f"{self.directory}/{snapshot.file_name}"
                replay.take_snapshot(self._snapshot_batches(path), snapshot, path)
                break
        replay.take_log(self._log_batches(replay.snapshot.end_offset))
        return replay.finish(self._log.log_end_offset - 1, self.end.epoch)

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

    def _snapshot_batches(self, path: str) -> Iterator[tuple[memoryview, BatchHeader]]:
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

    def write_snapshot(self, snapshot: SnapshotId, batches: Sequence[bytes | bytearray]) -> None:
        """N16, for a thread. The caller registers it by `snapshot_written` on the loop. Raises OSError."""
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

    def snapshot_written(self, snapshot: SnapshotId) -> None:
        self.snapshots.append(snapshot)

    def snapshot_sizes(self, snapshots: Sequence[SnapshotId]) -> dict[SnapshotId, int]:
        """Bytes of snapshot files, for a thread. Raises OSError."""
        found = {each: self._disk.stat(f"{self.directory}/{each.file_name}") for each in snapshots}
        return {each: stat.size_bytes for each, stat in found.items() if stat is not None}

    def forget_oldest(self, sizes: Mapping[SnapshotId, int], max_bytes: int, now_ms: int) -> list[Callable[[], None]]:
        """N18: while the log and its snapshots are too large, the oldest snapshot goes and the log starts at the next.

        `sizes` in bytes. Gives back the deletions, for a thread; they raise OSError. Raises StorageError.
        """
        deletions: list[Callable[[], None]] = []
        while len(self.snapshots) >= 2 and max_bytes >= 0:
            if self._log.size_bytes + sum(sizes.get(each, 0) for each in self.snapshots) <= max_bytes:
                break
            oldest = self.snapshots.pop(0)
            self._log.advance_log_start(self.snapshots[0].end_offset)
            deletions += [removed.delete for removed in self._log.enforce_retention(now_ms)]
            deletions.append(partial(self._disk.unlink, f"{self.directory}/{oldest.file_name}"))
        return deletions
