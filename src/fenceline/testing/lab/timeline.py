"""What happened in a laboratory, in order: faults, elections, ends of nodes, situations.

Owns the events and their text. Thread-safe. Brokers report the same change several times, and it is kept once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

MOST_EVENTS: Final = 10_000
"""Kept; older ones are dropped."""
_KNOWN_CHANGES: Final = {
    "leader elected": ("topic", "partition", "epoch", "leader"),
    "no leader": ("topic", "partition", "epoch"),
    "topic created": ("topic", "id"),
    "topic deleted": ("topic", "id"),
}
"""Changes that each broker reports, and what makes one of them."""


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """`at_s` counts from the start of the cluster. `node` is None for what concerns no single node."""

    number: int
    at_s: float
    kind: str
    node: int | None
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        who = "" if self.node is None else f"node {self.node}: "
        details = " ".join(f"{name}={value}" for name, value in self.fields.items() if value is not None)
        return f"{self.at_s:9.3f} s  {who}{self.kind}{' ' if details else ''}{details}"


class ClusterTimeline:
    """The events of one cluster."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._lock = threading.Lock()
        self._events: list[TimelineEvent] = []
        self._count = 0
        self._known: set[tuple[Any, ...]] = set()
        self._isr: dict[tuple[str, int], tuple[int, ...]] = {}

    def add(self, kind: str, node: int | None = None, **fields: Any) -> None:
        """An event that happens now."""
        with self._lock:
            if not self._is_news(kind, fields):
                return
            who = None if kind in _KNOWN_CHANGES or kind == "ISR changed" else node
            at_s = time.monotonic() - self._began_s
            self._events.append(TimelineEvent(self._count, at_s, kind, who, fields))
            self._count += 1
            if len(self._events) > MOST_EVENTS:
                del self._events[: MOST_EVENTS // 10]

    def mark(self) -> int:
        """For `since`: the number of the next event."""
        with self._lock:
            return self._count

    def since(self, mark: int = 0) -> list[TimelineEvent]:
        """The events from a mark on, oldest first."""
        with self._lock:
            return [event for event in self._events if event.number >= mark]

    def text(self, mark: int = 0) -> str:
        """The events from a mark on, one a line."""
        return "\n".join(str(event) for event in self.since(mark))

    def __iter__(self) -> Iterator[TimelineEvent]:
        return iter(self.since())

    def _is_news(self, kind: str, fields: Mapping[str, Any]) -> bool:
        if kind == "ISR changed":
            where, isr = (fields["topic"], fields["partition"]), tuple(sorted(fields["isr"]))
            known = self._isr.get(where) == isr
            self._isr[where] = isr
            return not known
        names = _KNOWN_CHANGES.get(kind)
        if names is None:
            return True
        key = (kind, *(fields.get(name) for name in names))
        if key in self._known:
            return False
        self._known.add(key)
        return True
