"""Members of classic groups: JoinGroup v0-9, SyncGroup 0-5, Heartbeat 0-4, LeaveGroup 0-5.

Owns what differs between versions; the rules are in `fenceline.groups`. Rules: `since_4_0.md K5, K32`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING

from fenceline.errors import ErrorCode
from fenceline.groups import messages
from fenceline.node.context import Answer, Api, RequestContext
from fenceline.node.coordination.replies import Fields, answered
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import millis, request_field

if TYPE_CHECKING:
    from fenceline.node.groups.driver import GroupsDriver
    from fenceline.wire.requests import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest


def join_group(groups: GroupsDriver, context: RequestContext, request: JoinGroupRequest) -> Answer | Awaitable[Answer]:
    version = context.api_version
    session_timeout_ms = millis(request.session_timeout)
    reply = groups.join(
        messages.JoinRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            group_instance_id=request_field(request, "group_instance_id", None),
            protocol_type=request.protocol_type,
            protocols=tuple((each.name, each.metadata) for each in request.protocols),
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=millis(request.rebalance_timeout) if version >= 1 else session_timeout_ms,
            client_id=context.client_id or "",
            client_host=f"/{context.client_host}",
            must_know_member_id=version >= 4,
            may_skip_assignment=version >= 9,
        )
    )

    def fields(answer: messages.JoinResponse) -> Fields:
        return {
            "error_code": answer.error,
            "generation_id": answer.generation,
            "protocol_type": answer.protocol_type,
            # Before v7 the name cannot be null.
            "protocol_name": answer.protocol_name if version >= 7 else answer.protocol_name or "",
            "leader": answer.leader,
            "skip_assignment": answer.skip_assignment,
            "member_id": answer.member_id,
            "members": [
                {
                    "member_id": member.member_id,
                    "group_instance_id": member.group_instance_id,
                    "metadata": member.metadata,
                }
                for member in answer.members
            ],
        }

    return answered(reply, fields)


def sync_group(groups: GroupsDriver, context: RequestContext, request: SyncGroupRequest) -> Answer | Awaitable[Answer]:
    protocol_type = request_field(request, "protocol_type", None)
    protocol_name = request_field(request, "protocol_name", None)
    if context.api_version >= 5 and (protocol_type is None or protocol_name is None):
        return _sync_fields(messages.SyncResponse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    reply = groups.sync(
        messages.SyncRequest(
            group_id=request.group_id,
            generation=request.generation_id,
            member_id=request.member_id,
            group_instance_id=request_field(request, "group_instance_id", None),
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=tuple((each.member_id, each.assignment) for each in request.assignments),
        )
    )
    return answered(reply, _sync_fields)


def _sync_fields(answer: messages.SyncResponse) -> Fields:
    return {
        "error_code": answer.error,
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol_name,
        "assignment": answer.assignment,
    }


def heartbeat(groups: GroupsDriver, context: RequestContext, request: HeartbeatRequest) -> Answer | Awaitable[Answer]:
    reply = groups.heartbeat(
        messages.ClassicHeartbeat(
            request.group_id,
            request.generation_id,
            request.member_id,
            request_field(request, "group_instance_id", None),
        )
    )

    def fields(answer: messages.HeartbeatResponse) -> Fields:
        return {"error_code": answer.error}

    return answered(reply, fields)


def leave_group(
    groups: GroupsDriver, context: RequestContext, request: LeaveGroupRequest
) -> Answer | Awaitable[Answer]:
    """Up to v2 one member, whose error is the top-level error; from v3 any number, each with its own error."""
    names_one = context.api_version < 3
    if names_one:
        members: tuple[messages.LeavingMember, ...] = (messages.LeavingMember(request.member_id),)
    else:
        members = tuple(messages.LeavingMember(each.member_id, each.group_instance_id) for each in request.members)
    reply = groups.leave(messages.LeaveRequest(request.group_id, members))

    def fields(answer: messages.LeaveResponse) -> Fields:
        error = answer.error
        if names_one and error is ErrorCode.NONE:
            error = answer.members[0].error
        return {
            "error_code": error,
            "members": [
                {
                    "member_id": member.member_id,
                    "group_instance_id": member.group_instance_id,
                    "error_code": member.error,
                }
                for member in answer.members
            ],
        }

    return answered(reply, fields)


def apis(groups: GroupsDriver) -> tuple[Api, ...]:
    return (
        Api(ApiKey.JOIN_GROUP, 0, 9, partial(join_group, groups)),
        Api(ApiKey.SYNC_GROUP, 0, 5, partial(sync_group, groups)),
        Api(ApiKey.HEARTBEAT, 0, 4, partial(heartbeat, groups)),
        Api(ApiKey.LEAVE_GROUP, 0, 5, partial(leave_group, groups)),
    )
