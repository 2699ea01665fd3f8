"""Helpers of the fault scenarios: produce one record and fetch on a raw connection, with plain error codes."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from fenceline.records.build import build_batch
from fenceline.testing.node import EmbeddedNode
from fenceline.wire.apis import ApiKey
from fenceline.wire.fetch import FetchPartition, FetchRequest
from fenceline.wire.fetch import encode_request as encode_fetch
from fenceline.wire.fetch import parse_response as parse_fetch
from fenceline.wire.produce import PartitionRecords, PartitionResult, ProduceRequest
from fenceline.wire.produce import encode_request as encode_produce
from fenceline.wire.produce import parse_response as parse_produce
from tests.support.raw import RawConnection

STORAGE_ERROR = 56


@contextmanager
def connection_to(node: EmbeddedNode) -> Iterator[RawConnection]:
    with RawConnection(node.port) as connection:
        yield connection


def create(connection: RawConnection, name: str, partitions: int = 1, **configs: str) -> int:
    """Create a topic whose records never expire; returns the error code."""
    settings = {"retention_ms": "-1", **configs}
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "configs": [{"name": key.replace("_", "."), "value": value} for key, value in settings.items()],
    }
    answer = connection.call(ApiKey.CREATE_TOPICS, 7, {"topics": [topic], "timeout_ms": 60_000})
    return int(answer.topics[0].error_code)


def delete(connection: RawConnection, name: str) -> int:
    answer = connection.call(ApiKey.DELETE_TOPICS, 5, {"topic_names": [name], "timeout_ms": 60_000})
    return int(answer.responses[0].error_code)


def produce(connection: RawConnection, topic: str, value: bytes, *, partition: int = 0) -> PartitionResult:
    """One record in one batch."""
    batch = build_batch([(1_700_000_000_000, None, value, ())])
    request = ProduceRequest(None, -1, 10_000, [PartitionRecords(topic, None, partition, memoryview(batch))])
    body = b"".join(encode_produce(9, request))
    return parse_produce(9, memoryview(connection.exchange(ApiKey.PRODUCE, 9, body))).results[0]


def fetch(
    connection: RawConnection, topic: str, offsets: dict[int, int], *, max_bytes: int = 1 << 20, wait_ms: int = 0
) -> dict[int, tuple[int, int]]:
    """Partition -> (error code, bytes of records)."""
    answer = parse_fetch(
        12, memoryview(connection.exchange(ApiKey.FETCH, 12, fetch_body(topic, offsets, max_bytes, wait_ms)))
    )
    return {each.index: (int(each.error_code), len(each.records or b"")) for each in answer.partitions}


def fetch_body(topic: str, offsets: dict[int, int], max_bytes: int, wait_ms: int) -> bytes:
    partitions = [FetchPartition(topic, None, index, offset, max_bytes) for index, offset in offsets.items()]
    request = FetchRequest(
        cluster_id=None,
        replica_id=-1,
        replica_epoch=-1,
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1 << 30,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        partitions=partitions,
        forgotten=[],
        rack_id="",
    )
    return b"".join(encode_fetch(12, request))


def receive_exactly(peer: socket.socket, size_bytes: int) -> bytes:
    received = bytearray()
    while len(received) < size_bytes:
        piece = peer.recv(size_bytes - len(received))
        assert piece, f"closed after {len(received)} of {size_bytes} bytes"
        received += piece
    return bytes(received)


def receive_frame(peer: socket.socket) -> bytes:
    """One response without its size prefix."""
    return receive_exactly(peer, struct.unpack(">i", receive_exactly(peer, 4))[0])


def listed(connection: RawConnection) -> dict[str, Any]:
    """Topics by name, from a Metadata response."""
    answer = connection.call(ApiKey.METADATA, 12, {"topics": None})
    return {topic.name: topic for topic in answer.topics}


def values(node: EmbeddedNode, topic: str, partition: int = 0) -> list[bytes]:
    """Every record's value, read by librdkafka with its CRC checked."""
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "check", "check.crcs": True, "log_level": 0})
    found: list[bytes] = []
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=60)
        consumer.assign([TopicPartition(topic, partition, low)])
        while len(found) < high - low:
            for message in consumer.consume(high - low - len(found), timeout=60):
                assert message.error() is None, message.error()
                value = message.value()
                assert value is not None
                found.append(value)
    finally:
        consumer.close()
    return found


def segments(node: EmbeddedNode, partition: str) -> list[Path]:
    return sorted((node.log_dir / partition).glob("*.log"))


def flip(path: Path, position: int) -> None:
    """Invert a byte of a file."""
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0xFF]))
