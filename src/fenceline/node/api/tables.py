"""The dispatch tables of a broker's and of a controller's listeners: which APIs they serve, and which ports each family
of handlers gets.

Part of the composition root: knows every family, and none knows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

from fenceline.config.broker import EVIDENCE_FETCH
from fenceline.config.effective import effective_broker_config
from fenceline.metadata.features import SUPPORTED
from fenceline.node.api.fetch import fetching as fetch
from fenceline.node.api.fetch.preferred_replicas import PreferredReplicas
from fenceline.node.api.handlers import (
    acls,
    api_versions,
    broker_partition_requests,
    broker_registration,
    client_quotas,
    cluster,
    configs,
    consumer_groups,
    delegation_tokens,
    elect_leaders,
    envelope,
    find_coordinator,
    group_membership,
    group_offsets,
    groups,
    log_dirs,
    metadata,
    offsets,
    producers,
    quorum,
    reassignments,
    sasl,
    scram_credentials,
    topic_partitions,
    topics,
    transaction_markers,
    transactions,
    unregister_broker,
    update_features,
)
from fenceline.node.api.leader_hints import LeaderHints
from fenceline.node.api.mutation_limits import MutationLimits
from fenceline.node.api.permissions.checked import checked, has_row
from fenceline.node.api.permissions.table import PERMISSIONS
from fenceline.node.api.produce import producing as produce
from fenceline.node.api.produce.acknowledging import FlushUpTo
from fenceline.node.api.produce.transactional import TransactionalProduce, VerificationLimits, Verifier
from fenceline.wire.apis import ApiKey

if TYPE_CHECKING:
    from fenceline.controller.requests import Request
    from fenceline.ids import TopicPartition
    from fenceline.log.core.errors import StorageError
    from fenceline.log.directories.log_dirs import LogDirs
    from fenceline.node.authorizing import NodeAuthorization
    from fenceline.node.client_limits import NodeQuotas
    from fenceline.node.clock import Clock
    from fenceline.node.context import Api, NodeView, RequestContext
    from fenceline.node.controller.driver import ControllerDriver
    from fenceline.node.groups.driver import GroupsDriver
    from fenceline.node.losses.evidence_reads import EvidenceReads
    from fenceline.node.metrics import NodeMetrics
    from fenceline.node.net.server import RawApi
    from fenceline.node.replication.replicas import Replicas
    from fenceline.node.replication.replication import Replication
    from fenceline.node.storage.directory_moves import DirectoryMoves
    from fenceline.node.transactions.driver import TransactionsDriver
    from fenceline.node.transactions.producer_ids import ProducerIds
    from fenceline.node.turns import Turns


def broker_apis(
    node: NodeView,
    *,
    controller: ControllerDriver,
    replicas: Replicas,
    replication: Replication,
    log_start_moved: Callable[[], None],
    coordinator: GroupsDriver,
    transaction_coordinator: TransactionsDriver,
    producer_ids: ProducerIds,
    directories: LogDirs,
    moves: DirectoryMoves,
    threads: Executor,
    auto_create: Callable[[Sequence[str]], Awaitable[object]],
    create_offsets_topic: Callable[[], Awaitable[object]],
    create_transaction_topic: Callable[[], Awaitable[object]],
    markers: transaction_markers.TransactionMarkers,
    authorization: NodeAuthorization | None,
    quotas: NodeQuotas,
    check_certificates: configs.CheckCertificates,
) -> tuple[Api, ...]:
    """The APIs of a broker that are decoded into an entity."""
    submit = controller.submit
    return _with_checks(
        node,
        authorization,
        *metadata.apis(node, replication.absent_now, auto_create),
        *topic_partitions.apis(node),
        *_limited(controller, quotas, topics.apis(node, submit, replicas.vacated)),
        *configs.apis(node, submit, check_certificates),
        *cluster.apis(node),
        *log_dirs.apis(node, replicas, directories, moves, threads),
        *find_coordinator.apis(node, create_offsets_topic, create_transaction_topic),
        *group_membership.apis(coordinator),
        *group_offsets.apis(node, coordinator),
        *groups.apis(coordinator),
        *consumer_groups.apis(node, coordinator),
        *offsets.apis(replicas, replication.deletions, log_start_moved, threads),
        *producers.apis(replicas),
        *transactions.apis(
            node, transaction_coordinator, producer_ids, lambda group: coordinator.coordinator.partition_of(group)
        ),
        *transaction_markers.apis(markers),
        *elect_leaders.apis(submit),
        *reassignments.apis(submit),
        *update_features.apis(submit),
        *unregister_broker.apis(submit),
        *quorum.apis(controller),
        *scram_credentials.apis(node, submit),
        *client_quotas.apis(node, submit),
        *acls.apis(node, submit, controller.subscribe, is_enabled=authorization is not None),
        *delegation_tokens.apis(node, submit, controller.now_ms),
        *sasl.apis(),
    )


def controller_apis(
    node: NodeView, controller: ControllerDriver, authorization: NodeAuthorization | None, quotas: NodeQuotas
) -> tuple[Api, ...]:
    """The APIs of the controllers' listener. Their requests go to the local controller only: if it is not active they
    fail with NOT_CONTROLLER (`since_4_0.md K4`)."""
    check = partial(_with_checks, node, authorization, on_controller=True)

    def submit(request: Request, client: RequestContext | None = None) -> asyncio.Future[Any]:
        return controller.active.submit(request)

    enclosed = check(
        *_limited(controller, quotas, topics.apis(node, submit)),
        *configs.controller_apis(node, submit),
        *elect_leaders.apis(submit),
        *reassignments.apis(submit),
        *update_features.apis(submit),
        *unregister_broker.apis(submit),
        *quorum.controller_apis(controller),
        *scram_credentials.controller_apis(submit),
        *client_quotas.controller_apis(submit),
        *acls.apis(node, submit, controller.subscribe, is_enabled=authorization is not None),
        *delegation_tokens.controller_apis(node, submit, controller.now_ms),
    )
    return (
        *enclosed,
        *check(
            *envelope.controller_apis(lambda: controller.active_epoch, enclosed),
            *broker_registration.controller_apis(submit, controller.broker_identified),
            *broker_partition_requests.controller_apis(submit),
            *cluster.controller_apis(node, lambda: controller.quorum),
            *sasl.apis(),
        ),
    )


def _limited(controller: ControllerDriver, quotas: NodeQuotas, apis: tuple[Api, ...]) -> tuple[Api, ...]:
    """With the quota of changes, which the active controller counts."""
    return MutationLimits(quotas, lambda: controller.is_active).limited(apis)


def _with_checks(
    node: NodeView, authorization: NodeAuthorization | None, *apis: Api, on_controller: bool = False
) -> tuple[Api, ...]:
    """With the checks of rights, if the node has an authorizer."""
    if authorization is None:
        return apis
    return checked(apis, node.images, authorization.in_force, on_controller=on_controller)


def data_path_handlers(
    node: NodeView,
    replicas: Replicas,
    replication: Replication,
    *,
    loop: asyncio.AbstractEventLoop,
    turns: Turns,
    clock: Clock,
    rng: Random,
    metrics: NodeMetrics,
    threads: Executor,
    flush_up_to: FlushUpTo,
    rejected: Callable[[TopicPartition, int, StorageError], None],
    verifier: Verifier,
    evidence: EvidenceReads,
) -> tuple[produce.ProduceHandler, fetch.FetchHandler]:
    """The handlers of Produce and Fetch, with the limits of the node's config."""
    config = node.config
    hints = LeaderHints(node.images)
    limits = VerificationLimits(
        config.get_int("add.partitions.to.txn.retry.backoff.ms"),
        min(config.get_int("add.partitions.to.txn.retry.backoff.max.ms"), config.get_int("request.timeout.ms")),
    )
    producing = produce.ProduceHandler(
        replicas,
        loop=loop,
        clock=clock,
        metrics=metrics,
        hints=hints,
        flush_up_to=flush_up_to,
        rejected=rejected,
        transactions=TransactionalProduce(
            replicas,
            verifier,
            clock,
            limits,
            is_verification_on=lambda: (
                effective_broker_config(node.image.configs, config, produce.VERIFICATION_KEY) != "false"
            ),
        ),
        name_of=partial(_name_of, node),
    )
    chooses_by_rack = config.get("replica.selector.class") == fetch.RACK_AWARE_SELECTOR
    fetching = fetch.FetchHandler(
        replicas,
        replication,
        loop=loop,
        turns=turns,
        clock=clock,
        metrics=metrics,
        hints=hints,
        threads=threads,
        rng=rng,
        max_response_bytes=config.get_int("fetch.max.bytes"),
        max_load_bytes=config.get_int("fenceline.fetch.load.max.bytes"),
        load_floor_byte_rate=config.get_int("fenceline.fetch.load.min.byte.rate"),
        max_sessions=config.get_int("max.incremental.fetch.session.cache.slots"),
        name_of=partial(_name_of, node),
        preferred=PreferredReplicas(node.node_id, config.rack, node.images, clock) if chooses_by_rack else None,
        evidence=evidence,
        serves_evidence=config.get_bool(EVIDENCE_FETCH),
    )
    return producing, fetching


