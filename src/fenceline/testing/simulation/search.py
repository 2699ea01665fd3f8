"""The search for seeds that meet what no seed has met: which game is played next, and which are kept.

Owns the choice. Most games aim at one pair of an operation and a fault of which many triples are missing: options of a
game of the corpus, changed so that this fault strikes often while the operator asks for this operation often. The
others are new seeds with what they draw. A game that reaches something new is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Final

from fenceline.testing.simulation import coverage_table
from fenceline.testing.simulation.brokers_operator import OPERATIONS
from fenceline.testing.simulation.corpus import Entry, load, save
from fenceline.testing.simulation.coverage import Triple
from fenceline.testing.simulation.operations import Fault, Operation
from fenceline.testing.simulation.stage import Outcome
from fenceline.testing.simulation.workers import Game, played

STRIKES: Final[Mapping[Fault, Mapping[str, tuple[str, ...]]]] = {
    Fault.KILL: {"crash_s": ("0.4", "1.0"), "power_chance": ("0",)},
    Fault.POWER_LOSS: {"crash_s": ("0.4", "1.0"), "power_chance": ("1",)},
    Fault.TORN_WRITE: {"crash_calls": ("30", "100", "400"), "crash_s": ("1.0",), "power_chance": ("0.5", "1")},
    Fault.STOP: {"stop_s": ("0.7", "1.5")},
    Fault.PAUSE: {"pause_s": ("0.5", "1.0"), "paused_s": ("0.5", "2")},
    Fault.PARTITION: {"partition_s": ("0.8", "2"), "one_way_chance": ("0",)},
    Fault.ONE_WAY_PARTITION: {"partition_s": ("0.8", "2"), "one_way_chance": ("1",)},
    Fault.STRANDED: {"strand_s": ("0.7",), "unclean": ("0", "1"), "replicas": ("2",), "min_isr": ("1",)},
    Fault.DROPPED_CONNECTIONS: {"drop_s": ("0.3", "1")},
    Fault.LAG: {"lag_s": ("0.3", "0.8")},
    Fault.QUICK_RETURN: {"return_s": ("0.5", "0.9")},
    Fault.SLOW_DISK: {"slow_disk_s": ("0.5", "1.5")},
    Fault.FULL_DISK: {"full_s": ("0.5", "1.5")},
    Fault.FAILING_DISK: {},
    Fault.WRONG_BITS: {},
    Fault.WRONG_BYTES: {},
    Fault.DIRECTORY_LOST: {"lose_dir_s": ("0.5", "1.5"), "log_dirs": ("2",)},
    Fault.CLOCK_JUMP: {"jump_s": ("0.3", "1")},
}
"""Options that make a fault strike often, with values to choose from; none where only another story has it."""

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
    "segment_bytes": ("0", "300", "1000"),
    "segment_ms": ("100", "2000", "604800000"),
    "checkpoint_ms": ("20", "300", "2000", "2147483647"),
    "flush_ms": ("50", "1000", "2147483647"),
    "tidy_ms": ("50", "300", "2000"),
    "think_ms": ("10", "30", "100"),
    "max_job_ms": ("0.1", "5", "20", "100"),
    "max_delay_ms": ("0.5", "2", "10", "50"),
    "snapshot_bytes": ("300", "2000"),
    "snapshot_interval_ms": ("200", "5000"),
    "down_s": ("0.05", "0.5", "2"),
    "crash_s": ("0", "0.7", "2"),
    "lag_s": ("0", "0.5"),
}
"""What a game is changed by besides its aim."""

_NEW_SEEDS: Final = 0.2
_LEAST: Final = 3
"""New triples that make an entry; one is enough once nothing better was found for a while."""
_PATIENCE: Final = 40
"""Games."""


class Search:
    """Over one corpus. `base`: new seeds are counted from there."""

    def __init__(self, path: Path, base: int) -> None:
        """Raises ValueError where the corpus cannot be read."""
        self._path = path
        self._rng = Random(base)
        self._next_seed = base
        self.entries = load(path)
        self.wanted = coverage_table.wanted()
        self.reached: set[Triple] = set().union(*(entry.first for entry in self.entries))
        self._misses = 0

    def replay(self, workers: int, tell: Callable[[Outcome], None]) -> None:
        """Play the corpus anew, and keep of each entry what it reaches first now."""
        self.reached.clear()
        kept: list[Entry] = []
        with closing(played([entry.game for entry in self.entries], workers)) as found:
            for entry, outcome in zip(self.entries, found, strict=True):
                tell(outcome)
                first = frozenset((self.wanted & outcome.triples.keys()) - self.reached)
                self.reached |= first
                if first or not entry.first:
                    kept.append(Entry(entry.game, first))
        self.entries = kept
        save(self._path, kept)

    def run(self, workers: int, is_over: Callable[[], bool], tell: Callable[[Outcome], None]) -> None:
        """Until `is_over`, or nothing is wanted any more. Each find is saved at once."""
        games: list[Game] = []

        def next_games() -> Iterator[Game]:
            while not is_over() and not self.wanted <= self.reached:
                games.append(self._next())
                yield games[-1]

        with closing(played(next_games(), workers, ahead=1)) as found:
            for outcome in found:
                tell(outcome)
                self._take(games.pop(0), outcome.triples)

    def _take(self, game: Game, triples: Iterable[Triple]) -> None:
        first = frozenset((self.wanted & set(triples)) - self.reached)
        self._misses += 1
        if len(first) >= (_LEAST if self._misses < _PATIENCE else 1):
            self._misses = 0
            self.reached |= first
            self.entries.append(Entry(game, first))
            save(self._path, self.entries)

    def _next(self) -> Game:
        rng = self._rng
        self._next_seed += 1
        if rng.random() < _NEW_SEEDS:
            return Game("operations", self._next_seed, {})
        overrides = dict(rng.choice(self.entries).game.overrides) if self.entries and rng.random() < 0.5 else {}
        for name in rng.sample(sorted(_MUTATIONS), rng.randint(1, 4)):
            overrides[name] = rng.choice(_MUTATIONS[name])
        operation, fault = self._aim()
        for name, values in STRIKES.get(fault, {}).items():
            overrides[name] = rng.choice(values)
        if operation in OPERATIONS:
            others = [rng.choice(sorted(OPERATIONS)).value for _ in range(rng.randint(0, 2))]
            overrides["operations"] = ",".join([operation.value, *others])
            overrides["operate_s"] = rng.choice(("0.1", "0.3"))
        if operation is Operation.UNCLEAN_ELECTION:
            overrides["unclean"] = "1"
        return Game("operations", self._next_seed, overrides)

    def _aim(self) -> tuple[Operation, Fault]:
        """A pair, the likelier the more of its triples are missing."""
        missing: dict[tuple[str, str], int] = {}
        for triple in self.wanted - self.reached:
            pair = (triple.operation, triple.fault)
            missing[pair] = missing.get(pair, 0) + 1
        pairs = sorted(missing)
        operation, fault = self._rng.choices(pairs, [missing[pair] ** 2 for pair in pairs])[0]
        return Operation(operation), Fault(fault)
