"""Play seeds from the command line: `python -m fenceline.testing.simulation [STORY] --seed N | --seeds A..B`.

Owns arguments and what is printed. The exit code is 1 when a seed failed, and 130 when Ctrl-C came before the last one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from contextlib import closing
from itertools import count

from fenceline.testing.simulation.stage import ALL, STORIES, play
from fenceline.testing.simulation.workers import outcomes


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fenceline.testing.simulation", description=__doc__.split("\n")[0])
    parser.add_argument("story", nargs="?", default="controller", choices=[ALL, *sorted(STORIES)])
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seed", type=int, help="play one seed")
    which.add_argument("--seeds", help="play a range: A..B without B, or A.. until stopped")
    parser.add_argument("--trace", action="store_true", help="print every event")
    parser.add_argument("--option", action="append", default=[], metavar="K=V", help="set an option by hand")
    parser.add_argument("--workers", type=int, default=1, help="processes that play seeds")
    parser.add_argument("--limit-s", type=float, default=0, help="end after this many seconds, in order")
    parser.add_argument("--progress", type=int, default=0, metavar="N", help="print a line after each N seeds")
    parser.add_argument("--stop", action="store_true", help="stop at the first failure")
    return parser.parse_args(argv)


def _range(text: str) -> Iterable[int]:
    first, _, last = text.partition("..")
    return range(int(first), int(last)) if last else count(int(first))


def main(argv: list[str] | None = None) -> int:
    """See the module."""
    arguments = _arguments(argv)
    overrides = dict(each.split("=", 1) for each in arguments.option)
    if arguments.seed is not None or arguments.seeds is None:
        return _one(arguments.seed or 0, arguments.story, overrides, trace=arguments.trace)
    return _many(_range(arguments.seeds), arguments, overrides)


def _one(seed: int, story: str, overrides: dict[str, str], *, trace: bool) -> int:
    outcome = play(seed, story, overrides=overrides, sink=print if trace else None)
    if outcome.failure is not None:
        print(outcome.report())
    else:
        print(f"seed {seed} of story {outcome.story} is well; options: {outcome.options}")
    print(
        f"hash {outcome.digest}, {outcome.events} events, {outcome.steps} callbacks, {outcome.changes} states checked,"
        f" {outcome.committed} batches committed, faults {outcome.struck}"
    )
    print(f"{outcome.virtual_s:.1f} virtual s in {outcome.cpu_s:.2f} CPU s ({outcome.virtual_s / outcome.cpu_s:.0f}x)")
    return outcome.failure is not None


def _many(seeds: Iterable[int], arguments: argparse.Namespace, overrides: dict[str, str]) -> int:
    began = time.monotonic()
    played = failed = code = 0
    cpu_s = virtual_s = 0.0
    struck: dict[str, int] = {}
    try:
        with closing(outcomes(seeds, arguments.story, overrides, arguments.workers)) as found:
            for outcome in found:
                played += 1
                cpu_s += outcome.cpu_s
                virtual_s += outcome.virtual_s
                for kind, times in outcome.struck.items():
                    struck[kind] = struck.get(kind, 0) + times
                if outcome.failure is not None:
                    failed += 1
                    print(outcome.report(), flush=True)
                    if arguments.stop:
                        break
                if arguments.progress and played % arguments.progress == 0:
                    print(f"{played} seeds, {failed} failed, {time.monotonic() - began:.0f} s", flush=True)
                if 0 < arguments.limit_s < time.monotonic() - began:
                    break
    except KeyboardInterrupt:
        code = 130 if isinstance(seeds, range) else 0
    took_s = time.monotonic() - began
    faults = ", ".join(f"{kind} {times}" for kind, times in sorted(struck.items()))
    print(
        f"{played} seeds, {failed} failed; {took_s:.0f} s, {played / took_s:.1f} seeds/s with {arguments.workers}"
        f" worker(s), {cpu_s / max(played, 1):.3f} CPU s a seed; {virtual_s:.0f} virtual s in {cpu_s:.1f} CPU s"
        f" ({virtual_s / max(cpu_s, 1e-9):.0f}x)\nfaults: {faults}",
        flush=True,
    )
    return 1 if failed else code


if __name__ == "__main__":
    sys.exit(main())
