"""Which data directory holds each replica of this node, by the files found and by the metadata.

Owns the directory of a new replica, what a start finds, and which assignments the controller has to learn. Never opens
a log.

A replica that has files stays where they are. One without files goes to the directory in the metadata, otherwise to the
directory with the fewest partitions. It never goes to another directory while it may have files in one that is offline;
nor if it is in the ISR, eligible, or the last known leader and its files are lost: an empty replica could then be
elected (as KIP-858 permits).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from fenceline.errors import OperatorError
from fenceline.ids import METADATA_TOPIC, TopicPartition, encode_uuid
from fenceline.log.core.agreement import agreed_end
from fenceline.log.core.errors import CorruptLog, StorageError, is_transient
from fenceline.log.directories.duplicate_logs import longer_log
from fenceline.log.directories.partition_dir import is_replaced_by
from fenceline.log.directories.set_aside import keep_records
from fenceline.metadata.features import MV_DIRECTORIES
from fenceline.metadata.image import LOST_DIRECTORY, MIGRATING_DIRECTORY, UNASSIGNED_DIRECTORY
from fenceline.node.logs import Logger

if TYPE_CHECKING:
    from fenceline.log.directories.duplicate_logs import LogInspection
    from fenceline.log.directories.log_dir import ExistingPartition, LogDir
    from fenceline.log.directories.log_dirs import LogDirs
    from fenceline.metadata.image import MetadataImage, PartitionImage, TopicImage

log = Logger("replicas")

_MAX_PREFERRED: Final = 10_000
_ADVICE: Final = "Its records are kept. Delete the directory when they are no longer needed."
_ADVICE_KEPT: Final = (
    "Its records are the evidence of a loss receipt, kept for fenceline.lost.retention.ms. List the losses with:"
    " fenceline losses list."
)
_NO_ID: Final = (
    "the partition.metadata file of its directory has no readable topic id, for example after a power failure before"
    " the first flush: it may belong to an older topic of this name"
)
_REPAIR: Final = "Repair the directory, then restart the node. Other directories are served."
_RESTORE: Final = (
    "Put that directory back into log.dirs and restart the node. If it is lost for good, so are the records that no"
    " other replica has: elect another leader uncleanly, which this replica then follows, or delete the topic."
)
_RESOLVE: Final = (
    "This partition is offline, the others are served; nothing was deleted. Check both copies with: fenceline verify."
    " Then stop the node, move the copy that is not to be used out of log.dirs, and start. Its records are then"
    " lost to this node. Keep it until another replica is known to have all of them."
)


class OfflineDirectory(OperatorError):
    """The replica cannot be served here. `is_logged`: the failure of its directory has already been logged."""

    def __init__(self, message: str, advice: str = _REPAIR, *, is_logged: bool = True) -> None:
        super().__init__(message, advice)
        self.is_logged = is_logged


class PendingNote(NamedTuple):
    """A directory that is to be set aside, but whose receipt could not be written."""

    log_dir: LogDir
    reason: str
    """Why it is set aside."""
    lost_from: int
    refusal: str
    passes: bool
    """Whether a retry may succeed: the disk was full."""


class ReplicaDirectories:
    """See the module docstring."""

    def __init__(
        self,
        node_id: int,
        log_dirs: LogDirs,
        image: Callable[[], MetadataImage],
        report: Callable[[UUID, int, UUID], None],
        now_ms: Callable[[], int],
    ) -> None:
        """`report` is called, in any thread, with a (topic, partition, directory) to report to the controller.
        `now_ms`: the time for receipts."""
        self._now_ms = now_ms
        self._node_id = node_id
        self._log_dirs = log_dirs
        self._image = image
        self._report = report
        self._names: frozenset[str] | None = None
        """The names in the only directory, within `listed`."""
        self.moving: dict[TopicPartition, LogDir] = {}
        """Future directories of replicas in a move: the controller may already have them."""
        self._preferred: dict[TopicPartition, LogDir] = {}
        """Requested directories of replicas that are not on this node yet."""
        self.pending_notes: dict[TopicPartition, PendingNote] = {}
        """Partitions that are offline until the receipt of a directory is written."""
        self.unresolved: dict[TopicPartition, list[LogDir]] = {}
        """Partitions that exist in several directories with no way to choose: offline until the operator does. The
        values are the directories other than the one in `LogDirs`."""
        self._unfinished: dict[TopicPartition, ExistingPartition] = {}
        """Replicas of which only an incomplete copy of a move was found. The log is or was in another directory; the
        metadata may already name the copy's."""

    # -- choosing a directory ------------------------------------------------------------------------------------------

    def of(self, topic: TopicImage, index: int) -> LogDir:
        """The directory to open it in. Raises OfflineDirectory."""
        if self.is_as_recorded(topic.partitions[index]):
            return self._log_dirs.opened[0]
        topic_partition = TopicPartition(topic.name, index)
        if (waiting := self.pending_notes.get(topic_partition)) is not None:
            raise OfflineDirectory(
                f"its directory is to be set aside, but a receipt could not be written: {waiting.refusal}",
                "Free disk space: the partition is then served without a restart." if waiting.passes else _REPAIR,
                is_logged=False,
            )
        if topic_partition in self._log_dirs.missing:
            self._recreate(topic_partition, topic.partitions[index])
        if (copy := self._unfinished_copy(topic, index)) is not None:
            self._restart_from_leader(topic_partition, topic.partitions[index], copy.path)
        holder = self._log_dirs.holder(topic_partition)
        if holder is None:
            holder = self._new_directory(topic_partition, topic.partitions[index])
            self._log_dirs.put(topic_partition, holder)
        elif not self._log_dirs.is_online(holder):
            raise OfflineDirectory(f"{holder.path} is offline: {self._log_dirs.offline[holder.path]}")
        elif self._log_dirs.is_single and self._image().metadata_version >= MV_DIRECTORIES:
            recorded = topic.partitions[index].directory_of(self._node_id)
            is_assigned_here = recorded in (holder.directory_id, UNASSIGNED_DIRECTORY)
            if not is_assigned_here and not _has_files(holder, topic_partition):
                self._check_not_needed(topic.partitions[index], recorded)
        return holder

    def _recreate(self, topic_partition: TopicPartition, partition: PartitionImage) -> None:
        """Its directory is missing. A follower fetches everything again; an empty log must not lead, because others
        would truncate theirs to it. Raises OfflineDirectory."""
        path, end = self._log_dirs.missing[topic_partition]
        if partition.leader == self._node_id:
            raise OfflineDirectory(
                f"the directory {path} is missing; at shutdown it had records up to offset {end - 1}",
                "Stop the node, restore the directory, start the node. To continue without these records, create the"
                " directory empty, or delete the topic.",
                is_logged=False,
            )
        del self._log_dirs.missing[topic_partition]
        log.warning(
            "partition directory missing",
            partition=str(topic_partition),
            path=path,
            log_end_offset=end,
            advice="The replica fetches all records from the leader again and then rejoins the ISR.",
        )

    def _unfinished_copy(self, topic: TopicImage, index: int) -> ExistingPartition | None:
        copy = self._unfinished.get(TopicPartition(topic.name, index))
        return copy if copy is not None and copy.topic_id == topic.id else None

    def _restart_from_leader(self, topic_partition: TopicPartition, partition: PartitionImage, copy: str) -> None:
        """Only an incomplete copy exists. A replica that may be elected needs the log itself; a follower fetches
        everything again, once it is certain that the log is lost. Raises OfflineDirectory."""
        if offline := self._log_dirs.offline:
            self.report_lost(topic_partition)  # the metadata names the copy's directory, which is online
            raise OfflineDirectory(
                f"its log was being moved to {copy} and is in a directory that is offline: {', '.join(offline)}",
                is_logged=False,
            )
        if _may_be_elected(self._node_id, partition):
            raise OfflineDirectory(
                f"its log was being moved to {copy}, whose copy is incomplete, and was in a directory that is not in"
                " log.dirs",
                _RESTORE,
                is_logged=False,
            )
        del self._unfinished[topic_partition]
        log.warning(
            "incomplete copy of a partition found without its log",
            partition=str(topic_partition),
            path=copy,
            advice="The replica fetches all records from the leader again and then rejoins the ISR.",
        )

    def _new_directory(self, topic_partition: TopicPartition, partition: PartitionImage) -> LogDir:
        """The directory of a replica that has no files in any readable directory."""
        recorded = partition.directory_of(self._node_id)
        place = self._log_dirs.by_id(recorded) or self._log_dirs.least_loaded()
        if place is None:
            raise OfflineDirectory("all log directories are offline")
        preferred = self._pop_preferred(topic_partition)
        if place.directory_id == recorded or recorded == UNASSIGNED_DIRECTORY:
            return preferred or place
        if self._log_dirs.offline:
            raise OfflineDirectory(f"it may be in a directory that is offline: {', '.join(self._log_dirs.offline)}")
        self._check_not_needed(partition, recorded)
        return preferred or place

    def _check_not_needed(self, partition: PartitionImage, recorded: UUID | None) -> None:
        """The files of this replica were in the missing directory `recorded`: it is created again, empty, unless it
        could be elected: a member of the ISR or ELR, or the last known leader. Raises OfflineDirectory."""
        if recorded is None or recorded == MIGRATING_DIRECTORY:
            return
        if _may_be_elected(self._node_id, partition):
            raise OfflineDirectory(
                f"it was in directory {encode_uuid(recorded)}, which is not in log.dirs", _RESTORE, is_logged=False
            )

    def prefer(self, topic_partition: TopicPartition, log_dir: LogDir) -> None:
        """Create the replica in this directory when it is assigned to this node, whatever the metadata names. Kept
        until the node stops, as in Kafka; bounded in number: the oldest entry is dropped for a new one."""
        self._preferred.pop(topic_partition, None)
        self._preferred[topic_partition] = log_dir
        if len(self._preferred) > _MAX_PREFERRED:
            del self._preferred[next(iter(self._preferred))]

    def _pop_preferred(self, topic_partition: TopicPartition) -> LogDir | None:
        found = self._preferred.pop(topic_partition, None)
        return found if found is not None and self._log_dirs.is_online(found) else None

    # -- directory assignments for the controller ----------------------------------------------------------------------

    def check_assignment(self, topic: TopicImage, index: int) -> None:
        """Compare the metadata's directory of a replica with the actual one: choose a pending one, report a wrong one.

        Not for a replica that is offline.
        """
        if (topic.name, index) in self.unresolved or self._unfinished_copy(topic, index) is not None:
            return
        partition = topic.partitions[index]
        recorded = partition.directory_of(self._node_id)
        if recorded is None or self._image().metadata_version < MV_DIRECTORIES:
            return
        topic_partition = TopicPartition(topic.name, index)
        holder = self._log_dirs.holder(topic_partition)
        if holder is None:
            holder = self._log_dirs.by_id(recorded)
            if holder is None and recorded == UNASSIGNED_DIRECTORY:
                holder = self._log_dirs.least_loaded()
            if holder is None:
                return  # chosen when it is opened
            holder = self._pop_preferred(topic_partition) or holder
            self._log_dirs.put(topic_partition, holder)
        actual = holder.directory_id
        if recorded == actual or actual is None or not self._log_dirs.is_online(holder):
            return
        if (moving := self.moving.get(topic_partition)) is not None and moving.directory_id == recorded:
            return  # reported before the move is complete
        if recorded in (UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY) or self._is_there(topic_partition, holder):
            self._report(topic.id, index, actual)

    def is_as_recorded(self, partition: PartitionImage) -> bool:
        """Whether `of` and `check_assignment` would find nothing to do for any partition in this state: this node has
        one directory, nothing in it is unclear, and the metadata names it."""
        return (
            self._log_dirs.is_single
            and not (self.unresolved or self._unfinished or self.moving or self._preferred or self.pending_notes)
            and not (self._log_dirs.missing or self._log_dirs.offline)
            and partition.directory_of(self._node_id) == self._log_dirs.opened[0].directory_id
        )

    @contextmanager
    def listed(self) -> Iterator[None]:
        """Within this block, in which no file is created or removed, `has_no_files` costs no system call: the only
        directory is read once."""
        try:
            if self._log_dirs.is_single:
                directory = self._log_dirs.opened[0]
                self._names = frozenset(directory.disk.listdir(directory.path))
        except OSError:
            pass  # `has_no_files` finds out
        try:
            yield
        finally:
            self._names = None

    def has_no_files(self, topic_partition: TopicPartition) -> bool:
        """Whether a replica has no files on this node: it has no records."""
        holder = self._log_dirs.holder(topic_partition)
        if self._names is not None:
            return f"{topic_partition.topic}-{topic_partition.partition}" not in self._names
        try:
            return holder is None or not holder.has(topic_partition)
        except OSError:
            return False

    def report_move(self, topic_partition: TopicPartition, log_dir: LogDir) -> None:
        """A copy of the replica is complete: report its directory to the controller before it replaces the log."""
        topic = self._image().topics_by_name.get(topic_partition.topic)
        if topic is not None and log_dir.directory_id is not None:
            self.moving[topic_partition] = log_dir
            self._report(topic.id, topic_partition.partition, log_dir.directory_id)

    def report_actual(self, topic_partition: TopicPartition) -> None:
        """The move was cancelled: report the actual directory again; if that one has failed, others shall lead."""
        topic = self._image().topics_by_name.get(topic_partition.topic)
        holder = self._log_dirs.holder(topic_partition)
        if topic is None or holder is None:
            return
        if self._is_assigned(topic, topic_partition.partition) and holder.directory_id is not None:
            self._report(topic.id, topic_partition.partition, holder.directory_id)

    def _is_there(self, topic_partition: TopicPartition, holder: LogDir) -> bool:
        """With a single directory, check whether the replica has files there; otherwise a start has checked it."""
        try:
            return not self._log_dirs.is_single or holder.has(topic_partition)
        except OSError:
            return False

    def report_lost(self, topic_partition: TopicPartition) -> None:
        """The replica is damaged, its directory is not: another replica shall lead, if there is one. Any thread."""
        image = self._image()
        topic = image.topics_by_name.get(topic_partition.topic)
        if topic is None or topic_partition.partition >= len(topic.partitions):
            return
        partition = topic.partitions[topic_partition.partition]
        if len(partition.replicas) < 2 or self._node_id not in partition.replicas:
            return
        recorded = partition.directory_of(self._node_id)
        if recorded not in (None, LOST_DIRECTORY) and image.metadata_version >= MV_DIRECTORIES:
            self._report(topic.id, topic_partition.partition, LOST_DIRECTORY)

    # -- start ---------------------------------------------------------------------------------------------------------

    def scan(self, log_dir: LogDir) -> list[TopicPartition]:
        """The partitions in a directory; partitions unknown to the metadata are set aside (snapshots.md N41). Blocks.

        A partition that exists in two directories with no way to choose is taken offline (`unresolved`). Raises
        OSError.
        """
        found = []
        for each in list(log_dir.existing()):
            topic_partition = each.topic_partition
            if topic_partition.topic == METADATA_TOPIC:
                continue
            topic = self._image().topics_by_name.get(topic_partition.topic)
            rightful = self._image().topics_by_id.get(each.topic_id) if each.topic_id is not None else None
            if topic is not None and rightful is not None and rightful is not topic:
                log.error(
                    "partition directory of another topic",
                    partition=str(topic_partition),
                    path=each.path,
                    topic=rightful.name,
                    advice="Partition directories were swapped. Stop the node, restore their names, start the node.",
                )
            elif topic is None or (each.topic_id is not None and each.topic_id != topic.id):
                _set_aside(
                    log_dir, topic_partition, "the cluster's metadata does not know a topic with this name and id"
                )
                continue
            elif not self._is_assigned(topic, topic_partition.partition):
                _set_aside(log_dir, topic_partition, "this node no longer has a replica of it")
                continue
            elif each.topic_id is None and log_dir.disk.listdir(each.path):
                self._set_aside_lost(log_dir, topic_partition, _NO_ID, 0)
                continue
            other = self._log_dirs.holder(topic_partition)
            if other is not None and other is not log_dir:
                recorded = topic.partitions[topic_partition.partition].directory_of(self._node_id)
                chosen = self._of_two(topic_partition, other, log_dir, recorded)
                if isinstance(chosen, CorruptLog):
                    other.offline[topic_partition] = chosen
                    self.unresolved.setdefault(topic_partition, []).append(log_dir)
                    continue
                kept, reason, lost_from = chosen
                dropped = log_dir if kept is other else other
                if lost_from is None:
                    _set_aside(dropped, topic_partition, reason)
                else:
                    self._set_aside_lost(dropped, topic_partition, reason, lost_from)
                if dropped is log_dir:
                    continue
            self._log_dirs.put(topic_partition, log_dir)
            found.append(topic_partition)
        return found

    def _of_two(
        self, topic_partition: TopicPartition, one: LogDir, other: LogDir, recorded: UUID | None
    ) -> tuple[LogDir, str, int | None] | CorruptLog:
        """Choose between two directories: the one to keep, the reason, and the offset from which on the other one has
        records that the first lacks (None: it has none). The longer log is kept, as after a power failure in the second
        half of a move; otherwise the one that the metadata names (`recorded`), as when a directory comes back that was
        offline while its replica was created again elsewhere.

        CorruptLog, for the operator: no choice is possible, because a damaged log cannot be compared, or because the
        logs diverge and the metadata names neither.
        """
        if topic_partition in self.unresolved:
            return one.offline[topic_partition]  # a third directory
        surveys = [_survey(each, topic_partition) for each in (one, other)]
        first, second = surveys
        if isinstance(first, CorruptLog) or isinstance(second, CorruptLog):
            return _not_comparable(topic_partition, [(one, first), (other, second)])
        longer = longer_log(first, second)
        if longer is not None:
            kept = one if longer is first else other
            return kept, f"the replica in {kept.path} has all of its records", None
        named = [each for each in (one, other) if each.directory_id is not None and each.directory_id == recorded]
        if not named:
            return CorruptLog(
                one.partition_path(topic_partition),
                0,
                f"{topic_partition} is in two directories, and each has records that the other lacks: {one.path} and"
                f" {other.path}",
                _RESOLVE,
            )
        stays, goes = (first, second) if named[0] is one else (second, first)
        lost_from = max(agreed_end(goes, stays), goes.log_start_offset)
        reason = f"the two logs diverge, and the metadata names {named[0].path}"
        return named[0], reason, lost_from

    def _set_aside_lost(self, log_dir: LogDir, topic_partition: TopicPartition, reason: str, lost_from: int) -> None:
        """Set aside a directory whose records from `lost_from` on are lost to the partition, with a note that becomes a
        receipt. If there is no room for it, the partition waits. Raises OSError."""
        path = log_dir.partition_path(topic_partition)
        try:
            high_watermark = log_dir.high_watermark(topic_partition)
            note = keep_records(
                log_dir.disk, path, lost_from, reason, high_watermark=high_watermark, now_ms=self._now_ms()
            )
        except CorruptLog as error:
            self.pending_notes[topic_partition] = PendingNote(log_dir, reason, lost_from, error.message, False)
            return
        except OSError as error:
            if not is_transient(error.errno):
                raise
            refusal = error.strerror or str(error)
            self.pending_notes[topic_partition] = PendingNote(log_dir, reason, lost_from, refusal, True)
            return
        _set_aside(log_dir, topic_partition, reason, _ADVICE_KEPT if note is not None else _ADVICE)

    def retry_note(self, topic_partition: TopicPartition) -> bool:
        """Retry to write a pending note; whether it succeeded. Blocks. Raises OSError if a retry cannot help."""
        waiting = self.pending_notes.pop(topic_partition, None)
        if waiting is not None:
            self._set_aside_lost(waiting.log_dir, topic_partition, waiting.reason, waiting.lost_from)
        return topic_partition not in self.pending_notes

    def resolve_copies(self, log_dir: LogDir) -> list[ExistingPartition]:
        """Resolve interrupted moves between directories, after `scan` of all directories. Returns the copies. Blocks.

        A copy that has replaced its log, which is marked for deletion (`future_log.py`), only needs its name. A copy
        without a log is incomplete (`_unfinished`). Raises OSError.
        """
        copies = []
        for copy in list(log_dir.existing_futures()):
            where = copy.topic_partition
            holder = self._log_dirs.holder(where)
            if holder is not None and holder.has(where):
                if holder is not log_dir:
                    self.moving[where] = log_dir
                copies.append(copy)
            elif self.has_replica_of(copy) and self._has_taken_over(copy):
                log_dir.disk.rename(copy.path, log_dir.partition_path(where))
                log_dir.disk.fsync_dir(log_dir.path)
                self._log_dirs.put(where, log_dir)
                self._unfinished.pop(where, None)
                log.warning("move between directories completed", partition=str(where), path=log_dir.path)
            else:
                if self.has_replica_of(copy):
                    self._unfinished[where] = copy
                copies.append(copy)
        return copies

    def _has_taken_over(self, copy: ExistingPartition) -> bool:
        """Raises OSError."""
        name = copy.path.rpartition("/")[2]
        return any(
            is_replaced_by(each, name) for log_dir in self._log_dirs for each in log_dir.disk.listdir(log_dir.path)
        )

    def has_replica_of(self, found: ExistingPartition) -> bool:
        """Whether this node has a replica of the copied partition, by name and topic id."""
        topic = self._image().topics_by_name.get(found.topic_partition.topic)
        return (
            topic is not None
            and topic.id == found.topic_id
            and self._is_assigned(topic, found.topic_partition.partition)
        )

    def _is_assigned(self, topic: TopicImage, index: int) -> bool:
        return index < len(topic.partitions) and self._node_id in topic.partitions[index].replicas


