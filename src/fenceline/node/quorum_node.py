"""The parts that every node has, whatever its roles: its metadata, the controller listener if it is a controller, the
channel to the active controller.

Owns their construction and order: bind, read the log, boot the quorum, serve, register; in reverse at the stop. A node
that is not reachable by others has only the metadata, and no cost for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from fenceline.config.authorizer import read_authorizer
from fenceline.ids import random_id
from fenceline.metadata.features import Levels
from fenceline.node.authorizing import NodeAuthorization
from fenceline.node.client_limits import NodeQuotas
from fenceline.node.context import NodeView
from fenceline.node.controller.driver import ControllerDriver
from fenceline.node.controller.opening import watches_silence
from fenceline.node.metrics import NodeMetrics
from fenceline.node.net.certificates import NodeCertificates
from fenceline.wire.extensions import WATCHES_SILENCE

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from fenceline.config.node import NodeConfig
    from fenceline.log.core.disk import Disk
    from fenceline.node.clock import Clock
    from fenceline.node.controller.channel import ControllerChannel
    from fenceline.node.controller.listener import ControllerListener
    from fenceline.node.controller.registration import ControllerRegistration
    from fenceline.node.loop_delays import LoopDelays
    from fenceline.node.storage.directories import Directories
    from fenceline.node.storage.storage_trouble import StorageTrouble


class QuorumNode:
    """See the module."""

    def __init__(
        self,
        config: NodeConfig,
        directories: Directories,
        disk: Disk,
        *,
        features: Mapping[str, Levels],
        clock: Clock,
        rng: Random,
        trouble: StorageTrouble,
        executor: Executor | None = None,
    ) -> None:
        """`executor` runs the metadata log's flushes and file work (default: its own)."""
        assert directories.metadata.directory_id is not None, "checked when it was opened"
        self._config = config
        self._cluster_id = directories.cluster_id
        self._features = features
        self.certificates = NodeCertificates(config)
        channel = dial = None
        if config.can_reach_others:
            from fenceline.node.controller.channel import ControllerChannel
            from fenceline.node.net.dialing import dial_controllers
            from fenceline.node.net.peer_connection import LARGEST_ANSWER_BYTES

            dial = dial_controllers(config, self.certificates)
            channel = partial(
                ControllerChannel,
                node_id=config.node_id,
                connect=dial,
                largest_answer_bytes=max(LARGEST_ANSWER_BYTES, config.get_int("socket.request.max.bytes")),
            )
        self.controller = ControllerDriver(
            config=config,
            disk=disk,
            directory=config.metadata_log_dir,
            cluster_id=self._cluster_id,
            node_id=config.node_id,
            directory_id=directories.metadata.directory_id,
            clock=clock,
            rng=rng,
            trouble=trouble,
            executor=executor,
            channel=channel,
            connect_controllers=dial,
        )
        self.certificates.follow(self.controller)
        self._rng = rng
        self._clock = clock
        authorizer = read_authorizer(config.text)
        self.authorization = None if authorizer is None else NodeAuthorization(authorizer, self.controller, clock)
        """None without an authorizer."""
        self.quotas = NodeQuotas(config, clock, self.controller.subscribe)
        self.metrics = NodeMetrics()
        """Metrics of the controller listener."""
        self._registration: ControllerRegistration | None = None
        self.listener: ControllerListener | None = None
        self._delays: LoopDelays | None = None

    @property
    def channel(self) -> ControllerChannel | None:
        """None if all requests are answered here, or before the start."""
        return self.controller.channel

    async def start(self, disk_threads: Executor) -> None:
        """Start until the quorum runs; a single voter leads on return. Raises OperatorError."""
        config, controller = self._config, self.controller
        if config.is_controller and config.controller_listeners:
            from fenceline.node.api.tables import controller_apis, with_api_versions
            from fenceline.node.controller.listener import ControllerListener

            node = NodeView(config.node_id, self._cluster_id, config, lambda: controller.image)
            apis = controller_apis(node, controller, self.authorization, self.quotas)
            level = WATCHES_SILENCE if watches_silence(config) else 0
            raw = with_api_versions(node, controller, apis, {}, fenceline_level=level)
            self.listener = ControllerListener(
                config,
                controller,
                apis,
                raw,
                metrics=self.metrics,
                threads=disk_threads,
                clock=self._clock,
                authorization=self.authorization,
                certificates=self.certificates,
            )
            await self.listener.bind()
        controller.open(self.listener.voter_endpoint if self.listener is not None else None)
        await controller.run()
        if self.listener is not None:
            await self.listener.start_serving()
            from fenceline.node.controller.registration import ControllerRegistration

            self._registration = ControllerRegistration(
                controller, config.node_id, self.listener.endpoints, self._features, random_id(self._rng)
            )
            self._registration.start()

    def collectors(self) -> list[Any]:
        """The Prometheus collectors of these parts, and of the loop, which is measured from now on. On the loop, once,
        after the start."""
        from fenceline.node.controller.metrics import ControllerCollector, MetadataCollector
        from fenceline.node.loop_delays import LoopDelays

        self._delays = LoopDelays(self._config.get_int("fenceline.event.loop.sample.ms"))
        self._delays.start()
        found: list[Any] = [MetadataCollector(self.controller), self.quotas, self._delays]
        if self._config.is_controller:
            found.append(ControllerCollector(self.controller, self.metrics))
        if self.authorization is not None:
            found.append(self.authorization)
        return found

    async def stop(self) -> None:
        """Raises PeerError, OSError if the log cannot be closed cleanly."""
        if self._delays is not None:
            self._delays.stop()
        if self._registration is not None:
            await self._registration.stop()
        if self.channel is not None:
            self.channel.close()
        try:
            await self.controller.stop()
        finally:
            if self.listener is not None:
                await self.listener.close()
            if self.authorization is not None:
                self.authorization.close()
