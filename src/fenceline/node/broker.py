"""One node: disks, controller, replicas, coordinators, server. The composition root.

Owns the order of start and stop, and which part is given what. Contains no protocol logic.

| start                                                     | stop (SIGTERM)                              |
|-----------------------------------------------------------|---------------------------------------------|
| 1. lock and open the log directory                        | 1. stop to accept, drain answers            |
| 2. replay the metadata log, become its leader             | 2. controlled shutdown, stop the controller |
| 3. bind the listeners, register the broker, unfence       | 3. flush and close the logs, checkpoints    |
| 4. recover logs (only after a crash), record losses, load | 4. write the clean-shutdown mark, unlock    |
|    coordinators                                           |                                             |
| 5. accept connections, print the ready line               |                                             |
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from random import Random
from typing import ClassVar, Final

from fenceline.config.broker import CONFIRMATION
from fenceline.config.effective import effective_broker_config, effective_topic_config
from fenceline.config.listeners import ListenerConfig
from fenceline.config.node import NodeConfig
from fenceline.controller.requests import CreateTopicResult, CreateTopics, RequestOutcome
from fenceline.errors import ErrorCode, PeerError
from fenceline.groups.settings import GroupSettings
from fenceline.ids import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from fenceline.log.core.config import PRODUCER_EXPIRATION
from fenceline.log.core.disk import Disk, OsDisk
from fenceline.log.directories.log_dir import LogDir
from fenceline.log.directories.log_dirs import LogDirs
from fenceline.metadata.changes import Delta, difference
from fenceline.metadata.features import SUPPORTED, TRANSACTION_VERSION, Levels
from fenceline.metadata.image import ConfigResourceType, MetadataImage
from fenceline.node.api.handlers.transaction_markers import (
    MarkerToWrite,
    TransactionMarkers,
    all_codes,
)
from fenceline.node.api.metrics import NodeCollector
from fenceline.node.api.produce.producing import VERIFICATION_KEY
from fenceline.node.api.tables import broker_apis, data_path_handlers, raw_apis, with_api_versions
from fenceline.node.clock import Clock, SystemClock
from fenceline.node.context import NodeView
from fenceline.node.controller.broker_lifecycle import BrokerLifecycle
from fenceline.node.controller_node import run_until, unless_failed
from fenceline.node.coordination.placement import CoordinatorPlacement
from fenceline.node.coordination.read_barriers import ReadBarriers, confirm_at_once
from fenceline.node.coordination.topic_creation import TopicCreation, topic_to_create
from fenceline.node.coordination.topic_log import CoordinatorTopicLog
from fenceline.node.data_plane import DataPlane
from fenceline.node.groups.driver import GroupsDriver
from fenceline.node.logs import Logger
from fenceline.node.losses.delivery import LossDelivery
from fenceline.node.losses.evidence_reads import EvidenceReads
from fenceline.node.losses.expiry import LossExpiry
from fenceline.node.losses.keeper import LossCollector
from fenceline.node.losses.lost_transactions import LostTransactions
from fenceline.node.metadata.metadata_log import METADATA_PARTITION
from fenceline.node.metrics import MetricsEndpoint, NodeMetrics, open_endpoint
from fenceline.node.net import listening
from fenceline.node.net.connection_limits import ConnectionLimits
from fenceline.node.net.dialing import dial_brokers
from fenceline.node.net.server import Server, ServerLimits
from fenceline.node.quorum_node import QuorumNode
from fenceline.node.replication.metrics import ReplicationCollector
from fenceline.node.replication.replicas import log_recovery_report
from fenceline.node.storage.directories import open_directories, starting
from fenceline.node.storage.log_cleaner import CleanerCollector
from fenceline.node.storage.maintenance import Maintenance
from fenceline.node.storage.storage_trouble import StorageTrouble
from fenceline.node.transactions.driver import TransactionsDriver
from fenceline.node.transactions.marker_sender import MarkerSender
from fenceline.node.transactions.metrics import TransactionCollector
from fenceline.node.transactions.past_transactions import PastTransactions
from fenceline.node.transactions.producer_ids import ProducerIds
from fenceline.node.transactions.recovery import TransactionRecovery
from fenceline.node.transactions.verification import Verification
from fenceline.node.turns import Turns
from fenceline.transactions.messages import EndMarkers, TopicIndex
from fenceline.transactions.settings import TransactionSettings

log = Logger("broker")

_DISK_THREADS: Final = 4
_RECEIVE_BUDGET_BYTES: Final = 512 << 20
"""Replaces `queued.max.request.bytes=-1`, Kafka's unlimited default: receive memory is always bounded here."""


