"""Counts the triples that a simulated run has reached: a component state, an operation and a fault.

Owns when an operation, a fault and a state count as simultaneous. Only observes: draws nothing, traces nothing, changes
no object of the run, so that a seed has the same hash with and without it. The states of a node are defined in
`coverage_states`; operations and faults come from the scenario.

How it works: an operation is in progress from its report until `WINDOW_S` later, and then until its effect has ended,
if the scenario can detect that. A fault is active from its injection until `WINDOW_S` after it ended; a fault that ends
a process lasts until this process is restarted. `operation`, `fault` and `changed` combine what they report with what
is in progress and active at that moment. The states are those of the node that the fault affects (of all nodes if it
affects the network or the whole cluster); of its logs, only those of the topic that the operation names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Final, NamedTuple, TypeVar

_Key = TypeVar("_Key")

WINDOW_S: Final = 0.5
"""Virtual seconds."""
CHECK_INTERVAL_S: Final = 0.1
"""Virtual seconds between two checks whether an effect has ended."""

COMPONENTS: Final = ("log", "replica", "quorum", "controller", "groups", "losses", "metadata")


class CoveredState(NamedTuple):
    """A label of `STATES` for the state of a component of some node."""

    component: str
    label: str


class Triple(NamedTuple):
    """The component was in this state while the operation was in progress and the fault active."""

    component: str
    state: str
    operation: str
    fault: str

    def __str__(self) -> str:
        return f"{self.component} {self.state}, {self.operation}, {self.fault}"

    @classmethod
    def parse(cls, text: str) -> Triple:
        """The inverse of `str`. Raises ValueError for anything else."""
        place, operation, fault = text.split(", ")
        component, state = place.split(" ")
        return cls(component, state, operation, fault)


Sampler = Callable[[int | None, str | None], Iterable[CoveredState]]
"""The states of a node (None: of all nodes), and of the logs of one topic (None: of all topics)."""
Ending = Callable[[str, str | None], bool]
"""Whether the effect of an operation has ended, by its name and topic. Has no side effects."""


def _nothing(node_id: int | None, topic: str | None) -> Iterable[CoveredState]:
    return ()


def _at_once(name: str, topic: str | None) -> bool:
    return True


class Coverage:
    """The coverage of one run. `sample` is set once the scenario has nodes; nothing is counted before."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        """`now_s`: the virtual clock of the run, in seconds."""
        self._now_s = now_s
        self.sample: Sampler = _nothing
        self.has_ended: Ending = _at_once
        self.counts: dict[Triple, int] = {}
        """The number of situations in which each was observed: sets of states, with an operation and a fault."""
        self._situations: set[tuple[frozenset[CoveredState], str, str]] = set()
        self._operations: dict[tuple[str, str | None], float] = {}
        """By name and topic: in progress until this moment."""
        self._faults: dict[tuple[str, int | None], float] = {}
        """By name and node: active until this moment."""

    def forget(self) -> None:
        """The run has ended: keep only the counts."""
        self.sample = _nothing
        self.has_ended = _at_once
        self._situations.clear()

    def operation(self, name: str, topic: str | None = None) -> None:
        """A client or operator sends this request now, or a node begins this work. `topic`: the topic that it names,
        None for the whole cluster."""
        if self.sample is _nothing:
            return
        now_s = self._now_s()
        self._operations[name, topic] = now_s + WINDOW_S
        faults = _alive(self._faults, now_s)
        if not faults:
            return
        # One sample also serves all other operations in progress on these logs.
        operations = {each for each, named in self._in_progress(now_s) if named is None or named == topic}
        for fault, node_id in faults:
            states = frozenset(self.sample(node_id, topic))
            for operation in operations:
                self._count(states, operation, fault)

    def fault(self, name: str, node_id: int | None = None, lasts_s: float = 0.0) -> None:
        """This fault is injected now, and ends by itself after `lasts_s`; infinite if it ends the process, until
        `starts`. Call it before the fault takes effect. `node_id`: the affected node, None for the network or the whole
        cluster."""
        if self.sample is _nothing:
            return
        now_s = self._now_s()
        key, until_s = (name, node_id), now_s + lasts_s + WINDOW_S
        self._faults[key] = max(until_s, self._faults.get(key, 0.0))
        for operation, topic in self._in_progress(now_s):
            self._count(frozenset(self.sample(node_id, topic)), operation, name)

    def lasts(self, name: str, node_id: int, lasts_s: float) -> None:
        """A fault of this node lasts this much longer, as is known now."""
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
        """The state of a node has changed, perhaps only for a moment. `topic`: of one of its replicas, None for the
        node."""
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

    def meeting(self, state: CoveredState, node_id: int) -> set[str]:
        """The operations in progress that a fault at this node would meet in this state."""
        found: set[str] = set()
        samples: dict[str | None, frozenset[CoveredState]] = {}
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
                    until_s[key] = now_s + CHECK_INTERVAL_S
        return list(until_s)

    def _count(self, states: frozenset[CoveredState], operation: str, fault: str) -> None:
        """Most samples repeat an earlier one: these cost one lookup."""
        situation = states, operation, fault
        if situation in self._situations:
            return
        self._situations.add(situation)
        counts = self.counts
        for component, label in states:
            triple = Triple(component, label, operation, fault)
            counts[triple] = counts.get(triple, 0) + 1


def _alive(until_s: dict[_Key, float], now_s: float) -> list[_Key]:
    """The keys that have not ended yet; ended ones are removed."""
    ended = [key for key, end_s in until_s.items() if end_s < now_s]
    for key in ended:
        del until_s[key]
    return list(until_s)
