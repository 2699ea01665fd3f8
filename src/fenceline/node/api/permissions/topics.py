"""The checks of APIs about topics and their partitions.

Rules: security.md A53 to A55 (keys 2, 19, 20, 21, 23, 37, 61).
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from fenceline.controller.topic_names import name_fault
from fenceline.errors import ErrorCode
from fenceline.ids import METADATA_TOPIC, ZERO_UUID
from fenceline.node.api.permissions.checks import (
    Asked,
    Fields,
    Passed,
    Verdict,
    adding,
    partition_codes,
    replacing,
    split,
    then,
    with_fields,
    without,
)
from fenceline.node.api.permissions.refusals import message_of
from fenceline.wire.acl_codes import AclOperation

_DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_DENIED_MESSAGE: Final = message_of(_DENIED)
_FIRST_WITH_CONFIGS: Final = 5
_FIRST_WITH_TOPIC_IDS: Final = 6


def list_offsets(asked: Asked) -> Verdict:
    def row(topic: Any) -> Fields:
        return {"name": topic.name, "partitions": partition_codes(topic.partitions, _DENIED)}

    return without(asked, "topics", lambda each: asked.rights.on_topic(AclOperation.DESCRIBE, each.name), row, "topics")


def offset_for_leader_epoch(asked: Asked) -> Verdict:
    """Brokers ask about any topic."""
    rights = asked.rights
    if rights.on_cluster(AclOperation.CLUSTER_ACTION, quiet=True):
        return Passed(asked.request)

    def row(topic: Any) -> Fields:
        return {"topic": topic.topic, "partitions": partition_codes(topic.partitions, _DENIED, "partition")}

    return without(asked, "topics", lambda each: rights.on_topic(AclOperation.DESCRIBE, each.topic), row, "topics")


def delete_records(asked: Asked) -> Verdict:
    def row(topic: Any) -> Fields:
        rows = partition_codes(topic.partitions, _DENIED)
        return {"name": topic.name, "partitions": [{**each, "low_watermark": -1} for each in rows]}

    return without(asked, "topics", lambda each: asked.rights.on_topic(AclOperation.DELETE, each.name), row, "topics")


def describe_producers(asked: Asked) -> Verdict:
    def is_allowed(topic: Any) -> bool:
        return name_fault(topic.name) is not None or asked.rights.may_read(topic.name)

    def row(topic: Any) -> Fields:
        codes = [
            {"partition_index": index, "error_code": _DENIED, "error_message": _DENIED_MESSAGE, "active_producers": ()}
            for index in topic.partition_indexes
        ]
        return {"name": topic.name, "partitions": codes}

    return without(asked, "topics", is_allowed, row, "topics")


def create_topics(asked: Asked) -> Verdict:
    """CREATE on the cluster or on the topic. The settings of a new topic are shown with DESCRIBE_CONFIGS on it."""
    rights = asked.rights
    names = Counter(topic.name for topic in asked.request.topics)
    may_create_any = rights.on_cluster(AclOperation.CREATE, quiet=True)

    def is_allowed(topic: Any) -> bool:
        is_refused_anyway = names[topic.name] > 1 or topic.name == METADATA_TOPIC
        return may_create_any or is_refused_anyway or rights.on_topic(AclOperation.CREATE, topic.name)

    def row(topic: Any) -> Fields:
        return {
            "name": topic.name,
            "error_code": _DENIED,
            "error_message": _DENIED_MESSAGE,
            "topic_config_error_code": ErrorCode.NONE,
            "num_partitions": -1,
            "replication_factor": -1,
            "configs": (),
        }

    def hide_configs(created: Fields) -> Fields:
        failed = created["error_code"] is not ErrorCode.NONE
        if failed or rights.on_topic(AclOperation.DESCRIBE_CONFIGS, created["name"], quiet=True):
            return created
        hidden = {"topic_config_error_code": _DENIED, "num_partitions": -1, "replication_factor": -1, "configs": ()}
        return {**created, **hidden}

    verdict = without(asked, "topics", is_allowed, row, "topics")
    if asked.version < _FIRST_WITH_CONFIGS:
        return verdict
    return then(verdict, replacing("topics", hide_configs))


def delete_topics(asked: Asked) -> Verdict:
    """DELETE on the cluster or on the topic. Who may not see a topic does not learn whether it exists."""
    rights, image = asked.rights, asked.image
    if rights.on_cluster(AclOperation.DELETE, quiet=True):
        return Passed(asked.request)

    def may_delete(name: str | None, topic_id: Any) -> bool:
        if name is None:
            known = image.topics_by_id.get(topic_id)
            return known is None or rights.on_topic(AclOperation.DELETE, known.name)
        if not rights.on_topic(AclOperation.DESCRIBE, name):
            return False
        return name not in image.topics_by_name or rights.on_topic(AclOperation.DELETE, name)

    def row(name: str | None, topic_id: Any) -> Fields:
        if name is None:
            found = image.topics_by_id[topic_id].name
            name = found if rights.describes(found) else None
        return {"name": name, "topic_id": topic_id, "error_code": _DENIED, "error_message": _DENIED_MESSAGE}

    if asked.version < _FIRST_WITH_TOPIC_IDS:
        return without(
            asked, "topic_names", lambda name: may_delete(name, ZERO_UUID), lambda name: row(name, None), "responses"
        )
    return without(
        asked,
        "topics",
        lambda each: may_delete(each.name, each.topic_id),
        lambda each: row(each.name, each.topic_id),
        "responses",
    )


def create_partitions(asked: Asked) -> Verdict:
    names = Counter(topic.name for topic in asked.request.topics)
    allowed, refused = split(
        asked.request.topics,
        lambda each: names[each.name] > 1 or asked.rights.on_topic(AclOperation.ALTER, each.name),
    )
    if not refused:
        return Passed(asked.request)
    rows = [{"name": each.name, "error_code": _DENIED, "error_message": _DENIED_MESSAGE} for each in refused]
    if not allowed:
        return {"results": rows}
    return Passed(with_fields(asked.request, topics=allowed), adding("results", rows))
