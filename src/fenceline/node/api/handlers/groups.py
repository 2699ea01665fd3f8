"""Administration of groups: ListGroups v0-5, DescribeGroups 0-6, DeleteGroups 0-2.

Owns what differs between versions; the rules are in `fenceline.groups`. Rules: `since_4_0.md K5, K32`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from fenceline.errors import ErrorCode, PeerError
from fenceline.groups.classic.states import GroupState
from fenceline.groups.messages import ALL_OPERATIONS_UNKNOWN, DeleteGroupsResponse, DescribedGroup
from fenceline.node.context import Answer, Api, RequestContext
from fenceline.node.coordination.replies import Fields, all_answered
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import request_field

if TYPE_CHECKING:
    from fenceline.node.groups.driver import GroupsDriver
    from fenceline.wire.requests import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest

GROUP_OPERATIONS: Final = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
"""READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS: all operations on a group, without an authorizer."""


def list_groups(groups: GroupsDriver, context: RequestContext, request: ListGroupsRequest) -> Answer:
    states = frozenset(each.strip().lower() for each in request_field(request, "states_filter", ()))
    # Kafka trims the names of states, but not those of types.
    types = frozenset(each.lower() for each in request_field(request, "types_filter", ()))
    try:
        listed = groups.list_groups(states, types)
    except PeerError as error:
        return {"error_code": error.code, "groups": []}
    return {
        "error_code": ErrorCode.NONE,
        "groups": [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type,
                "group_state": group.state,
                "group_type": group.group_type,
            }
            for group in listed
        ],
    }


def describe_groups(groups: GroupsDriver, context: RequestContext, request: DescribeGroupsRequest) -> Answer:
    shows_operations = request_field(request, "include_authorized_operations", False)
    return {
        "groups": [_described(groups, context.api_version, group_id, shows_operations) for group_id in request.groups]
    }


def _described(groups: GroupsDriver, version: int, group_id: str, shows_operations: bool) -> Fields:
    try:
        group = groups.describe(group_id)
    except PeerError as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            group = DescribedGroup(group_id, error.code)
        elif version >= 6:
            # KIP-1043: newer clients get an error for a missing group, older ones a dead group.
            group = DescribedGroup(group_id, error.code, error.message, GroupState.DEAD)
        else:
            group = DescribedGroup(group_id, state=GroupState.DEAD)
    return {
        "error_code": group.error,
        "error_message": group.error_message,
        "group_id": group.group_id,
        "group_state": str(group.state),
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol_data,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata,
                "member_assignment": member.assignment,
            }
            for member in group.members
        ],
        "authorized_operations": GROUP_OPERATIONS
        if shows_operations and group.error is ErrorCode.NONE
        else ALL_OPERATIONS_UNKNOWN,
    }


def delete_groups(
    groups: GroupsDriver, context: RequestContext, request: DeleteGroupsRequest
) -> Answer | Awaitable[Answer]:
    def fields(answers: Iterable[DeleteGroupsResponse]) -> Fields:
        return {
            "results": [
                {"group_id": group_id, "error_code": error} for answer in answers for group_id, error in answer.errors
            ]
        }

    return all_answered(groups.delete_groups(request.groups_names), fields)


def apis(groups: GroupsDriver) -> tuple[Api, ...]:
    return (
        Api(ApiKey.LIST_GROUPS, 0, 5, partial(list_groups, groups)),
        Api(ApiKey.DESCRIBE_GROUPS, 0, 6, partial(describe_groups, groups)),
        Api(ApiKey.DELETE_GROUPS, 0, 2, partial(delete_groups, groups)),
    )
