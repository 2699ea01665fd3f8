"""The controller listener of one node: its sockets, its APIs, and the services available to their handlers.

Owns its server. Handlers use only the local controller: if it is not active they respond with NOT_CONTROLLER; no
request is forwarded from here.

Rules: since_4_0.md K4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from fenceline.metadata.features import SUPPORTED, Levels
from fenceline.node.api.handlers import controller_apis
from fenceline.node.net.server import Server
from fenceline.quorum.control_records import VoterEndpoint

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from fenceline.config.listeners import Listener
    from fenceline.config.node import NodeConfig
    from fenceline.controller.requests import Request
    from fenceline.metadata.image import MetadataImage
    from fenceline.node.broker import Broker
    from fenceline.node.context import Api
    from fenceline.node.controller.driver import ControllerDriver
    from fenceline.node.metrics import NodeMetrics
    from fenceline.node.net.connection import Connection
    from fenceline.node.quorum.driver import QuorumDriver
    from fenceline.quorum.messages import RequestMessage, ResponseMessage
    from fenceline.quorum.quorum import Quorum

RECEIVE_BUDGET_BYTES: Final = 128 << 20


class LocalController:
    """The local controller, as seen by the handlers of its listener."""

    def __init__(self, controller: ControllerDriver) -> None:
        self._controller = controller

    @property
    def active_epoch(self) -> int:
        """The epoch in which it is active, -1 if it is not."""
        return self._controller.active.epoch

    @property
    def image(self) -> MetadataImage:
        return self._controller.image

    @property
    def quorum(self) -> Quorum:
        return self._controller.quorum

    @property
    def driver(self) -> QuorumDriver:
        return self._controller.driver

    def submit(self, request: Request) -> asyncio.Future[Any]:
        """As `ActiveController.submit`."""
        return self._controller.active.submit(request)

    def broker_identified(self, listener: str, peer: str, broker_id: int, broker_epoch: int) -> None:
        """As `ControllerDriver.broker_identified`."""
        self._controller.broker_identified(listener, peer, broker_id, broker_epoch)

    def ask(self, message: RequestMessage) -> asyncio.Future[ResponseMessage]:
        return self._controller.ask(message)

    def wall_time_ms(self, monotonic_ms: int) -> int:
        return self._controller.wall_time_ms(monotonic_ms)


class ControllerServices:
    """The services available to handlers of the controller listener; a subset of those of a broker."""

    def __init__(
        self,
        *,
        config: NodeConfig,
        cluster_id: str,
        controller: ControllerDriver,
        metrics: NodeMetrics,
        disk_threads: Executor,
        apis: Mapping[int, Api],
    ) -> None:
        self.config = config
        self.node_id = config.node_id
        self.cluster_id = cluster_id
        self.metrics = metrics
        self.disk_threads = disk_threads
        self.loop = asyncio.get_running_loop()
        self.apis = apis
        self.controller = LocalController(controller)
        self.supported_features: Mapping[str, Levels] = SUPPORTED
        self.broker_epoch = -1
        self._driver = controller

    @property
    def image(self) -> MetadataImage:
        return self._driver.image

    @property
    def finalized_features(self) -> Mapping[str, int]:
        return self._driver.finalized_features

    @property
    def finalized_features_epoch(self) -> int:
        return self.image.offset

    async def topics_created(self, names: Collection[str], timeout_s: float) -> None:
        """A controller has no replicas to wait for."""


class _Listening(Server):
    """Reports opened and closed connections."""

    def __init__(
        self, face: ControllerServices, apis: list[Api], controller: ControllerDriver, **settings: Any
    ) -> None:
        super().__init__(cast("Broker", face), apis, {}, **settings)
        self._controller = controller

    def register(self, connection: Connection) -> bool:
        presence = self._controller.active.presence
        if presence is not None:
            presence.opened((connection.listener, connection.peer))
        return super().register(connection)

    def unregister(self, connection: Connection, buffer_bytes: int) -> None:
        super().unregister(connection, buffer_bytes)
        presence = self._controller.active.presence
        if presence is not None:
            presence.closed((connection.listener, connection.peer))


class ControllerListener:
    """See the module."""

    def __init__(
        self,
        *,
        config: NodeConfig,
        cluster_id: str,
        controller: ControllerDriver,
        metrics: NodeMetrics,
        disk_threads: Executor,
    ) -> None:
        apis = controller_apis()
        face = ControllerServices(
            config=config,
            cluster_id=cluster_id,
            controller=controller,
            metrics=metrics,
            disk_threads=disk_threads,
            apis={int(api.key): api for api in apis},
        )
        self._config = config
        self.endpoints: tuple[Listener, ...] = ()
        """The advertised listeners, with the ports that were actually bound."""
        self._server = _Listening(
            face,
            apis,
            controller,
            max_request_bytes=config.get_int("socket.request.max.bytes"),
            receive_budget_bytes=RECEIVE_BUDGET_BYTES,
            max_connections=config.get_int("max.connections"),
            backlog=config.get_int("socket.listen.backlog.size"),
            idle_timeout_ms=config.get_int("connections.max.idle.ms"),
            send_buffer_bytes=-1,
            receive_buffer_bytes=-1,
            metrics=metrics,
        )

    @property
    def voter_endpoint(self) -> VoterEndpoint:
        """This controller's endpoint for other voters."""
        first = self.endpoints[0]
        return VoterEndpoint(first.name, first.host, first.port)

    async def bind(self) -> None:
        """Raises OperatorError if an address cannot be bound."""
        ports = {}
        for listener in self._config.controller_listeners:
            ports[listener.name] = await self._server.bind(listener.name, listener.host, listener.port)
        advertised = self._config.advertised_controller_listeners
        self.endpoints = tuple(each._replace(port=each.port or ports[each.name]) for each in advertised)

    async def start_serving(self) -> None:
        await self._server.start_serving()

    async def close(self) -> None:
        await self._server.close(drain_s=0.2)
