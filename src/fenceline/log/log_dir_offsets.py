"""What a log directory remembers of its logs: recovery points, log starts, high watermarks, and up to where they were
compacted (`formats.md F2`).

Owns the four checkpoints, as they are on the disk and as they ought to be. Decides nothing, and looks into no log but
for these offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from fenceline.log.checkpoints import BadCheckpoint, read_offsets, write_offsets
from fenceline.log.disk import Disk
from fenceline.log.errors import StorageError

if TYPE_CHECKING:
    from fenceline.ids import TopicPartition
    from fenceline.log.partition_log import PartitionLog

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
CLEANED: Final = "cleaner-offset-checkpoint"


class LogDirOffsets:
    """Offsets by partition; what is in none of them is 0."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self.recovery_points: dict[TopicPartition, int] = {}
        self.log_starts: dict[TopicPartition, int] = {}
        self.high_watermarks: dict[TopicPartition, int] = {}
        self.cleaned: dict[TopicPartition, int] = {}
        """From where on a log has not been compacted."""
        self._written: dict[str, dict[TopicPartition, int]] = {}

    def _all(self) -> tuple[tuple[str, dict[TopicPartition, int]], ...]:
        return (
            (RECOVERY_POINTS, self.recovery_points),
            (LOG_STARTS, self.log_starts),
            (HIGH_WATERMARKS, self.high_watermarks),
            (CLEANED, self.cleaned),
        )

    def read(self) -> dict[str, str]:
        """Take over what is there; by name, why a file could not be read. Raises OSError.

        Without recovery points everything is checked again, without the others they are found from the log.
        """
        damaged = {}
        for name, offsets in self._all():
            try:
                offsets.update(read_offsets(self._disk, f"{self._path}/{name}"))
            except (BadCheckpoint, UnicodeDecodeError) as error:
                damaged[name] = str(error)
            self._written[name] = dict(offsets)
        return damaged

    def safe_recovery_point(self, topic_partition: TopicPartition) -> int:
        """The one on the disk; 0 when there is none."""
        return self._written.get(RECOVERY_POINTS, {}).get(topic_partition, 0)

    def forget(self, topic_partition: TopicPartition) -> None:
        for _, offsets in self._all():
            offsets.pop(topic_partition, None)

    def note(self, topic_partition: TopicPartition, log: PartitionLog) -> None:
        """Where a log stands now."""
        if not log.is_written:
            if log.log_start_offset:
                self.log_starts[topic_partition] = log.log_start_offset
            return
        if self.cleaned.get(topic_partition, 0) > log.log_end_offset:
            self.cleaned[topic_partition] = log.log_end_offset  # it was cut: what comes now is not compacted
        self.recovery_points[topic_partition] = log.recovery_point
        self.high_watermarks[topic_partition] = log.high_watermark
        if not log.segments or log.log_start_offset > log.segments[0].base_offset:
            self.log_starts[topic_partition] = log.log_start_offset
        else:
            self.log_starts.pop(topic_partition, None)

    def checkpoint_work(self, logs: Iterable[tuple[TopicPartition, PartitionLog]]) -> Callable[[], None]:
        """Work for a thread that writes the checkpoints that have changed. It raises StorageError."""
        for topic_partition, log in logs:
            self.note(topic_partition, log)
        due = {name: dict(offsets) for name, offsets in self._all() if offsets != self._written.get(name)}

        def write() -> None:
            for name, offsets in due.items():
                try:
                    write_offsets(self._disk, f"{self._path}/{name}", offsets)
                except OSError as error:
                    raise StorageError.of(f"writing {self._path}/{name}", error) from error
                self._written[name] = offsets

        return write
