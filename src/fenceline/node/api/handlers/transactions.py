"""The APIs of the transaction coordinator: InitProducerId v0-5, AddPartitionsToTxn v0-5, AddOffsetsToTxn v0-4, EndTxn
v0-5, ListTransactions v0-2, DescribeTransactions v0.

Owns the differences between versions and the use of the metadata image; the rules are in `fenceline.transactions`.
Rules: transactions.md X7, X13, X30, X31.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fenceline.errors import ErrorCode, PeerError
from fenceline.groups.regex.automaton import InvalidRegex
from fenceline.groups.regex.search import topic_regex
from fenceline.ids import CONSUMER_OFFSETS_TOPIC, INTERNAL_TOPICS
from fenceline.node.context import Answer, Api, NodeView, RequestContext
from fenceline.node.coordination.replies import Fields, all_answered, answered
from fenceline.node.transactions.driver import VERSION_OF_LEADERS, TransactionsDriver
from fenceline.transactions.messages import (
    NO_IDENTITY,
    AddPartitions,
    EndTransaction,
    InitProducer,
    PartitionsAdded,
    ProducerIdentity,
    ProducerInitialized,
    TopicIndex,
    TransactionEnded,
)
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import millis, request_field

if TYPE_CHECKING:
    from fenceline.metadata.image import MetadataImage
    from fenceline.node.transactions.producer_ids import ProducerIds
    from fenceline.wire.requests import (
        AddOffsetsToTxnRequest,
        AddPartitionsToTxnRequest,
        AddPartitionsToTxnTopic,
        DescribeTransactionsRequest,
        EndTxnRequest,
        InitProducerIdRequest,
        ListTransactionsRequest,
    )

_FIRST_FROM_BROKERS: Final = 4
"""Of AddPartitionsToTxn: many transactions in one request, from the leaders of partitions."""


async def init_producer_id(
    transactions: TransactionsDriver, ids: ProducerIds, context: RequestContext, request: InitProducerIdRequest
) -> Fields:
    """The first id of all waits for the controller; later ones are at hand."""
    await ids.wait_until_at_hand()
    expected = ProducerIdentity(request_field(request, "producer_id", -1), request_field(request, "producer_epoch", -1))
    reply = transactions.init_producer(
        InitProducer(
            request.transactional_id,
            millis(request.transaction_timeout),
            expected,
            request_field(request, "enable2_pc", False),
            request_field(request, "keep_prepared_txn", False),
            context.api_version,
        )
    )
    outcome: ProducerInitialized = await reply.wait()
    return {
        "error_code": outcome.error,
        "producer_id": outcome.identity.producer_id,
        "producer_epoch": outcome.identity.epoch,
    }


# --- AddPartitionsToTxn ----------------------------------------


def add_partitions_to_txn(
    node: NodeView, transactions: TransactionsDriver, context: RequestContext, request: AddPartitionsToTxnRequest
) -> Answer | Awaitable[Answer]:
    """Up to version 3 from a client, from 4 on from the leaders of partitions (`transactions.md X13`)."""
    if context.api_version < _FIRST_FROM_BROKERS:
        return _add_for_client(node.image, transactions, context, request)
    image = node.image
    rejected = [_rejected(each.topics, partial(_absent, image)) for each in request.transactions]
    replies = [
        transactions.add_partitions(
            AddPartitions(
                each.transactional_id,
                ProducerIdentity(each.producer_id, each.producer_epoch),
                _partitions(each.topics),
                each.verify_only,
                VERSION_OF_LEADERS,
                context.api_version,
            )
        )
        for each, faults in zip(request.transactions, rejected, strict=True)
        if not faults
    ]

    def fields(outcomes: list[PartitionsAdded]) -> Fields:
        remaining = iter(outcomes)
        return {
            "error_code": ErrorCode.NONE,
            "results_by_transaction": [
                {
                    "transactional_id": each.transactional_id,
                    "topic_results": _topic_results(each.topics, faults or next(remaining).errors),
                }
                for each, faults in zip(request.transactions, rejected, strict=True)
            ],
        }

    return all_answered(replies, fields)


def _add_for_client(
    image: MetadataImage, transactions: TransactionsDriver, context: RequestContext, request: AddPartitionsToTxnRequest
) -> Answer | Awaitable[Answer]:
    topics = request.v3_and_below_topics
    faults = _rejected(topics, lambda partition: _internal(partition) or _absent(image, partition))
    if faults:
        return {"results_by_topic_v3_and_below": _topic_results(topics, faults)}
    reply = transactions.add_partitions(
        AddPartitions(
            request.v3_and_below_transactional_id,
            ProducerIdentity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch),
            _partitions(topics),
            version=context.api_version,
        )
    )
    return answered(reply, lambda outcome: {"results_by_topic_v3_and_below": _topic_results(topics, outcome.errors)})


def _rejected(
    topics: Sequence[AddPartitionsToTxnTopic], fault_of: Callable[[TopicIndex], ErrorCode]
) -> list[ErrorCode]:
    """Codes of all partitions if any of them cannot be added: nothing is, and the others were not attempted."""
    faults = [fault_of(partition) for partition in _partitions(topics)]
    return [fault or ErrorCode.OPERATION_NOT_ATTEMPTED for fault in faults] if any(faults) else []


def _internal(partition: TopicIndex) -> ErrorCode:
    """Clients do not write to these topics."""
    return ErrorCode.TOPIC_AUTHORIZATION_FAILED if partition[0] in INTERNAL_TOPICS else ErrorCode.NONE


def _absent(image: MetadataImage, partition: TopicIndex) -> ErrorCode:
    topic, index = partition
    known = image.topics_by_name.get(topic)
    is_known = known is not None and 0 <= index < len(known.partitions)
    return ErrorCode.NONE if is_known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _partitions(topics: Sequence[AddPartitionsToTxnTopic]) -> tuple[TopicIndex, ...]:
    return tuple((topic.name, index) for topic in topics for index in topic.partitions)


def _topic_results(topics: Sequence[AddPartitionsToTxnTopic], codes: Sequence[ErrorCode]) -> list[Fields]:
    """`codes` in the order of `_partitions`."""
    remaining = iter(codes)
    return [
        {
            "name": topic.name,
            "results_by_partition": [
                {"partition_index": index, "partition_error_code": next(remaining)} for index in topic.partitions
            ],
        }
        for topic in topics
    ]


def add_offsets_to_txn(
    offsets_partition_of: Callable[[str], int],
    transactions: TransactionsDriver,
    context: RequestContext,
    request: AddOffsetsToTxnRequest,
) -> Answer | Awaitable[Answer]:
    """Adds the partition of `__consumer_offsets` that has the group."""
    reply = transactions.add_partitions(
        AddPartitions(
            request.transactional_id,
            ProducerIdentity(request.producer_id, request.producer_epoch),
            ((CONSUMER_OFFSETS_TOPIC, offsets_partition_of(request.group_id)),),
            version=context.api_version,
        )
    )
    return answered(reply, lambda outcome: {"error_code": outcome.errors[0]})


# --- EndTxn ----------------------------------------


def end_txn(
    transactions: TransactionsDriver, context: RequestContext, request: EndTxnRequest
) -> Answer | Awaitable[Answer]:
    reply = transactions.end_transaction(
        EndTransaction(
            request.transactional_id,
            ProducerIdentity(request.producer_id, request.producer_epoch),
            request.committed,
            context.api_version,
        )
    )

    def fields(outcome: TransactionEnded) -> Fields:
        known: Fields = {"error_code": outcome.error}
        if outcome.identity != NO_IDENTITY:
            known.update(producer_id=outcome.identity.producer_id, producer_epoch=outcome.identity.epoch)
        return known

    return answered(reply, fields)


# --- for operators ----------------------------------------


def list_transactions(
    transactions: TransactionsDriver, context: RequestContext, request: ListTransactionsRequest
) -> Fields:
    """The transactions coordinated here (`transactions.md X31`)."""
    pattern: str | None = request_field(request, "transactional_id_pattern", None)
    try:
        matches = topic_regex(pattern).matches if pattern else _any_id
        listing = transactions.list_transactions(
            frozenset(request.state_filters),
            frozenset(request.producer_id_filters),
            request_field(request, "duration_filter", -1),
            matches,
        )
    except InvalidRegex:
        return {
            "error_code": ErrorCode.INVALID_REGULAR_EXPRESSION,
            "unknown_state_filters": [],
            "transaction_states": [],
        }
    except PeerError as error:
        return {"error_code": error.code, "unknown_state_filters": [], "transaction_states": []}
    return {
        "error_code": ErrorCode.NONE,
        "unknown_state_filters": list(listing.unknown_states),
        "transaction_states": [
            {
                "transactional_id": each.transactional_id,
                "producer_id": each.producer_id,
                "transaction_state": each.state,
            }
            for each in listing.transactions
        ],
    }


def _no_listing(code: ErrorCode) -> Fields:
    return {"error_code": code, "unknown_state_filters": [], "transaction_states": []}


def _any_id(transactional_id: str) -> bool:
    return True


def describe_transactions(
    transactions: TransactionsDriver, context: RequestContext, request: DescribeTransactionsRequest
) -> Fields:
    return {"transaction_states": [_described(transactions, each) for each in request.transactional_ids]}


def _described(transactions: TransactionsDriver, transactional_id: str) -> dict[str, Any]:
    try:
        known = transactions.describe(transactional_id)
    except PeerError as error:
        return {
            "error_code": error.code,
            "transactional_id": transactional_id,
            "transaction_state": "",
            "transaction_timeout": 0,
            "transaction_start_time": 0,
            "producer_id": 0,
            "producer_epoch": 0,
            "topics": [],
        }
    by_topic: dict[str, list[int]] = {}
    for topic, index in known.partitions:
        by_topic.setdefault(topic, []).append(index)
    return {
        "error_code": ErrorCode.NONE,
        "transactional_id": transactional_id,
        "transaction_state": known.state,
        "transaction_timeout": known.timeout_ms,
        "transaction_start_time": known.start_ms,
        "producer_id": known.identity.producer_id,
        "producer_epoch": known.identity.epoch,
        "topics": [{"topic": topic, "partitions": indexes} for topic, indexes in by_topic.items()],
    }


def apis(
    node: NodeView, transactions: TransactionsDriver, ids: ProducerIds, offsets_partition_of: Callable[[str], int]
) -> tuple[Api, ...]:
    """`offsets_partition_of`: the partition of `__consumer_offsets` that has a group."""
    return (
        Api(ApiKey.INIT_PRODUCER_ID, 0, 5, partial(init_producer_id, transactions, ids)),
        Api(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5, partial(add_partitions_to_txn, node, transactions)),
        Api(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, partial(add_offsets_to_txn, offsets_partition_of, transactions)),
        Api(ApiKey.END_TXN, 0, 5, partial(end_txn, transactions)),
        Api(ApiKey.LIST_TRANSACTIONS, 0, 2, partial(list_transactions, transactions)),
        Api(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, partial(describe_transactions, transactions)),
    )
