"""What a simulated story has met: triples of a room's state, an operation and a fault, counted.

Owns when an operation, a fault and a state count as simultaneous. Only observes: draws nothing, traces nothing, changes
no object of the story, so that a seed has the same hash with and without it. What the states of a node are is
`coverage_states`' work; which operations and faults there are is the story's.

How it works: an operation is in progress from when it is reported until `WINDOW_S` later, and from then on until its
effect has ended, where the story can see that; a fault is active from when it strikes until `WINDOW_S` after it ended:
one that ends a process lasts until this process is started again.
`operation`, `fault` and `changed` combine what they report with what is in progress and active at that moment. The
states are those of the node that the fault strikes (of all nodes where it strikes the network or the whole cluster)
and, of its logs, those of the topic that the operation names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Final, NamedTuple, TypeVar

_Key = TypeVar("_Key")

WINDOW_S: Final = 0.5
"""Virtual seconds."""
LOOK_S: Final = 0.1
"""Virtual seconds between two looks whether an effect has ended."""

ROOMS: Final = ("log", "replica", "quorum", "controller", "groups", "losses", "metadata")


class State(NamedTuple):
    """A label of `STATES` for what a room of some node is at."""

    room: str
    label: str


class Triple(NamedTuple):
    """One corner: the room was in this state while the operation was in progress and the fault active."""

    room: str
    state: str
    operation: str
    fault: str

    def __str__(self) -> str:
        return f"{self.room} {self.state}, {self.operation}, {self.fault}"

    @classmethod
    def parse(cls, text: str) -> Triple:
        """The inverse of `str`. Raises ValueError for anything else."""
        place, operation, fault = text.split(", ")
        room, state = place.split(" ")
        return cls(room, state, operation, fault)


Sampler = Callable[[int | None, str | None], Iterable[State]]
"""The states of a node (None: of all), of the logs of one topic (None: of all)."""
Ending = Callable[[str, str | None], bool]
"""Whether the effect of an operation has ended, by its name and topic. Changes nothing."""


def _nothing(node_id: int | None, topic: str | None) -> Iterable[State]:
    return ()


def _at_once(name: str, topic: str | None) -> bool:
    return True


class Coverage:
    """Of one story. `sample` is given once the story has nodes; without it nothing is counted."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        """`now_s`: the story's virtual clock, in seconds."""
        self._now_s = now_s
        self.sample: Sampler = _nothing
        self.has_ended: Ending = _at_once
        self.counts: dict[Triple, int] = {}
        """In how many situations each was met: sets of states, with an operation and a fault."""
        self._situations: set[tuple[frozenset[State], str, str]] = set()
        self._operations: dict[tuple[str, str | None], float] = {}
        """By name and topic: in progress until this moment."""
        self._faults: dict[tuple[str, int | None], float] = {}
        """By name and node: active until this moment."""

    def forget(self) -> None:
        """The story has ended: keep the counts only."""
        self.sample = _nothing
        self.has_ended = _at_once
        self._situations.clear()

    def operation(self, name: str, topic: str | None = None) -> None:
        """A client or operator sends this request now, or a node begins this work. `topic`: the one that it names, None
        for the whole cluster."""
        if self.sample is _nothing:
            return
        now_s = self._now_s()
        self._operations[name, topic] = now_s + WINDOW_S
        faults = _alive(self._faults, now_s)
        if not faults:
            return
        # One look serves all that is in progress on these logs, too.
        operations = {each for each, named in self._in_progress(now_s) if named is None or named == topic}
        for fault, node_id in faults:
            states = frozenset(self.sample(node_id, topic))
            for operation in operations:
                self._count(states, operation, fault)

    def fault(self, name: str, node_id: int | None = None, lasts_s: float = 0.0) -> None:
        """This fault strikes now, and ends after `lasts_s` by itself; infinite where it ends the process, until
        `starts`. To be called before the fault takes effect.
        `node_id`: the node that it strikes, None where it strikes the network or the whole cluster."""
        if self.sample is _nothing:
            return
        now_s = self._now_s()
        key, until_s = (name, node_id), now_s + lasts_s + WINDOW_S
        self._faults[key] = max(until_s, self._faults.get(key, 0.0))
        for operation, topic in self._in_progress(now_s):
            self._count(frozenset(self.sample(node_id, topic)), operation, name)

    def lasts(self, name: str, node_id: int, lasts_s: float) -> None:
        """A fault that struck this node lasts so much longer from now on, by what is known now."""
        key = (name, node_id)
        if key in self._faults:
            self._faults[key] = max(self._now_s() + lasts_s + WINDOW_S, self._faults[key])

    def starts(self, node_id: int) -> None:
        """A process starts: the faults that ended it are over."""
        end_s = self._now_s() + WINDOW_S
        for key, until_s in self._faults.items():
            if key[1] == node_id and until_s == inf:
                self._faults[key] = end_s

    def changed(self, node_id: int, topic: str | None = None) -> None:
        """A node's state has changed, perhaps for a moment only. `topic`: of one of its replicas, None for the node."""
        now_s = self._now_s()
        faults = {name for name, struck in _alive(self._faults, now_s) if struck is None or struck == node_id}
        if not faults:
            return
        by_topic: dict[str | None, set[str]] = {}
        for name, named in self._in_progress(now_s):
            if None in (topic, named) or named == topic:
                by_topic.setdefault(named if topic is None else topic, set()).add(name)
        for each, operations in by_topic.items():
            states = frozenset(self.sample(node_id, each))
            for operation in operations:
                for fault in faults:
                    self._count(states, operation, fault)

    def meeting(self, state: State, node_id: int) -> set[str]:
        """The operations in progress that a fault at this node would meet in this state."""
        found: set[str] = set()
        samples: dict[str | None, frozenset[State]] = {}
        for name, topic in self._in_progress(self._now_s()):
            if topic not in samples:
                samples[topic] = frozenset(self.sample(node_id, topic))
            if state in samples[topic]:
                found.add(name)
        return found

    def _in_progress(self, now_s: float) -> list[tuple[str, str | None]]:
        """Names and topics."""
        until_s = self._operations
        for key, end_s in list(until_s.items()):
            if end_s < now_s:
                if self.has_ended(*key):
                    del until_s[key]
                else:
                    until_s[key] = now_s + LOOK_S
        return list(until_s)

    def _count(self, states: frozenset[State], operation: str, fault: str) -> None:
        """Most looks find what an earlier one found: they cost one."""
        situation = states, operation, fault
        if situation in self._situations:
            return
        self._situations.add(situation)
        counts = self.counts
        for room, label in states:
            triple = Triple(room, label, operation, fault)
            counts[triple] = counts.get(triple, 0) + 1


def _alive(until_s: dict[_Key, float], now_s: float) -> list[_Key]:
    """What has not ended yet; what has is forgotten."""
    ended = [key for key, end_s in until_s.items() if end_s < now_s]
    for key in ended:
        del until_s[key]
    return list(until_s)
