"""Listeners, the dispatch table and the budget of receive memory.

Owns every open connection. Decides nothing about the protocol, and knows no handler: a request is dispatched by API key
and version to the tables that the server is given.

- An unknown API key or version closes the connection with a log line.
- Receive buffers beyond the first 64 KiB of a connection come out of one budget (`queued.max.request.bytes`); when it
  is exhausted, a connection stops reading until others have released memory. While connections wait, enlarged buffers
  are released as soon as they are empty, and a peer that stalls in the middle of a large request is disconnected.
- A sweep closes connections that were idle for `connections.max.idle.ms`, shrinks enlarged buffers and closes the
  second descriptors of connections that send no more records.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from fenceline.errors import OperatorError, PeerError
from fenceline.node.context import Answer, AnswerOnce, Api, RequestContext
from fenceline.node.logs import Logger
from fenceline.node.net.connection import INITIAL_BUFFER_BYTES, PendingAnswer, ServerConnection
from fenceline.node.repeated_lines import RepeatedLines, shape
from fenceline.security.acls import AskingPeer
from fenceline.security.authentication import SaslStep
from fenceline.security.rights import java_address
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_request, write_response
from fenceline.wire.frame import MalformedRequest, RequestHeader, encode_response_frame, parse_request_header
from fenceline.wire.principal import ANONYMOUS, Principal

if TYPE_CHECKING:
    from datetime import datetime

    from fenceline.metadata.changes import Delta
    from fenceline.metadata.image import MetadataImage
    from fenceline.node.client_limits import NodeQuotas
    from fenceline.node.metrics import NodeMetrics
    from fenceline.node.net.connection_limits import Admission, ConnectionLimits
    from fenceline.node.net.sasl import ListenersSasl
    from fenceline.node.net.tls import ListenersTls
    from fenceline.node.turns import Turns
    from fenceline.security.authentication import SaslConversation
    from fenceline.security.rights import RequestRights

log = Logger("server")
connection_log = Logger("connection")

Buffer: TypeAlias = bytes | bytearray | memoryview
RawHandler: TypeAlias = Callable[[RequestContext, memoryview], "list[Buffer] | PendingAnswer | None"]
"""A handler of the data path: receives the body's bytes, returns the frame, a pending response, or None (acks=0)."""
RawApi: TypeAlias = tuple[int, int, RawHandler]
"""Its versions (both ends inclusive), and the handler."""

Forward: TypeAlias = Callable[[Api, RequestContext, bytes], "Awaitable[Answer] | None"]
"""Forwards a request to another node; None: it is answered here."""


class RightsOfPeers(Protocol):
    """As `NodeAuthorization`."""

    def rights(self, peer: AskingPeer, request: int) -> RequestRights: ...


