"""Directories of partitions in a log directory: their names, and how they are removed.

Owns the names that Apache Kafka gives them. Never decides which partitions should be there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from fenceline.ids import TopicPartition
from fenceline.log.core.disk import Disk
from fenceline.log.core.lost_and_found import EVIDENCE_DIR

DELETE_SUFFIX: Final = "-delete"
STRAY_SUFFIX: Final = "-stray"
FUTURE_SUFFIX: Final = "-future"
NAME_LIMIT: Final = 255
_PARTITION_NAME: Final = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>\d+)")

_FUTURE_NAME: Final = re.compile(
    r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>\d+)\.(?P<unique>[0-9a-zA-Z]+)-future"
)


@dataclass(frozen=True, slots=True)
class RemovedPartition:
    """A partition directory that was renamed for removal; `delete()` removes it, in a thread. Raises OSError.

    `high_watermark`: its last known one.
    """

    path: str
    disk: Disk
    topic_partition: TopicPartition
    high_watermark: int

    def delete(self) -> None:
        remove_tree(self.disk, self.path)


def parse_partition_name(name: str) -> TopicPartition | None:
    """The partition of a directory name; None for any other name, also of deleted or stray directories."""
    if name.startswith(EVIDENCE_DIR):
        return None
    return _matched(_PARTITION_NAME, name)


def parse_future_name(name: str) -> TopicPartition | None:
    """The partition of a directory that will replace one elsewhere; None for any other name."""
    return _matched(_FUTURE_NAME, name)


def partition_of(name: str) -> TopicPartition | None:
    """The partition of either kind of directory."""
    return parse_partition_name(name) or parse_future_name(name)


def _matched(pattern: re.Pattern[str], name: str) -> TopicPartition | None:
    found = pattern.fullmatch(name)
    return TopicPartition(found["topic"], int(found["partition"])) if found is not None else None


def future_name(topic_partition: TopicPartition, unique: str) -> str:
    """Name of a copy's directory. It may be longer than `NAME_LIMIT`."""
    return f"{topic_partition.topic}-{topic_partition.partition}.{unique}{FUTURE_SUFFIX}"


def unique_of_future(name: str) -> str:
    """The unique part of the name of a copy's directory, as in `future_name`."""
    found = _FUTURE_NAME.fullmatch(name)
    assert found is not None, f"{name} is the directory of a copy"
    return found["unique"]


def is_replaced_by(name: str, copy: str) -> bool:
    """Whether a directory with this name was renamed when the copy replaced it (`future_log.FutureLog.replace`)."""
    return name.endswith(f".{unique_of_future(copy)}{DELETE_SUFFIX}")


def parse_removed_name(name: str) -> TopicPartition | None:
    """The partition of a name made by `removed_name`; None for any other name. A very long topic name is truncated."""
    before, dot, rest = name.rpartition(".")
    if not dot or not rest.endswith((DELETE_SUFFIX, STRAY_SUFFIX)):
        return None
    return parse_partition_name(before)


def removed_name(topic_partition: TopicPartition, suffix: str, unique: str) -> str:
    """A unique name for a partition directory that is being deleted, or is stray."""
    ending = f"-{topic_partition.partition}.{unique}{suffix}"
    return topic_partition.topic[: NAME_LIMIT - len(ending)] + ending


def remove_tree(disk: Disk, path: str) -> None:
    """Remove a directory with all its contents. Raises OSError."""
    for name in disk.listdir(path):
        child = f"{path}/{name}"
        found = disk.stat(child)
        if found is not None and found.is_directory:
            remove_tree(disk, child)
        else:
            disk.unlink(child)
    disk.rmdir(path)
