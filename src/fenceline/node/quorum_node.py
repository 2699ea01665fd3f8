"""What every node of a cluster has, whatever its roles: its metadata, the controllers' listener where it is a
controller, the way to the active controller.

Owns their order: bind, read the log, boot the quorum, serve, register; the other way round at the end. A node that
nobody else can reach has the metadata only, and pays for nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fenceline.metadata.features import Levels

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from fenceline.config.node import NodeConfig
    from fenceline.node.controller_channel import ControllerChannel
    from fenceline.node.controller_driver import ControllerDriver
    from fenceline.node.controller_listener import ControllerListener
    from fenceline.node.controller_registration import ControllerRegistration


class QuorumNode:
    """See the module."""

    def __init__(
        self, config: NodeConfig, controller: ControllerDriver, *, cluster_id: str, features: Mapping[str, Levels]
    ) -> None:
        self._config = config
        self._controller = controller
        self._cluster_id = cluster_id
        self._features = features
        self._registration: ControllerRegistration | None = None
        self.listener: ControllerListener | None = None
        self.channel: ControllerChannel | None = None

    async def start(self, disk_threads: Executor) -> None:
        """Until the quorum runs; where this node votes alone, it leads when this returns. Raises OperatorError."""
        config, controller = self._config, self._controller
        if config.is_controller and config.controller_listeners:
            from fenceline.node.controller_listener import ControllerListener
            from fenceline.node.metrics import NodeMetrics

            self.listener = ControllerListener(
                config=config,
                cluster_id=self._cluster_id,
                controller=controller,
                metrics=NodeMetrics(),
                disk_threads=disk_threads,
            )
            await self.listener.bind()
        controller.open(self.listener.voter_endpoint if self.listener is not None else None)
        if config.can_reach_others:
            from fenceline.node.controller_channel import ControllerChannel
            from fenceline.node.peer_connection import dial_from

            own_address = config.get_str("fenceline.outbound.address") or ""
            self.channel = ControllerChannel(controller, node_id=config.node_id, connect=dial_from(own_address))
            controller.channel = self.channel
        await controller.run()
        if self.listener is not None:
            await self.listener.start_serving()
            from fenceline.node.controller_registration import ControllerRegistration

            self._registration = ControllerRegistration(
                controller, config.node_id, self.listener.endpoints, self._features
            )
            self._registration.start()

    async def stop(self) -> None:
        """Raises PeerError, OSError where the log can not be closed cleanly."""
        if self._registration is not None:
            await self._registration.stop()
        if self.channel is not None:
            self.channel.close()
        try:
            await self._controller.stop()
        finally:
            if self.listener is not None:
                await self.listener.close()
