"""Offsets as values: an offset with its leader epoch, the end of an epoch, and which offset to look up.

`offset_lookups.py` sends the requests that return them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, Self

from fenceline.errors import OperatorError
from fenceline.ids import NO_EPOCH

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
_NAMES: Final[Mapping[str, int]] = {
    "latest": LATEST,
    "earliest": EARLIEST,
    "max_timestamp": MAX_TIMESTAMP,
    "earliest_local": EARLIEST_LOCAL,
    "latest_tiered": LATEST_TIERED,
}

OffsetSpec = int | str
"""A time in ms since 1970, one of the special timestamps (-1 to -5), or its name ("latest", "earliest", ...)."""


class OffsetAndEpoch(NamedTuple):
    """offset -1: not found. leader_epoch -1: not returned by the broker. timestamp -1: the offset has none."""

    offset: int
    leader_epoch: int = NO_EPOCH
    timestamp: int = -1


class LogOffset(int):
    """A log start or log end offset, as an int; `leader_epoch` as in `OffsetAndEpoch`."""

    leader_epoch: int

    def __new__(cls, offset: int, leader_epoch: int = NO_EPOCH) -> Self:
        made = super().__new__(cls, offset)
        made.leader_epoch = leader_epoch
        return made

    def __reduce__(self) -> tuple[type[LogOffset], tuple[int, int]]:
        return LogOffset, (int(self), self.leader_epoch)


class CommittedOffset(NamedTuple):
    """The next offset to read and the leader epoch of the record before it (-1: unknown), as committed (E56, E61)."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""


class EpochEnd(NamedTuple):
    """Result of OffsetForLeaderEpoch: the largest epoch not above the requested one, and its end offset (E13); -1:
    unknown.
    """

    leader_epoch: int
    end_offset: int


def reset_spec(policy: str | int, now_ms: int) -> OffsetSpec:
    """Which offset to look up for a value of auto.offset.reset: by_duration is a number of ms before now (KIP-1106)."""
    return max(0, now_ms - policy) if isinstance(policy, int) else policy


def timestamp_of(spec: OffsetSpec) -> int:
    """The timestamp of a spec in ListOffsets. Raises OperatorError for an invalid spec."""
    if isinstance(spec, int):
        if spec < LATEST_TIERED:
            raise OperatorError(
                f"{spec} is not a timestamp", "Use milliseconds since 1970, or a name such as 'latest'."
            )
        return spec
    known = _NAMES.get(spec.lower().replace("-", "_"))
    if known is None:
        raise OperatorError(f"{spec!r} is not an offset", f"Use a time in milliseconds or one of {', '.join(_NAMES)}.")
    return known
