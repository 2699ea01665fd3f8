"""Asks the coordinator of a transactional id, without being its producer.

Owns the lookup of the coordinator and the retries while it moves or ends a transaction. Rules: transactions.md X31.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from fenceline.client.core.cluster import Cluster, CoordinatorOf
from fenceline.client.core.deadline import Deadline
from fenceline.client.core.errors import broker_error, error_code
from fenceline.errors import ErrorCode, PeerError
from fenceline.wire.apis import ApiKey


class CoordinatorAnswer(NamedTuple):
    node_id: int
    """The broker that is the coordinator."""
    answer: Any


async def describe_transaction(cluster: Cluster, transactional_id: str, deadline: Deadline) -> CoordinatorAnswer:
    """The state of the id, with the fields of DescribeTransactions. Raises PeerError (TRANSACTIONAL_ID_NOT_FOUND),
    TimedOut."""
    fields = {"transactional_ids": [transactional_id]}
    return await _ask(
        cluster,
        transactional_id,
        ApiKey.DESCRIBE_TRANSACTIONS,
        fields,
        deadline,
        lambda response: response.transaction_states[0],
    )


async def init_producer(
    cluster: Cluster, transactional_id: str, timeout_ms: int, deadline: Deadline
) -> CoordinatorAnswer:
    """Abort what the id has open, and fence its producer: InitProducerId. Raises PeerError, TimedOut."""
    fields = {
        "transactional_id": transactional_id,
        "transaction_timeout": timeout_ms,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    return await _ask(cluster, transactional_id, ApiKey.INIT_PRODUCER_ID, fields, deadline, lambda response: response)


async def _ask(
    cluster: Cluster,
    transactional_id: str,
    api_key: ApiKey,
    fields: dict[str, Any],
    deadline: Deadline,
    part: Callable[[Any], Any],
) -> CoordinatorAnswer:
    """`part` of the response has the error code, and is the answer."""

    async def attempt() -> CoordinatorAnswer:
        node_id = await cluster.coordinator(transactional_id, deadline, CoordinatorOf.TRANSACTION)
        try:
            answer = part(await cluster.call(node_id, api_key, fields, deadline=deadline))
            code = error_code(answer.error_code)
            if code is not ErrorCode.NONE:
                raise broker_error(code, f"{api_key.name} of transactional id {transactional_id}")
        except PeerError as error:
            if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                cluster.forget_coordinator(transactional_id, CoordinatorOf.TRANSACTION)
            raise
        return CoordinatorAnswer(node_id, answer)

    return await cluster.retrying(deadline, attempt)
