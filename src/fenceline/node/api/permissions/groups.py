"""The checks of APIs about groups and their offsets.

Rules: security.md A53 to A55 (keys 8 to 16, 28, 42, 47, 68, 69).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from fenceline.errors import ErrorCode
from fenceline.groups.messages import ALL_OPERATIONS_UNKNOWN
from fenceline.node.api.permissions.checks import (
    Asked,
    Check,
    Fields,
    Passed,
    Verdict,
    adding,
    keeping,
    partition_codes,
    replacing,
    split,
    then,
    with_fields,
    without,
)
from fenceline.node.api.permissions.refusals import message_of
from fenceline.wire.acl_codes import AclOperation, ResourceType
from fenceline.wire.entities import request_field

_GROUP: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
_TOPIC: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_TRANSACTION: Final = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
_FIRST_COMMIT_BY_ID: Final = 10
_FIRST_FETCH_BY_ID: Final = 10
_FIRST_FETCH_OF_GROUPS: Final = 8
_FIRST_FETCH_WITH_TOP_ERROR: Final = 2
_FIRST_COORDINATORS: Final = 4
_GROUP_KEY: Final = 0
_TRANSACTION_KEY: Final = 1
_SYNC_WITH_PROTOCOL: Final = 5


def _may(asked: Asked, operation: AclOperation, group: str) -> bool:
    return asked.rights.may(operation, ResourceType.GROUP, group)


# --- members ----------------------------------------------------------------------------------------------------------


def member(asked: Asked, **fields: Any) -> Verdict:
    """JoinGroup, Heartbeat, LeaveGroup, SyncGroup: READ on the group. `fields`: of a refused answer."""
    if _may(asked, AclOperation.READ, asked.request.group_id):
        return Passed(asked.request)
    return {"error_code": _GROUP, **fields}


def join_group(asked: Asked) -> Verdict:
    protocol_name = None if asked.version >= 7 else ""
    return member(asked, protocol_name=protocol_name, leader="", member_id="", members=())


def sync_group(asked: Asked) -> Verdict:
    """Missing protocol fields are an error of their own, which comes first."""
    request = asked.request
    if asked.version >= _SYNC_WITH_PROTOCOL and (request.protocol_type is None or request.protocol_name is None):
        return Passed(request)
    return member(asked, assignment=b"")


def consumer_group_heartbeat(asked: Asked) -> Verdict:
    """READ on the group, and DESCRIBE on every topic that it names. A regular expression matches the topics that the
    member's user may describe: see `groups.consumer.subscriptions`."""
    request = asked.request
    if not _may(asked, AclOperation.READ, request.group_id):
        return {"error_code": _GROUP, "error_message": message_of(_GROUP)}
    names = dict.fromkeys(request.subscribed_topic_names or ())
    if all(asked.rights.on_topic(AclOperation.DESCRIBE, name) for name in names):
        return Passed(request)
    return {"error_code": _TOPIC, "error_message": message_of(_TOPIC)}


# --- administration ---------------------------------------------------------------------------------------------------


def find_coordinator(asked: Asked) -> Verdict:
    """DESCRIBE on the group or the transactional id. Other types are an error of the handler's."""
    key_type = request_field(asked.request, "key_type", _GROUP_KEY)
    if key_type not in (_GROUP_KEY, _TRANSACTION_KEY):
        return Passed(asked.request)
    resource = ResourceType.GROUP if key_type == _GROUP_KEY else ResourceType.TRANSACTIONAL_ID
    code = _GROUP if key_type == _GROUP_KEY else _TRANSACTION

    def is_allowed(key: str) -> bool:
        return asked.rights.may(AclOperation.DESCRIBE, resource, key)

    if asked.version < _FIRST_COORDINATORS:
        if is_allowed(asked.request.key):
            return Passed(asked.request)
        return {"error_code": code, "error_message": message_of(code), "node_id": -1, "host": "", "port": -1}

    def row(key: str) -> Fields:
        return {"key": key, "error_code": code, "error_message": "", "node_id": -1, "host": "", "port": -1}

    return without(asked, "coordinator_keys", is_allowed, row, "coordinators")


