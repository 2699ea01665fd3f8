"""Partition reassignments: start, change, cancel, list.

Owns the changes that a reassignment requests. It completes in whichever change finds the new replicas in sync
(`elections.change_partition`). A requested reassignment never leads to an unclean election; a cancellation may, if none
of the old replicas is in sync and the topic allows it (V35).

Difference from Kafka (C32): a replica that a changed reassignment still adds remains among the added ones, and one that
it no longer adds is only removed. Kafka keeps it on both lists, and such a reassignment never completes.

Rules: controller.md C3, C32-C34; since_4_0.md K27; recovery.md V35.
"""

from __future__ import annotations

from fenceline.controller.assignments import ItemRejected, check_assignment
from fenceline.controller.elections import Election
from fenceline.controller.outcome import SUCCESS
from fenceline.controller.partition_changes import PartitionChanges
from fenceline.controller.partition_requests import (
    AlterPartitionReassignments,
    AlterPartitionReassignmentsAnswer,
    ListPartitionReassignments,
    ListPartitionReassignmentsAnswer,
    OngoingReassignment,
    ReassignedPartition,
    Reassignment,
)
from fenceline.controller.partitions import check_size
from fenceline.controller.state import ControllerState, Decision
from fenceline.errors import ErrorCode
from fenceline.metadata.image import PartitionImage, TopicImage


def alter_partition_reassignments(state: ControllerState, request: AlterPartitionReassignments) -> Decision:
    """C32, C34. Raises PeerError(POLICY_VIOLATION) for more than 10,000 changes."""
    changes = PartitionChanges(state)
    answers = []
    for name, requested in request.topics:
        outcomes = []
        for each in requested:
            try:
                _reassign(state, changes, name, each, request.allow_replication_factor_change)
                outcome = SUCCESS
            except ItemRejected as refused:
                outcome = refused.outcome
            outcomes.append(ReassignedPartition(each.index, outcome))
        answers.append((name, tuple(outcomes)))
    check_size(changes.records)
    return Decision(changes.records, AlterPartitionReassignmentsAnswer(tuple(answers)))


def _reassign(
    state: ControllerState, changes: PartitionChanges, name: str, requested: Reassignment, may_resize: bool
) -> None:
    topic = state.image.topics_by_name.get(name)
    if topic is None:
        raise ItemRejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    partition = changes.partition(topic, requested.index)
    if partition is None:
        raise ItemRejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{requested.index}.")
    if requested.replicas is None:
        _cancel(changes, topic, requested.index, partition)
        return
    target = requested.replicas
    check_assignment(state, target)
    if not may_resize:
        size = len(set(partition.replicas) - set(partition.removing))
        if len(target) != size:
            raise ItemRejected(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"The replication factor is changed from {size} to {len(target)}",
            )
    current = partition.replicas
    removing = tuple(sorted(set(current) - set(target)))
    changes.change(
        topic,
        requested.index,
        election=Election.ONLINE,
        target_replicas=target + removing,
        target_adding=tuple(sorted(set(target) - (set(current) - set(partition.adding)))),
        target_removing=removing,
    )


def _cancel(changes: PartitionChanges, topic: TopicImage, index: int, partition: PartitionImage) -> None:
    """C34: restore the replicas from before the reassignment."""
    if not partition.adding and not partition.removing:
        raise ItemRejected(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None)
    isr = tuple(replica for replica in partition.isr if replica not in partition.adding)
    if not isr and not changes.is_unclean_allowed(topic):
        raise ItemRejected(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Unable to revert partition assignment for {topic.name}:{index} because it would require an unclean "
            "leader election.",
        )
    changes.change(
        topic,
        index,
        target_isr=isr,
        target_replicas=tuple(replica for replica in partition.replicas if replica not in partition.adding),
        target_adding=(),
        target_removing=(),
    )


def list_partition_reassignments(state: ControllerState, request: ListPartitionReassignments) -> Decision:
    """Reassignments in progress among the requested partitions."""
    image = state.image
    found: dict[str, list[OngoingReassignment]] = {}
    if request.topics is None:
        for topic_id, index in state.index.reassigning():
            topic = image.topics_by_id[topic_id]
            found.setdefault(topic.name, []).append(_ongoing(topic.partitions[index], index))
    else:
        for name, indexes in request.topics:
            for index in indexes:
                partition = image.partition(name, index)
                if partition is not None and (partition.adding or partition.removing):
                    found.setdefault(name, []).append(_ongoing(partition, index))
    answer = ListPartitionReassignmentsAnswer(tuple((name, tuple(each)) for name, each in found.items()))
    return Decision((), answer)


def _ongoing(partition: PartitionImage, index: int) -> OngoingReassignment:
    return OngoingReassignment(index, partition.replicas, partition.adding, partition.removing)
