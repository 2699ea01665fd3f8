"""The checkpointed offsets of a log directory: recovery points, log starts, high watermarks and compaction checkpoints
(`formats.md F2`), and which partition directories they describe.

Owns the four checkpoints and the one of incarnations, both as they are on the disk and as they will be written next,
and the record of segment files.
Decides nothing else, and reads nothing of a log except these offsets.

Kafka keys the four files by the partition's name. A name can return: a topic is deleted and created again, a replica
moves away and back, a copy replaces the log. So every directory that Fenceline creates has an incarnation, an id of its
own in `partition.metadata`, and `fenceline-incarnations` names the directory that a partition's entries describe. An
entry is valid for that directory only (`applies_to`). The order of the writes keeps this true after a crash between any
two of them:

1. the entry of a directory that was removed or replaced is deleted from `fenceline-incarnations`;
2. the four checkpoints that have changed are written;
3. `fenceline-incarnations` is written with the directories that the four now describe.

Kafka ignores the file and the line. After its clean shutdown its entries are valid: it has written all of them from
open logs. After any other stop they are valid only for directories that `fenceline-incarnations` names.

`fenceline-first-segments` has the first segment and the number of segments of each log at the last clean shutdown: this
node did not delete files that have been missing since. Kafka's log-start checkpoint omits a start that equals the first
segment's base offset. The file is valid for one clean shutdown, identified by its broker epoch: after Apache Kafka has
used the directory, or after a crash, retention may have moved the starts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from fenceline.ids import TopicPartition
from fenceline.log.core.checkpoints import (
    BadCheckpoint,
    DirectoryIdentity,
    read_incarnations,
    read_offsets,
    write_incarnations,
    write_offsets,
)
from fenceline.log.core.disk import Disk, read_file, replace_file
from fenceline.log.core.errors import StorageError
from fenceline.log.partition.partition_log import PartitionLog

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
CLEANED: Final = "cleaner-offset-checkpoint"
INCARNATIONS: Final = "fenceline-incarnations"
FIRST_SEGMENTS: Final = "fenceline-first-segments"


class KnownOffsets(NamedTuple):
    """The checkpointed offsets of one directory; `describes_directory`: they do describe this one."""

    recovery_point: int
    log_start_offset: int
    high_watermark: int
    describes_directory: bool


UNKNOWN: Final = KnownOffsets(0, 0, 0, False)
"""The log is checked from its start, begins where its files do, and nothing is known to be committed."""


class LogDirOffsets:
    """Offsets by partition; 0 for a partition without an entry."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self.recovery_points: dict[TopicPartition, int] = {}
        self.log_starts: dict[TopicPartition, int] = {}
        self.high_watermarks: dict[TopicPartition, int] = {}
        self.cleaned: dict[TopicPartition, int] = {}
        """The offset from which a log has not been compacted."""
        self.incarnations: dict[TopicPartition, str] = {}
        """The directory that these entries describe (`DirectoryIdentity.text`)."""
        self.is_clean = False
        """Whether a clean shutdown wrote the files: then they describe the existing directories."""
        self.rejected: list[str] = []
        """Why some entries were skipped."""
        self._written: dict[str, dict[TopicPartition, int]] = {}
        self._written_incarnations: dict[TopicPartition, str] = {}

    def _all(self) -> tuple[tuple[str, dict[TopicPartition, int]], ...]:
        # High watermarks before log starts: a log start above its high watermark is invalid (`of`).
        return (
            (RECOVERY_POINTS, self.recovery_points),
            (HIGH_WATERMARKS, self.high_watermarks),
            (LOG_STARTS, self.log_starts),
            (CLEANED, self.cleaned),
        )

    def read(self) -> dict[str, str]:
        """Read the files; returns the reason for each file that could not be read. Raises OSError.

        Without recovery points every log is checked again; without the others the offsets are derived from the log.
        """
        damaged = {}
        for name, offsets in self._all():
            try:
                offsets.update(read_offsets(self._disk, f"{self._path}/{name}", self.rejected))
            except (BadCheckpoint, UnicodeDecodeError) as error:
                damaged[name] = str(error)
            self._written[name] = dict(offsets)
        try:
            self.incarnations = read_incarnations(self._disk, f"{self._path}/{INCARNATIONS}") or {}
        except (BadCheckpoint, UnicodeDecodeError) as error:
            damaged[INCARNATIONS] = str(error)
        self._written_incarnations = dict(self.incarnations)
        return damaged

    @property
    def partitions(self) -> set[TopicPartition]:
        """Partitions with an entry in any checkpoint."""
        return {where for _, offsets in self._all() for where in offsets} | set(self.incarnations)

    # -- whose they are ------------------------------------------------------------------------------------------------

    def applies_to(self, topic_partition: TopicPartition, directory: DirectoryIdentity) -> bool:
        """Whether the entries of a partition describe this directory: the rule of this module."""
        named = self.incarnations.get(topic_partition)
        if named == directory.text != "":
            return True
        # Kafka names no directory; its clean shutdown wrote all entries. A directory without an id was restored by
        # hand.
        is_kafkas = self.is_clean and directory.topic_id is not None and topic_partition in self.recovery_points
        return is_kafkas and (named is None or directory.incarnation is None)

    def of(self, topic_partition: TopicPartition, directory: DirectoryIdentity) -> KnownOffsets:
        """The known offsets of the log in this directory."""
        if not self.applies_to(topic_partition, directory):
            return UNKNOWN
        high_watermark = self.high_watermarks.get(topic_partition)
        log_start = self.log_starts.get(topic_partition, 0)
        if high_watermark is not None and log_start > high_watermark:
            log_start = 0  # only committed records are deleted: the line is damaged, or of an emptied log
        return KnownOffsets(self.recovery_points.get(topic_partition, 0), log_start, high_watermark or 0, True)

    def claim(self, topic_partition: TopicPartition, directory: DirectoryIdentity | None) -> KnownOffsets:
        """As `of`, for the directory in use from now on; None: it does not exist yet. Entries of another one are
        removed."""
        known = self.of(topic_partition, directory) if directory is not None else UNKNOWN
        if not known.describes_directory:
            self.forget(topic_partition)
        elif directory is not None:
            self.incarnations.pop(topic_partition, None)
            if directory.text and topic_partition in self.recovery_points:
                self.incarnations[topic_partition] = directory.text
        return known

    def safe_recovery_point(self, topic_partition: TopicPartition) -> int:
        """The one on the disk; 0 if there is no valid one."""
        named = self.incarnations.get(topic_partition)
        if named is None or self._written_incarnations.get(topic_partition) != named:
            return 0
        return self._written.get(RECOVERY_POINTS, {}).get(topic_partition, 0)

    def forget(self, topic_partition: TopicPartition) -> None:
        """Its directory was deleted or renamed."""
        self.incarnations.pop(topic_partition, None)
        for _, offsets in self._all():
            offsets.pop(topic_partition, None)

    # -- writing -------------------------------------------------------------------------------------------------------

    def note(self, topic_partition: TopicPartition, log: PartitionLog) -> None:
        """Record the current offsets of a log. A log without a directory has none that outlive the process."""
        if not log.is_written:
            return
        if self.cleaned.get(topic_partition, 0) > log.log_end_offset:
            self.cleaned[topic_partition] = log.log_end_offset  # it was truncated: new records are not compacted
        if topic_partition not in self.incarnations:
            self.incarnations[topic_partition] = log.identity.text  # the same until `claim` or `forget`
        self.recovery_points[topic_partition] = recovery_point_to_write(log)
        self.high_watermarks[topic_partition] = log.high_watermark
        if not log.segments or log.log_start_offset > log.segments[0].base_offset:
            self.log_starts[topic_partition] = log.log_start_offset
        else:
            self.log_starts.pop(topic_partition, None)

    def checkpoint_steps(
        self, logs: Iterable[PartitionLog], is_in_use: Callable[[PartitionLog], bool]
    ) -> Iterator[Callable[[], None] | None]:
        """Looks at one log in each step, unless it is not in use any more. The last step is work for a thread that
        writes the checkpoints that have changed; it raises StorageError."""
        lowered: list[tuple[PartitionLog, int]] = []
        for log in logs:
            yield None
            if not log.is_written or not is_in_use(log):
                continue
            self.note(log.topic_partition, log)
            recovery_point = self.recovery_points[log.topic_partition]
            if recovery_point < log.durable_recovery_point:
                lowered.append((log, recovery_point))
            else:
                log.durable_recovery_point = recovery_point
        yield self._writing_work(lowered)

    def _writing_work(self, lowered: Sequence[tuple[PartitionLog, int]]) -> Callable[[], None]:
        """`lowered`: logs with a recovery point below the durable one, which it then becomes."""
        due = {name: dict(offsets) for name, offsets in self._all() if offsets != self._written.get(name)}
        before = self._written_incarnations
        incarnations = dict(self.incarnations) if self.incarnations != before else before

        def write() -> None:
            kept = {where: named for where, named in before.items() if incarnations.get(where) == named}
            if len(kept) < len(before):
                self._write_incarnations(kept)
            for name, offsets in due.items():
                self._written.pop(name, None)  # until it is written, the content of the file is unknown
                with self._writing(name) as path:
                    write_offsets(self._disk, path, offsets)
                self._written[name] = offsets
            if incarnations != kept:
                self._write_incarnations(incarnations)
            for log, recovery_point in lowered:
                log.durable_recovery_point = recovery_point

        return write

    def _write_incarnations(self, incarnations: Mapping[TopicPartition, str]) -> None:
        with self._writing(INCARNATIONS) as path:
            write_incarnations(self._disk, path, incarnations)
        self._written_incarnations = dict(incarnations)

    @contextmanager
    def _writing(self, name: str) -> Iterator[str]:
        path = f"{self._path}/{name}"
        try:
            yield path
        except OSError as error:
            raise StorageError.of(f"writing {path}", error) from error


