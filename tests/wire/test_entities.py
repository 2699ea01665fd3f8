"""The interface of the compiled codecs, as handlers and the client use it."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from fenceline.errors import ErrorCode, InternalError
from fenceline.wire import entities
from fenceline.wire.apis import ApiKey
from fenceline.wire.errors import MalformedRequest


def test_scalars_with_their_own_types() -> None:
    fields = {
        "throttle_time": timedelta(milliseconds=5),
        "topics": [{"error_code": ErrorCode.UNKNOWN_TOPIC_ID, "name": None, "topic_id": UUID(int=7)}, {"name": "x"}],
    }
    body = entities.write_response(ApiKey.METADATA, 13, fields)
    assert body == entities.write_response(
        ApiKey.METADATA, 13, {**fields, "throttle_time": 5, "topics": tuple(fields["topics"])}
    )
    read = entities.read_response(ApiKey.METADATA, 13, body)
    assert entities.millis(read.throttle_time) == 5
    assert [t.name for t in read.topics] == [None, "x"]
    assert [t.topic_id for t in read.topics] == [UUID(int=7), None]
    assert read.topics[0].error_code is ErrorCode.UNKNOWN_TOPIC_ID
    assert read.topics[0].topic_authorized_operations == -(2**31)
    assert read.cluster_id is None
    assert read.brokers == ()


def test_uuids_as_raw_bytes() -> None:
    raw = {"topics": [{"topic_id": UUID(int=7).bytes}]}
    assert entities.read_response(ApiKey.METADATA, 13, entities.write_response(ApiKey.METADATA, 13, raw)).topics[
        0
    ].topic_id == UUID(int=7)


def test_times() -> None:
    at = datetime(2024, 5, 6, 7, 8, 9, 10_000, tzinfo=UTC)
    for given in (at, int(at.timestamp() * 1000)):
        fields = {"responses": [{"partition_responses": [{"log_append_time": given}]}]}
        body = entities.write_response(ApiKey.PRODUCE, 9, fields)
        (topic,) = entities.read_response(ApiKey.PRODUCE, 9, body).responses
        assert topic.partition_responses[0].log_append_time == at


def test_error_codes_from_the_future_stay_numbers() -> None:
    body = entities.write_response(ApiKey.METADATA, 13, {"error_code": 999})
    assert entities.read_response(ApiKey.METADATA, 13, body).error_code == 999


def test_entities_have_the_fields_of_their_version() -> None:
    old = entities.read_request(ApiKey.METADATA, 3, bytes.fromhex("ffffffff"))
    assert old.topics is None
    assert not hasattr(old, "allow_auto_topic_creation")
    assert entities.request_field(old, "allow_auto_topic_creation", "dflt") == "dflt"
    new = entities.read_request(ApiKey.METADATA, 12, bytes.fromhex("00 01 00 00"))
    assert new.allow_auto_topic_creation is True
    assert new != old
    assert new == entities.read_request(ApiKey.METADATA, 12, memoryview(bytearray.fromhex("00 01 00 00")))
    assert repr(new).startswith("MetadataRequest(topics=None, allow_auto_topic_creation=True")


def test_missing_fields_have_the_default_of_the_schema() -> None:
    body = entities.write_request(ApiKey.METADATA, 12, {})
    assert body == bytes.fromhex("00 01 00 00")
    cursor = entities.write_response(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, {"next_cursor": {"topic_name": "t"}})
    read = entities.read_response(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, cursor)
    assert (read.next_cursor.topic_name, read.next_cursor.partition_index) == ("t", 0)
    none = entities.write_response(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, {})
    assert entities.read_response(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, none).next_cursor is None


def test_misspelt_fields_are_detected() -> None:
    fields = {"throttle_time_ms": 1, "topics": [{"name": "x", "partitions": [{"leader": 1}]}], "cluster_id": None}
    found = entities.unknown_fields(ApiKey.METADATA, fields)
    assert found == ["throttle_time_ms", "topics.partitions.leader"]


@pytest.mark.parametrize(
    "fields",
    [{"topics": 5}, {"topics": None}, {"controller_id": 2**31}, {"brokers": [{"host": None}]}, {"brokers": ["x"]}],
)
def test_values_out_of_range_are_an_internal_error(fields: dict) -> None:
    with pytest.raises(InternalError, match="METADATA response v13"):
        entities.write_response(ApiKey.METADATA, 13, fields)


def test_unknown_versions_are_rejected() -> None:
    for key, version in ((ApiKey.METADATA, 14), (ApiKey.OFFSET_COMMIT, 1), (4, 0), (999, 0)):
        with pytest.raises(MalformedRequest):
            entities.read_request(key, version, b"\0" * 100)
        with pytest.raises(InternalError):
            entities.write_response(key, version, {})


@pytest.mark.parametrize("text", ["", "ffffffff0f 00 00 00", "02", "03 00", "00 01 00 01 00 05 aa"])
def test_malformed_requests_are_rejected(text: str) -> None:
    with pytest.raises(MalformedRequest):
        entities.read_request(ApiKey.METADATA, 12, bytes.fromhex(text))


def test_a_count_larger_than_any_memory() -> None:
    """kio's native reader reserves memory for the count, and aborts the process."""
    for body in (bytes.fromhex("7fffffff 00000000"), bytes.fromhex("0001 61 7fffffff")):
        with pytest.raises(MalformedRequest):
            entities.read_request(ApiKey.METADATA, 8, body)


def test_start_does_not_need_kio() -> None:
    """kio's primitives take 80 ms to import, and 380 ms where hypothesis is installed."""
    program = (
        "import sys; from fenceline.wire import entities, fetch, produce, frame;"
        "entities.write_response(3, 13, {}); entities.read_request(18, 4, bytes([1, 1, 0]));"
        "print([m for m in sys.modules if m.split('.')[0] in ('kio', 'hypothesis')])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"
