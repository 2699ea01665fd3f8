"""Committed offsets of groups: OffsetCommit v2-10, TxnOffsetCommit v0-5, OffsetFetch v1-10, OffsetDelete v0.

Owns the differences between versions and the use of the metadata image (does the topic exist, which name has an id);
the rules are in `fenceline.groups`. Rules: `since_4_0.md K5, K32`, `epochs.md E61`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from fenceline.errors import ErrorCode
from fenceline.groups import messages
from fenceline.ids import ZERO_UUID
from fenceline.metadata.image import MetadataImage, TopicImage
from fenceline.node.context import Answer, Api, NodeView, RequestContext
from fenceline.node.coordination.replies import Fields, all_answered, answered
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import millis, request_field

if TYPE_CHECKING:
    from fenceline.node.groups.driver import GroupsDriver
    from fenceline.wire.requests import (
        OffsetCommitRequest,
        OffsetCommitRequestTopic,
        OffsetDeleteRequest,
        OffsetFetchRequest,
        OffsetFetchRequestGroup,
        OffsetFetchRequestTopic,
        OffsetFetchRequestTopics,
        TxnOffsetCommitRequest,
    )

_FIRST_THAT_KNOWS_LOADING: Final = 2
"""Of TxnOffsetCommit."""


class _TopicAnswers:
    """Partitions by topic, in the order in which topics were added."""

    __slots__ = ("_by_topic", "_key")

    def __init__(self, key: str) -> None:
        self._key = key
        self._by_topic: dict[str | UUID, list[Fields]] = {}

    def add(self, topic: str | UUID, fields: Fields) -> None:
        self._by_topic.setdefault(topic, []).append(fields)

    def as_fields(self) -> list[Fields]:
        return [{self._key: topic, "partitions": partitions} for topic, partitions in self._by_topic.items()]


def _asked_topic(
    image: MetadataImage,
    by_id: bool,
    asked: OffsetCommitRequestTopic | OffsetFetchRequestTopic | OffsetFetchRequestTopics,
) -> tuple[str | UUID, TopicImage | None]:
    """The id or the name by which the request names the topic, and the topic if it exists."""
    if by_id:
        topic_id: UUID = request_field(asked, "topic_id", None) or ZERO_UUID
        return topic_id, image.topics_by_id.get(topic_id)
    return asked.name, image.topics_by_name.get(asked.name)


def offset_commit(
    node: NodeView, groups: GroupsDriver, context: RequestContext, request: OffsetCommitRequest
) -> Answer | Awaitable[Answer]:
    """Partitions that do not exist fail individually; the others go to the group's coordinator together."""
    version = context.api_version
    image = node.image
    by_id = version >= 10
    answers = _TopicAnswers("topic_id" if by_id else "name")
    offsets: list[messages.OffsetToCommit] = []
    keys: list[str | UUID] = []
    for each in request.topics:
        key, topic = _asked_topic(image, by_id, each)
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id and topic is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for partition in each.partitions:
            index = partition.partition_index
            if topic is None or not 0 <= index < len(topic.partitions):
                answers.add(key, {"partition_index": index, "error_code": unknown})
                continue
            keys.append(key)
            offsets.append(
                messages.OffsetToCommit(
                    topic.name,
                    index,
                    partition.committed_offset,
                    request_field(partition, "committed_leader_epoch", -1),
                    partition.committed_metadata,
                    topic.id,
                )
            )
    if not offsets:
        return {"topics": answers.as_fields()}
    reply = groups.commit(
        messages.CommitRequest(
            request.group_id,
            request.generation_id_or_member_epoch,
            request.member_id,
            request_field(request, "group_instance_id", None),
            tuple(offsets),
            millis(request.retention_time) if version <= 4 else -1,
            knows_group_not_found=version >= 9,
        )
    )

    def fields(answer: messages.CommitResponse) -> Fields:
        for key, offset, error in zip(keys, offsets, answer.errors, strict=True):
            answers.add(key, {"partition_index": offset.partition, "error_code": error})
        return {"topics": answers.as_fields()}

    return answered(reply, fields)


