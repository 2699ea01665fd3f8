"""Deadlines of every group. Owns which kinds there are, never what happens at one, never a clock."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from fenceline.deadlines import Deadlines


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
    partition: int
    kind: TimerKind
    group_id: str = ""
    member_id: str = ""


class Timers(Deadlines[TimerKey]):
    """One for all partitions; an idle group has at most one entry per member."""

    __slots__ = ()

    def disarm_partition(self, partition: int) -> None:
        for key in [key for key in self._deadline_ms if key.partition == partition]:
            self.disarm(key)


class PartitionTimers:
    """The timers of one partition's groups."""

    __slots__ = ("_partition", "_timers")

    def __init__(self, timers: Timers, partition: int) -> None:
        self._timers = timers
        self._partition = partition

    def arm(self, kind: TimerKind, group_id: str, member_id: str, deadline_ms: int) -> None:
        self._timers.arm(TimerKey(self._partition, kind, group_id, member_id), deadline_ms)

    def disarm(self, kind: TimerKind, group_id: str, member_id: str = "") -> None:
        self._timers.disarm(TimerKey(self._partition, kind, group_id, member_id))

    def is_armed(self, kind: TimerKind, group_id: str, member_id: str = "") -> bool:
        return self._timers.deadline_ms(TimerKey(self._partition, kind, group_id, member_id)) is not None

    def disarm_all(self) -> None:
        self._timers.disarm_partition(self._partition)