_SWEEPS_PER_IDLE_PERIOD: Final = 10
_SWEPT_IN_A_TURN: Final = 250
_ACCEPTED_AT_ONCE: Final = 16
_LARGE_BODY_BYTES: Final = 128 << 10
"""Decoding more takes longer than other connections should wait."""
_STALL_S: Final = 5.0
_OF_BROKERS: Final = (ApiKey.WRITE_TXN_MARKERS,)
"""Their time is nobody's."""
_THROTTLE_IN_METADATA_SINCE: Final = 3
_OF_SASL: Final = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Sizes and times of a server. Socket buffers of -1 are the system's.

    backlog: how many connections wait to be accepted; the system limits it (`net.core.somaxconn`)."""

    max_request_bytes: int
    receive_budget_bytes: int
    backlog: int
    idle_timeout_ms: int
    handshake_timeout_ms: int = 10_000
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1


class Server:
    """All listeners and connections of one node."""

    def __init__(
        self,
        apis: Iterable[Api],
        raw: Mapping[ApiKey, RawApi],
        limits: ServerLimits,
        connection_limits: ConnectionLimits,
        *,
        turns: Turns,
        metrics: NodeMetrics,
        threads: Executor,
        forward: Forward | None = None,
        has_urgent_requests: Callable[[], bool] = lambda: True,
        tls: ListenersTls | None = None,
        sasl: ListenersSasl | None = None,
        authorization: RightsOfPeers | None = None,
        quotas: NodeQuotas | None = None,
    ) -> None:
        """`threads` load the records of responses from the disk; `has_urgent_requests`: whether they must leave time
        for other requests. `tls`, `sasl`: None if no listener has it. `authorization`: None without an authorizer.
        `quotas`: None if clients are not limited here."""
        self.turns = turns
        self.metrics = metrics
        self.threads = threads
        self.has_urgent_requests = has_urgent_requests
        self.max_request_bytes = limits.max_request_bytes
        self._receive_budget_bytes = limits.receive_budget_bytes
        self._receive_free_bytes = limits.receive_budget_bytes
        self._waiting_for_room: deque[ServerConnection] = deque()
        self._connection_limits = connection_limits
        self._backlog = limits.backlog
        self._idle_timeout_ms = limits.idle_timeout_ms
        self._handshake_timeout_s = limits.handshake_timeout_ms / 1000
        self._socket_buffers = (
            (socket.SO_SNDBUF, limits.send_buffer_bytes),
            (socket.SO_RCVBUF, limits.receive_buffer_bytes),
        )
        self._apis: dict[int, Api] = {api.key: api for api in apis}
        self._raw: dict[int, RawApi] = {int(key): each for key, each in raw.items()}
        self._forward = forward
        self._tls = tls
        self._sasl = sasl
        self._authorization = authorization
        self._quotas = quotas
        self._failures = RepeatedLines(log.info)
        self._refusals = RepeatedLines(log.warning)
        self._closings = RepeatedLines(connection_log.warning)
        self._connections: dict[ServerConnection, None] = {}
        self._servers: list[asyncio.Server] = []
        self._sweeper: asyncio.Handle | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._is_granting = False
        self._favoured: ServerConnection | None = None
        self._stall_check: asyncio.TimerHandle | None = None
        self._draining: set[ServerConnection] = set()
        """While `close` waits: connections whose pending responses are not sent yet."""
        self._drained: asyncio.Event | None = None

    # --- lifecycle ------------------------------------------------------------------------------------------------

    async def bind(self, listener: str, host: str, port: int) -> int:
        """Bind one address; returns the port. `start_serving` opens it. Raises OperatorError if it cannot be bound."""
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(
                partial(self._accept, listener),
                host or None,
                port,
                # At most so many connections are accepted at once, between requests of others; uvloop accepts one.
                backlog=_ACCEPTED_AT_ONCE,
                reuse_address=True,
                start_serving=False,
            )
        except OSError as error:
            reason, advice = _bind_failure(error)
            raise OperatorError(f"Listener {listener} cannot bind to {host or '*'}:{port}: {reason}", advice) from error
        self._servers.append(server)
        for opened in server.sockets:
            # Accepted connections inherit these options.
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for option, size_bytes in self._socket_buffers:
                if size_bytes > 0:
                    opened.setsockopt(socket.SOL_SOCKET, option, size_bytes)
        return int(server.sockets[0].getsockname()[1])

    def open_backlog(self) -> None:
        """Accept TCP connections into the backlog, where they wait for `start_serving`.

        Raises OperatorError: two processes can bind an address, and only the first of them can listen on it."""
        for server in self._servers:
            for bound in server.sockets:
                try:
                    with bound.dup() as same:
                        same.listen(self._backlog)
                except OSError as error:
                    host, port = bound.getsockname()[:2]
                    reason, advice = _bind_failure(error)
                    raise OperatorError(f"Cannot listen on {host}:{port}: {reason}", advice) from error

    async def start_serving(self) -> None:
        """Accept connections on all bound addresses. Raises OperatorError, as `open_backlog` does."""
        self.open_backlog()
        for server in self._servers:
            await server.start_serving()
        # It has listened with the smaller backlog.
        self.open_backlog()
        self._sweep()

    async def close(self, *, drain_s: float = 1.0) -> None:
        """Stop accepting, let pending responses be sent for at most `drain_s`, then close every connection."""
        for server in self._servers:
            server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        if self._stall_check is not None:
            self._stall_check.cancel()
        self._draining = {connection for connection in self._connections if connection.is_busy}
        for connection in list(self._connections):
            connection.close_in_turn("the node is shutting down", quiet=True)
        if self._draining:
            self._drained = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._drained.wait(), drain_s)
        for task in list(self._tasks):
            task.cancel()
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)

    # --- connections ----------------------------------------------------------------------------------------------

    def _accept(self, listener: str) -> asyncio.BufferedProtocol:
        context = self._tls.context(listener) if self._tls is not None else None
        if context is None:
            return ServerConnection(self, listener)
        from fenceline.node.net.tls_connection import TlsConnection

        return TlsConnection(
            context,
            lambda: ServerConnection(self, listener, is_counted=True),
            handshake_timeout_s=self._handshake_timeout_s,
            begun=partial(self._admit, listener),
            gone=partial(self._connection_limits.closed, listener),
            ended=partial(self._handshake_ended, listener),
        )

    def _admit(self, listener: str, host: str) -> Admission:
        admission = self._connection_limits.open(listener, host)
        metrics = self.metrics
        metrics.accepted_connections += 1
        if admission.refusal is not None:
            metrics.refused_connections[admission.limit] = metrics.refused_connections.get(admission.limit, 0) + 1
        elif admission.delay_ms:
            metrics.delayed_connections += 1
        return admission

    def _handshake_ended(self, listener: str, peer: str, failure: str | None) -> None:
        if failure is not None:
            self.metrics.failed_authentications += 1
            self._note_failure("TLS handshake failed", listener, peer, failure)

    def _note_failure(self, event: str, listener: str, host: str, reason: str) -> None:
        self._failures.write(event, alike=(listener, host, shape(reason)), listener=listener, host=host, reason=reason)

    def note_closed(self, connection: ServerConnection, reason: str) -> None:
        """Any peer can be disconnected as often as it likes."""
        alike = (connection.listener, connection.host, shape(reason))
        self._closings.write("connection closed", alike=alike, peer=connection.peer, reason=reason)

    def register(self, connection: ServerConnection) -> bool:
        """Whether the connection is served; otherwise it is being closed."""
        self._connections[connection] = None
        self.metrics.connections = len(self._connections)
        if connection.is_counted:
            return True
        refusal, delay_ms, _ = self._admit(connection.listener, connection.host)
        if refusal is None:
            if delay_ms:
                connection.mute(delay_ms)
            return True
        self._refusals.write("connection refused", listener=connection.listener, host=connection.host, reason=refusal)
        if delay_ms:
            # Muted for longer than it is held: it is never served.
            connection.mute(2 * delay_ms)
            asyncio.get_running_loop().call_later(delay_ms / 1000, connection.abort)
        else:
            connection.abort()
        return False

    def limits_changed(self) -> None:
        """Keys about connections have other values. If there are too many by now, the longest idle ones are closed."""
        try:
            self._connection_limits.settings_changed()
        except OperatorError as error:
            log.error("limits of connections not changed", reason=error.message, advice=error.advice)
        counted = (each for each in self._connections if self._connection_limits.counts(each.listener))
        idlest = sorted(counted, key=lambda connection: -connection.idle_ticks)
        for connection in idlest[: self._connection_limits.surplus()]:
            self.turns.defer(partial(connection.close, "too many connections (max.connections)"))

    def certificate_expiries(self) -> dict[str, datetime]:
        """Of the listeners' certificates, in UTC."""
        return self._tls.expiries() if self._tls is not None else {}

    def principal(self, connection: ServerConnection, certificate: bytes | None) -> Principal | None:
        """Of a connection that is made; None if it must not be served."""
        return self._tls.principal(connection.listener, certificate) if self._tls is not None else ANONYMOUS

    def unregister(self, connection: ServerConnection, buffer_bytes: int) -> None:
        self._connections.pop(connection, None)
        if not connection.is_counted:
            self._connection_limits.closed(connection.listener, connection.host)
        self._draining.discard(connection)
        if self._drained is not None and not self._draining:
            self._drained.set()
        self.metrics.connections = len(self._connections)
        self.release_memory(max(buffer_bytes - INITIAL_BUFFER_BYTES, 0))

    def reserve(self, connection: ServerConnection, size_bytes: int) -> bool:
        """Reserve receive memory from the budget, or queue for it. A single connection always gets its memory."""
        if self._take(connection, size_bytes):
            return True
        for other in self._connections:
            self._receive_free_bytes += other.shrink_idle_buffer()
        if self._take(connection, size_bytes):
            return True
        if connection not in self._waiting_for_room:
            self._waiting_for_room.append(connection)
        if self._stall_check is None:
            self._mark_progress()
        asyncio.get_running_loop().call_soon(self._break_deadlock)
        return False

    def _take(self, connection: ServerConnection, size_bytes: int) -> bool:
        free_bytes = self._receive_free_bytes
        if size_bytes > free_bytes and free_bytes != self._receive_budget_bytes and connection is not self._favoured:
            return False
        self._receive_free_bytes = free_bytes - size_bytes
        return True

    @property
    def is_short_of_memory(self) -> bool:
        """Whether connections wait for receive memory, so that unused memory must be released at once."""
        return bool(self._waiting_for_room)

    def release_memory(self, size_bytes: int) -> None:
        """Release receive memory; waiting connections try again."""
        self._receive_free_bytes += size_bytes
        if not self._is_granting:
            self._is_granting = True
            try:
                for _ in range(len(self._waiting_for_room)):
                    self._waiting_for_room.popleft().on_memory_granted()
            finally:
                self._is_granting = False

    def _mark_progress(self) -> None:
        progress = {each: each.stalled_bytes for each in self._connections if each.stalled_bytes}
        self._stall_check = asyncio.get_running_loop().call_later(_STALL_S, self._close_stalled, progress)

    def _close_stalled(self, progress: dict[ServerConnection, int]) -> None:
        """Disconnect peers that stopped in the middle of a request, while others wait for receive memory."""
        self._stall_check = None
        if not self._waiting_for_room:
            return
        for connection, received_bytes in progress.items():
            if connection.stalled_bytes == received_bytes and connection not in self._waiting_for_room:
                connection.close(
                    f"stalled in the middle of a request ({received_bytes} bytes received) while others wait for"
                    " receive memory (queued.max.request.bytes)"
                )
                connection.abort()
        self._mark_progress()

    def _break_deadlock(self) -> None:
        """If all connections that hold receive memory wait for more, one may exceed the budget for its request."""
        waiting = self._waiting_for_room
        if waiting and all(each in waiting for each in self._connections if each.holds_budget):
            self._favoured = waiting.popleft()
            self._favoured.on_memory_granted()
            self._favoured = None

    def _sweep(self) -> None:
        self._sweep_some(deque(self._connections))

    def _sweep_some(self, connections: deque[ServerConnection]) -> None:
        for _ in range(min(len(connections), _SWEPT_IN_A_TURN)):
            connection = connections.popleft()
            connection.idle_ticks += 1
            connection.close_idle_sender()
            if connection.idle_ticks > _SWEEPS_PER_IDLE_PERIOD:
                self.turns.defer(partial(_close_idle, connection))
            elif connection.idle_ticks > 1 and (freed := connection.shrink_idle_buffer()):
                self.release_memory(freed)
        loop = asyncio.get_running_loop()
        if connections:
            self._sweeper = loop.call_soon(self._sweep_some, connections)
        else:
            self._sweeper = loop.call_later(self._idle_timeout_ms / 1000 / _SWEEPS_PER_IDLE_PERIOD, self._sweep)

    # --- authentication -------------------------------------------------------------------------------------------

    def begin_authentication(self, connection: ServerConnection) -> None:
        """With SASL, the connection is served once it is authenticated."""
        if self._sasl is None or (conversation := self._sasl.conversation(connection.listener)) is None:
            return
        connection.conversation = conversation
        connection.max_request_bytes = min(self.max_request_bytes, self._sasl.max_message_bytes)
        connection.deadline = asyncio.get_running_loop().call_later(
            self._handshake_timeout_s, self._authentication_is_late, connection
        )

    def credentials_changed(self, image: MetadataImage, delta: Delta) -> None:
        """Close the connections that logged in with what was removed (A69)."""
        users = any(key not in image.scram for key in delta.changed_scram)
        tokens = any(key not in image.delegation_tokens for key in delta.changed_delegation_tokens)
        if self._sasl is None or not (users or tokens):
            return
        _, wall_ms = self._sasl.now_ms()
        for connection in list(self._connections):
            if connection.conversation is not None and connection.conversation.is_withdrawn(wall_ms):
                connection.close(f"the credential of {connection.principal} was removed")

    def _authentication_is_late(self, connection: ServerConnection) -> None:
        self.metrics.failed_authentications += 1
        reason = "not authenticated in time (fenceline.authentication.timeout.ms)"
        self._note_failure("authentication failed", connection.listener, connection.host, reason)
        connection.close("", quiet=True)
        connection.abort()

    def _converse(
        self,
        connection: ServerConnection,
        conversation: SaslConversation,
        header: RequestHeader | None,
        frame: memoryview,
    ) -> list[Buffer] | PendingAnswer | None:
        """The answer to a request of an authentication; None for a request that is served. `header` None: a message
        without one."""
        sasl = self._sasl
        assert sasl is not None, "it began the conversation"
        now_ms, wall_ms = sasl.now_ms()
        if header is None:
            step: SaslStep | None = conversation.raw_token(bytes(frame), now_ms, wall_ms)
        elif conversation.is_over(now_ms, wall_ms, header.api_key):
            step = SaslStep(closes=True, failure="the session has ended and was not renewed")
        else:
            step = conversation.request(header, frame[header.body_position :], now_ms, wall_ms)
        if step is None:
            return None
        answer: list[Buffer] | None = None
        if step.body is not None and step.is_raw:
            answer = [len(step.body).to_bytes(4, "big") + step.body]
        elif step.body is not None:
            assert header is not None, "only a message without header gets a raw answer"
            answer = encode_response_frame(header.api_key, header.api_version, header.correlation_id, step.body)
        if step.authenticated:
            assert conversation.principal is not None, "it is authenticated"
            connection.principal = conversation.principal
            connection.max_request_bytes = self.max_request_bytes
            self.metrics.authentications += 1
            if connection.deadline is not None:
                connection.deadline.cancel()
                connection.deadline = None
        if step.failure is not None:
            self.metrics.failed_authentications += 1
            self._note_failure("authentication failed", connection.listener, connection.host, step.failure)
        if not step.closes:
            assert answer is not None, "only a closed connection has no answer"
            return answer
        # The peer learns of its failure late, so that it cannot try many passwords (A19).
        pending = PendingAnswer()
        asyncio.get_running_loop().call_later(sasl.failure_delay_s, _end_failed, connection, pending, answer)
        return pending

    # --- dispatch -------------------------------------------------------------------------------------------------

    def handle(self, connection: ServerConnection, frame: memoryview) -> list[Buffer] | PendingAnswer | None:
        """Handle one request. `frame` is only valid during the call.

        Raises MalformedRequest; the connection then closes with the reason.
        """
        conversation = connection.conversation
        if conversation is not None and conversation.expects_raw_token:
            return self._converse(connection, conversation, None, frame)
        header = parse_request_header(frame)
        key, version = header.api_key, header.api_version
        self.metrics.count_request(key)
        if conversation is not None and (not conversation.is_done or conversation.may_end or key in _OF_SASL):
            answer = self._converse(connection, conversation, header, frame)
            if answer is not None:
                return answer
            if not conversation.is_done:
                return self._answer_versions(connection, conversation, header, frame)
        raw = self._raw.get(key)
        if raw is not None:
            low, high, raw_handler = raw
            if not low <= version <= high:
                raise MalformedRequest(
                    f"{ApiKey(key).name} version {version} not supported; supported: {low} to {high}"
                )
            context = self._context(connection, header)
            if self._quotas is not None and self._quotas.is_active:
                self._limit(self._quotas, connection, context, key, len(frame))
            return raw_handler(context, frame[header.body_position :])
        api = self._apis.get(key)
        if api is None:
            raise MalformedRequest(f"API key {key} version {version} is not supported")
        if not api.min_version <= version <= api.max_version:
            raise MalformedRequest(
                f"{api.key.name} version {version} not supported; supported: {api.min_version} to {api.max_version}"
            )
        context = self._context(connection, header)
        if self._quotas is not None and self._quotas.is_active:
            self._limit(self._quotas, connection, context, key, len(frame))
        body = bytes(frame[header.body_position :])
        if len(body) > _LARGE_BODY_BYTES:
            pending = PendingAnswer()
            self._start(self._decode_apart(api, context, body, pending))
            return pending
        return self._handle_entity(api, context, body)

    async def _decode_apart(self, api: Api, context: RequestContext, body: bytes, pending: PendingAnswer) -> None:
        """A large request is decoded in a thread: it may have hundreds of thousands of elements."""
        loop = asyncio.get_running_loop()
        try:
            request = await loop.run_in_executor(self.threads, read_request, api.key, context.api_version, body)
            answer = self._answer(api, context, body, request)
        except MalformedRequest as error:
            pending.fail(str(error))
            return
        except asyncio.CancelledError:
            pending.fail("the node is shutting down")
            raise
        except Exception:
            self._failed(api, context, pending)
            return
        if isinstance(answer, (dict, bytes)):
            pending.complete(self._frame(api.key, context, answer))
        else:
            await self._finish(api, context, answer, pending)

    def _limit(
        self, quotas: NodeQuotas, connection: ServerConnection, context: RequestContext, key: int, size_bytes: int
    ) -> None:
        """Count the request against its sender's quotas. A producer is muted at once; the handler of Fetch decides by
        what it would send; others are muted when they are answered."""
        peer = quotas.of(connection.principal, context.client_id, connection.mute)
        context.quotas = connection.limited = peer
        if peer is None:
            return
        if key in _OF_BROKERS:
            peer.is_exempt = True
            return
        context.throttle_ms = peer.time_throttle_ms()
        if key == ApiKey.PRODUCE:
            context.throttle_ms = max(context.throttle_ms, peer.produced(size_bytes))
            if context.throttle_ms:
                connection.mute(context.throttle_ms)

    def _answer_versions(
        self, connection: ServerConnection, conversation: SaslConversation, header: RequestHeader, frame: memoryview
    ) -> list[Buffer] | PendingAnswer | None:
        """ApiVersions of a peer that is not authenticated yet."""
        _, _, handler = self._raw[ApiKey.API_VERSIONS]
        answer = handler(self._context(connection, header), frame[header.body_position :])
        assert isinstance(answer, list), "it is answered at once"
        # Behind the size and the correlation id. After an error the peer may ask again (A14).
        if b"".join(answer)[8:10] == b"\0\0":
            conversation.versions_answered()
        return answer

    def _context(self, connection: ServerConnection, header: RequestHeader) -> RequestContext:
        authorization = self._authorization
        return RequestContext(
            header.api_version,
            header.correlation_id,
            header.client_id,
            connection.peer,
            connection.host,
            connection.listener,
            connection.principal,
            None if authorization is None else authorization.rights(_asking(connection), header.api_key),
            takes_files=connection.takes_files,
        )

    def _answer(self, api: Api, context: RequestContext, body: bytes, request: Any) -> Answer | Awaitable[Answer]:
        """Raises MalformedRequest."""
        if api.check is not None:
            api.check(request)
        answer: Answer | Awaitable[Answer] | None = None
        if self._forward is not None:
            answer = self._forward(api, context, body)
        if answer is None:
            try:
                answer = api.handler(context, request)
            except PeerError as error:
                answer = _top_level_error(error)
        return answer

    def _handle_entity(self, api: Api, context: RequestContext, body: bytes) -> list[Buffer] | PendingAnswer:
        answer = self._answer(api, context, body, read_request(api.key, context.api_version, body))
        if isinstance(answer, (dict, bytes)):
            return self._frame(api.key, context, answer)
        pending = PendingAnswer()
        if isinstance(answer, AnswerOnce):
            build = answer.build
            answer.ready.add_done_callback(lambda _: self._complete(api, context, build, pending))
        else:
            self._start(self._finish(api, context, answer, pending))
        return pending

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _finish(
        self, api: Api, context: RequestContext, answer: Awaitable[Answer], pending: PendingAnswer
    ) -> None:
        try:
            try:
                fields = await answer
            except PeerError as error:
                fields = _top_level_error(error)
            pending.complete(self._frame(api.key, context, fields))
        except asyncio.CancelledError:
            pending.fail("the node is shutting down")
            raise
        except Exception:
            self._failed(api, context, pending)

    def _complete(self, api: Api, context: RequestContext, build: Callable[[], Answer], pending: PendingAnswer) -> None:
        """As `_finish`, without a task."""
        try:
            try:
                fields = build()
            except PeerError as error:
                fields = _top_level_error(error)
            pending.complete(self._frame(api.key, context, fields))
        except Exception:
            self._failed(api, context, pending)

    def _failed(self, api: Api, context: RequestContext, pending: PendingAnswer) -> None:
        """Called while the exception is handled."""
        log.exception("request failed", api=api.key.name, version=context.api_version, peer=context.peer)
        pending.fail("internal error, see the previous log message")

    def _frame(self, key: ApiKey, context: RequestContext, answer: Answer) -> list[Buffer]:
        if context.throttle_ms:
            answer = _throttled(key, context, answer)
        body = answer if isinstance(answer, bytes) else write_response(key, context.api_version, answer)
        return encode_response_frame(key, context.api_version, context.correlation_id, body)