def _may_be_elected(node_id: int, partition: PartitionImage) -> bool:
    """Whether it may be elected, also as the last known leader."""
    return node_id in (*partition.isr, *partition.elr, *partition.last_known_elr)


def _survey(log_dir: LogDir, topic_partition: TopicPartition) -> LogInspection | CorruptLog:
    """Raises OSError."""
    try:
        return log_dir.inspect_log(topic_partition)
    except CorruptLog as error:
        return error


def _not_comparable(
    topic_partition: TopicPartition, surveys: Sequence[tuple[LogDir, LogInspection | CorruptLog]]
) -> CorruptLog:
    """The error for two logs of a partition of which at least one is damaged below its recovery point."""
    found = [
        (log_dir.partition_path(topic_partition), result)
        for log_dir, result in sorted(surveys, key=lambda each: not isinstance(each[1], CorruptLog))
    ]
    said = [
        f"{path} has offsets {result.log_start_offset} to {result.log_end_offset - 1}, undamaged"
        if not isinstance(result, CorruptLog)
        else f"{result.path} is damaged at byte {result.position}: {result.reason}"
        for path, result in found
    ]
    return CorruptLog(
        found[0][0],
        0,
        f"{topic_partition} is in two directories that cannot be compared: {'; '.join(said)}",
        _RESOLVE,
    )


def _set_aside(log_dir: LogDir, topic_partition: TopicPartition, reason: str, advice: str = _ADVICE) -> None:
    try:
        stray = log_dir.set_aside_stray(topic_partition)
    except StorageError as error:
        log.error("setting aside a stray partition failed", partition=str(topic_partition), reason=error.message)
        return
    log.warning(
        "stray partition set aside",
        partition=str(topic_partition),
        path=stray.path if stray is not None else None,
        reason=reason,
        advice=advice,
    )


def _has_files(log_dir: LogDir, topic_partition: TopicPartition) -> bool:
    """Whether it has files, or cannot be read: opening the log then reports the error."""
    try:
        return log_dir.has(topic_partition)
    except OSError:
        return True
