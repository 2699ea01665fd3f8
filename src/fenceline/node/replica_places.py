"""In which data directory each replica of this node lies, by what is found there and by what the metadata says.

Owns where a new replica goes, what a start finds, and which places the controller has to be told. Never opens a log.

A replica that has files lies where they are. One without goes where the controller's record says, else into the
directory with the fewest partitions. Never into another directory while it may have files in one that is offline, and
never as a member of the in-sync set whose files are gone, nor as an eligible or the last known leader: an empty replica
could be elected then (KIP-858 would).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from fenceline.errors import OperatorError
from fenceline.ids import METADATA_TOPIC, TopicPartition, encode_uuid
from fenceline.log.agreement import agreed_end
from fenceline.log.duplicate_logs import longer_log
from fenceline.log.errors import CorruptLog, StorageError, is_transient
from fenceline.log.partition_dir import is_replaced_by
from fenceline.log.set_aside import keep_records
from fenceline.metadata.features import MV_DIRECTORIES
from fenceline.metadata.image import LOST_DIRECTORY, MIGRATING_DIRECTORY, UNASSIGNED_DIRECTORY
from fenceline.node.logs import Logger

if TYPE_CHECKING:
    from fenceline.log.duplicate_logs import LogInspection
    from fenceline.log.log_dir import ExistingPartition, LogDir
    from fenceline.log.log_dirs import LogDirs
    from fenceline.metadata.image import MetadataImage, PartitionImage, TopicImage

log = Logger("replicas")

_MOST_PREFERRED: Final = 10_000
_ADVICE: Final = "Its records stay. Remove the directory when they are not needed."
_ADVICE_KEPT: Final = (
    "Its records are evidence of a loss receipt, and are kept as long as evidence is (fenceline.lost.retention.ms)."
    " See it with: fenceline losses list."
)
_NO_ID: Final = (
    "partition.metadata of its directory has no topic id that can be read, as after a loss of power before its first"
    " flush: it may be of an older topic of this name"
)
_MEND: Final = "Mend the directory, then restart the node. Other directories are served."
_BRING_BACK: Final = (
    "Put that directory back into log.dirs and restart the node. Where it is gone for good, so are the records that no"
    " other replica has: elect another leader (unclean), whom this replica then follows, or delete the topic."
)
_CHOOSE: Final = (
    "This partition is offline, the others are served; nothing was removed. Check both copies with: fenceline verify."
    " Then stop the node, move the one that is not to be used out of log.dirs, and start: what it holds is then lost to"
    " this node. Keep it until another replica is known to have all of it."
)


class OfflinePlace(OperatorError):
    """The replica can not be served here. `is_told`: as its directory has failed, which the operator knows."""

    def __init__(self, message: str, advice: str = _MEND, *, is_told: bool = True) -> None:
        super().__init__(message, advice)
        self.is_told = is_told


class NotNoted(NamedTuple):
    """A directory that is to be set aside, whose records could not be written down."""

    log_dir: LogDir
    reason: str
    """Why it is set aside."""
    lost_from: int
    refusal: str
    passes: bool
    """Whether it may be written down later: the disk had no room."""


class ReplicaPlaces:
    """See the module."""

    def __init__(
        self,
        node_id: int,
        log_dirs: LogDirs,
        image: Callable[[], MetadataImage],
        tell: Callable[[UUID, int, UUID], None],
        now_ms: Callable[[], int],
    ) -> None:
        """`tell` is called, in any thread, with (topic, partition, directory) that the controller has to know.
        `now_ms`: the time that receipts name."""
        self._now_ms = now_ms
        self._node_id = node_id
        self._log_dirs = log_dirs
        self._image = image
        self._tell = tell
        self.moving: dict[TopicPartition, LogDir] = {}
        """Where a replica will lie soon: the controller may know it already."""
        self._preferred: dict[TopicPartition, LogDir] = {}
        """Where a replica is to be made that is not here yet."""
        self.not_noted: dict[TopicPartition, NotNoted] = {}
        """Partitions that are out of service until what a directory holds is written down."""
        self.unresolved: dict[TopicPartition, list[LogDir]] = {}
        """Partitions that lie in several directories, where nothing says which one counts: offline until the operator
        chooses. Here are the directories besides the one that `LogDirs` has for them."""
        self._unfinished: dict[TopicPartition, ExistingPartition] = {}
        """Replicas of which only a copy was found that has not taken the log's place. The log lies in another
        directory, or did; the metadata may name the copy's already."""

    # -- where a replica goes ------------------------------------------------------------------------------------------

    def of(self, topic: TopicImage, index: int) -> LogDir:
        """The directory to open it in. Raises OfflinePlace."""
        topic_partition = TopicPartition(topic.name, index)
        if (waiting := self.not_noted.get(topic_partition)) is not None:
            raise OfflinePlace(
                f"its directory is to be set aside, and what it holds could not be written down: {waiting.refusal}",
                "Make room on the disk: the partition is served then, no restart is needed."
                if waiting.passes
                else _MEND,
                is_told=False,
            )
        if topic_partition in self._log_dirs.missing:
            self._do_without(topic_partition, topic.partitions[index])
        if (copy := self._unfinished_copy(topic, index)) is not None:
            self._do_without_log(topic_partition, topic.partitions[index], copy.path)
        holder = self._log_dirs.holder(topic_partition)
        if holder is None:
            holder = self._new_place(topic_partition, topic.partitions[index])
            self._log_dirs.put(topic_partition, holder)
        elif not self._log_dirs.is_online(holder):
            raise OfflinePlace(f"{holder.path} is offline: {self._log_dirs.offline[holder.path]}")
        elif self._log_dirs.is_single and self._image().metadata_version >= MV_DIRECTORIES:
            recorded = topic.partitions[index].directory_of(self._node_id)
            is_placed = recorded in (holder.directory_id, UNASSIGNED_DIRECTORY)
            if not is_placed and not _has_files(holder, topic_partition):
                self._check_not_needed(topic.partitions[index], recorded)
        return holder

    def _do_without(self, topic_partition: TopicPartition, partition: PartitionImage) -> None:
        """Its directory is gone. Who follows fetches everything again; an empty log must not lead: others would cut
        theirs to it. Raises OfflinePlace."""
        path, end = self._log_dirs.missing[topic_partition]
        if partition.leader == self._node_id:
            raise OfflinePlace(
                f"the directory {path} is missing; at the clean stop it held records up to offset {end - 1}",
                "Stop the node, put the directory back, start. To go on without these records make it anew, empty, or"
                " delete the topic.",
                is_told=False,
            )
        del self._log_dirs.missing[topic_partition]
        log.warning(
            "directory of a partition missing",
            partition=str(topic_partition),
            path=path,
            log_end_offset=end,
            advice="Everything is fetched from the leader again, and the replica is in sync when that is done.",
        )

    def _unfinished_copy(self, topic: TopicImage, index: int) -> ExistingPartition | None:
        copy = self._unfinished.get(TopicPartition(topic.name, index))
        return copy if copy is not None and copy.topic_id == topic.id else None

    def _do_without_log(self, topic_partition: TopicPartition, partition: PartitionImage, copy: str) -> None:
        """Only a copy is here, which lacks records. Who may be elected needs the log itself; who follows fetches
        everything again, once it is certain that the log is gone. Raises OfflinePlace."""
        if offline := self._log_dirs.offline:
            self.lost(topic_partition)  # the metadata names the copy's directory, which is not
            raise OfflinePlace(
                f"its log was on its way to {copy}, and lies in a directory that is offline: {', '.join(offline)}",
                is_told=False,
            )
        if _may_be_elected(self._node_id, partition):
            raise OfflinePlace(
                f"its log was on its way to {copy}, which is not complete, and lay in a directory that is none of"
                " log.dirs",
                _BRING_BACK,
                is_told=False,
            )
        del self._unfinished[topic_partition]
        log.warning(
            "copy of a partition without its log",
            partition=str(topic_partition),
            path=copy,
            advice="Everything is fetched from the leader again, and the replica is in sync when that is done.",
        )

    def _new_place(self, topic_partition: TopicPartition, partition: PartitionImage) -> LogDir:
        """For a replica that has no files in any directory that can be looked into."""
        recorded = partition.directory_of(self._node_id)
        place = self._log_dirs.by_id(recorded) or self._log_dirs.least_loaded()
        if place is None:
            raise OfflinePlace("all log directories are offline")
        preferred = self._take_preferred(topic_partition)
        if place.directory_id == recorded or recorded == UNASSIGNED_DIRECTORY:
            return preferred or place
        if self._log_dirs.offline:
            raise OfflinePlace(f"it may lie in a directory that is offline: {', '.join(self._log_dirs.offline)}")
        self._check_not_needed(partition, recorded)
        return preferred or place

    def _check_not_needed(self, partition: PartitionImage, recorded: UUID | None) -> None:
        """The files of this replica went with the directory `recorded`: it is made anew, empty, unless it could be
        elected so. That can who is in sync, eligible, or the last known leader. Raises OfflinePlace."""
        if recorded is None or recorded == MIGRATING_DIRECTORY:
            return
        if _may_be_elected(self._node_id, partition):
            raise OfflinePlace(
                f"it lay in directory {encode_uuid(recorded)}, which is none of log.dirs", _BRING_BACK, is_told=False
            )

    def prefer(self, topic_partition: TopicPartition, log_dir: LogDir) -> None:
        """When the replica comes to be here it is to be made there, whatever the controller's record says. Until the
        node stops, as with Kafka; the oldest is forgotten for the newest, so that nobody fills the memory."""
        self._preferred.pop(topic_partition, None)
        self._preferred[topic_partition] = log_dir
        if len(self._preferred) > _MOST_PREFERRED:
            del self._preferred[next(iter(self._preferred))]

    def _take_preferred(self, topic_partition: TopicPartition) -> LogDir | None:
        found = self._preferred.pop(topic_partition, None)
        return found if found is not None and self._log_dirs.is_online(found) else None

    # -- what the controller has to know -------------------------------------------------------------------------------

    def see(self, topic: TopicImage, index: int) -> None:
        """Look at what the metadata says of the replica's directory: place what waits for that, correct what is wrong.

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
                return  # it gets its place when it is opened
            holder = self._take_preferred(topic_partition) or holder
            self._log_dirs.put(topic_partition, holder)
        actual = holder.directory_id
        if recorded == actual or actual is None or not self._log_dirs.is_online(holder):
            return
        if (moving := self.moving.get(topic_partition)) is not None and moving.directory_id == recorded:
            return  # told before it is so
        if recorded in (UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY) or self._is_there(topic_partition, holder):
            self._tell(topic.id, index, actual)

    def tell_moving(self, topic_partition: TopicPartition, log_dir: LogDir) -> None:
        """A copy of the replica is complete: the controller shall know the directory before the copy is the replica."""
        topic = self._image().topics_by_name.get(topic_partition.topic)
        if topic is not None and log_dir.directory_id is not None:
            self.moving[topic_partition] = log_dir
            self._tell(topic.id, topic_partition.partition, log_dir.directory_id)

    def take_back(self, topic_partition: TopicPartition) -> None:
        """It stays where it is, whatever has been told; where that has failed, others shall lead."""
        topic = self._image().topics_by_name.get(topic_partition.topic)
        holder = self._log_dirs.holder(topic_partition)
        if topic is None or holder is None:
            return
        if self._is_assigned(topic, topic_partition.partition) and holder.directory_id is not None:
            self._tell(topic.id, topic_partition.partition, holder.directory_id)

    def _is_there(self, topic_partition: TopicPartition, holder: LogDir) -> bool:
        """Where everything lies in one directory, nobody has looked yet whether this has ever been there."""
        try:
            return not self._log_dirs.is_single or holder.has(topic_partition)
        except OSError:
            return False

    def lost(self, topic_partition: TopicPartition) -> None:
        """It is damaged here, its directory is not: another replica shall lead, where there is one. Any thread."""
        image = self._image()
        topic = image.topics_by_name.get(topic_partition.topic)
        if topic is None or topic_partition.partition >= len(topic.partitions):
            return
        partition = topic.partitions[topic_partition.partition]
        if len(partition.replicas) < 2 or self._node_id not in partition.replicas:
            return
        recorded = partition.directory_of(self._node_id)
        if recorded not in (None, LOST_DIRECTORY) and image.metadata_version >= MV_DIRECTORIES:
            self._tell(topic.id, topic_partition.partition, LOST_DIRECTORY)

    # -- start ---------------------------------------------------------------------------------------------------------

    def settle(self, log_dir: LogDir) -> list[TopicPartition]:
        """What lies in a directory; what the cluster does not know is set aside (snapshots.md N41). Blocks.

        Where two directories hold the same partition and nothing says which one counts, that partition alone is
        offline (`unresolved`). Raises OSError.
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
                    advice="Directories were exchanged. Stop the node, give each its name back, start.",
                )
            elif topic is None or (each.topic_id is not None and each.topic_id != topic.id):
                _set_aside(
                    log_dir, topic_partition, "the cluster's metadata does not know a topic with this name and id"
                )
                continue
            elif not self._is_assigned(topic, topic_partition.partition):
                _set_aside(log_dir, topic_partition, "this node has no replica of it any more")
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
        """The directory that keeps it, why the other one does not, and from where on the other one has records that the
        first lacks (None: it has none). The longer log, where a loss of power has kept
        the second half of a move; else the one that the metadata names (`recorded`), where a directory comes back that
        was offline while the replica was moved away and made anew.

        CorruptLog, for the operator: neither counts, as what a damaged log holds cannot be compared, or as the two
        diverge and the metadata names none of them.
        """
        if topic_partition in self.unresolved:
            return one.offline[topic_partition]  # a third one
        surveys = [_survey(each, topic_partition) for each in (one, other)]
        first, second = surveys
        if isinstance(first, CorruptLog) or isinstance(second, CorruptLog):
            return _not_comparable(topic_partition, [(one, first), (other, second)])
        longer = longer_log(first, second)
        if longer is not None:
            kept = one if longer is first else other
            return kept, f"the replica lies in {kept.path}, and has all of it", None
        named = [each for each in (one, other) if each.directory_id is not None and each.directory_id == recorded]
        if not named:
            return CorruptLog(
                one.partition_path(topic_partition),
                0,
                f"{topic_partition} lies in two directories, and each has what the other lacks: {one.path} and"
                f" {other.path}",
                _CHOOSE,
            )
        stays, goes = (first, second) if named[0] is one else (second, first)
        lost_from = max(agreed_end(goes, stays), goes.log_start_offset)
        reason = f"the metadata says that the replica lies in {named[0].path}, and the two logs diverge"
        return named[0], reason, lost_from

    def _set_aside_lost(self, log_dir: LogDir, topic_partition: TopicPartition, reason: str, lost_from: int) -> None:
        """Set aside a directory with records, from `lost_from` on, that the partition loses by that: they have a note,
        which becomes a receipt. Where there is no room for it the partition waits. Raises OSError."""
        path = log_dir.partition_path(topic_partition)
        try:
            high_watermark = log_dir.high_watermark(topic_partition)
            note = keep_records(
                log_dir.disk, path, lost_from, reason, high_watermark=high_watermark, now_ms=self._now_ms()
            )
        except CorruptLog as error:
            self.not_noted[topic_partition] = NotNoted(log_dir, reason, lost_from, error.message, False)
            return
        except OSError as error:
            if not is_transient(error.errno):
                raise
            refusal = error.strerror or str(error)
            self.not_noted[topic_partition] = NotNoted(log_dir, reason, lost_from, refusal, True)
            return
        _set_aside(log_dir, topic_partition, reason, _ADVICE_KEPT if note is not None else _ADVICE)

    def note_again(self, topic_partition: TopicPartition) -> bool:
        """Whether what could not be written down is now. Blocks. Raises OSError where that does not pass."""
        waiting = self.not_noted.pop(topic_partition, None)
        if waiting is not None:
            self._set_aside_lost(waiting.log_dir, topic_partition, waiting.reason, waiting.lost_from)
        return topic_partition not in self.not_noted

    def settle_copies(self, log_dir: LogDir) -> list[ExistingPartition]:
        """Copies of replicas that were on their way to a directory, when `settle` has seen all of them. Blocks.

        A copy took its log's place, but for its name, where the log is on its way to be deleted (`future_log.py`). One
        without a log is not complete (`_unfinished`). Raises OSError.
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
        """Whether this node has a replica of the partition that `found` was copied from, by name and topic id."""
        topic = self._image().topics_by_name.get(found.topic_partition.topic)
        return (
            topic is not None
            and topic.id == found.topic_id
            and self._is_assigned(topic, found.topic_partition.partition)
        )

    def _is_assigned(self, topic: TopicImage, index: int) -> bool:
        return index < len(topic.partitions) and self._node_id in topic.partitions[index].replicas


def _may_be_elected(node_id: int, partition: PartitionImage) -> bool:
    """Also as the last known leader."""
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
    """At least one of the logs of a partition is damaged where it had been safe on the disk."""
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
        f"{topic_partition} lies in two directories, which cannot be compared: {'; '.join(said)}",
        _CHOOSE,
    )


def _set_aside(log_dir: LogDir, topic_partition: TopicPartition, reason: str, advice: str = _ADVICE) -> None:
    try:
        stray = log_dir.set_aside_stray(topic_partition)
    except StorageError as error:
        log.error("stray partition can not be set aside", partition=str(topic_partition), reason=error.message)
        return
    log.warning(
        "stray partition set aside",
        partition=str(topic_partition),
        path=stray.path if stray is not None else None,
        reason=reason,
        advice=advice,
    )


def _has_files(log_dir: LogDir, topic_partition: TopicPartition) -> bool:
    """Whether it has, or can not be looked into: who opens it meets the error and knows what to do with it."""
    try:
        return log_dir.has(topic_partition)
    except OSError:
        return True
