"""Simulated applications: code on `fenceline.client`'s asyncio API, on virtual time, with every fault, from one seed.

The public names; `docs/testing-simulation.md` explains them. `python -m fenceline.testing.applications FILE` runs the
stories of a file. Never imported by the server or by the client.
"""

from fenceline.testing.applications.cluster import Topic
from fenceline.testing.applications.fault_plan import EVERY_FAULT, FaultKind
from fenceline.testing.applications.one_seed import StoryJob, StoryOutcome
from fenceline.testing.applications.running import run_seeds
from fenceline.testing.applications.shrinking import shortest
from fenceline.testing.applications.store import SimulatedStore, StoreConflict, StoreUnavailable
from fenceline.testing.applications.story import Story, simulated
from fenceline.testing.applications.story_world import StoryWorld
from fenceline.testing.processing_checks import assert_at_least_once, assert_exactly_once

__all__ = [
    "EVERY_FAULT",
    "FaultKind",
    "SimulatedStore",
    "StoreConflict",
    "StoreUnavailable",
    "Story",
    "StoryJob",
    "StoryOutcome",
    "StoryWorld",
    "Topic",
    "assert_at_least_once",
    "assert_exactly_once",
    "run_seeds",
    "shortest",
    "simulated",
]
