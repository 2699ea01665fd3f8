"""The controller: each request leads to records and a response.

Owns the table from request to decision. Never appends, commits or publishes: its driver calls `decide`, appends the
records at `next_offset`, calls `replay` at once (so that the next decision sees them, C1), flushes, and only then sends
the response. If the append fails the driver calls `reset` with the last committed image (C2).

Rules: controller.md C1-C4, C7.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from fenceline.controller import (
    alter_partition,
    brokers,
    configs,
    directories,
    feature_updates,
    partitions,
    producer_ids,
    reassignments,
    registrations,
    topics,
)
from fenceline.controller.partition_requests import (
    AlterPartition,
    AlterPartitionReassignments,
    AssignReplicasToDirs,
    BalanceLeaders,
    ElectLeaders,
    ElectUncleanLeaders,
    ListPartitionReassignments,
)
from fenceline.controller.requests import (
    AllocateProducerIds,
    AlterConfigs,
    BrokerHeartbeat,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    EmptyAnswer,
    FenceEndedBroker,
    FenceStaleBroker,
    IncrementalAlterConfigs,
    RegisterBroker,
    RegisterController,
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

_Handler = Callable[[ControllerState, Any, int, Rng], Decision]

HANDLERS: Final[Mapping[type[Any], _Handler]] = {
    CreateTopics: lambda state, request, now_ms, rng: topics.create_topics(state, request, rng),
    DeleteTopics: lambda state, request, now_ms, rng: topics.delete_topics(state, request),
    CreatePartitions: lambda state, request, now_ms, rng: topics.create_partitions(state, request, rng),
    IncrementalAlterConfigs: lambda state, request, now_ms, rng: configs.incremental_alter_configs(state, request),
    AlterConfigs: lambda state, request, now_ms, rng: configs.alter_configs(state, request),
    RegisterBroker: lambda state, request, now_ms, rng: registrations.register_broker(state, request, now_ms),
    BrokerHeartbeat: lambda state, request, now_ms, rng: brokers.broker_heartbeat(state, request, now_ms),
    UnregisterBroker: lambda state, request, now_ms, rng: registrations.unregister_broker(state, request),
    RegisterController: lambda state, request, now_ms, rng: registrations.register_controller(state, request),
    AllocateProducerIds: lambda state, request, now_ms, rng: producer_ids.allocate_producer_ids(state, request),
    UpdateFeatures: lambda state, request, now_ms, rng: feature_updates.update_features(state, request),
    AlterPartition: lambda state, request, now_ms, rng: alter_partition.alter_partition(state, request),
    AlterPartitionReassignments: lambda state, request, now_ms, rng: reassignments.alter_partition_reassignments(
        state, request
    ),
    ListPartitionReassignments: lambda state, request, now_ms, rng: reassignments.list_partition_reassignments(
        state, request
    ),
    AssignReplicasToDirs: lambda state, request, now_ms, rng: directories.assign_replicas_to_dirs(state, request),
    ElectLeaders: lambda state, request, now_ms, rng: partitions.elect_leaders(state, request),
    FenceEndedBroker: lambda state, request, now_ms, rng: brokers.fence_ended_broker(state, request),
    FenceStaleBroker: lambda state, request, now_ms, rng: brokers.fence_stale_broker(state, now_ms),
    BalanceLeaders: lambda state, request, now_ms, rng: partitions.balance_leaders(state),
    ElectUncleanLeaders: lambda state, request, now_ms, rng: partitions.elect_unclean_leaders(state),
    WriteNoOp: lambda state, request, now_ms, rng: Decision((NoOpRecord(),), EmptyAnswer()),
    WriteBootstrapRecords: lambda state, request, now_ms, rng: feature_updates.bootstrap_records(state, request),
}
"""The function that handles each request."""


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
        brokers.begin_sessions(self.state, now_ms, dead=dead)

    def reset(self, image: MetadataImage, next_offset: int) -> None:
        """Discard decided records that were never committed (C2)."""
        self.state.reset(image, next_offset)
        brokers.restore_sessions(self.state, self._now_ms)

    def decide(self, request: Request, now_ms: int, rng: Rng) -> Decision:
        """The records and the response of `request`. Raises PeerError if the whole request fails."""
        state = self.state
        before, self._now_ms = state.image, now_ms
        decision = HANDLERS[type(request)](state, request, now_ms, rng)
        if state.image is not before:
            raise InternalError(f"C1: deciding {type(request).__name__} changed the image before its records exist")
        return decision

    def replay(self, records: Sequence[MetadataRecord], last_offset: int, epoch: int) -> tuple[MetadataImage, Delta]:
        """Apply the records of a decision to the image; the last one has the offset `last_offset`."""
        return self.state.replay(records, last_offset, epoch)