def _with_operations(asked: Asked, groups: Fields) -> Fields:
    """The operations that the sender may do, where the handler lists all."""
    if groups["authorized_operations"] == ALL_OPERATIONS_UNKNOWN:
        return groups
    return {**groups, "authorized_operations": asked.rights.operations(ResourceType.GROUP, groups["group_id"])}


def describe_groups(asked: Asked) -> Verdict:
    def row(group: str) -> Fields:
        return {"group_id": group, "error_code": _GROUP, "authorized_operations": ALL_OPERATIONS_UNKNOWN}

    verdict = without(asked, "groups", lambda each: _may(asked, AclOperation.DESCRIBE, each), row, "groups")
    return then(verdict, replacing("groups", partial(_with_operations, asked)))


def consumer_group_describe(asked: Asked) -> Verdict:
    """DESCRIBE on the group, and on every topic that its members have: otherwise they are not shown."""
    rights = asked.rights

    def row(group: str) -> Fields:
        return {"group_id": group, "error_code": _GROUP, "authorized_operations": ALL_OPERATIONS_UNKNOWN}

    def is_shown(group: Fields) -> bool:
        assignments = (each[kind] for each in group.get("members", ()) for kind in ("assignment", "target_assignment"))
        topics = {topic["topic_name"] for assignment in assignments for topic in assignment["topic_partitions"]}
        return all(rights.describes(topic) for topic in topics)

    def shown(group: Fields) -> Fields:
        if not is_shown(group):
            message = "The group has described topic(s) that the client is not authorized to describe."
            group = {**group, "error_code": _TOPIC, "error_message": message, "members": ()}
        return _with_operations(asked, group)

    verdict = without(asked, "group_ids", lambda each: _may(asked, AclOperation.DESCRIBE, each), row, "groups")
    return then(verdict, replacing("groups", shown))


def list_groups(asked: Asked) -> Verdict:
    """Those that the sender may describe; with DESCRIBE on the cluster all."""
    rights = asked.rights
    if rights.on_cluster(AclOperation.DESCRIBE, quiet=True):
        return Passed(asked.request)

    def is_shown(group: Fields) -> bool:
        return rights.may(AclOperation.DESCRIBE, ResourceType.GROUP, group["group_id"], quiet=True)

    return Passed(asked.request, keeping("groups", is_shown))


def delete_groups(asked: Asked) -> Verdict:
    def row(group: str) -> Fields:
        return {"group_id": group, "error_code": _GROUP}

    return without(asked, "groups_names", lambda each: _may(asked, AclOperation.DELETE, each), row, "results")


# --- offsets ----------------------------------------------------------------------------------------------------------


def _topic_rows(topics: Any, code: ErrorCode) -> list[Fields]:
    return [_topic_row(topic, code) for topic in topics]


def _topic_row(topic: Any, code: ErrorCode) -> Fields:
    """Of an answer with one code for each partition."""
    known = {name: getattr(topic, name) for name in ("name", "topic_id") if hasattr(topic, name)}
    return {**known, "partitions": partition_codes(topic.partitions, code)}


def _readable(asked: Asked, *, by_id: bool) -> Callable[[Any], bool]:
    """Whether a topic of the request may be read, or is unknown, which the handler answers."""

    def is_allowed(topic: Any) -> bool:
        if not by_id:
            return asked.rights.may_read(topic.name)
        known = asked.image.topics_by_id.get(topic.topic_id)
        return known is None or asked.rights.may_read(known.name)

    return is_allowed


def offset_commit(asked: Asked) -> Verdict:
    if not _may(asked, AclOperation.READ, asked.request.group_id):
        return {"topics": _topic_rows(asked.request.topics, _GROUP)}
    is_allowed = _readable(asked, by_id=asked.version >= _FIRST_COMMIT_BY_ID)
    return without(asked, "topics", is_allowed, lambda topic: _topic_row(topic, _TOPIC), "topics")


