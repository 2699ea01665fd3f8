"""AlterPartition: leaders report their in-sync replicas and the end of their recovery.

Owns the checks and their order. A partition is checked completely before any record is written for it. The consequences
of a change, such as the end of a reassignment, belong to `controller.elections`.

Rules: controller.md C13, C33, C35 (V24); recovery.md V8, V16-V25, V36, V42; since_4_0.md K27 (versions 2 and 3);
gaps.md G21, G22, G46.
"""

from __future__ import annotations

from typing import Final

from fenceline.controller.elections import NO_CHANGE
from fenceline.controller.partition_changes import PartitionChanges
from fenceline.controller.partition_requests import (
    NO_BROKER_EPOCH,
    AlteredPartition,
    AlterPartition,
    AlterPartitionAnswer,
    IsrChange,
    IsrMember,
)
from fenceline.controller.state import ControllerState, Decision
from fenceline.errors import ErrorCode
from fenceline.metadata.image import LeaderRecoveryState, PartitionImage, TopicImage

_RECOVERED: Final = LeaderRecoveryState.RECOVERED
_RECOVERING: Final = LeaderRecoveryState.RECOVERING


def alter_partition(state: ControllerState, request: AlterPartition) -> Decision:
    """Raises PeerError(STALE_BROKER_EPOCH); any other error concerns a single partition."""
    state.broker(request.broker_id, request.broker_epoch)
    changes = PartitionChanges(state)
    answers = []
    for topic_id, requested in request.topics:
        topic = state.image.topics_by_id.get(topic_id)
        if topic is None:
            altered = tuple(AlteredPartition(each.index, ErrorCode.UNKNOWN_TOPIC_ID) for each in requested)
        else:
            altered = tuple(_alter(state, changes, topic, request.broker_id, each) for each in requested)
        answers.append((topic_id, altered))
    return Decision(changes.records, AlterPartitionAnswer(tuple(answers)), atomic=False)


def _alter(
    state: ControllerState, changes: PartitionChanges, topic: TopicImage, broker_id: int, requested: IsrChange
) -> AlteredPartition:
    partition = changes.partition(topic, requested.index)
    if partition is None:
        return AlteredPartition(requested.index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    fault = _fault(state, partition, broker_id, requested)
    if fault is not None:
        return AlteredPartition(requested.index, fault)
    record = changes.change(
        topic,
        requested.index,
        target_isr=tuple(member.broker_id for member in requested.new_isr),
        recovery_state=LeaderRecoveryState(requested.leader_recovery_state),
    )
    if record is not None and record.leader not in (NO_CHANGE, broker_id):
        return AlteredPartition(
            requested.index, ErrorCode.NEW_LEADER_ELECTED
        )  # V24: the change takes effect all the same
    after = changes.partition(topic, requested.index)  # V23: the current state, if nothing changed
    assert after is not None, "a changed partition exists"
    return AlteredPartition(
        requested.index,
        ErrorCode.NONE,
        after.leader,
        after.leader_epoch,
        after.isr,
        after.leader_recovery_state,
        after.partition_epoch,
    )


def _fault(state: ControllerState, partition: PartitionImage, broker_id: int, requested: IsrChange) -> ErrorCode | None:
    """V17, V18, V19, V25, V20, V21, V22, in the order in which Kafka checks."""
    if requested.leader_epoch > partition.leader_epoch or requested.partition_epoch > partition.partition_epoch:
        return ErrorCode.NOT_CONTROLLER
    if requested.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if broker_id != partition.leader:
        return ErrorCode.INVALID_REQUEST
    if requested.partition_epoch < partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    members = {member.broker_id for member in requested.new_isr}
    if len(members) != len(requested.new_isr) or not members <= set(partition.replicas) or broker_id not in members:
        return ErrorCode.INVALID_REQUEST
    if requested.leader_recovery_state not in (_RECOVERED, _RECOVERING):
        return ErrorCode.INVALID_REQUEST
    if requested.leader_recovery_state == _RECOVERING and (
        len(members) > 1 or partition.leader_recovery_state == _RECOVERED
    ):
        return ErrorCode.INVALID_REQUEST
    if not all(_is_eligible(state, member) for member in requested.new_isr):
        return ErrorCode.INELIGIBLE_REPLICA
    return None


def _is_eligible(state: ControllerState, member: IsrMember) -> bool:
    """V22: active (KIP-841), with the broker epoch that the leader knows (KIP-903)."""
    broker = state.image.brokers.get(member.broker_id)
    return broker is not None and broker.is_active and member.broker_epoch in (NO_BROKER_EPOCH, broker.epoch)
