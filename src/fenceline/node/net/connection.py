"""One client connection: requests in, responses out, in order.

Owns the receive buffer and the order of responses. Never reads more of a request than its header.

Requests of a connection are handled one at a time, as in Kafka: while a response is pending (a parked fetch, a change
that waits for the disk), the following requests stay in the receive buffer, and when the buffer is full the socket is
not read. Only Produce requests are pipelined: while one waits for other replicas, the next ones may append, up to
`MAX_PIPELINED`. Responses still leave in request order, and a connection is closed only after the responses before it.

While the peer does not read its responses, no further request is handled. So a connection holds at most one receive
buffer (bounded by `socket.request.max.bytes`, all together by the server's budget), one response beyond the transport's
high-water mark, and `MAX_PIPELINED` small Produce responses.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from fenceline.log.core.disk import FileSlice
from fenceline.node.logs import Logger
from fenceline.node.net.sending import FileSender, Part
from fenceline.wire.apis import ApiKey
from fenceline.wire.frame import MalformedRequest
from fenceline.wire.principal import ANONYMOUS, Principal

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from fenceline.node.client_limits import PeerQuotas
    from fenceline.node.metrics import NodeMetrics
    from fenceline.node.net.copying import CopySender
    from fenceline.node.turns import Turns
    from fenceline.security.acls import AskingPeer
    from fenceline.security.authentication import SaslConversation

log = Logger("connection")

_FIRST_BUFFER_BYTES: Final = 1024
"""Of a connection that is made. It grows with the first request that does not fit: peers that send nothing, or little,
use little memory, however many they are."""
INITIAL_BUFFER_BYTES: Final = 64 * 1024
"""Up to this size a receive buffer is not counted in the server's budget."""
_GROWTH: Final = 4
_SIZE_PREFIX_BYTES: Final = 4
_SMALLEST_REQUEST_BYTES: Final = 8
MAX_PIPELINED: Final = 64
"""Maximum number of Produce requests of a connection that have appended and wait for other replicas."""
_API_KEY_BYTES: Final = 2


class AnswerTaker(Protocol):
    """Who sends the response of a `PendingAnswer`: its connection."""

    def answer_pending(
        self, pending: PendingAnswer, buffers: Sequence[Part] | None, on_sent: Callable[[], None] | None = None
    ) -> None: ...
    def fail_pending(self, pending: PendingAnswer, reason: str) -> None: ...
    def close(self, reason: str, *, quiet: bool = False) -> None: ...
    def abort(self) -> None: ...


class PendingAnswer:
    """A response that is not ready yet. Completed at most once; dropped when the peer disconnects.

    lets_follow: the request is complete except for its response, and requests of its kind may be pipelined.
    """

    __slots__ = ("_abandon", "_answered", "_connection", "lets_follow", "outcome")

    def __init__(self, *, lets_follow: bool = False) -> None:
        self._connection: AnswerTaker | None = None
        self._answered: AnswerTaker | None = None
        self._abandon: Callable[[], object] | None = None
        self.lets_follow = lets_follow
        self.outcome: Sequence[Part] | str | None = None
        """The response, or the reason to close the connection (empty: without a log line), while earlier responses are
        still pending."""

    def complete(self, buffers: Sequence[Part] | None, on_sent: Callable[[], None] | None = None) -> None:
        """Send the response frame (None: the request has no response) and handle the connection's next request.

        `on_sent` is called once: when the response has been sent completely, or never will be.
        """
        connection, self._connection = self._connection, None
        self._abandon = None
        if connection is not None:
            self._answered = connection
            connection.answer_pending(self, buffers, on_sent)
        elif on_sent is not None:
            on_sent()

    def drop(self, reason: str) -> None:
        """The peer does not read the response: close the connection at once."""
        if self._answered is not None:
            self._answered.close(reason)
            self._answered.abort()

    def fail(self, reason: str) -> None:
        """No response can be sent: close the connection, so that the client retries."""
        connection, self._connection = self._connection, None
        self._abandon = None
        if connection is not None:
            connection.fail_pending(self, reason)

    def on_abandoned(self, callback: Callable[[], object] | None) -> None:
        """Call `callback` when the peer disconnects before the response is ready; None: no callback."""
        self._abandon = callback

    def attach(self, connection: AnswerTaker) -> None:
        self._connection = connection

    def abandon(self) -> None:
        self._connection = None
        callback, self._abandon = self._abandon, None
        if callback is not None:
            callback()


