"""The curve of `benchmarks.scale` about voters: a quorum of up to 15 in the simulated world.

Owns one cluster of simulated nodes without faults, whose virtual clock and network are those of the simulation: a
message takes up to 2 ms, a job of a thread up to 1 ms, at random. Times are virtual, CPU is this process's, for all
voters; checks are left out.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from benchmarks.scale_measuring import SizeOfCurve
from fenceline.testing.simulation.checks import Invariants
from fenceline.testing.simulation.options import Options
from fenceline.testing.simulation.scheduler import quiet_generators
from fenceline.testing.simulation.stage import SCENARIOS
from fenceline.testing.simulation.world import LogSink, World

SIZES: Final = (3, 5, 9, 15)
_SETTLED_S: Final = 5.0
_MEASURED_S: Final = 20.0
_RECORDS: Final = 500
_STEP_S: Final = 0.005
_FAILOVERS: Final = 10
_WAIT_S: Final = 60.0


def voters(curve: SizeOfCurve) -> None:
    """An idle quorum, records one after the other, and killed leaders."""
    with _Quorum(curve.size) as quorum:
        quorum.run(_SETTLED_S)
        began_s = time.process_time()
        quorum.run(_MEASURED_S)
        used_s = time.process_time() - began_s
        curve.add("at rest: CPU of a second, of one voter", used_s * 1e6 / _MEASURED_S / curve.size, "us")
        began_s = time.process_time()
        committed_s = quorum.append(_RECORDS)
        used_s = time.process_time() - began_s
        curve.add("CPU of a record, of one voter", used_s * 1e6 / _RECORDS / curve.size, "us")
        curve.add("a record until it is committed, median", statistics.median(committed_s) * 1e3, "virtual ms")
        replaced_s = quorum.failovers()
        curve.add("a killed leader until another leads all, median", statistics.median(replaced_s) * 1e3, "virtual ms")


class _Quorum:
    """The scenario `quorum` with N voters and no faults."""

    def __init__(self, size: int) -> None:
        options = Options(nodes=size, clients=0, max_delay_ms=2.0, max_job_ms=1.0)
        self._world = World(1, options)
        self._sink = LogSink(self._world)
        self._quiet = quiet_generators()

    def __enter__(self) -> _Quorum:
        self._quiet.__enter__()
        self._sink.__enter__()
        SCENARIOS["quorum"][0](self._world, Invariants(self._world)).build()
        return self

    def __exit__(self, *raised: object) -> None:
        self._world.close()
        self._sink.__exit__()
        self._quiet.__exit__(None, None, None)

    def run(self, virtual_s: float) -> None:
        scheduler = self._world.scheduler
        scheduler.run(until_s=scheduler.now_s + virtual_s)

    def append(self, count: int) -> list[float]:
        """Virtual seconds from the request for a record until its response, one after the other."""
        _, leader_id = self._agreed()
        scheduler, network = self._world.scheduler, self._world.network
        found: list[float] = []

        async def client() -> None:
            for number in range(count):
                began_s = scheduler.now_s
                frame = ("client", f"value-{number}.")
                code, _ = await network.request(-1, leader_id, frame, timeout_s=_WAIT_S)
                if code:
                    raise RuntimeError(f"the leader answers with error {code}")
                found.append(scheduler.now_s - began_s)

        task = self._world.loop.create_task(client())
        self._until(task.done)
        task.result()
        return found

    def failovers(self) -> list[float]:
        """Virtual seconds from the end of each leader until all others agree on the next."""
        found = []
        for _ in range(_FAILOVERS):
            epoch, leader_id = self._agreed()
            killed = self._world.processes[leader_id]
            killed.kill(power_lost=False)
            began_s = self._world.scheduler.now_s
            self._until(partial(self._has_passed, epoch))
            found.append(self._world.scheduler.now_s - began_s)
            killed.start()
            self._until(lambda: len(self._states()) == len(self._world.processes) and self._agreed()[1] >= 0)
            self.run(_SETTLED_S)
        return found

    def _has_passed(self, epoch: int) -> bool:
        return self._agreed()[0] > epoch

    def _states(self) -> list[tuple[int, int]]:
        return [process.view.state()[:2] for process in self._world.processes.values() if process.view is not None]

    def _agreed(self) -> tuple[int, int]:
        """Epoch and leader of all nodes that run; (-1, -1) if they do not agree."""
        known = set(self._states())
        return known.pop() if len(known) == 1 else (-1, -1)

    def _until(self, is_true: Callable[[], bool]) -> None:
        ends_s = self._world.scheduler.now_s + _WAIT_S
        while not is_true():
            if self._world.scheduler.now_s > ends_s:
                raise TimeoutError("the simulated quorum elects no leader")
            self._world.scheduler.run(until_s=self._world.scheduler.now_s + _STEP_S)
