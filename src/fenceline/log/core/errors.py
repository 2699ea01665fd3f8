"""Errors between a log and its disk. Owns the error types of this package; decides nothing.

`StorageError` is sent to the peer (code 56) and leaves the log consistent. `CorruptLog` is for the operator: one
partition is offline until the operator acts, and the message names the file, the position and the remedies.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.ids import TopicPartition

_TRANSIENT: Final = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN)
)

_OFFLINE: Final = "The broker cannot use the log of this partition; its own log says why"


def is_transient(number: int | None) -> bool:
    """Whether a system error can pass without a repair of the disk."""
    return number in _TRANSIENT


class StorageError(PeerError):
    """The disk failed (`KAFKA_STORAGE_ERROR`). `errno` is the system's number, 0 if the log was offline before."""

    def __init__(self, message: str, number: int = 0) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, message)
        self.errno = number

    @classmethod
    def of(cls, what: str, error: OSError) -> StorageError:
        """The storage error for a system error during `what`."""
        number = error.errno or 0
        reason = "no space left on the device" if number == errno.ENOSPC else error.strerror or str(error)
        return cls(f"{what}: {reason}", number)

    @property
    def told(self) -> str:
        """Without paths of this node, which are for its operator."""
        if self.disk_full:
            return "The disk of the broker is full"
        return f"The disk of the broker failed: {os.strerror(self.errno)}" if self.errno else _OFFLINE

    @property
    def disk_full(self) -> bool:
        return self.errno in (errno.ENOSPC, errno.EDQUOT)


class LogOffline(PeerError):
    """The log went offline before, for the reason in `message` (`KAFKA_STORAGE_ERROR`)."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, message)

    @property
    def told(self) -> str:
        return _OFFLINE


class TruncationPending(StorageError):
    """A log was truncated, but the disk has no room for its receipt: repeat the truncation before the log is used."""


class EpochStartUnknown(PeerError):
    """A batch of a newer epoch follows a gap, so that the start of its epoch is unknown."""

    def __init__(self, where: TopicPartition, epoch: int, first_offset: int, log_end_offset: int) -> None:
        super().__init__(
            ErrorCode.CORRUPT_MESSAGE,
            f"{where}: epoch {epoch} begins somewhere from offset {log_end_offset} to {first_offset}",
        )
        self.epoch = epoch
        self.first_offset = first_offset


class CorruptLog(OperatorError):
    """Bytes that were safe on disk are lost or damaged, or a file cannot be read. The partition stays offline."""

    def __init__(self, path: str, position: int, reason: str, advice: str) -> None:
        super().__init__(f"{path}: at byte {position}: {reason}", advice)
        self.path = path
        self.position = position
        self.reason = reason

    @property
    def transient_error(self) -> OSError | None:
        """Set if no damage is known and the system returned an error that may pass: the log can be opened again
        then."""
        cause = self.__cause__
        return cause if isinstance(cause, OSError) and is_transient(cause.errno) else None
