"""Scenario: partitions that have no records for most of the run, and leaders that rest until the first one.

Owns the draws, and when the clients begin to use each partition. The cluster and its clients are those of `brokers`,
with their checks. In the other scenarios clients use all partitions at once, so leaders have replica objects before
their followers fetch.

Rules: `fenceline.node.replication.resting_leaders`.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any, Final

from fenceline.testing.simulation.brokers import BrokersScenario
from fenceline.testing.simulation.brokers_admin import SimulatedAdmin
from fenceline.testing.simulation.brokers_clients import SimulatedClient, SimulatedConsumer, SimulatedProducer
from fenceline.testing.simulation.brokers_wire import PartitionInfo
from fenceline.testing.simulation.options import Options, sometimes

_LOOKS: Final = 0.2
"""How often a client looks for partitions whose time has come."""


class _Late(SimulatedClient):
    """Uses a partition once its time has come, which is the same for all clients."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._begins_s: dict[tuple[str, int], float] = {}

    async def fetch_metadata(self) -> None:
        await super().fetch_metadata()
        now_s = self.world.scheduler.now_s
        self.places = [each for each in self.places if self._begin_s(each) <= now_s]

    def quiet_s(self) -> float:
        """Called before each request."""
        if self.rng.random() < _LOOKS:
            self.places = []
        return super().quiet_s()

    def _begin_s(self, place: PartitionInfo) -> float:
        name = place.topic, place.index
        if name not in self._begins_s:
            rng = self.world.rng(f"first use of {place.topic}-{place.index}")
            self._begins_s[name] = rng.uniform(0.0, self.world.options.safety_s)
        return self._begins_s[name]


class _LateProducer(_Late, SimulatedProducer):
    """See `_Late`."""


class _LateConsumer(_Late, SimulatedConsumer):
    """See `_Late`."""


class RestingScenario(BrokersScenario):
    """See the module: a `stage.Scenario`."""

    name = "resting"

    @staticmethod
    def adjust_options(rng: Random, drawn: Options) -> Options:
        """Elections, restarts and lost connections while nothing is written, on few disks with faults."""
        options = BrokersScenario.adjust_options(rng, drawn)
        return replace(
            options,
            topics=rng.choice((1, 2)),
            partitions=rng.choice((4, 6, 8)),
            replicas=3,
            swap_s=sometimes(rng, 0.6, 0.2, 1),
            crash_s=sometimes(rng, 0.7, 0.5, 3),
            drop_s=sometimes(rng, 0.4, 0.5, 3),
            think_ms=rng.choice((10.0, 20.0, 50.0)),
        )

    def clients(self) -> list[type[SimulatedClient]]:
        """See `BrokersScenario`."""
        return [SimulatedAdmin, _LateProducer, _LateConsumer, _LateProducer, _LateConsumer]
