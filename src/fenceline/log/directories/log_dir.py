"""A log directory: its identity, its lock, and the partitions in it.

Owns the lock, `meta.properties` checks, the clean-shutdown mark and the offset checkpoints (`formats.md F1`-`F3`), and
opens partitions on first use. Never writes `meta.properties` (formatting does) and never decides which partitions
should be here.

A damaged partition affects no other: `partition` raises `CorruptLog` for it, and the others are served. The clean mark
covers the complete session: it is removed before the first log is opened (`begin`), and written again only if every
partition here was opened or was clean from before. Before `begin` nothing here changes, so that a process that ends
earlier leaves the mark of the last one, however it ends.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID, uuid4

from fenceline.errors import OperatorError
from fenceline.ids import METADATA_TOPIC, TopicPartition
from fenceline.log.core.checkpoints import NO_IDENTITY, BadCheckpoint, DirectoryIdentity, read_identity
from fenceline.log.core.config import LogConfig
from fenceline.log.core.disk import Disk, read_file, replace_file
from fenceline.log.core.errors import CorruptLog, StorageError
from fenceline.log.core.file_names import LOG_SUFFIX, METADATA_FILE, stem
from fenceline.log.core.meta_properties import directory_id_of, read_meta
from fenceline.log.core.open_files import OpenFiles
from fenceline.log.directories.duplicate_logs import LogInspection, inspect_log
from fenceline.log.directories.log_dir_offsets import (
    RECOVERY_POINTS,
    LogDirOffsets,
    SegmentsAtStop,
    read_first_segments,
    write_first_segments,
)
from fenceline.log.directories.partition_dir import (
    DELETE_SUFFIX,
    STRAY_SUFFIX,
    RemovedPartition,
    parse_future_name,
    parse_partition_name,
    parse_removed_name,
    partition_of,
    removed_name,
)
from fenceline.log.partition import saving
from fenceline.log.partition.partition_log import PartitionLog

LOCK_FILE: Final = ".lock"
PROBE_FILE: Final = ".fenceline-probe"
CLEAN_FILE: Final = ".kafka_cleanshutdown"
SYNC_ALL_FROM: Final = 32


class ExistingPartition(NamedTuple):
    topic_partition: TopicPartition
    topic_id: UUID | None
    """None if `partition.metadata` is missing or damaged."""
    path: str


class UnusableDirectory(OperatorError):
    """The system cannot use a log directory: a broken disk, or an invalid path."""

    def __init__(self, path: str, error: OSError) -> None:
        self.reason = error.strerror or str(error)
        super().__init__(
            f"The data directory {path} cannot be used: {self.reason}",
            "Check that it exists, that this user has read and write permission, and that its disk is healthy.",
        )


@dataclass(frozen=True, slots=True)
class Draws:
    """What a directory draws at random."""

    name_id: Callable[[], UUID] = uuid4
    """For the names of directories that are set aside."""
    incarnation: Callable[[], UUID] = uuid4
    """For new directories (`log_dir_offsets.py`)."""
    jitter_ms: Callable[[int], int] | None = None
    """A segment's share of `segment.jitter.ms`: at least 0, and less than the argument."""


