"""FindCoordinator v0-6 and the classic group APIs: JoinGroup 0-9, SyncGroup 0-5, Heartbeat 0-4, LeaveGroup 0-5,
OffsetCommit 2-10, OffsetFetch 1-10, OffsetDelete 0, ListGroups 0-5, DescribeGroups 0-6, DeleteGroups 0-2.

Owns what differs between versions and what needs the metadata image (does the topic exist, which name has this id);
the rules are in `fenceline.groups`. Rules: `since_4_0.md K5, K32`, `epochs.md E61`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from fenceline.errors import ErrorCode, PeerError
from fenceline.groups.messages import (
    ALL_OPERATIONS_UNKNOWN,
    CommitAnswer,
    CommitRequest,
    DeleteGroupsAnswer,
    DeleteOffsetsAnswer,
    DeleteOffsetsRequest,
    DescribedGroup,
    FetchOffsetsAnswer,
    FetchOffsetsRequest,
    HeartbeatAnswer,
    HeartbeatRequest,
    JoinAnswer,
    JoinRequest,
    LeaveAnswer,
    LeaveRequest,
    MemberIdentity,
    OffsetToCommit,
    SyncAnswer,
    SyncRequest,
    TopicToFetch,
)
from fenceline.groups.states import GroupState
from fenceline.ids import CONSUMER_OFFSETS_TOPIC, ZERO_UUID
from fenceline.metadata.image import MetadataImage, TopicImage
from fenceline.node.groups_driver import Reply
from fenceline.node.handlers.registry import Answer, Api, RequestContext
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import millis

GROUP_KEY_TYPE: Final = 0
TRANSACTION_KEY_TYPE: Final = 1
SHARE_KEY_TYPE: Final = 2
GROUP_OPERATIONS: Final = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
"""READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS: all that one can do with a group; nobody is refused yet."""

_T = TypeVar("_T")
_Fields = dict[str, Any]


def _answered(reply: Reply[_T], fields: Callable[[_T], _Fields]) -> Answer | Awaitable[Answer]:
    """The fields now when the answer is there already, else an awaitable of them."""
    if reply.outcome is not None:
        return fields(reply.outcome)

    async def later() -> Answer:
        return fields(await reply.wait())

    return later()


def _all_answered(replies: Sequence[Reply[_T]], fields: Callable[[list[_T]], _Fields]) -> Answer | Awaitable[Answer]:
    outcomes = [reply.outcome for reply in replies if reply.outcome is not None]
    if len(outcomes) == len(replies):
        return fields(outcomes)

    async def later() -> Answer:
        return fields([await reply.wait() for reply in replies])

    return later()


# --- FindCoordinator ----------------------------------------


class _Found(NamedTuple):
    error: ErrorCode
    message: str | None = None
    node_id: int = -1
    host: str = ""
    port: int = -1


async def find_coordinator(context: RequestContext, request: Any) -> Answer:
    """One key up to v3, any number from v4. The first question for a group creates `__consumer_offsets`."""
    key_type = getattr(request, "key_type", GROUP_KEY_TYPE)
    keys: Sequence[str] = (request.key,) if context.api_version < 4 else request.coordinator_keys
    if key_type == GROUP_KEY_TYPE and keys and CONSUMER_OFFSETS_TOPIC not in context.broker.image.topics_by_name:
        creating = context.broker.auto_create([CONSUMER_OFFSETS_TOPIC])
        if inspect.isawaitable(creating):
            await creating
    found = [_find(context, key_type, key) for key in keys]
    if context.api_version < 4:
        one = found[0]
        return {
            "error_code": one.error,
            "error_message": one.message or ("NONE" if one.error is ErrorCode.NONE else None),
            "node_id": one.node_id,
            "host": one.host,
            "port": one.port,
        }
    return {
        "coordinators": [
            {
                "key": key,
                "node_id": one.node_id,
                "host": one.host,
                "port": one.port,
                "error_code": one.error,
                "error_message": one.message or "",
            }
            for key, one in zip(keys, found, strict=True)
        ]
    }


def _find(context: RequestContext, key_type: int, key: str) -> _Found:
    if key_type == TRANSACTION_KEY_TYPE:
        return _Found(ErrorCode.COORDINATOR_NOT_AVAILABLE, "This node does not coordinate transactions.")
    if key_type != GROUP_KEY_TYPE:
        return _Found(ErrorCode.INVALID_REQUEST, f"There is no coordinator of type {key_type}.")
    image: MetadataImage = context.broker.image
    topic = image.topics_by_name.get(CONSUMER_OFFSETS_TOPIC)
    if topic is None:
        return _Found(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    index = context.broker.groups.coordinator.partition_of(key)
    leader = topic.partitions[index].leader if index < len(topic.partitions) else -1
    broker = image.brokers.get(leader)
    if broker is None or broker.fenced:
        return _Found(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    for endpoint in broker.endpoints:
        if endpoint.name == context.listener:
            return _Found(ErrorCode.NONE, None, leader, endpoint.host, endpoint.port)
    return _Found(ErrorCode.COORDINATOR_NOT_AVAILABLE)


# --- membership ----------------------------------------


def join_group(context: RequestContext, request: Any) -> Answer | Awaitable[Answer]:
    version = context.api_version
    session_timeout_ms = millis(request.session_timeout)
    reply = context.broker.groups.join(
        JoinRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            group_instance_id=getattr(request, "group_instance_id", None),
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

    def fields(answer: JoinAnswer) -> _Fields:
        return {
            "error_code": answer.error,
            "generation_id": answer.generation,
            "protocol_type": answer.protocol_type,
            # Before v7 the name can not be null.
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

    return _answered(reply, fields)


def sync_group(context: RequestContext, request: Any) -> Answer | Awaitable[Answer]:
    protocol_type = getattr(request, "protocol_type", None)
    protocol_name = getattr(request, "protocol_name", None)
    if context.api_version >= 5 and (protocol_type is None or protocol_name is None):
        return _sync_fields(SyncAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    reply = context.broker.groups.sync(
        SyncRequest(
            group_id=request.group_id,
            generation=request.generation_id,
            member_id=request.member_id,
            group_instance_id=getattr(request, "group_instance_id", None),
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=tuple((each.member_id, each.assignment) for each in request.assignments),
        )
    )
    return _answered(reply, _sync_fields)


def _sync_fields(answer: SyncAnswer) -> _Fields:
    return {
        "error_code": answer.error,
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol_name,
        "assignment": answer.assignment,
    }


def heartbeat(context: RequestContext, request: Any) -> Answer | Awaitable[Answer]:
    reply = context.broker.groups.heartbeat(
        HeartbeatRequest(
            request.group_id,
            request.generation_id,
            request.member_id,
            getattr(request, "group_instance_id", None),
        )
    )

    def fields(answer: HeartbeatAnswer) -> _Fields:
        return {"error_code": answer.error}

    return _answered(reply, fields)


def leave_group(context: RequestContext, request: Any) -> Answer | Awaitable[Answer]:
    """Up to v2 one member whose error is the answer's; from v3 any number, each with its own."""
    names_one = context.api_version < 3
    if names_one:
        members: tuple[MemberIdentity, ...] = (MemberIdentity(request.member_id),)
    else:
        members = tuple(MemberIdentity(each.member_id, each.group_instance_id) for each in request.members)
    reply = context.broker.groups.leave(LeaveRequest(request.group_id, members))

    def fields(answer: LeaveAnswer) -> _Fields:
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

    return _answered(reply, fields)


