"""A connection logs in again before its session ends: what it sends, and what waits meanwhile (KIP-368).

The broker is a script: it limits the sessions and records the order of requests, but enforces nothing.
Rules: security.md A20, A21.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from fenceline.client.core import connection as connection_module
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.connection import Connection, open_connection
from fenceline.client.core.errors import ConnectionLost
from fenceline.errors import ErrorCode, PeerError
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_request, write_response
from fenceline.wire.frame import encode_response_frame, parse_request_header

HANDSHAKE, AUTHENTICATE, METADATA = ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.METADATA
LOGIN: Final = [HANDSHAKE, AUTHENTICATE]
VERSIONS: Final = {ApiKey.API_VERSIONS: 4, HANDSHAKE: 1, AUTHENTICATE: 2, METADATA: 12}


class ScriptedBroker:
    """`received`: keys of requests. `session_ms`: of the next logins. `gate`: is awaited before a handshake is
    answered. `refusal`: how the next logins fail."""

    def __init__(self) -> None:
        self.received: list[ApiKey] = []
        self.session_ms = 200
        self.gate: Callable[[], Awaitable[object]] | None = None
        self.refusal: ErrorCode | None = None
        self.is_too_early = False
        """Whether a connection must not log in again yet."""
        self.passwords: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                data = memoryview(await reader.readexactly(size))
                header = parse_request_header(data)
                key, version = ApiKey(header.api_key), header.api_version
                self.received.append(key)
                if key == ApiKey.PRODUCE:  # with acks=0
                    continue
                fields = await self._answer(key, read_request(key, version, data[header.body_position :]))
                body = write_response(key, version, fields)
                writer.writelines(encode_response_frame(key, version, header.correlation_id, body))
        except asyncio.IncompleteReadError:
            writer.close()

    async def _answer(self, key: ApiKey, request: Any) -> dict[str, Any]:
        if key == ApiKey.API_VERSIONS:
            offered = [{"api_key": each, "min_version": 0, "max_version": top} for each, top in VERSIONS.items()]
            return {"error_code": 0, "api_keys": offered}
        if key == HANDSHAKE and self.is_too_early and self.received.count(HANDSHAKE) > 1:
            return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": []}
        if key == HANDSHAKE:
            if self.gate is not None and self.received.count(HANDSHAKE) > 1:
                await self.gate()
            return {"error_code": 0, "mechanisms": ["PLAIN"]}
        if key == AUTHENTICATE:
            self.passwords.append(request.auth_bytes)
            if self.refusal is not None:
                return {"error_code": self.refusal, "error_message": "no more"}
            return {"error_code": 0, "error_message": "", "auth_bytes": b"", "session_lifetime": self.session_ms}
        return {"brokers": [], "topics": []}


@pytest.fixture(autouse=True)
def _without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "_SHORTEST_S", 0.0)


def played(play: Callable[[ScriptedBroker, Connection], Awaitable[None]]) -> None:
    """Run the test with a connection that has logged in."""

    async def run() -> None:
        broker = ScriptedBroker()
        server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        settings = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.username": "anna",
            "sasl.password": "secret",
        }
        async with server, asyncio.timeout(60):
            config = ClientConfig.parse("admin", f"{host}:{port}", settings)
            connection = await open_connection(host, port, config, None)
            try:
                await play(broker, connection)
            finally:
                connection.close()
                await connection.closed(5)

    asyncio.run(run())


def ask(connection: Connection) -> asyncio.Task[Any]:
    return asyncio.ensure_future(connection.call(METADATA, 12, {"topics": []}, timeout_ms=30_000))


def test_it_logs_in_again_and_again() -> None:
    async def play(broker: ScriptedBroker, connection: Connection) -> None:
        while broker.received.count(AUTHENTICATE) < 4:
            await ask(connection)
        logins = [key for key in broker.received if key in LOGIN]
        assert logins == LOGIN * (len(logins) // 2)
        assert set(broker.passwords) == {b"\0anna\0secret"}
        assert base64.b64encode(broker.passwords[0]) not in repr(connection).encode()

    played(play)


def test_requests_wait_until_the_login_is_done() -> None:
    """Between its two requests the broker allows no other; responses before arrive."""

    async def play(broker: ScriptedBroker, connection: Connection) -> None:
        asked, answered = asyncio.Event(), asyncio.Event()

        async def gate() -> None:
            asked.set()
            await answered.wait()

        broker.gate = gate
        await asked.wait()
        waiting = [ask(connection) for _ in range(3)]
        connection.post_without_response(ApiKey.PRODUCE, 9, (b"records",))
        await asyncio.sleep(0)
        assert broker.received[-1] == HANDSHAKE
        assert connection.in_flight == 5, "they and the handshake"
        broker.session_ms = 0
        waiting.pop().cancel()
        answered.set()
        await asyncio.gather(*waiting)
        await ask(connection)
        after = broker.received[len(broker.received) - broker.received[::-1].index(HANDSHAKE) :]
        assert after[0] == AUTHENTICATE
        assert after[1:] == [ApiKey.PRODUCE, METADATA, METADATA, METADATA, METADATA]

    played(play)


def test_a_session_without_a_limit_is_left_alone() -> None:
    async def play(broker: ScriptedBroker, connection: Connection) -> None:
        broker.session_ms = 0
        while broker.received.count(AUTHENTICATE) < 2:
            await ask(connection)
        await ask(connection)
        assert connection._session_timer is not None
        assert connection._session_timer.when() < asyncio.get_running_loop().time()

    played(play)


def test_a_refused_login_closes_the_connection() -> None:
    async def play(broker: ScriptedBroker, connection: Connection) -> None:
        broker.refusal = ErrorCode.SASL_AUTHENTICATION_FAILED
        while connection.is_open:
            with contextlib.suppress(PeerError):
                await ask(connection)
        with pytest.raises(PeerError, match="no more") as error:
            await ask(connection)
        assert error.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED

    played(play)


def test_a_login_that_comes_too_early_is_a_lost_connection() -> None:
    """The client connects again."""

    async def play(broker: ScriptedBroker, connection: Connection) -> None:
        broker.is_too_early = True
        while connection.is_open:
            with contextlib.suppress(ConnectionLost):
                await ask(connection)
        with pytest.raises(ConnectionLost, match="log in again"):
            await ask(connection)

    played(play)


def test_requests_that_wait_fail_if_the_connection_is_lost() -> None:
    async def play(broker: ScriptedBroker, connection: Connection) -> None:
        asked = asyncio.Event()

        async def gate() -> None:
            asked.set()
            await asyncio.get_running_loop().create_future()

        broker.gate = gate
        await asked.wait()
        waiting = ask(connection)
        await asyncio.sleep(0)
        connection.close(ConnectionLost("the test ends it"))
        with pytest.raises(ConnectionLost, match="the test ends it"):
            await waiting
        assert connection.in_flight == 0

    played(play)
