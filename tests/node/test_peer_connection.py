"""Connections to other nodes that break while somebody waits, or nobody any more."""

from __future__ import annotations

import asyncio
import gc
import socket
from typing import Any

import pytest

from fenceline.node.peer_connection import ConnectionLost, PeerConnection
from fenceline.wire.apis import ApiKey


async def _connected() -> tuple[socket.socket, PeerConnection]:
    """To a peer that never answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    host, port = listener.getsockname()
    _, connection = await asyncio.get_running_loop().create_connection(
        lambda: PeerConnection(f"{host}:{port}", "test"), host, port
    )
    return listener, connection


def test_who_waits_is_told() -> None:
    async def scenario() -> None:
        listener, connection = await _connected()
        answer = connection.post(ApiKey.FETCH, 17, b"")
        connection.close()
        with pytest.raises(ConnectionLost):
            await answer
        listener.close()

    asyncio.run(scenario())


def test_an_answer_that_nobody_waits_for_is_no_error_of_the_node() -> None:
    """A fetch is out when a node stops: its task is gone before its connection."""
    complaints: list[dict[str, Any]] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        listener, connection = await _connected()
        answer = connection.post(ApiKey.FETCH, 17, b"")
        connection.close()
        assert answer.done()
        del answer
        gc.collect()
        listener.close()

    asyncio.run(scenario())
    assert complaints == []
