"""One TCP connection to a broker: framing, pipelining, timeouts. Retries nothing.

A broker answers the requests of a connection in order, so the requests in flight are a queue, and a response whose
correlation id does not match its head closes the connection. A large response is received directly into its own
buffer: the records of a Fetch are not copied between socket and decoder. A request that times out closes the
connection, because all later responses come after the missing one.

A broker that limits the session of a login (KIP-368) closes the connection when it ends. So the connection logs in
again before, while new requests wait: the broker allows no other request in between.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar

from fenceline.client.core.config import ClientConfig
from fenceline.client.core.errors import ConnectionLost, TimedOut, broker_error, error_code
from fenceline.client.core.login import ClientLogin
from fenceline.client.core.security import Exchange
from fenceline.client.core.surroundings import surroundings
from fenceline.client.core.versions import SUPPORTED, client_software, negotiate
from fenceline.errors import ErrorCode, OperatorError
from fenceline.wire import entities, frame
from fenceline.wire.apis import ApiKey

Buffer = bytes | bytearray | memoryview
T = TypeVar("T")

_OF_LOGIN: Final = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
_NO_LIMIT: Final = timedelta()
_FIRST_SCRATCH_BYTES: Final = 2 * 1024
_SCRATCH_BYTES: Final = 64 * 1024
"""Small responses are received into a buffer that grows from the first to the second size while reads fill it."""
_GROWTH: Final = 4
_DIRECT_BYTES: Final = 16 * 1024
"""Responses of at least this size that are not complete in the scratch buffer get their own buffer."""


_REAUTHENTICATE_AT: Final = (0.85, 0.95)
"""The part of a session after which the connection logs in again, chosen at random as Java's clients do (A21)."""
_SHORTEST_S: Final = 1.05
"""Brokers let a connection log in again once a second (A21)."""


class _Pending(NamedTuple):
    correlation_id: int
    api_key: ApiKey
    version: int
    answer: asyncio.Future[memoryview]
    timer: asyncio.TimerHandle


class _HeldBack(NamedTuple):
    """A request that waits until the connection has logged in again; `pending` None: it has no response."""

    correlation_id: int
    api_key: ApiKey
    version: int
    body: Sequence[Buffer]
    pending: _Pending | None


