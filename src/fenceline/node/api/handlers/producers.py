"""DescribeProducers v0: the producers in a partition's log. Rules: transactions.md X31 (any replica answers)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from fenceline.controller.topic_names import name_fault
from fenceline.errors import ErrorCode, PeerError
from fenceline.node.context import Api, RequestContext
from fenceline.wire.apis import ApiKey

if TYPE_CHECKING:
    from fenceline.node.replication.replicas import Replicas
    from fenceline.wire.requests import DescribeProducersRequest


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
                replica = replicas.hosted(topic.name, None, index)
            except PeerError as error:
                answers.append(
                    {
                        "partition_index": index,
                        "error_code": error.code,
                        "error_message": error.told,
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


def apis(replicas: Replicas) -> tuple[Api, ...]:
    return (Api(ApiKey.DESCRIBE_PRODUCERS, 0, 0, partial(describe_producers, replicas)),)
