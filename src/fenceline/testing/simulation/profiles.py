"""The subject of a seed of the scenario `brokers`: a mix of everything, or one kind of fault, again and again.

Owns the draws. A mix rarely has three coincidences in one run; a profile always has two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Final

from fenceline.testing.simulation.options import Options, sometimes

NEVER_MS: Final = 2**31 - 1
"""Longer than any run."""
_SHORTEST_MS: Final = 100
"""Between two checks for work."""


def draw(rng: Random, drawn: Options) -> Options:
    """The options that this scenario draws. Reads return no wrong bits, and calls fail only if an option says so."""
    mixed = replace(
        drawn,
        safety_s=6.0,
        controllers=rng.choice((1, 2, 3, 3)),
        topics=rng.choice((1, 1, 2)),
        partitions=rng.choice((1, 2)),
        unclean=rng.random() < 0.4,
        elr=rng.random() < 0.6,
        deletes=rng.random() < 0.25,
        churn_s=sometimes(rng, 0.6, 0.3, 2),
        swap_s=sometimes(rng, 0.3, 0.3, 2),
        lag_s=sometimes(rng, 0.4, 0.5, 5),
        crash_s=sometimes(rng, 0.7, 0.7, 5),
        think_ms=rng.choice((20.0, 50.0, 100.0)),
        max_job_ms=rng.choice((0.1, 5.0, 20.0)),
        max_delay_ms=rng.choice((0.5, 2.0, 10.0)),
        flip_s=0.0,
        fail_s=0.0,
    )
    name = rng.choice(_CHOICE)
    return _PROFILES[name](rng, replace(mixed, profile=name))


def _calm(options: Options) -> Options:
    """Without the faults that distract from the subject."""
    return replace(
        options,
        crash_s=0.0,
        crash_calls=0,
        stop_s=0.0,
        pause_s=0.0,
        partition_s=0.0,
        full_s=0.0,
        jump_s=0.0,
        drop_s=0.0,
    )


def _mixed(rng: Random, options: Options) -> Options:
    return options


def _leaders(rng: Random, options: Options) -> Options:
    """The leader changes all the time, and the other replicas receive late: logs diverge, epochs have no records."""
    return replace(
        _calm(options),
        controllers=rng.choice((1, 3)),
        topics=1,
        partitions=rng.choice((1, 2, 3)),
        replicas=3,
        unclean=False,
        deletes=False,
        churn_s=0.0,
        swap_s=round(rng.uniform(0.1, 0.4), 3),
        lag_s=round(rng.uniform(0.2, 0.8), 3),
        think_ms=rng.choice((10.0, 20.0, 50.0)),
        segment_ms=rng.choice((100, 1000, 604_800_000)),
        crash_s=sometimes(rng, 0.5, 0.8, 2),
        power_chance=1.0,
        down_s=0.05,
    )


def _unclean(rng: Random, options: Options) -> Options:
    """Few replicas, unclean elections, and old leaders that are still alive."""
    return replace(
        _calm(options),
        safety_s=8.0,
        controllers=rng.choice((1, 1, 3)),
        topics=1,
        partitions=rng.choice((1, 2)),
        replicas=2,
        min_isr=1,
        unclean=True,
        deletes=False,
        churn_s=sometimes(rng, 0.3, 0.5, 2),
        swap_s=0.0,
        lag_s=sometimes(rng, 0.3, 0.5, 2),
        strand_s=0.7,
        drop_s=sometimes(rng, 0.3, 1, 4),
        think_ms=rng.choice((10.0, 20.0, 50.0)),
    )


def _tails(rng: Random, options: Options) -> Options:
    """Machines lose power one after the other, too few replicas are in sync, and unsynced data is lost."""
    return replace(
        _calm(options),
        controllers=rng.choice((1, 3)),
        topics=1,
        replicas=rng.choice((2, 2, 3)),
        min_isr=2,
        unclean=rng.random() < 0.2,
        elr=rng.random() < 0.8,
        deletes=False,
        crash_s=round(rng.uniform(0.5, 1.5), 3),
        power_chance=rng.choice((0.7, 1.0)),
        down_s=rng.choice((0.05, 0.5, 1.0)),
        stop_s=sometimes(rng, 0.5, 0.7, 2),
        pause_s=sometimes(rng, 0.5, 0.7, 2),
        paused_s=2.0,
        think_ms=20.0,
    )


def _returns(rng: Random, options: Options) -> Options:
    """A follower that loses power and is back before the others notice (KIP-903)."""
    return replace(
        _calm(options),
        controllers=rng.choice((1, 1, 3)),
        topics=1,
        replicas=3,
        unclean=False,
        deletes=False,
        churn_s=0.0,
        swap_s=0.0,
        lag_s=0.0,
        return_s=round(rng.uniform(0.4, 0.9), 3),
        think_ms=20.0,
    )


def _room(rng: Random, options: Options) -> Options:
    """Disks are full while nodes start."""
    return replace(
        _calm(options),
        controllers=rng.choice((1, 3)),
        full_s=round(rng.uniform(0.3, 0.8), 3),
        spell_s=1.0,
        crash_s=round(rng.uniform(0.5, 1.0), 3),
        down_s=0.05,
    )


_PROFILES: Final[Mapping[str, Callable[[Random, Options], Options]]] = {
    "mixed": _mixed,
    "leaders": _leaders,
    "unclean": _unclean,
    "tails": _tails,
    "returns": _returns,
    "room": _room,
}
_CHOICE: Final = ("mixed",) * 10 + ("leaders",) * 4 + ("unclean",) * 2 + ("tails",) * 2 + ("returns", "room")


# -- the scenario `operations` -----------------------------------------------------------------------------------------


def draw_operations(rng: Random, drawn: Options) -> Options:
    """The options of the scenario `operations`: the mix of `brokers`, an operator, and intervals from very short to
    never."""
    mixed = replace(
        draw(rng, drawn),
        safety_s=6.0,
        topics=rng.choice((1, 2)),
        partitions=rng.choice((1, 1, 2)),
        churn_s=0.0,
        swap_s=0.0,
        deletes=True,
        compaction=rng.random() < 0.4,
        retention=rng.random() < 0.5,
        groups=rng.choice((0, 1, 2)),
        log_dirs=rng.choice((1, 1, 2, 3)),
        lose_dir_s=sometimes(rng, 0.3, 1, 4),
        operate_s=rng.choice((0.1, 0.3, 0.6)),
        segment_bytes=rng.choice((0, 500, 1000)),
        checkpoint_ms=rng.choice((20, 300, 2000, NEVER_MS)),
        flush_ms=rng.choice((50, 1000, NEVER_MS)),
        tidy_ms=rng.choice((50, 300, 2000)),
    )
    name = rng.choice(_OPERATED_CHOICE)
    return _paced(rng, _OPERATED[name](rng, replace(mixed, profile=name)))


def _paced(rng: Random, options: Options) -> Options:
    """Load and pauses in turn, twice as long: as many faults and operations, more of which happen under load than in a
    pause. Idle work costs the same in a pause, so the nodes check for it less often."""
    return replace(
        options,
        safety_s=12.0,
        load_s=rng.choice((0.4, 0.8, 1.2)),
        quiet_s=rng.choice((1.5, 3.0)),
        checkpoint_ms=max(options.checkpoint_ms, _SHORTEST_MS),
        flush_ms=max(options.flush_ms, _SHORTEST_MS),
        tidy_ms=max(2 * options.tidy_ms, _SHORTEST_MS),
        spoil_s=sometimes(rng, 0.25, 0.7, 3),
    )


def _operated(rng: Random, options: Options) -> Options:
    """All operations, under the mix of faults."""
    return options


def _incarnations(rng: Random, options: Options) -> Options:
    """Topics are deleted and recreated, log starts move, and processes end in between."""
    return replace(
        options,
        topics=1,
        unclean=False,
        strand_s=0.0,
        operate_s=rng.choice((0.2, 0.4)),
        operations="recreate topic,delete records,delete records",
        crash_s=round(rng.uniform(0.4, 1.5), 3),
        power_chance=rng.choice((0.0, 0.5, 1.0)),
        down_s=rng.choice((0.05, 0.3)),
        think_ms=rng.choice((10.0, 30.0)),
    )


def _cleaning(rng: Random, options: Options) -> Options:
    """Logs of tiny segments that are deleted and compacted all the time, while configs change."""
    return replace(
        options,
        compaction=True,
        retention=True,
        groups=min(options.groups, 1),
        segment_bytes=rng.choice((500, 800)),
        tidy_ms=rng.choice((50, 200)),
        operate_s=rng.choice((0.2, 0.5)),
        operations=rng.choice(("alter config", "alter config,delete records", "alter config,reassign")),
        think_ms=rng.choice((10.0, 30.0)),
    )


def _moves(rng: Random, options: Options) -> Options:
    """Replicas leave their brokers and directories and return; directories fail."""
    return replace(
        options,
        partitions=2,
        log_dirs=rng.choice((2, 3)),
        lose_dir_s=sometimes(rng, 0.6, 0.7, 2),
        operate_s=rng.choice((0.1, 0.2)),
        operations="reassign,move directory,move directory,cancel reassignment,delete records,preferred election",
        think_ms=rng.choice((10.0, 30.0)),
    )


def _metadata(rng: Random, options: Options) -> Options:
    """Metadata snapshots every few records; brokers are unregistered and register again."""
    return replace(
        options,
        snapshot_bytes=300,
        snapshot_interval_ms=200,
        crash_s=round(rng.uniform(0.5, 1.5), 3),
        down_s=rng.choice((0.3, 1.0)),
        operate_s=rng.choice((0.1, 0.2)),
        operations="unregister broker,unregister broker,recreate topic,add partitions,alter config,reassign",
    )


def _groups(rng: Random, options: Options) -> Options:
    """Groups commit while their coordinators move, and topics are recreated."""
    return replace(
        options,
        groups=3,
        segment_bytes=rng.choice((500, 1000)),
        operations="recreate topic,preferred election,reassign,delete records",
        crash_s=round(rng.uniform(0.5, 2), 3),
        think_ms=rng.choice((10.0, 30.0)),
    )


_OPERATED: Final[Mapping[str, Callable[[Random, Options], Options]]] = {
    "operated": _operated,
    "incarnations": _incarnations,
    "cleaning": _cleaning,
    "groups": _groups,
    "moves": _moves,
    "metadata": _metadata,
}
_OPERATED_CHOICE: Final = ("operated",) * 3 + ("incarnations", "cleaning", "groups", "moves", "metadata")
