"""Connections to other nodes that break while somebody waits, or nobody any more."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from typing import Any

import pytest

from fenceline.node.peer_connection import ConnectionLost, PeerConnection
from fenceline.wire.apis import ApiKey


async def _connected() -> tuple[asyncio.Server, PeerConnection]:
    """To a peer that reads and never answers."""

    async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while await reader.read(1024):
                pass
        writer.close()

    server = await asyncio.start_server(ignore, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    _, connection = await asyncio.get_running_loop().create_connection(
        lambda: PeerConnection(f"{host}:{port}", "test"), host, port
    )
    return server, connection


def test_who_waits_is_told() -> None:
    async def scenario() -> None:
        server, connection = await _connected()
        answer = connection.post(ApiKey.FETCH, 17, b"")
        connection.close()
        with pytest.raises(ConnectionLost):
            await answer
        server.close()

    asyncio.run(scenario())


def test_an_answer_that_nobody_waits_for_is_no_error_of_the_node() -> None:
    """A fetch is out when a node stops: its task is gone before its connection."""
    complaints: list[dict[str, Any]] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        server, connection = await _connected()
        answer = connection.post(ApiKey.FETCH, 17, b"")
        connection.close()
        assert answer.done()
        del answer
        gc.collect()
        server.close()

    asyncio.run(scenario())
    assert complaints == []
