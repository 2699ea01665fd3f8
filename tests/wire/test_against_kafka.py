"""Apache Kafka as the peer, and its own logs as input: requests in every version, and records encoded to identical
bytes.
"""

from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from fenceline.errors import ErrorCode
from fenceline.ids import ZERO_UUID
from fenceline.metadata import records as metadata_records
from fenceline.records.build import build_batch
from fenceline.records.decode import decode_all
from fenceline.testing.apache_kafka import ApacheKafka, small_kafka
from fenceline.wire import entities, fetch, frame, produce
from fenceline.wire.apis import ApiKey
from fenceline.wire.message import MessageCodec, codec, kafka
from fenceline.wire.primitives import Buffer, read_uvarint
from tests.wire import kio_schemas

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]


@dataclasses.dataclass(frozen=True, slots=True)
class OffsetCommitKey:
    group: str = kafka("string", versions="0+")
    topic: str = kafka("string", versions="0+")
    partition: int = kafka("int32", versions="0+")


@dataclasses.dataclass(frozen=True, slots=True)
class OffsetCommitValue:
    offset: int = kafka("int64", versions="0+")
    leader_epoch: int = kafka("int32", versions="3+", default=-1)
    metadata: str = kafka("string", versions="0+", default="")
    commit_timestamp: int = kafka("int64", versions="0+", default=0)
    expire_timestamp: int = kafka("int64", versions="1", default=-1)
    topic_id: UUID = kafka("uuid", versions="4+", tag=0, default=ZERO_UUID)  # noqa: RUF009


