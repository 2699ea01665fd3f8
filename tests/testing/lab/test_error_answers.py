"""Answers with errors: every API has one, which names what the request named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from fenceline.errors import ErrorCode
from fenceline.testing.lab.nodes.error_answers import error_answer, with_error, with_throttle_time
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import (
    Entity,
    message_schema,
    millis,
    read_response,
    write_request,
    write_response,
)

CODE = ErrorCode.KAFKA_STORAGE_ERROR
TOPIC_ID = UUID(int=7)

REQUESTS: list[tuple[ApiKey, int, dict[str, Any], set[str | int]]] = [
    (
        ApiKey.PRODUCE,
        9,
        {"acks": -1, "topic_data": [{"name": "t", "partition_data": [{"index": 3, "records": b""}, {"index": 5}]}]},
        {"t", 3, 5},
    ),
    (ApiKey.FETCH, 11, {"topics": [{"topic": "t", "partitions": [{"partition": 3}]}]}, {"t", 3}),
    (ApiKey.LIST_OFFSETS, 7, {"topics": [{"name": "t", "partitions": [{"partition_index": 3}]}]}, {"t", 3}),
    (
        ApiKey.OFFSET_COMMIT,
        8,
        {"group_id": "g", "topics": [{"name": "t", "partitions": [{"partition_index": 3}]}]},
        {"t", 3},
    ),
    (
        ApiKey.OFFSET_FETCH,
        8,
        {"groups": [{"group_id": "g", "topics": [{"name": "t", "partition_indexes": [3, 5]}]}]},
        {"g", "t", 3, 5},
    ),
    (ApiKey.OFFSET_FETCH, 5, {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [3]}]}, {"t", 3}),
    (ApiKey.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["g", "h"]}, {"g", "h"}),
    (ApiKey.JOIN_GROUP, 7, {"group_id": "g", "member_id": "m"}, {"m"}),
    (ApiKey.HEARTBEAT, 4, {"group_id": "g"}, set()),
    (ApiKey.SYNC_GROUP, 5, {"group_id": "g"}, set()),
    (ApiKey.LEAVE_GROUP, 5, {"group_id": "g", "members": [{"member_id": "m"}]}, {"m"}),
    (ApiKey.DESCRIBE_GROUPS, 5, {"groups": ["g"]}, {"g"}),
    (ApiKey.DELETE_GROUPS, 2, {"groups_names": ["g"]}, {"g"}),
    (ApiKey.INIT_PRODUCER_ID, 4, {"transactional_id": "x"}, set()),
    (
        ApiKey.ADD_PARTITIONS_TO_TXN,
        3,
        {"v3_and_below_topics": [{"name": "t", "partitions": [3]}]},
        {"t", 3},
    ),
    (ApiKey.END_TXN, 3, {"transactional_id": "x"}, set()),
    (
        ApiKey.TXN_OFFSET_COMMIT,
        3,
        {"group_id": "g", "topics": [{"name": "t", "partitions": [{"partition_index": 3}]}]},
        {"t", 3},
    ),
    (ApiKey.CREATE_TOPICS, 7, {"topics": [{"name": "t"}]}, {"t"}),
    (ApiKey.DELETE_RECORDS, 2, {"topics": [{"name": "t", "partitions": [{"partition_index": 3}]}]}, {"t", 3}),
    (
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        4,
        {"topics": [{"topic": "t", "partitions": [{"partition": 3}]}]},
        {"t", 3},
    ),
    (ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, {"group_id": "g"}, set()),
    (ApiKey.DESCRIBE_CONFIGS, 4, {"resources": [{"resource_type": 2, "resource_name": "t"}]}, {"t"}),
    (ApiKey.API_VERSIONS, 3, {}, set()),
]


def leaves(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Entity):
        for name in value.__slots__:
            part = getattr(value, name)
            if isinstance(part, Entity | tuple):
                yield from leaves(part)
            else:
                yield name, part
    elif isinstance(value, tuple):
        for each in value:
            yield from leaves(each)


@pytest.mark.parametrize(
    ("api", "version", "fields", "named"), REQUESTS, ids=[f"{api.name}-{version}" for api, version, _, _ in REQUESTS]
)
def test_every_error_code_is_set_and_what_was_named_is_named(
    api: ApiKey, version: int, fields: dict[str, Any], named: set[str | int]
) -> None:
    answer = read_response(api, version, error_answer(api, version, write_request(api, version, fields), CODE))
    found = list(leaves(answer))
    codes = [value for name, value in found if name.endswith("error_code") and name != "topic_config_error_code"]
    assert codes
    assert set(codes) == {CODE}
    assert named <= {value for _, value in found}


def test_topics_are_named_by_id() -> None:
    request = {"topics": [{"topic_id": TOPIC_ID, "partitions": [{"partition": 3}]}]}
    answer = read_response(
        ApiKey.FETCH, 13, error_answer(ApiKey.FETCH, 13, write_request(ApiKey.FETCH, 13, request), CODE)
    )
    assert answer.responses[0].topic_id == TOPIC_ID
    assert answer.responses[0].partitions[0].error_code is CODE
    assert answer.error_code is CODE


def test_an_answer_is_changed() -> None:
    fields = {
        "brokers": [{"node_id": 1, "host": "h", "port": 9}],
        "topics": [{"name": "t", "topic_id": TOPIC_ID, "partitions": [{"partition_index": 3, "leader_id": 1}]}],
    }
    body = with_error(ApiKey.METADATA, 12, write_response(ApiKey.METADATA, 12, fields), CODE)
    answer = read_response(ApiKey.METADATA, 12, body)
    assert (answer.brokers[0].host, answer.topics[0].name, answer.topics[0].topic_id) == ("h", "t", TOPIC_ID)
    assert (answer.topics[0].error_code, answer.topics[0].partitions[0].error_code) == (CODE, CODE)


@pytest.mark.parametrize(("api", "version"), [(ApiKey.PRODUCE, 9), (ApiKey.METADATA, 12), (ApiKey.FETCH, 11)])
def test_a_throttle_time_is_put_in(api: ApiKey, version: int) -> None:
    head = b"\0\0\0\0" + b"correlation"
    body = write_response(api, version, {})
    parts = with_throttle_time(api, version, [head, body], len(head), 250)
    content = b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]
    answer = read_response(api, version, content[len(head) :])
    assert millis(answer.throttle_time) == 250
    if api is ApiKey.PRODUCE:
        assert int.from_bytes(content[:4], "big") == len(content) - 4


def test_a_version_without_a_throttle_time_is_left_alone() -> None:
    version = message_schema(ApiKey.SYNC_GROUP, is_request=False).versions.low
    body = write_response(ApiKey.SYNC_GROUP, version, {})
    assert with_throttle_time(ApiKey.SYNC_GROUP, version, [b"head", body], 4, 250) == [b"head", body]
