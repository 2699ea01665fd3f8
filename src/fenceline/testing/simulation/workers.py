"""Processes that play seeds side by side: outcomes come in the order of the seeds.

Owns the processes and how they end: with the one that started them at the latest, also where that is killed. Plays
nothing itself.
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

from fenceline.testing.simulation.stage import Outcome, play

_AHEAD: Final = 32
"""Seeds for each worker that are given out before the first of them is told: a long one holds nobody up."""


class Game(NamedTuple):
    """What is to be played. `overrides` as `play` takes them."""

    story: str
    seed: int
    overrides: Mapping[str, str]


def outcomes(
    seeds: Iterable[int], story: str, overrides: Mapping[str, str], workers: int
) -> Generator[Outcome, None, None]:
    """Of each seed, in order. Who stops to ask ends the workers, once they have played what they are at."""
    return played((Game(story, seed, overrides) for seed in seeds), workers)


def played(games: Iterable[Game], workers: int, *, ahead: int = _AHEAD) -> Generator[Outcome, None, None]:
    """Of each game, in order, as `outcomes`. `ahead`: how many for each worker are given out ahead."""
    if workers <= 1:
        yield from map(_play, games)
        return
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_begin)
    try:
        waiting = iter(games)
        given: deque[Future[Outcome]] = deque(pool.submit(_play, game) for game in islice(waiting, ahead * workers))
        while given:
            outcome = given.popleft().result()
            given.extend(pool.submit(_play, game) for game in islice(waiting, 1))
            yield outcome
    finally:
        pool.shutdown(cancel_futures=True)


def _play(game: Game) -> Outcome:
    return play(game.seed, game.story, overrides=dict(game.overrides))


def _begin() -> None:
    """Ctrl-C is for the process that gives out seeds; its end is the worker's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None, "a worker was started by somebody"
    wait([parent.sentinel])
    os._exit(1)