def _explicit_int(config: NodeConfig, key: str) -> int:
    """The value of an explicitly set key; -1, the system's choice, otherwise."""
    return config.get_int(key) if config.is_set(key) else -1


def server_limits(config: NodeConfig) -> ServerLimits:
    """The limits of a broker's listeners."""
    budget_bytes = config.get_int("queued.max.request.bytes")
    return ServerLimits(
        max_request_bytes=config.get_int("socket.request.max.bytes"),
        receive_budget_bytes=budget_bytes if budget_bytes > 0 else _RECEIVE_BUDGET_BYTES,
        backlog=listening.backlog_of(config),
        idle_timeout_ms=config.get_int("connections.max.idle.ms"),
        handshake_timeout_ms=config.get_int("fenceline.authentication.timeout.ms"),
        # Kafka's default buffers would split requests and responses into ten pieces each; the system's buffers grow
        # with use.
        send_buffer_bytes=_explicit_int(config, "socket.send.buffer.bytes"),
        receive_buffer_bytes=_explicit_int(config, "socket.receive.buffer.bytes"),
    )


class Broker:
    """One node. `start` and `stop` are called once each, in that order."""

    server_type: ClassVar[type[Server]] = Server

    def __init__(
        self,
        config: NodeConfig,
        *,
        clock: Clock | None = None,
        rng: Random | None = None,
        disk: Disk | None = None,
        disk_threads: Executor | None = None,
        metadata_threads: Executor | None = None,
    ) -> None:
        """Omitted arguments default to this machine's; `metadata_threads` run the work of the metadata log."""
        self.config = config
        self.node_id: int = config.node_id
        self.clock: Clock = clock or SystemClock()
        self.rng = rng or Random()
        self.metrics = NodeMetrics()
        self.storage_trouble = StorageTrouble(self.clock)
        self.supported_features: Mapping[str, Levels] = SUPPORTED
        self.disk = disk or OsDisk()
        self.disk_threads: Executor = disk_threads or ThreadPoolExecutor(_DISK_THREADS, thread_name_prefix="disk")
        self._metadata_threads = metadata_threads
        self.endpoints: tuple[ListenerConfig, ...] = ()
        """The advertised listeners, with the ports that were actually bound."""
        self.metrics_endpoint: MetricsEndpoint | None = None
        self.quorum: QuorumNode | None = None
        self._metadata_dir: LogDir | None = None
        """Holds the lock of `metadata.log.dir` if that is a separate directory."""
        self._started: list[str] = []

    # --- what the parts see ---------------------------------------------------------------------------------------

    @property
    def image(self) -> MetadataImage:
        """The committed metadata image."""
        return self.controller.image

    @property
    def cluster_id(self) -> str:
        return self.log_dirs.first.cluster_id

    @property
    def broker_epoch(self) -> int:
        """-1 until the controller has registered this broker."""
        return self.lifecycle.broker_epoch

    @property
    def ready_line(self) -> str:
        """The line that `fenceline start` prints when ready; ends in host:port of the first listener."""
        first = self.endpoints[0]
        address = f"{first.host}:{first.port}"
        return f"Fenceline is ready: node {self.node_id}, cluster {self.cluster_id}, listening on {address}"

    def log_end_offset(self, topic_partition: TopicPartition) -> int | None:
        """The log end offset of an open log; None for any other."""
        if topic_partition == METADATA_PARTITION:
            return self.controller.log.end_offset
        return self.plane.in_service.log_end_offset(topic_partition)

    def log_config(self, topic: str) -> Mapping[str, str | None]:
        """Every topic config that has a value (`controller.md C37`), with the broker's defaults for all logs."""
        configs = self.image.configs
        expiration = effective_broker_config(configs, self.config, PRODUCER_EXPIRATION)
        return {**effective_topic_config(configs, topic, self.config), PRODUCER_EXPIRATION: expiration}

    def _min_in_sync(self, topic: str) -> int:
        return int(effective_topic_config(self.image.configs, topic, self.config)["min.insync.replicas"])

    async def auto_create(self, names: Sequence[str]) -> dict[str, RequestOutcome]:
        """Create requested topics automatically; internal topics get their required configs."""
        topics = tuple(topic_to_create(name, self.config) for name in names)
        answer = await self.controller.submit(CreateTopics(topics))
        created: dict[str, RequestOutcome] = {}
        topic: CreateTopicResult
        for topic in answer.topics:
            created[topic.name] = topic.outcome
            if topic.outcome.failed and topic.outcome.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                log.warning("topic not created", topic=topic.name, reason=topic.outcome.message)
        return created

    # --- start ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start until connections are accepted. Raises OperatorError; call `stop` in any case."""
        self.loop = asyncio.get_running_loop()
        with starting(self.config):
            await self._start()

    async def _start(self) -> None:
        config = self.config
        disk = self.disk
        directories = open_directories(config, disk, self.rng)
        self.log_dirs = LogDirs(directories.data, metadata=directories.metadata, offline=directories.offline)
        if directories.metadata_is_apart:
            self._metadata_dir = directories.metadata
        self.quorum = QuorumNode(
            config,
            directories,
            disk,
            features=self.supported_features,
            clock=self.clock,
            rng=self.rng,
            trouble=self.storage_trouble,
            executor=self._metadata_threads,
        )
        self.controller = self.quorum.controller
        self.lifecycle = BrokerLifecycle(
            self.node_id,
            self.controller,
            heartbeat_s=config.get_int("broker.heartbeat.interval.ms") / 1000,
            rng=self.rng,
        )
        plane = self.plane = DataPlane(
            self.node_id,
            config,
            self.log_dirs,
            dial=dial_brokers(config, self.quorum.certificates),
            image=lambda: self.image,
            submit=self.controller.submit,
            next_change=self.controller.next_change,
            broker_epoch=lambda: self.broker_epoch,
            report_failed=self.lifecycle.report_failed,
            report_cordoned=self.lifecycle.report_cordoned,
            report_silent=self.lifecycle.report_silent,
            log_config=self.log_config,
            fence_transactions=lambda where: self.transaction_recovery.fence(where),
            transaction_outcomes=lambda where, open_ones: self.transaction_recovery.outcomes(where, open_ones),
            decided_transactions=lambda where, open_ones: self.transaction_recovery.decided(where, open_ones),
            trouble=self.storage_trouble,
            clock=self.clock,
            rng=self.rng,
            executor=self.disk_threads,
            delete_later=self.delete_later,
        )
        self.losses, self.removed_replicas = plane.losses, plane.removed_replicas
        self.replication, self.partitions, self.flushes = plane.replication, plane.partitions, plane.flushes
        self.moves, self.cleaner = plane.moves, plane.cleaner
        self.verification = Verification(
            self.node_id,
            lambda: self.image,
            plane.peers,
            request_timeout_ms=config.get_int("request.timeout.ms"),
            ask_here=lambda *asked: self.transactions.add_for_leader(*asked),
        )
        coordinator_log = CoordinatorTopicLog(self.partitions, self.clock, self.storage_trouble)
        group_settings = GroupSettings.from_lookup(config.get)
        self.read_barriers = ReadBarriers(
            self.node_id,
            self.partitions,
            lambda: self.image,
            plane.peers,
            patience_ms=group_settings.commit_timeout_ms,
            request_timeout_ms=config.get_int("request.timeout.ms"),
        )
        confirm = self.read_barriers.confirm if config.get_bool(CONFIRMATION) else confirm_at_once
        self.groups = GroupsDriver(
            coordinator_log,
            self.clock,
            settings=group_settings,
            partition_count=config.get_int("offsets.topic.num.partitions"),
            rng=self.rng,
            threads=self.disk_threads,
            epoch_end=plane.in_service.epoch_end,
            image=lambda: self.image,
            verify=self.verification.ask_for_offsets,
            is_verification_on=lambda: effective_broker_config(self.image.configs, config, VERIFICATION_KEY) != "false",
            confirm_leadership=confirm,
            positions_dropped=lambda positions: self.loss_expiry.positions_dropped(positions),
        )
        self.producer_ids = ProducerIds(self.node_id, lambda: self.broker_epoch, self.controller.submit)
        self.transactions = TransactionsDriver(
            coordinator_log,
            self.clock,
            next_producer_id=self.producer_ids.at_hand,
            level=lambda: self.image.features.get(TRANSACTION_VERSION, 0),
            partition_exists=lambda topic, index: self.image.partition(topic, index) is not None,
            settings=TransactionSettings.from_lookup(config.get),
            partition_count=config.get_int("transaction.state.log.num.partitions"),
            threads=self.disk_threads,
            confirm_leadership=confirm,
        )
        past_transactions = PastTransactions(
            self.node_id, lambda: self.image, plane.peers, request_timeout_ms=config.get_int("request.timeout.ms")
        )
        self.transaction_recovery = TransactionRecovery(
            self.node_id,
            lambda: self.image,
            plane.peers,
            self.transactions,
            past_transactions.of,
            patience_ms=config.get_int("fenceline.transaction.recovery.timeout.ms"),
            request_timeout_ms=config.get_int("request.timeout.ms"),
        )
        self._placements = (
            CoordinatorPlacement(CONSUMER_OFFSETS_TOPIC, self.node_id, self.groups),
            CoordinatorPlacement(TRANSACTION_STATE_TOPIC, self.node_id, self.transactions),
        )
        self.loss_delivery = LossDelivery(
            plane.losses,
            lambda: self.image,
            plane.peers,
            self.controller.submit,
            self.controller.next_change,
            self.disk_threads,
            replication_factor=config.get_int("fenceline.lost.topic.replication.factor"),
        )
        self.lost_transactions = LostTransactions(plane.losses, past_transactions.of, self.disk_threads)
        self.loss_expiry = LossExpiry(
            self.node_id,
            plane.losses,
            self.groups.coordinator,
            plane.in_service,
            lambda: self.image,
            plane.peers,
            self.clock,
            self.disk_threads,
        )
        await self.quorum.start(self.disk_threads)
        log_recovery_report(self.controller.log.partition_log)
        self._started.append("controller")
        await unless_failed(self.controller, self._join(self.quorum))

    async def _join(self, quorum: QuorumNode) -> None:
        """Register the broker, unfence it and accept connections."""
        config = self.config
        self.server = self._make_server()
        self.endpoints = await self._bind()
        self._started.append("server")
        await self.lifecycle.register(
            cluster_id=self.cluster_id,
            endpoints=self.endpoints,
            features=self.supported_features,
            rack=config.rack,
            log_dirs=self.log_dirs.directory_ids,
            previous_broker_epoch=self.log_dirs.previous_broker_epoch,
        )
        if quorum.channel is None:
            await self.lifecycle.unfence()
        self.plane.cordons.apply()
        known = self.image
        copies = await self.plane.recover()
        self.controller.subscribe(self._on_image)
        self.replication.apply_image()
        # Logs were opened by what was known when that began: topics may have gone meanwhile, and come anew.
        self.partitions.apply(difference(known, self.image))
        self.partitions.apply_roles()
        await self.removed_replicas.find_strays()
        self.moves.resume(copies)
        self.groups.on_topics_created(self.image.offset)
        for placement in self._placements:
            placement.load_all(self.image)
        await quorum.certificates.started()
        # Metadata may name this broker as a leader from here on: who comes at once is not sent away.
        self.server.open_backlog()
        if quorum.channel is not None:
            await self.lifecycle.unfence()
        await self.replication.recovered()
        self.maintenance = Maintenance(
            config,
            self.plane.in_service,
            self.clock,
            heartbeat=self.lifecycle.heartbeat,
            shrink_isrs=self.replication.shrink_isrs_of_each,
            sweep_evidence=self.losses.sweep,
            retry_pending=self.plane.pending.retry if self.plane.pending else None,
            checkpoint=self.plane.checkpoints.write,
            flushes=self.flushes,
            trouble=self.storage_trouble,
            log_end_offset=self.log_end_offset,
            log_start_moved=self.loss_expiry.log_start_moved,
            delete_later=self.delete_later,
        )
        self.maintenance.start()
        self.cleaner.start()
        self._started.append("maintenance")
        await self.server.start_serving()
        self.loss_delivery.start()
        self.lost_transactions.start()
        self.removed_replicas.start()
        self.loss_expiry.start()
        if config.get_int("fenceline.metrics.port") >= 0:
            collectors = [
                NodeCollector(
                    self.metrics,
                    self._fetching,
                    self.groups,
                    self.partitions,
                    self.log_dirs,
                    self.server.certificate_expiries,
                ),
                ReplicationCollector(
                    self.plane.in_service,
                    self.replication,
                    self.clock,
                    image=lambda: self.image,
                    min_in_sync=self._min_in_sync,
                    max_transaction_ms=config.get_int("transaction.max.timeout.ms"),
                ),
                LossCollector(self.losses),
                CleanerCollector(self.cleaner),
                self.verification,
                self.read_barriers,
                TransactionCollector(self.transactions, self.marker_sender, self.transaction_recovery),
                *quorum.collectors(),
            ]
            self.metrics_endpoint = open_endpoint(config, collectors)

    async def run_until(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, or until the node cannot continue (raises the failure)."""
        await run_until(self.controller, stop, self.plane.directory_failures.ended())

    async def stop(self) -> None:
        """Stop cleanly; parts that were not started are skipped."""
        if "maintenance" in self._started:
            await self.maintenance.stop()
            await self.cleaner.close()
            await self.loss_expiry.stop()
            await self.removed_replicas.stop()
            await self.lost_transactions.stop()
            await self.loss_delivery.stop()
        if "controller" in self._started and self.broker_epoch >= 0:
            try:
                # Leadership moves to other brokers while this one still serves.
                await self.lifecycle.controlled_shutdown()
            except PeerError as error:
                log.warning("controlled shutdown failed", reason=error.message)
        if "server" in self._started:
            await self.server.close()
            await self.verification.close()
            await self.read_barriers.close()
            await self.transaction_recovery.close()
            await self.marker_sender.close()
            self.producer_ids.close()
            await self.plane.close()
        if self.metrics_endpoint is not None:
            self.metrics_endpoint.close()
        if "controller" in self._started:
            self.groups.close()
            self.transactions.close()
            try:
                assert self.quorum is not None, "the controller was started"
                await self.quorum.stop()
            except (PeerError, OSError) as error:
                log.error("metadata log not closed cleanly; the next start will verify it", reason=str(error))
        log_dirs: LogDirs | None = getattr(self, "log_dirs", None)
        for log_dir in log_dirs.opened if log_dirs is not None else ():
            assert log_dirs is not None, "the directories are open"
            log_dir.broker_epoch = self.broker_epoch if "controller" in self._started else -1
            try:
                await self.loop.run_in_executor(self.disk_threads, log_dir.close, log_dirs.is_online(log_dir))
            except PeerError as error:
                log.error("shutdown was not clean; the next start will recover the logs", reason=error.message)
        if self._metadata_dir is not None:
            self._metadata_dir.close(clean=False)
        self.disk_threads.shutdown()

    def _make_server(self) -> Server:
        config, controller = self.config, self.controller
        assert self.quorum is not None, "the controller was started"
        authorization = self.quorum.authorization
        node = NodeView(self.node_id, self.cluster_id, config, lambda: controller.image)
        turns = Turns(self.loop, self.clock.monotonic_ms)
        producing, self._fetching = data_path_handlers(
            node,
            self.partitions,
            self.replication,
            loop=self.loop,
            turns=turns,
            clock=self.clock,
            rng=self.rng,
            metrics=self.metrics,
            threads=self.disk_threads,
            flush_up_to=self.flushes.up_to,
            rejected=self.storage_trouble.rejected,
            verifier=self.verification,
            evidence=EvidenceReads(self.losses, self.disk_threads),
        )
        request_timeout_ms = config.get_int("request.timeout.ms")
        markers = TransactionMarkers(
            self.partitions,
            self.clock,
            end_group_transactions=self.groups.end_transaction,
            flush_up_to=self.flushes.up_to,
            rejected=self.storage_trouble.rejected,
            timeout_ms=request_timeout_ms,
        )
        self.marker_sender = MarkerSender(
            self.node_id,
            node.images,
            self.plane.peers,
            partial(_end_here, markers),
            self.transactions.markers_written,
            request_timeout_ms=request_timeout_ms,
        )
        self.transactions.send_with(self.marker_sender)
        apis = broker_apis(
            node,
            controller=controller,
            replicas=self.partitions,
            replication=self.replication,
            log_start_moved=self.loss_expiry.log_start_moved,
            coordinator=self.groups,
            transaction_coordinator=self.transactions,
            producer_ids=self.producer_ids,
            directories=self.log_dirs,
            moves=self.moves,
            threads=self.disk_threads,
            auto_create=self.auto_create,
            create_offsets_topic=TopicCreation(CONSUMER_OFFSETS_TOPIC, self.auto_create).create,
            create_transaction_topic=TopicCreation(TRANSACTION_STATE_TOPIC, self.auto_create).create,
            markers=markers,
            authorization=authorization,
            quotas=self.quorum.quotas,
            check_certificates=self.quorum.certificates.check,
        )
        channel = self.quorum.channel
        return self.server_type(
            apis,
            with_api_versions(node, controller, apis, raw_apis(producing, self._fetching)),
            server_limits(config),
            self._connection_limits(),
            turns=turns,
            metrics=self.metrics,
            threads=self.disk_threads,
            forward=channel.forward if channel is not None else None,
            has_urgent_requests=self._fetching.reads.load_pace.has_urgent_requests,
            tls=listening.tls_of(config, self.quorum.certificates, config.listeners),
            sasl=listening.sasl_of(config, config.listeners, lambda: self.image, self.clock),
            authorization=authorization,
            quotas=self.quorum.quotas,
        )

    def _connection_limits(self) -> ConnectionLimits:
        config, controller = self.config, self.controller

        def of_listener(listener: str) -> Callable[[str], str | None]:
            static = config.of_listener_only(listener)
            dynamic = [controller.image.config(ConfigResourceType.BROKER, name) for name in (str(self.node_id), "")]
            prefix = f"listener.name.{listener.lower()}."
            return lambda key: next((own[prefix + key] for own in dynamic if prefix + key in own), static(key))

        between = config.inter_broker_listener
        return ConnectionLimits(
            lambda key: effective_broker_config(controller.image.configs, config, key),
            of_listener,
            lambda: controller.image.client_quotas,
            self.clock.monotonic_ms,
            exempt_listener=between if len(config.listeners) > 1 else None,
        )

    async def _bind(self) -> tuple[ListenerConfig, ...]:
        ports = {}
        for listener in self.config.listeners:
            ports[listener.name] = await self.server.bind(listener.name, listener.host, listener.port)
        return tuple(each._replace(port=each.port or ports[each.name]) for each in self.config.advertised_listeners)

    def delete_later(self, delete: Callable[[], None], delay_ms: int) -> None:
        """Delete files in a thread after a delay; a failure is logged, and the next start deletes them."""

        def start() -> None:
            def report(done: asyncio.Future[None]) -> None:
                if not done.cancelled() and (error := done.exception()) is not None:
                    log.warning("could not delete files", reason=str(error))

            asyncio.ensure_future(self.loop.run_in_executor(self.disk_threads, delete)).add_done_callback(report)

        if delay_ms <= 0:
            start()
        else:
            self.loop.call_later(delay_ms / 1000, start)

    def _on_image(self, image: MetadataImage, delta: Delta) -> None:
        self.replication.on_image(delta)
        self.moves.on_image(delta)
        self.plane.cordons.on_image(delta)
        self.loss_expiry.topics_deleted(delta.deleted_topics)
        self.partitions.apply(delta)
        self.groups.follow(image, delta)
        for placement in self._placements:
            placement.follow(image, delta)
        if delta.changed_partitions or delta.deleted_topics:
            self.transactions.on_leaders_changed()
        if delta.changed_brokers:
            self.transactions.on_brokers_changed()
        self.server.credentials_changed(image, delta)
        if any(resource.type is ConfigResourceType.BROKER for resource in delta.changed_configs):
            self.server.limits_changed()


def _end_here(
    markers: TransactionMarkers, ends: EndMarkers
) -> Awaitable[Mapping[TopicIndex, ErrorCode]] | Mapping[TopicIndex, ErrorCode]:
    """Writes end markers of partitions that are led here."""
    marker = MarkerToWrite(ends.identity, ends.coordinator_epoch, ends.commit, ends.transaction_version)
    codes = [markers.end(topic, index, marker) for topic, index in ends.partitions]
    known = {each: code for each, code in zip(ends.partitions, codes, strict=True) if isinstance(code, ErrorCode)}
    if len(known) == len(codes):
        return known

    async def wait() -> Mapping[TopicIndex, ErrorCode]:
        return dict(zip(ends.partitions, await all_codes(codes), strict=True))

    return wait()
