"""The metadata of one node: its log and quorum, the committed image, and the controller.

Owns the composition of `quorum.driver` (log and leadership), `metadata.loader` (committed records to images),
`active_controller` (decisions, while this node leads) and `metadata.snapshots`. Every node has one, whatever its roles;
a node that votes alone leads from start to stop. Decides nothing itself.

    submit ──> active_controller ──> quorum_driver ──> disk, other voters
                       ^                  │ committed
       listeners <─────┴── metadata_loader┘

If another node leads, requests of this node are sent to it through `channel`, if there is one.

Rules: controller.md C1-C3, C6, C15, C30; raft.md Q2, Q31-Q36; since_4_0.md K20; gaps.md G35.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from fenceline.config.node import NodeConfig
from fenceline.controller.requests import Request, WriteBootstrapRecords
from fenceline.errors import InternalError, OperatorError
from fenceline.log.core.disk import Disk
from fenceline.log.core.errors import StorageError
from fenceline.metadata.features import LATEST_METADATA_VERSION, METADATA_VERSION
from fenceline.metadata.image import MetadataImage
from fenceline.node.clock import Clock
from fenceline.node.controller.active_controller import ActiveController
from fenceline.node.controller.opening import controller_settings, open_controller, probes_brokers, watches_silence
from fenceline.node.controller.shutdown_wait import wait_while_quorum_possible
from fenceline.node.metadata.format import read_bootstrap
from fenceline.node.metadata.loader import Listener, MetadataLoader
from fenceline.node.metadata.metadata_log import MetadataLog
from fenceline.node.metadata.snapshots import Snapshots
from fenceline.node.quorum.driver import QuorumDriver
from fenceline.node.storage.storage_trouble import StorageTrouble
from fenceline.quorum.control_records import VoterEndpoint
from fenceline.quorum.log_view import SnapshotId
from fenceline.quorum.messages import RequestMessage, ResponseMessage
from fenceline.quorum.quorum import Quorum

if TYPE_CHECKING:
    from fenceline.controller.state import ControllerState
    from fenceline.node.context import RequestContext
    from fenceline.node.controller.channel import ControllerChannel
    from fenceline.node.controller.opening import OpenedController
    from fenceline.node.controller.ports import Decider, LocalController
    from fenceline.node.controller.presence import BrokerPresence
    from fenceline.node.controller.silence_watch import SilenceWatch
    from fenceline.node.net.peer_connection import Dial
    from fenceline.node.quorum.watch import QuorumWatch

_DISK_THREADS: Final = 2
"""Threads: votes and flushes must not wait for a snapshot that is being written."""
_RESIGN_MS: Final = 1000
"""How long a stopping leader waits for a new one."""


class ControllerDriver:
    """See the module. All methods belong to the loop."""

    def __init__(
        self,
        *,
        config: NodeConfig,
        disk: Disk,
        directory: str | Path,
        cluster_id: str,
        node_id: int,
        directory_id: UUID,
        clock: Clock,
        rng: Random,
        trouble: StorageTrouble,
        executor: Executor | None = None,
        connect: Dial | None = None,
        connect_controllers: Dial | None = None,
        channel: Callable[[LocalController], ControllerChannel] | None = None,
    ) -> None:
        """`directory` is `metadata.log.dir`; `trouble` is informed of disk errors; `executor` runs flushes and file
        work (default: its own); `connect` opens connections to other nodes (default: TCP), `connect_controllers` those
        to other voters (default: `connect`); `channel` creates the channel for requests while this node is not the
        active controller (default: they fail)."""
        self._config = config
        self._disk = disk
        self._directory = str(directory)
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._directory_id = directory_id
        self._clock = clock
        self._rng = rng
        self._trouble = trouble
        self._own_executor = ThreadPoolExecutor(_DISK_THREADS, "metadata-disk") if executor is None else None
        self._executor = executor or self._own_executor
        self._connect = connect
        self._connect_controllers = connect_controllers or connect
        self._open_channel = channel
        self._failed: asyncio.Future[None] | None = None
        self._snapshots: Snapshots | None = None
        self._watch: QuorumWatch | None = None
        self._opened: OpenedController
        self._driver: QuorumDriver
        self._loader: MetadataLoader
        self._active: ActiveController
        self._early_listeners: list[Listener] = []
        self._is_open = False
        """The log and the quorum exist."""
        self._stopped = False
        self._dead: frozenset[int] = frozenset()
        self._term: tuple[int, int] | None = None
        """(epoch, required applied offset) of the term that begins once that offset is applied."""
        self._change: asyncio.Future[None] | None = None
        self.channel: ControllerChannel | None = None
        """Opened with the log, if requests are sent to other nodes."""

    # -- properties ----------------------------------------------------------------------------------------------------

    @property
    def image(self) -> MetadataImage:
        """The newest committed image."""
        return self._loader.image

    @property
    def finalized_features(self) -> dict[str, int]:
        """Committed feature levels; kraft.version comes from the quorum and is listed from 1 on (K1)."""
        features = dict(self._loader.image.features)
        if self.quorum.kraft_version:
            features["kraft.version"] = self.quorum.kraft_version
        return features

    @property
    def partition_count(self) -> int:
        """Partitions of all topics in the committed image."""
        return self._loader.partition_count

    @property
    def epoch(self) -> int:
        """The epoch of the quorum."""
        return self.quorum.epoch

    @property
    def quorum(self) -> Quorum:
        """For read access; its state changes only in the driver."""
        return self._driver.quorum

    @property
    def driver(self) -> QuorumDriver:
        """For handlers of requests from the quorum's other nodes."""
        return self._driver

    @property
    def active(self) -> ActiveController:
        """For requests that only this node may handle: error 41 if it does not lead."""
        return self._active

    @property
    def is_active(self) -> bool:
        """Whether this node is the active controller."""
        return self._active.is_active

    @property
    def active_epoch(self) -> int:
        """The epoch in which this node is the active controller, -1 if it is not."""
        return self._active.epoch

    @property
    def is_alone(self) -> bool:
        """Whether this node was the only voter at its start: then it has no peers."""
        return self._opened.is_alone

    @property
    def high_watermark(self) -> int:
        """The high watermark of the metadata log, as known to this node."""
        return self.quorum.high_watermark or 0

    @property
    def node_id(self) -> int:
        return self._node_id

    @property
    def log(self) -> MetadataLog:
        return self._opened.log

    @property
    def snapshots(self) -> Snapshots | None:
        """None before the node runs."""
        return self._snapshots

    @property
    def is_behind(self) -> bool:
        """Whether the image lags behind the committed log."""
        return self._loader.is_behind

    def now_ms(self) -> int:
        """Of the wall clock."""
        return self._clock.now_ms()

    def wall_time_ms(self, monotonic_ms: int) -> int:
        """Convert a monotonic time to wall-clock time."""
        return self._clock.now_ms() - (self._clock.monotonic_ms() - monotonic_ms)

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` on the loop for each committed change from now on, in order. It must not block or raise."""
        if self._is_open:
            self._loader.subscribe(listener)
        else:
            self._early_listeners.append(listener)

    def submit(self, request: Request, client: RequestContext | None = None) -> asyncio.Future[Any]:
        """The response of the active controller, once its records are committed. `client`: as `Submit` has it.

        Fails with PeerError: the controller's error of a request that fails as a whole, 41 if there is no active
        controller or it has stopped, 56 if its disk is full. Cancelling the future does not revert a decision.
        """
        if not self._stopped and not self.has_failed and not self._active.is_active and self.channel is not None:
            return asyncio.ensure_future(self.channel.submit(request, client))
        return self._active.submit(request)

    def broker_identified(self, listener: str, peer: str, broker_id: int, broker_epoch: int) -> None:
        """A broker identified itself on the connection that `peer` opened to `listener`."""
        if self._active.presence is not None:
            self._active.presence.broker_identified((listener, peer), broker_id, broker_epoch)

    def ask(self, message: RequestMessage) -> asyncio.Future[ResponseMessage]:
        """The quorum's response to a request of another node."""
        return self._driver.ask(message)

    def failed(self) -> asyncio.Future[None]:
        """Completes, with OperatorError or InternalError, only when this node cannot continue."""
        if self._failed is None:
            self._failed = asyncio.get_running_loop().create_future()
        return asyncio.shield(self._failed)

    def next_change(self) -> asyncio.Future[None]:
        """Completes when records were applied, or this node starts or stops leading. Shared: wait for it with
        `asyncio.wait`."""
        if self._change is None or self._change.done():
            self._change = asyncio.get_running_loop().create_future()
        return self._change

    # -- start and stop ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read the log and join the quorum. If this node is the only voter, lead it and write the first records of a
        new cluster. Raises OperatorError.

        Blocks the loop while it reads: no other part of the node runs yet.
        """
        self.open()
        await self.run()

    def open(self, endpoint: VoterEndpoint | None = None) -> None:
        """First half: read the log. `endpoint` is this controller's address for other nodes. Raises OperatorError."""
        if self._failed is None:
            self._failed = asyncio.get_running_loop().create_future()
        self._opened = opened = open_controller(
            self._config,
            self._disk,
            self._directory,
            node_id=self._node_id,
            cluster_id=self._cluster_id,
            directory_id=self._directory_id,
            now_ms=self._clock.now_ms(),
            rng=self._rng,
            endpoint=endpoint,
        )
        if not opened.is_alone or self._config.can_reach_others:
            self._watch = self._create_watch(opened)
        self._driver = QuorumDriver(
            disk=self._disk,
            log=opened.log,
            view=opened.view,
            quorum=opened.quorum,
            clock=self._clock,
            executor=self._executor,
            events=self,
            trouble=self._trouble,
            peers=None if self._watch is None else self._peers(self._watch),
        )
        self._loader = MetadataLoader(opened.log, executor=self._executor, failed=self._fail, applied=self._applied)
        self._active = ActiveController(
            config=self._config,
            settings=controller_settings(self._config, self._cluster_id),
            driver=self._driver,
            log=opened.log,
            loader=self._loader,
            clock=self._clock,
            rng=self._rng,
            trouble=self._trouble,
            failed=self._fail,
            published=self._applied,
            presence=self._presence if probes_brokers(self._config) else None,
            silence=self._silence if watches_silence(self._config) else None,
        )
        for listener in self._early_listeners:
            self._loader.subscribe(listener)
        replayed = opened.replayed
        end_offset = opened.log.end_offset if opened.is_alone else replayed.snapshot.end_offset
        self._loader.begin(
            replayed.image, end_offset, transaction_is_open=opened.is_alone and replayed.open_transaction
        )
        self._is_open = True
        if self._open_channel is not None:
            self.channel = self._open_channel(self)

    async def run(self) -> None:
        """Second half: boot the quorum."""
        opened = self._opened
        if self._watch is not None:
            self._watch.start()
        if opened.is_alone:
            self._dead = frozenset((self._node_id,))
        self._driver.start(opened.log.read_election())
        if opened.is_alone:
            self._begin_term()
            self._active.turn()
        self._snapshots = Snapshots(
            opened.log,
            self._config,
            self._clock,
            self._executor,
            log_begins=opened.view.forget_voters_before,
        )
        if opened.log.snapshot_load_s is not None:
            self._snapshots.loads.observe(opened.log.snapshot_load_s)
        if self._snapshots.counts_changes:
            self._snapshots.count_changes(self._loader.image)
            self._loader.subscribe(self._snapshots.follow)
        self._snapshots.replayed(opened.replayed.log_record_count, lambda: self._loader.image, self.quorum)
        self._driver.started()

    def _create_watch(self, opened: OpenedController) -> QuorumWatch:
        from fenceline.node.controller.connections import create_watch

        return create_watch(self._config, opened.quorum, opened.view, self._clock, directory_id=self._directory_id)

    def _peers(self, watch: QuorumWatch) -> Any:
        """Creates the connections to other voters; a simulation overrides it."""
        from fenceline.node.controller.connections import create_peers

        return create_peers(self._config, watch, self._connect_controllers)

    def _presence(self, controller: Decider, state: ControllerState) -> BrokerPresence:
        """Creates the broker probes; a simulation overrides it."""
        from fenceline.node.controller.connections import create_presence

        return create_presence(self._config, self._connect, controller, state, self._clock, self._driver.peers)

    def _silence(self, controller: Decider, state: ControllerState) -> SilenceWatch:
        """Creates the probes of brokers that their followers miss; a simulation overrides it."""
        from fenceline.node.controller.connections import create_silence_watch

        return create_silence_watch(self._config, self._connect, controller, state, self._clock, self._driver.peers)

    async def stop(self) -> None:
        """Complete queued requests, resign, close the log."""
        if self._stopped:
            return
        if self._watch is not None:
            self._watch.close()
        if self._is_open:
            await wait_while_quorum_possible(self.channel, self._active.finish(), self._driver.resign)
        self._stopped = True
        if self._snapshots is not None:
            await self._snapshots.finish()
        if self._is_open:
            stopping = self._driver.stop(timeout_ms=_RESIGN_MS)
            await wait_while_quorum_possible(self.channel, stopping, self._close_at_once)
            await asyncio.get_running_loop().run_in_executor(self._executor, self.log.close)
        if self._own_executor is not None:
            self._own_executor.shutdown()

    def _close_at_once(self) -> None:
        self._driver.call(lambda quorum, now: quorum.shutdown(now, 0))

    @property
    def has_failed(self) -> bool:
        return self._failed is not None and self._failed.done()

    # -- QuorumEvents --------------------------------------------------------------------------------------------------

    def committed(self, offset: int) -> None:
        if self._active.is_active:
            self._active.committed(offset)
        else:
            self._loader.committed(offset)

    def loaded(self, snapshot_id: SnapshotId, image: MetadataImage) -> None:
        snapshots = self._snapshots
        began_s = self._driver.load_began_s
        self._loader.load(
            image,
            snapshot_id.end_offset,
            lambda: None if snapshots is None else snapshots.loads.observe(asyncio.get_running_loop().time() - began_s),
        )
        if snapshots is not None:
            snapshots.loaded(image)

    def became_leader(self, epoch: int, start_offset: int) -> None:
        self._term = (epoch, start_offset)
        if not self._driver.is_starting:
            asyncio.get_running_loop().call_soon(self._begin_term)

    def lost_leadership(self, epoch: int) -> None:
        self._term = None
        self._active.deactivate()
        self._loader.committed(self.high_watermark)
        self._notify_changed()

    def driver_failed(self, error: BaseException) -> None:
        self._fail(error)

    # -- internals -----------------------------------------------------------------------------------------------------

    def _begin_term(self) -> None:
        """Become active once all records committed before are applied (Q33)."""
        if self._term is None or self._active.is_active or self.has_failed or self._stopped:
            return
        epoch, start_offset = self._term
        if self._loader.applied_offset < start_offset or self._loader.is_behind or self.quorum.epoch != epoch:
            return
        self._term = None
        try:
            bootstrap = read_bootstrap(self._disk, self._directory) if not self.image.metadata_version else None
            without_file = WriteBootstrapRecords(((METADATA_VERSION, LATEST_METADATA_VERSION),))
            self._active.activate(epoch, dead=self._dead, bootstrap=bootstrap or without_file)
        except (StorageError, OSError):
            if self._driver.is_starting:
                raise
            self._driver.resign()
        except (OperatorError, InternalError) as error:
            if self._driver.is_starting:
                raise
            self._fail(error)
        self._dead = frozenset()
        self._notify_changed()

    def _applied(self, size_bytes: int) -> None:
        self._begin_term()
        if self._snapshots is not None and size_bytes and not self._loader.transaction_is_open:
            self._snapshots.committed(size_bytes, self._loader.image, self.quorum)
        self._notify_changed()

    def _notify_changed(self) -> None:
        change, self._change = self._change, None
        if change is not None and not change.done():
            change.set_result(None)

    def _fail(self, error: BaseException) -> None:
        """Fail the node: the disk's content, or this node's own decisions or reads, are uncertain."""
        if self._failed is not None and not self._failed.done():
            self._failed.set_exception(_fatal_error(error))
        self._active.give_up()
        self._driver.end()
        self._notify_changed()


def _fatal_error(error: BaseException) -> BaseException:
    """The OperatorError or InternalError that stops the node, for anything that ended the quorum's driver, the loader,
    or the controller."""
    if isinstance(error, StorageError | OSError):
        reason = error.message if isinstance(error, StorageError) else str(error)
        return OperatorError(
            f"Could not flush the metadata log: {reason}",
            "The content of the disk is uncertain. Check the disk, then restart the node.",
        )
    if isinstance(error, OperatorError | InternalError):
        return error
    failure = InternalError(f"the controller failed: {error!r}")
    failure.__cause__ = error
    return failure