class Peer:
    """One blocking connection."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._file = self._socket.makefile("rb")
        self._correlation_id = 0

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def exchange(
        self, key: ApiKey, version: int, body: Sequence[Buffer] | bytes, client_id: str | None = "t"
    ) -> memoryview:
        """The body of the response. Raises EOFError when the peer disconnects."""
        self._correlation_id += 1
        self._socket.sendall(b"".join(frame.encode_request_frame(key, version, self._correlation_id, client_id, body)))
        size = int.from_bytes(self._read(4), "big")
        answer = bytearray(self._read(size))
        correlation_id, position = frame.parse_response_header(key, version, answer)
        assert correlation_id == self._correlation_id
        return memoryview(answer)[position:]

    def call(self, key: ApiKey, version: int, fields: dict[str, Any]) -> Any:
        return entities.read_response(
            key, version, self.exchange(key, version, entities.write_request(key, version, fields))
        )

    def _read(self, size: int) -> bytes:
        found = self._file.read(size)
        if len(found) < size:
            raise EOFError
        return found


@pytest.fixture(scope="module")
def kafka_node() -> Iterator[ApacheKafka]:
    with small_kafka(overrides={"num.partitions": "2", "offsets.topic.num.partitions": "1"}) as started:
        yield started


@pytest.fixture
def peer(kafka_node: ApacheKafka) -> Iterator[Peer]:
    opened = Peer(kafka_node.port)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def topic_id(kafka_node: ApacheKafka) -> UUID:
    peer = Peer(kafka_node.port)
    fields = {"topics": [{"name": "wire", "num_partitions": 2, "replication_factor": 1}], "timeout": 20_000}
    (created,) = peer.call(ApiKey.CREATE_TOPICS, 7, fields).topics
    assert created.error_code is ErrorCode.NONE
    _wait_for_leaders(peer)
    peer.close()
    found = created.topic_id
    assert isinstance(found, UUID)
    return found


def _wait_for_leaders(peer: Peer) -> None:
    """A topic is created before its leaders know about their role."""
    partitions = [{"partition_index": i, "current_leader_epoch": -1, "timestamp": -1} for i in range(2)]
    fields = {"replica_id": -1, "topics": [{"name": "wire", "partitions": partitions}]}
    deadline_s = time.monotonic() + 60
    while any(p.error_code for p in peer.call(ApiKey.LIST_OFFSETS, 10, fields).topics[0].partitions):
        assert time.monotonic() < deadline_s, "no leader within 60 s"
        time.sleep(0.05)


def test_api_versions_in_every_version(peer: Peer) -> None:
    for version in range(5):
        fields = {"client_software_name": "fenceline", "client_software_version": "1"}
        answer = peer.call(ApiKey.API_VERSIONS, version, fields)
        offered = {k.api_key: (k.min_version, k.max_version) for k in answer.api_keys}
        assert offered[ApiKey.FETCH] == (4, 18)
        assert offered[ApiKey.PRODUCE] == (0, 13)


def test_every_version_offered_by_kafka_is_known(peer: Peer) -> None:
    """And the reverse: this would show versions of Kafka 4.3.1 that kio does not know."""
    for offered in peer.call(
        ApiKey.API_VERSIONS, 4, {"client_software_name": "f", "client_software_version": "1"}
    ).api_keys:
        for is_request in (True, False) if offered.api_key in kio_schemas.schema_keys() else ():
            known = entities._schema(offered.api_key, is_request).versions
            assert known.high >= offered.max_version, ApiKey(offered.api_key).name
            assert known.low <= offered.min_version or offered.api_key == ApiKey.PRODUCE


def test_api_versions_from_the_future(peer: Peer) -> None:
    body = peer.exchange(ApiKey.API_VERSIONS, 0, b"")
    assert entities.read_response(ApiKey.API_VERSIONS, 0, body).error_code is ErrorCode.NONE
    peer._socket.sendall(bytes.fromhex("0000000d 0012 0063 00000009 0001 74 00 00"))
    answer = peer._read(int.from_bytes(peer._read(4), "big"))
    assert answer[:4] == b"\0\0\0\x09"
    refusal = entities.read_response(ApiKey.API_VERSIONS, 0, answer[4:])
    assert refusal.error_code is ErrorCode.UNSUPPORTED_VERSION


def test_produce_and_fetch_in_every_version(peer: Peer, topic_id: UUID) -> None:
    for version in range(produce.MIN_VERSION, produce.MAX_VERSION + 1):
        batch = build_batch([(1_700_000_000_000 + version, b"key", b"value" * version, [])])
        for size in (1, 2):  # partitions
            parts = [produce.PartitionRecords("wire", topic_id.bytes, i, memoryview(batch)) for i in range(size)]
            request = produce.ProduceRequest(None, -1, 20_000, parts)
            body = peer.exchange(ApiKey.PRODUCE, version, produce.encode_request(version, request))
            answer = produce.parse_response(version, body)
            assert sorted((r.index, r.error_code) for r in answer.results) == [(i, 0) for i in range(size)]
            assert answer.results[0].base_offset >= 0
            assert produce.encode_response(version, answer) == bytes(body)
    unknown = produce.PartitionRecords("absent", UUID(int=99).bytes, 0, memoryview(b""))
    for version in range(produce.MIN_VERSION, produce.MAX_VERSION + 1):
        request = produce.ProduceRequest(None, 1, 20_000, [unknown])
        body = peer.exchange(ApiKey.PRODUCE, version, produce.encode_request(version, request))
        answer = produce.parse_response(version, body)
        code = ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert answer.results[0].error_code == code
        assert produce.encode_response(version, answer) == bytes(body)
    for version in range(fetch.MIN_VERSION, fetch.MAX_VERSION + 1):
        wanted = [fetch.FetchPartition("wire", topic_id.bytes, i, offset, 1 << 20) for i, offset in ((0, 0), (1, 999))]
        request_ = fetch.FetchRequest(None, -1, -1, 100, 1, 1 << 20, 1, 0, -1, wanted, [], "")
        body = peer.exchange(ApiKey.FETCH, version, fetch.encode_request(version, request_))
        fetched = fetch.parse_response(version, body)
        by_index = {p.index: p for p in fetched.partitions}
        assert by_index[1].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert by_index[0].error_code == 0
        assert by_index[0].records is not None
        assert next(iter(decode_all(by_index[0].records)))[1][0].key == b"key"
        assert b"".join(fetch.encode_response(version, fetched)) == bytes(body)


def test_a_rejected_batch_has_an_error_message(peer: Peer, topic_id: UUID) -> None:
    batch = build_batch([(1_700_000_000_000, b"k", b"v", [])])
    batch[-1] ^= 1
    for version in range(8, 14):
        parts = [produce.PartitionRecords("wire", topic_id.bytes, 0, memoryview(batch))]
        request = produce.ProduceRequest(None, -1, 20_000, parts)
        body = peer.exchange(ApiKey.PRODUCE, version, produce.encode_request(version, request))
        answer = produce.parse_response(version, body)
        assert answer.results[0].error_code == ErrorCode.CORRUPT_MESSAGE
        assert produce.encode_response(version, answer) == bytes(body)


def test_metadata_in_every_version(peer: Peer, topic_id: UUID) -> None:
    for version in range(14):
        answer = peer.call(ApiKey.METADATA, version, {"topics": [{"name": "wire"}]})
        assert [(t.name, len(t.partitions)) for t in answer.topics] == [("wire", 2)]
        if version >= 10:
            assert answer.topics[0].topic_id == topic_id


def test_tagged_fields_behind_the_client_id(peer: Peer) -> None:
    """librdkafka and the Java client may send tags in headers and bodies that we and Kafka do not know."""
    body = bytes.fromhex("00 01 00 01 07 02 aabb")
    peer.exchange(ApiKey.METADATA, 12, body)
    request = entities.read_request(ApiKey.METADATA, 12, body)
    assert request.topics is None


def test_extra_bytes_after_a_request_are_ignored(peer: Peer) -> None:
    body = entities.write_request(ApiKey.METADATA, 12, {"topics": []}) + b"rest"
    assert entities.read_response(ApiKey.METADATA, 12, peer.exchange(ApiKey.METADATA, 12, body)).topics == ()
    assert entities.read_request(ApiKey.METADATA, 12, body).topics == ()


def test_a_null_client_id(peer: Peer) -> None:
    assert len(peer.exchange(ApiKey.METADATA, 12, bytes.fromhex("01 01 00 00"), client_id=None)) > 10


@pytest.mark.parametrize(
    ("key", "version", "text"),
    [
        (ApiKey.METADATA, 12, "05 00"),
        (ApiKey.METADATA, 12, "ffffffff07 00 00 00"),
        (ApiKey.METADATA, 8, "7fffffff 00000000"),
        (ApiKey.METADATA, 3, "00000001 ffff"),
        (ApiKey.FETCH, 4, "ffffffff 000001f4 00000001 00100000 00 ffffffff"),
        (ApiKey.PRODUCE, 9, "00 ffff 000003e8 00 00"),
        (ApiKey.PRODUCE, 9, "00 ffff 000003e8 02 00 01 00 00"),
        (ApiKey.PRODUCE, 14, "00 ffff 000003e8 01 00"),
        (ApiKey.METADATA, 14, "00 00 00 00"),
    ],
)
def test_malformed_requests_are_rejected_by_kafka_too(
    kafka_node: ApacheKafka, key: ApiKey, version: int, text: str
) -> None:
    parse: Callable[[int, memoryview], Any] = {
        ApiKey.PRODUCE: produce.parse_request,
        ApiKey.FETCH: fetch.parse_request,
    }.get(key, lambda v, b: entities.read_request(key, v, b))
    with pytest.raises(frame.MalformedRequest):
        parse(version, memoryview(bytearray.fromhex(text)))
    peer = Peer(kafka_node.port)
    with pytest.raises((EOFError, ConnectionError)):
        peer.exchange(key, version, bytes.fromhex(text))
    peer.close()


# --- logs -------------------------------------------------------------------------------------------------------------


def logged(kafka_node: ApacheKafka, partition: str) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Keys and values of all records of a partition, except control records."""
    for path in sorted((Path(kafka_node.log_dir) / partition).glob("*.log")):
        for header, records in decode_all(path.read_bytes()):
            if not header.is_control:
                yield from ((record.key, record.value) for record in records)


