"""FindCoordinator v0-6: finds the coordinator of a group, or of the transactions of an id.

Owns the result per key. The coordinator of a key is the leader of its partition of `__consumer_offsets` or
`__transaction_state`; the first request for either creates the topic. Rules: `since_4_0.md K5`, transactions.md X24,
X25, X30.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from fenceline.coordination import partition_for
from fenceline.errors import ErrorCode
from fenceline.ids import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from fenceline.node.context import Answer, Api, NodeView, RequestContext
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import request_field

if TYPE_CHECKING:
    from fenceline.wire.requests import FindCoordinatorRequest

GROUP_KEY_TYPE: Final = 0
TRANSACTION_KEY_TYPE: Final = 1
_TOPICS: Final[Mapping[int, str]] = {
    GROUP_KEY_TYPE: CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_KEY_TYPE: TRANSACTION_STATE_TOPIC,
}


class _Found(NamedTuple):
    error: ErrorCode
    message: str | None = None
    node_id: int = -1
    host: str = ""
    port: int = -1


async def find_coordinator(
    node: NodeView,
    create: Mapping[int, Callable[[], Awaitable[object]]],
    context: RequestContext,
    request: FindCoordinatorRequest,
) -> Answer:
    """One key up to v3, any number from v4. `create`, by type of key, creates its topic."""
    key_type = request_field(request, "key_type", GROUP_KEY_TYPE)
    keys: Sequence[str] = (request.key,) if context.api_version < 4 else request.coordinator_keys
    if keys and key_type in _TOPICS and _TOPICS[key_type] not in node.image.topics_by_name:
        await create[key_type]()
    found = [_find(node, context.listener, key_type, key) for key in keys]
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


def _find(node: NodeView, listener: str, key_type: int, key: str) -> _Found:
    image = node.image
    name = _TOPICS.get(key_type)
    if name is None:
        return _Found(ErrorCode.INVALID_REQUEST, f"There is no coordinator of type {key_type}.")
    topic = image.topics_by_name.get(name)
    if topic is None:
        return _Found(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    leader = topic.partitions[partition_for(key, len(topic.partitions))].leader
    broker = image.brokers.get(leader)
    if broker is None or broker.fenced:
        return _Found(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    endpoint = broker.endpoint(listener)
    if endpoint is None:
        return _Found(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return _Found(ErrorCode.NONE, None, leader, endpoint.host, endpoint.port)


def apis(
    node: NodeView,
    create_offsets_topic: Callable[[], Awaitable[object]],
    create_transaction_topic: Callable[[], Awaitable[object]],
) -> tuple[Api, ...]:
    create = {GROUP_KEY_TYPE: create_offsets_topic, TRANSACTION_KEY_TYPE: create_transaction_topic}
    return (Api(ApiKey.FIND_COORDINATOR, 0, 6, partial(find_coordinator, node, create)),)
