"""What disks refuse, told to the operator once and not once a request.

Owns the log lines about partitions whose appends or reads fail for the disk's sake: one when the trouble begins, one a
minute while it lasts with the number of refusals, one when records are taken again. Decides nothing: the peer was
answered with KAFKA_STORAGE_ERROR already, and the log is consistent (`fenceline.log.errors`).
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fenceline.ids import METADATA_TOPIC, TopicPartition
from fenceline.node.logs import Logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from fenceline.log.errors import StorageError
    from fenceline.node.clock import Clock

log = Logger("storage")

_REPEAT_MS: Final = 60_000
_FULL_ADVICE: Final = (
    "Make room: delete topics or records, lower retention, or enlarge the disk. Producers keep trying, consumers are"
    " served, no restart is needed."
)
_FULL_FOLLOWER_ADVICE: Final = (
    "Make room: delete topics or records, lower retention, or enlarge the disk. This replica falls behind, and is"
    " out of the in-sync set until it has caught up, which it does by itself: no restart is needed."
)
_FULL_METADATA_ADVICE: Final = (
    "Make room on the disk of the metadata log. A node that is the only controller goes on, and until then topics,"
    " configs and brokers can not be changed. One of several gives way to the others, and takes part again as soon as"
    " there is room. No restart is needed."
)
_NO_DESCRIPTORS_ADVICE: Final = (
    "The process has no file descriptors left: raise its limit (ulimit -n), or lower max.connections. No restart is"
    " needed."
)
_OTHER_ADVICE: Final = "Check the disk (dmesg, smartctl) and the permissions of the data directory."


@dataclass(slots=True)
class _Refusals:
    """What was refused since the operator was last told."""

    count: int
    log_end_offset: int
    told_at_ms: int


class StorageTrouble:
    """Partitions that could not be written lately."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.heard: Callable[[TopicPartition, StorageError], None] = lambda *_: None
        """Hears of each refusal."""
        self._refusals: dict[TopicPartition, _Refusals] = {}
        self.on_full: Callable[[TopicPartition], None] = lambda topic_partition: None
        """Called with every refusal of a disk that is full: there may be something that can go."""

    def __len__(self) -> int:
        return len(self._refusals)

    def refused(
        self, topic_partition: TopicPartition, log_end_offset: int, error: StorageError, *, by_follower: bool = False
    ) -> None:
        """An append failed: the records were refused, or will be fetched again from the leader."""
        self.heard(topic_partition, error)
        if error.disk_full:
            self.on_full(topic_partition)
        now_ms = self._clock.monotonic_ms()
        known = self._refusals.get(topic_partition)
        if known is None:
            self._refusals[topic_partition] = _Refusals(1, log_end_offset, now_ms)
            self._tell(topic_partition, 1, error, by_follower=by_follower)
            return
        known.count += 1
        known.log_end_offset = log_end_offset
        if now_ms - known.told_at_ms >= _REPEAT_MS:
            known.told_at_ms = now_ms
            self._tell(topic_partition, known.count, error, by_follower=by_follower)

    def look(self, log_end_offset: Callable[[TopicPartition], int | None]) -> None:
        """Say which partitions have taken records again; `log_end_offset` is None for one that is gone."""
        for topic_partition, refusals in list(self._refusals.items()):
            end = log_end_offset(topic_partition)
            if end is None:
                del self._refusals[topic_partition]
            elif end > refusals.log_end_offset:
                del self._refusals[topic_partition]
                log.warning("records are taken again", partition=str(topic_partition), refused=refusals.count)

    @staticmethod
    def _tell(topic_partition: TopicPartition, count: int, error: StorageError, *, by_follower: bool) -> None:
        log.error(
            "records refused",
            partition=str(topic_partition),
            reason=error.message,
            refused=count,
            advice=_FULL_FOLLOWER_ADVICE if by_follower and error.disk_full else _advice(topic_partition, error),
        )


def _advice(topic_partition: TopicPartition, error: StorageError) -> str:
    if error.disk_full:
        return _FULL_METADATA_ADVICE if topic_partition.topic == METADATA_TOPIC else _FULL_ADVICE
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return _NO_DESCRIPTORS_ADVICE
    return _OTHER_ADVICE