def same_bytes(message_codec: MessageCodec[Any], version: int, raw: bytes, position: int) -> Any:
    decoded, end = message_codec.decode(version, raw, position)
    assert end == len(raw), f"{decoded!r} leaves bytes behind"
    assert message_codec.encode(version, decoded) == raw[position:]
    return decoded


def test_metadata_log_to_identical_bytes(kafka_node: ApacheKafka, peer: Peer, topic_id: UUID) -> None:
    configs = [{"name": "retention.ms", "config_operation": 0, "value": "1000"}]
    changes = {"resources": [{"resource_type": 2, "resource_name": "wire", "configs": configs}]}
    peer.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, changes)
    codecs = {
        kind.api_key: codec(kind.record, versions=(0, kind.latest_version), flexible="0+")
        for kind in metadata_records._KINDS
    }
    seen = []
    for _, value in logged(kafka_node, "__cluster_metadata-0"):
        assert value is not None
        frame_version, position = read_uvarint(value, 0)
        key, position = read_uvarint(value, position)
        version, position = read_uvarint(value, position)
        assert frame_version == 1
        seen.append(same_bytes(codecs[key], version, value, position))
    kinds = {type(record).__name__ for record in seen}
    assert {"RegisterBrokerRecord", "TopicRecord", "PartitionRecord", "ConfigRecord", "FeatureLevelRecord"} <= kinds
    topic = next(r for r in seen if isinstance(r, metadata_records.TopicRecord) and r.name == "wire")
    assert topic.topic_id == topic_id


def test_committed_offsets_to_identical_bytes(kafka_node: ApacheKafka, peer: Peer, topic_id: UUID) -> None:
    fields = {"key_type": 0, "coordinator_keys": ["g"]}
    for _ in range(200):
        (coordinator,) = peer.call(ApiKey.FIND_COORDINATOR, 6, fields).coordinators
        commit = {
            "group_id": "g",
            "generation_id_or_member_epoch": -1,
            "topics": [
                {
                    "name": "wire",
                    "topic_id": topic_id,
                    "partitions": [
                        {
                            "partition_index": 1,
                            "committed_offset": 5,
                            "committed_leader_epoch": 0,
                            "committed_metadata": "m",
                        }
                    ],
                }
            ],
        }
        if coordinator.error_code == 0:
            code = peer.call(ApiKey.OFFSET_COMMIT, 10, commit).topics[0].partitions[0].error_code
            if code == 0:
                break
    else:
        pytest.fail("the group coordinator did not come up")
    key_codec = codec(OffsetCommitKey, versions=(0, 0), flexible=None)
    value_codec = codec(OffsetCommitValue, versions=(0, 4), flexible="4+")
    found = []
    for key, value in logged(kafka_node, "__consumer_offsets-0"):
        assert key is not None
        if int.from_bytes(key[:2], "big") == 1 and value is not None:
            version = int.from_bytes(value[:2], "big")
            found.append((same_bytes(key_codec, 0, key, 2), version, same_bytes(value_codec, version, value, 2)))
    (committed,) = found
    assert committed[:2] == (OffsetCommitKey("g", "wire", 1), 4)
    assert (committed[2].offset, committed[2].metadata, committed[2].topic_id) == (5, "m", topic_id)
