"""Processes that run seeds side by side: outcomes come in the order of the seeds.

Owns the processes and their end: at the latest when the process that started them ends, even if that one is killed.
Runs no seed itself.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from typing import Final, NamedTuple

from fenceline.testing.simulation.stage import SeedOutcome, play

_AHEAD: Final = 32
"""Seeds per worker that are queued ahead of the first unreported outcome, so that a long seed does not block the
others."""


class Game(NamedTuple):
    """A seed with options. `overrides` as for `play`."""

    scenario: str
    seed: int
    overrides: Mapping[str, str]


def outcomes(
    seeds: Iterable[int], scenario: str, overrides: Mapping[str, str], workers: int
) -> Generator[SeedOutcome, None, None]:
    """The outcome of each seed, in order. Closing the generator ends the workers after their current seed."""
    return played((Game(scenario, seed, overrides) for seed in seeds), workers)


def played(games: Iterable[Game], workers: int, *, ahead: int = _AHEAD) -> Generator[SeedOutcome, None, None]:
    """The outcome of each game, in order, like `outcomes`. `ahead`: games per worker that are queued ahead."""
    if workers <= 1:
        yield from map(_play, games)
        return
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_begin)
    try:
        waiting = iter(games)
        given: deque[Future[SeedOutcome]] = deque(pool.submit(_play, game) for game in islice(waiting, ahead * workers))
        while given:
            outcome = given.popleft().result()
            given.extend(pool.submit(_play, game) for game in islice(waiting, 1))
            yield outcome
    finally:
        pool.shutdown(cancel_futures=True)


def _play(game: Game) -> SeedOutcome:
    return play(game.seed, game.scenario, overrides=dict(game.overrides))


def _begin() -> None:
    """Only the process that distributes seeds handles Ctrl-C; a worker ends with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None, "a worker has a parent process"
    wait([parent.sentinel])
    os._exit(1)
