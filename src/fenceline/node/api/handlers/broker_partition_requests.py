"""Requests of brokers about partitions to the active controller: AlterPartition v2-3, AssignReplicasToDirs v0.

Served on the controllers' listener only. Owns the message format; the controller decides what may change.

Rules: recovery.md V4, V16-V25; since_4_0.md K4, K27.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fenceline.controller.partition_requests import (
    AlterPartition,
    AssignReplicasToDirs,
    IsrChange,
    IsrMember,
)
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import ZERO_UUID
from fenceline.node.context import Api, RequestContext, Submit
from fenceline.wire.apis import ApiKey

if TYPE_CHECKING:
    from fenceline.wire.requests import AlterPartitionRequest, AssignReplicasToDirsRequest, PartitionData

_FIRST_WITH_BROKER_EPOCHS: Final = 3


async def handle_alter_partition(
    submit: Submit, context: RequestContext, request: AlterPartitionRequest
) -> dict[str, Any]:
    """Each partition succeeds or fails alone; a stale broker epoch fails the whole request (C13)."""

    def members(change: PartitionData) -> tuple[IsrMember, ...]:
        if context.api_version < _FIRST_WITH_BROKER_EPOCHS:
            return tuple(map(IsrMember, change.new_isr))
        return tuple(IsrMember(each.broker_id, each.broker_epoch) for each in change.new_isr_with_epochs)

    wanted = tuple(
        (
            topic.topic_id or ZERO_UUID,
            tuple(
                IsrChange(
                    each.partition_index,
                    each.leader_epoch,
                    each.partition_epoch,
                    members(each),
                    each.leader_recovery_state,
                )
                for each in topic.partitions
            ),
        )
        for topic in request.topics
    )
    if not wanted:
        return {"error_code": ErrorCode.NONE, "topics": ()}
    try:
        answer = await submit(AlterPartition(request.broker_id, request.broker_epoch, wanted))
    except PeerError as error:
        return {"error_code": error.code, "topics": ()}
    return {
        "error_code": ErrorCode.NONE,
        "topics": [
            {
                "topic_id": topic_id,
                "partitions": [
                    {
                        "partition_index": each.index,
                        "error_code": each.code,
                        "leader_id": each.leader,
                        "leader_epoch": each.leader_epoch,
                        "isr": each.isr,
                        "leader_recovery_state": each.leader_recovery_state,
                        "partition_epoch": each.partition_epoch,
                    }
                    for each in altered
                ],
            }
            for topic_id, altered in answer.topics
        ],
    }


async def handle_assign_replicas_to_dirs(
    submit: Submit, context: RequestContext, request: AssignReplicasToDirsRequest
) -> dict[str, Any]:
    """Each replica succeeds or fails alone."""
    wanted = tuple(
        (
            directory.id_ or ZERO_UUID,
            tuple(
                (topic.topic_id or ZERO_UUID, tuple(each.partition_index for each in topic.partitions))
                for topic in directory.topics
            ),
        )
        for directory in request.directories
    )
    try:
        answer = await submit(AssignReplicasToDirs(request.broker_id, request.broker_epoch, wanted))
    except PeerError as error:
        return {"error_code": error.code, "directories": ()}
    return {
        "error_code": ErrorCode.NONE,
        "directories": [
            {
                "id_": directory,
                "topics": [
                    {
                        "topic_id": topic_id,
                        "partitions": [{"partition_index": each.index, "error_code": each.code} for each in assigned],
                    }
                    for topic_id, assigned in topics
                ],
            }
            for directory, topics in answer.directories
        ],
    }


def controller_apis(submit: Submit) -> tuple[Api, ...]:
    return (
        Api(ApiKey.ALTER_PARTITION, 2, 3, partial(handle_alter_partition, submit)),
        Api(ApiKey.ASSIGN_REPLICAS_TO_DIRS, 0, 0, partial(handle_assign_replicas_to_dirs, submit)),
    )