# --- offsets ----------------------------------------


class _TopicAnswers:
    """Partitions by topic, in the order in which topics were first seen."""

    __slots__ = ("_by_topic", "_key")

    def __init__(self, key: str) -> None:
        self._key = key
        self._by_topic: dict[Any, list[_Fields]] = {}

    def add(self, topic: Any, fields: _Fields) -> None:
        self._by_topic.setdefault(topic, []).append(fields)

    def as_fields(self) -> list[_Fields]:
        return [{self._key: topic, "partitions": partitions} for topic, partitions in self._by_topic.items()]


def offset_commit(context: RequestContext, request: Any) -> Answer | Awaitable[Answer]:
    """Partitions that do not exist are refused one by one; the others go to the group's coordinator together."""
    version = context.api_version
    image: MetadataImage = context.broker.image
    by_id = version >= 10
    answers = _TopicAnswers("topic_id" if by_id else "name")
    offsets: list[OffsetToCommit] = []
    keys: list[Any] = []
    for each in request.topics:
        key: Any = (each.topic_id or ZERO_UUID) if by_id else each.name
        topic = image.topics_by_id.get(key) if by_id else image.topics_by_name.get(key)
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id and topic is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for partition in each.partitions:
            index = partition.partition_index
            if topic is None or not 0 <= index < len(topic.partitions):
                answers.add(key, {"partition_index": index, "error_code": unknown})
                continue
            keys.append(key)
            offsets.append(
                OffsetToCommit(
                    topic.name,
                    index,
                    partition.committed_offset,
                    getattr(partition, "committed_leader_epoch", -1),
                    partition.committed_metadata,
                    topic.id,
                )
            )
    if not offsets:
        return {"topics": answers.as_fields()}
    reply = context.broker.groups.commit(
        CommitRequest(
            request.group_id,
            request.generation_id_or_member_epoch,
            request.member_id,
            getattr(request, "group_instance_id", None),
            tuple(offsets),
            millis(request.retention_time) if version <= 4 else -1,
            knows_group_not_found=version >= 9,
        )
    )

    def fields(answer: CommitAnswer) -> _Fields:
        for key, offset, error in zip(keys, offsets, answer.errors, strict=True):
            answers.add(key, {"partition_index": offset.partition, "error_code": error})
        return {"topics": answers.as_fields()}

    return _answered(reply, fields)


