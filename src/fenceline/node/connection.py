"""One client connection: frames in, answers out, in order.

Owns the receive buffer and the order of answers. Never looks into a request beyond its header.

Requests of a connection are handled one at a time, as Kafka does: while an answer is pending (a parked fetch, a change
that waits for the disk) the following requests stay in the receive buffer, and when that is full the socket is not
read. Produce requests alone follow each other: one that has appended and waits for other replicas lets the next ones
append, up to `MOST_WAITING`. What comes after it is answered after it, and what ends the connection ends it after it.

While the peer does not read its answers, nothing more is handled. So a connection holds at most one receive buffer
(bounded by `socket.request.max.bytes`, all together by the server's budget), one answer beyond the transport's
high-water mark, and `MOST_WAITING` answers to Produce, which are small.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from fenceline.log.disk import FileSlice
from fenceline.node.logs import Logger
from fenceline.node.sending import FileSender, Part
from fenceline.wire.apis import ApiKey
from fenceline.wire.frame import MalformedRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from fenceline.node.server import Server

log = Logger("connection")

INITIAL_BUFFER_BYTES: Final = 64 * 1024
_GROWTH: Final = 4
_SIZE_PREFIX_BYTES: Final = 4
_SMALLEST_REQUEST_BYTES: Final = 8
MOST_WAITING: Final = 64
"""So many Produce requests of a connection have appended and wait for other replicas."""
_API_KEY_BYTES: Final = 2


class PendingAnswer:
    """The promise of an answer that is not ready yet. Completed at most once; dropped when the peer is gone.

    lets_follow: the request is done but for its answer, and of a kind that may follow each other.
    """

    __slots__ = ("_abandon", "_answered", "_connection", "lets_follow", "outcome")

    def __init__(self, *, lets_follow: bool = False) -> None:
        self._connection: Connection | None = None
        self._answered: Connection | None = None
        self._abandon: Callable[[], object] | None = None
        self.lets_follow = lets_follow
        self.outcome: Sequence[Part] | str | None = None
        """What it came to while others before it wait: the answer, or why the connection is to be closed."""

    def complete(self, buffers: Sequence[Part] | None, let_go: Callable[[], None] | None = None) -> None:
        """Send the answer's frame (None: nothing is owed) and let the connection go on.

        `let_go` is called once: when the whole answer was sent, or never will be.
        """
        connection, self._connection = self._connection, None
        self._abandon = None
        if connection is not None:
            self._answered = connection
            connection.answer_pending(self, buffers, let_go)
        elif let_go is not None:
            let_go()

    def drop(self, reason: str) -> None:
        """The answer was given and the peer does not read it: close the connection at once."""
        if self._answered is not None:
            self._answered.close(reason)
            self._answered.abort()

    def fail(self, reason: str) -> None:
        """No answer can be given: close the connection, so that the client asks anew."""
        connection, self._connection = self._connection, None
        self._abandon = None
        if connection is not None:
            connection.fail_pending(self, reason)

    def on_abandoned(self, callback: Callable[[], object] | None) -> None:
        """Call `callback` when the peer goes away before the answer is there; None: nothing."""
        self._abandon = callback

    def attach(self, connection: Connection) -> None:
        self._connection = connection

    def abandon(self) -> None:
        self._connection = None
        callback, self._abandon = self._abandon, None
        if callback is not None:
            callback()


def _has_socket(transport: asyncio.Transport | None) -> bool:
    """Whether files can be sent, and it is known when; a simulated transport has none."""
    return transport is not None and transport.get_extra_info("socket") is not None


class Connection(asyncio.BufferedProtocol):
    """Framing and back-pressure for one socket. `Server.handle` does the rest."""

    __slots__ = (
        "_buffer",
        "_closes_when_sent",
        "_end",
        "_let_go",
        "_paused_reading",
        "_paused_writing",
        "_sender",
        "_server",
        "_start",
        "_transport",
        "_view",
        "_waiting",
        "host",
        "idle_ticks",
        "listener",
        "peer",
    )

    def __init__(self, server: Server, listener: str) -> None:
        self._server = server
        self.listener = listener
        self._buffer = bytearray(INITIAL_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[PendingAnswer] = deque()
        """Answers that are owed, in the order in which they leave."""
        self._paused_writing = False
        self._paused_reading = False
        self._sender: FileSender | None = None
        self._let_go: Callable[[], None] | None = None
        self._closes_when_sent = False
        self.idle_ticks = 0
        self.peer = "?"
        self.host = "?"

    # --- asyncio's side -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "writelines")
        self._transport = transport  # type: ignore[assignment]
        peername = transport.get_extra_info("peername")
        if peername:
            self.host = str(peername[0])
            self.peer = f"{peername[0]}:{peername[1]}"
        if not self._server.register(self):
            self.close("too many connections (max.connections)")

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._sender is not None:
            self._sender.close()
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

    def pause_writing(self) -> None:
        self._paused_writing = True

    def resume_writing(self) -> None:
        self._paused_writing = False
        self.idle_ticks = 0
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
            sender = self._sender = FileSender(
                transport,
                self._server.broker.disk_threads,
                sent=self._files_sent,
                failed=self._files_failed,
                hurried=self._server.metrics.has_latency_sensitive_clients,
            )
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
            log.error("records could not be sent", peer=self.peer, error=str(error))
        self.abort()

    def _answer_left(self) -> None:
        let_go, self._let_go = self._let_go, None
        if let_go is not None:
            let_go()

    @property
    def _is_sending_files(self) -> bool:
        return self._sender is not None and self._sender.is_busy

    def answer_pending(
        self, pending: PendingAnswer, buffers: Sequence[Part] | None, let_go: Callable[[], None] | None = None
    ) -> None:
        waiting = self._waiting
        if pending is not waiting[0]:
            assert let_go is None, "who lends memory has nobody before it"
            pending.outcome = buffers or ()
            return
        waiting.popleft()
        transport = self._transport
        if let_go is not None and buffers is not None and _has_socket(transport):
            assert transport is not None, "it has a socket"
            # Who lent memory for this answer wants to know when it has left.
            self._let_go = let_go
            if self._send_files(transport, buffers):
                self._answer_left()
        else:
            if buffers is not None:
                self.send(buffers)
            if let_go is not None:
                let_go()
        while waiting and (outcome := waiting[0].outcome) is not None:
            if isinstance(outcome, str):
                self.close(outcome)
                return
            waiting.popleft()
            if outcome:
                self.send(outcome)
        if self._start != self._end or self._paused_reading:
            self._take_requests()

    def fail_pending(self, pending: PendingAnswer, reason: str) -> None:
        """No answer can be given; those before it are."""
        if pending is self._waiting[0]:
            self.close(reason)
        else:
            pending.outcome = reason

    def _close_in_turn(self, reason: str) -> None:
        """Close, after the answers that are owed."""
        if self._waiting:
            last = PendingAnswer()
            last.outcome = reason
            self._waiting.append(last)
        else:
            self.close(reason)

    def close(self, reason: str, *, quiet: bool = False) -> None:
        """Close after what was already written is sent; one log line names the peer and the reason."""
        if self._transport is not None and not self._transport.is_closing() and not self._closes_when_sent:
            if not quiet:
                log.warning("connection closed", peer=self.peer, reason=reason)
            if self._is_sending_files:
                self._closes_when_sent = True
            else:
                self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def shrink_idle_buffer(self) -> int:
        """Give back a grown, empty receive buffer; the number of bytes freed."""
        if self._transport is None or self._start != self._end or len(self._buffer) <= INITIAL_BUFFER_BYTES:
            return 0
        freed = len(self._buffer) - INITIAL_BUFFER_BYTES
        self._replace_buffer(INITIAL_BUFFER_BYTES)
        return freed

    @property
    def stalled_bytes(self) -> int:
        """Bytes of a request that is not whole yet and holds receive memory of the budget; 0 without one."""
        if self._waiting or not self.holds_budget:
            return 0
        return self._end - self._start

    @property
    def holds_budget(self) -> bool:
        """Whether the receive buffer is larger than the first one, which every connection has."""
        return len(self._buffer) > INITIAL_BUFFER_BYTES

    @property
    def is_busy(self) -> bool:
        """Whether a request is being handled or an answer is not yet sent."""
        transport = self._transport
        return (
            bool(self._waiting)
            or self._is_sending_files
            or (transport is not None and transport.get_write_buffer_size() > 0)
        )

    # --- framing --------------------------------------------------------------------------------------------------

    def _may_follow(self) -> bool:
        """Whether the next request may be handled before those that wait are answered."""
        waiting = self._waiting
        if not waiting[-1].lets_follow or len(waiting) >= MOST_WAITING:
            return False
        key_at = self._start + _SIZE_PREFIX_BYTES
        behind = key_at + _API_KEY_BYTES
        return behind <= self._end and int.from_bytes(self._view[key_at:behind], "big") == ApiKey.PRODUCE

    def _take_requests(self) -> None:
        while not self._paused_writing and (self._sender is None or not self._sender.is_busy):
            transport = self._transport
            if transport is None or transport.is_closing():
                return
            if self._waiting and not self._may_follow():
                break
            start = self._start
            available = self._end - start
            if available < _SIZE_PREFIX_BYTES:
                break
            size = int.from_bytes(self._view[start : start + 4], "big", signed=True)
            if size < _SMALLEST_REQUEST_BYTES or size > self._server.max_request_bytes:
                self._close_in_turn(
                    f"request of {size} bytes; a request has {_SMALLEST_REQUEST_BYTES} to"
                    f" {self._server.max_request_bytes} (socket.request.max.bytes)"
                )
                return
            if available < _SIZE_PREFIX_BYTES + size:
                if not self._make_room(_SIZE_PREFIX_BYTES + size):
                    return
                break
            frame_end = start + _SIZE_PREFIX_BYTES + size
            self._start = frame_end
            try:
                outcome = self._server.handle(self, self._view[start + _SIZE_PREFIX_BYTES : frame_end])
            except MalformedRequest as error:
                self._close_in_turn(f"malformed request: {error}")
                return
            except Exception:
                # Our bug. Without an answer the peer must not wait for one.
                log.exception("request failed", peer=self.peer)
                self._close_in_turn("internal error, see the log line before")
                return
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
        if self._start == self._end:
            self._start = self._end = 0
            if self._server.wants_room and (freed := self.shrink_idle_buffer()):
                self._server.give_back(freed)
        if self._paused_reading or self._end == len(self._buffer):
            self._read_or_pause()

    def _make_room(self, frame_bytes: int) -> bool:
        """Let more of the frame at `_start` come in. False: over the budget of all connections, waiting.

        The buffer grows with what has come, not with the size that was announced: announcing is free for the peer.
        """
        capacity = len(self._buffer)
        if self._end < capacity:
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

    def room_granted(self) -> None:
        """The server's budget has room again."""
        if self._transport is not None:
            self._take_requests()

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
        """Make room behind the bytes that wait; nobody holds a view of those before them (`Server.handle`)."""
        waiting = self._end - self._start
        self._view[:waiting] = self._view[self._start : self._end]
        self._start, self._end = 0, waiting

    def _read_or_pause(self) -> None:
        if self._end < len(self._buffer):
            if self._paused_reading and self._transport is not None:
                self._paused_reading = False
                self._transport.resume_reading()
        elif self._start > 0:
            self._move_to_front()
            self._read_or_pause()
        else:
            self._pause_reading()

    def _pause_reading(self) -> None:
        if not self._paused_reading and self._transport is not None:
            self._paused_reading = True
            self._transport.pause_reading()
