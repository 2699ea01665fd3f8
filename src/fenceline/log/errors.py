"""What can go wrong between a log and its disk. Owns the error types of this room; decides nothing.

`StorageError` goes to the peer (code 56) and leaves the log consistent. `CorruptLog` is the operator's: one partition
is offline until somebody acts, and its message names the file, the position and the choices.
"""

from __future__ import annotations

import errno
from typing import Final

from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.ids import TopicPartition

_PASSING: Final = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN)
)


def passes(number: int | None) -> bool:
    """Whether a system error goes away without a repair of the disk."""
    return number in _PASSING


class StorageError(PeerError):
    """The disk refused (`KAFKA_STORAGE_ERROR`). `errno` is the system's number, 0 when the log was offline before."""

    def __init__(self, message: str, number: int = 0) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, message)
        self.errno = number

    @classmethod
    def of(cls, what: str, error: OSError) -> StorageError:
        """The storage error for a system error met while doing `what`."""
        number = error.errno or 0
        reason = "no space left on the device" if number == errno.ENOSPC else error.strerror or str(error)
        return cls(f"{what}: {reason}", number)

    @property
    def disk_full(self) -> bool:
        return self.errno in (errno.ENOSPC, errno.EDQUOT)


class NotSettled(StorageError):
    """A log was cut, and its receipt finds no room: the cut is to be asked for again before the log is used."""


class EpochStartUnknown(PeerError):
    """A batch of a newer epoch lies behind a gap, so that it does not tell where its epoch begins."""

    def __init__(self, where: TopicPartition, epoch: int, first_offset: int, log_end_offset: int) -> None:
        super().__init__(
            ErrorCode.CORRUPT_MESSAGE,
            f"{where}: epoch {epoch} begins somewhere from offset {log_end_offset} to {first_offset}",
        )
        self.epoch = epoch
        self.first_offset = first_offset


class CorruptLog(OperatorError):
    """Bytes that had been safe on disk are gone or damaged, or a file can not be read. The partition stays offline."""

    def __init__(self, path: str, position: int, reason: str, advice: str) -> None:
        super().__init__(f"{path}: at byte {position}: {reason}", advice)
        self.path = path
        self.position = position
        self.reason = reason

    @property
    def refusal(self) -> OSError | None:
        """Set where nothing is known to be damaged and the system refused something that it may allow later: the log
        can be opened again then."""
        cause = self.__cause__
        return cause if isinstance(cause, OSError) and passes(cause.errno) else None
