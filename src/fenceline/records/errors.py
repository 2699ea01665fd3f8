"""The one exception of the `records` room.

Owns the shape of a refusal: a Kafka error code, a sentence, and where it applies the records that are to blame.
"""

from __future__ import annotations

from collections.abc import Sequence

from fenceline.errors import ErrorCode, PeerError


class RecordsError(PeerError):
    """Bytes that are not an acceptable record batch.

    `record_errors` holds (index of the record in its batch, reason) as the Produce response (version 8 and later)
    carries them; it is empty when the batch as a whole is refused. `is_framing`: the bytes are no single batch of a
    format that the request's version may carry, which Kafka finds before it looks at the partition's log.
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
    """A `RecordsError` with CORRUPT_MESSAGE: the bytes contradict themselves."""
    return RecordsError(ErrorCode.CORRUPT_MESSAGE, message)
