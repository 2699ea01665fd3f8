"""Framing, order, limits and bad input on a real socket of a running node."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fenceline.testing.node import EmbeddedNode
from fenceline.testing.waiting import eventually
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_response, write_request
from fenceline.wire.frame import encode_request_frame, parse_response_header


@contextmanager
def connected(node: EmbeddedNode) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", node.port), timeout=60) as connection:
        yield connection


def receive_exactly(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        part = connection.recv(count - len(received))
        if not part:
            raise ConnectionError("closed by the node")
        received += part
    return received


def receive_frame(connection: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", receive_exactly(connection, 4))
    return receive_exactly(connection, size)


def frame(key: ApiKey, version: int, correlation_id: int, fields: dict[str, object]) -> bytes:
    return b"".join(encode_request_frame(key, version, correlation_id, "test", write_request(key, version, fields)))


def is_closed(connection: socket.socket) -> bool:
    """Whether the node closes the connection without an answer."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def assert_serves(node: EmbeddedNode) -> None:
    with connected(node) as connection:
        connection.sendall(frame(ApiKey.METADATA, 12, 1, {"topics": []}))
        assert receive_frame(connection)


@pytest.mark.parametrize("version", range(5))
def test_api_versions_lists_what_is_registered(node: EmbeddedNode, version: int) -> None:
    with connected(node) as connection:
        fields = {"client_software_name": "test", "client_software_version": "1"}
        connection.sendall(frame(ApiKey.API_VERSIONS, version, 9, fields))
        answer = receive_frame(connection)
        correlation_id, position = parse_response_header(ApiKey.API_VERSIONS, version, answer)
        response = read_response(ApiKey.API_VERSIONS, version, answer[position:])
    assert correlation_id == 9
    ranges = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
    assert ranges[ApiKey.PRODUCE] == (0, 13)  # as in Kafka, for older librdkafka
    assert ranges[ApiKey.FETCH] == (4, 18)
    assert ApiKey.INIT_PRODUCER_ID in ranges
    assert ApiKey.SHARE_GROUP_HEARTBEAT not in ranges


def test_unknown_api_versions_version_is_answered_in_version_0(node: EmbeddedNode) -> None:
    """KIP-35, KIP-511: error 35 and the ranges, in version 0, whatever follows the first header fields."""
    with connected(node) as connection:
        body = struct.pack(">hhih", 18, 77, 5, -1) + b"\xff\xff\xff"
        connection.sendall(struct.pack(">i", len(body)) + body)
        answer = receive_frame(connection)
    correlation_id, error, count = struct.unpack_from(">ihi", answer)
    assert (correlation_id, error) == (5, 35)
    assert len(answer) == 10 + 6 * count


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(struct.pack(">i", -5), id="negative size"),
        pytest.param(struct.pack(">i", 2), id="shorter than a header"),
        pytest.param(struct.pack(">i", 2**31 - 1), id="larger than socket.request.max.bytes"),
        pytest.param(struct.pack(">ihhih", 10, 999, 0, 1, -1), id="unknown api"),
        pytest.param(struct.pack(">ihhih", 10, 3, 99, 1, -1), id="unknown version"),
        pytest.param(struct.pack(">ihhih", 10, 0, 2, 1, -1), id="produce before version 3"),
        pytest.param(struct.pack(">ihhih", 10, 3, 1, 1, 500), id="client id beyond the request"),
        pytest.param(struct.pack(">ihhihi", 14, 3, 1, 1, -1, 2**31 - 1), id="array larger than the request"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", id="http"),
        pytest.param(struct.pack(">ihhih", 10, 0, 9, 1, -1), id="truncated produce"),
        pytest.param(struct.pack(">ihhih", 10, 1, 12, 1, -1), id="truncated fetch"),
    ],
)
def test_invalid_request_closes_only_its_connection(node: EmbeddedNode, sent: bytes) -> None:
    with connected(node) as bystander:
        with connected(node) as connection:
            connection.sendall(sent)
            assert is_closed(connection)
        bystander.sendall(frame(ApiKey.METADATA, 12, 1, {"topics": []}))
        assert receive_frame(bystander)


