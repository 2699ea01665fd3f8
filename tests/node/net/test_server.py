from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fenceline.config.node import NodeConfig
from fenceline.node.broker import Broker
from fenceline.wire.apis import ApiKey


@contextmanager
def alone(**overrides: str) -> Iterator[Any]:
    """A broker of which only the server is used."""
    broker: Any = Broker(NodeConfig.load(None, {"listeners": "PLAINTEXT://127.0.0.1:0", **overrides}, {}))
    broker.partitions = broker.controller = broker.replication = None
    yield broker
    broker.disk_threads.shutdown()


@pytest.mark.parametrize(("overrides", "expected"), [({}, 50), ({"socket.listen.backlog.size": "7"}, 7)])
def test_backlog_of_the_listeners(overrides: dict[str, str], expected: int) -> None:
    """As the system knows it: for a listening socket, `tcpi_sacked` is the length of its queue."""

    async def story(broker: Any) -> tuple[int, int]:
        broker.loop = asyncio.get_running_loop()
        server = broker._make_server()
        await server.bind("PLAINTEXT", "127.0.0.1", 0)
        (listening,) = server._servers[0].sockets

        def length() -> int:
            told = listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 64)
            return int(struct.unpack_from("=8x6I", told)[5])

        server.open_backlog()
        waiting = length()
        await server.start_serving()
        serving = length()
        await server.close()
        return waiting, serving

    with alone(**overrides) as broker:
        assert asyncio.run(story(broker)) == (expected, expected)


def test_a_connection_made_before_the_broker_serves_waits() -> None:
    question = struct.pack(">ihhih", 10, ApiKey.API_VERSIONS, 0, 7, 0)

    async def story(broker: Any) -> tuple[int, bytes]:
        broker.loop = asyncio.get_running_loop()
        server = broker._make_server()
        port = await server.bind("PLAINTEXT", "127.0.0.1", 0)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        server.open_backlog()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(question)
        await writer.drain()
        taken = len(server._connections)
        await server.start_serving()
        answer = await reader.readexactly(8)
        writer.close()
        await server.close()
        return taken, answer[4:]

    with alone() as broker:
        assert asyncio.run(story(broker)) == (0, struct.pack(">i", 7))
