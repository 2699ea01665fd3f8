"""DescribeTopicPartitions v0 (KIP-966).

Owns the order of topics in a response, its pages, and which topics the sender sees.

Rules: KIP-966; security.md A55 (key 75).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from fenceline.controller.topic_names import name_fault
from fenceline.errors import ErrorCode
from fenceline.metadata.image import MetadataImage, TopicImage
from fenceline.node.api.handlers.metadata_encoding import (
    OPERATIONS_NOT_ASKED,
    TOPIC_OPERATIONS,
    is_internal,
    view_partition,
)
from fenceline.node.api.permissions.checks import split
from fenceline.node.context import Api, NodeView, RequestContext
from fenceline.wire.acl_codes import AclOperation, ResourceType
from fenceline.wire.apis import ApiKey

if TYPE_CHECKING:
    from fenceline.wire.requests import DescribeTopicPartitionsRequest, TopicRequest


def handle_describe_topic_partitions(
    node: NodeView, context: RequestContext, request: DescribeTopicPartitionsRequest
) -> dict[str, Any]:
    """Topics in name order, starting at the cursor, up to the limit of partitions; those that the sender may not see
    come last, if the request names them."""
    image, rights = node.image, context.rights
    names = sorted({topic.name for topic in request.topics}, key=_java_order)
    everything = not names
    cursor = request.cursor
    if cursor is not None and (cursor.partition_index < 0 or (not everything and cursor.topic_name not in names)):
        return _rejected(request.topics, ErrorCode.INVALID_REQUEST)
    if "" in names:
        return _rejected(request.topics, ErrorCode.UNKNOWN_SERVER_ERROR)
    if everything:
        names = sorted(image.topics_by_name, key=_java_order)
    denied: list[str] = []
    if rights is not None:
        allowed, refused = split(names, lambda name: rights.on_topic(AclOperation.DESCRIBE, name, quiet=everything))
        names, denied = list(allowed), [] if everything else refused
    if cursor is not None:
        start = _java_order(cursor.topic_name)
        names = [name for name in names if _java_order(name) >= start]
    most = node.config.get_int("max.request.partition.size.limit")
    left = max(1, min(request.response_partition_limit, most))
    rows: list[dict[str, Any]] = []
    denied_rows = [_error(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED, OPERATIONS_NOT_ASKED) for name in denied]

    def page(next_topic: str | None, next_index: int = 0) -> dict[str, Any]:
        cursor = None if next_topic is None else {"topic_name": next_topic, "partition_index": next_index}
        return {"topics": rows + denied_rows, "next_cursor": cursor}

    for name in names:
        operations = TOPIC_OPERATIONS if rights is None else rights.operations(ResourceType.TOPIC, name)
        if left == 0:
            return page(name)
        topic = image.topics_by_name.get(name)
        if topic is None:
            invalid = name_fault(name) is not None
            code = ErrorCode.INVALID_TOPIC_EXCEPTION if invalid else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            rows.append(_error(name, code, operations))
            continue
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        end = min(len(topic.partitions), first + left)
        rows.append(_describe_topic(image, topic, range(first, end), context.listener, operations))
        left -= max(0, end - first)
        if end < len(topic.partitions):
            return page(name, end)
    return page(None)


def _java_order(name: str) -> bytes:
    """Java compares strings by UTF-16 units."""
    return name.encode("utf-16-be", "surrogatepass")


def _error(name: str, code: ErrorCode, operations: int) -> dict[str, Any]:
    return {
        "error_code": code,
        "name": name,
        "topic_id": None,
        "is_internal": is_internal(name),
        "partitions": (),
        "topic_authorized_operations": operations,
    }


def _describe_topic(
    image: MetadataImage, topic: TopicImage, indexes: Iterable[int], listener: str, operations: int
) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.NONE,
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": is_internal(topic.name),
        "partitions": [_describe_partition(image, topic, index, listener) for index in indexes],
        "topic_authorized_operations": operations,
    }


def _describe_partition(image: MetadataImage, topic: TopicImage, index: int, listener: str) -> dict[str, Any]:
    partition = topic.partitions[index]
    view = view_partition(image, partition, listener, old_errors=False)
    return {
        "error_code": view.error,
        "partition_index": index,
        "leader_id": view.leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": partition.isr,
        "eligible_leader_replicas": partition.elr,
        "last_known_elr": partition.last_known_elr,
        "offline_replicas": view.offline,
    }


def _rejected(topics: Iterable[TopicRequest], code: ErrorCode) -> dict[str, Any]:
    rows = [
        {"error_code": code, "name": topic.name, "topic_authorized_operations": OPERATIONS_NOT_ASKED}
        for topic in topics
    ]
    return {"topics": rows, "next_cursor": None}


def apis(node: NodeView) -> tuple[Api, ...]:
    return (Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, partial(handle_describe_topic_partitions, node)),)
