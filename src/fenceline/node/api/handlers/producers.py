"""InitProducerId v0-5 for idempotent producers and DescribeProducers v0.

Producer ids are allocated by the controller in blocks of 1000 (`controller.md C41`); the rest of a block is never used
after a restart. A transactional id is rejected, because this node has no transaction coordinator: with 53, which every
client treats as fatal, if no broker of the cluster has one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from fenceline.controller.requests import AllocateProducerIds
from fenceline.controller.topic_names import name_fault
from fenceline.errors import ErrorCode, PeerError
from fenceline.node.context import Api, RequestContext, Submit
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import request_field

if TYPE_CHECKING:
    from fenceline.node.replication.replicas import Replicas
    from fenceline.node.transactions.support import TransactionSupport
    from fenceline.wire.requests import DescribeProducersRequest, InitProducerIdRequest


class ProducerIds:
    """Assigns producer ids one by one, and requests the next block from the controller when one is used up."""

    def __init__(self, node_id: int, broker_epoch: Callable[[], int], submit: Submit) -> None:
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._submit = submit
        self._next = 0
        self._end_exclusive = 0
        self._refill = asyncio.Lock()

    async def next_id(self) -> int:
        """A unique producer id. Raises PeerError if the controller allocates none."""
        while self._next >= self._end_exclusive:
            async with self._refill:
                if self._next >= self._end_exclusive:
                    block = await self._submit(AllocateProducerIds(self._node_id, self._broker_epoch()))
                    self._next, self._end_exclusive = block.first, block.first + block.size
        taken = self._next
        self._next += 1
        return taken


async def init_producer_id(
    ids: ProducerIds, transactions: TransactionSupport, context: RequestContext, request: InitProducerIdRequest
) -> dict[str, Any]:
    if request.transactional_id is not None:
        code = await _error_code(transactions, context, request.transactional_id)
        return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
    has_id, has_epoch = (request_field(request, name, -1) != -1 for name in ("producer_id", "producer_epoch"))
    if has_id != has_epoch:
        return {"error_code": ErrorCode.INVALID_REQUEST, "producer_id": -1, "producer_epoch": -1}
    try:
        producer_id = await ids.next_id()
    except PeerError as error:
        # If the controller's disk is full there are no ids now. Clients retry this error, but not the storage error.
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if error.code is ErrorCode.KAFKA_STORAGE_ERROR else error.code
        return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
    return {"error_code": ErrorCode.NONE, "producer_id": producer_id, "producer_epoch": 0}


async def _error_code(transactions: TransactionSupport, context: RequestContext, transactional_id: str) -> ErrorCode:
    if transactional_id == "":
        return ErrorCode.INVALID_REQUEST
    if await transactions.may_be_available():
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    transactions.log_rejected(context.client_id, context.peer, transactional_id)
    return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def describe_producers(
    replicas: Replicas, context: RequestContext, request: DescribeProducersRequest
) -> dict[str, Any]:
    """The producers in each partition's log."""
    topics = []
    for topic in request.topics:
        answers = []
        for index in topic.partition_indexes:
            try:
                fault = name_fault(topic.name)
                if fault is not None:
                    raise PeerError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
                replica = replicas.leader(topic.name, None, index)
            except PeerError as error:
                answers.append(
                    {
                        "partition_index": index,
                        "error_code": error.code,
                        "error_message": error.message,
                        "active_producers": [],
                    }
                )
                continue
            producers = [
                {
                    "producer_id": producer.producer_id,
                    "producer_epoch": producer.epoch,
                    "last_sequence": producer.last_sequence,
                    "last_timestamp": producer.last_timestamp_ms,
                    "coordinator_epoch": producer.coordinator_epoch,
                    "current_txn_start_offset": producer.transaction_first_offset,
                }
                for producer in replica.log.producers
            ]
            answers.append(
                {
                    "partition_index": index,
                    "error_code": ErrorCode.NONE,
                    "error_message": None,
                    "active_producers": producers,
                }
            )
        topics.append({"name": topic.name, "partitions": answers})
    return {"topics": topics}


def apis(ids: ProducerIds, transactions: TransactionSupport, replicas: Replicas) -> tuple[Api, ...]:
    return (
        Api(ApiKey.INIT_PRODUCER_ID, 0, 5, partial(init_producer_id, ids, transactions)),
        Api(ApiKey.DESCRIBE_PRODUCERS, 0, 0, partial(describe_producers, replicas)),
    )
