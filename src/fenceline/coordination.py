"""What the coordinators of groups and of transactions have in common: the partition of a key, times, log errors.

Each coordinator owns an internal topic; the leader of a partition coordinates the keys in it. Owns no state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from fenceline.errors import ErrorCode

Ticket: TypeAlias = object
"""An opaque value of the driver that is returned with the response."""
DUE_AT_ONCE: Final = 2
"""How many deadlines a coordinator deals with in one call, of 0.1 to 0.6 ms each: thousands are over together when
clients end together, or do not come back after a change of the coordinator, and all other clients would wait."""


class Now(NamedTuple):
    """The two times that a coordinator needs, always passed together."""

    wall_ms: int
    """Milliseconds since the epoch: written into records and used by retention."""
    monotonic_ms: int
    """Never decreases: deadlines use this time, so that a clock adjustment does not expire members."""


def java_string_hash(text: str) -> int:
    """`String.hashCode` of Java: over UTF-16 code units, as a signed 32-bit number."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for position in range(0, len(units), 2):
        value = (31 * value + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def partition_for(key: str, partition_count: int) -> int:
    """The partition that coordinates a group or a transactional id. The smallest int32 has no positive counterpart and
    counts as 0, as in Kafka (`transactions.md X24`)."""
    value = java_string_hash(key)
    return (0 if value == -(1 << 31) else abs(value)) % partition_count


_COORDINATOR_ERRORS: Final[Mapping[ErrorCode, ErrorCode]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def append_error(code: ErrorCode) -> ErrorCode:
    """What a coordinator answers when its log rejected a write with this code (`transactions.md X4`): clients of
    coordinators do not expect a log's errors."""
    return _COORDINATOR_ERRORS.get(code, code)
