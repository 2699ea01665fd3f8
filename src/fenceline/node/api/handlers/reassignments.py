"""AlterPartitionReassignments v0-1, ListPartitionReassignments v0 (KIP-455, KIP-860).

Owns nothing; the controller decides what may be moved. The response is sent when the move has been recorded; replicas
copy for as long as it takes, and ListPartitionReassignments returns those in progress.

Rules: controller.md C32-C34; since_4_0.md K4, K27.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fenceline.controller.partition_requests import (
    AlterPartitionReassignments,
    ListPartitionReassignments,
    Reassignment,
)
from fenceline.errors import ErrorCode, PeerError
from fenceline.node.context import Api, RequestContext, Submit
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import request_field

if TYPE_CHECKING:
    from fenceline.wire.requests import AlterPartitionReassignmentsRequest, ListPartitionReassignmentsRequest


async def handle_alter_partition_reassignments(
    submit: Submit, context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> dict[str, Any]:
    """Each partition succeeds or fails alone; null replicas cancel."""
    may_resize = request_field(request, "allow_replication_factor_change", True)
    wanted = tuple(
        (
            topic.name,
            tuple(
                Reassignment(each.partition_index, None if each.replicas is None else tuple(each.replicas))
                for each in topic.partitions
            ),
        )
        for topic in request.topics
    )
    if not wanted:
        return {"error_code": ErrorCode.NONE, "error_message": "", "responses": ()}
    try:
        answer = await submit(AlterPartitionReassignments(wanted, may_resize))
    except PeerError as error:
        message = error.message or None
        return {
            "allow_replication_factor_change": may_resize,
            "error_code": error.code,
            "error_message": message,
            "responses": [_topic(name, [(each.index, error.code, message) for each in all]) for name, all in wanted],
        }
    return {
        "allow_replication_factor_change": may_resize,
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "responses": [
            _topic(name, [(each.index, each.outcome.code, each.outcome.message) for each in moved])
            for name, moved in answer.topics
        ],
    }


def _topic(name: str, rows: Sequence[tuple[int, ErrorCode, str | None]]) -> dict[str, Any]:
    return {
        "name": name,
        "partitions": [
            {"partition_index": index, "error_code": code, "error_message": message} for index, code, message in rows
        ],
    }


async def handle_list_partition_reassignments(
    submit: Submit, context: RequestContext, request: ListPartitionReassignmentsRequest
) -> dict[str, Any]:
    """Reassignments in progress, of the requested topics or of all."""
    wanted = (
        None
        if request.topics is None
        else tuple((topic.name, tuple(topic.partition_indexes)) for topic in request.topics)
    )
    try:
        answer = await submit(ListPartitionReassignments(wanted))
    except PeerError as error:
        return {"error_code": error.code, "error_message": error.message or None, "topics": ()}
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "topics": [
            {
                "name": name,
                "partitions": [
                    {
                        "partition_index": each.index,
                        "replicas": each.replicas,
                        "adding_replicas": each.adding,
                        "removing_replicas": each.removing,
                    }
                    for each in moving
                ],
            }
            for name, moving in answer.topics
        ],
    }


def apis(submit: Submit) -> tuple[Api, ...]:
    return (
        Api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, partial(handle_alter_partition_reassignments, submit)),
        Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, partial(handle_list_partition_reassignments, submit)),
    )
