"""The exception of the `records` package.

Owns its content: a Kafka error code, a message, and the invalid records if the error concerns single records.
"""

from __future__ import annotations

from collections.abc import Sequence

from fenceline.errors import ErrorCode, PeerError


class RecordsError(PeerError):
    """Bytes that are not an acceptable record batch.

    `record_errors` holds (index of the record in its batch, reason) as the Produce response (version 8 and later)
    returns them; it is empty if the complete batch is rejected. `is_framing`: the bytes are not a single batch of a
    format that the request's version allows, which Kafka detects before it accesses the partition's log.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        record_errors: Sequence[tuple[int, str | None]] = (),
        *,
        is_framing: bool = False,
    ) -> None:
        super().__init__(code, message)
        self.record_errors: tuple[tuple[int, str | None], ...] = tuple(record_errors)
        self.is_framing = is_framing


def corrupt(message: str) -> RecordsError:
    """A `RecordsError` with CORRUPT_MESSAGE: the bytes are inconsistent."""
    return RecordsError(ErrorCode.CORRUPT_MESSAGE, message)