def _throttled(key: ApiKey, context: RequestContext, answer: Answer) -> Answer:
    """The answer with its throttle time; the connection is muted for so long."""
    if context.quotas is not None:
        context.quotas.mute(context.throttle_ms)
    if isinstance(answer, dict):
        return {**answer, "throttle_time": context.throttle_ms}
    if key is ApiKey.METADATA and context.api_version >= _THROTTLE_IN_METADATA_SINCE:
        return context.throttle_ms.to_bytes(4, "big") + answer[4:]
    return answer


def _asking(connection: ServerConnection) -> AskingPeer:
    asking = connection.asking
    if asking is None or asking.principal is not connection.principal:
        asking = connection.asking = AskingPeer(connection.principal, java_address(connection.host))
    return asking


def _end_failed(connection: ServerConnection, pending: PendingAnswer, answer: list[Buffer] | None) -> None:
    """Send the answer, if there is one, and close the connection."""
    if answer is not None:
        pending.complete(answer)
    connection.close("authentication failed", quiet=True)


def _close_idle(connection: ServerConnection) -> None:
    if connection.idle_ticks > _SWEEPS_PER_IDLE_PERIOD:
        # A client that is idle between requests is nothing to report.
        reason = "idle (connections.max.idle.ms) in the middle of a request"
        connection.close(reason, quiet=not connection.is_in_a_request)
        connection.abort()


