"""A connection to another node: requests out, responses in, in request order.

Owns the framing, the receive buffers, and the peer's ApiVersions response (versions, features). Knows nothing of the
requests' content. All sockets are opened by a `Dial`, which a simulation replaces.

A response larger than the initial buffer is received into memory of its own size; or, if the caller has one request in
flight at a time and is finished with a response before the next request, into memory that is reused (`lends_answers`).
A response larger than this node's limit closes the connection after its first bytes, which tell its partition
(`AnswerTooLarge`). So memory is bounded by the configuration (`largest_answer`), whatever a peer announces.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fenceline import __version__
from fenceline.errors import ErrorCode
from fenceline.wire import entities
from fenceline.wire.apis import ApiKey
from fenceline.wire.errors import MalformedRequest
from fenceline.wire.extensions import SOFTWARE_NAME
from fenceline.wire.frame import encode_request_frame, parse_response_header

if TYPE_CHECKING:
    import ssl

Dial = Callable[[Callable[[], asyncio.BaseProtocol], str, int], Awaitable[tuple[asyncio.BaseTransport, Any]]]
"""(protocol factory, host, port) -> (transport, protocol), as `loop.create_connection`. Raises OSError;
ConnectionRefusedError if the port is closed."""

LARGEST_ANSWER_BYTES: Final = 100 << 20
"""Default limit of a response: the default of `socket.request.max.bytes`."""
_API_VERSIONS: Final = (4, 3)
"""Version 3 omits features with a minimum level of 0, such as kraft.version."""
_CONNECT_S: Final = 5.0
_BUFFER_BYTES: Final = 64 << 10
_SIZE_PREFIX_BYTES: Final = 4
_CORRELATION_ID_BYTES: Final = 4
_BEGUN_BYTES: Final = 4 << 20
"""Bytes received of a response that is too large: the rows of tens of thousands of partitions."""
_LENT_BYTES_AT_REST: Final = 1 << 20
"""A larger reusable buffer is freed when the next response is small."""


class PeerConnectionLost(ConnectionError):
    """No response will arrive on this connection; whether the request was handled is unknown."""


class PeerNotAnswering(PeerConnectionLost):
    """Nothing arrived in time."""


class AnswerTooLarge(PeerConnectionLost):
    """The response exceeds this node's limit, so this node closed the connection.

    begun: the first bytes of its body.
    """

    def __init__(self, peer: str, size_bytes: int, largest_bytes: int, begun: memoryview) -> None:
        super().__init__(f"{peer} sent a response of {size_bytes} bytes; the limit is {largest_bytes} bytes")
        self.size_bytes = size_bytes
        self.largest_bytes = largest_bytes
        self.begun = begun


class NoSuchVersion(Exception):
    """The peer supports no version of this API that this node supports."""


class _Pending(NamedTuple):
    api_key: int
    version: int
    correlation_id: int
    answer: asyncio.Future[memoryview]


def dial(factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> Awaitable[tuple[Any, Any]]:
    """A TCP connection."""
    return asyncio.get_running_loop().create_connection(factory, host, port)


def dial_from(address: str, context: Callable[[], ssl.SSLContext] | None = None) -> Dial:
    """`dial`, from an address of this machine (`fenceline.outbound.address`); "" lets the system choose. `context`: of
    each connection, with TLS."""
    if not address and context is None:
        return dial
    options: dict[str, Any] = {"local_addr": (address, 0)} if address else {}

    def dial_with(factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> Awaitable[tuple[Any, Any]]:
        if context is not None:
            options.update(ssl=context(), ssl_handshake_timeout=_CONNECT_S)
        return asyncio.get_running_loop().create_connection(factory, host, port, **options)

    return dial_with


class PeerConnection(asyncio.BufferedProtocol):
    """See the module docstring. Open it with `open_peer`.

    lends_answers: a response body belongs to the connection and is valid until the next request is sent, so only one
    request may be in flight. largest_answer: returns the size limit of a response in bytes; called only for a response
    larger than the last known limit.
    """

    def __init__(
        self,
        peer: str,
        client_id: str,
        *,
        lends_answers: bool = False,
        largest_answer: Callable[[], int] = lambda: LARGEST_ANSWER_BYTES,
    ) -> None:
        self.peer = peer
        self.versions: Mapping[int, tuple[int, int]] = {}
        """Supported versions of the peer, by API key."""
        self.api_versions: Any = None
        """The peer's complete ApiVersions response."""
        self.fenceline_level = 0
        """Which extensions the peer takes part in (`wire.extensions`); 0 for Kafka's nodes."""
        self._client_id = client_id
        self._lends_answers = lends_answers
        self._largest_answer = largest_answer
        self._largest_bytes = 0
        """The last result of `largest_answer`."""
        self._too_large_bytes = 0
        """The size of a response that is too large, while its first bytes are received."""
        self._transport: asyncio.Transport | None = None
        self._view = memoryview(bytearray(_BUFFER_BYTES))
        self._start = 0
        self._end = 0
        self._large: memoryview | None = None
        """A response that does not fit into the buffer; `_large_end` bytes of it have been received."""
        self._large_end = 0
        self._lent = bytearray()
        self._pending: deque[_Pending] = deque()
        self._next_correlation_id = 0
        self._why_lost = f"the connection to {peer} was lost"
        self._is_closed_here = False

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def was_closed_by_peer(self) -> bool:
        """Whether the peer or the network closed the connection, rather than this node."""
        return not self.is_open and not self._is_closed_here

    @property
    def received_bytes(self) -> int:
        """Bytes received of an incomplete large response."""
        return self._large_end if self._large is not None else 0

    @property
    def is_busy(self) -> bool:
        """Whether a response is pending."""
        return bool(self._pending)

    def close(self, reason: str = "") -> None:
        """Pending requests fail with ConnectionLost(`reason`)."""
        # If the peer closed first, `is_open` is already False, and `was_closed_by_peer` stays True.
        self._is_closed_here = self._is_closed_here or self.is_open
        if self._transport is not None:
            self._why_lost = reason or self._why_lost
            self._transport.abort()
            self._lost()

    def version_for(self, key: ApiKey, low: int, high: int) -> int:
        """The newest version that both sides support. Raises NoSuchVersion."""
        least, most = self.versions.get(key, (0, -1))
        version = min(most, high)
        if version < max(least, low):
            raise NoSuchVersion(f"{self.peer} supports no version of {key.name} that this node supports")
        return version

    def post(self, key: int, version: int, body: bytes | Sequence[Any]) -> asyncio.Future[memoryview]:
        """Send a request; the response body. The future fails with ConnectionLost."""
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        if not self.is_open:
            answer.set_exception(PeerConnectionLost(f"not connected to {self.peer}"))
            return answer
        assert not (self._lends_answers and self._pending), "one request at a time"
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        self._pending.append(_Pending(key, version, correlation_id, answer))
        assert self._transport is not None, "it is open"
        self._transport.writelines(encode_request_frame(key, version, correlation_id, self._client_id, body))
        return answer

    async def call(self, key: ApiKey, version: int, fields: Mapping[str, Any], timeout_s: float) -> Any:
        """The response entity. Raises ConnectionLost, also on a timeout, and MalformedRequest."""
        answer = self.post(key, version, entities.write_request(key, version, fields))
        try:
            async with asyncio.timeout(timeout_s):
                body = await answer
        except TimeoutError:
            self.close()
            raise PeerConnectionLost(f"{self.peer} did not respond to {key.name} within {timeout_s} s") from None
        return entities.read_response(key, version, body)

    # -- asyncio's side ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        plain = transport.get_extra_info("socket")
        if plain is not None:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()

    def get_buffer(self, sizehint: int) -> memoryview:
        large = self._large
        return self._view[self._end :] if large is None else large[self._large_end :]

    def buffer_updated(self, nbytes: int) -> None:
        large = self._large
        if large is None:
            self._end += nbytes
            self._take_answers()
            return
        self._large_end += nbytes
        if self._large_end == len(large):
            self._large = None
            if self._too_large_bytes:
                self._reject_too_large(large)
            else:
                self._answered(large)

    def _take_answers(self) -> None:
        """Parse the buffer, which afterwards has room for more."""
        view, position, end = self._view, self._start, self._end
        while end - position >= _SIZE_PREFIX_BYTES:
            size = int.from_bytes(view[position : position + _SIZE_PREFIX_BYTES], "big", signed=True)
            if size < _CORRELATION_ID_BYTES or not self._pending:
                self._close_invalid()
                return
            first, behind = position + _SIZE_PREFIX_BYTES, position + _SIZE_PREFIX_BYTES + size
            if size > self._largest_bytes and not self._is_taken(size):
                if end - first < _CORRELATION_ID_BYTES:
                    break
                correlation_id = int.from_bytes(view[first : first + _CORRELATION_ID_BYTES], "big", signed=True)
                if correlation_id != self._pending[0].correlation_id:
                    self._close_invalid()
                    return
                self._begin_too_large(view[first:end], size)
                return
            if behind > end:
                if size > _BUFFER_BYTES - _SIZE_PREFIX_BYTES:
                    self._begin_large(view[first:end], size)
                    position = end
                break
            frame = view[first:behind]
            position = behind
            if len(self._lent) > _LENT_BYTES_AT_REST:
                self._lent = bytearray()
            if not self._answered(frame if self._lends_answers else memoryview(bytes(frame))):
                return
        if position == end:
            self._start = self._end = 0
        elif position:
            view[: end - position] = view[position:end]
            self._start, self._end = 0, end - position

    def _is_taken(self, size: int) -> bool:
        self._largest_bytes = max(self._largest_bytes, self._largest_answer())
        return size <= self._largest_bytes

    def _close_invalid(self) -> None:
        self.close(f"{self.peer} sent a response that is not valid in the Kafka protocol")

    def _begin_too_large(self, begun: memoryview, size: int) -> None:
        self._too_large_bytes = size
        enough = min(size, _BEGUN_BYTES)
        if len(begun) >= enough:
            self._reject_too_large(begun)
        else:
            self._begin_large(begun, enough)

    def _reject_too_large(self, begun: memoryview) -> None:
        """The oldest request fails with AnswerTooLarge, and the connection is closed."""
        pending = self._pending.popleft()
        try:
            _, start = parse_response_header(pending.api_key, pending.version, begun)
        except MalformedRequest:
            start = len(begun)
        if not pending.answer.done():
            body = memoryview(bytes(begun[start:]))
            pending.answer.set_exception(AnswerTooLarge(self.peer, self._too_large_bytes, self._largest_bytes, body))
            pending.answer.exception()  # mark as retrieved: the caller may have been cancelled
        self.close(f"{self.peer} sent a response larger than this node's limit")

    def _begin_large(self, begun: memoryview, size: int) -> None:
        if not self._lends_answers:
            large = memoryview(bytearray(size))
        else:
            if len(self._lent) < size:
                self._lent = bytearray(size)
            large = memoryview(self._lent)[:size]
        large[: len(begun)] = begun
        self._large, self._large_end = large, len(begun)

    def _answered(self, frame: memoryview) -> bool:
        """Whether the response matches the oldest request; if not, the connection is closed."""
        pending = self._pending[0]
        try:
            correlation_id, start = parse_response_header(pending.api_key, pending.version, frame)
        except MalformedRequest:
            correlation_id, start = -1, 0
        if correlation_id != pending.correlation_id:
            self.close()
            return False
        self._pending.popleft()
        if not pending.answer.done():
            pending.answer.set_result(frame[start:].toreadonly())
        return True

    def _lost(self) -> None:
        self._transport = None
        while self._pending:
            answer = self._pending.popleft().answer
            if not answer.done():
                answer.set_exception(PeerConnectionLost(self._why_lost))
                answer.exception()  # mark as retrieved: the caller may have been cancelled


