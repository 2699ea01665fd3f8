"""Answers on the data path that deliberately differ from Kafka (docs/protocol.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fenceline.errors import ErrorCode
from fenceline.records.batch import iter_headers
from fenceline.testing.node import EmbeddedNode
from fenceline.wire.apis import ApiKey
from tests.support.data_session import DataSession


@pytest.fixture
def client(node: EmbeddedNode) -> Iterator[DataSession]:
    with DataSession(node.port) as session:
        session.create("d")
        yield session


def _produced(client: DataSession, version: int, records: bytes | None, **more: Any) -> Any:
    answer = client.ask(ApiKey.PRODUCE, version, client.produce("d", 0, records, **more))
    return answer.responses[0].partition_responses[0]


@pytest.mark.parametrize("version", [3, 8, 9, 13])
def test_null_records_are_rejected(client: DataSession, version: int) -> None:
    assert _produced(client, version, None).error_code == ErrorCode.INVALID_RECORD
    assert _produced(client, version, client.batch()).error_code == 0


@pytest.mark.parametrize("version", [3, 9, 13])
def test_transactional_records_need_an_id_and_a_coordinator(client: DataSession, version: int) -> None:
    """The coordinator's topic does not exist."""
    records = client.batch(producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    without_id = _produced(client, version, records)
    assert without_id.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert _produced(client, version, records, transactional_id="t").error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert _produced(client, version, client.batch(), transactional_id="t").error_code == ErrorCode.NONE


def test_offset_of_the_largest_timestamp(client: DataSession) -> None:
    for _ in range(2):
        client.produced("d", 0, client.batch(3))
    rows = [{"name": client.name("d"), "partitions": [{"partition_index": 0, "offset": 3}]}]
    assert (
        client.ask(ApiKey.DELETE_RECORDS, 2, {"topics": rows, "timeout": 60_000}).topics[0].partitions[0].error_code
        == 0
    )
    asked = [{"partition_index": 0, "timestamp": -3}]
    topics = [{"name": client.name("d"), "partitions": asked}]
    found = client.ask(ApiKey.LIST_OFFSETS, 11, {"replica_id": -1, "topics": topics}).topics[0].partitions[0]
    assert (found.error_code, found.offset) == (0, 5)


@pytest.mark.parametrize("limit", [1, 100, 400, 700, 5000])
def test_fetch_returns_complete_batches(client: DataSession, limit: int) -> None:
    for _ in range(3):
        client.produced("d", 0, client.batch(1, size_bytes=200))
    fields = client.fetch([("d", 0, 0, {"partition_max_bytes": limit})])
    records = client.ask(ApiKey.FETCH, 12, fields).responses[0].partitions[0].records
    sizes = [header.size_bytes for header in iter_headers(records)]
    assert sum(sizes) == len(records)
    assert sum(sizes) <= limit or len(sizes) == 1


def test_delete_records_of_a_missing_internal_topic(node: EmbeddedNode) -> None:
    """Kafka looks up the topic first; error 17 requires that it exists (`DELETE_RECORDS`)."""
    rows = [{"name": "__consumer_offsets", "partitions": [{"partition_index": 0, "offset": 0}]}]
    with DataSession(node.port) as session:
        answer = session.ask(ApiKey.DELETE_RECORDS, 2, {"topics": rows, "timeout": 60_000})
    assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