def test_closed_connection_is_logged_with_peer_and_reason() -> None:
    """Of a host's lines with equal reasons, the first of ten seconds."""
    with EmbeddedNode() as node, connected(node) as connection:
        host, port = connection.getsockname()
        connection.sendall(struct.pack(">ihhih", 10, 998, 0, 1, -1))
        assert is_closed(connection)
        # The line was written before the connection closed; a thread of this process reads it later.
        eventually(lambda: f"{host}:{port}" in node.errors, "a line names the peer", wait_s=60)
        [line] = [line for line in node.errors.splitlines() if f"{host}:{port}" in line]
        assert "998" in line
        assert_serves(node)


def test_random_bytes_never_disturb_the_node(node: EmbeddedNode) -> None:
    rng = random.Random(20)
    for _ in range(60):
        with connected(node) as connection:
            content = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 300)))
            if rng.random() < 0.7:
                key, version = rng.choice([(0, 9), (1, 12), (3, 9), (11, 5), (19, 7), (8, 8), (2, 6), (32, 4)])
                head = struct.pack(">hhih", key, version, 1, -1) + b"\0"
                content = struct.pack(">i", len(head) + len(content)) + head + content
            connection.sendall(content)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
    assert_serves(node)


def test_pipelined_requests_are_answered_in_order(node: EmbeddedNode) -> None:
    """Later requests do not overtake requests that wait (a change, a fetch at the end of the log)."""
    with connected(node) as connection:
        topic = {"name": "pipelined", "num_partitions": 1, "replication_factor": 1}
        requests = [
            frame(ApiKey.CREATE_TOPICS, 7, 0, {"topics": [topic], "timeout": 10000}),
            frame(ApiKey.METADATA, 12, 1, {"topics": [{"name": "pipelined"}]}),
            frame(ApiKey.API_VERSIONS, 0, 2, {}),
            frame(ApiKey.LIST_GROUPS, 4, 3, {}),
            *(frame(ApiKey.METADATA, 12, number, {"topics": []}) for number in range(4, 200)),
        ]
        connection.sendall(b"".join(requests))
        answers = [receive_frame(connection) for _ in requests]
    assert [struct.unpack_from(">i", answer)[0] for answer in answers] == list(range(len(requests)))


def test_requests_in_pieces(node: EmbeddedNode) -> None:
    with connected(node) as connection:
        for byte in frame(ApiKey.METADATA, 12, 1, {"topics": []}):
            connection.sendall(bytes([byte]))
        assert receive_frame(connection)


def test_large_request_is_decoded_while_others_are_served(node: EmbeddedNode) -> None:
    """200,000 assigned partitions: refused as by Kafka, and the next request of the connection keeps its place."""
    topic = {"name": "large", "num_partitions": -1, "replication_factor": -1, "configs": []}
    rows = [{"partition_index": index, "broker_ids": [1]} for index in range(200_000)]
    large = frame(ApiKey.CREATE_TOPICS, 7, 2, {"topics": [{**topic, "assignments": rows}], "timeout": 1000})
    with connected(node) as connection:
        connection.sendall(large + frame(ApiKey.METADATA, 12, 3, {"topics": []}))
        assert_serves(node)
        answer = receive_frame(connection)
        correlation_id, position = parse_response_header(ApiKey.CREATE_TOPICS, 7, answer)
        (result,) = read_response(ApiKey.CREATE_TOPICS, 7, answer[position:]).topics
        assert (correlation_id, result.error_code) == (2, 44)
        assert result.error_message == "Excessively large number of partitions per request."
        assert parse_response_header(ApiKey.METADATA, 12, receive_frame(connection))[0] == 3
    assert_serves(node)


def test_large_malformed_request_ends_the_connection(node: EmbeddedNode) -> None:
    rows = [{"partition_index": index, "broker_ids": [1]} for index in range(50_000)]
    topic = {"name": "large", "num_partitions": -1, "replication_factor": -1, "configs": [], "assignments": rows}
    body = write_request(ApiKey.CREATE_TOPICS, 7, {"topics": [topic], "timeout": 1000})[:-9]
    with connected(node) as connection:
        connection.sendall(b"".join(encode_request_frame(ApiKey.CREATE_TOPICS, 7, 1, "test", body)))
        assert is_closed(connection)
    assert_serves(node)