def txn_offset_commit(asked: Asked) -> Verdict:
    request = asked.request
    if not asked.rights.may_write_as(request.transactional_id):
        return {"topics": _topic_rows(request.topics, _TRANSACTION)}
    if not _may(asked, AclOperation.READ, request.group_id):
        return {"topics": _topic_rows(request.topics, _GROUP)}
    return without(asked, "topics", _readable(asked, by_id=False), lambda topic: _topic_row(topic, _TOPIC), "topics")


def offset_delete(asked: Asked) -> Verdict:
    if not _may(asked, AclOperation.DELETE, asked.request.group_id):
        return {"error_code": _GROUP, "topics": ()}
    allowed, refused = split(asked.request.topics, _readable(asked, by_id=False))
    rows = _topic_rows(refused, _TOPIC)

    def complete(answer: Fields) -> Fields:
        return answer if answer["error_code"] else adding("topics", rows)(answer)

    return Passed(with_fields(asked.request, topics=allowed), complete)


def offset_fetch(asked: Asked) -> Verdict:
    """DESCRIBE on the group and on the topics; without names, only topics that the sender may describe are shown."""
    if asked.version < _FIRST_FETCH_OF_GROUPS:
        return _fetch_of_one(asked)
    allowed, refused = split(asked.request.groups, lambda each: _may(asked, AclOperation.DESCRIBE, each.group_id))
    rows = [{"group_id": each.group_id, "error_code": _GROUP, "topics": ()} for each in refused]
    if not allowed:
        return {"groups": rows}
    checked = [_fetch_of_group(asked, group) for group in allowed]

    def complete(answer: Fields) -> Fields:
        fetched = [add(group) for (_, add), group in zip(checked, answer["groups"], strict=True)]
        return {**answer, "groups": [*fetched, *rows]}

    return Passed(with_fields(asked.request, groups=tuple(group for group, _ in checked)), complete)


def _fetch_of_one(asked: Asked) -> Verdict:
    request = asked.request
    if not _may(asked, AclOperation.DESCRIBE, request.group_id):
        if asked.version >= _FIRST_FETCH_WITH_TOP_ERROR:
            return {"error_code": _GROUP, "topics": ()}
        return {"topics": [_fetch_row(topic, _GROUP) for topic in request.topics]}
    return Passed(*_fetch_of_group(asked, request))


def _fetch_of_group(asked: Asked, group: Any) -> tuple[Any, Callable[[Fields], Fields]]:
    """The request of one group without refused topics, and what completes its answer."""
    rights, image = asked.rights, asked.image
    by_id = asked.version >= _FIRST_FETCH_BY_ID
    if group.topics is None:

        def is_shown(topic: Fields) -> bool:
            known = image.topics_by_id.get(topic["topic_id"]) if by_id else None
            name = known.name if known is not None else topic.get("name", "")
            return rights.describes(name)

        return group, keeping("topics", is_shown)

    def is_allowed(topic: Any) -> bool:
        known = image.topics_by_id.get(topic.topic_id) if by_id else None
        if by_id and known is None:
            return True
        return rights.on_topic(AclOperation.DESCRIBE, topic.name if known is None else known.name)

    allowed, refused = split(group.topics, is_allowed)
    rows = [_fetch_row(topic, _TOPIC) for topic in refused]

    def add(answer: Fields) -> Fields:
        return answer if answer.get("error_code") else adding("topics", rows)(answer)

    return with_fields(group, topics=allowed), add


def _fetch_row(topic: Any, code: ErrorCode) -> Fields:
    known = {name: getattr(topic, name) for name in ("name", "topic_id") if hasattr(topic, name)}
    partitions = [
        {
            "partition_index": index,
            "committed_offset": -1,
            "committed_leader_epoch": -1,
            "metadata": "",
            "error_code": code,
        }
        for index in topic.partition_indexes
    ]
    return {**known, "partitions": partitions}


HEARTBEAT: Final[Check] = member
LEAVE_GROUP: Final[Check] = member