class _AskedTopic(NamedTuple):
    key: Any
    """Name, or id from v10."""
    topic: TopicImage | None
    name: str
    partitions: tuple[int, ...]


class _AskedGroup(NamedTuple):
    group_id: str
    topics: tuple[_AskedTopic, ...] | None


def offset_fetch(context: RequestContext, request: Any) -> Answer | Awaitable[Answer]:
    """One group up to v7, several from v8; topics by id from v10; no topics means all of them."""
    version = context.api_version
    image: MetadataImage = context.broker.image
    require_stable: bool = getattr(request, "require_stable", False)
    asked = [_asked_group(image, version, each) for each in ((request,) if version < 8 else request.groups)]
    replies = [
        context.broker.groups.fetch_offsets(
            FetchOffsetsRequest(
                group.group_id,
                None
                if group.topics is None
                else tuple(
                    TopicToFetch(each.name, each.partitions, ZERO_UUID if each.topic is None else each.topic.id)
                    for each in group.topics
                    if version < 10 or each.topic is not None
                ),
                require_stable,
            )
        )
        for group in asked
    ]

    def fields(answers: list[FetchOffsetsAnswer]) -> _Fields:
        if version < 8:
            return _fetched_single(version, asked[0], answers[0])
        return {
            "groups": [
                {
                    "group_id": group.group_id,
                    "topics": [] if answer.error else _fetched_topics(image, version, group, answer),
                    "error_code": answer.error,
                }
                for group, answer in zip(asked, answers, strict=True)
            ]
        }

    return _all_answered(replies, fields)


def _asked_group(image: MetadataImage, version: int, group: Any) -> _AskedGroup:
    if group.topics is None:
        return _AskedGroup(group.group_id, None)
    topics = []
    for each in group.topics:
        if version >= 10:
            key: Any = each.topic_id or ZERO_UUID
            topic = image.topics_by_id.get(key)
            name = "" if topic is None else topic.name
        else:
            key = name = each.name
            topic = image.topics_by_name.get(name)
        topics.append(_AskedTopic(key, topic, name, tuple(each.partition_indexes)))
    return _AskedGroup(group.group_id, tuple(topics))


def _fetched_topics(
    image: MetadataImage, version: int, group: _AskedGroup, answer: FetchOffsetsAnswer
) -> list[_Fields]:
    fetched = [(name, [_fetched_fields(*each) for each in partitions]) for name, partitions in answer.topics]
    if version < 10:
        return [{"name": name, "partitions": partitions} for name, partitions in fetched]
    topics = []
    for name, partitions in fetched:
        topic = image.topics_by_name.get(name)
        # A client that speaks ids can not be told of a topic that has none any more.
        if topic is not None:
            topics.append({"topic_id": topic.id, "partitions": partitions})
    for asked in group.topics or ():
        if asked.topic is None:
            unknown = [_fetched_fields(index, error=ErrorCode.UNKNOWN_TOPIC_ID) for index in asked.partitions]
            topics.append({"topic_id": asked.key, "partitions": unknown})
    return topics


