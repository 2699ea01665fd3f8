"""The checks of APIs of the transaction coordinator.

Rules: security.md A53 to A55 (keys 22, 24 to 27, 65, 66).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fenceline.errors import ErrorCode
from fenceline.ids import INTERNAL_TOPICS
from fenceline.node.api.permissions.checks import Asked, Fields, Passed, Verdict, keeping, replacing, then, without
from fenceline.node.api.permissions.refusals import refusal
from fenceline.wire.acl_codes import AclOperation, ResourceType
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import request_field

_DENIED: Final = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
_FIRST_FROM_BROKERS: Final = 4


def init_producer_id(asked: Asked) -> Verdict:
    """With a transactional id WRITE on it; without one IDEMPOTENT_WRITE on the cluster, or WRITE on any topic."""
    rights, transactional_id = asked.rights, asked.request.transactional_id
    if transactional_id is not None:
        code = _DENIED
        is_allowed = rights.may_write_as(transactional_id)
        if is_allowed and request_field(asked.request, "enable2_pc", False):
            is_allowed = rights.may(AclOperation.TWO_PHASE_COMMIT, ResourceType.TRANSACTIONAL_ID, transactional_id)
    else:
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        is_allowed = rights.may_any(AclOperation.WRITE, ResourceType.TOPIC) or rights.on_cluster(
            AclOperation.IDEMPOTENT_WRITE
        )
    if is_allowed:
        return Passed(asked.request)
    return {"error_code": code, "producer_id": -1, "producer_epoch": -1}


def add_partitions_to_txn(asked: Asked) -> Verdict:
    """From brokers CLUSTER_ACTION; from clients WRITE on the transactional id and on every topic, or nothing is
    added."""
    request, rights = asked.request, asked.rights
    if asked.version >= _FIRST_FROM_BROKERS:
        if rights.on_cluster(AclOperation.CLUSTER_ACTION):
            return Passed(request)
        return {"error_code": ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    topics = request.v3_and_below_topics
    if not rights.may_write_as(request.v3_and_below_transactional_id):
        return {
            "results_by_topic_v3_and_below": [
                _added(topic, dict.fromkeys(topic.partitions, _DENIED)) for topic in topics
            ]
        }
    denied = {topic.name for topic in topics if topic.name not in INTERNAL_TOPICS and not rights.may_write(topic.name)}
    if not denied:
        return Passed(request)

    def code(topic: str, index: int) -> ErrorCode:
        if topic in denied or topic in INTERNAL_TOPICS:
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if asked.image.partition(topic, index) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.OPERATION_NOT_ATTEMPTED

    return {
        "results_by_topic_v3_and_below": [
            _added(topic, {index: code(topic.name, index) for index in topic.partitions}) for topic in topics
        ]
    }


def _added(topic: Any, codes: Mapping[int, ErrorCode]) -> Fields:
    rows = [{"partition_index": index, "partition_error_code": code} for index, code in codes.items()]
    return {"name": topic.name, "results_by_partition": rows}


def add_offsets_to_txn(asked: Asked) -> Verdict:
    request = asked.request
    if not asked.rights.may_write_as(request.transactional_id):
        return {"error_code": _DENIED}
    if not asked.rights.may(AclOperation.READ, ResourceType.GROUP, request.group_id):
        return {"error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED}
    return Passed(request)


def end_txn(asked: Asked) -> Verdict:
    if asked.rights.may_write_as(asked.request.transactional_id):
        return Passed(asked.request)
    return {"error_code": _DENIED}


def write_txn_markers(asked: Asked) -> Verdict:
    """Of brokers, and of operators who end a transaction by hand."""
    rights = asked.rights
    if rights.on_cluster(AclOperation.ALTER, quiet=True) or rights.on_cluster(AclOperation.CLUSTER_ACTION):
        return Passed(asked.request)
    return refusal(ApiKey.WRITE_TXN_MARKERS, asked.request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def describe_transactions(asked: Asked) -> Verdict:
    """DESCRIBE on each id; of its topics, those that the sender may describe are shown."""
    rights = asked.rights

    def row(transactional_id: str) -> Fields:
        return {"transactional_id": transactional_id, "error_code": _DENIED}

    def shown(transaction: Fields) -> Fields:
        topics = [topic for topic in transaction["topics"] if rights.describes(topic["topic"])]
        return {**transaction, "topics": topics}

    verdict = without(
        asked,
        "transactional_ids",
        lambda each: rights.may(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, each),
        row,
        "transaction_states",
    )
    return then(verdict, replacing("transaction_states", shown))


def list_transactions(asked: Asked) -> Verdict:
    def is_shown(transaction: Fields) -> bool:
        transactional_id = transaction["transactional_id"]
        return asked.rights.may(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id, quiet=True)

    return Passed(asked.request, keeping("transaction_states", is_shown))
