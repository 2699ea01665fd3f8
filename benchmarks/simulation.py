"""Simulated time per real time: three controllers with a broker each, in one process.

The ratio is virtual seconds per CPU second of the complete run, including the checks: virtual time passes only while
all processes wait, so it depends on the load as much as on the code.
"""

from __future__ import annotations

import statistics
from typing import Final

from benchmarks.harness import Figures
from fenceline.testing.simulation.stage import play

_CALM: Final = dict.fromkeys(
    (
        *("crash_s", "crash_calls", "stop_s", "pause_s", "partition_s", "drop_s", "slow_disk_s", "full_s", "fail_s"),
        *("flip_s", "jump_s", "loss_chance", "duplicate_chance", "slow_chance", "drift", "skew_ms", "idle_ms"),
    ),
    "0",
)
_CLUSTER: Final = {"nodes": "3", "clients": "1", "max_delay_ms": "2", "max_job_ms": "5", "safety_s": "60"}
_ALL_FAULTS: Final = {
    "crash_s": "8",
    "power_chance": "0.5",
    "crash_calls": "0",
    "down_s": "0.5",
    "stop_s": "10",
    "pause_s": "8",
    "partition_s": "6",
    "drop_s": "6",
    "slow_disk_s": "8",
    "full_s": "10",
    "fail_s": "15",
    "flip_s": "15",
    "jump_s": "5",
    "loss_chance": "0.02",
    "duplicate_chance": "0.02",
    "slow_chance": "0.02",
    "drift": "0.01",
    "skew_ms": "1000",
    "idle_ms": "500",
    "snapshot_bytes": "20000",
    "snapshot_interval_ms": "5000",
}
_LOADS: Final = {
    "no faults, 1 request a second": (_CALM, "500"),
    "all faults, 2 requests a second": (_ALL_FAULTS, "250"),
}
"""By name: options, and the mean time in ms that the client thinks."""
_SEEDS: Final = range(5)


def run(figures: Figures, repeats: int) -> None:
    for load, (options, think_ms) in _LOADS.items():
        drawn = {**_CLUSTER, **options, "think_ms": think_ms}
        play(0, "controllers", overrides=drawn)
        for _ in range(repeats):
            outcomes = [play(seed, "controllers", overrides=drawn) for seed in _SEEDS]
            broken = [outcome.report() for outcome in outcomes if outcome.failure is not None]
            if broken:
                raise AssertionError("\n".join(broken))
            ratio = statistics.median(outcome.virtual_s / outcome.cpu_s for outcome in outcomes)
            figures.add(f"simulated time over real time, {load}", "fenceline", ratio, "x")
    figures.note(
        f"Three controllers with a broker each in one process: {_CLUSTER['safety_s']} virtual seconds with or without"
        f" faults, and the liveness phase after it. The median of {len(_SEEDS)} seeds; checks are included."
    )