async def txn_offset_commit(
    node: NodeView, groups: GroupsDriver, context: RequestContext, request: TxnOffsetCommitRequest
) -> Answer:
    """Offsets in a producer's transaction (KIP-447, `transactions.md X47`). Topics are named."""
    version = context.api_version
    image = node.image
    answers = _TopicAnswers("name")
    offsets: list[messages.OffsetToCommit] = []
    for each in request.topics:
        topic = image.topics_by_name.get(each.name)
        for partition in each.partitions:
            index = partition.partition_index
            if topic is None or not 0 <= index < len(topic.partitions):
                answers.add(each.name, {"partition_index": index, "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
                continue
            offsets.append(
                messages.OffsetToCommit(
                    topic.name,
                    index,
                    partition.committed_offset,
                    request_field(partition, "committed_leader_epoch", -1),
                    partition.committed_metadata,
                    topic.id,
                )
            )
    if offsets:
        commit = messages.TransactionalCommit(
            request.group_id,
            messages.TransactionalProducer(request.producer_id, request.producer_epoch),
            request_field(request, "generation_id", -1),
            request_field(request, "member_id", ""),
            request_field(request, "group_instance_id", None),
            tuple(offsets),
        )
        outcome = await groups.commit_in_transaction(request.transactional_id, commit, version=version)
        for offset, code in zip(offsets, outcome.errors, strict=True):
            if version < _FIRST_THAT_KNOWS_LOADING and code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            answers.add(offset.topic, {"partition_index": offset.partition, "error_code": code})
    return {"topics": answers.as_fields()}


class _AskedTopic(NamedTuple):
    key: str | UUID
    """Name, or id from v10."""
    topic: TopicImage | None
    name: str
    partitions: tuple[int, ...]

    def to_fetch(self) -> messages.TopicToFetch:
        return messages.TopicToFetch(self.name, self.partitions, ZERO_UUID if self.topic is None else self.topic.id)


class _AskedGroup(NamedTuple):
    group_id: str
    topics: tuple[_AskedTopic, ...] | None


def offset_fetch(
    node: NodeView, groups: GroupsDriver, context: RequestContext, request: OffsetFetchRequest
) -> Answer | Awaitable[Answer]:
    """One group up to v7, several from v8; topics by id from v10; no topics means all of them."""
    version = context.api_version
    image = node.image
    require_stable = request_field(request, "require_stable", False)
    asking_groups = (request,) if version < 8 else request.groups
    asked = [_asked_group(image, version, each) for each in asking_groups]
    replies = [
        groups.fetch_offsets(
            messages.FetchOffsetsRequest(
                group.group_id,
                None
                if group.topics is None
                else tuple(each.to_fetch() for each in group.topics if version < 10 or each.topic is not None),
                require_stable,
                request_field(asking, "member_id", None) or None,
                request_field(asking, "member_epoch", -1),
            )
        )
        for asking, group in zip(asking_groups, asked, strict=True)
    ]

    def fields(answers: list[messages.FetchOffsetsResponse]) -> Fields:
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

    return all_answered(replies, fields)


def _asked_group(
    image: MetadataImage, version: int, group: OffsetFetchRequest | OffsetFetchRequestGroup
) -> _AskedGroup:
    if group.topics is None:
        return _AskedGroup(group.group_id, None)
    topics = []
    for each in group.topics:
        key, topic = _asked_topic(image, version >= 10, each)
        name = key if isinstance(key, str) else "" if topic is None else topic.name
        topics.append(_AskedTopic(key, topic, name, tuple(each.partition_indexes)))
    return _AskedGroup(group.group_id, tuple(topics))


def _fetched_topics(
    image: MetadataImage, version: int, group: _AskedGroup, answer: messages.FetchOffsetsResponse
) -> list[Fields]:
    fetched = [(name, [_fetched_fields(*each) for each in partitions]) for name, partitions in answer.topics]
    if version < 10:
        return [{"name": name, "partitions": partitions} for name, partitions in fetched]
    topics = []
    for name, partitions in fetched:
        topic = image.topics_by_name.get(name)
        # A client that uses ids cannot be sent a topic without one.
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
) -> Fields:
    return {
        "partition_index": partition,
        "committed_offset": offset,
        "committed_leader_epoch": leader_epoch,
        "metadata": metadata,
        "error_code": error,
    }


def _fetched_single(version: int, group: _AskedGroup, answer: messages.FetchOffsetsResponse) -> Fields:
    """Up to v7. Version 1 has no top-level error: each partition carries it."""
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


def offset_delete(
    node: NodeView, groups: GroupsDriver, context: RequestContext, request: OffsetDeleteRequest
) -> Answer | Awaitable[Answer]:
    image = node.image
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
    reply = groups.delete_offsets(messages.DeleteOffsetsRequest(request.group_id, tuple(partitions)))

    def fields(answer: messages.DeleteOffsetsResponse) -> Fields:
        if answer.error:
            return {"error_code": answer.error, "topics": []}
        for (topic, index), error in zip(partitions, answer.errors, strict=True):
            answers.add(topic, {"partition_index": index, "error_code": error})
        return {"error_code": ErrorCode.NONE, "topics": answers.as_fields()}

    return answered(reply, fields)


def apis(node: NodeView, groups: GroupsDriver) -> tuple[Api, ...]:
    return (
        Api(ApiKey.OFFSET_COMMIT, 2, 10, partial(offset_commit, node, groups)),
        Api(ApiKey.TXN_OFFSET_COMMIT, 0, 5, partial(txn_offset_commit, node, groups)),
        Api(ApiKey.OFFSET_FETCH, 1, 10, partial(offset_fetch, node, groups)),
        Api(ApiKey.OFFSET_DELETE, 0, 0, partial(offset_delete, node, groups)),
    )
