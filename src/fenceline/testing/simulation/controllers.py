"""Scenario: the controllers of several voters, each with a broker, and clients that follow the active controller.

Owns the code of a node: the production `ControllerDriver` with its quorum driver, loader and snapshots, on a simulated
network. The clients and their guarantees are those of `controller_of_one`.

A broker whose process is killed is fenced quickly, by the production `BrokerPresence`: controllers are notified that
its connections close, and their probes go over the network. Some seeds have false alarms: a connection is lost, and a
live broker refuses connections for a while. At the end every broker must be registered and unfenced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final
from uuid import UUID

from fenceline.config.node import NodeConfig
from fenceline.controller.requests import BrokerHeartbeat, RegisterBroker, RegisterController, Request
from fenceline.controller.state import ControllerState
from fenceline.errors import ErrorCode, PeerError
from fenceline.metadata.features import SUPPORTED
from fenceline.metadata.image import Endpoint
from fenceline.node.controller.driver import ControllerDriver
from fenceline.node.controller.ports import Decider
from fenceline.node.controller.presence import BrokerPresence, Key
from fenceline.testing.simulation.checks import InvariantBroken, Invariants
from fenceline.testing.simulation.cluster_driver import ClusterDriver, cluster_config, voter_of
from fenceline.testing.simulation.controller_of_one import (
    CLUSTER_ID,
    SingleControllerClient,
    directory_id,
    format_voters,
    serve_client,
)
from fenceline.testing.simulation.network import Frame, Lost, PeerRefused, Reply
from fenceline.testing.simulation.options import Options
from fenceline.testing.simulation.world import Process, World

_ENDPOINTS: Final = (Endpoint("PLAINTEXT", "127.0.0.1", 9092, 0),)
_HEARTBEAT_S: Final = 2.0
_REQUEST_TIMEOUT_S: Final = 3.0
_GRACE_MS: Final = 100
_PROBE_TIMEOUT_S: Final = 0.5
_ALARM_S: Final = (0.5, 5.0)
"""Between false alarms."""
_ALARM_LASTS_S: Final = 1.0


class ControllersScenario:
    """The nodes and the clients: a `stage.Scenario`."""

    name = "controllers"

    def __init__(self, world: World, invariants: Invariants) -> None:
        self._world = world
        self._invariants = invariants
        self._ids = range(1, world.options.nodes + 1)
        self._configs: dict[int, NodeConfig] = {}
        self._drivers: dict[int, _Driver] = {}
        self._clients: list[SingleControllerClient] = []
        self._refuses_until_s: dict[int, float] = {}
        """By broker: until when it refuses connections although it is alive."""

    @staticmethod
    def base_options(rng: Random) -> Options:
        return Options(nodes=rng.choice((2, 3, 3, 3, 4, 5)))

    def build(self) -> None:
        for node_id in self._ids:
            looks = {"fenceline.broker.fencing.grace.ms": str(_GRACE_MS)}
            self._configs[node_id] = cluster_config(self._world.options, node_id, self._ids, looks)
            format_voters(self._world.add(node_id, self._body).disk, [voter_of(each) for each in self._ids])
        for process in self._world.processes.values():
            process.start()
        for number in range(self._world.options.clients):
            client = SingleControllerClient(self._world, number, self._ids)
            self._clients.append(client)
            self._world.loop.create_task(client.live())
        self._world.on_end.append(self._process_ended)
        if self._world.rng("false alarms").random() < 0.5:
            self._world.loop.create_task(self._raise_false_alarms())

    async def _body(self, process: Process) -> None:
        driver = _Driver(process, self._configs[process.node_id], self._refuses)
        await driver.begin(lambda source, frame, reply: self._handle(driver, source, frame, reply))
        self._drivers[process.node_id] = driver
        await driver.live(asyncio.create_task(self._live_as_broker(process, driver)))

    async def _live_as_broker(self, process: Process, driver: ControllerDriver) -> None:
        """Registration and heartbeats of the broker in the same process, with the current leader."""
        node_id, incarnation_id = process.node_id, UUID(int=process.node_id << 32 | process.life)
        epoch = -1
        while True:
            leader = driver.quorum.leader_id
            try:
                if leader < 0:
                    raise PeerError(ErrorCode.NOT_CONTROLLER)
                if epoch < 0:
                    await self._ask(node_id, leader, RegisterController(node_id, incarnation_id, _ENDPOINTS, SUPPORTED))
                    registration = RegisterBroker(
                        node_id,
                        CLUSTER_ID,
                        incarnation_id,
                        _ENDPOINTS,
                        SUPPORTED,
                        log_dirs=(directory_id(node_id),),
                        previous_broker_epoch=-1,
                    )
                    epoch = (await self._ask(node_id, leader, registration)).broker_epoch
                await self._ask(node_id, leader, BrokerHeartbeat(node_id, epoch, driver.image.offset))
            except (PeerError, ConnectionError) as error:
                if isinstance(error, PeerError) and error.code is ErrorCode.STALE_BROKER_EPOCH:
                    epoch = -1
                await asyncio.sleep(0.1)
                continue
            await asyncio.sleep(_HEARTBEAT_S)

    async def _ask(self, node_id: int, leader: int, request: Request) -> Any:
        """Raises PeerError, ConnectionError."""
        answer = await self._world.network.request(node_id, leader, request, timeout_s=_REQUEST_TIMEOUT_S)
        if isinstance(answer, PeerError):
            raise answer
        return answer

    def _handle(self, driver: ClusterDriver, source: int, frame: Frame, reply: Reply) -> None:
        """A request of the quorum or broker of another node, or of a client."""
        if isinstance(frame, bytes):
            asyncio.get_running_loop().create_task(_answer_client(driver, frame, reply))
        elif isinstance(frame, RegisterBroker | RegisterController | BrokerHeartbeat):
            presence = driver.active.presence
            if isinstance(frame, BrokerHeartbeat) and presence is not None:
                process = self._world.processes[source]
                if process.is_up:
                    presence.opened(_key(process))
                    presence.broker_identified(_key(process), frame.broker_id, frame.broker_epoch)
            driver.submit(frame).add_done_callback(lambda done: _send_reply(done, reply))
        else:
            driver.handle_message(frame, reply)

    # -- connections of brokers ----------------------------------------------------------------------------------------

    async def _refuses(self, driver: ClusterDriver, broker: int) -> bool:
        """One probe over the network."""
        network = self._world.network
        if self._refuses_until_s.get(broker, 0.0) > network.now_s:
            return True
        try:
            connection = await network.connect(driver.node_id, broker, timeout_s=_PROBE_TIMEOUT_S)
        except PeerRefused:
            return True
        except ConnectionError:
            return False
        connection.close()
        return False

    def _process_ended(self, process: Process) -> None:
        """Its kernel closes its connections; after a power failure the peers are not notified."""
        for node_id in self._ids:
            self._close_connection(process, node_id)

    def _close_connection(self, process: Process, at: int) -> None:
        """Close the connection of the broker in `process` at the controller `at`; the notification is delayed, and is
        lost on a cut link."""
        network, key = self._world.network, _key(process)

        def arrive() -> None:
            there, driver = self._world.processes[at], self._drivers.get(at)
            if network.is_powered_off(process.node_id) or network.is_cut(process.node_id, at):
                return
            if there.loop is not None and driver is not None and driver.process is there and there.view is not None:
                assert driver.active.presence is not None, "every driver of this scenario has one"
                there.loop.call_soon(driver.active.presence.closed, key)

        network.deliver_at(network.now_s + network.delay_s(), arrive)

    async def _raise_false_alarms(self) -> None:
        rng = self._world.rng("false alarms of brokers")
        while self._world.faults_active:
            await asyncio.sleep(rng.uniform(*_ALARM_S))
            process = self._world.processes[rng.choice(self._ids)]
            if process.is_up and self._world.faults_active:
                process.log_event("refuses connections although it lives")
                self._refuses_until_s[process.node_id] = self._world.network.now_s + _ALARM_LASTS_S
                self._process_ended(process)

    # -- the end -------------------------------------------------------------------------------------------------------

    def progress(self) -> int:
        return min(client.done for client in self._clients)

    def quiesce(self) -> bool:
        """No client waits, all nodes have what is committed, and every broker serves."""
        for client in self._clients:
            client.must_rest = True
        views = [process.view for process in self._world.processes.values()]
        states = [view.state() for view in views if view is not None]
        end = self._invariants.committed.end
        return (
            not any(client.is_waiting for client in self._clients)
            and len(states) == len(views)
            and all(state.high_watermark >= end and state.image_offset == end - 1 for state in states)
            and len({(state.epoch, state.leader_id) for state in states}) == 1
            and all(self._serve(driver) for driver in self._drivers.values())
        )

    def _serve(self, driver: ControllerDriver) -> bool:
        brokers = driver.image.brokers
        return len(brokers) == len(self._ids) and not any(broker.fenced for broker in brokers.values())

    def final(self) -> None:
        """Acknowledged changes are in the image of every controller."""
        for driver in self._drivers.values():
            for client in self._clients:
                client.compare(driver.image)
        active = [node_id for node_id, driver in self._drivers.items() if driver.is_active]
        if len(active) != 1:
            raise InvariantBroken(f"the active controllers are {active} (C1)")


class _Driver(ClusterDriver):
    """It probes brokers with the function of the scenario."""

    def __init__(
        self, process: Process, config: NodeConfig, refuses: Callable[[ClusterDriver, int], Awaitable[bool]]
    ) -> None:
        super().__init__(process, config)
        self._refuses = refuses

    def _presence(self, controller: Decider, state: ControllerState) -> BrokerPresence:
        return BrokerPresence(
            controller,
            state,
            self.process.clock,
            grace_ms=_GRACE_MS,
            is_refused=lambda broker: self._refuses(self, broker.id),
        )


def _key(process: Process) -> Key:
    """The connection of the broker in the current process."""
    return "CONTROLLER", f"{process.node_id}/{process.life}"


async def _answer_client(driver: ControllerDriver, frame: bytes, reply: Reply) -> None:
    reply(await serve_client(driver, frame), None)


def _send_reply(done: asyncio.Future[Any], reply: Reply) -> None:
    """An error code is a response, too."""
    error = Lost("the node stops") if done.cancelled() else done.exception()
    if isinstance(error, Lost):
        reply(None, error)
    elif error is None or isinstance(error, PeerError):
        reply(done.result() if error is None else error, None)
    else:
        raise error