class ConnectionOwner(Protocol):
    """What a connection uses of its `Server`."""

    metrics: NodeMetrics
    threads: Executor
    turns: Turns
    has_urgent_requests: Callable[[], bool]
    max_request_bytes: int

    def register(self, connection: ServerConnection) -> bool: ...
    def unregister(self, connection: ServerConnection, buffer_bytes: int) -> None: ...
    def note_closed(self, connection: ServerConnection, reason: str) -> None: ...
    def principal(self, connection: ServerConnection, certificate: bytes | None) -> Principal | None: ...
    def begin_authentication(self, connection: ServerConnection) -> None: ...
    def handle(self, connection: ServerConnection, frame: memoryview) -> Sequence[Part] | PendingAnswer | None: ...
    def reserve(self, connection: ServerConnection, size_bytes: int) -> bool: ...
    def release_memory(self, size_bytes: int) -> None: ...
    @property
    def is_short_of_memory(self) -> bool: ...


class SocketLayer(Protocol):
    """A transport on top of that of the socket, such as TLS, through which every byte must go. It returns itself for
    `get_extra_info("layer")`."""

    def expect(self, missing_bytes: int) -> None:
        """The connection can do nothing before it has so many bytes more; called whenever it is so."""
        ...


class ServerConnection(asyncio.BufferedProtocol):
    """Framing and back-pressure for one socket. Requests go to `Server.handle`."""

    __slots__ = (
        "_buffer",
        "_closes_when_sent",
        "_end",
        "_is_at_end",
        "_is_postponed",
        "_layer",
        "_muted",
        "_on_sent",
        "_paused_reading",
        "_paused_writing",
        "_sender",
        "_server",
        "_start",
        "_transport",
        "_view",
        "_waiting",
        "asking",
        "conversation",
        "deadline",
        "host",
        "idle_ticks",
        "is_counted",
        "limited",
        "listener",
        "max_request_bytes",
        "peer",
        "principal",
        "takes_files",
    )

    def __init__(self, server: ConnectionOwner, listener: str, *, is_counted: bool = False) -> None:
        """`is_counted`: among the open connections, since its TLS handshake began."""
        self._server = server
        self.is_counted = is_counted
        self.listener = listener
        self._buffer = bytearray(_FIRST_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._transport: asyncio.Transport | None = None
        self._layer: SocketLayer | None = None
        """The transport, if it is not the socket's own."""
        self._waiting: deque[PendingAnswer] = deque()
        """Responses that are owed, in the order in which they are sent."""
        self._paused_writing = False
        self._paused_reading = False
        self._sender: FileSender | CopySender | None = None
        self._on_sent: Callable[[], None] | None = None
        self._closes_when_sent = False
        self._muted: asyncio.TimerHandle | None = None
        """Until its end no request is handled: the peer has exceeded a quota."""
        self._is_postponed = False
        """Its next request has its turn after those of other connections."""
        self._is_at_end = False
        """The peer will send nothing more, and the connection closes once it is neither muted nor postponed."""
        self.idle_ticks = 0
        self.peer = "?"
        self.host = "?"
        self.principal = ANONYMOUS
        self.asking: AskingPeer | None = None
        """As rules of the metadata log name the peer; None until a right is asked about."""
        self.limited: PeerQuotas | None = None
        """Quotas of the request that is being handled."""
        self.conversation: SaslConversation | None = None
        """None without SASL."""
        self.max_request_bytes = server.max_request_bytes
        self.deadline: asyncio.TimerHandle | None = None
        """When the peer must be authenticated."""
        self.takes_files = False
        """Whether responses can be sent from files: the transport is the socket's own, and not a simulated one."""

    # --- asyncio's side -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "writelines")
        self._transport = transport  # type: ignore[assignment]
        self._layer = transport.get_extra_info("layer")
        self.takes_files = self._layer is None and transport.get_extra_info("socket") is not None
        peername = transport.get_extra_info("peername")
        if peername:
            self.host = str(peername[0])
            self.peer = f"{peername[0]}:{peername[1]}"
        principal = self._server.principal(self, transport.get_extra_info("peer_certificate"))
        if not self._server.register(self):
            return
        if principal is None:
            self.close("no rule of ssl.principal.mapping.rules matches the name in its certificate")
        else:
            self.principal = principal
            self._server.begin_authentication(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._muted is not None:
            self._muted.cancel()
        if self._sender is not None:
            self._sender.close()
        if self.deadline is not None:
            self.deadline.cancel()
        self._answer_left()
        waiting, self._waiting = self._waiting, deque()
        for pending in waiting:
            pending.abandon()
        self._server.unregister(self, len(self._buffer))
        self._view.release()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        self.idle_ticks = 0
        self._server.metrics.received_bytes += nbytes
        self._take_requests()

    def eof_received(self) -> bool:
        """A producer with acks=0 sends and closes: what waits for its turn, or for a quota, is still handled."""
        self._is_at_end = self._is_held and self._start != self._end
        if not self._is_at_end:
            # Thousands of clients may end at once, and others must not wait for all of them.
            self._server.turns.defer(self._close_ended)
        return True

    def _close_ended(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def pause_writing(self) -> None:
        self._paused_writing = True

    def resume_writing(self) -> None:
        self._paused_writing = False
        self.idle_ticks = 0
        if self._sender is not None:
            self._sender.drained()
        self._take_requests()

    # --- the node's side ------------------------------------------------------------------------------------------

    def send(self, buffers: Sequence[Part]) -> None:
        transport = self._transport
        if transport is None:
            return
        if len(buffers) == 1:
            transport.write(buffers[0])  # type: ignore[arg-type]  # a frame begins with its size, never with a file
        elif FileSlice in map(type, buffers):
            self._send_files(transport, buffers)
        else:
            transport.writelines(buffers)  # type: ignore[arg-type]

    def _send_files(self, transport: asyncio.Transport, buffers: Sequence[Part]) -> bool:
        sender = self._sender
        if sender is None:
            threads = self._server.threads
            if self._layer is not None:
                from fenceline.node.net.copying import CopySender

                sender = CopySender(transport, threads, sent=self._files_sent, failed=self._files_failed)
            else:
                sender = FileSender(
                    transport,
                    threads,
                    sent=self._files_sent,
                    failed=self._files_failed,
                    has_urgent_requests=self._server.has_urgent_requests,
                )
            self._sender = sender
        return sender.send(buffers)

    def _files_sent(self) -> None:
        self._answer_left()
        self.idle_ticks = 0
        if self._closes_when_sent:
            if self._transport is not None:
                self._transport.close()
        else:
            self._take_requests()

    def _files_failed(self, error: OSError) -> None:
        if not isinstance(error, ConnectionError):
            log.error("sending a fetch response failed", peer=self.peer, error=str(error))
        self.abort()

    def _answer_left(self) -> None:
        on_sent, self._on_sent = self._on_sent, None
        if on_sent is not None:
            on_sent()

    @property
    def _sends_files(self) -> bool:
        """Whether files can be sent and their completion observed; a simulated transport has no socket."""
        transport = self._transport
        return self._layer is not None or (transport is not None and transport.get_extra_info("socket") is not None)

    @property
    def _is_sending_files(self) -> bool:
        return self._sender is not None and self._sender.is_busy

    def answer_pending(
        self, pending: PendingAnswer, buffers: Sequence[Part] | None, on_sent: Callable[[], None] | None = None
    ) -> None:
        waiting = self._waiting
        if pending is not waiting[0]:
            assert on_sent is None, "a response that holds a memory lease is never pipelined"
            pending.outcome = buffers or ()
            return
        waiting.popleft()
        transport = self._transport
        if on_sent is not None and buffers is not None and transport is not None and self._sends_files:
            # The lease is released when the response has been sent.
            self._on_sent = on_sent
            if self._send_files(transport, buffers):
                self._answer_left()
        else:
            if buffers is not None:
                self.send(buffers)
            if on_sent is not None:
                on_sent()
        while waiting and (outcome := waiting[0].outcome) is not None:
            if isinstance(outcome, str):
                self.close(outcome, quiet=not outcome)
                return
            waiting.popleft()
            if outcome:
                self.send(outcome)
        if self._start != self._end or self._paused_reading:
            self._take_requests()

    def fail_pending(self, pending: PendingAnswer, reason: str) -> None:
        """No response can be sent; earlier responses still are."""
        if pending is self._waiting[0]:
            self.close(reason)
        else:
            pending.outcome = reason

    def close_in_turn(self, reason: str, *, quiet: bool = False) -> None:
        """Close the connection after the pending responses, as `close`; later requests are not handled."""
        if self._waiting:
            last = PendingAnswer()
            last.outcome = "" if quiet else reason
            self._waiting.append(last)
        else:
            self.close(reason, quiet=quiet)

    def mute(self, duration_ms: int) -> None:
        """Handle no further request for so long; answers are still sent (A59)."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + duration_ms / 1000
        if self._muted is not None:
            until_s = max(until_s, self._muted.when())
            self._muted.cancel()
        self._muted = loop.call_at(until_s, self._unmute)

    def _unmute(self) -> None:
        self._muted = None
        self._take_requests()

    def close(self, reason: str, *, quiet: bool = False) -> None:
        """Close once written data has been sent. Logs the peer and the reason, unless `quiet`."""
        if self._transport is not None and not self._transport.is_closing() and not self._closes_when_sent:
            if not quiet:
                self._server.note_closed(self, reason)
            if self._is_sending_files:
                self._closes_when_sent = True
            else:
                self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def shrink_idle_buffer(self) -> int:
        """Shrink an enlarged, empty receive buffer; returns the number of bytes freed."""
        if self._transport is None or self._start != self._end or len(self._buffer) <= INITIAL_BUFFER_BYTES:
            return 0
        freed = len(self._buffer) - INITIAL_BUFFER_BYTES
        self._replace_buffer(INITIAL_BUFFER_BYTES)
        return freed

    def close_idle_sender(self) -> None:
        """Close the second descriptor of the socket if no response was sent with it since the last call."""
        sender = self._sender
        if sender is None or sender.is_busy:
            return
        if sender.is_used:
            sender.is_used = False
        else:
            self._sender = None
            sender.close()

    @property
    def is_in_a_request(self) -> bool:
        """Whether the peer has sent a part of a request, and not the rest."""
        return self._start != self._end and not self._waiting

    @property
    def stalled_bytes(self) -> int:
        """Bytes received of an incomplete request that holds receive memory of the budget; 0 if there is none."""
        if self._waiting or not self.holds_budget:
            return 0
        return self._end - self._start

    @property
    def _is_held(self) -> bool:
        return self._muted is not None or self._is_postponed

    @property
    def holds_budget(self) -> bool:
        """Whether the receive buffer is larger than what is not counted."""
        return len(self._buffer) > INITIAL_BUFFER_BYTES

    @property
    def is_busy(self) -> bool:
        """Whether a request is being handled or a response has not been sent yet."""
        transport = self._transport
        return (
            bool(self._waiting)
            or self._is_sending_files
            or (transport is not None and transport.get_write_buffer_size() > 0)
        )

    # --- framing --------------------------------------------------------------------------------------------------

    def _may_follow(self) -> bool:
        """Whether the next request may be handled before the pending responses are sent."""
        waiting = self._waiting
        if not waiting[-1].lets_follow or len(waiting) >= MAX_PIPELINED:
            return False
        key_at = self._start + _SIZE_PREFIX_BYTES
        behind = key_at + _API_KEY_BYTES
        return behind <= self._end and int.from_bytes(self._view[key_at:behind], "big") == ApiKey.PRODUCE

    def _take_requests(self) -> None:
        while not self._paused_writing and (self._sender is None or not self._sender.is_busy):
            transport = self._transport
            if transport is None or transport.is_closing():
                return
            if self._is_held or (self._waiting and not self._may_follow()):
                break
            start = self._start
            available = self._end - start
            if available < _SIZE_PREFIX_BYTES:
                break
            size = int.from_bytes(self._view[start : start + 4], "big", signed=True)
            if not _SMALLEST_REQUEST_BYTES <= size <= self.max_request_bytes and not self._is_raw_token(size):
                self.close_in_turn(
                    f"invalid request size of {size} bytes; the limits are {_SMALLEST_REQUEST_BYTES} and"
                    f" {self.max_request_bytes} bytes (socket.request.max.bytes)"
                )
                return
            if available < _SIZE_PREFIX_BYTES + size:
                if self._layer is not None:
                    self._layer.expect(_SIZE_PREFIX_BYTES + size - available)
                if not self._make_room(_SIZE_PREFIX_BYTES + size):
                    return
                break
            if self._server.turns.is_over():
                self._is_postponed = True
                self._server.turns.postpone(self._take_postponed)
                break
            frame_end = start + _SIZE_PREFIX_BYTES + size
            self._start = frame_end
            try:
                outcome = self._server.handle(self, self._view[start + _SIZE_PREFIX_BYTES : frame_end])
            except MalformedRequest as error:
                self.close_in_turn(f"malformed request: {error}")
                return
            except Exception:
                # Our bug. The peer must not wait for a response that never comes.
                log.exception("request failed", peer=self.peer)
                self.close_in_turn("internal error, see the previous log message")
                return
            if self.limited is not None:
                self.limited.handled()
                self.limited = None
            if isinstance(outcome, PendingAnswer):
                outcome.attach(self)
                self._waiting.append(outcome)
            elif outcome is not None:
                if self._waiting:
                    answered = PendingAnswer(lets_follow=True)
                    answered.outcome = outcome
                    self._waiting.append(answered)
                else:
                    self.send(outcome)
        if self._is_at_end and not self._is_held and self._transport is not None:
            self._transport.close()
            return
        if self._start == self._end:
            self._start = self._end = 0
            if self._server.is_short_of_memory and (freed := self.shrink_idle_buffer()):
                self._server.release_memory(freed)
        if self._paused_reading or self._end == len(self._buffer):
            self._read_or_pause()

    def _take_postponed(self) -> None:
        self._is_postponed = False
        self._take_requests()

    def _is_raw_token(self, size: int) -> bool:
        """A message of a SASL mechanism may have no header, and no content."""
        conversation = self.conversation
        return 0 <= size <= self.max_request_bytes and conversation is not None and conversation.expects_raw_token

    def _make_room(self, frame_bytes: int) -> bool:
        """Make room for the rest of the frame at `_start`. False: the budget is exhausted, the connection waits.

        The buffer grows with the bytes received, not with the announced size: a peer can announce any size for free.
        """
        capacity = len(self._buffer)
        if self._end < capacity:
            return True
        if capacity < INITIAL_BUFFER_BYTES:
            self._grow_first_buffer()
            return True
        if self._start > 0:
            self._move_to_front()
            return True
        grown = min(frame_bytes, _GROWTH * capacity)
        if not self._server.reserve(self, grown - capacity):
            self._pause_reading()
            return False
        self._replace_buffer(grown)
        return True

    def on_memory_granted(self) -> None:
        """The server's budget has free memory again."""
        if self._transport is not None:
            self._take_requests()

    def _grow_first_buffer(self) -> None:
        self._replace_buffer(min(_GROWTH * len(self._buffer), INITIAL_BUFFER_BYTES))

    def _replace_buffer(self, capacity: int) -> None:
        rest = self._view[self._start : self._end]
        buffer = bytearray(capacity)
        buffer[: len(rest)] = rest
        self._end = len(rest)
        self._start = 0
        rest.release()
        self._buffer = buffer
        self._view = memoryview(buffer)

    def _move_to_front(self) -> None:
        """Make room after the unread bytes; no views of the earlier bytes remain (`Server.handle`)."""
        waiting = self._end - self._start
        self._view[:waiting] = self._view[self._start : self._end]
        self._start, self._end = 0, waiting

    def _read_or_pause(self) -> None:
        if self._end < len(self._buffer):
            if self._paused_reading and self._transport is not None:
                self._paused_reading = False
                self._transport.resume_reading()
        elif len(self._buffer) < INITIAL_BUFFER_BYTES:
            self._grow_first_buffer()
            self._read_or_pause()
        elif self._start > 0:
            self._move_to_front()
            self._read_or_pause()
        else:
            self._pause_reading()

    def _pause_reading(self) -> None:
        if not self._paused_reading and self._transport is not None:
            self._paused_reading = True
            self._transport.pause_reading()
