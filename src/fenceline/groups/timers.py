"""Deadlines of every group in one heap. Owns when something is due, never what happens then, never a clock.

Re-arming a timer to a later time, as every heartbeat does, only changes a dictionary entry; the heap entry moves when
it comes up. An idle group therefore needs no task and at most one heap entry per member.
"""

from __future__ import annotations

from enum import IntEnum
from heapq import heappop, heappush
from typing import NamedTuple


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


class TimerKey(NamedTuple):
    partition: int
    kind: TimerKind
    group_id: str = ""
    member_id: str = ""


class Timers:
    __slots__ = ("_deadline_ms", "_heap", "_in_heap_ms")

    def __init__(self) -> None:
        self._deadline_ms: dict[TimerKey, int] = {}
        self._heap: list[tuple[int, TimerKey]] = []
        # The earliest heap entry of a key. Invariant: in_heap_ms[key] <= deadline_ms[key] for every armed key.
        self._in_heap_ms: dict[TimerKey, int] = {}

    def __len__(self) -> int:
        return len(self._deadline_ms)

    def arm(self, key: TimerKey, deadline_ms: int) -> None:
        """Set or move the one deadline of `key`."""
        self._deadline_ms[key] = deadline_ms
        known_ms = self._in_heap_ms.get(key)
        if known_ms is None or deadline_ms < known_ms:
            self._in_heap_ms[key] = deadline_ms
            heappush(self._heap, (deadline_ms, key))

    def disarm(self, key: TimerKey) -> None:
        self._deadline_ms.pop(key, None)

    def disarm_partition(self, partition: int) -> None:
        for key in [key for key in self._deadline_ms if key.partition == partition]:
            del self._deadline_ms[key]

    def deadline_ms(self, key: TimerKey) -> int | None:
        return self._deadline_ms.get(key)

    def next_deadline_ms(self) -> int | None:
        """A time at or before the next deadline; None if nothing is armed. Removes stale entries from the top."""
        heap = self._heap
        while heap:
            at_ms, key = heap[0]
            deadline_ms = self._deadline_ms.get(key)
            if self._in_heap_ms.get(key) != at_ms:
                heappop(heap)
            elif deadline_ms is None:
                heappop(heap)
                del self._in_heap_ms[key]
            elif deadline_ms > at_ms:
                heappop(heap)
                self._in_heap_ms[key] = deadline_ms
                heappush(heap, (deadline_ms, key))
            else:
                return at_ms
        return None

    def pop_due(self, now_ms: int) -> TimerKey | None:
        """The next key that is due at `now_ms`, disarmed; None if there is none."""
        at_ms = self.next_deadline_ms()
        if at_ms is None or at_ms > now_ms:
            return None
        _, key = heappop(self._heap)
        del self._in_heap_ms[key]
        del self._deadline_ms[key]
        return key


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
