"""Which faults a seed has: a numbered list, drawn before the story begins.

Owns the kinds of faults and how a seed chooses among them. A fault of the list does not depend on the others, so a
story can be replayed with some of them: `--faults 2,5`. Injects nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final


class FaultKind(StrEnum):
    """Each meets an application, a broker, or the store of an application."""

    APPLICATION_KILLED = "application killed"
    KILLED_AT_ANSWER = "application killed when an answer arrives"
    APPLICATION_STOPPED = "application stopped"
    APPLICATION_PAUSED = "application paused"
    APPLICATION_CUT_OFF = "application cut off"
    APPLICATION_RESET = "connections of an application reset"
    APPLICATION_CLOCK = "clock of an application set"
    ANSWER_LOST = "answer lost"
    STORE_UNREACHABLE = "store unreachable"
    STORE_ANSWER_LOST = "answer of a store lost"
    BROKER_KILLED = "broker killed"
    BROKER_POWER_LOST = "broker without power"
    BROKER_STOPPED = "broker stopped"
    BROKER_PAUSED = "broker paused"
    BROKER_CUT_OFF = "broker cut off"
    BROKER_RESET = "connections of a broker reset"
    BROKER_LATE = "messages of a broker late"
    BROKER_DISK_SLOW = "disk of a broker slow"
    BROKER_DISK_FULL = "disk of a broker full"
    BROKER_CLOCK = "clock of a broker set"
    UNCLEAN_ELECTION = "unclean election"
    """Loses acknowledged records. Only with `unclean_elections` of the story."""
    COMMITS_LOST = "commits of groups lost"
    """An unclean election of the topic with committed offsets. Only with `lost_commits` of the story."""
    TOPIC_RECREATED = "topic deleted and made anew"
    """Loses all records of a topic. Only with `recreated_topics` of the story."""


_WEIGHTS: Final = {
    FaultKind.APPLICATION_KILLED: 4.0,
    FaultKind.KILLED_AT_ANSWER: 4.0,
    FaultKind.APPLICATION_STOPPED: 1.5,
    FaultKind.APPLICATION_PAUSED: 2.0,
    FaultKind.APPLICATION_CUT_OFF: 1.5,
    FaultKind.APPLICATION_RESET: 1.0,
    FaultKind.APPLICATION_CLOCK: 0.5,
    FaultKind.ANSWER_LOST: 3.0,
    FaultKind.STORE_UNREACHABLE: 0.7,
    FaultKind.STORE_ANSWER_LOST: 1.0,
    FaultKind.BROKER_KILLED: 1.2,
    FaultKind.BROKER_POWER_LOST: 0.8,
    FaultKind.BROKER_STOPPED: 0.8,
    FaultKind.BROKER_PAUSED: 0.8,
    FaultKind.BROKER_CUT_OFF: 0.8,
    FaultKind.BROKER_RESET: 0.5,
    FaultKind.BROKER_LATE: 0.6,
    FaultKind.BROKER_DISK_SLOW: 0.4,
    FaultKind.BROKER_DISK_FULL: 0.3,
    FaultKind.BROKER_CLOCK: 0.3,
    FaultKind.UNCLEAN_ELECTION: 3.0,
    FaultKind.COMMITS_LOST: 3.0,
    FaultKind.TOPIC_RECREATED: 2.0,
}

LOSING: Final = frozenset({FaultKind.UNCLEAN_ELECTION, FaultKind.COMMITS_LOST, FaultKind.TOPIC_RECREATED})
"""Kinds that a story must allow."""
EVERY_FAULT: Final = tuple(kind for kind in FaultKind if kind not in LOSING)
"""The faults after which everything that was acknowledged is still there."""

MOST_FAULTS: Final = 4
_FIRST_S: Final = 0.1
_KIND_CHANCE: Final = 0.6
"""Chance that a seed uses a kind: so each has its own mix, and frequent faults do not hide rare ones."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """`number` counts from 1, in order of time. `pick`, `choice` and `detail`, from 0 to 1: whom it meets, and how."""

    number: int
    at_s: float
    kind: FaultKind
    lasts_s: float
    pick: float
    choice: float
    detail: float


def plan(rng: Random, kinds: Collection[FaultKind], within_s: float) -> tuple[PlannedFault, ...]:
    """The faults of a seed, in order of time: between `_FIRST_S` and `within_s` seconds after the story began."""
    chosen = [kind for kind in FaultKind if kind in kinds and rng.random() < _KIND_CHANCE] or list(kinds)
    if not chosen:
        return ()
    count = rng.randint(1, MOST_FAULTS)
    times = sorted(rng.uniform(_FIRST_S, max(within_s, _FIRST_S)) for _ in range(count))
    drawn = rng.choices(chosen, [_WEIGHTS[kind] for kind in chosen], k=count)
    return tuple(
        PlannedFault(number, at_s, kind, rng.choice((0.05, 0.3, 1.0, 2.0)) * rng.uniform(0.5, 1.5), *_three(rng))
        for number, (at_s, kind) in enumerate(zip(times, drawn, strict=True), 1)
    )


def _three(rng: Random) -> tuple[float, float, float]:
    return rng.random(), rng.random(), rng.random()
