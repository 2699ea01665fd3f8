"""The controller: one request after the other, each answered by records and an answer.

Owns the table from request to decision. Never appends, commits or publishes: its driver does, in this order:
`decide`, append the records at `next_offset`, `replay` at once (so that the next decision sees them, C1), flush, and
only then give out the answer. When the append fails the driver calls `reset` to the last committed image (C2).

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
    BrokerGone,
    BrokerHeartbeat,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    Done,
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
    BrokerGone: lambda state, request, now_ms, rng: brokers.broker_gone(state, request),
    FenceStaleBroker: lambda state, request, now_ms, rng: brokers.fence_stale_broker(state, now_ms),
    BalanceLeaders: lambda state, request, now_ms, rng: partitions.balance_leaders(state),
    ElectUncleanLeaders: lambda state, request, now_ms, rng: partitions.elect_unclean_leaders(state),
    WriteNoOp: lambda state, request, now_ms, rng: Decision((NoOpRecord(),), Done()),
    WriteBootstrapRecords: lambda state, request, now_ms, rng: feature_updates.bootstrap_records(state, request),
}
"""What answers each request."""


class Controller:
    """The active controller of one epoch. Not thread-safe: one thread of control decides (C1)."""

    def __init__(self, settings: ControllerSettings) -> None:
        self.state = ControllerState(settings)
        self._now_ms = 0
        """Of the last decision."""

    @property
    def image(self) -> MetadataImage:
        """With everything decided so far, committed or not."""
        return self.state.image

    @property
    def next_offset(self) -> int:
        return self.state.next_offset

    def activate(
        self, image: MetadataImage, next_offset: int, now_ms: int, *, dead: frozenset[int] = frozenset()
    ) -> None:
        """Begin to lead with `image` as the state; `dead` as in `brokers.begin_sessions`."""
        self._now_ms = now_ms
        self.state.reset(image, next_offset)
        brokers.begin_sessions(self.state, now_ms, dead=dead)

    def reset(self, image: MetadataImage, next_offset: int) -> None:
        """Forget what was decided but never committed (C2)."""
        self.state.reset(image, next_offset)
        brokers.restore_sessions(self.state, self._now_ms)

    def decide(self, request: Request, now_ms: int, rng: Rng) -> Decision:
        """The records that `request` leads to and its answer. Raises PeerError when it fails as a whole."""
        self._now_ms = now_ms
        return HANDLERS[type(request)](self.state, request, now_ms, rng)

    def replay(self, records: Sequence[MetadataRecord], last_offset: int, epoch: int) -> tuple[MetadataImage, Delta]:
        """Take a decision's records into memory, the last of which lies at `last_offset`."""
        return self.state.replay(records, last_offset, epoch)
