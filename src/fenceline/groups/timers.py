"""Deadlines of every group. Owns which kinds there are, never what happens at one, never a clock."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from fenceline.deadlines import PartitionDeadlines


class TimerKind(IntEnum):
    SESSION = 0
    """A member has not sent a heartbeat in time."""
    JOIN = 1
    """The join phase ends."""
    SYNC = 2
    """Members that joined should have sent SyncGroup."""
    EXPIRY = 3
    """Check for expired offsets."""
    REBALANCE = 4
    """A member of a consumer group does not revoke its partitions."""
    DELETED_TOPICS = 5
    """Offsets of deleted topics are left, in any partition."""


class TimerKey(NamedTuple):
    kind: TimerKind
    group_id: str = ""
    member_id: str = ""


class PartitionTimers:
    """The timers of one partition's groups; an idle group has at most one entry per member."""

    __slots__ = ("deadlines",)

    def __init__(self, partition: int) -> None:
        self.deadlines: PartitionDeadlines[TimerKey] = PartitionDeadlines(partition)

    def arm(self, kind: TimerKind, group_id: str, member_id: str, deadline_ms: int) -> None:
        self.deadlines.arm(TimerKey(kind, group_id, member_id), deadline_ms)

    def disarm(self, kind: TimerKind, group_id: str, member_id: str = "") -> None:
        self.deadlines.disarm(TimerKey(kind, group_id, member_id))

    def is_armed(self, kind: TimerKind, group_id: str, member_id: str = "") -> bool:
        return self.deadlines.deadline_ms(TimerKey(kind, group_id, member_id)) is not None
