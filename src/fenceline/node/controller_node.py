"""A controller-only node: the metadata log, the controller listener, metrics, no clients.

The composition root for `process.roles=controller`; `fenceline.node.broker` is the one for all other nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any, Final

from fenceline.config.node import NodeConfig
from fenceline.errors import PeerError
from fenceline.log.core.disk import Disk, OsDisk
from fenceline.metadata.features import SUPPORTED
from fenceline.node.clock import Clock, SystemClock
from fenceline.node.controller.driver import ControllerDriver
from fenceline.node.logs import Logger
from fenceline.node.metrics import MetricsEndpoint, open_endpoint
from fenceline.node.quorum_node import QuorumNode
from fenceline.node.storage.directories import Directories, open_directories, starting
from fenceline.node.storage.storage_trouble import StorageTrouble

log = Logger("controller")

_DISK_THREADS: Final = 2


class ControllerNode:
    """`start` and `stop` are called once each, in that order."""

    def __init__(
        self, config: NodeConfig, *, clock: Clock | None = None, rng: Random | None = None, disk: Disk | None = None
    ) -> None:
        """Omitted arguments default to this machine's."""
        self.config = config
        self.node_id: int = config.node_id
        self.clock: Clock = clock or SystemClock()
        self.rng = rng or Random()
        self.disk = disk or OsDisk()
        self.disk_threads = ThreadPoolExecutor(_DISK_THREADS, thread_name_prefix="disk")
        self.controller: ControllerDriver
        self._directories: Directories | None = None
        self._quorum: QuorumNode | None = None
        self.metrics_endpoint: MetricsEndpoint | None = None

    @property
    def ready_line(self) -> str:
        """The line that `fenceline start` prints when ready; ends in host:port of the first listener."""
        assert self._quorum is not None, "it has started"
        assert self._quorum.listener is not None, "a controller has a listener"
        assert self._directories is not None, "the directories are open"
        first = self._quorum.listener.endpoints[0]
        cluster_id = self._directories.cluster_id
        return f"Fenceline is ready: node {self.node_id}, cluster {cluster_id}, listening on {first.host}:{first.port}"

    async def start(self) -> None:
        """Start until the quorum's other nodes can reach this one. Raises OperatorError; call `stop` in any case."""
        with starting(self.config):
            await self._start()

    async def _start(self) -> None:
        config, disk = self.config, self.disk
        self._directories = directories = open_directories(config, disk, self.rng)
        self._quorum = quorum = QuorumNode(
            config,
            directories,
            disk,
            features=SUPPORTED,
            clock=self.clock,
            rng=self.rng,
            trouble=StorageTrouble(self.clock),
        )
        self.controller = quorum.controller
        await quorum.start(self.disk_threads)
        await quorum.certificates.started()
        if config.get_int("fenceline.metrics.port") >= 0:
            self.metrics_endpoint = open_endpoint(config, quorum.collectors())

    async def run_until(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set, or until the node cannot continue (raises the failure)."""
        await run_until(self.controller, stop)

    async def stop(self) -> None:
        """Stop cleanly; parts that were not started are skipped."""
        if self.metrics_endpoint is not None:
            self.metrics_endpoint.close()
        if self._quorum is not None:
            try:
                await self._quorum.stop()
            except (PeerError, OSError) as error:
                log.error("metadata log not closed cleanly; the next start will verify it", reason=str(error))
        if self._directories is not None:
            for log_dir in self._directories.all:
                log_dir.close(clean=log_dir in self._directories.data)
        self.disk_threads.shutdown()


async def unless_failed(controller: ControllerDriver, work: Coroutine[Any, Any, None]) -> None:
    """Await `work`, or cancel it when the metadata fails (raises the failure): work that waits for metadata changes
    would wait forever."""
    doing = asyncio.ensure_future(work)
    failed = controller.failed()
    try:
        await asyncio.wait((doing, failed), return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            failed.result()
        doing.result()
    finally:
        failed.cancel()
        if not doing.done():
            doing.cancel()
            await asyncio.wait((doing,))


async def run_until(controller: ControllerDriver, stop: asyncio.Event, *others: asyncio.Future[None]) -> None:
    """Wait until `stop` is set, or until the metadata or one of `others` fails (raises the failure)."""
    stopped = asyncio.ensure_future(stop.wait())
    failures = (controller.failed(), *others)
    awaited: list[asyncio.Future[Any]] = [stopped, *failures]
    try:
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        for failed in failures:
            if failed.done():
                failed.result()
    finally:
        stopped.cancel()
        for failed in failures:
            failed.cancel()