def _fetched_fields(
    partition: int,
    offset: int = -1,
    leader_epoch: int = -1,
    metadata: str = "",
    error: ErrorCode = ErrorCode.NONE,
) -> _Fields:
    return {
        "partition_index": partition,
        "committed_offset": offset,
        "committed_leader_epoch": leader_epoch,
        "metadata": metadata,
        "error_code": error,
    }


def _fetched_single(version: int, group: _AskedGroup, answer: FetchOffsetsAnswer) -> _Fields:
    """Up to v7. Version 1 has no field for an error of the whole group: each partition carries it."""
    if not answer.error:
        topics = [
            {"name": name, "partitions": [_fetched_fields(*each) for each in partitions]}
            for name, partitions in answer.topics
        ]
    elif version < 2:
        topics = [
            {"name": each.name, "partitions": [_fetched_fields(index, error=answer.error) for index in each.partitions]}
            for each in group.topics or ()
        ]
    else:
        topics = []
    return {"topics": topics, "error_code": answer.error}


def offset_delete(context: RequestContext, request: Any) -> Answer | Awaitable[Answer]:
    image: MetadataImage = context.broker.image
    answers = _TopicAnswers("name")
    partitions: list[tuple[str, int]] = []
    for each in request.topics:
        topic = image.topics_by_name.get(each.name)
        for partition in each.partitions:
            index = partition.partition_index
            if topic is None or not 0 <= index < len(topic.partitions):
                answers.add(each.name, {"partition_index": index, "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
            else:
                partitions.append((each.name, index))
    reply = context.broker.groups.delete_offsets(DeleteOffsetsRequest(request.group_id, tuple(partitions)))

    def fields(answer: DeleteOffsetsAnswer) -> _Fields:
        if answer.error:
            return {"error_code": answer.error, "topics": []}
        for (topic, index), error in zip(partitions, answer.errors, strict=True):
            answers.add(topic, {"partition_index": index, "error_code": error})
        return {"error_code": ErrorCode.NONE, "topics": answers.as_fields()}

    return _answered(reply, fields)


# --- groups as a whole ----------------------------------------


def list_groups(context: RequestContext, request: Any) -> Answer:
    states = frozenset(each.strip().lower() for each in getattr(request, "states_filter", ()))
    # Kafka trims the names of states, but not those of types.
    types = frozenset(each.lower() for each in getattr(request, "types_filter", ()))
    try:
        listed = context.broker.groups.list_groups(states, types)
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


def describe_groups(context: RequestContext, request: Any) -> Answer:
    shows_operations: bool = getattr(request, "include_authorized_operations", False)
    return {"groups": [_described(context, group_id, shows_operations) for group_id in request.groups]}


def _described(context: RequestContext, group_id: str, shows_operations: bool) -> _Fields:
    try:
        group = context.broker.groups.describe(group_id)
    except PeerError as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            group = DescribedGroup(group_id, error.code)
        elif context.api_version >= 6:
            # KIP-1043: newer clients hear that there is no such group, older ones see a dead one.
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


def delete_groups(context: RequestContext, request: Any) -> Answer | Awaitable[Answer]:
    def fields(answers: Iterable[DeleteGroupsAnswer]) -> _Fields:
        return {
            "results": [
                {"group_id": group_id, "error_code": error} for answer in answers for group_id, error in answer.errors
            ]
        }

    return _all_answered(context.broker.groups.delete_groups(request.groups_names), fields)


APIS: Final = (
    Api(ApiKey.FIND_COORDINATOR, 0, 6, find_coordinator),
    Api(ApiKey.JOIN_GROUP, 0, 9, join_group),
    Api(ApiKey.SYNC_GROUP, 0, 5, sync_group),
    Api(ApiKey.HEARTBEAT, 0, 4, heartbeat),
    Api(ApiKey.LEAVE_GROUP, 0, 5, leave_group),
    Api(ApiKey.OFFSET_COMMIT, 2, 10, offset_commit),
    Api(ApiKey.OFFSET_FETCH, 1, 10, offset_fetch),
    Api(ApiKey.OFFSET_DELETE, 0, 0, offset_delete),
    Api(ApiKey.LIST_GROUPS, 0, 5, list_groups),
    Api(ApiKey.DESCRIBE_GROUPS, 0, 6, describe_groups),
    Api(ApiKey.DELETE_GROUPS, 0, 2, delete_groups),
)
