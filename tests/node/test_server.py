from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import pytest

from fenceline.config.node import NodeConfig
from fenceline.node.broker import Broker


@pytest.mark.parametrize(("overrides", "expected"), [({}, 50), ({"socket.listen.backlog.size": "7"}, 7)])
def test_backlog_of_the_listeners(overrides: dict[str, str], expected: int) -> None:
    """As the system knows it: for a listening socket, `tcpi_sacked` is the length of its queue."""
    config = NodeConfig.load(None, {"listeners": "PLAINTEXT://127.0.0.1:0", **overrides}, {})
    broker: Any = Broker(config)
    broker.partitions = broker.controller = broker.replication = None  # nothing is asked

    async def story() -> int:
        broker.loop = asyncio.get_running_loop()
        server = broker._make_server()
        await server.bind("PLAINTEXT", "127.0.0.1", 0)
        await server.start_serving()
        (listening,) = server._servers[0].sockets
        told = listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 64)
        await server.close()
        return int(struct.unpack_from("=8x6I", told)[5])

    assert asyncio.run(story()) == expected
    broker.disk_threads.shutdown()
