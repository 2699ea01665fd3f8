"""Run stories from the command line: `python -m fenceline.testing.applications FILE[::STORY] --seeds 0..200`.

Owns the arguments and the output. The exit code is 1 if a seed failed, 2 for wrong arguments, 130 after Ctrl-C. The
command sets PYTHONHASHSEED=0 and starts again, so that a seed also determines the order of sets of strings.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable
from contextlib import closing
from itertools import count

from fenceline.errors import OperatorError
from fenceline.testing.applications.forks import outcomes
from fenceline.testing.applications.loading import stories_of
from fenceline.testing.applications.one_seed import COMMAND, StoryJob, StoryOutcome
from fenceline.testing.applications.shrinking import shortest
from fenceline.testing.applications.story import Story


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__.split("\n")[0])
    parser.add_argument("story", metavar="FILE[::STORY]", help="a Python file with stories, or one of them")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seed", type=int, help="tell one seed")
    which.add_argument("--seeds", default="0..200", help="a range: A..B (B excluded), or A.. until stopped")
    parser.add_argument(
        "--faults", metavar="N,N", help="with --seed: inject only these faults of it; none for no fault"
    )
    parser.add_argument("--shrink", action="store_true", help="with --seed: search for the shortest story that fails")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every event of nodes and network")
    parser.add_argument("--workers", type=int, default=1, help="number of processes that run seeds")
    parser.add_argument("--no-fork", action="store_true", help="form a cluster for each seed: slower, the same outcome")
    parser.add_argument("--all", action="store_true", help="continue after a failure; stories are not shortened")
    parser.add_argument("--progress", type=int, default=0, metavar="N", help="print a line after every N seeds")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """See the module."""
    arguments = _arguments(sys.argv[1:] if argv is None else argv)
    try:
        stories = stories_of(arguments.story)
        if arguments.seed is not None:
            return max([_one(story, arguments) for story in stories])
        seeds = _range(arguments.seeds)
        return max([_many(story, seeds, arguments) for story in stories])
    except OperatorError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _range(text: str) -> Iterable[int]:
    first, separator, last = text.partition("..")
    try:
        return range(int(first), int(last)) if last else count(int(first)) if separator else range(int(first))
    except ValueError:
        raise OperatorError(f"--seeds {text} is not a range", "Write A..B, for example 0..200.") from None


def _faults(text: str | None) -> frozenset[int] | None:
    if text is None:
        return None
    try:
        return frozenset(int(each) for each in text.split(",") if each and each != "none")
    except ValueError:
        raise OperatorError(f"--faults {text} is no list of numbers", "Write for example --faults 2,5.") from None


def _forks(arguments: argparse.Namespace) -> bool | None:
    return False if arguments.no_fork else None


def _one(story: Story, arguments: argparse.Namespace) -> int:
    job = StoryJob(arguments.seed, _faults(arguments.faults))
    sink = print if arguments.trace else None
    outcome = next(outcomes(story, [job], forks=_forks(arguments), sink=sink))
    if outcome.failure is not None and arguments.shrink:
        outcome = shortest(story, outcome, arguments.workers, forks=_forks(arguments))
    print(outcome.report())
    print(
        f"hash {outcome.digest}, {outcome.virtual_s:.1f} virtual s in {outcome.cpu_s:.3f} CPU s,"
        f" {outcome.steps} callbacks"
    )
    return outcome.failure is not None


def _many(story: Story, seeds: Iterable[int], arguments: argparse.Namespace) -> int:
    began_s = time.monotonic()
    told = failed = faults = 0
    cpu_s = virtual_s = 0.0
    first: StoryOutcome | None = None
    with closing(outcomes(story, map(StoryJob, seeds), arguments.workers, forks=_forks(arguments))) as found:
        for outcome in found:
            told += 1
            cpu_s += outcome.cpu_s
            virtual_s += outcome.virtual_s
            faults += len(outcome.injected)
            if outcome.failure is not None:
                failed += 1
                first = first or outcome
                if not arguments.all:
                    break
                print(f"seed {outcome.job.seed} failed: {outcome.failure}; again: {outcome.command}", flush=True)
            if arguments.progress and told % arguments.progress == 0:
                print(f"{told} seeds, {failed} failed, {time.monotonic() - began_s:.0f} s", flush=True)
    took_s = max(time.monotonic() - began_s, 1e-9)
    if first is not None and not arguments.all:
        print(shortest(story, first, arguments.workers, forks=_forks(arguments)).report())
    print(
        f"{story.name}: {told} seeds, {failed} failed; {took_s:.1f} s, {told / took_s:.0f} seeds/s with"
        f" {arguments.workers} worker(s), {1000 * cpu_s / max(told, 1):.0f} CPU ms and {virtual_s / max(told, 1):.1f}"
        f" virtual s a seed; {faults} faults",
        flush=True,
    )
    return failed > 0


if __name__ == "__main__":
    if "PYTHONHASHSEED" not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main())
