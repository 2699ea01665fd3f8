"""The result of one item of a request. Frozen data, no behaviour."""

from __future__ import annotations

from typing import Final, NamedTuple

from fenceline.errors import ErrorCode


class RequestOutcome(NamedTuple):
    """`message` is None if Kafka sends none."""

    code: ErrorCode = ErrorCode.NONE
    message: str | None = None

    @property
    def failed(self) -> bool:
        return self.code != ErrorCode.NONE


SUCCESS: Final = RequestOutcome()
