"""The metadata log on disk: `__cluster_metadata-0` with its segments, snapshots and `quorum-state`.

Owns appends, flushes, the log start offset, reads that verify each batch with the fields that no checksum covers, and
the list of snapshots; `snapshot_files` owns their files. Never decides what to write, and never interprets a record
(see `metadata.replay`). Used by one thread; `LogFlush` and the writing of
snapshots run in other threads.

A damaged snapshot is set aside, never loaded: the next older one and the log from its end contain the same. Only if
there is neither does the start fail (gaps.md G24).

On a full disk only the batches of a flush matter. If they are durable, and only files that can be rebuilt from them
(indexes, epochs, producer snapshots) could not be written, the flush has succeeded, and the rest is left to the next
one.

A start that reads past a snapshot's end moves the log start back to the start of the first segment, because the log
start is not stored (G31). Records between it and the oldest snapshot are present but unused.

Rules: formats.md F3-F5; raft.md Q11, Q12; snapshots.md N1-N10, N14-N16, N18-N22, N40, N43-N47; gaps.md G24, G30,
G31, G41.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from fenceline.errors import OperatorError, PeerError
from fenceline.ids import METADATA_TOPIC, METADATA_TOPIC_ID, TopicPartition
from fenceline.log.core.checkpoints import BadCheckpoint, read_partition_metadata
from fenceline.log.core.config import LogConfig
from fenceline.log.core.disk import Disk, read_file, replace_file
from fenceline.log.core.errors import CorruptLog, StorageError
from fenceline.log.core.file_names import METADATA_FILE
from fenceline.log.core.flush import FlushWork
from fenceline.log.core.producer_state import Origin
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.node.logs import Logger
from fenceline.node.metadata import promised_end, snapshot_files
from fenceline.node.metadata.promised_end import OthersHaveIt, record_promised_end
from fenceline.node.metadata.replay import NO_SNAPSHOT, MetadataReplay, Replayed
from fenceline.node.metadata.snapshot_files import SnapshotDamaged
from fenceline.quorum.election_state import FILE_NAME, ElectionState, decode_election, encode_election
from fenceline.quorum.log_view import NO_PROMISED_END, QuorumLogEnd, SnapshotId
from fenceline.records.batch import check_crc, iter_headers
from fenceline.wire.errors import MalformedRequest

if TYPE_CHECKING:
    from fenceline.records.batch import BatchHeader

METADATA_PARTITION: Final = TopicPartition(METADATA_TOPIC, 0)
DIRECTORY_NAME: Final = f"{METADATA_TOPIC}-0"
MAX_BATCH_BYTES: Final = 8 << 20
_READ_BYTES: Final = 8 << 20
_ADVICE: Final = "The disk may be failing: check it. Reformat this node if the other voters are running."

_log = Logger("metadata")


def _open_log(
    disk: Disk,
    directory: str,
    newest: SnapshotId,
    now_ms: int,
    segment_bytes: int = 1 << 30,
    segment_ms: int = 604_800_000,
    *,
    votes: bool = True,
    before_cut: Callable[[CorruptLog], None] | None = None,
) -> PartitionLog:
    """Raises OperatorError, StorageError."""
    opening = partial(
        PartitionLog.open,
        disk,
        directory,
        topic_partition=METADATA_PARTITION,
        topic_id=METADATA_TOPIC_ID,
        config=LogConfig(
            segment_bytes=segment_bytes,
            segment_ms=segment_ms,
            retention_bytes=-1,
            retention_ms=-1,
            max_message_bytes=MAX_BATCH_BYTES,
        ),
        now_ms=now_ms,
        only_torn=votes,
        before_cut=before_cut,
    )
    try:
        try:
            log = opening(recovery_point=newest.end_offset)  # a snapshot contains only flushed records (N15)
        except CorruptLog:
            # Except a fetched one: a node that never votes does not flush the log that the snapshot replaces.
            if votes or newest.end_offset == 0:
                raise
            log = opening(recovery_point=0)
    except CorruptLog as error:
        raise OperatorError(
            f"The metadata log is damaged: {error.message}",
            "The node does not start because topics recorded after the damage would be lost."
            f" Restore {error.path} from a backup. Without a backup, truncate the file"
            f" (truncate -s {error.position} {error.path}) to continue with the records before the damage:"
            " partitions of"
            " topics that are then unknown are set aside as -stray, not deleted.",
        ) from error
    if not _has_topic_id(disk, directory):
        log.mark_identity_unsaved()
    return log


def _has_topic_id(disk: Disk, directory: str) -> bool:
    """A power loss may have damaged the file before its first flush."""
    try:
        return read_partition_metadata(disk, f"{directory}/{METADATA_FILE}") is not None
    except BadCheckpoint:
        return False


class LogFlush:
    """One flush of the metadata log: call it in a thread, then `end` on the loop."""

    def __init__(self, disk: Disk, work: FlushWork) -> None:
        self._disk = disk
        self._work = work
        self._postponed: StorageError | None = None

    def __call__(self) -> None:
        """Blocks until every batch is durable. Raises StorageError, which must be passed to `end`."""
        try:
            self._work()
        except StorageError as error:
            if not (error.disk_full and self._work.batches_safe):
                raise
            self._postponed = error
            # Directories are flushed last; without that a power loss could remove a new segment.
            try:
                for directory in self._work.directories:
                    self._disk.fsync_dir(directory)
            except OSError as failure:
                raise StorageError.of("flushing the directory of the metadata log", failure) from failure

    def end(self, error: StorageError | None) -> StorageError | None:
        """The thread has ended and raised `error`, or nothing. Returns the error of work that a full disk postponed to
        the next flush."""
        if error is None and self._postponed is None:
            self._work.complete()
        else:
            self._work.fail(error or self._postponed or StorageError("flush ended without a reason"))
        return self._postponed if error is None else None


class MetadataLog:
    """See the module."""

    def __init__(
        self, disk: Disk, directory: str, log: PartitionLog, snapshots: list[SnapshotId], cluster_id: str = ""
    ) -> None:
        """`cluster_id`: written into the election state, and compared; empty: unknown (G41)."""
        self._disk = disk
        self.directory = directory
        self._log = log
        self._cluster_id = cluster_id
        self.is_changing = False
        """A thread truncates or resets the log: readers wait until the next commit."""
        self.promised = promised_end.read(disk, directory)
        """The promised end: acknowledged before the log was reset or truncated at a hole and not reached again, else
        `NO_PROMISED_END` (G24)."""
        self.snapshot_load_s: float | None = None
        """Time it took to read the newest snapshot at the start; None if there was none."""
        self.snapshots = snapshots
        """Snapshot ids on disk, oldest first; includes (0, 0) if the directory was formatted with voters."""

    @classmethod
    def open(
        cls,
        disk: Disk,
        log_dir: str,
        *,
        now_ms: int,
        segment_bytes: int = 1 << 30,
        segment_ms: int = 604_800_000,
        votes: bool = True,
        others_have_it: OthersHaveIt | None = None,
        cluster_id: str = "",
    ) -> MetadataLog:
        """Open or create the log under `log_dir`. Raises OperatorError (CorruptLog among them), StorageError.

        A node that never votes has acknowledged and flushed nothing: records damaged by a power loss are fetched again.
        A voter records the promised end before the log is truncated at a hole, if others have the rest
        (`metadata.promised_end`).
        """
        directory = f"{log_dir}/{DIRECTORY_NAME}"
        if disk.stat(directory) is None:
            disk.mkdir(directory)
            disk.fsync_dir(log_dir)
        snapshots = snapshot_files.find_snapshots(disk, directory)
        newest = snapshots[-1] if snapshots else NO_SNAPSHOT
        before_cut = partial(record_promised_end, disk, directory, newest, others_have_it) if others_have_it else None
        log = _open_log(disk, directory, newest, now_ms, segment_bytes, segment_ms, votes=votes, before_cut=before_cut)
        if log.log_start_offset > 0 and newest.end_offset < log.log_start_offset:
            raise OperatorError(
                f"{directory} starts at offset {log.log_start_offset}, and no snapshot contains the records before it.",
                "A snapshot file (*.checkpoint) is missing. Restore it, or reformat this node if there are"
                " other voters.",
            )
        snapshot_files.remove_leftovers(disk, directory)
        opened = cls(disk, directory, log, snapshots, cluster_id)
        opened._finish_truncation()
        opened._forget_unreachable()
        log.advance_high_watermark(opened.newest_snapshot.end_offset)
        opened._make_durable()
        if opened.promised != NO_PROMISED_END and opened.end >= opened.promised:
            opened.promised = NO_PROMISED_END
            opened.delete_promised_end()
        return opened

    @classmethod
    def reset(cls, disk: Disk, log_dir: str, damage: SnapshotDamaged, *, now_ms: int) -> None:
        """Reset a log whose start exists only in a damaged snapshot: `open` then finds an empty one, and other voters
        have all of it (G24). The old log is kept in `lost+found`; its acknowledged end is recorded first, so that this
        node does not vote for a candidate that lacks it (`promised_end`).

        After a crash at any moment, `open` or reading the snapshot reports the same damage again.
        Raises OperatorError, StorageError, OSError.
        """
        directory = f"{log_dir}/{DIRECTORY_NAME}"
        snapshots = snapshot_files.find_snapshots(disk, directory)
        partition_log = _open_log(disk, directory, snapshots[-1] if snapshots else NO_SNAPSHOT, now_ms)
        log = cls(disk, directory, partition_log, snapshots)
        promised = max(log.promised, log.end)
        promised_end.write(disk, directory, promised)
        partition_log.truncate_fully_and_start_at(0)
        log.close()
        kept = [snapshot_files.set_aside(disk, log.path_of(snapshot)) for snapshot in snapshots]
        _log.error(
            "resetting the metadata log: its only snapshot is damaged",
            path=directory,
            reason=damage.reason,
            kept=", ".join(kept),
            acknowledged_offset=promised.offset,
            acknowledged_epoch=promised.epoch,
            advice="The metadata is fetched from the other controllers. Until then this controller cannot lead, and"
            " votes only for candidates that have all records it had. Check the disk. If no other controller has the"
            " metadata, stop this one, and restore the files from here and from lost+found.",
        )

    def delete_promised_end(self) -> None:
        """Delete the promised end; for a thread. After a crash the next start finds it reached."""
        promised_end.forget(self._disk, self.directory)

    def _make_durable(self) -> None:
        """Flush the files: a killed process may have written data that is not durable yet, and from the start on
        everything counts as flushed (`LogView.flushed`)."""
        flush = self.begin_flush()
        if flush is None:
            return
        try:
            flush()
        except StorageError as error:
            flush.end(error)
            raise
        flush.end(None)
        for directory in (self.directory, self.directory.rpartition("/")[0]):
            self._disk.fsync_dir(directory)

    def _finish_truncation(self) -> None:
        """N45: complete a truncation that a crash interrupted after a new snapshot was written."""
        while self.newest_snapshot.is_beyond(self.end):
            newest = self.newest_snapshot
            try:
                snapshot_files.verify_snapshot(self._disk, self.path_of(newest), newest)
            except SnapshotDamaged as error:
                self._set_aside(newest, error)
            else:
                self._log.truncate_fully_and_start_at(newest.end_offset)

    def _forget_unreachable(self) -> None:
        """N43: forget snapshots before the log start. All snapshots of a log without a directory are needed."""
        for snapshot in [each for each in self.snapshots if each.end_offset < self.start_offset]:
            self.snapshots.remove(snapshot)
            self._disk.unlink(self.path_of(snapshot))

    def _set_aside(self, snapshot: SnapshotId, error: SnapshotDamaged) -> None:
        """G24. Raises OperatorError, leaving the file in place, if nothing else has its content."""
        others = [each for each in self.snapshots if each != snapshot and each.end_offset >= self.start_offset]
        if not others and (self.start_offset > 0 or self.end_offset == 0):
            raise error  # in an empty log nothing else has the voters
        self.snapshots.remove(snapshot)
        kept = snapshot_files.set_aside(self._disk, error.path)
        _log.error(
            "damaged metadata snapshot set aside",
            path=kept,
            reason=error.reason,
            advice="No data is lost: an older snapshot or the log has the same records. Check the disk; the file may be"
            " deleted.",
        )

    def unflushed_before(self, end_offset: int) -> list[str]:
        """Files with batches below `end_offset` that may not be durable. Only voters flush what they append; a snapshot
        contains only durable records (N15), on every node."""
        if self._log.recovery_point >= end_offset:
            return []
        return [
            segment.path
            for segment, end in zip(
                self._log.segments,
                [each.base_offset for each in self._log.segments[1:]] + [self._log.log_end_offset],
                strict=True,
            )
            if segment.base_offset < end_offset and end > self._log.recovery_point
        ]

    def sync_file(self, path: str) -> None:
        """For a thread. Raises OSError."""
        fd = self._disk.open_read(path)
        try:
            self._disk.fsync(fd)
        finally:
            self._disk.close(fd)
        self._disk.fsync_dir(self.directory)

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
    def newest_snapshot(self) -> SnapshotId:
        """`NO_SNAPSHOT` if there is none."""
        return self.snapshots[-1] if self.snapshots else NO_SNAPSHOT

    def path_of(self, snapshot: SnapshotId) -> str:
        """The path of its file."""
        return f"{self.directory}/{snapshot.file_name}"

    @property
    def partition_log(self) -> PartitionLog:
        """For reads of the log."""
        return self._log

    @property
    def end(self) -> QuorumLogEnd:
        """N47: an empty log that starts at a snapshot has the snapshot's epoch."""
        epoch = self._log.latest_epoch
        if epoch < 0:
            newest = self.snapshots[-1] if self.snapshots else NO_SNAPSHOT
            epoch = newest.epoch if newest.end_offset == self._log.log_end_offset else 0
        return QuorumLogEnd(epoch, self._log.log_end_offset)

    def read_election(self) -> ElectionState | None:
        """Durable before it is returned: the process that wrote it may have ended before it had synced the directory,
        and a vote that is acted on must survive a power failure. Raises OperatorError on a broken file (Q12)."""
        path = f"{self.directory}/{FILE_NAME}"
        content = read_file(self._disk, path)
        if content is None:
            return None
        self._disk.fsync_dir(self.directory)
        return decode_election(content, path, self._cluster_id)

    def write_election(self, state: ElectionState, kraft_version: int, voter_ids: tuple[int, ...]) -> None:
        """Durable on return (Q12)."""
        content = encode_election(state, kraft_version, voter_ids, self._cluster_id)
        replace_file(self._disk, f"{self.directory}/{FILE_NAME}", content)

    # -- appending ---------------------------------------------------------------------------------------------------

    def append(self, batches: bytearray, epoch: int, now_ms: int) -> int:
        """Append batches; offsets and epoch are assigned in place. Returns the offset of the first record."""
        view = memoryview(batches)
        info = self._log.append_as_leader(view, leader_epoch=epoch, now_ms=now_ms, origin=Origin.COORDINATOR)
        return info.base_offset

    def begin_flush(self) -> LogFlush | None:
        """A flush up to the log's end; None if all is flushed. Raises StorageError if it cannot be started."""
        work = self._log.flush_work()
        return None if work is None else LogFlush(self._disk, work)

    def flush(self) -> StorageError | None:
        """Flush synchronously (blocks); returns the error of work that a full disk postponed. Raises StorageError."""
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

    # -- reading -----------------------------------------------------------------------------------------------------

    def replay(self) -> Replayed:
        """The image of the complete log, from the newest complete snapshot.

        Raises InternalError for records that do not fit, OperatorError on damage that cannot be repaired.
        """
        replay = self._replay_snapshot()
        replay.replay_log(self._log_batches(replay.snapshot.end_offset))
        return replay.finish(self._log.log_end_offset - 1, self.end.epoch)

    def read_snapshot(self, snapshot: SnapshotId) -> Replayed:
        """Image and voters of a snapshot file, for a thread. Raises OSError, OperatorError (SnapshotDamaged among
        them)."""
        replay, path = MetadataReplay(), self.path_of(snapshot)
        replay.replay_snapshot(snapshot_files.read_snapshot(self._disk, path, snapshot), snapshot, path)
        return replay.finish(snapshot.end_offset - 1, snapshot.epoch)

    def replay_committed(self) -> Replayed:
        """Same as `replay`, but the image is the newest snapshot's: with other voters the leader decides which later
        records are committed. The voter set takes effect at once (Q40)."""
        replay = self._replay_snapshot()
        replay.replay_log(self._log_batches(replay.snapshot.end_offset), only_voters=True)
        return replay.finish(replay.snapshot.end_offset - 1, replay.snapshot.epoch)

    def _replay_snapshot(self) -> MetadataReplay:
        """Replay the newest complete snapshot; an empty replay if there is none."""
        while True:
            replay = MetadataReplay()
            if not self.snapshots:
                return replay
            newest = self.newest_snapshot
            path = self.path_of(newest)
            began_s = time.perf_counter()
            try:
                replay.replay_snapshot(snapshot_files.read_snapshot(self._disk, path, newest), newest, path)
            except SnapshotDamaged as error:
                self._set_aside(newest, error)
            except (PeerError, MalformedRequest) as error:
                self._set_aside(newest, SnapshotDamaged(path, str(error)))
            else:
                self.snapshot_load_s = time.perf_counter() - began_s
                return replay

    def _log_batches(self, offset: int) -> Iterator[tuple[memoryview, BatchHeader]]:
        """Each batch from the one with `offset` to the log's end, in memory that is valid until the next one.

        Raises OperatorError if a batch is damaged or not contiguous: the CRC does not cover a batch's offset.
        """
        log, directory = self._log, self.directory
        end = log.log_end_offset
        last: BatchHeader | None = None
        while offset < end:
            read = log.read(offset, _READ_BYTES, end_offset_exclusive=end)
            records = read.records if read.resident else read.load()
            next_offset = offset
            for header in _checked(records, directory):
                follows = header.base_offset <= offset if last is None else header.base_offset == last.next_offset
                if not follows:
                    raise OperatorError(
                        f"{directory}: the metadata log has a batch at offset {header.base_offset}, expected"
                        f" {offset if last is None else last.next_offset}.",
                        _ADVICE,
                    )
                known = log.epochs.epoch_for_offset(header.base_offset)
                if header.leader_epoch != known:  # the CRC covers neither, and an epoch too high would win elections
                    raise OperatorError(
                        f"{directory}: the metadata log has a batch of epoch {header.leader_epoch} at offset"
                        f" {header.base_offset}, but leader-epoch-checkpoint has epoch {known}.",
                        _ADVICE,
                    )
                last, next_offset = header, header.next_offset
                if next_offset > offset:
                    yield records, header
            if next_offset <= offset:
                raise OperatorError(
                    f"{directory}: the metadata log has no batch at offset {offset}, but ends at {end}.", _ADVICE
                )
            offset = next_offset

    def timestamp_at_end_of(self, image_offset: int, epoch: int) -> Callable[[], int | None]:
        """Returns a function for a thread that finds the append time in ms of the committed batch that ends with
        `image_offset`; None if no batch of `epoch` ends there (N14, N15). It reads one batch, and raises OperatorError
        if that is damaged, StorageError. Raises StorageError."""
        if not self.start_offset <= image_offset < self._log.high_watermark:
            return lambda: None
        directory = self.directory
        read = self._log.read(image_offset, 1, end_offset_exclusive=image_offset + 1)

        def find() -> int | None:
            for header in _checked(read.records if read.resident else read.load(), directory):
                if header.last_offset == image_offset:
                    return header.max_timestamp if header.leader_epoch == epoch else None
            return None

        return find

    # -- snapshots ---------------------------------------------------------------------------------------------------

    def write_snapshot(self, snapshot: SnapshotId, batches: Iterable[bytes | bytearray]) -> int:
        """N16, for a thread; returns the file's size in bytes. The caller then registers it with `snapshot_written` on
        the loop."""
        return snapshot_files.write_snapshot(self._disk, self.path_of(snapshot), batches)

    def snapshot_written(self, snapshot: SnapshotId) -> bool:
        """Register a frozen snapshot. False: the log start has passed it, and the file may be deleted (N15)."""
        if snapshot.end_offset < self.start_offset:
            return False
        if snapshot not in self.snapshots:
            insort(self.snapshots, snapshot, key=snapshot_files.age)
        return True

    def delete_snapshot(self, snapshot: SnapshotId) -> None:
        """Delete the snapshot file; for a thread. Raises OSError."""
        snapshot_files.unlink_marked(self._disk, self.path_of(snapshot))

    def snapshot_sizes(self, snapshots: Sequence[SnapshotId]) -> dict[SnapshotId, int]:
        """Sizes of snapshot files in bytes, for a thread. Raises OSError."""
        found = {each: self._disk.stat(f"{self.directory}/{each.file_name}") for each in snapshots}
        return {each: stat.size_bytes for each, stat in found.items() if stat is not None}

    def snapshot_timestamps(self, snapshots: Sequence[SnapshotId]) -> dict[SnapshotId, int]:
        """Append time in ms of the last record in each snapshot, from its header; for a thread. Raises OSError."""
        found = {each: snapshot_files.timestamp_of(self._disk, self.path_of(each)) for each in snapshots}
        return {each: timestamp for each, timestamp in found.items() if timestamp is not None}

    def forget_oldest(
        self,
        sizes: Mapping[SnapshotId, int],
        max_bytes: int,
        now_ms: int,
        *,
        timestamps: Mapping[SnapshotId, int] | None = None,
        max_age_ms: int = -1,
        wanted_offset: int | None = None,
        max_lag_ms: int = 0,
    ) -> list[Callable[[], None]]:
        """N18-N20: while there are at least two, delete the oldest snapshot and start the log at the next one: as long
        as log and snapshots exceed `max_bytes`, then as long as it is older than `max_age_ms`. Below 0 is no limit.
        Records that other nodes still need, from `wanted_offset` on, stay until the new log start would be older than
        `max_lag_ms`, or the size exceeds twice the limit (KIP-630, G30).

        `sizes` in bytes, `timestamps` as returned by `snapshot_timestamps`. Files are marked at once (N21); returns
        functions for a thread that delete them and raise OSError. Raises StorageError.
        """
        deletions: list[Callable[[], None]] = []

        def is_wanted() -> bool:
            following = self.snapshots[1]
            if wanted_offset is None or wanted_offset >= following.end_offset:
                return False
            written_ms = (timestamps or {}).get(following)
            return written_ms is not None and now_ms - written_ms <= max_lag_ms

        def is_too_large() -> bool:
            size_bytes = self._log.size_bytes + sum(sizes.get(each, 0) for each in self.snapshots)
            return 0 <= max_bytes * (2 if is_wanted() else 1) < size_bytes

        def is_too_old() -> bool:
            written_ms = (timestamps or {}).get(self.snapshots[0])
            return max_age_ms >= 0 and written_ms is not None and now_ms - written_ms > max_age_ms and not is_wanted()

        for is_due in (is_too_large, is_too_old):
            while len(self.snapshots) >= 2 and self.snapshots[1].end_offset <= self._log.high_watermark and is_due():
                deletions.append(self._mark_deleted(self.snapshots[0]))
                self._log.advance_log_start(self.snapshots[0].end_offset)
                deletions += [removed.delete for removed in self._log.enforce_retention(now_ms)]
        return deletions

    def _mark_deleted(self, snapshot: SnapshotId) -> Callable[[], None]:
        """Remove the snapshot from the list; returns a function that deletes its file. Raises StorageError."""
        path = self.path_of(snapshot)
        try:
            marked = snapshot_files.mark_deleted(self._disk, path)
        except OSError as error:
            raise StorageError.of(f"removing {path}", error) from error
        self.snapshots.remove(snapshot)
        return partial(snapshot_files.unlink_marked, self._disk, marked)


def _checked(records: memoryview, directory: str) -> Iterator[BatchHeader]:
    """Complete, valid batches. Raises OperatorError."""
    try:
        for header in iter_headers(records):
            check_crc(records, header)
            yield header
    except PeerError as error:
        raise OperatorError(f"The metadata log in {directory} is damaged: {error.message}", _ADVICE) from error
