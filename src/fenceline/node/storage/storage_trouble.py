"""Log lines for disk errors, once for each partition instead of once for each request.

Owns the log lines about partitions whose appends or reads fail because of the disk: one when the errors start, one a
minute while they last with their number, one when records are accepted again. Decides nothing: the peer has already
received KAFKA_STORAGE_ERROR, and the log is consistent (`fenceline.log.core.errors`).
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fenceline.ids import METADATA_TOPIC, TopicPartition
from fenceline.node.logs import Logger
from fenceline.node.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from fenceline.log.core.errors import StorageError
    from fenceline.node.clock import Clock

log = Logger("storage")

_REPEAT_MS: Final = 60_000
_FULL_ADVICE: Final = (
    "Free disk space: delete topics or records, lower retention, or enlarge the disk. Producers retry, consumers are"
    " served, no restart is needed."
)
_FULL_FOLLOWER_ADVICE: Final = (
    "Free disk space: delete topics or records, lower retention, or enlarge the disk. This replica lags behind and is"
    " out of the ISR until it has caught up, which happens automatically: no restart is needed."
)
_FULL_METADATA_ADVICE: Final = (
    "Free space on the disk of the metadata log. Until then topics, configs and brokers cannot be changed if this is"
    " the only controller. One of several controllers leaves the work to the others, and takes part again once there is"
    " space. No restart is needed."
)
_NO_DESCRIPTORS_ADVICE: Final = (
    "The process has no free file descriptors: raise its limit (ulimit -n), or lower max.connections. No restart is"
    " needed."
)
_OTHER_ADVICE: Final = "Check the disk (dmesg, smartctl) and the permissions of the data directory."


@dataclass(slots=True)
class _Rejections:
    """Rejections since the last log line."""

    count: int
    log_end_offset: int
    logged_at_ms: int


class StorageTrouble:
    """Partitions with recent write errors."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.write_rejected: Signal[TopicPartition, StorageError] = Signal()
        """A write was rejected."""
        self._rejections: dict[TopicPartition, _Rejections] = {}

    def __len__(self) -> int:
        return len(self._rejections)

    def rejected(
        self, topic_partition: TopicPartition, log_end_offset: int, error: StorageError, *, by_follower: bool = False
    ) -> None:
        """An append failed: the records were rejected, or will be fetched again from the leader."""
        self.write_rejected(topic_partition, error)
        now_ms = self._clock.monotonic_ms()
        known = self._rejections.get(topic_partition)
        if known is None:
            self._rejections[topic_partition] = _Rejections(1, log_end_offset, now_ms)
            self._log(topic_partition, 1, error, by_follower=by_follower)
            return
        known.count += 1
        known.log_end_offset = log_end_offset
        if now_ms - known.logged_at_ms >= _REPEAT_MS:
            known.logged_at_ms = now_ms
            self._log(topic_partition, known.count, error, by_follower=by_follower)

    def log_recovered(self, log_end_offset: Callable[[TopicPartition], int | None]) -> None:
        """Log the partitions that accept records again; `log_end_offset` returns None for a removed one."""
        for topic_partition, rejections in list(self._rejections.items()):
            end = log_end_offset(topic_partition)
            if end is None:
                del self._rejections[topic_partition]
            elif end > rejections.log_end_offset:
                del self._rejections[topic_partition]
                log.warning("records accepted again", partition=str(topic_partition), refused=rejections.count)

    @staticmethod
    def _log(topic_partition: TopicPartition, count: int, error: StorageError, *, by_follower: bool) -> None:
        log.error(
            "records rejected",
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
