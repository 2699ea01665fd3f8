"""Groups of the consumer protocol (KIP-848): ConsumerGroupHeartbeat v0-1, ConsumerGroupDescribe 0-1.

    Owns the differences between versions, and the check that the cluster is at `group.version` 1; the rules are in
`fenceline.groups`. Rules: `since_4_0.md K5, K36`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Final

from fenceline.errors import ErrorCode, PeerError
from fenceline.groups.consumer.embedded import without_epochs
from fenceline.groups.consumer.model import DescribedConsumerMember
from fenceline.groups.messages import (
    ALL_OPERATIONS_UNKNOWN,
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
    Partitions,
)
from fenceline.ids import ZERO_UUID
from fenceline.metadata.features import GROUP_VERSION
from fenceline.metadata.image import MetadataImage
from fenceline.node.api.handlers.groups import GROUP_OPERATIONS
from fenceline.node.context import Answer, Api, NodeView, RequestContext
from fenceline.node.coordination.replies import Fields, answered
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import millis, request_field

if TYPE_CHECKING:
    from fenceline.node.groups.driver import GroupsDriver
    from fenceline.wire.requests import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest

CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1


def _is_enabled(image: MetadataImage) -> bool:
    return image.features.get(GROUP_VERSION, 0) >= 1


def consumer_group_heartbeat(
    node: NodeView, groups: GroupsDriver, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> Answer | Awaitable[Answer]:
    if not _is_enabled(node.image):
        return _heartbeat_fields(ConsumerHeartbeatResponse(ErrorCode.UNSUPPORTED_VERSION))
    owned = request.topic_partitions
    reply = groups.consumer_heartbeat(
        ConsumerHeartbeatRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            instance_id=request.instance_id,
            rack_id=request.rack_id,
            rebalance_timeout_ms=millis(request.rebalance_timeout),
            subscribed_names=None if request.subscribed_topic_names is None else tuple(request.subscribed_topic_names),
            subscribed_regex=request_field(request, "subscribed_topic_regex", None),
            server_assignor=request.server_assignor,
            owned=None if owned is None else {each.topic_id or ZERO_UUID: frozenset(each.partitions) for each in owned},
            client_id=context.client_id or "",
            client_host=f"/{context.client_host}",
            must_bring_member_id=context.api_version >= 1,
            shows_topic=context.rights.describes if context.rights is not None else None,
        )
    )
    return answered(reply, _heartbeat_fields)


def _heartbeat_fields(answer: ConsumerHeartbeatResponse) -> Fields:
    return {
        "error_code": answer.error,
        "error_message": answer.message,
        "member_id": answer.member_id,
        "member_epoch": answer.member_epoch,
        "heartbeat_interval": answer.heartbeat_interval_ms,
        "assignment": None
        if answer.assignment is None
        else {
            "topic_partitions": [
                {"topic_id": topic_id, "partitions": partitions} for topic_id, partitions in answer.assignment
            ]
        },
    }


def consumer_group_describe(
    node: NodeView, groups: GroupsDriver, context: RequestContext, request: ConsumerGroupDescribeRequest
) -> Answer:
    shows_operations = request.include_authorized_operations
    return {"groups": [_described(node.image, groups, name, shows_operations) for name in request.group_ids]}


def _described(image: MetadataImage, groups: GroupsDriver, group_id: str, shows_operations: bool) -> Fields:
    try:
        if not _is_enabled(image):
            raise PeerError(ErrorCode.UNSUPPORTED_VERSION)
        if not group_id:
            raise PeerError(ErrorCode.INVALID_GROUP_ID)
        group = groups.describe_consumer_group(group_id)
    except PeerError as error:
        return {
            "group_id": group_id,
            "error_code": error.code,
            "error_message": error.message or None,
            "authorized_operations": ALL_OPERATIONS_UNKNOWN,
        }
    return {
        "error_code": ErrorCode.NONE,
        "group_id": group_id,
        "group_state": group.state,
        "group_epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor,
        "members": [_member_fields(image, each) for each in group.members],
        "authorized_operations": GROUP_OPERATIONS if shows_operations else ALL_OPERATIONS_UNKNOWN,
    }


def _member_fields(image: MetadataImage, described: DescribedConsumerMember) -> Fields:
    member = described.member
    held = {
        topic_id: {**member.assigned.get(topic_id, {}), **member.revoking.get(topic_id, {})}
        for topic_id in member.assigned.keys() | member.revoking.keys()
    }
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.subscribed_names),
        "subscribed_topic_regex": member.subscribed_regex,
        "assignment": _assignment_fields(image, without_epochs(held)),
        "target_assignment": _assignment_fields(image, described.target),
        "member_type": CLASSIC_MEMBER if member.uses_classic else CONSUMER_MEMBER,
    }


def _assignment_fields(image: MetadataImage, partitions: Partitions) -> Fields:
    """Deleted topics are left out: they no longer have a name."""
    return {
        "topic_partitions": [
            {"topic_id": topic_id, "topic_name": topic.name, "partitions": sorted(indexes)}
            for topic_id, indexes in sorted(partitions.items())
            if (topic := image.topics_by_id.get(topic_id)) is not None
        ]
    }


def apis(node: NodeView, groups: GroupsDriver) -> tuple[Api, ...]:
    return (
        Api(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, partial(consumer_group_heartbeat, node, groups)),
        Api(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, partial(consumer_group_describe, node, groups)),
    )
