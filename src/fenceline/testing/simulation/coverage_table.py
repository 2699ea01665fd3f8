"""All possible triples, the impossible ones, and a table of those that no seed has reached.

Owns the reasons: triples that cannot be reached are listed in `REASONS`, by pattern, with the reason, and those that
are reached only by chance in `RARE`. Counts nothing itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from fenceline.testing.simulation.coverage import Triple
from fenceline.testing.simulation.coverage_states import STATES
from fenceline.testing.simulation.operations import Fault, Operation


class Reason(NamedTuple):
    """Why the matching triples are never or hardly ever reached. An empty set matches everything."""

    component: str
    states: frozenset[str]
    operations: frozenset[str]
    faults: frozenset[str]
    why: str

    def covers(self, triple: Triple) -> bool:
        return (
            self.component in ("", triple.component)
            and (not self.states or triple.state in self.states)
            and (not self.operations or triple.operation in self.operations)
            and (not self.faults or triple.fault in self.faults)
        )


_ANY: Final[frozenset[str]] = frozenset()

REASONS: Final[tuple[Reason, ...]] = (
    Reason(
        "",
        _ANY,
        _ANY,
        frozenset((Fault.WRONG_BITS,)),
        "The checksum of a batch does not cover its base offset and leader epoch, so that a wrong bit there reaches"
        " followers and consumers undetected: checks that know each batch would fail where the format allows no"
        " better. The scenarios `controller`, `controllers` and `quorum` have this fault, and their states are not"
        " sampled; tests/log/recovery/test_recovery.py reads logs from a disk that is wrong now and then.",
    ),
)

_SHORT: Final = frozenset(
    each.value
    for each in (
        Operation.ADD_PARTITIONS,
        Operation.ALTER_CONFIG,
        Operation.CREATE_TOPIC,
        Operation.DELETE_TOPIC,
        Operation.END_OF_EPOCH,
        Operation.PREFERRED_ELECTION,
        Operation.REASSIGN_BACK,
        Operation.RECREATE_TOPIC,
        Operation.UNREGISTER_BROKER,
    )
)
"""Operations that end when the brokers concerned have received them, or have responded."""

RARE: Final[tuple[Reason, ...]] = (
    Reason(
        "replica",
        frozenset(("looking", "shrinking")),
        _SHORT | {Operation.COMPACTION.value},
        _ANY,
        "The state lasts for one round trip: a follower's request after its log diverged from the leader's, a leader's"
        " proposal after a follower lagged. The operation is as short and causes neither, so that both and the fault"
        " coincide by chance.",
    ),
    Reason(
        "log",
        frozenset(("cutting", "compacting")),
        _SHORT,
        _ANY,
        "The state is one job of a thread. An operation that deletes the topic waits for it or stops it; the others"
        " end before a follower of an uncleanly elected leader knows its truncation offset.",
    ),
    Reason(
        "metadata",
        frozenset(("behind",)),
        _SHORT,
        _ANY,
        "An image is behind while its broker fetches a snapshot, because the records that it lacks were deleted. Such"
        " a broker is fenced, and the operation ends before the broker receives it.",
    ),
    Reason(
        "quorum",
        frozenset(("candidate",)),
        _SHORT,
        _ANY,
        "A candidate waits for one round trip. Meanwhile there is no new leader epoch of a partition to request, and"
        " the response is as fast.",
    ),
)
"""They are possible, and the search continues to look for them."""


def every() -> Iterator[Triple]:
    """All combinations of components, operations and faults, including impossible ones."""
    for component, labels in STATES.items():
        for label in labels:
            for operation in Operation:
                for fault in Fault:
                    yield Triple(component, label, operation.value, fault.value)


def reason_of(triple: Triple) -> str:
    """Why it is never reached; empty if it can be."""
    return next((reason.why for reason in REASONS if reason.covers(triple)), "")


def rare_because(triple: Triple) -> str:
    """Why it is reached only by chance; empty if games should reach it."""
    return next((reason.why for reason in RARE if reason.covers(triple)), "")


def wanted() -> set[Triple]:
    """All triples that can be reached."""
    return {triple for triple in every() if not reason_of(triple)}


def grouped(triples: Iterable[Triple]) -> Mapping[tuple[str, str], str]:
    """By operation and fault, in the order of their lists: `log clean dirty; replica leader`."""
    found: dict[tuple[str, str], dict[str, set[str]]] = {}
    for component, state, operation, fault in triples:
        found.setdefault((operation, fault), {}).setdefault(component, set()).add(state)
    return {
        (operation.value, fault.value): "; ".join(
            " ".join([component, *(state for state in STATES[component] if state in components[component])])
            for component in STATES
            if component in components
        )
        for operation in Operation
        for fault in Fault
        if (components := found.get((operation.value, fault.value))) is not None
    }


def ungrouped(operation: str, fault: str, text: str) -> Iterator[Triple]:
    """The triples of one row of `grouped`. Raises ValueError for any other text."""
    for part in text.split("; "):
        component, *states = part.split(" ")
        if not states or not set(states) <= set(STATES.get(component, ())):
            raise ValueError(f"{part!r} is not a component with its states")
        yield from (Triple(component, state, operation, fault) for state in states)


_COLUMNS: Final[Mapping[Fault, str]] = {
    Fault.KILL: "kill",
    Fault.POWER_LOSS: "power",
    Fault.TORN_WRITE: "torn",
    Fault.STOP: "stop",
    Fault.PAUSE: "pause",
    Fault.PARTITION: "cut",
    Fault.ONE_WAY_PARTITION: "1-way",
    Fault.STRANDED: "strand",
    Fault.DROPPED_CONNECTIONS: "drop",
    Fault.LAG: "lag",
    Fault.QUICK_RETURN: "return",
    Fault.SLOW_DISK: "slow",
    Fault.FULL_DISK: "full",
    Fault.FAILING_DISK: "fail",
    Fault.WRONG_BITS: "bits",
    Fault.WRONG_BYTES: "bytes",
    Fault.DIRECTORY_LOST: "dir",
    Fault.CLOCK_JUMP: "clock",
}
_WIDTH: Final = 7


def unreached(reached: Collection[Triple]) -> str:
    """The output of `make simulate`: the number of missing operations for each state and fault, their names, and the
    sum in the last line."""
    possible = wanted()
    missing = possible.difference(reached)
    by_pair: dict[str, dict[str, set[str]]] = {}
    for component, state, operation, fault in missing:
        by_pair.setdefault(f"{component} {state}", {}).setdefault(fault, set()).add(operation)
    lines: list[str] = []
    if missing:
        lines += ["Triples of a state, an operation and a fault that no seed has reached:", ""]
        lines += [*_matrix(by_pair, {each.fault for each in possible}), "", *_by_state(by_pair), ""]
        lines += [*_reasons(missing), ""]
    count, excused = len(possible), sum(1 for _ in every()) - len(possible)
    lines.append(
        f"{count - len(missing)} of {count} triples reached, {len(missing)} not; {excused} others cannot be reached"
    )
    return "\n".join(lines)


def _reasons(missing: Collection[Triple]) -> Iterator[str]:
    counts = Counter(rare_because(each) for each in missing)
    for why, count in sorted(counts.items(), key=lambda each: (not each[0], -each[1])):
        yield f"  {count} of them: {why}" if why else f"  {count} of them: no known reason, search for games"


def _states() -> Iterator[str]:
    return (f"{component} {label}" for component, labels in STATES.items() for label in labels)


def _matrix(by_pair: Mapping[str, Mapping[str, Collection[str]]], possible: Collection[str]) -> Iterator[str]:
    """Rows are states, columns are faults, cells count operations."""
    faults = [fault for fault in Fault if fault in possible]
    counts = {
        state: [len(by_fault.get(fault, ())) for fault in faults]
        for state in _states()
        if (by_fault := by_pair.get(state)) is not None
    }
    width = max(map(len, counts)) + 2

    def row(head: str, cells: Iterable[object]) -> str:
        return f"  {head:<{width}}" + "".join(f"{cell:>{_WIDTH}}" for cell in cells)

    yield row("missing operations", [_COLUMNS[fault] for fault in faults] + ["sum"])
    for state, cells in counts.items():
        yield row(state, [cell or "." for cell in [*cells, sum(cells)]])
    sums = [sum(column) for column in zip(*counts.values(), strict=True)]
    yield row("sum", [*sums, sum(sums)])


def _by_state(by_pair: Mapping[str, Mapping[str, Collection[str]]]) -> Iterator[str]:
    """Faults of a state that miss the same operations share a line."""
    for state in _states():
        alike: dict[str, list[str]] = {}
        by_fault = by_pair.get(state, {})
        for fault in Fault:
            if fault in by_fault:
                alike.setdefault(_named(by_fault[fault]), []).append(fault.value)
        for operations, faults in alike.items():
            yield f"  {state}, {', '.join(faults)}: {operations}"


def _named(operations: Collection[str]) -> str:
    """The missing operations, or the others if these are fewer."""
    there = [each.value for each in Operation if each in operations]
    others = [each.value for each in Operation if each not in operations]
    if not others:
        return "every operation"
    return f"all but {', '.join(others)}" if len(others) < len(there) else ", ".join(there)
