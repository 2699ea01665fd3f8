"""Run seeds from the command line: `python -m fenceline.testing.simulation [SCENARIO] --seed N | --seeds A..B`.

With `--corpus FILE`, the games of that file run first, and the output ends with a table of what no game has reached.
With `--search` as well, new games are searched for, starting at the first of `--seeds`, until `--limit-s`, and are
written to it.

Owns the arguments and the output. The exit code is 1 if a seed failed, and 130 if Ctrl-C interrupted the run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from contextlib import closing
from itertools import chain, count
from pathlib import Path

from fenceline.testing.simulation import coverage_table
from fenceline.testing.simulation.corpus import load
from fenceline.testing.simulation.coverage import Triple
from fenceline.testing.simulation.search import Search
from fenceline.testing.simulation.stage import ALL, SCENARIOS, SeedOutcome, play
from fenceline.testing.simulation.workers import Game, played


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fenceline.testing.simulation", description=__doc__.split("\n")[0])
    parser.add_argument("scenario", nargs="?", default="controller", choices=[ALL, *sorted(SCENARIOS)])
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seed", type=int, help="run one seed")
    which.add_argument("--seeds", help="run a range: A..B (B excluded), or A.. until stopped")
    parser.add_argument("--trace", action="store_true", help="print every event")
    parser.add_argument(
        "--option", action="append", default=[], metavar="K=V", help="override an option that the seed draws"
    )
    parser.add_argument("--workers", type=int, default=1, help="number of processes that run seeds")
    parser.add_argument(
        "--limit-s", type=float, default=0, help="stop after this many seconds; a search first replays the corpus"
    )
    parser.add_argument("--progress", type=int, default=0, metavar="N", help="print a line after every N seeds")
    parser.add_argument("--corpus", type=Path, metavar="FILE", help="run the games of this file first")
    parser.add_argument("--search", action="store_true", help="search for games that reach what the corpus does not")
    parser.add_argument("--stop", action="store_true", help="stop at the first failure")
    return parser.parse_args(argv)


def _range(text: str) -> Iterable[int]:
    first, _, last = text.partition("..")
    return range(int(first), int(last)) if last else count(int(first))


def main(argv: list[str] | None = None) -> int:
    """See the module."""
    arguments = _arguments(argv)
    overrides = dict(each.split("=", 1) for each in arguments.option)
    if arguments.search:
        return _search(arguments)
    if arguments.seed is not None or (arguments.seeds is None and arguments.corpus is None):
        return _one(arguments.seed or 0, arguments.scenario, overrides, trace=arguments.trace)
    return _many(arguments, overrides)


def _one(seed: int, scenario: str, overrides: dict[str, str], *, trace: bool) -> int:
    outcome = play(seed, scenario, overrides=overrides, sink=print if trace else None)
    if outcome.failure is not None:
        print(outcome.report())
    else:
        print(f"seed {seed} of scenario {outcome.scenario} passed; options: {outcome.options}")
    print(
        f"hash {outcome.digest}, {outcome.events} events, {outcome.steps} callbacks, {outcome.changes} states checked,"
        f" {outcome.committed} batches committed, faults {outcome.struck}"
    )
    print(f"{outcome.virtual_s:.1f} virtual s in {outcome.cpu_s:.2f} CPU s ({outcome.virtual_s / outcome.cpu_s:.0f}x)")
    return outcome.failure is not None


class _Totals:
    """Totals over all games that ran, with a progress line at intervals."""

    def __init__(self, progress: int, workers: int) -> None:
        self._began = time.monotonic()
        self._progress = progress
        self._workers = workers
        self.played = self.failed = 0
        self._cpu_s = self._virtual_s = 0.0
        self._struck: dict[str, int] = {}
        self.reached: set[Triple] = set()

    @property
    def took_s(self) -> float:
        return time.monotonic() - self._began

    def add(self, outcome: SeedOutcome) -> None:
        self.played += 1
        self._cpu_s += outcome.cpu_s
        self._virtual_s += outcome.virtual_s
        self.reached.update(outcome.triples)
        for kind, times in outcome.struck.items():
            self._struck[kind] = self._struck.get(kind, 0) + times
        if outcome.failure is not None:
            self.failed += 1
            print(outcome.report(), flush=True)
        if self._progress and self.played % self._progress == 0:
            print(f"{self.played} seeds, {self.failed} failed, {self.took_s:.0f} s", flush=True)

    def print_totals(self) -> None:
        faults = ", ".join(f"{kind} {times}" for kind, times in sorted(self._struck.items()))
        took_s = max(self.took_s, 1e-9)
        print(
            f"{self.played} seeds, {self.failed} failed; {took_s:.0f} s, {self.played / took_s:.1f} seeds/s with"
            f" {self._workers} worker(s), {self._cpu_s / max(self.played, 1):.3f} CPU s a seed; {self._virtual_s:.0f}"
            f" virtual s in {self._cpu_s:.1f} CPU s ({self._virtual_s / max(self._cpu_s, 1e-9):.0f}x)"
        )
        print(f"faults: {faults}", flush=True)


def _many(arguments: argparse.Namespace, overrides: dict[str, str]) -> int:
    seeds = _range(arguments.seeds) if arguments.seeds is not None else range(0)
    games: Iterable[Game] = (Game(arguments.scenario, seed, overrides) for seed in seeds)
    if arguments.corpus is not None:
        games = chain([entry.game for entry in load(arguments.corpus)], games)
    totals, code = _Totals(arguments.progress, arguments.workers), 0
    try:
        with closing(played(games, arguments.workers)) as found:
            for outcome in found:
                totals.add(outcome)
                if (outcome.failure is not None and arguments.stop) or 0 < arguments.limit_s < totals.took_s:
                    break
    except KeyboardInterrupt:
        code = 130 if isinstance(seeds, range) else 0
    if arguments.corpus is not None:
        print(coverage_table.unreached(totals.reached))
    totals.print_totals()
    return 1 if totals.failed else code


def _search(arguments: argparse.Namespace) -> int:
    """Run the corpus again, then search for new games."""
    if arguments.corpus is None:
        raise SystemExit("--search needs --corpus FILE, the file to which new games are written")
    base = int((arguments.seeds or "0").partition("..")[0])
    totals, code = _Totals(arguments.progress, arguments.workers), 0
    search = Search(arguments.corpus, base)
    try:
        search.replay(arguments.workers, totals.add)
        search.run(arguments.workers, lambda: 0 < arguments.limit_s < totals.took_s, totals.add)
    except KeyboardInterrupt:
        code = 130
    print(coverage_table.unreached(search.reached))
    totals.print_totals()
    print(f"{len(search.entries)} games in {arguments.corpus}")
    return 1 if totals.failed else code


if __name__ == "__main__":
    sys.exit(main())
