"""The metadata log on the disk: `__cluster_metadata-0` with its segments, snapshots and `quorum-state`.

Owns appends, flushes, where the log starts, and which snapshots there are; their files are `snapshot_files`'. Never
decides what to write, and never looks into a record (see `metadata_replay`). One thread of control; `LogFlush` and the
writing of snapshots are for threads.

A snapshot that is damaged is set aside, never loaded: the next older one and the log from its end are as good. Only
where there is neither is the operator asked (gaps.md G24).

A full disk: the batches of a flush are what counts. Where they are safe, and only what can be made anew from them
(indexes, epochs, producer snapshots) finds no room, the flush has succeeded, and the rest is due with the next one.

A start that read past a snapshot's end moves the log's start back to where its first segment begins: it is nowhere
written down (G31). What lies between it and the oldest snapshot is there, and of use to nobody.

Rules: formats.md F3-F5; raft.md Q11, Q12; snapshots.md N1-N10, N15, N16, N18-N22, N43-N47; gaps.md G24, G30, G31, G41.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from fenceline.errors import OperatorError, PeerError
from fenceline.ids import METADATA_TOPIC, METADATA_TOPIC_ID, TopicPartition
from fenceline.log.checkpoints import BadCheckpoint, read_partition_metadata
from fenceline.log.config import LogConfig
from fenceline.log.disk import Disk, read_file, replace_file
from fenceline.log.errors import CorruptLog, StorageError
from fenceline.log.file_names import METADATA_FILE
from fenceline.log.flush import FlushWork
from fenceline.log.partition_log import PartitionLog
from fenceline.log.producer_state import Origin
from fenceline.node import metadata_reading, promised_end, snapshot_files
from fenceline.node.logs import Logger
from fenceline.node.metadata_hole import OthersHaveIt, promise_what_follows
from fenceline.node.metadata_replay import NO_SNAPSHOT, Replay, Replayed
from fenceline.node.snapshot_files import SnapshotDamaged
from fenceline.quorum.election_state import FILE_NAME, ElectionState, decode_election, encode_election
from fenceline.quorum.log_view import NOTHING, LogEnd, SnapshotId
from fenceline.wire.errors import MalformedRequest

if TYPE_CHECKING:
    from fenceline.metadata.image import MetadataImage
    from fenceline.records.batch import BatchHeader

METADATA_PARTITION: Final = TopicPartition(METADATA_TOPIC, 0)
DIRECTORY_NAME: Final = f"{METADATA_TOPIC}-0"
MAX_BATCH_BYTES: Final = 8 << 20

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
            log = opening(recovery_point=newest.end_offset)  # a snapshot stands only for what was flushed (N15)
        except CorruptLog:
            # Unless it was fetched: a node that never votes flushes nothing of the log that the snapshot replaces.
            if votes or newest.end_offset == 0:
                raise
            log = opening(recovery_point=0)
    except CorruptLog as error:
        raise OperatorError(
            f"The metadata log is damaged: {error.message}",
            "The node does not start, because the topics that are described behind this place would be gone."
            f" Restore {error.path} from a backup. Where there is none, cutting the file there"
            f" (truncate -s {error.position} {error.path}) goes on with what lies before it: the partitions of"
            " topics that are unknown then are set aside as -stray, not deleted.",
        ) from error
    if not _has_topic_id(disk, directory):
        log.mark_identity_unsaved()
    return log


def _has_topic_id(disk: Disk, directory: str) -> bool:
    """A loss of power may have torn the file before its first flush."""
    try:
        return read_partition_metadata(disk, f"{directory}/{METADATA_FILE}") is not None
    except BadCheckpoint:
        return False


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
            self._work.complete()
        else:
            self._work.fail(error or self._put_off or StorageError("flush ended without a reason"))
        return self._put_off if error is None else None


class MetadataLog:
    """See the module."""

    def __init__(self, disk: Disk, directory: str, log: PartitionLog, snapshots: list[SnapshotId]) -> None:
        self._disk = disk
        self.directory = directory
        self._log = log
        self.cluster_id = ""
        """Whose elections these are, where the opener knows (G41)."""
        self.is_changing = False
        """A thread cuts the log, or lets it begin anew: who reads it waits until more is said to be committed."""
        self.promised = promised_end.read(disk, directory)
        """What was acknowledged before the log had to begin anew, or was cut at a hole, and is not here again, else
        `NOTHING` (G24)."""
        self.snapshot_load_s: float | None = None
        """How long reading the newest snapshot took when the node started; None where there was none."""
        self.snapshots = snapshots
        """Ids on the disk, oldest first; (0, 0) among them where the directory was formatted with voters."""

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
    ) -> MetadataLog:
        """Open or create the log under `log_dir`. Raises OperatorError (CorruptLog among them), StorageError.

        Who never votes has acknowledged nothing and synced nothing: what a loss of power tore is fetched again. Who
        votes promises what lies behind a hole before it is cut, where others have it (`metadata_hole`).
        """
        directory = f"{log_dir}/{DIRECTORY_NAME}"
        if disk.stat(directory) is None:
            disk.mkdir(directory)
            disk.fsync_dir(log_dir)
        snapshots = snapshot_files.find_snapshots(disk, directory)
        newest = snapshots[-1] if snapshots else NO_SNAPSHOT
        before_cut = partial(promise_what_follows, disk, directory, newest, others_have_it) if others_have_it else None
        log = _open_log(disk, directory, newest, now_ms, segment_bytes, segment_ms, votes=votes, before_cut=before_cut)
        if log.log_start_offset > 0 and newest.end_offset < log.log_start_offset:
            raise OperatorError(
                f"{directory} begins at offset {log.log_start_offset} and no snapshot stands for what was before.",
                "A snapshot file (*.checkpoint) is missing. Restore it, or format this node anew if others vote.",
            )
        snapshot_files.remove_leftovers(disk, directory)
        opened = cls(disk, directory, log, snapshots)
        opened._finish_truncation()
        opened._forget_unreachable()
        log.advance_high_watermark(opened.newest_snapshot.end_offset)
        opened._make_durable()
        if opened.promised != NOTHING and opened.end >= opened.promised:
            opened.promised = NOTHING
            opened.forget_promise()
        return opened

    @classmethod
    def begin_anew(cls, disk: Disk, log_dir: str, damage: SnapshotDamaged, *, now_ms: int) -> None:
        """Give up a log whose beginning only a damaged snapshot knew: `open` finds an empty one then, and other voters
        have all of it (G24). What is given up is kept in `lost+found`; what this node has acknowledged of it is written
        down first, so that it votes for nobody who lacks that (`promised_end`).

        A crash at any moment leaves a directory of which `open` or the reading of its snapshot says the same again.
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
            "metadata log begins anew: its only snapshot is damaged",
            path=directory,
            reason=damage.reason,
            kept=", ".join(kept),
            acknowledged_offset=promised.offset,
            acknowledged_epoch=promised.epoch,
            advice="Everything is fetched from the other controllers; until then this one can not lead and votes only"
            " for who has all that it had. Check the disk. Where no other controller has the metadata, stop this one,"
            " and restore the files from here and from lost+found.",
        )

    def forget_promise(self) -> None:
        """For a thread. What is not forgotten by a crash is found kept at the next start."""
        promised_end.forget(self._disk, self.directory)

    def _make_durable(self) -> None:
        """What a process that was killed had written is in the files, but perhaps not on the disk: from the start on
        everything counts as flushed (`LogView.flushed`), so it must be."""
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
        """N45: a crash came between a new snapshot and the truncation of the log that lacks it."""
        while self.newest_snapshot.is_beyond(self.end):
            newest = self.newest_snapshot
            try:
                snapshot_files.verify_snapshot(self._disk, self.path_of(newest), newest)
            except SnapshotDamaged as error:
                self._set_aside(newest, error)
            else:
                self._log.truncate_fully_and_start_at(newest.end_offset)

    def _forget_unreachable(self) -> None:
        """N43: snapshots that the log does not reach back to. Those of a log without a directory are all needed."""
        for snapshot in [each for each in self.snapshots if each.end_offset < self.start_offset]:
            self.snapshots.remove(snapshot)
            self._disk.unlink(self.path_of(snapshot))

    def _set_aside(self, snapshot: SnapshotId, error: SnapshotDamaged) -> None:
        """G24. Raises OperatorError, with the file in its place, where nothing else holds what it stood for."""
        others = [each for each in self.snapshots if each != snapshot and each.end_offset >= self.start_offset]
        if not others and (self.start_offset > 0 or self.end_offset == 0):
            raise error  # in an empty log nothing else would name the voters
        self.snapshots.remove(snapshot)
        kept = snapshot_files.set_aside(self._disk, error.path)
        _log.error(
            "damaged metadata snapshot set aside",
            path=kept,
            reason=error.reason,
            advice="Nothing is lost: an older snapshot or the log holds the same. Check the disk; the file may be"
            " deleted.",
        )

    def unflushed_before(self, end_offset: int) -> list[str]:
        """Files with batches below `end_offset` that may not be on the disk. Only who votes flushes what it appends; a
        snapshot stands for what is safe (N15), on every node."""
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
        """`NO_SNAPSHOT` where there is none."""
        return self.snapshots[-1] if self.snapshots else NO_SNAPSHOT

    def path_of(self, snapshot: SnapshotId) -> str:
        """Of its file."""
        return f"{self.directory}/{snapshot.file_name}"

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
        return None if content is None else decode_election(content, path, self.cluster_id)

    def write_election(self, state: ElectionState, kraft_version: int, voter_ids: tuple[int, ...]) -> None:
        """Durable when it returns (Q12)."""
        content = encode_election(state, kraft_version, voter_ids, self.cluster_id)
        replace_file(self._disk, f"{self.directory}/{FILE_NAME}", content)

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
        """The image of the whole log, from the newest snapshot that is whole.

        Raises InternalError for records that do not fit, OperatorError on damage that nothing makes good.
        """
        replay = self._replay_snapshot()
        replay.take_log(self._log_batches(replay.snapshot.end_offset))
        return replay.finish(self._log.log_end_offset - 1, self.end.epoch)

    def image_of(self, snapshot: SnapshotId) -> MetadataImage:
        """What a snapshot file holds, for a thread. Raises OSError, OperatorError (SnapshotDamaged among them)."""
        replay, path = Replay(), self.path_of(snapshot)
        replay.take_snapshot(snapshot_files.read_snapshot(self._disk, path, snapshot), snapshot, path)
        return replay.finish(snapshot.end_offset - 1, snapshot.epoch).image

    def replay_committed(self) -> Replayed:
        """As `replay`, but the image is the newest snapshot's: where others vote, the leader says what of the log
        behind it is committed. Who votes counts at once (Q40)."""
        replay = self._replay_snapshot()
        replay.take_log(self._log_batches(replay.snapshot.end_offset), only_voters=True)
        return replay.finish(replay.snapshot.end_offset - 1, replay.snapshot.epoch)

    def _replay_snapshot(self) -> Replay:
        """Of the newest whole one; of nothing where there is none."""
        while True:
            replay = Replay()
            if not self.snapshots:
                return replay
            newest = self.newest_snapshot
            path = self.path_of(newest)
            began_s = time.perf_counter()
            try:
                replay.take_snapshot(snapshot_files.read_snapshot(self._disk, path, newest), newest, path)
            except SnapshotDamaged as error:
                self._set_aside(newest, error)
            except (PeerError, MalformedRequest) as error:
                self._set_aside(newest, SnapshotDamaged(path, str(error)))
            else:
                self.snapshot_load_s = time.perf_counter() - began_s
                return replay

    def _log_batches(self, offset: int) -> Iterator[tuple[memoryview, BatchHeader]]:
        return metadata_reading.batches_from(self._log, self.directory, offset)

    def timestamp_at_end_of(self, image_offset: int, epoch: int) -> Callable[[], int | None]:
        """See `metadata_reading.timestamp_at_end_of`. Raises StorageError."""
        if not self.start_offset <= image_offset < self._log.high_watermark:
            return lambda: None
        return metadata_reading.timestamp_at_end_of(self._log, self.directory, image_offset, epoch)

    # -- snapshots ---------------------------------------------------------------------------------------------------

    def write_snapshot(self, snapshot: SnapshotId, batches: Iterable[bytes | bytearray]) -> int:
        """N16, for a thread; the file's size in bytes. The caller registers it by `snapshot_written` on the loop.

        Raises OSError with nothing left of it.
        """
        return snapshot_files.write_snapshot(self._disk, self.path_of(snapshot), batches)

    def snapshot_written(self, snapshot: SnapshotId) -> bool:
        """Register what is frozen. False: the log begins behind it by now, and the file may go (N15)."""
        if snapshot.end_offset < self.start_offset:
            return False
        if snapshot not in self.snapshots:
            insort(self.snapshots, snapshot, key=snapshot_files.age)
        return True

    def delete_snapshot(self, snapshot: SnapshotId) -> None:
        """Of the disk; for a thread. Raises OSError."""
        snapshot_files.unlink_marked(self._disk, self.path_of(snapshot))

    def snapshot_sizes(self, snapshots: Sequence[SnapshotId]) -> dict[SnapshotId, int]:
        """Bytes of snapshot files, for a thread. Raises OSError."""
        found = {each: self._disk.stat(f"{self.directory}/{each.file_name}") for each in snapshots}
        return {each: stat.size_bytes for each, stat in found.items() if stat is not None}

    def snapshot_timestamps(self, snapshots: Sequence[SnapshotId]) -> dict[SnapshotId, int]:
        """Append time in ms of the last record that each stands for, by its header; for a thread. Raises OSError."""
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
        """N18-N20: while there are two, the oldest snapshot goes and the log starts at the next one: as long as log and
        snapshots have more than `max_bytes`, then as long as it is older than `max_age_ms`. Below 0 is no limit. What
        others still need, from `wanted_offset` on, stays until the place where the log would start is older than
        `max_lag_ms`, or there are twice as many bytes (KIP-630, G30).

        `sizes` in bytes, `timestamps` as `snapshot_timestamps` gives them. Files are marked at once (N21); gives back
        what deletes them, for a thread; these raise OSError. Raises StorageError.
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
        """Forget it; what deletes its file. Raises StorageError."""
        path = self.path_of(snapshot)
        try:
            marked = snapshot_files.mark_deleted(self._disk, path)
        except OSError as error:
            raise StorageError.of(f"removing {path}", error) from error
        self.snapshots.remove(snapshot)
        return partial(snapshot_files.unlink_marked, self._disk, marked)
