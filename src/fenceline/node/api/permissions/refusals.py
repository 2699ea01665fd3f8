"""The answer to a request that is refused as a whole: Kafka's `getErrorResponse`, with the code in every part.

Owns the form of that answer for APIs whose response has more than a top-level error code. Never decides who is refused.

Rules: security.md A53 (a denied C is 31 in every part).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from fenceline.errors import ErrorCode
from fenceline.node.api.permissions.checks import Fields
from fenceline.wire.apis import ApiKey

_MESSAGES: Final = {
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "Delegation Token authorization failed.",
}


def message_of(code: ErrorCode) -> str:
    """What Kafka says with this code."""
    return _MESSAGES[code]


def refusal(key: ApiKey, request: Any, code: ErrorCode) -> Fields:
    """The answer that refuses the whole request."""
    top: Fields = {"error_code": code, "error_message": message_of(code)}
    parts = _PARTS.get(key)
    return top if parts is None else {**top, **parts(request, code)}


def _create_acls(request: Any, code: ErrorCode) -> Fields:
    row = {"error_code": code, "error_message": message_of(code)}
    return {"results": [row for _ in request.creations]}


def _delete_acls(request: Any, code: ErrorCode) -> Fields:
    row = {"error_code": code, "error_message": message_of(code), "matching_acls": ()}
    return {"filter_results": [row for _ in request.filters]}


def _alter_replica_log_dirs(request: Any, code: ErrorCode) -> Fields:
    by_topic: dict[str, list[Fields]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            rows = by_topic.setdefault(topic.name, [])
            rows += [{"partition_index": index, "error_code": code} for index in topic.partitions]
    return {"results": [{"topic_name": name, "partitions": rows} for name, rows in by_topic.items()]}


def _elect_leaders(request: Any, code: ErrorCode) -> Fields:
    def row(index: int) -> Fields:
        return {"partition_id": index, "error_code": code, "error_message": message_of(code)}

    return {
        "replica_election_results": [
            {"topic": topic.topic, "partition_result": [row(index) for index in topic.partitions]}
            for topic in request.topic_partitions or ()
        ]
    }


def _alter_reassignments(request: Any, code: ErrorCode) -> Fields:
    def row(index: int) -> Fields:
        return {"partition_index": index, "error_code": code, "error_message": message_of(code)}

    return {
        "responses": [
            {"name": topic.name, "partitions": [row(each.partition_index) for each in topic.partitions]}
            for topic in request.topics
        ]
    }


def _alter_quotas(request: Any, code: ErrorCode) -> Fields:
    return {
        "entries": [
            {
                "error_code": code,
                "error_message": message_of(code),
                "entity": [{"entity_type": part.entity_type, "entity_name": part.entity_name} for part in entry.entity],
            }
            for entry in request.entries
        ]
    }


def _alter_scram(request: Any, code: ErrorCode) -> Fields:
    users = dict.fromkeys([each.name for each in request.deletions] + [each.name for each in request.upsertions])
    return {"results": [{"user": user, "error_code": code, "error_message": message_of(code)} for user in users]}


def _describe_scram(request: Any, code: ErrorCode) -> Fields:
    row = {"user": "", "error_code": code, "error_message": message_of(code), "credential_infos": ()}
    return {"results": [row for _ in request.users or ()]}


def _write_markers(request: Any, code: ErrorCode) -> Fields:
    return {
        "markers": [
            {
                "producer_id": marker.producer_id,
                "topics": [
                    {
                        "name": topic.name,
                        "partitions": [
                            {"partition_index": index, "error_code": code} for index in topic.partition_indexes
                        ],
                    }
                    for topic in marker.topics
                ],
            }
            for marker in request.markers
        ]
    }


_PARTS: Final[Mapping[ApiKey, Callable[[Any, ErrorCode], Fields]]] = {
    ApiKey.CREATE_ACLS: _create_acls,
    ApiKey.DELETE_ACLS: _delete_acls,
    ApiKey.ALTER_REPLICA_LOG_DIRS: _alter_replica_log_dirs,
    ApiKey.ELECT_LEADERS: _elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _alter_reassignments,
    ApiKey.ALTER_CLIENT_QUOTAS: _alter_quotas,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _describe_scram,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _alter_scram,
    ApiKey.WRITE_TXN_MARKERS: _write_markers,
}
