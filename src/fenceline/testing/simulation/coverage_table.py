"""All triples that there could be, those that cannot, and a table of those that no seed has reached.

Owns the reasons: what cannot be met is listed in `REASONS`, by pattern, with why, and what is met by chance only in
`RARE`. Counts nothing itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from fenceline.testing.simulation.coverage import Triple
from fenceline.testing.simulation.coverage_states import STATES
from fenceline.testing.simulation.operations import Fault, Operation


class Reason(NamedTuple):
    """Why the triples that match are never met, or hardly ever. An empty set matches everything."""

    room: str
    states: frozenset[str]
    operations: frozenset[str]
    faults: frozenset[str]
    why: str

    def covers(self, triple: Triple) -> bool:
        return (
            self.room in ("", triple.room)
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
        "The checksum of a batch leaves out its base offset and leader epoch, so that a wrong bit in a read of these"
        " goes to followers and consumers as a batch that is whole: checks that know each batch would fail where the"
        " format allows no better. It strikes the stories `controller`, `controllers` and `quorum`, whose states are"
        " not sampled; of logs, tests/log/test_recovery.py reads them by a disk that is wrong now and then.",
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
"""Operations that are over when the brokers concerned have heard of them, or have answered."""

RARE: Final[tuple[Reason, ...]] = (
    Reason(
        "replica",
        frozenset(("looking", "shrinking")),
        _SHORT | {Operation.COMPACTION.value},
        _ANY,
        "The state lasts for one round trip: a follower's question after its log did not fit the leader's, a leader's"
        " proposal after a follower lagged. The operation lasts as long and causes neither, so that both and the fault"
        " meet by chance.",
    ),
    Reason(
        "log",
        frozenset(("cutting", "compacting")),
        _SHORT,
        _ANY,
        "The state is one job of a thread. An operation that takes the topic away waits for it or stops it; the others"
        " are over before a follower of an uncleanly elected leader has found out where to cut.",
    ),
    Reason(
        "metadata",
        frozenset(("behind",)),
        _SHORT,
        _ANY,
        "An image is behind while its broker fetches a snapshot, because the records that it lacks are gone. Such a"
        " broker is fenced, and the operation is over before it hears of it.",
    ),
    Reason(
        "quorum",
        frozenset(("candidate",)),
        _SHORT,
        _ANY,
        "A candidate waits for one round trip. Meanwhile there is no new leader epoch of a partition to ask about, and"
        " the question is answered as fast.",
    ),
)
"""Nothing rules them out, and the search goes on looking for them."""


def every() -> Iterator[Triple]:
    """Of all rooms, operations and faults, also what cannot be."""
    for room, labels in STATES.items():
        for label in labels:
            for operation in Operation:
                for fault in Fault:
                    yield Triple(room, label, operation.value, fault.value)


def reason_of(triple: Triple) -> str:
    """Why it is never met; empty where it can be."""
    return next((reason.why for reason in REASONS if reason.covers(triple)), "")


def rare_because(triple: Triple) -> str:
    """Why it is met by chance only; empty where games should reach it."""
    return next((reason.why for reason in RARE if reason.covers(triple)), "")


def wanted() -> set[Triple]:
    """All that can be met."""
    return {triple for triple in every() if not reason_of(triple)}


def grouped(triples: Iterable[Triple]) -> Mapping[tuple[str, str], str]:
    """By operation and fault, in the order of their lists: `log clean dirty; replica leader`."""
    found: dict[tuple[str, str], dict[str, set[str]]] = {}
    for room, state, operation, fault in triples:
        found.setdefault((operation, fault), {}).setdefault(room, set()).add(state)
    return {
        (operation.value, fault.value): "; ".join(
            " ".join([room, *(state for state in STATES[room] if state in rooms[room])])
            for room in STATES
            if room in rooms
        )
        for operation in Operation
        for fault in Fault
        if (rooms := found.get((operation.value, fault.value))) is not None
    }


def ungrouped(operation: str, fault: str, text: str) -> Iterator[Triple]:
    """The triples of one row of `grouped`. Raises ValueError for anything else."""
    for part in text.split("; "):
        room, *states = part.split(" ")
        if not states or not set(states) <= set(STATES.get(room, ())):
            raise ValueError(f"{part!r} is not a room and its states")
        yield from (Triple(room, state, operation, fault) for state in states)


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
    """What `make simulate` prints: how many operations are missing for each state and fault, then which, and the sum in
    the last line."""
    possible = wanted()
    missing = possible.difference(reached)
    by_pair: dict[str, dict[str, set[str]]] = {}
    for room, state, operation, fault in missing:
        by_pair.setdefault(f"{room} {state}", {}).setdefault(fault, set()).add(operation)
    lines: list[str] = []
    if missing:
        lines += ["Triples of a state, an operation and a fault that no seed has reached:", ""]
        lines += [*_matrix(by_pair, {each.fault for each in possible}), "", *_by_state(by_pair), ""]
        lines += [*_whys(missing), ""]
    count, excused = len(possible), sum(1 for _ in every()) - len(possible)
    lines.append(
        f"{count - len(missing)} of {count} triples reached, {len(missing)} not; {excused} others cannot be met"
    )
    return "\n".join(lines)


def _whys(missing: Collection[Triple]) -> Iterator[str]:
    counts = Counter(rare_because(each) for each in missing)
    for why, count in sorted(counts.items(), key=lambda each: (not each[0], -each[1])):
        yield f"  {count} of them: {why}" if why else f"  {count} of them: no reason is known, look for games"


def _states() -> Iterator[str]:
    return (f"{room} {label}" for room, labels in STATES.items() for label in labels)


def _matrix(by_pair: Mapping[str, Mapping[str, Collection[str]]], possible: Collection[str]) -> Iterator[str]:
    """Rows are states, columns faults; each cell counts operations."""
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
    """Faults that miss the same operations of a state share a line."""
    for state in _states():
        alike: dict[str, list[str]] = {}
        by_fault = by_pair.get(state, {})
        for fault in Fault:
            if fault in by_fault:
                alike.setdefault(_named(by_fault[fault]), []).append(fault.value)
        for operations, faults in alike.items():
            yield f"  {state}, {', '.join(faults)}: {operations}"


def _named(operations: Collection[str]) -> str:
    """The shorter of those that are named and those that are not."""
    there = [each.value for each in Operation if each in operations]
    others = [each.value for each in Operation if each not in operations]
    if not others:
        return "every operation"
    return f"all but {', '.join(others)}" if len(others) < len(there) else ", ".join(there)
