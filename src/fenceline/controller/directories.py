"""Log directories: replica assignment and failures.

Owns the changes that a broker's reports about its directories cause. A replica in a directory that the broker has not
registered is offline: it leaves the ISR and cannot lead.

Rules: controller.md C13, C20; since_4_0.md K25.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from fenceline.controller.partition_changes import PartitionChanges
from fenceline.controller.partition_requests import (
    AssignedReplica,
    AssignReplicasToDirs,
    AssignReplicasToDirsAnswer,
)
from fenceline.controller.state import ControllerState, Decision, directory_is_online
from fenceline.errors import ErrorCode, PeerError
from fenceline.metadata.features import MV_CORDONED_LOG_DIRS, MV_DIRECTORIES
from fenceline.metadata.image import BrokerImage
from fenceline.metadata.node_records import BrokerRegistrationChangeRecord
from fenceline.metadata.records import MetadataRecord


def assign_replicas_to_dirs(state: ControllerState, request: AssignReplicasToDirs) -> Decision:
    """Raises PeerError: UNSUPPORTED_VERSION below metadata.version 3.7-IV2, STALE_BROKER_EPOCH."""
    if state.image.metadata_version < MV_DIRECTORIES:
        raise PeerError(ErrorCode.UNSUPPORTED_VERSION, "Directory assignment is not supported yet.")
    broker = state.broker(request.broker_id, request.broker_epoch)
    changes = PartitionChanges(state)
    answer = tuple(
        (
            directory,
            tuple(
                (
                    topic_id,
                    tuple(
                        AssignedReplica(index, _assign(state, changes, broker, directory, topic_id, index))
                        for index in indexes
                    ),
                )
                for topic_id, indexes in topics
            ),
        )
        for directory, topics in request.directories
    )
    return Decision(changes.records, AssignReplicasToDirsAnswer(answer), atomic=False)


def _assign(
    state: ControllerState, changes: PartitionChanges, broker: BrokerImage, directory: UUID, topic_id: UUID, index: int
) -> ErrorCode:
    topic = state.image.topics_by_id.get(topic_id)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    partition = changes.partition(topic, index)
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if broker.id not in partition.replicas:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if directory_is_online(broker, directory):
        changes.change(topic, index, directories={broker.id: directory})
    else:
        changes.change(
            topic,
            index,
            directories={broker.id: directory},
            leaving=frozenset((broker.id,)),
            target_isr=tuple(member for member in partition.isr if member != broker.id),
        )
    return ErrorCode.NONE


def failed_directories(state: ControllerState, broker: BrokerImage, offline: Collection[UUID]) -> frozenset[UUID]:
    """Registered directories that a heartbeat reports as offline; none below metadata.version 3.7-IV2."""
    if not offline or state.image.metadata_version < MV_DIRECTORIES:
        return frozenset()
    return frozenset(broker.log_dirs).intersection(offline)


def leave_failed_directories(
    state: ControllerState, changes: PartitionChanges, broker: BrokerImage, failed: Collection[UUID]
) -> list[MetadataRecord]:
    """C20: remove replicas in `failed` from their ISRs, and the directories from the registration."""
    if not failed:
        return []
    topics = state.image.topics_by_id
    hit = [
        (topic_id, index)
        for topic_id, index in state.index.in_isr(broker.id)
        if topics[topic_id].partitions[index].directory_of(broker.id) in failed
    ]
    changes.leave(hit, broker.id, failed_directories=failed)
    remaining = tuple(directory for directory in broker.log_dirs if directory not in failed)
    return [BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, log_dirs=remaining)]


def cordon(state: ControllerState, broker: BrokerImage, cordoned: tuple[UUID, ...] | None) -> list[MetadataRecord]:
    """K25: record the cordoned directories if a heartbeat reports a change."""
    if cordoned is None or cordoned == broker.cordoned_log_dirs or state.image.metadata_version < MV_CORDONED_LOG_DIRS:
        return []
    return [BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, cordoned_log_dirs=cordoned)]