async def open_peer(
    host: str,
    port: int,
    *,
    client_id: str,
    connect: Dial = dial,
    lends_answers: bool = False,
    largest_answer: Callable[[], int] = lambda: LARGEST_ANSWER_BYTES,
) -> PeerConnection:
    """Connect and negotiate API versions.

    Raises ConnectionRefusedError if the port is closed, else ConnectionError.
    """
    peer = f"{host}:{port}"
    connection = PeerConnection(peer, client_id, lends_answers=lends_answers, largest_answer=largest_answer)
    try:
        async with asyncio.timeout(_CONNECT_S):
            await connect(lambda: connection, host, port)
    except TimeoutError:
        raise PeerNotAnswering(f"{peer} did not accept a connection within {_CONNECT_S} s") from None
    except ConnectionError:
        raise
    except OSError as error:
        raise PeerConnectionLost(f"could not connect to {peer}: {error}") from None
    try:
        await negotiate_versions(connection)
    except BaseException:
        connection.close()
        raise
    return connection


async def negotiate_versions(connection: PeerConnection) -> Any:
    """Send ApiVersions; the response entity. Raises ConnectionError."""
    software = {"client_software_name": SOFTWARE_NAME, "client_software_version": __version__}
    for version in _API_VERSIONS:
        try:
            body = await _in_time(connection, version, software)
            if int.from_bytes(body[:2], "big", signed=True) == ErrorCode.UNSUPPORTED_VERSION:
                continue
            answer = entities.read_response(ApiKey.API_VERSIONS, version, body)
        except MalformedRequest as error:
            raise PeerConnectionLost(f"{connection.peer} does not speak the Kafka protocol: {error}") from None
        connection.api_versions = answer
        connection.fenceline_level = answer.fenceline_level
        connection.versions = {int(each.api_key): (each.min_version, each.max_version) for each in answer.api_keys}
        return answer
    raise PeerConnectionLost(f"{connection.peer} supports no version of ApiVersions that this node supports")


async def _in_time(connection: PeerConnection, version: int, fields: Mapping[str, Any]) -> memoryview:
    answer = connection.post(ApiKey.API_VERSIONS, version, entities.write_request(ApiKey.API_VERSIONS, version, fields))
    try:
        async with asyncio.timeout(_CONNECT_S):
            return await answer
    except TimeoutError:
        connection.close()
        raise PeerNotAnswering(f"{connection.peer} did not respond to ApiVersions within {_CONNECT_S} s") from None
