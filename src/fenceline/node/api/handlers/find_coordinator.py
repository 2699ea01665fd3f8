"""FindCoordinator v0-6: finds the coordinator of a group, or of the transactions of an id.

Owns the result per key; the group coordinator maps groups to partitions of `__consumer_offsets`. This node coordinates
no transactions, but Kafka brokers in its cluster do: transactional clients are sent to them. If there are none, the
result is an error that each client treats as fatal, with a message, so that no client waits for its timeout: librdkafka
and aiokafka (up to version 2) stop only at 53; the Java client and kafka-python (from 3 on) at any error that is not
retriable, but these two print 53 as a missing permission.
Rules: `since_4_0.md K5`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from fenceline.coordination import partition_for
from fenceline.errors import ErrorCode
from fenceline.ids import CONSUMER_OFFSETS_TOPIC, NO_LEADER, TRANSACTION_STATE_TOPIC
from fenceline.node.context import Answer, Api, NodeView, RequestContext
from fenceline.node.transactions.support import REFUSAL
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import request_field

if TYPE_CHECKING:
    from fenceline.node.groups.driver import GroupsDriver
    from fenceline.node.transactions.support import TransactionSupport
    from fenceline.wire.requests import FindCoordinatorRequest

GROUP_KEY_TYPE: Final = 0
TRANSACTION_KEY_TYPE: Final = 1
_LAST_OF_LIBRDKAFKA: Final = 2


class _Found(NamedTuple):
    error: ErrorCode
    message: str | None = None
    node_id: int = -1
    host: str = ""
    port: int = -1


async def find_coordinator(
    node: NodeView,
    groups: GroupsDriver,
    transactions: TransactionSupport,
    create_offsets_topic: Callable[[], Awaitable[object]],
    context: RequestContext,
    request: FindCoordinatorRequest,
) -> Answer:
    """One key up to v3, any number from v4. The first request for a group creates `__consumer_offsets`."""
    key_type = request_field(request, "key_type", GROUP_KEY_TYPE)
    keys: Sequence[str] = (request.key,) if context.api_version < 4 else request.coordinator_keys
    if key_type == GROUP_KEY_TYPE and keys and CONSUMER_OFFSETS_TOPIC not in node.image.topics_by_name:
        await create_offsets_topic()
    rejects = key_type == TRANSACTION_KEY_TYPE and not await transactions.may_be_available()
    found = [
        _rejected(transactions, context, key) if rejects else _find(node, groups, context.listener, key_type, key)
        for key in keys
    ]
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


def _rejected(transactions: TransactionSupport, context: RequestContext, transactional_id: str) -> _Found:
    transactions.log_rejected(context.client_id, context.peer, transactional_id)
    stops_at_53 = context.api_version <= _LAST_OF_LIBRDKAFKA
    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED if stops_at_53 else ErrorCode.UNSUPPORTED_VERSION
    return _Found(code, REFUSAL)


def _find(node: NodeView, groups: GroupsDriver, listener: str, key_type: int, key: str) -> _Found:
    image = node.image
    if key_type == TRANSACTION_KEY_TYPE:
        topic = image.topics_by_name.get(TRANSACTION_STATE_TOPIC)
        leader = topic.partitions[partition_for(key, len(topic.partitions))].leader if topic is not None else NO_LEADER
        if leader in (NO_LEADER, node.node_id):
            return _Found(ErrorCode.COORDINATOR_NOT_AVAILABLE, "This broker does not coordinate transactions.")
    elif key_type == GROUP_KEY_TYPE:
        topic = image.topics_by_name.get(CONSUMER_OFFSETS_TOPIC)
        if topic is None:
            return _Found(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        index = groups.coordinator.partition_of(key)
        leader = topic.partitions[index].leader if index < len(topic.partitions) else NO_LEADER
    else:
        return _Found(ErrorCode.INVALID_REQUEST, f"There is no coordinator of type {key_type}.")
    broker = image.brokers.get(leader)
    if broker is None or broker.fenced:
        return _Found(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    endpoint = broker.endpoint(listener)
    if endpoint is None:
        return _Found(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return _Found(ErrorCode.NONE, None, leader, endpoint.host, endpoint.port)


def apis(
    node: NodeView,
    groups: GroupsDriver,
    transactions: TransactionSupport,
    create_offsets_topic: Callable[[], Awaitable[object]],
) -> tuple[Api, ...]:
    find = partial(find_coordinator, node, groups, transactions, create_offsets_topic)
    return (Api(ApiKey.FIND_COORDINATOR, 0, 6, find),)
