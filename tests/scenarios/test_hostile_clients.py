"""Clients that do not read, stall, stay connected, or are too many: memory is bounded, others are served."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psutil
import pytest

from fenceline.records.build import build_batch
from fenceline.testing.node import EmbeddedNode
from fenceline.testing.waiting import eventually
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import write_request
from fenceline.wire.frame import encode_request_frame
from fenceline.wire.produce import PartitionRecords, ProduceRequest
from fenceline.wire.produce import encode_request as encode_produce
from tests.scenarios.faults import connection_to, create, fetch_body, listed, produce, receive_frame

pytestmark = pytest.mark.long

MB = 1 << 20


@contextmanager
def many_sockets(node: EmbeddedNode, count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(("127.0.0.1", node.port), timeout=60)) for _ in range(count)
        ]


def resident_bytes(node: EmbeddedNode) -> int:
    """Private memory: pages of mapped log files belong to the page cache, which gives them back."""
    memory = psutil.Process(node.pid).memory_full_info()
    return int(memory.uss)


def metadata_frame(correlation_id: int = 1) -> bytes:
    body = write_request(ApiKey.METADATA, 12, {"topics": []})
    return b"".join(encode_request_frame(ApiKey.METADATA, 12, correlation_id, "hostile", body))


def is_answered(connection: socket.socket) -> bool:
    connection.sendall(metadata_frame())
    return len(receive_frame(connection)) > 4


def is_closed(connection: socket.socket, within_s: float = 60) -> bool:
    connection.settimeout(within_s)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(("size", "each_bytes"), [(19_500, 60_000), (900_000, MB)], ids=["copied", "mapped"])
def test_unread_responses_do_not_increase_memory(size: int, each_bytes: int) -> None:
    """200 MB of responses are requested over 20 connections; none is read."""
    with EmbeddedNode() as node:
        with connection_to(node) as connection:
            create(connection, "t")
            for _ in range(10 * MB // size):
                produce(connection, "t", b"x" * size)
        before = resident_bytes(node)
        body = fetch_body("t", {0: 0}, each_bytes, 0)
        frame = b"".join(encode_request_frame(ApiKey.FETCH, 12, 1, "slow", body))
        with many_sockets(node, 20) as peers:
            for peer in peers:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                peer.sendall(frame * (10 * MB // each_bytes))
            with connection_to(node) as connection:
                for _ in range(50):
                    assert "t" in listed(connection)
            grown = resident_bytes(node) - before
        assert grown < 100 * MB, f"{grown // MB} MB"


def test_two_thousand_idle_connections_use_little_memory() -> None:
    with EmbeddedNode() as node:
        before = resident_bytes(node)
        with many_sockets(node, 2000) as peers:
            assert is_answered(peers[0])
            assert is_answered(peers[-1])
            with connection_to(node) as connection:
                assert create(connection, "t") == 0
                assert produce(connection, "t", b"x").error_code == 0
            grown = resident_bytes(node) - before
            assert grown < 200 * MB, f"{grown // MB} MB"
        assert node.stop() == 0
        assert node.errors == ""


def test_connections_above_max_connections_are_closed() -> None:
    with EmbeddedNode(overrides={"max.connections": "5"}) as node:
        with many_sockets(node, 5) as peers:
            assert all(map(is_answered, peers))
            with many_sockets(node, 1) as (refused,):
                assert is_closed(refused)
            assert all(map(is_answered, peers))
        eventually(lambda: "too many connections (max.connections)" in node.errors)
        eventually(lambda: can_connect(node))


def can_connect(node: EmbeddedNode) -> bool:
    with many_sockets(node, 1) as (peer,):
        try:
            return is_answered(peer)
        except (OSError, AssertionError):
            return False


def test_idle_connections_are_closed_and_busy_ones_stay() -> None:
    with EmbeddedNode(overrides={"connections.max.idle.ms": "1000"}) as node, ExitStack() as stack:
        (idle,) = stack.enter_context(many_sockets(node, 1))
        idle.setblocking(False)
        (busy,) = stack.enter_context(many_sockets(node, 1))
        busy_s = time.monotonic()

        def keep_busy() -> None:
            nonlocal busy, busy_s
            now_s = time.monotonic()
            try:
                assert is_answered(busy)
            except (AssertionError, OSError):
                if time.monotonic() - busy_s < 0.9:
                    raise
                # This process was too slow, so the connection was idle.
                (busy,) = stack.enter_context(many_sockets(node, 1))
                assert is_answered(busy)
            busy_s = now_s

        def idle_is_gone() -> bool:
            keep_busy()
            try:
                return idle.recv(1) == b""
            except BlockingIOError:
                return False
            except ConnectionResetError:
                return True

        eventually(idle_is_gone)
        keep_busy()


def test_a_request_above_the_maximum_size_closes_the_connection() -> None:
    with EmbeddedNode(overrides={"socket.request.max.bytes": "100000"}) as node:
        with many_sockets(node, 1) as (peer,):
            peer.sendall(struct.pack(">i", 100_001) + b"x" * 10)
            assert is_closed(peer)
        eventually(lambda: "socket.request.max.bytes" in node.errors)
        assert can_connect(node)


def test_announced_request_sizes_allocate_no_memory() -> None:
    """A hundred peers announce 100 MB each and send only 100 kB of it."""
    with EmbeddedNode() as node:
        before = resident_bytes(node)
        with many_sockets(node, 100) as peers:
            for peer in peers:
                peer.sendall(struct.pack(">i", 100 * MB) + b"x" * 100_000)
            with connection_to(node) as connection:
                assert create(connection, "t") == 0
                assert resident_bytes(node) - before < 100 * MB


def test_peers_that_stall_in_large_requests_do_not_block_others() -> None:
    """Their requests hold all receive memory; their connections are closed when another client needs some."""
    with EmbeddedNode(overrides=receive_budget(4 * MB)) as node, many_sockets(node, 3) as stalled:
        with connection_to(node) as connection:
            create(connection, "t")
            for peer in stalled:
                peer.sendall(struct.pack(">i", 2 * MB) + b"x" * (MB + 100_000))
            for _ in range(20):
                assert produce(connection, "t", b"y" * 900_000).error_code == 0
        assert "while others wait for receive memory" in node.errors
        assert "Traceback" not in node.errors


def test_many_producers_share_a_small_receive_budget() -> None:
    """More connections with large buffers than fit the budget: empty buffers are released at once."""
    with EmbeddedNode(overrides=receive_budget(2 * MB)) as node, ExitStack() as stack:
        connections = [stack.enter_context(connection_to(node)) for _ in range(12)]
        create(connections[0], "t")
        for _ in range(3):
            for connection in connections:
                assert produce(connection, "t", b"y" * 900_000).error_code == 0
        assert node.errors == ""


def test_requests_that_wait_for_each_other_are_all_served() -> None:
    """Together they hold the whole budget and each needs more: one at a time may exceed it."""
    with EmbeddedNode(overrides=receive_budget(2 * MB)) as node, many_sockets(node, 8) as peers:
        with connection_to(node) as connection:
            create(connection, "t")
        batch = build_batch([(1_700_000_000_000, None, b"z" * 1_900_000, ())])
        request = ProduceRequest(None, -1, 10_000, [PartitionRecords("t", None, 0, memoryview(batch))])
        frame = b"".join(encode_request_frame(ApiKey.PRODUCE, 9, 1, "big", b"".join(encode_produce(9, request))))
        half = len(frame) // 2
        for peer in peers:
            peer.setblocking(False)
        left = [memoryview(frame)[:half] for _ in peers]
        send_without_blocking(peers, left)
        left = [memoryview(frame)[half - len(rest) :] for rest in left]
        eventually(lambda: send_without_blocking(peers, left))
        for peer in peers:
            peer.settimeout(60)
            receive_frame(peer)
        assert "Traceback" not in node.errors


def receive_budget(size_bytes: int) -> dict[str, str]:
    return {
        "queued.max.request.bytes": str(size_bytes),
        "socket.request.max.bytes": str(size_bytes),
        "message.max.bytes": str(size_bytes),
    }


def send_without_blocking(peers: list[socket.socket], left: list[memoryview]) -> bool:
    """Send as much as the sockets accept; returns whether everything was sent."""
    for number, peer in enumerate(peers):
        try:
            while left[number]:
                left[number] = left[number][peer.send(left[number][:65536]) :]
        except BlockingIOError:
            pass
    return not any(left)


def test_connections_reset_during_a_request_are_released() -> None:
    with EmbeddedNode() as node:
        with connection_to(node) as connection:
            create(connection, "t")
            parked = b"".join(encode_request_frame(ApiKey.FETCH, 12, 1, "gone", fetch_body("t", {0: 0}, MB, 60_000)))
            for number in range(300):
                with many_sockets(node, 1) as (peer,):
                    peer.sendall(parked if number % 2 else struct.pack(">i", 50 * MB) + b"x" * 70_000)
                    # Close with a reset.
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            assert produce(connection, "t", b"x").error_code == 0
            eventually(lambda: len(psutil.Process(node.pid).net_connections()) <= 3)
        assert "Traceback" not in node.errors