def recovery_point_to_write(log: PartitionLog) -> int:
    """The recovery point that may count as durable. A log without records has none: its first batch may begin below its
    end offset, as the leader's log may start inside a batch (`follower_batches.validate_fetched`)."""
    return log.recovery_point if log.size_bytes else 0


# -- segment files at a clean shutdown ---------------------------------------------------------------------------------


class SegmentsAtStop(NamedTuple):
    """The segment files of one log: the first base offset and their number (None: not recorded)."""

    first_base: int
    files: int | None


def read_first_segments(disk: Disk, path: str, broker_epoch: int) -> dict[TopicPartition, SegmentsAtStop]:
    """Of the shutdown with this broker epoch in its clean mark; empty if that is unknown. Raises OSError."""
    content = read_file(disk, f"{path}/{FIRST_SEGMENTS}")
    if content is None or broker_epoch < 0:
        return {}
    try:
        fields = json.loads(content)
        if int(fields["brokerEpoch"]) != broker_epoch:
            return {}
        return {
            TopicPartition(str(topic), int(index)): SegmentsAtStop(int(base), int(files[0]) if files else None)
            for topic, index, base, *files in fields["firstSegments"]
        }
    except (ValueError, KeyError, TypeError):
        return {}


def write_first_segments(
    disk: Disk, path: str, broker_epoch: int, segments: Mapping[TopicPartition, SegmentsAtStop]
) -> None:
    """Durable on return; call it before the clean mark is written. Raises OSError."""
    rows = [
        [topic, index, base] if files is None else [topic, index, base, files]
        for (topic, index), (base, files) in sorted(segments.items())
    ]
    fields = {"version": 0, "brokerEpoch": broker_epoch, "firstSegments": rows}
    replace_file(disk, f"{path}/{FIRST_SEGMENTS}", json.dumps(fields, separators=(",", ":")).encode())
