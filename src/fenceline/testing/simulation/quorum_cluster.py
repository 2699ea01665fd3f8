"""Scenario: a quorum of several voters and observers that replicates the records of its clients.

Owns the configuration of the nodes (`SimulatedQuorumNode`), clients that propose records to the leader, and an administrator who
adds and removes voters. A record acknowledged as committed is in the committed log, at the acknowledged offset.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import Final

from fenceline.config.node import NodeConfig
from fenceline.quorum.messages import AddRaftVoterRequest, RemoveRaftVoterRequest
from fenceline.testing.simulation.checks import InvariantBroken, Invariants
from fenceline.testing.simulation.cluster_driver import cluster_config, voter_of
from fenceline.testing.simulation.controller_of_one import CLUSTER_ID, format_voters
from fenceline.testing.simulation.options import Options
from fenceline.testing.simulation.pace import Pace
from fenceline.testing.simulation.quorum_node import SimulatedQuorumNode
from fenceline.testing.simulation.world import Process, World

_REQUEST_TIMEOUT_S: Final = 3.0
_SMALL: Final = {"controller.quorum.fetch.max.bytes": "4000", "controller.quorum.fetch.snapshot.max.bytes": "400"}
"""Fetches and downloads come in small pieces."""


class QuorumScenario:
    """The cluster and its clients: a `stage.Scenario`."""

    name = "quorum"

    def __init__(self, world: World, invariants: Invariants) -> None:
        self._world = world
        self._invariants = invariants
        options = world.options
        self._voters = range(1, options.nodes - options.observers + 1)
        self._configs: dict[int, NodeConfig] = {}
        self._clients: list[QuorumClient] = []
        self._administrator: asyncio.Task[None] | None = None
        self._agreed: tuple[int, int] | None = None
        """Epoch and leader of all nodes when the cluster became idle."""

    @staticmethod
    def base_options(rng: Random) -> Options:
        voters, observers = rng.choice((1, 2, 3, 3, 3, 3, 4, 5)), rng.choice((0, 0, 1, 2))
        admin_s = rng.choice((0.0, 0.0, 1.0, 3.0))
        return Options(nodes=voters + observers, observers=observers, admin_s=admin_s)

    def build(self) -> None:
        for node_id in range(1, self._world.options.nodes + 1):
            process = self._world.add(node_id, self._body)
            self._configs[node_id] = cluster_config(self._world.options, node_id, self._voters, _SMALL)
            if node_id in self._voters:
                format_voters(process.disk, [voter_of(each) for each in self._voters])
        for process in self._world.processes.values():
            process.start()
        for number in range(self._world.options.clients):
            client = QuorumClient(self._world, number)
            self._clients.append(client)
            self._world.loop.create_task(client.live())
        if self._world.options.admin_s:
            self._administrator = self._world.loop.create_task(self._administer())

    async def _body(self, process: Process) -> None:
        await SimulatedQuorumNode(process, self._configs[process.node_id]).live_and_serve()

    async def _administer(self) -> None:
        """Add or remove a voter, asking every node; only the leader accepts."""
        rng = self._world.rng("administrator")
        while self._world.faults_active:
            await asyncio.sleep(rng.expovariate(1 / self._world.options.admin_s))
            node_id = rng.choice(sorted(self._world.processes))
            voter = voter_of(node_id)
            request: AddRaftVoterRequest | RemoveRaftVoterRequest
            if rng.random() < 0.6:
                request = AddRaftVoterRequest(CLUSTER_ID, 2000, node_id, voter.voter_directory_id, voter.endpoints)
            else:
                request = RemoveRaftVoterRequest(CLUSTER_ID, node_id, voter.voter_directory_id)
            for asked in sorted(self._world.processes):
                try:
                    await self._world.network.request(-100, asked, request, timeout_s=2.0)
                except ConnectionError:
                    continue

    def progress(self) -> int:
        return min(len(client.acknowledged) for client in self._clients)

    def quiesce(self) -> bool:
        """No client waits, all nodes have what is committed, and know one leader in one epoch."""
        for client in self._clients:
            client.must_rest = True
        if any(client.is_waiting for client in self._clients):
            return False
        if self._administrator is not None and not self._administrator.done():
            return False
        views = [process.view for process in self._world.processes.values()]
        end = self._invariants.committed.end
        states = [view.state() for view in views if view is not None]
        if len(states) < len(views) or any(state.high_watermark < end for state in states):
            return False
        known = {(state.epoch, state.leader_id) for state in states}
        self._agreed = known.pop() if len(known) == 1 else None
        return self._agreed is not None and self._agreed[1] >= 0

    def final(self) -> None:
        """Acknowledged records are committed, and an idle cluster has kept its leader."""
        committed = self._invariants.committed
        for client in self._clients:
            for offset, value in client.acknowledged:
                batch = committed.batch_at(offset)
                if batch is None or value.encode() not in batch.content:
                    raise InvariantBroken(f"{value} was acknowledged at {offset}, but the log has {batch} there")
        states = {process.view.state()[:2] for process in self._world.processes.values() if process.view is not None}
        if states != {self._agreed}:
            raise InvariantBroken(
                f"epoch and leader of the idle cluster changed from {self._agreed} to {sorted(states)}"
            )


class QuorumClient:
    """Proposes one record after another to the node that accepted the last one, else to any."""

    def __init__(self, world: World, number: int) -> None:
        self.acknowledged: list[tuple[int, str]] = []
        """(offset, value) of acknowledged records."""
        self.must_rest = False
        self.is_waiting = False
        self._world = world
        self._number = number
        self._rng = world.rng(f"client {number}")
        self._pace = Pace(self._rng, world.options.think_ms)
        self._asked = 0

    async def live(self) -> None:
        leader = 1
        while not self.must_rest:
            self.is_waiting = True
            self._asked += 1
            value = f"value-{self._number}-{self._asked}."
            frame = (f"client-{self._number}", value)
            code = -2
            with suppress(ConnectionError):
                code, offset = await self._world.network.request(
                    -1 - self._number, leader, frame, timeout_s=_REQUEST_TIMEOUT_S
                )
            self._world.trace.add(self._world.scheduler.now_s, f"c{self._number}", f"asked n{leader} {value}: {code}")
            if code == 0:
                self.acknowledged.append((offset, value))
            else:
                leader = self._rng.choice(sorted(self._world.processes))
                await asyncio.sleep(0.05)
            self.is_waiting = False
            await asyncio.sleep(self._pace.next_s())