class LogDir:
    """Use `LogDir.open`. Runs on one thread of control, as its logs."""

    def __init__(self, disk: Disk, path: str, *, cluster_id: str, node_id: int, files: OpenFiles, draws: Draws) -> None:
        self.disk = disk
        self.path = path
        self.cluster_id = cluster_id
        self.node_id = node_id
        self.directory_id: UUID | None = None
        self.files = files
        self.clean = False
        """Whether the last shutdown was clean, for partitions that were not opened since."""
        self.previous_broker_epoch = -1
        """The broker epoch in the clean mark found at start; -1 without one (KIP-966: sent to the controller)."""
        self.broker_epoch = -1
        """Written into the clean mark; the node sets it once it is registered."""
        self.open_logs: dict[TopicPartition, PartitionLog] = {}
        self._written: dict[TopicPartition, PartitionLog] = {}
        """Those of the open logs that have files."""
        self.on_segment: Callable[[TopicPartition], None] = lambda _: None
        """Called when one of the open logs has started a segment, in the thread that did it."""
        self.future_logs: dict[TopicPartition, PartitionLog] = {}
        """Open copies of logs in another directory that move here (`future_log.py`)."""
        self.offline: dict[TopicPartition, CorruptLog] = {}
        self.missing: dict[TopicPartition, int] = {}
        """Partitions that had records here at the clean shutdown and have no directory now, with their log end offsets.
        """
        self.damaged: dict[str, str] = {}
        """Checkpoints that could not be read, and why; the node reports them."""
        self.draws = draws
        self.orphans: list[TopicPartition] = []
        """Partitions in the checkpoints after a crash that have no directory."""
        self._first_segments: dict[TopicPartition, SegmentsAtStop] = {}
        """At the clean shutdown, of logs that were open in that session or before."""
        self._on_segment = self._segment_started  # one object for all logs
        self._lock = -1
        self._has_begun = False
        self.offsets = LogDirOffsets(disk, path)
        self._last_high_watermarks: dict[str, int] = {}
        """Of directories set aside since the start, by path."""

    @classmethod
    def open(
        cls,
        path: str,
        disk: Disk,
        *,
        cluster_id: str | None = None,
        node_id: int | None = None,
        files: OpenFiles | None = None,
        draws: Draws = Draws(),
    ) -> LogDir:
        """Lock a formatted directory and read its identity. None for an id accepts any.

        Raises OperatorError: not formatted, of another cluster or node, held by another process; UnusableDirectory.
        """
        path = path.rstrip("/") or "/"
        try:
            return cls._open(path, disk, cluster_id, node_id, files or OpenFiles(disk), draws)
        except OSError as error:
            raise UnusableDirectory(path, error) from error

    @classmethod
    def _open(
        cls, path: str, disk: Disk, cluster_id: str | None, node_id: int | None, files: OpenFiles, draws: Draws
    ) -> LogDir:
        meta = read_meta(disk, path)
        found_cluster, found_node = meta.get("cluster.id", ""), int(meta["node.id"])
        if cluster_id is not None and cluster_id != found_cluster:
            raise OperatorError(
                f"{path} belongs to cluster {found_cluster}, this node to cluster {cluster_id}",
                "Set log.dirs to a directory of this cluster, or format an empty directory with this cluster id.",
            )
        if node_id is not None and node_id != found_node:
            raise OperatorError(
                f"{path} belongs to node {found_node}, this is node {node_id}",
                f"Set node.id={found_node}, or set log.dirs to the directory of node {node_id}.",
            )
        log_dir = cls(disk, path, cluster_id=found_cluster, node_id=found_node, files=files, draws=draws)
        if "directory.id" in meta:
            log_dir.directory_id = directory_id_of(meta["directory.id"], path)
        log_dir._acquire_lock()
        try:
            log_dir._read_state()
        except BaseException:
            disk.close(log_dir._lock)
            raise
        return log_dir

    def _acquire_lock(self) -> None:
        path = f"{self.path}/{LOCK_FILE}"
        fd = self.disk.lock(path, f"node {self.node_id}")
        if fd is None:
            holder = (read_file(self.disk, path) or b"").decode(errors="replace").strip()
            raise OperatorError(
                f"{self.path} is in use by {holder or 'another process'}",
                "Stop that process, or give this node its own data directory.",
            )
        self._lock = fd

    def _read_state(self) -> None:
        mark = read_file(self.disk, f"{self.path}/{CLEAN_FILE}")
        if mark is not None:
            self.clean = True
            try:
                self.previous_broker_epoch = int(json.loads(mark)["brokerEpoch"])
            except (ValueError, KeyError, TypeError):
                self.previous_broker_epoch = -1  # Kafka before 3.7 left an empty file
        self.damaged = self.offsets.read()
        self.clean = self.offsets.is_clean = self.clean and RECOVERY_POINTS not in self.damaged
        if self.clean:
            self._first_segments = read_first_segments(self.disk, self.path, self.previous_broker_epoch)
        held = {where: name for name in self.disk.listdir(self.path) if (where := partition_of(name)) is not None}
        if self.clean:
            self.missing = {
                where: end
                for where, end in self.offsets.recovery_points.items()
                if end > self.offsets.log_starts.get(where, 0) and where.topic != METADATA_TOPIC and where not in held
            }
        for where in sorted(self.offsets.partitions):
            if where not in held and where not in self.missing:
                # After a crash the checkpoints may name partitions that were deleted since they were written.
                self.offsets.forget(where)
                if not self.clean and where.topic != METADATA_TOPIC:
                    self.orphans.append(where)
            elif self.clean and where in held and where not in self.offsets.incarnations:
                # Kafka, or an older release, has shut down cleanly: record which directories these entries describe.
                self.offsets.claim(where, self.identity_of(f"{self.path}/{held[where]}"))

    def begin(self) -> None:
        """Logs may change from now on: a stop is unclean until `close` marks it clean. Raises OSError."""
        if self._has_begun:
            return
        path = f"{self.path}/{CLEAN_FILE}"
        if self.disk.stat(path) is not None:
            self.disk.unlink(path)
            self.disk.fsync_dir(self.path)
        self._has_begun = True

    # -- partitions ---------------------------------------------------------------------------------------------

    def partition(
        self, topic_partition: TopicPartition, topic_id: UUID | None, config: LogConfig, *, now_ms: int = 0
    ) -> PartitionLog:
        """The log of a partition, opened if it is not; after an unclean shutdown that reads batches. Raises
        CorruptLog."""
        log = self.open_logs.get(topic_partition)
        if log is not None:
            return log
        failed = self.offline.get(topic_partition)
        if failed is not None:
            raise failed
        try:
            log = self.open_detached(topic_partition, topic_id, config, now_ms)
        except CorruptLog as error:
            self.offline[topic_partition] = error
            raise
        self.add_open_log(log)
        return log

    def open_detached(
        self, topic_partition: TopicPartition, topic_id: UUID | None, config: LogConfig, now_ms: int
    ) -> PartitionLog:
        """Open a log that could not be opened before, in a thread of its own; call `add_open_log` afterwards. Raises
        CorruptLog."""
        return self.open_at(self.partition_path(topic_partition), topic_partition, topic_id, config, now_ms, self.files)

    def missing_first_segments(self) -> list[TopicPartition]:
        """Partitions whose first segment file disappeared since the clean shutdown. One stat each. Raises OSError."""
        return [
            where
            for where, known in self._first_segments.items()
            if where not in self.missing
            and self.disk.stat(stem(self.partition_path(where), known.first_base) + LOG_SUFFIX) is None
            and self.disk.stat(self.partition_path(where)) is not None
        ]

    def add_open_log(self, log: PartitionLog) -> None:
        """Add a log that `open_detached` opened, or a copy that has become the log, to the open ones."""
        self.offline.pop(log.topic_partition, None)
        self.open_logs[log.topic_partition] = log
        log.on_segment = self._on_segment
        if log.is_written:
            self._written[log.topic_partition] = log

    def remove_open_log(self, topic_partition: TopicPartition) -> PartitionLog | None:
        """The log, if it was open; it is not closed."""
        self._written.pop(topic_partition, None)
        return self.open_logs.pop(topic_partition, None)

    def _segment_started(self, topic_partition: TopicPartition) -> None:
        log = self.open_logs.get(topic_partition)
        if log is not None:
            self._written[topic_partition] = log
            self.on_segment(topic_partition)

    def open_at(
        self,
        directory: str,
        topic_partition: TopicPartition,
        topic_id: UUID | None,
        config: LogConfig,
        now_ms: int,
        files: OpenFiles,
    ) -> PartitionLog:
        """Open the log in a directory below this one, with the checkpointed offsets of this very directory; for a new
        one there are none. Raises CorruptLog, OSError, StorageError."""
        found = self.identity_of(directory) if self.disk.stat(directory) is not None else None
        _check_id(directory, found, topic_id)
        try:
            self.begin()
        except OSError as error:
            raise StorageError.of(f"removing the clean mark of {self.path}", error) from error
        known = self.offsets.claim(topic_partition, found)
        if found is None:
            log = PartitionLog(
                self.disk,
                directory,
                topic_partition=topic_partition,
                topic_id=topic_id,
                incarnation=self.draws.incarnation(),
                config=config,
                files=files,
            )
            log.last_flush_ms = now_ms
            log.jitter_ms = self.draws.jitter_ms
            return log
        has_identity = found.topic_id is not None
        clean = self.clean and known.describes_directory
        at_stop = self._first_segments.get(topic_partition) if clean else None
        log = PartitionLog.open(
            self.disk,
            directory,
            topic_partition=topic_partition,
            topic_id=topic_id,
            incarnation=found.incarnation if has_identity else self.draws.incarnation(),
            config=config,
            recovery_point=known.recovery_point,
            clean=clean,
            first_segment=at_stop.first_base if at_stop is not None else None,
            segment_count=at_stop.files if at_stop is not None else None,
            log_start_offset=known.log_start_offset,
            high_watermark=known.high_watermark,
            now_ms=now_ms,
            files=files,
        )
        log.durable_recovery_point = known.recovery_point
        log.jitter_ms = self.draws.jitter_ms
        if not has_identity:
            log.mark_identity_unsaved()
        return log

    def inspect_log(self, topic_partition: TopicPartition) -> LogInspection:
        """What opening a partition's log would find; changes nothing. For a thread. Raises CorruptLog, OSError."""
        directory = self.partition_path(topic_partition)
        known = self.offsets.of(topic_partition, self.identity_of(directory))
        return inspect_log(self.disk, directory, known, clean=self.clean and known.describes_directory)

    def partition_path(self, topic_partition: TopicPartition) -> str:
        return f"{self.path}/{topic_partition.topic}-{topic_partition.partition}"

    def has(self, topic_partition: TopicPartition) -> bool:
        """Whether the partition is in use or has files here. Raises OSError."""
        return topic_partition in self.open_logs or self.disk.stat(self.partition_path(topic_partition)) is not None

    def high_watermark(self, topic_partition: TopicPartition) -> int:
        """Of an open log, else of the last checkpoint; 0 if there is none. Raises OSError."""
        log = self.open_logs.get(topic_partition)
        if log is not None:
            return log.high_watermark
        return self._checkpointed(topic_partition, self.partition_path(topic_partition))

    def checkpointed_high_watermark(self, topic_partition: TopicPartition) -> int:
        """Of the last checkpoint, even if the log now ends below it; 0 if there is none."""
        return self.offsets.high_watermarks.get(topic_partition, 0)

    def _checkpointed(self, topic_partition: TopicPartition, directory: str) -> int:
        """The high watermark of the log in a directory, which may be set aside."""
        return self.offsets.of(topic_partition, self.identity_of(directory)).high_watermark

    def existing(self) -> Iterator[ExistingPartition]:
        """Every partition that has a directory here. Raises OSError."""
        return self._found(parse_partition_name)

    def existing_futures(self) -> Iterator[ExistingPartition]:
        """Every copy here of a partition that moves from another directory. Raises OSError."""
        return self._found(parse_future_name)

    def _found(self, parse: Callable[[str], TopicPartition | None]) -> Iterator[ExistingPartition]:
        for name in sorted(self.disk.listdir(self.path)):
            found = parse(name)
            if found is not None:
                path = f"{self.path}/{name}"
                yield ExistingPartition(found, self.topic_id_of(path), path)

    def pending_deletions(self) -> list[RemovedPartition]:
        """Directories whose deletion was interrupted; to be deleted in a thread."""
        return self._removed_before(DELETE_SUFFIX)

    def strays(self) -> list[RemovedPartition]:
        """Directories that were set aside, by this start or an earlier one. Raises OSError."""
        return self._removed_before(STRAY_SUFFIX)

    def _removed_before(self, suffix: str) -> list[RemovedPartition]:
        found = []
        for name in self.disk.listdir(self.path):
            where = parse_removed_name(name) if name.endswith(suffix) else None
            if where is not None:
                path = f"{self.path}/{name}"
                high_watermark = self._last_high_watermarks.get(path)
                if high_watermark is None:
                    high_watermark = self._checkpointed(where, path)
                found.append(RemovedPartition(path, self.disk, where, high_watermark))
        return found

    def partition_size_bytes(self, topic_partition: TopicPartition) -> int:
        """Bytes of a partition's segments, whether it is open or not."""
        log = self.open_logs.get(topic_partition)
        return log.size_bytes if log is not None else self.size_bytes_at(self.partition_path(topic_partition))

    def size_bytes_at(self, directory: str) -> int:
        """Bytes of the segments in a directory."""
        if self.disk.stat(directory) is None:
            return 0
        sizes = (self.disk.stat(f"{directory}/{n}") for n in self.disk.listdir(directory) if n.endswith(".log"))
        return sum(found.size_bytes for found in sizes if found is not None)

    def topic_id_of(self, directory: str) -> UUID | None:
        """By its `partition.metadata`; None if that is missing or damaged. Raises OSError."""
        return self.identity_of(directory).topic_id

    def identity_of(self, directory: str) -> DirectoryIdentity:
        """By its `partition.metadata`; empty if that is missing or damaged. Raises OSError."""
        try:
            return read_identity(self.disk, f"{directory}/{METADATA_FILE}")
        except BadCheckpoint:
            return NO_IDENTITY

    def delete_partition(self, topic_partition: TopicPartition) -> RemovedPartition | None:
        """Remove a partition; its directory is renamed now and deleted by `RemovedPartition.delete` in a thread.

        None if it had no directory. Raises StorageError.
        """
        return self._rename_for_removal(topic_partition, DELETE_SUFFIX)

    def set_aside_stray(self, topic_partition: TopicPartition) -> RemovedPartition | None:
        """Rename a partition that the cluster does not know to `...-stray`, as Kafka does; nothing is deleted."""
        return self._rename_for_removal(topic_partition, STRAY_SUFFIX)

    def _rename_for_removal(self, topic_partition: TopicPartition, suffix: str) -> RemovedPartition | None:
        try:
            high_watermark = self.high_watermark(topic_partition)
        except OSError:
            high_watermark = 0  # the rename below shows whether the directory is usable
        log = self.remove_open_log(topic_partition)
        if log is not None:
            log.close(clean=False)
        self.offline.pop(topic_partition, None)
        self.offsets.forget(topic_partition)
        self._first_segments.pop(topic_partition, None)
        return self.rename_for_removal(self.partition_path(topic_partition), topic_partition, suffix, high_watermark)

    def rename_for_removal(
        self,
        source: str,
        topic_partition: TopicPartition,
        suffix: str,
        high_watermark: int = 0,
        unique: str | None = None,
    ) -> RemovedPartition | None:
        """As `delete_partition`, for a directory with another name. The caller owns its open log. `unique`: the unique
        part of the new name; None for a fresh id."""
        target = f"{self.path}/{removed_name(topic_partition, suffix, unique or self.draws.name_id().hex)}"
        try:
            self.disk.rename(source, target)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError.of(f"removing {topic_partition}", error) from error
        if suffix == STRAY_SUFFIX:
            self._last_high_watermarks[target] = high_watermark
        return RemovedPartition(target, self.disk, topic_partition, high_watermark)

    def probe(self) -> None:
        """Write a small file, flush it, read it back. For a thread. Raises OSError."""
        path = f"{self.path}/{PROBE_FILE}"
        replace_file(self.disk, path, PROBE_FILE.encode())
        if read_file(self.disk, path) != PROBE_FILE.encode():
            raise OSError(errno.EIO, "a file reads back with different content", path)
        self.disk.unlink(path)

    # -- checkpoints and close ----------------------------------------------------------------------------------

    def has_truncated_log(self) -> bool:
        """Whether a log ends before its recovery point on the disk, because it was truncated."""
        safe = self.offsets.recovery_points
        return any(log.recovery_point < safe.get(where, 0) for where, log in self.open_logs.items())

    def checkpoint_steps(self) -> Iterator[Callable[[], None] | None]:
        """See `LogDirOffsets`."""
        return self.offsets.checkpoint_steps([*self._written.values(), *self.future_logs.values()], self._is_in_use)

    def _is_in_use(self, log: PartitionLog) -> bool:
        return log in (self.open_logs.get(log.topic_partition), self.future_logs.get(log.topic_partition))

    def checkpoint_work(self) -> Callable[[], None]:
        """The work of `checkpoint_steps`, in one step."""
        *_, work = self.checkpoint_steps()
        assert work is not None, "the last step"
        return work

    def give_back(self) -> None:
        """Use it instead of `close`, before `begin`: the directory stays unchanged, except for the epoch of a broker
        that registered meanwhile. Raises OSError."""
        try:
            if self.clean and self.broker_epoch >= 0:
                self._mark_clean(self.broker_epoch)
        finally:
            self._unlock()

    def _unlock(self) -> None:
        if self._lock >= 0:
            self.disk.close(self._lock)
            self._lock = -1

    def _mark_clean(self, broker_epoch: int) -> None:
        mark = {"version": 0, "brokerEpoch": broker_epoch}
        replace_file(self.disk, f"{self.path}/{CLEAN_FILE}", json.dumps(mark).encode())

    def _write_first_segments(self) -> None:
        """Raises OSError."""
        for where, log in (*self.open_logs.items(), *self.future_logs.items()):
            self._first_segments.pop(where, None)
            if log.segments and where in self.open_logs:
                self._first_segments[where] = SegmentsAtStop(log.segments[0].base_offset, len(log.segments))
        if self.broker_epoch < 0:
            return  # no session that the file could name
        write_first_segments(self.disk, self.path, self.broker_epoch, self._first_segments)

    def close(self, clean: bool = True) -> None:
        """Flush and close everything; a clean close leaves the mark. For a thread. Raises StorageError at the end."""
        if not self._has_begun:
            self._close_unchanged(clean)
            return
        failure: StorageError | None = None
        logs = [*self.open_logs.values(), *self.future_logs.values()]
        dirty = [log for log in logs if saving.is_dirty(log)]
        all_complete = not any(log.offline or log.unfinished is not None for log in logs)
        try:
            if clean and len(dirty) >= SYNC_ALL_FROM:
                failure = saving.save_together(self.disk, self.path, dirty)
            for log in logs:
                try:
                    log.close(clean and failure is None)
                except StorageError as error:
                    failure = failure or error
            if clean and failure is None and all_complete:
                self.checkpoint_work()()
                if self.clean or self._all_opened():
                    self._write_first_segments()
                    self._mark_clean(self.broker_epoch)
        except OSError as error:
            raise StorageError.of(f"closing {self.path}", error) from error
        finally:
            self.open_logs.clear()
            self._written.clear()
            self.future_logs.clear()
            self._unlock()
        if failure is not None:
            raise failure

    def _close_unchanged(self, clean: bool) -> None:
        try:
            self.give_back() if clean else self._unlock()
        except OSError as error:
            raise StorageError.of(f"closing {self.path}", error) from error

    def _all_opened(self) -> bool:
        """Whether every partition here was opened, and so checked; the metadata log is checked by its owner."""
        return all(
            found.topic_partition in self.open_logs or found.topic_partition.topic == METADATA_TOPIC
            for found in self.existing()
        ) and all(found.topic_partition in self.future_logs for found in self.existing_futures())


def _check_id(directory: str, found: DirectoryIdentity | None, topic_id: UUID | None) -> None:
    """Raises CorruptLog for a directory of another topic."""
    if found is not None and topic_id is not None and found.topic_id is not None and found.topic_id != topic_id:
        raise CorruptLog(
            f"{directory}/{METADATA_FILE}",
            0,
            f"the directory belongs to topic id {found.topic_id}, not {topic_id}",
            "Stop the node. If directories were exchanged, rename each back; if an older topic of this name "
            "was not deleted completely, move the directory away. Then start the node.",
        )
