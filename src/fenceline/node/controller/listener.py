"""The controller listener of one node: its sockets, and the brokers that are connected to them.

Owns its server. No request is forwarded from here: `node.api.tables` gives its handlers the local controller only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from fenceline.node.net import listening
from fenceline.node.net.connection_limits import ConnectionLimits
from fenceline.node.net.server import Server, ServerLimits
from fenceline.node.turns import Turns
from fenceline.quorum.control_records import VoterEndpoint

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from fenceline.config.listeners import ListenerConfig
    from fenceline.config.node import NodeConfig
    from fenceline.node.clock import Clock
    from fenceline.node.context import Api
    from fenceline.node.controller.driver import ControllerDriver
    from fenceline.node.metrics import NodeMetrics
    from fenceline.node.net.certificates import NodeCertificates
    from fenceline.node.net.connection import ServerConnection
    from fenceline.node.net.sasl import ListenersSasl
    from fenceline.node.net.server import RawApi, RightsOfPeers
    from fenceline.node.net.tls import ListenersTls
    from fenceline.wire.apis import ApiKey

RECEIVE_BUDGET_BYTES: Final = 128 << 20


class _Listening(Server):
    """Reports opened and closed connections."""

    def __init__(
        self,
        controller: ControllerDriver,
        apis: Iterable[Api],
        raw: Mapping[ApiKey, RawApi],
        limits: ServerLimits,
        connection_limits: ConnectionLimits,
        *,
        turns: Turns,
        metrics: NodeMetrics,
        threads: Executor,
        tls: ListenersTls | None,
        sasl: ListenersSasl | None,
        authorization: RightsOfPeers | None,
    ) -> None:
        super().__init__(
            apis,
            raw,
            limits,
            connection_limits,
            turns=turns,
            metrics=metrics,
            threads=threads,
            tls=tls,
            sasl=sasl,
            authorization=authorization,
        )
        self._controller = controller

    def register(self, connection: ServerConnection) -> bool:
        presence = self._controller.active.presence
        if presence is not None:
            presence.opened((connection.listener, connection.peer))
        return super().register(connection)

    def unregister(self, connection: ServerConnection, buffer_bytes: int) -> None:
        super().unregister(connection, buffer_bytes)
        presence = self._controller.active.presence
        if presence is not None:
            presence.closed((connection.listener, connection.peer))


class ControllerListener:
    """See the module."""

    def __init__(
        self,
        config: NodeConfig,
        controller: ControllerDriver,
        apis: Iterable[Api],
        raw: Mapping[ApiKey, RawApi],
        *,
        metrics: NodeMetrics,
        threads: Executor,
        clock: Clock,
        authorization: RightsOfPeers | None,
        certificates: NodeCertificates,
    ) -> None:
        """Raises OperatorError for unusable certificates or mechanisms."""
        self._config = config
        self.endpoints: tuple[ListenerConfig, ...] = ()
        """The advertised listeners, with the ports that were actually bound."""
        self._server = _Listening(
            controller,
            apis,
            raw,
            ServerLimits(
                max_request_bytes=config.get_int("socket.request.max.bytes"),
                receive_budget_bytes=RECEIVE_BUDGET_BYTES,
                backlog=listening.backlog_of(config),
                idle_timeout_ms=config.get_int("connections.max.idle.ms"),
                handshake_timeout_ms=config.get_int("fenceline.authentication.timeout.ms"),
            ),
            ConnectionLimits(
                config.text, config.of_listener_only, lambda: controller.image.client_quotas, clock.monotonic_ms
            ),
            turns=Turns(asyncio.get_running_loop(), clock.monotonic_ms),
            metrics=metrics,
            threads=threads,
            tls=listening.tls_of(config, certificates, config.controller_listeners),
            sasl=listening.sasl_of(config, config.controller_listeners, lambda: controller.image, clock),
            authorization=authorization,
        )
        controller.subscribe(self._server.credentials_changed)

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
