"""AlterPartition: leaders report their in-sync replicas and the end of their recovery.

Owns the checks and their order. A partition is checked completely before any record is written for it. The consequences
of a change, such as the end of a reassignment, belong to `controller.elections`.

Rules: controller.md C13, C33, C35 (V24); recovery.md V8, V16-V25, V36, V42; since_4_0.md K27 (versions 2 and 3);
gaps.md G21, G22, G46.
"""

from __future__ import annotations

from typing import Any, Final

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
from fenceline.metadata.records import PartitionChangeRecord

_RECOVERED: Final = LeaderRecoveryState.RECOVERED
_RECOVERING: Final = LeaderRecoveryState.RECOVERING


def alter_partition(state: ControllerState, request: AlterPartition) -> Decision:
    """Raises PeerError(STALE_BROKER_EPOCH); any other error concerns a single partition."""
    state.broker(request.broker_id, request.broker_epoch)
    requests = _Requests(state, request.broker_id)
    answers = []
    for topic_id, requested in request.topics:
        topic = state.image.topics_by_id.get(topic_id)
        if topic is None:
            altered = tuple(AlteredPartition(each.index, ErrorCode.UNKNOWN_TOPIC_ID) for each in requested)
        else:
            altered = tuple(requests.alter(topic, each) for each in requested)
        answers.append((topic_id, altered))
    return Decision(requests.changes.records, AlterPartitionAnswer(tuple(answers)), atomic=False)


class _Requests:
    """The partitions of one request. Equal changes of equal partitions are decided once: a broker that returns is
    reported in sync in all its partitions, most of which are in one of few states."""

    def __init__(self, state: ControllerState, broker_id: int) -> None:
        self.changes = PartitionChanges(state)
        self._state = state
        self._broker_id = broker_id
        self._known: dict[tuple[Any, ...], tuple[PartitionChangeRecord | None, AlteredPartition]] = {}
        """By identity of the partition and its topic's rules, and by what is requested."""

    def alter(self, topic: TopicImage, requested: IsrChange) -> AlteredPartition:
        index = requested.index
        if not (0 <= index < len(topic.partitions) and self.changes.is_unchanged(topic, index)):
            return self._alter(topic, requested)[1]
        key = (
            id(topic.partitions[index]),
            self.changes.rules_key(topic),
            requested.leader_epoch,
            requested.partition_epoch,
            requested.new_isr,
            requested.leader_recovery_state,
        )
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._alter(topic, requested)
            return known[1]
        record, answer = known
        self.changes.repeat(topic, index, record)
        return AlteredPartition(
            index,
            answer.code,
            answer.leader,
            answer.leader_epoch,
            answer.isr,
            answer.leader_recovery_state,
            answer.partition_epoch,
        )

    def _alter(self, topic: TopicImage, requested: IsrChange) -> tuple[PartitionChangeRecord | None, AlteredPartition]:
        changes, broker_id = self.changes, self._broker_id
        partition = changes.partition(topic, requested.index)
        if partition is None:
            return None, AlteredPartition(requested.index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        fault = _fault(self._state, partition, broker_id, requested)
        if fault is not None:
            return None, AlteredPartition(requested.index, fault)
        record = changes.change(
            topic,
            requested.index,
            target_isr=tuple(member.broker_id for member in requested.new_isr),
            recovery_state=LeaderRecoveryState(requested.leader_recovery_state),
        )
        if record is not None and record.leader not in (NO_CHANGE, broker_id):
            # V24: the change takes effect all the same
            return record, AlteredPartition(requested.index, ErrorCode.NEW_LEADER_ELECTED)
        after = changes.partition(topic, requested.index)  # V23: the current state, if nothing changed
        assert after is not None, "a changed partition exists"
        return record, AlteredPartition(
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
