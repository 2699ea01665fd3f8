"""The search for seeds that reach triples no seed has reached: which game runs next, and which are kept.

Owns the choice. Most games aim at a fault of which many triples are missing, at a component state that was not reached
with it, and at some of the operations that are missing there: the options of a game of the corpus, or none, changed so
that this fault is frequent, the state is likely, and the operator sends only these operations. The others are new seeds
with the options that they draw. A game that reaches a new triple is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Final

from fenceline.testing.simulation import coverage_table
from fenceline.testing.simulation.brokers_operator import OPERATIONS
from fenceline.testing.simulation.corpus import CorpusEntry, load, save
from fenceline.testing.simulation.coverage import Triple
from fenceline.testing.simulation.operations import Fault, Operation
from fenceline.testing.simulation.stage import SeedOutcome
from fenceline.testing.simulation.workers import Game, played

FAULT_OPTIONS: Final[Mapping[Fault, Mapping[str, tuple[str, ...]]]] = {
    Fault.KILL: {"crash_s": ("1", "2"), "power_chance": ("0",)},
    Fault.POWER_LOSS: {"crash_s": ("1", "2"), "power_chance": ("1",)},
    Fault.TORN_WRITE: {"crash_calls": ("100", "400"), "crash_s": ("2",), "power_chance": ("0.5", "1")},
    Fault.STOP: {"stop_s": ("0.7", "1.5"), "down_s": ("0.1", "0.5")},
    Fault.PAUSE: {"pause_s": ("1", "2"), "paused_s": ("0.5", "2")},
    Fault.PARTITION: {"partition_s": ("1", "2"), "one_way_chance": ("0",)},
    Fault.ONE_WAY_PARTITION: {"partition_s": ("1", "2"), "one_way_chance": ("1",)},
    Fault.STRANDED: {"strand_s": ("0.7",), "unclean": ("0", "1"), "replicas": ("2",), "min_isr": ("1",)},
    Fault.DROPPED_CONNECTIONS: {"drop_s": ("0.5", "1")},
    Fault.LAG: {"lag_s": ("0.3", "0.8")},
    Fault.QUICK_RETURN: {"return_s": ("0.7", "1.5")},
    Fault.SLOW_DISK: {"slow_disk_s": ("0.5", "1.5"), "max_job_ms": ("1", "5")},
    Fault.FULL_DISK: {"full_s": ("0.7", "1.5")},
    Fault.FAILING_DISK: {"fail_s": ("0.7", "1.5")},
    Fault.WRONG_BITS: {},
    Fault.WRONG_BYTES: {"spoil_s": ("0.7", "1.5")},
    Fault.DIRECTORY_LOST: {"lose_dir_s": ("0.7", "1.5"), "log_dirs": ("2",)},
    Fault.CLOCK_JUMP: {"jump_s": ("0.3", "1")},
}
"""Options that make a fault frequent, with values to choose from; empty for a fault that clusters do not have."""

GENTLE: Final = frozenset((Fault.LAG, Fault.SLOW_DISK, Fault.DROPPED_CONNECTIONS, Fault.CLOCK_JUMP))
"""Faults under which a cluster serves requests: a game can have them in addition to its aim."""

CALM: Final[Mapping[str, str]] = dict.fromkeys(
    (
        "crash_s",
        "crash_calls",
        "spoil_s",
        "stop_s",
        "pause_s",
        "partition_s",
        "strand_s",
        "drop_s",
        "lag_s",
        "return_s",
        "slow_disk_s",
        "full_s",
        "fail_s",
        "lose_dir_s",
        "loss_chance",
    ),
    "0",
)
"""No faults: a cluster hit by most of them at once serves no request, and reaches nothing."""

LIKELY: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "log rebased": {"retention": ("1",), "segment_bytes": ("500",), "tidy_ms": ("50",)},
    "log rolled": {"segment_bytes": ("500",)},
    "log cutting": {
        "strand_s": ("0.5", "1"),
        "unclean": ("1",),
        "replicas": ("2",),
        "min_isr": ("1",),
        "topics": ("2",),
        "think_ms": ("10",),
        "max_job_ms": ("20", "100"),
        "slow_disk_s": ("0", "0.5"),
    },
    "log compacting": {
        "compaction": ("1",),
        "segment_bytes": ("500",),
        "tidy_ms": ("50",),
        "slow_disk_s": ("0.3", "1"),
        "max_job_ms": ("5", "20"),
        "think_ms": ("10",),
        "topics": ("2",),
    },
    "log moving": {
        "log_dirs": ("2", "3"),
        "slow_disk_s": ("0.3", "1"),
        "max_job_ms": ("5", "20"),
        "segment_bytes": ("500",),
        "think_ms": ("10",),
        "partitions": ("2",),
    },
    "replica alone": {"replicas": ("2",), "min_isr": ("1",), "crash_s": ("0.7",), "down_s": ("1",)},
    "replica expanding": {"crash_s": ("0.5",), "down_s": ("0.2",), "max_delay_ms": ("10", "50")},
    "replica shrinking": {
        "lag_s": ("0.2",),
        "partition_s": ("0", "0", "2.5"),
        "one_way_chance": ("1",),
        "replicas": ("3",),
        "max_delay_ms": ("50",),
    },
    "replica recovering": {
        "strand_s": ("0.5",),
        "unclean": ("1",),
        "replicas": ("2",),
        "min_isr": ("1",),
        "max_delay_ms": ("50",),
    },
    "replica joining": {"crash_s": ("0.5",), "down_s": ("0.5",), "max_delay_ms": ("10", "50")},
    "replica looking": {
        "min_isr": ("1",),
        "replicas": ("3",),
        "crash_s": ("0.7",),
        "power_chance": ("0", "0.5"),
        "down_s": ("1",),
        "max_delay_ms": ("50",),
        "think_ms": ("10",),
        "topics": ("1",),
    },
    "replica waiting": {"drop_s": ("0.3",), "partition_s": ("0.8",)},
    "replica offline": {"lose_dir_s": ("0.5",), "log_dirs": ("2", "3"), "partitions": ("2",)},
    "replica down": {"crash_s": ("0.5",), "down_s": ("1", "2")},
    "quorum candidate": {"controllers": ("2", "3"), "crash_s": ("0.5",), "down_s": ("0.5",), "max_delay_ms": ("50",)},
    "quorum prospective": {"controllers": ("2", "3"), "pause_s": ("0.5",), "paused_s": ("2",), "max_delay_ms": ("50",)},
    "quorum unattached": {"controllers": ("2", "3"), "partition_s": ("0.5",), "crash_s": ("0.7",)},
    "quorum resigned": {"controllers": ("2", "3"), "stop_s": ("0.4",), "partition_s": ("0.8",)},
    "quorum observer": {"controllers": ("1", "2")},
    "controller loading": {"controllers": ("1", "2", "3"), "crash_s": ("0.4",), "down_s": ("0.1",)},
    "controller deciding": {"controllers": ("2", "3"), "max_delay_ms": ("50",), "max_job_ms": ("100",)},
    "groups loading": {
        "groups": ("3",),
        "crash_s": ("0.5",),
        "down_s": ("0.1",),
        "max_job_ms": ("100",),
        "segment_bytes": ("500",),
    },
    "groups coordinating": {"groups": ("2", "3")},
    "losses undelivered": {"strand_s": ("0.5",), "unclean": ("1",), "replicas": ("2",), "min_isr": ("1",)},
    "metadata starting": {"crash_s": ("0.4",), "down_s": ("0.1",), "max_job_ms": ("50", "100")},
    "metadata behind": {
        "forget_metadata": ("1",),
        "snapshot_bytes": ("300",),
        "snapshot_interval_ms": ("200",),
        "controllers": ("1", "3", "3"),
        "replicas": ("3",),
        "min_isr": ("1",),
        "pause_s": ("0.7",),
        "paused_s": ("2",),
        "partition_s": ("0", "0.7"),
        "max_job_ms": ("50", "100"),
    },
    "metadata snapshotting": {"snapshot_bytes": ("300",), "snapshot_interval_ms": ("200",), "max_job_ms": ("100",)},
    "metadata fenced": {"pause_s": ("0.5",), "paused_s": ("5",), "partition_s": ("0.8",)},
}
"""Options that make a component state likely; the others are reached anyway."""

_GROUPS: Final = {"groups": ("2", "3")}
_NEEDS: Final[Mapping[Operation, Mapping[str, tuple[str, ...]]]] = {
    Operation.COMPACTION: {"compaction": ("1",), "segment_bytes": ("500",), "tidy_ms": ("50",)},
    Operation.RETENTION: {"retention": ("1",), "segment_bytes": ("500",), "tidy_ms": ("50",)},
    Operation.METADATA_SNAPSHOT: {"snapshot_bytes": ("300",), "snapshot_interval_ms": ("200",)},
    Operation.UNCLEAN_ELECTION: {"unclean": ("1",)},
    Operation.MOVE_DIRECTORY: {"log_dirs": ("2", "3")},
    Operation.UNREGISTER_BROKER: {"crash_s": ("0.7",), "down_s": ("1", "2")},
    Operation.COMMIT_OFFSETS: _GROUPS,
    Operation.FETCH_COMMITTED: _GROUPS,
    Operation.RESET_OFFSETS: _GROUPS,
    Operation.DELETE_OFFSETS: _GROUPS,
    Operation.DELETE_GROUP: _GROUPS,
}
"""Options without which an operation is rare or does not occur."""

_CAUSED_BY: Final[Mapping[str, Operation]] = {
    "log moving": Operation.MOVE_DIRECTORY,
    "replica looking": Operation.DELETE_RECORDS,
}
"""Operations without which a state is rare."""

_REQUESTED_BY: Final[Mapping[Operation, Operation]] = {
    Operation.REASSIGN_BACK: Operation.REASSIGN,
    Operation.DELETE_TOPIC: Operation.CREATE_TOPIC,
}
"""The request of the operator of which another operation is a part."""

_MUTATIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "controllers": ("1", "2", "3"),
    "topics": ("1", "2"),
    "partitions": ("1", "2"),
    "replicas": ("0", "2", "3"),
    "min_isr": ("0", "1", "2"),
    "unclean": ("0", "1"),
    "elr": ("0", "1"),
    "compaction": ("0", "1"),
    "retention": ("0", "1"),
    "segment_bytes": ("0", "500", "1000"),
    "segment_ms": ("100", "2000", "604800000"),
    "checkpoint_ms": ("100", "300", "2000", "2147483647"),
    "flush_ms": ("100", "1000", "2147483647"),
    "tidy_ms": ("100", "300", "2000"),
    "think_ms": ("10", "30", "100"),
    "max_job_ms": ("0.1", "5", "20", "100"),
    "max_delay_ms": ("0.5", "2", "10", "50"),
    "snapshot_bytes": ("300", "2000"),
    "snapshot_interval_ms": ("200", "5000"),
    "down_s": ("0.05", "0.5", "1"),
}
"""Changes of a game in addition to its aim."""

_NEW_SEEDS: Final = 0.02
_AT_THE_MOMENT: Final = 0.85
"""Share of games whose faults wait for a state."""
_FAULTS_OF_AN_AIM: Final = 8
_ALSO_ELSEWHERE: Final = 0.3
"""Share of the games whose faults wait for a state in which one of these faults is also injected at other times."""
_AT_ONCE: Final = 4
"""Maximum of operations and faults that one game aims at."""
_LEAST: Final = 3
"""New triples that a new entry needs; one is enough if nothing better was found for a while."""
_PATIENCE: Final = 40
"""Games."""


class Search:
    """A search that extends one corpus. `base`: the first new seed."""

    def __init__(self, path: Path, base: int) -> None:
        """Raises ValueError if the corpus cannot be read."""
        self._path = path
        self._rng = Random(base)
        self._next_seed = base
        self.entries = load(path)
        self.wanted = coverage_table.wanted()
        self.reached: set[Triple] = set().union(*(entry.first for entry in self.entries))
        self._misses = 0

    def replay(self, workers: int, report: Callable[[SeedOutcome], None]) -> None:
        """Run the corpus again, and keep what reaches something: always the game that reaches most of the remaining
        triples. Games that are kept for another reason stay first."""
        left: dict[int, frozenset[Triple]] = {}
        with closing(played([entry.game for entry in self.entries], workers)) as found:
            for place, outcome in enumerate(found):
                report(outcome)
                left[place] = frozenset(self.wanted & outcome.triples.keys())
        self.reached.clear()
        kept: list[CorpusEntry] = []
        for place in [place for place, entry in enumerate(self.entries) if not entry.first]:
            kept.append(CorpusEntry(self.entries[place].game, frozenset()))
            del left[place]
        while left:
            best = max(left, key=lambda place: len(left[place] - self.reached))
            first = left.pop(best) - self.reached
            if not first:
                break
            self.reached |= first
            kept.append(CorpusEntry(self.entries[best].game, first))
        self.entries = kept
        save(self._path, kept)

    def run(self, workers: int, is_over: Callable[[], bool], report: Callable[[SeedOutcome], None]) -> None:
        """Search until `is_over`, or until nothing is missing. Each new entry is saved at once."""
        games: list[Game] = []

        def next_games() -> Iterator[Game]:
            while not is_over() and not self.wanted <= self.reached:
                games.append(self._next())
                yield games[-1]

        with closing(played(next_games(), workers, ahead=1)) as found:
            for outcome in found:
                report(outcome)
                game = games.pop(0)
                if outcome.failure is None:  # a failed game is a finding: no entry until it is fixed
                    self._add(game, outcome.triples)

    def _add(self, game: Game, triples: Iterable[Triple]) -> None:
        first = frozenset((self.wanted & set(triples)) - self.reached)
        self._misses += 1
        if len(first) >= (_LEAST if self._misses < _PATIENCE else 1):
            self._misses = 0
            self.reached |= first
            self.entries.append(CorpusEntry(game, first))
            save(self._path, self.entries)

    def _next(self) -> Game:
        rng = self._rng
        self._next_seed += 1
        if rng.random() < _NEW_SEEDS:
            return Game("operations", self._next_seed, {})
        if rng.random() < _AT_THE_MOMENT:
            return self._at_the_moment()
        is_known = self.entries and rng.random() < 0.3
        overrides = dict(rng.choice(self.entries).game.overrides if is_known else CALM)
        for name in rng.sample(sorted(_MUTATIONS), rng.randint(1, 4)):
            overrides[name] = rng.choice(_MUTATIONS[name])
        faults, states, operations = self._aim()
        return self._game(overrides, states, operations, [FAULT_OPTIONS[each] for each in faults])

    def _at_the_moment(self) -> Game:
        """A game whose faults wait for a state of a node."""
        rng = self._rng
        missing = sorted(self.wanted - self.reached)
        aim = self._likeliest([f"{each.component} {each.state}" for each in missing])
        there = [each for each in missing if f"{each.component} {each.state}" == aim]
        faults = sorted(
            {self._likeliest([each.fault for each in there]) for _ in range(rng.randint(2, _FAULTS_OF_AN_AIM))}
        )
        there = [each for each in there if each.fault in faults]
        operations = sorted({self._likeliest([each.operation for each in there]) for _ in range(_AT_ONCE)})
        overrides = dict(CALM)
        for name in rng.sample(sorted(_MUTATIONS), rng.randint(0, 3)):
            overrides[name] = rng.choice(_MUTATIONS[name])
        overrides |= {"aim": aim, "aim_faults": ",".join(faults), "aim_s": rng.choice(("0.2", "0.7"))}
        fault_options = [FAULT_OPTIONS[Fault(each)] for each in rng.sample(faults, 1) if rng.random() < _ALSO_ELSEWHERE]
        if Fault.DIRECTORY_LOST in faults:
            fault_options.append({"log_dirs": ("2",)})
        return self._game(overrides, [aim], [Operation(each) for each in operations], fault_options)

    def _game(
        self,
        overrides: dict[str, str],
        states: list[str],
        operations: list[Operation],
        fault_options: list[Mapping[str, tuple[str, ...]]],
    ) -> Game:
        """With these options, and those that make the states likely, the operations possible and the faults
        frequent."""
        rng = self._rng
        overrides |= {
            "operate_s": rng.choice(("0.1", "0.3")),
            "safety_s": rng.choice(("12", "24")),
            "calm_s": rng.choice(("0", "2", "2")),
            "load_s": "1.2",
            "quiet_s": rng.choice(("0", "0.5")),
        }
        likely = [LIKELY[state] for state in states if state in LIKELY]
        needed = [_NEEDS[each] for each in operations if each in _NEEDS]
        for options in (*fault_options, *needed, *likely):
            for name, values in options.items():
                overrides[name] = rng.choice(values)
        requests = [request for each in operations if (request := _REQUESTED_BY.get(each, each)) in OPERATIONS]
        requests += [each for state, each in _CAUSED_BY.items() if state in states and each not in requests]
        if requests:
            overrides["operations"] = ",".join(each.value for each in requests)
        return Game("operations", self._next_seed, overrides)

    def _aim(self) -> tuple[list[Fault], list[str], list[Operation]]:
        """One or two states (`component state`), some faults and some operations, weighted by the number of their
        missing triples. The main fault comes last."""
        rng = self._rng
        missing = sorted(self.wanted - self.reached)
        fault = self._likeliest([each.fault for each in missing])
        with_fault = [each for each in missing if each.fault == fault]
        states = [self._likeliest([f"{each.component} {each.state}" for each in with_fault])]
        if rng.random() < 0.3:
            states.append(self._likeliest([f"{each.component} {each.state}" for each in with_fault]))
        there = [each for each in missing if f"{each.component} {each.state}" == states[0]]
        operations = sorted({each.operation for each in there if each.fault == fault})
        others = sorted(GENTLE & {each.fault for each in there} - {fault})
        faults = [*rng.sample(others, min(rng.randrange(_AT_ONCE), len(others))), fault]
        chosen = rng.sample(operations, min(_AT_ONCE, len(operations)))
        return [Fault(each) for each in faults], states, [Operation(each) for each in chosen]

    def _likeliest(self, names: list[str]) -> str:
        """One of the names, weighted by its frequency."""
        counts = Counter(names)
        return self._rng.choices(list(counts), list(counts.values()))[0]
