"""The controller: each request leads to records and a response.

Owns the choice of the function that decides a request. Never appends, commits or publishes: its driver calls `decide`,
appends the records at `next_offset`, calls `replay` at once (so that the next decision sees them, C1), flushes, and
only then sends the response. If the append fails the driver calls `reset` with the last committed image (C2).

Rules: controller.md C1-C4, C7.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from fenceline.controller import (
    acls,
    alter_partition,
    brokers,
    client_quotas,
    configs,
    delegation_tokens,
    directories,
    feature_updates,
    partitions,
    producer_ids,
    reassignments,
    registrations,
    scram_credentials,
    topics,
)
from fenceline.controller.partition_requests import (
    AlterPartition,
    AlterPartitionReassignments,
    AssignReplicasToDirs,
    BalanceLeaders,
    ElectLeaderless,
    ElectLeaders,
    ElectUncleanLeaders,
    ListPartitionReassignments,
)
from fenceline.controller.requests import (
    AllocateProducerIds,
    AlterClientQuotas,
    AlterConfigs,
    AlterUserScram,
    BrokerHeartbeat,
    CreateAcls,
    CreateDelegationToken,
    CreatePartitions,
    CreateTopics,
    DeleteAcls,
    DeleteTopics,
    EmptyAnswer,
    ExpireDelegationToken,
    FenceEndedBroker,
    FenceSilentBroker,
    FenceStaleBroker,
    IncrementalAlterConfigs,
    RegisterBroker,
    RegisterController,
    RemoveExpiredTokens,
    RenewDelegationToken,
    Request,
    UnregisterBroker,
    UpdateFeatures,
    WriteBootstrapRecords,
    WriteNoOp,
)
from fenceline.controller.state import ControllerSettings, ControllerState, Decision
from fenceline.errors import InternalError
from fenceline.metadata.changes import Delta
from fenceline.metadata.image import MetadataImage
from fenceline.metadata.records import MetadataRecord, NoOpRecord
from fenceline.rng import Rng


class Controller:
    """The active controller of one epoch. Not thread-safe: decisions are made by one thread (C1)."""

    def __init__(self, settings: ControllerSettings) -> None:
        self.state = ControllerState(settings)
        self._now_ms = 0
        """Time of the last decision."""

    @property
    def image(self) -> MetadataImage:
        """The image with all decided records, committed or not."""
        return self.state.image

    @property
    def next_offset(self) -> int:
        return self.state.next_offset

    def activate(
        self, image: MetadataImage, next_offset: int, now_ms: int, *, dead: frozenset[int] = frozenset()
    ) -> None:
        """Become active with `image` as the state; `dead` as in `brokers.begin_sessions`."""
        self._now_ms = now_ms
        self.state.reset(image, next_offset)
        self.state.silence.clear()
        brokers.begin_sessions(self.state, now_ms, dead=dead)

    def reset(self, image: MetadataImage, next_offset: int) -> None:
        """Discard decided records that were never committed (C2)."""
        self.state.reset(image, next_offset)
        brokers.restore_sessions(self.state, self._now_ms)

    def decide(self, request: Request, now_ms: int, rng: Rng) -> Decision:
        """The records and the response of `request`. Raises PeerError if the whole request fails."""
        state = self.state
        before, self._now_ms = state.image, now_ms
        decision = _decide(state, request, now_ms, rng)
        if state.image is not before:
            raise InternalError(f"C1: deciding {type(request).__name__} changed the image before its records exist")
        return decision

    def replay(self, records: Sequence[MetadataRecord], last_offset: int, epoch: int) -> tuple[MetadataImage, Delta]:
        """Apply the records of a decision to the image; the last one has the offset `last_offset`."""
        return self.state.replay(records, last_offset, epoch)


def _decide(state: ControllerState, request: Request, now_ms: int, rng: Rng) -> Decision:
    match request:
        case BrokerHeartbeat():
            return brokers.broker_heartbeat(state, request, now_ms)
        case AlterPartition():
            return alter_partition.alter_partition(state, request)
        case CreateTopics():
            return topics.create_topics(state, request, rng)
        case DeleteTopics():
            return topics.delete_topics(state, request)
        case CreatePartitions():
            return topics.create_partitions(state, request, rng)
        case IncrementalAlterConfigs():
            return configs.incremental_alter_configs(state, request)
        case AlterConfigs():
            return configs.alter_configs(state, request)
        case RegisterBroker():
            return registrations.register_broker(state, request, now_ms)
        case UnregisterBroker():
            return registrations.unregister_broker(state, request)
        case RegisterController():
            return registrations.register_controller(state, request)
        case AllocateProducerIds():
            return producer_ids.allocate_producer_ids(state, request)
        case AlterClientQuotas():
            return client_quotas.alter_client_quotas(state, request)
        case AlterUserScram():
            return scram_credentials.alter_user_scram(state, request)
        case CreateAcls():
            return acls.create_acls(state, request, rng)
        case DeleteAcls():
            return acls.delete_acls(state, request)
        case CreateDelegationToken():
            return delegation_tokens.create_delegation_token(state, request, rng)
        case RenewDelegationToken():
            return delegation_tokens.renew_delegation_token(state, request)
        case ExpireDelegationToken():
            return delegation_tokens.expire_delegation_token(state, request)
        case RemoveExpiredTokens():
            return delegation_tokens.remove_expired_tokens(state, request)
        case UpdateFeatures():
            return feature_updates.update_features(state, request)
        case AlterPartitionReassignments():
            return reassignments.alter_partition_reassignments(state, request)
        case ListPartitionReassignments():
            return reassignments.list_partition_reassignments(state, request)
        case AssignReplicasToDirs():
            return directories.assign_replicas_to_dirs(state, request)
        case ElectLeaders():
            return partitions.elect_leaders(state, request)
        case FenceEndedBroker():
            return brokers.fence_ended_broker(state, request)
        case FenceSilentBroker():
            return brokers.fence_silent_broker(state, request, now_ms)
        case FenceStaleBroker():
            return brokers.fence_stale_broker(state, now_ms)
        case BalanceLeaders():
            return partitions.balance_leaders(state)
        case ElectUncleanLeaders():
            return partitions.elect_unclean_leaders(state)
        case ElectLeaderless():
            return partitions.elect_leaderless(state)
        case WriteNoOp():
            return Decision((NoOpRecord(),), EmptyAnswer())
        case WriteBootstrapRecords():
            return feature_updates.bootstrap_records(state, request)
        case _:
            assert_never(request)
