"""Connections to unresponsive brokers: calls prefer other connections and wait no longer than their timeout."""

from __future__ import annotations

import asyncio

import pytest

from fenceline.client.admin.admin import Admin
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.connection import open_connection
from fenceline.client.core.errors import BrokersUnreachable, ConnectionLost
from fenceline.client.core.link import Link
from fenceline.client.core.security import tls_context
from fenceline.errors import OperatorError, PeerError
from fenceline.testing.node import EmbeddedNode
from fenceline.wire.apis import ApiKey
from tests.client.scripted_cluster import REFUSE, SILENT, ScriptedCluster

FOR_EVER = {"socket.connection.setup.timeout.ms": 3_600_000, "request.timeout.ms": 3_600_000}
SHORT_MS = 300


def test_open_connection_is_preferred_to_an_untried_broker(cluster: ScriptedCluster) -> None:
    met: list[int] = []

    def rule(node: int, key: ApiKey) -> object:
        met.append(node)
        return None if node == 1 else SILENT

    with Admin(cluster.bootstrap, **FOR_EVER) as admin:
        admin.metadata()
        cluster.node_rule = rule
        for _ in range(8):
            admin.metadata()
    assert set(met) == {1}


def test_call_ends_at_its_own_timeout_rather_than_the_connection_timeout(cluster: ScriptedCluster) -> None:
    (tp,) = cluster.add_topic("t", leader=2)
    cluster.node_rule = lambda node, _: SILENT if node == 2 else None
    with Admin(cluster.bootstrap, **FOR_EVER) as admin, pytest.raises(PeerError, match="in time"):
        admin.list_offsets({tp: "latest"}, timeout_ms=SHORT_MS)
    cluster.node_rule = lambda node, _: SILENT
    with Admin(cluster.bootstrap, **FOR_EVER) as admin, pytest.raises(BrokersUnreachable, match="in time"):
        admin.metadata(timeout_ms=SHORT_MS)


def test_failed_call_reports_why_each_broker_failed(cluster: ScriptedCluster) -> None:
    """As for a plaintext client of a TLS listener (`test_secure_listeners.py`)."""
    cluster.node_rule = lambda *_: REFUSE
    with Admin(cluster.bootstrap) as admin, pytest.raises(BrokersUnreachable, match="closed it"):
        admin.metadata(timeout_ms=2_000)


def test_timed_out_call_leaves_the_connection_to_the_next() -> None:
    """Otherwise a call with a zero timeout would never get a connection."""

    async def play() -> None:
        accepted = 0
        is_accepted, answer = asyncio.Event(), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal accepted
            accepted += 1
            is_accepted.set()
            await answer.wait()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        link = Link(host, port, ClientConfig.parse("admin", f"{host}:{port}", {}), None)
        first, second = (asyncio.ensure_future(link.connection()) for _ in range(2))
        await is_accepted.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        third = asyncio.ensure_future(link.connection())
        await asyncio.sleep(0)
        assert accepted == 1
        link.close()
        for waiting in (second, third):
            with pytest.raises(ConnectionLost, match="closed"):
                await waiting
        answer.set()
        server.close()
        await server.wait_closed()

    asyncio.run(play())


class _Hello(asyncio.Protocol):
    """Answers the first bytes in plain text, or closes the connection as Kafka does on an invalid size."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._answer:
            self._transport.write(self._answer)
        else:
            self._transport.abort()


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
@pytest.mark.parametrize(
    ("answer", "family", "words"),
    [
        (b"", ConnectionLost, "closed the connection in the TLS handshake: security.protocol={} requires a TLS"),
        (
            b"HTTP/1.1 400 Bad Request\r\n",
            OperatorError,
            r"\(security.protocol={}, and the port may be a plaintext one",
        ),
    ],
)
def test_tls_to_a_plaintext_port_reports_the_reason(
    protocol: str, answer: bytes, family: type[Exception], words: str
) -> None:
    async def play() -> None:
        server = await asyncio.get_running_loop().create_server(lambda: _Hello(answer), "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        login = {"sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p"}
        settings = {"security.protocol": protocol, **(login if protocol == "SASL_SSL" else {})}
        config = ClientConfig.parse("admin", f"{host}:{port}", settings)
        with pytest.raises(family, match=words.format(protocol)):
            await open_connection(host, port, config, tls_context(config))
        server.close()
        await server.wait_closed()

    asyncio.run(play())


def test_call_over_tls_to_a_plaintext_port_fails_with_the_reason() -> None:
    with (
        EmbeddedNode() as node,
        Admin(node.bootstrap, **{"security.protocol": "SSL"}) as admin,
        pytest.raises(BrokersUnreachable, match="the port may be a plaintext one"),
    ):
        admin.metadata(timeout_ms=2_000)