def _bind_failure(error: OSError) -> tuple[str, str]:
    """Reason and advice for the operator; the event loop's own message repeats the address."""
    if isinstance(error, socket.gaierror):
        return error.strerror or str(error), "The host name cannot be resolved. Correct --listen or `listeners`."
    reason = os.strerror(error.errno) if error.errno else str(error)
    match error.errno:
        case errno.EADDRINUSE:
            advice = "Another process uses that port (see `ss -ltnp`). Stop it, or choose another port with --listen."
        case errno.EADDRNOTAVAIL:
            advice = (
                "The address does not belong to this machine. Use one that does, or all with an empty host (:9092). The"
                " address that clients connect to is set by advertised.listeners."
            )
        case errno.EACCES | errno.EPERM:
            advice = "Ports below 1024 need privileges. Choose a higher port with --listen."
        case _:
            advice = "Choose another address with --listen or `listeners`."
    return reason, advice


def _top_level_error(error: PeerError) -> dict[str, Any]:
    return {"error_code": error.code, "error_message": error.message}


def frame_of(key: ApiKey, context: RequestContext, body: bytes | Sequence[Buffer]) -> list[Buffer]:
    """The response frame for a handler of the data path."""
    return encode_response_frame(key, context.api_version, context.correlation_id, body)
