"""Long decisions about a broker's partitions, taken in steps.

Owns which partitions are still to be visited when a broker leaves or returns: a decision visits at most so many, its
records are appended and applied, and then it is taken up again, so that no step blocks the controller for long or needs
much memory, however many partitions the broker has. Soft state, never in the log: after a failover or a failed append
the pass begins anew.

Others decide between two steps. What they do to partitions that were visited already is seen by a last pass over all
that is left, which takes everything at once: usually nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import TypeAlias
from uuid import UUID

Partitions: TypeAlias = Iterator[tuple[UUID, int]]


class VisitCause(Enum):
    LEAVING = "the broker begins a controlled shutdown"
    FENCED = "the broker is fenced"
    REPLACED = "a new process of the broker registers"
    RETURNING = "the broker is unfenced"
    LEADERLESS = "an earlier controller may have stopped in the middle of the latter"


@dataclass(slots=True)
class _Pass:
    broker_epoch: int
    left: Partitions
    is_last: bool = False


class PartitionVisits:
    """The passes in progress, by cause and broker."""

    def __init__(self) -> None:
        self._passes: dict[tuple[VisitCause, int], _Pass] = {}

    def clear(self) -> None:
        self._passes.clear()

    def is_in_progress(self, cause: VisitCause, broker_id: int, broker_epoch: int) -> bool:
        found = self._passes.get((cause, broker_id))
        return found is not None and found.broker_epoch == broker_epoch

    def next(
        self, cause: VisitCause, broker_id: int, broker_epoch: int, partitions: Callable[[], Partitions], limit: int
    ) -> tuple[list[tuple[UUID, int]], bool]:
        """The next partitions to visit, and whether the decision must be taken up again. `partitions` begins a pass."""
        key = cause, broker_id
        visits = self._passes.get(key)
        if visits is None or visits.broker_epoch != broker_epoch:
            left = partitions()
            some = list(islice(left, limit + 1))
            if len(some) <= limit:
                self._passes.pop(key, None)
                return some, False
            *some, last = some
            self._passes[key] = _Pass(broker_epoch, _after(last, left))
            return some, True
        if visits.is_last:
            del self._passes[key]
            return list(partitions()), False
        some = list(islice(visits.left, limit))
        visits.is_last = len(some) < limit
        return some, True


def _after(first: tuple[UUID, int], others: Partitions) -> Partitions:
    yield first
    yield from others