def _name_of(node: NodeView, topic_id: bytes) -> str | None:
    topic = node.image.topics_by_id.get(UUID(bytes=topic_id))
    return None if topic is None else topic.name


def raw_apis(producing: produce.ProduceHandler, fetching: fetch.FetchHandler) -> dict[ApiKey, RawApi]:
    """The APIs of a broker whose handlers read the bytes themselves."""
    return {
        ApiKey.PRODUCE: (produce.MIN_VERSION, produce.MAX_VERSION, producing.handle),
        ApiKey.FETCH: (fetch.MIN_VERSION, fetch.MAX_VERSION, fetching.handle),
    }


def with_api_versions(
    node: NodeView,
    controller: ControllerDriver,
    apis: Sequence[Api],
    raw: Mapping[ApiKey, RawApi],
    *,
    fenceline_level: int = 0,
) -> dict[ApiKey, RawApi]:
    """`raw` and ApiVersions, which lists all of both tables. `fenceline_level`: what this listener announces to
    Fenceline's nodes (`wire.extensions`). Raises InternalError if an API has no permissions."""
    has_row(PERMISSIONS, (*(api.key for api in apis), *raw))
    answering = api_versions.ApiVersions(
        node,
        api_versions.api_ranges(apis, raw),
        supported=SUPPORTED,
        finalized=lambda: controller.finalized_features,
        fenceline_level=fenceline_level,
    )
    return {**raw, ApiKey.API_VERSIONS: (*api_versions.ANY_VERSION, answering.handle)}
