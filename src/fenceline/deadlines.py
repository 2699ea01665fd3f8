"""Deadlines of many keys in one heap. Owns when something is due, never what happens then, never a clock.

Re-arming to a later time, as every heartbeat does, only changes a dictionary entry; the heap entry moves when it comes
up. A key therefore needs no task and at most one heap entry in use.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

K = TypeVar("K")
_SPARE_ENTRIES: Final = 64
_NEVER_MS: Final = 1 << 63
_MOVED_AT_ONCE: Final = 200
"""Of tens of thousands of members, all have moved their deadline when the first of the earlier ones comes up."""


class Deadlines(Generic[K]):
    """Keys must be orderable."""

    __slots__ = ("_deadline_ms", "_heap", "_in_heap_ms")

    def __init__(self) -> None:
        self._deadline_ms: dict[K, int] = {}
        self._heap: list[tuple[int, K]] = []
        # The earliest heap entry of a key. Invariant: in_heap_ms[key] <= deadline_ms[key] for every armed key.
        self._in_heap_ms: dict[K, int] = {}

    def __len__(self) -> int:
        return len(self._deadline_ms)

    def arm(self, key: K, deadline_ms: int) -> None:
        """Set or move the one deadline of `key`."""
        self._deadline_ms[key] = deadline_ms
        known_ms = self._in_heap_ms.get(key)
        if known_ms is None or deadline_ms < known_ms:
            self._in_heap_ms[key] = deadline_ms
            heappush(self._heap, (deadline_ms, key))
            if len(self._heap) > 2 * len(self._deadline_ms) + _SPARE_ENTRIES:
                self._rebuild()

    def _rebuild(self) -> None:
        """Remove stale entries: those of late deadlines would stay until then, however many there are."""
        self._in_heap_ms = self._deadline_ms.copy()
        self._heap = [(deadline_ms, key) for key, deadline_ms in self._deadline_ms.items()]
        heapify(self._heap)

    def disarm(self, key: K) -> None:
        self._deadline_ms.pop(key, None)

    def deadline_ms(self, key: K) -> int | None:
        return self._deadline_ms.get(key)

    def next_deadline_ms(self) -> int | None:
        """A time at or before the next deadline; None if nothing is armed. Moves some stale entries from the top."""
        heap = self._heap
        for _ in range(_MOVED_AT_ONCE):
            if not heap:
                return None
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
        return heap[0][0] if heap else None

    def pop_due(self, now_ms: int) -> K | None:
        """The next key that is due at `now_ms`, disarmed. None if there is none, or if there are stale entries left at
        the top: `next_deadline_ms` is still due then."""
        at_ms = self.next_deadline_ms()
        if at_ms is None or at_ms > now_ms:
            return None
        key = self._heap[0][1]
        if self._in_heap_ms.get(key) != at_ms or self._deadline_ms.get(key) != at_ms:
            return None
        heappop(self._heap)
        del self._in_heap_ms[key]
        del self._deadline_ms[key]
        return key


class PartitionDeadlines(Deadlines[K]):
    """The deadlines of one partition. None is due before it is attached (`DeadlinesByPartition`)."""

    __slots__ = ("_known_ms", "_of_partitions", "_partition")

    def __init__(self, partition: int) -> None:
        super().__init__()
        self._partition = partition
        self._of_partitions: Deadlines[int] | None = None
        self._known_ms = 0
        """When they are looked at next, if they are attached: at or before the first deadline."""

    def arm(self, key: K, deadline_ms: int) -> None:
        super().arm(key, deadline_ms)
        if self._of_partitions is not None and deadline_ms < self._known_ms:
            self._look_at(self._of_partitions, deadline_ms)

    def look_at_next(self, of_partitions: Deadlines[int] | None) -> None:
        """Look at them when the first one is due; None: never again."""
        self._of_partitions = of_partitions
        if of_partitions is not None:
            at_ms = self.next_deadline_ms()
            self._look_at(of_partitions, _NEVER_MS if at_ms is None else at_ms)

    def _look_at(self, of_partitions: Deadlines[int], at_ms: int) -> None:
        self._known_ms = at_ms
        of_partitions.arm(self._partition, at_ms)


class DeadlinesByPartition(Generic[K]):
    """The deadlines of all partitions that are attached. To attach and to detach one costs the same however many
    deadlines it has, or others have."""

    __slots__ = ("_attached", "_of_partitions")

    def __init__(self) -> None:
        self._attached: dict[int, PartitionDeadlines[K]] = {}
        self._of_partitions: Deadlines[int] = Deadlines()

    def attach(self, partition: int, deadlines: PartitionDeadlines[K]) -> None:
        self._attached[partition] = deadlines
        deadlines.look_at_next(self._of_partitions)

    def detach(self, partition: int) -> None:
        """Nothing if it is not attached. What is armed later is never due."""
        deadlines = self._attached.pop(partition, None)
        if deadlines is not None:
            deadlines.look_at_next(None)
            self._of_partitions.disarm(partition)

    def next_deadline_ms(self) -> int | None:
        """A time at or before the next deadline."""
        at_ms = self._of_partitions.next_deadline_ms()
        return None if at_ms == _NEVER_MS else at_ms

    def pop_some(self, now_ms: int, most: int) -> Iterator[tuple[int, K]]:
        """At most so many of the keys that are due at `now_ms`, with their partitions, each disarmed when it is asked
        for. What is armed meanwhile counts; `next_deadline_ms` is still due if there is more."""
        for _ in range(most):
            partition = self._of_partitions.pop_due(now_ms)
            if partition is None:
                return
            deadlines = self._attached[partition]
            key = deadlines.pop_due(now_ms)
            deadlines.look_at_next(self._of_partitions)
            if key is not None:
                yield partition, key
