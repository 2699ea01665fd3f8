"""Large responses on real sockets: in order, to slow clients, and to clients that disconnect."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

import pytest

from fenceline.records.batch import iter_headers
from fenceline.testing.node import EmbeddedNode
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_response, write_request
from fenceline.wire.frame import encode_request_frame, parse_response_header
from tests.support.data_session import DataSession

BATCHES = 8
BATCH_BYTES = 700_000
_ALL: dict[str, int] = {"partition_max_bytes": 50 << 20}


@pytest.fixture
def session_with_data(node: EmbeddedNode) -> Iterator[DataSession]:
    with DataSession(node.port) as session:
        session.create("large")
        for _ in range(BATCHES):
            session.produced("large", 0, session.batch(1, size_bytes=BATCH_BYTES))
        yield session


def _frame(key: ApiKey, version: int, correlation_id: int, fields: dict[str, object]) -> bytes:
    return b"".join(encode_request_frame(key, version, correlation_id, "test", write_request(key, version, fields)))


def _make_cold(node: EmbeddedNode) -> None:
    """Drop the records from the page cache (where the file system supports it), so that they are sent in pieces of the
    file.
    """
    for path in node.log_dir.rglob("*.log"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _received(connection: socket.socket, size_bytes: int) -> bytes:
    taken = bytearray()
    while len(taken) < size_bytes:
        piece = connection.recv(min(64 << 10, size_bytes - len(taken)))
        assert piece, f"closed after {len(taken)} of {size_bytes} bytes"
        taken += piece
    return bytes(taken)


def _answer(connection: socket.socket, key: ApiKey, version: int) -> tuple[int, object]:
    (size,) = struct.unpack(">i", _received(connection, 4))
    answer = _received(connection, size)
    correlation_id, position = parse_response_header(key, version, answer)
    return correlation_id, read_response(key, version, answer[position:])


def _fetch(session_with_data: DataSession, correlation_id: int) -> bytes:
    return _frame(ApiKey.FETCH, 12, correlation_id, session_with_data.fetch([("large", 0, 0, _ALL)]))


def _assert_whole(fetched: object) -> None:
    records = fetched.responses[0].partitions[0].records  # type: ignore[attr-defined]
    assert [header.base_offset for header in iter_headers(memoryview(records))] == list(range(BATCHES))


def test_responses_stay_in_order_around_large_ones(node: EmbeddedNode, session_with_data: DataSession) -> None:
    """All requests arrive at once; the client starts to read after it has sent all of them."""
    _make_cold(node)
    metadata = {"topics": []}
    with socket.create_connection(("127.0.0.1", node.port), timeout=60) as connection:
        requests = [
            _frame(ApiKey.METADATA, 12, 1, metadata),
            _fetch(session_with_data, 2),
            _frame(ApiKey.METADATA, 12, 3, metadata),
            _fetch(session_with_data, 4),
            _fetch(session_with_data, 5),
            _frame(ApiKey.METADATA, 12, 6, metadata),
        ]
        connection.sendall(b"".join(requests))
        for number, key in ((1, "m"), (2, "f"), (3, "m"), (4, "f"), (5, "f"), (6, "m")):
            api = ApiKey.METADATA if key == "m" else ApiKey.FETCH
            correlation_id, answer = _answer(connection, api, 12)
            assert correlation_id == number
            if key == "f":
                _assert_whole(answer)


def test_clients_that_do_not_read_block_no_other_client_and_leak_nothing(
    node: EmbeddedNode, session_with_data: DataSession
) -> None:
    descriptors = f"/proc/{node.pid}/fd"
    _make_cold(node)
    # From now on the segment's descriptors for sending and for loading are kept, and that of /dev/null.
    _assert_whole(session_with_data.ask(ApiKey.FETCH, 12, session_with_data.fetch([("large", 0, 0, _ALL)])))
    _make_cold(node)
    before = len(os.listdir(descriptors))
    stuck = [socket.create_connection(("127.0.0.1", node.port), timeout=60) for _ in range(5)]
    for connection in stuck:
        connection.sendall(_fetch(session_with_data, 1))
    _assert_whole(session_with_data.ask(ApiKey.FETCH, 12, session_with_data.fetch([("large", 0, 0, _ALL)])))
    assert len(os.listdir(descriptors)) >= before + 5, "the responses are held open"
    _assert_whole(_answer(stuck[0], ApiKey.FETCH, 12)[1])
    for connection in stuck:
        connection.close()
    for _ in session_with_data.until(60):
        session_with_data.ask(ApiKey.METADATA, 12, {"topics": []})
        if len(os.listdir(descriptors)) <= before:
            break


def test_a_connection_that_reads_no_more_keeps_no_descriptor_for_sending() -> None:
    with EmbeddedNode(overrides={"connections.max.idle.ms": "5000"}) as node:
        descriptors = f"/proc/{node.pid}/fd"
        with DataSession(node.port) as session:
            session.create("large")
            session.produced("large", 0, session.batch(1, size_bytes=BATCH_BYTES))
            session.ask(ApiKey.METADATA, 12, {"topics": []})
            before = len(os.listdir(descriptors))
            session.ask(ApiKey.FETCH, 12, session.fetch([("large", 0, 0, _ALL)]))
            assert len(os.listdir(descriptors)) > before
            for _ in session.until(60):
                session.ask(ApiKey.METADATA, 12, {"topics": []})
                if len(os.listdir(descriptors)) <= before + 1:  # that of the segment is kept
                    break
            fetched = session.ask(ApiKey.FETCH, 12, session.fetch([("large", 0, 0, _ALL)]))
            assert len(fetched.responses[0].partitions[0].records) > BATCH_BYTES, "a new one is made"
