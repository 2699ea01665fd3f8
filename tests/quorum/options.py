"""The faults and settings of one seed of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Options:
    """The faults and settings of one seed. Times in virtual ms; probabilities per event of their kind."""

    seed: int
    voters: int
    observers: int
    dynamic: bool
    loss: float
    doubling: float
    slow: float
    crash_in_duties: float
    fault_every_ms: int
    snapshots: bool
    flush_ms: int
    election_timeout_ms: int
    records_per_fetch: int
    restart_ms: int
    safety_ms: int = 20_000
    liveness_ms: int = 20_000

    @classmethod
    def of(cls, seed: int) -> Options:
        rng = Random(seed)
        return cls(
            seed,
            voters=rng.choice((1, 2, 3, 3, 3, 4, 5)),
            observers=rng.choice((0, 1, 2)),
            dynamic=rng.random() < 0.6,
            loss=rng.choice((0.0, 0.02, 0.15)),
            doubling=rng.choice((0.0, 0.1)),
            slow=rng.choice((0.0, 0.05, 0.2)),
            crash_in_duties=rng.choice((0.0, 0.0005, 0.003)),
            fault_every_ms=rng.choice((700, 1500, 4000)),
            snapshots=rng.random() < 0.6,
            flush_ms=rng.choice((0, 3, 30, 200)),
            election_timeout_ms=rng.choice((1000, 1000, 100)),
            records_per_fetch=rng.choice((1, 3, 200)),
            restart_ms=rng.choice((30, 3000)),
        )
