"""CreateTopics v2-7, DeleteTopics v1-6, CreatePartitions v0-3.

Owns the steps before and after the controller, as in Kafka: repeated names, ids with names, the configs in the response
for a new topic. The controller decides whether a topic can be created. The response is sent as soon as the records are
committed; it waits, up to the request's timeout, only if a thread of this node still uses the files of a deleted topic
of that name.

Rules: controller.md C21-C25, since_4_0.md K4, K27.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import UUID

from fenceline.config.effective import describe_created_topic
from fenceline.controller.requests import (
    CreatePartitions,
    CreateTopicResult,
    CreateTopics,
    DeletedTopic,
    DeleteTopics,
    NewPartitions,
    RequestOutcome,
    TopicReference,
    TopicToCreate,
)
from fenceline.controller.topics import check_partition_count
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import METADATA_TOPIC, ZERO_UUID
from fenceline.metadata.image import MetadataImage
from fenceline.node.context import Api, NodeView, RequestContext, Submit
from fenceline.wire.apis import ApiKey

if TYPE_CHECKING:
    from fenceline.wire.requests import (
        CreatableTopic,
        CreatePartitionsRequest,
        CreateTopicsRequest,
        DeleteTopicsRequest,
    )

_REPEATED_NAME: Final = RequestOutcome(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
_REPEATED_ID: Final = RequestOutcome(ErrorCode.INVALID_REQUEST, "Duplicate topic id.")
_NAME_AND_ID: Final = RequestOutcome(
    ErrorCode.INVALID_REQUEST, "The provided topic name maps to an ID that was already supplied."
)
_METADATA_TOPIC: Final = RequestOutcome(
    ErrorCode.INVALID_REQUEST, f"Creation of internal topic {METADATA_TOPIC} is prohibited."
)
_DELETION_DISABLED_SINCE: Final = 3

UntilServed: TypeAlias = Callable[[Collection[str], float], Awaitable[None]]
"""Waits until this node can serve the newly created topics, at most so many seconds."""


# --- CreateTopics -----------------------------------------------------------------------------------------------------


async def handle_create_topics(
    node: NodeView,
    submit: Submit,
    until_served: UntilServed | None,
    context: RequestContext,
    request: CreateTopicsRequest,
) -> dict[str, Any]:
    """One result per name, in request order."""
    names = Counter(topic.name for topic in request.topics)
    results: dict[str, CreateTopicResult] = {}
    wanted: list[CreatableTopic] = []
    for topic in request.topics:
        if topic.name == METADATA_TOPIC:
            results[topic.name] = CreateTopicResult(topic.name, _METADATA_TOPIC)
        elif names[topic.name] > 1:
            results[topic.name] = CreateTopicResult(topic.name, _REPEATED_NAME)
        else:
            wanted.append(topic)
    if wanted:
        try:
            # Before anything is made of its partitions: a request may name any number of them.
            counts = ((topic.num_partitions, len(topic.assignments)) for topic in wanted)
            check_partition_count(counts, node.config.get_int("num.partitions"))
            topics = tuple(map(_new_topic, wanted))
            answer = await submit(CreateTopics(topics, request.validate_only, context.mutations), context)
            results.update((topic.name, topic) for topic in answer.topics)
            if until_served is not None:
                created = {topic.name for topic in answer.topics if not topic.outcome.failed}
                await until_served(created, request.timeout.total_seconds())
        except PeerError as error:
            outcome = _outcome_of(error)
            results.update((topic.name, CreateTopicResult(topic.name, outcome)) for topic in wanted)
    return {"topics": [_created(node, context.api_version, results[name]) for name in names]}


def _new_topic(topic: CreatableTopic) -> TopicToCreate:
    return TopicToCreate(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        tuple((each.partition_index, tuple(each.broker_ids)) for each in topic.assignments),
        tuple((each.name, each.value) for each in topic.configs),
    )


def _created(node: NodeView, version: int, topic: CreateTopicResult) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "name": topic.name,
        "error_code": topic.outcome.code,
        "error_message": topic.outcome.message,
        "topic_config_error_code": ErrorCode.NONE,
    }
    if topic.outcome.failed:
        return {**fields, "num_partitions": -1, "replication_factor": -1, "configs": ()}
    return {
        **fields,
        "topic_id": topic.topic_id,
        "num_partitions": topic.num_partitions,
        "replication_factor": topic.replication_factor,
        "configs": [
            {
                "name": name,
                "value": effective.value,
                "read_only": False,
                "config_source": effective.source,
                "is_sensitive": False,
            }
            for name, effective in describe_created_topic(node.image.configs, topic.configs, node.config).items()
        ]
        if version >= 5
        else (),
    }


# --- DeleteTopics -----------------------------------------------------------------------------------------------------


async def handle_delete_topics(
    node: NodeView, submit: Submit, context: RequestContext, request: DeleteTopicsRequest
) -> dict[str, Any]:
    """One result per topic; a topic that is named twice, by name or id, is not deleted."""
    if context.api_version >= 6:
        references = [TopicReference(topic.name, topic.topic_id or ZERO_UUID) for topic in request.topics]
    else:
        references = [TopicReference(name) for name in request.topic_names]
    rejected, wanted = _sort_out(references, node.image)
    results = list(rejected)
    if wanted:
        try:
            answer = await submit(DeleteTopics(tuple(wanted), context.mutations))
            results = [*answer.topics, *rejected]
        except PeerError as error:
            results = [DeletedTopic(each.name, each.id, _outcome_of(error)) for each in wanted] + results
    return {"responses": [_deleted(context.api_version, topic) for topic in results]}


def _sort_out(
    references: Sequence[TopicReference], image: MetadataImage
) -> tuple[list[DeletedTopic], list[TopicReference]]:
    """Repeated names and ids, each rejected once, and the remaining references."""
    names = Counter(each.name for each in references if each.name is not None and each.id == ZERO_UUID)
    ids = Counter(each.id for each in references if each.name is None and each.id != ZERO_UUID)
    rejected: dict[tuple[str | None, UUID], DeletedTopic] = {}
    taken: set[UUID] = set()
    for name in names:
        topic = image.topics_by_name.get(name)
        if names[name] > 1:
            rejected[name, ZERO_UUID] = DeletedTopic(name, ZERO_UUID, _REPEATED_NAME)
        elif topic is not None and topic.id in ids:
            rejected[name, ZERO_UUID] = DeletedTopic(name, topic.id, _NAME_AND_ID)
            taken.add(topic.id)
    for topic_id, count in ids.items():
        if count > 1 and topic_id not in taken:
            rejected[None, topic_id] = DeletedTopic(None, topic_id, _REPEATED_ID)
    wanted = [each for each in references if (each.name, each.id) not in rejected and each.id not in taken]
    return list(rejected.values()), wanted


def _deleted(version: int, topic: DeletedTopic) -> dict[str, Any]:
    code = topic.outcome.code
    if code is ErrorCode.TOPIC_DELETION_DISABLED and version < _DELETION_DISABLED_SINCE:
        code = ErrorCode.INVALID_REQUEST
    return {
        "name": topic.name,
        "topic_id": topic.id,
        "error_code": code,
        "error_message": topic.outcome.message,
    }


# --- CreatePartitions -------------------------------------------------------------------------------------------------


async def handle_create_partitions(
    submit: Submit, context: RequestContext, request: CreatePartitionsRequest
) -> dict[str, Any]:
    """One result per name, in request order."""
    names = Counter(topic.name for topic in request.topics)
    outcomes: dict[str, RequestOutcome] = {name: _REPEATED_NAME for name, count in names.items() if count > 1}
    wanted = tuple(
        NewPartitions(
            topic.name,
            topic.count,
            None if topic.assignments is None else tuple(tuple(each.broker_ids) for each in topic.assignments),
        )
        for topic in request.topics
        if names[topic.name] == 1
    )
    if wanted:
        try:
            answer = await submit(CreatePartitions(wanted, request.validate_only, context.mutations))
            outcomes.update((name, outcome) for name, outcome in answer.topics)
        except PeerError as error:
            outcomes.update((topic.name, _outcome_of(error)) for topic in wanted)
    return {"results": [_partitions_result(name, outcomes[name]) for name in names]}


def _partitions_result(name: str, outcome: RequestOutcome) -> dict[str, Any]:
    # Kafka sends no message with this error.
    silent = outcome.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return {
        "name": name,
        "error_code": outcome.code,
        "error_message": None if silent else outcome.message,
    }


def _outcome_of(error: PeerError) -> RequestOutcome:
    return RequestOutcome(error.code, error.message or None)


def apis(node: NodeView, submit: Submit, until_served: UntilServed | None = None) -> tuple[Api, ...]:
    """`until_served`: None for a node without replicas."""
    return (
        Api(ApiKey.CREATE_TOPICS, 2, 7, partial(handle_create_topics, node, submit, until_served)),
        Api(ApiKey.DELETE_TOPICS, 1, 6, partial(handle_delete_topics, node, submit)),
        Api(ApiKey.CREATE_PARTITIONS, 0, 3, partial(handle_create_partitions, submit)),
    )
