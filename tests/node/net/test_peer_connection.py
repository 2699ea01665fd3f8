"""Connections to other nodes that break, with and without pending requests."""

from __future__ import annotations

import asyncio
import gc
import socket
from typing import Any

import pytest

from fenceline.node.net.peer_connection import PeerConnection, PeerConnectionLost
from fenceline.wire.apis import ApiKey


async def _connected() -> tuple[socket.socket, PeerConnection]:
    """To a peer that never answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    host, port = listener.getsockname()
    _, connection = await asyncio.get_running_loop().create_connection(
        lambda: PeerConnection(f"{host}:{port}", "test"), host, port
    )
    return listener, connection


def test_pending_request_fails_when_the_connection_breaks() -> None:
    async def scenario() -> None:
        listener, connection = await _connected()
        answer = connection.post(ApiKey.FETCH, 17, b"")
        connection.close()
        with pytest.raises(PeerConnectionLost):
            await answer
        listener.close()

    asyncio.run(scenario())


def test_an_abandoned_response_is_no_error_of_the_node() -> None:
    """A fetch is pending when a node stops: its task ends before its connection."""
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
