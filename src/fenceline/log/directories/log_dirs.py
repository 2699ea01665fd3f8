"""The data directories of a node: which of them are in use, and which one holds which partition.

Owns the placement of partitions, including those without a file. Never opens a partition, and never detects a failure:
the caller reports it with `fail`. A node with one directory keeps no list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from uuid import UUID

from fenceline.ids import TopicPartition
from fenceline.log.directories.log_dir import LogDir


class LogDirs:
    """Iterates over the directories in use, in the order of `log.dirs`."""

    def __init__(
        self,
        directories: Sequence[LogDir],
        *,
        metadata: LogDir | None = None,
        offline: Mapping[str, str] | None = None,
    ) -> None:
        """`metadata`: the one with the metadata log. `offline`: paths that could not be opened, and why."""
        self.metadata = metadata
        self.offline: dict[str, str] = dict(offline or {})
        """By path, why a directory is not in use."""
        self.opened = tuple(directories)
        """Includes those that have failed since."""
        self._online: tuple[LogDir, ...] = self.opened
        self.is_single = len(self.opened) == 1 and not self.offline
        self._by_path = {each.path: each for each in self.opened}
        self._places: dict[TopicPartition, LogDir] = {}
        self._counts: dict[LogDir, int] = dict.fromkeys(self.opened, 0)
        self.cordoned: frozenset[str] = frozenset()
        """Paths of directories that receive no new replicas (KIP-1066)."""
        self.missing = {
            where: (each.partition_path(where), end)
            for each in self.opened
            for where, end in each.missing.items()
            if not any(other.has(where) for other in self.opened)
        }
        """Directories of partitions that were there at the clean shutdown, with their log end offsets."""

    def __iter__(self) -> Iterator[LogDir]:
        return iter(self._online)

    def __len__(self) -> int:
        """Of those in use."""
        return len(self._online)

    @property
    def first(self) -> LogDir:
        return self._online[0]

    @property
    def directory_ids(self) -> tuple[UUID, ...]:
        return tuple(each.directory_id for each in self._online if each.directory_id is not None)

    @property
    def previous_broker_epoch(self) -> int:
        """Of a clean shutdown of all of them together; else -1, as it is unknown what a directory has lost. A broker
        that sends -1 is removed from the in-sync sets that have another member (KIP-966)."""
        epochs = {each.previous_broker_epoch for each in self._online}
        return epochs.pop() if len(epochs) == 1 and not self.offline and not self.missing else -1

    def by_id(self, directory_id: UUID | None) -> LogDir | None:
        """The directory in use with this id."""
        return next((each for each in self._online if each.directory_id == directory_id), None)

    def at(self, path: str) -> LogDir | None:
        """The directory with this path, even if it has failed."""
        return self._by_path.get(path)

    def is_online(self, log_dir: LogDir) -> bool:
        return log_dir in self._online

    def fail(self, log_dir: LogDir, reason: str) -> None:
        """The directory is not in use any more; its partitions stay there."""
        self._online = tuple(each for each in self._online if each is not log_dir)
        self.offline[log_dir.path] = reason

    # -- partitions -----------------------------------------------------------------------------------------------

    def holder(self, topic_partition: TopicPartition) -> LogDir | None:
        """The directory of a partition, even if it has failed; None while it has none."""
        return self.opened[0] if self.is_single else self._places.get(topic_partition)

    def put(self, topic_partition: TopicPartition, log_dir: LogDir) -> None:
        """Place a partition there."""
        if self.is_single:
            return
        self.forget(topic_partition)
        self._places[topic_partition] = log_dir
        self._counts[log_dir] += 1

    def forget(self, topic_partition: TopicPartition) -> None:
        """This node has the partition no more."""
        before = self._places.pop(topic_partition, None)
        if before is not None:
            self._counts[before] -= 1

    def least_loaded(self) -> LogDir | None:
        """The directory in use with the fewest partitions, the first if several; None if none is left. A cordoned one
        only if all are."""
        free = [each for each in self._online if each.path not in self.cordoned]
        return min(free or self._online, key=lambda each: self._counts[each], default=None)
