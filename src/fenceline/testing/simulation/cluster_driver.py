"""The driver of a node of several, in a simulated cluster: the production `ControllerDriver` with simulated peers.

Owns what connects the driver to the simulation: the node's identity, its configuration, its connections, and its end.
Quorum messages are passed as immutable objects: their wire format is not tested here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from fenceline.config.node import NodeConfig
from fenceline.errors import ErrorCode, PeerError
from fenceline.node.controller.driver import ControllerDriver
from fenceline.node.storage.storage_trouble import StorageTrouble
from fenceline.quorum.control_records import KRaftVersionFeature, Voter, VoterEndpoint
from fenceline.quorum.messages import ApiVersionsRequest, ApiVersionsResponse, ResponseMessage
from fenceline.testing.simulation.controller_of_one import CLUSTER_ID, DriverView, directory_id, node_config
from fenceline.testing.simulation.loop import SimExecutor
from fenceline.testing.simulation.network import Frame, Lost, Reply
from fenceline.testing.simulation.options import Options
from fenceline.testing.simulation.peers import SimPeers
from fenceline.testing.simulation.world import DATA_DIR, Process

_LEVELS: Final = KRaftVersionFeature(0, 1)


def voter_of(node_id: int) -> Voter:
    """A node as a member of a voter set. Its port is its id."""
    return Voter(node_id, directory_id(node_id), (VoterEndpoint("CONTROLLER", f"n{node_id}", node_id),), _LEVELS)


def cluster_config(
    options: Options, node_id: int, voters: Iterable[int], more: Mapping[str, str] | None = None
) -> NodeConfig:
    """The server.properties of a node of a cluster that starts with `voters`."""
    servers = ",".join(f"n{each}:{each}" for each in voters)
    return node_config(options, node_id, {"controller.quorum.bootstrap.servers": servers, **(more or {})})


class ClusterDriver(ControllerDriver):
    """The peers are simulated; all else is production code."""

    def __init__(self, process: Process, config: NodeConfig) -> None:
        super().__init__(
            config=config,
            disk=process.files,
            directory=DATA_DIR,
            cluster_id=CLUSTER_ID,
            node_id=process.node_id,
            directory_id=directory_id(process.node_id),
            clock=process.clock,
            rng=process.world.rng(f"controller {process.node_id} life {process.life}"),
            trouble=StorageTrouble(process.clock),
            executor=SimExecutor(2),
        )
        self.process = process

    def _peers(self, watch: object) -> Any:
        network, node_id = self.process.world.network, self.node_id

        def make(answered: Callable[[int, ResponseMessage], None], unanswered: Callable[[int, bool], None]) -> SimPeers:
            return SimPeers(network, node_id, answered, unanswered)

        return make

    async def begin(self, handler: Callable[[int, Frame, Reply], None]) -> None:
        """Open the log, listen, start. Raises OperatorError."""
        self.open(voter_of(self.node_id).endpoints[0])
        self.process.serve_callbacks(handler)
        await self.run()
        self.process.view = DriverView(self, self.process.disk)

    async def live(self, *others: asyncio.Task[None]) -> None:
        """Run until it fails, is asked to stop, or one of `others` has ended. Raises their errors."""
        failed = self.failed()
        stopping = asyncio.create_task(self.process.stopping.wait())
        waiting: list[asyncio.Future[Any]] = [failed, stopping, *others]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in (*others, stopping):
            task.cancel()
        if failed.done():
            failed.result()
        for task in others:
            if task.done() and not task.cancelled():
                task.result()
        failed.cancel()  # a failure while it stops is logged by the driver, as in `controller_node.run_until`
        await self.stop()

    def handle_message(self, frame: Frame, reply: Reply) -> None:
        """A request of the quorum of another node."""
        if isinstance(frame, ApiVersionsRequest):
            reply(ApiVersionsResponse(ErrorCode.NONE, _LEVELS), None)
        else:
            self.ask(frame).add_done_callback(lambda done: _send_reply(done, reply))


def _send_reply(done: asyncio.Future[Any], reply: Reply) -> None:
    """A quorum that stops closes the connection."""
    if done.cancelled():
        reply(None, Lost("the node stops"))
        return
    error = done.exception()
    if error is None:
        answer = done.result()
        records = getattr(answer, "records", None)
        if isinstance(records, memoryview):
            answer = replace(answer, records=bytes(records))  # a message in flight must not change with the log
        reply(answer, None)
    elif isinstance(error, PeerError):
        reply(None, Lost(error.message))
    else:
        raise error