class Connection(asyncio.BufferedProtocol):
    """Created by `open_connection`. All methods run on the loop's thread."""

    def __init__(self, peer: str, client_id: str, max_answer_bytes: int) -> None:
        self.peer = peer
        self.versions: dict[int, tuple[int, int]] = {}
        self.features: dict[str, int] = {}
        """The finalized feature levels when the connection was established."""
        self.features_epoch = -1
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._client_id = client_id
        self._max_answer_bytes = max_answer_bytes
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._pending: deque[_Pending] = deque()
        self._next_correlation_id = 0
        self._scratch = bytearray(_FIRST_SCRATCH_BYTES)
        self._scratch_view = memoryview(self._scratch)
        self._held = 0
        self._body: bytearray | None = None
        self._body_filled = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self._reason: Exception | None = None
        self.alert: str | None = None
        """Of TLS, with which the broker ended the connection: of TLS 1.3 the first one comes after the handshake."""
        self._held_back: deque[_HeldBack] | None = None
        """Requests that wait, while the connection logs in again."""
        self._session_timer: asyncio.TimerHandle | None = None
        self._reauthenticating: asyncio.Task[None] | None = None

    # -- requests

    @property
    def in_flight(self) -> int:
        return len(self._pending) + len(self._held_back or ())

    @property
    def is_open(self) -> bool:
        return self._transport is not None and self._reason is None

    def post(
        self, api_key: ApiKey, version: int, body: Sequence[Buffer], *, timeout_ms: int
    ) -> asyncio.Future[memoryview]:
        """Send a request immediately; returns a future of the response's body (a view that owns its memory)."""
        self._check_open()
        correlation_id = self._allocate_correlation_id()
        answer: asyncio.Future[memoryview] = self._loop.create_future()
        timer = self._loop.call_later(timeout_ms / 1000, self._expire, api_key, timeout_ms)
        pending = _Pending(correlation_id, api_key, version, answer, timer)
        if self._held_back is not None and api_key not in _OF_LOGIN:
            self._held_back.append(_HeldBack(correlation_id, api_key, version, body, pending))
            return answer
        self._pending.append(pending)
        self._write(api_key, version, correlation_id, body)
        return answer

    def post_without_response(self, api_key: ApiKey, version: int, body: Sequence[Buffer]) -> None:
        """Send a request that has no response (Produce with acks=0)."""
        self._check_open()
        correlation_id = self._allocate_correlation_id()
        if self._held_back is not None:
            self._held_back.append(_HeldBack(correlation_id, api_key, version, body, None))
            return
        self._write(api_key, version, correlation_id, body)

    async def drained(self) -> None:
        """Wait until the socket accepts more data, or the connection is lost."""
        if not self._writable.is_set():
            await self._writable.wait()

    async def exchange(
        self,
        api_key: ApiKey,
        version: int,
        body: Sequence[Buffer],
        decode: Callable[[int, memoryview], T],
        *,
        timeout_ms: int,
    ) -> T:
        """Send a request, wait for the response and decode it. Raises ConnectionLost or TimedOut."""
        return decode(version, await self.post(api_key, version, body, timeout_ms=timeout_ms))

    async def call(
        self,
        api_key: ApiKey,
        version: int,
        fields: dict[str, Any],
        *,
        timeout_ms: int,
        decode: Callable[[int, memoryview], Any] | None = None,
    ) -> Any:
        """`exchange` for an API that uses the generated entities. `decode`: reads the response instead of them."""
        body = entities.write_request(api_key, version, fields)
        answer = await self.post(api_key, version, (body,), timeout_ms=timeout_ms)
        return entities.read_response(api_key, version, answer) if decode is None else decode(version, answer)

    def version_for(self, api_key: ApiKey) -> int:
        """The newest version that both sides support. Raises PeerError(UNSUPPORTED_VERSION) if there is none."""
        return negotiate(api_key, self.versions.get(api_key), self.peer)

    def max_version(self, api_key: ApiKey) -> int:
        """The broker's newest version of an API, -1 if it has none."""
        return self.versions.get(api_key, (0, -1))[1]

    def close(self, reason: Exception | None = None) -> None:
        """Close the connection. Without a reason, buffered data is still sent; with one, the requests in flight fail
        immediately.
        """
        if self._reason is None:
            self._reason = reason or ConnectionLost(f"the connection to {self.peer} was closed by this client")
        if self._transport is None:
            self._fail_pending()
        elif reason is None:
            self._transport.close()
        else:
            self._transport.abort()

    async def closed(self, timeout_s: float) -> None:
        """Wait until a closed connection has sent its buffered data; abort it after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self.lost)
        except TimeoutError:
            if self._transport is not None:
                self._transport.abort()

    # -- logging in

    async def authenticate(self, login: ClientLogin, timeout_ms: int) -> None:
        """Log in, and again before each session ends. Raises PeerError if the broker refuses."""
        self._limit_session(login, timeout_ms, await _authenticate(self, login, await login.exchange(), timeout_ms))

    def _limit_session(self, login: ClientLogin, timeout_ms: int, lifetime_s: float) -> None:
        if lifetime_s > 0:
            wait_s = max(_SHORTEST_S, lifetime_s * surroundings().rng.uniform(*_REAUTHENTICATE_AT))
            self._session_timer = self._loop.call_later(wait_s, self._begin_again, login, timeout_ms)

    def _begin_again(self, login: ClientLogin, timeout_ms: int) -> None:
        if self.is_open:
            self._reauthenticating = asyncio.ensure_future(self._authenticate_again(login, timeout_ms))

    async def _authenticate_again(self, login: ClientLogin, timeout_ms: int) -> None:
        try:
            exchange = await login.exchange()
            self._held_back = deque()
            self._limit_session(login, timeout_ms, await _authenticate(self, login, exchange, timeout_ms))
        except Exception as error:
            self.close(error)
            return
        held_back, self._held_back = self._held_back, None
        for each in held_back or ():
            if not self.is_open:
                return
            if each.pending is not None:
                self._pending.append(each.pending)
            self._write(each.api_key, each.version, each.correlation_id, each.body)

    # -- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "writelines")
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if isinstance(exc, ssl.SSLError) and "ALERT" in (exc.reason or ""):
            self.alert = exc.reason.replace("_", " ").lower()
        if self._reason is None:
            detail = f": {exc}" if exc else " (the broker closed it)"
            self._reason = ConnectionLost(f"the connection to {self.peer} was lost{detail}")
        self._writable.set()
        self._fail_pending()
        if not self.lost.done():
            self.lost.set_result(None)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def eof_received(self) -> bool:
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._body is not None:
            return memoryview(self._body)[self._body_filled :]
        return self._scratch_view[self._held :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._body is not None:
            self._body_filled += nbytes
            if self._body_filled == len(self._body):
                whole, self._body = self._body, None
                self._answered(memoryview(whole))
            return
        self._held += nbytes
        is_filled = self._held == len(self._scratch) < _SCRATCH_BYTES
        self._cut_frames()
        if is_filled:
            self._grow_scratch()

    # -- inside

    def _grow_scratch(self) -> None:
        grown = bytearray(min(_GROWTH * len(self._scratch), _SCRATCH_BYTES))
        grown[: self._held] = self._scratch[: self._held]
        self._scratch, self._scratch_view = grown, memoryview(grown)

    def _cut_frames(self) -> None:
        position, held, view = 0, self._held, self._scratch_view
        while held - position >= 4:
            size = int.from_bytes(view[position : position + 4], "big", signed=True)
            if not 0 < size <= self._max_answer_bytes:
                self.close(
                    ConnectionLost(
                        f"{self.peer} sent a response of {size} bytes (receive.message.max.bytes="
                        f"{self._max_answer_bytes}). Check that it is a Kafka listener, and security.protocol."
                    )
                )
                return
            available = held - position - 4
            if available >= size:
                self._answered(memoryview(bytes(view[position + 4 : position + 4 + size])))
                position += 4 + size
                if self._reason is not None:
                    return
                continue
            if size >= _DIRECT_BYTES or 4 + size > len(self._scratch):
                self._body = bytearray(size)
                self._body[:available] = view[position + 4 : held]
                self._body_filled = available
                position = held
            break
        if position:
            rest = held - position
            self._scratch[:rest] = self._scratch[position:held]
            self._held = rest

    def _answered(self, answer: memoryview) -> None:
        if not self._pending:
            self.close(ConnectionLost(f"{self.peer} sent a response without a request"))
            return
        pending = self._pending.popleft()
        pending.timer.cancel()
        correlation_id, body_position = frame.parse_response_header(pending.api_key, pending.version, answer)
        if correlation_id != pending.correlation_id:
            error = ConnectionLost(
                f"{self.peer} sent a response out of order (correlation id {correlation_id}, expected "
                f"{pending.correlation_id})"
            )
            if not pending.answer.done():
                pending.answer.set_exception(error)
            self.close(error)
            return
        if not pending.answer.done():
            pending.answer.set_result(answer[body_position:])

    def _write(self, api_key: ApiKey, version: int, correlation_id: int, body: Sequence[Buffer]) -> None:
        assert self._transport is not None
        self._transport.writelines(frame.encode_request_frame(api_key, version, correlation_id, self._client_id, body))

    def _allocate_correlation_id(self) -> int:
        taken = self._next_correlation_id
        self._next_correlation_id = (taken + 1) & 0x7FFFFFFF
        return taken

    def _check_open(self) -> None:
        if not self.is_open:
            raise self._reason or ConnectionLost(f"not connected to {self.peer}")

    def _expire(self, api_key: ApiKey, timeout_ms: int) -> None:
        self.close(TimedOut(f"{self.peer} did not answer {api_key.name} within {timeout_ms} ms"))

    def _fail_pending(self) -> None:
        if self._session_timer is not None:
            self._session_timer.cancel()
        if self._reauthenticating is not None:
            self._reauthenticating.cancel()
        held_back, self._held_back = self._held_back or (), None
        self._pending.extend(each.pending for each in held_back if each.pending is not None)
        while self._pending:
            pending = self._pending.popleft()
            pending.timer.cancel()
            if not pending.answer.done():
                assert self._reason is not None
                pending.answer.set_exception(self._reason)


async def open_connection(
    host: str, port: int, config: ClientConfig, tls: ssl.SSLContext | None, login: ClientLogin | None = None
) -> Connection:
    """Connect, fetch the broker's API versions and authenticate. `login`: of all connections of the client.

    Raises ConnectionLost if the broker cannot be reached or closes the connection, TimedOut if it does not answer,
    PeerError if authentication fails and OperatorError if the TLS handshake fails.
    """
    peer = f"{host}:{port}"
    loop = asyncio.get_running_loop()
    timeout_ms = int(config["socket.connection.setup.timeout.ms"])
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            transport, connection = await loop.create_connection(
                lambda: Connection(peer, config["client.id"], config["receive.message.max.bytes"]),
                host,
                port,
                ssl=tls,
                server_hostname=host if tls is not None else None,
            )
    except TimeoutError:
        doing = "accept a connection" if tls is None else "accept a connection and complete its TLS handshake"
        raise TimedOut(f"{peer} did not {doing} within {timeout_ms} ms") from None
    except OSError as error:
        if type(error).__module__ == "ssl":
            raise OperatorError(
                f"{peer}: the TLS handshake failed: {error}{_plaintext_hint(error, config)}",
                "Check security.protocol, ssl.ca.location and that the certificate names this host.",
            ) from None
        if tls is not None and isinstance(error, (ConnectionResetError, ConnectionAbortedError, BrokenPipeError)):
            # A broker that is stopping causes this too, so it is retriable.
            raise ConnectionLost(
                f"{peer} closed the connection in the TLS handshake: security.protocol="
                f"{config['security.protocol']} requires a TLS listener, and the port may be a plaintext one"
            ) from None
        raise ConnectionLost(f"no connection to {peer}: {error or type(error).__name__}") from None
    _set_socket_options(transport, config)
    try:
        await _fetch_api_versions(connection, config)
        if config["security.protocol"].startswith("SASL"):
            await connection.authenticate(login or ClientLogin(config), int(config["request.timeout.ms"]))
    except ConnectionLost:
        connection.close()
        if connection.alert is not None:
            raise OperatorError(
                f"{peer} refused this client's certificate, or the lack of one: {connection.alert}",
                "Check ssl.certificate.location and ssl.key.location, or ssl.keystore.*: the broker must trust the"
                " authority of the certificate, which must not have expired.",
            ) from None
        raise
    except BaseException:
        connection.close()
        raise
    return connection


def _plaintext_hint(error: OSError, config: ClientConfig) -> str:
    """A hint if the peer may not use TLS at all: OpenSSL reads its bytes as a TLS record of an invalid version."""
    if getattr(error, "reason", None) not in ("WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING"):
        return ""
    return f" (security.protocol={config['security.protocol']}, and the port may be a plaintext one)"


def _set_socket_options(transport: asyncio.Transport, config: ClientConfig) -> None:
    transport.set_write_buffer_limits(high=4 * 1024 * 1024)
    plain: socket.socket | None = transport.get_extra_info("socket")
    if plain is None:
        return
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, option in (("send.buffer.bytes", socket.SO_SNDBUF), ("receive.buffer.bytes", socket.SO_RCVBUF)):
        if config[name] > 0:
            plain.setsockopt(socket.SOL_SOCKET, option, config[name])


class _Offer(NamedTuple):
    """What an ApiVersions response says."""

    code: ErrorCode
    versions: Mapping[int, tuple[int, int]]
    features: Mapping[str, int]
    features_epoch: int


@lru_cache(maxsize=16)
def _read_offer(version: int, answer: bytes) -> _Offer:
    """Brokers of a cluster give all connections the same answer."""
    response = entities.read_response(ApiKey.API_VERSIONS, version, memoryview(answer))
    return _Offer(
        code=error_code(response.error_code),
        versions={int(k.api_key): (int(k.min_version), int(k.max_version)) for k in response.api_keys},
        features={f.name: int(f.max_version_level) for f in getattr(response, "finalized_features", ())},
        features_epoch=int(getattr(response, "finalized_features_epoch", -1)),
    )


async def _fetch_api_versions(connection: Connection, config: ClientConfig) -> None:
    timeout_ms = int(config["request.timeout.ms"])
    version = SUPPORTED[ApiKey.API_VERSIONS][1]
    name, software_version = client_software()
    for _attempt in range(2):
        fields = {"client_software_name": name, "client_software_version": software_version}
        body = entities.write_request(ApiKey.API_VERSIONS, version, fields)
        answer = await connection.post(ApiKey.API_VERSIONS, version, (body,), timeout_ms=timeout_ms)
        # A broker that does not support this version answers in version 0 with its own newest one.
        if version > 0 and int.from_bytes(answer[:2], "big", signed=True) == ErrorCode.UNSUPPORTED_VERSION:
            refusal = entities.read_response(ApiKey.API_VERSIONS, 0, answer)
            offered = next((k for k in refusal.api_keys if int(k.api_key) == ApiKey.API_VERSIONS), None)
            version = min(version - 1, int(offered.max_version)) if offered is not None else 0
            continue
        offer = _read_offer(version, bytes(answer))
        if offer.code is not ErrorCode.NONE:
            raise broker_error(offer.code, f"{connection.peer} rejected ApiVersions")
        connection.versions, connection.features = dict(offer.versions), dict(offer.features)
        connection.features_epoch = offer.features_epoch
        return
    raise broker_error(ErrorCode.UNSUPPORTED_VERSION, f"{connection.peer} supports no common version of ApiVersions")


async def _authenticate(connection: Connection, login: ClientLogin, exchange: Exchange, timeout_ms: int) -> float:
    """One login. The length of the session in seconds, 0 without a limit."""
    mechanism = login.mechanism
    key = ApiKey.SASL_HANDSHAKE
    handshake = await connection.call(key, connection.version_for(key), {"mechanism": mechanism}, timeout_ms=timeout_ms)
    code = error_code(handshake.error_code)
    if code is ErrorCode.ILLEGAL_SASL_STATE:
        raise ConnectionLost(f"{connection.peer} does not let this connection log in again")
    if code is not ErrorCode.NONE:
        raise broker_error(code, f"{connection.peer} supports {', '.join(handshake.mechanisms)}, not {mechanism}")
    key, message = ApiKey.SASL_AUTHENTICATE, next(exchange)
    while True:
        version = connection.version_for(key)
        reply = await connection.call(key, version, {"auth_bytes": message}, timeout_ms=timeout_ms)
        code = error_code(reply.error_code)
        if code is not ErrorCode.NONE:
            login.refused()
            raise broker_error(code, f"{connection.peer} rejected the login", reply.error_message)
        try:
            message = exchange.send(bytes(reply.auth_bytes))
        except StopIteration:
            return max(0.0, getattr(reply, "session_lifetime", _NO_LIMIT).total_seconds())
