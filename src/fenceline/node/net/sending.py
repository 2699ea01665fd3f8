"""Sends responses with stored records from the page cache to the socket, without reading them into this process.

Owns a second descriptor of a connection's socket and the response in transit. Never blocks the event loop for more than
a slice at a time, never sends data that is not in the page cache: a thread loads it first (a slow peer may take so long
that the system has evicted it).

Why not through the transport: sending from memory copies every byte on the event loop, and the first access to a page
costs more than its copy (`docs/decisions/005-what-made-the-server-fast.md`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final

from fenceline.log.core.disk import FileSlice

SLICE_BYTES: Final = 256 << 10
"""Bytes sent per iteration of the event loop while there are urgent requests."""
LARGE_SLICE_BYTES: Final = 4 << 20
"""The same while there are none: an iteration has a cost of its own."""
_SEEN_S: Final = 0.05
"""How long a positive page cache check is valid."""
_TCP_CORK: Final = getattr(socket, "TCP_CORK", 0)
_TCP_CONGESTION: Final = getattr(socket, "TCP_CONGESTION", 0)
_PACED: Final = b"bbr"
"""Congestion controls that begin so send by timers."""
_UNPACED: Final = b"reno"
"""The one that every Linux has, and lets every process choose."""

Part = bytes | bytearray | memoryview | FileSlice


def unpace_local(connected: socket.socket) -> None:
    """Between two processes of one machine there is no network to be fair to: timers that pace what is sent cost the
    sender half of its CPU there, and the peer waits for them."""
    with contextlib.suppress(OSError):
        if _TCP_CONGESTION and connected.getsockname()[0] == connected.getpeername()[0]:
            used = connected.getsockopt(socket.IPPROTO_TCP, _TCP_CONGESTION, 16)
            if used.startswith(_PACED):
                connected.setsockopt(socket.IPPROTO_TCP, _TCP_CONGESTION, _UNPACED)


class FileSender:
    """Sends one response at a time. `sent` is called when it has been sent, `failed` if it cannot be. `send` itself
    never calls `sent`, but may call `failed`. The transport's protocol calls `drained` when it may write again."""

    __slots__ = (
        "_failed",
        "_fd",
        "_has_urgent_requests",
        "_is_corked",
        "_is_tcp",
        "_loop",
        "_parts",
        "_position",
        "_seen",
        "_seen_until_s",
        "_sent",
        "_socket",
        "_threads",
        "_transport",
        "_waits",
        "_waits_for_drain",
        "is_used",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        threads: Executor,
        *,
        sent: Callable[[], None],
        failed: Callable[[OSError], None],
        has_urgent_requests: Callable[[], bool] = lambda: True,
    ) -> None:
        """`has_urgent_requests`: whether there are urgent requests."""
        self._transport = transport
        self._threads = threads
        self._sent = sent
        self._failed = failed
        self._has_urgent_requests = has_urgent_requests
        self._loop = asyncio.get_running_loop()
        shared = transport.get_extra_info("socket")
        # A duplicate descriptor: the loop already watches the transport's own.
        self._socket = socket.socket(shared.family, socket.SOCK_STREAM, 0, fileno=os.dup(shared.fileno()))
        self._fd = self._socket.fileno()
        self._parts: deque[Part] = deque()
        self._position = 0
        self._waits = False
        self._waits_for_drain = False
        self.is_used = True
        """Set by each response; its connection clears it."""
        self._is_corked = False
        """Whether the socket holds back what does not fill a segment: the few bytes between and behind records."""
        self._seen: FileSlice | None = None
        self._seen_until_s = 0.0
        self._is_tcp = _TCP_CORK != 0 and shared.family in (socket.AF_INET, socket.AF_INET6)
        if self._is_tcp:
            unpace_local(self._socket)

    @property
    def is_busy(self) -> bool:
        return bool(self._parts)

    def send(self, parts: Sequence[Part]) -> bool:
        """Send as much as the socket accepts at once; whether that was all. Never called while busy."""
        assert not self._parts, "one answer at a time"
        self.is_used = True
        self._parts.extend(parts)
        if self._transport.get_write_buffer_size():
            # The transport still has to send earlier small responses. It pauses its protocol now, and resumes it when
            # they are sent.
            self._waits_for_drain = True
            self._transport.set_write_buffer_limits(high=0)
            return False
        return self._continue(is_fresh=True)

    def close(self) -> None:
        """The connection is closed: drop unsent data."""
        if self._fd < 0:
            return
        self._stop_waiting()
        self._fd = -1
        self._socket.close()
        self._parts.clear()
        self._seen = None

    def drained(self) -> None:
        """The transport has resumed its protocol."""
        if self._waits_for_drain and self._fd >= 0:
            self._waits_for_drain = False
            self._transport.set_write_buffer_limits()
            self._later()

    def _later(self) -> None:
        if self._continue(is_fresh=False):
            self._sent()

    def _continue(self, *, is_fresh: bool) -> bool:
        """Send until the response is complete (then True), the socket is full, the slice is used up, or data must be
        loaded.

        `is_fresh`: the data has just been found or loaded into the page cache.
        """
        parts = self._parts
        turn_bytes = SLICE_BYTES if self._has_urgent_requests() else LARGE_SLICE_BYTES
        try:
            if self._is_tcp and not self._is_corked and len(parts) > 1:
                self._cork(1)
            while parts:
                part = parts[0]
                left = len(part) - self._position
                if isinstance(part, FileSlice):
                    if turn_bytes <= 0:
                        self._wait()
                        return False
                    size = min(left, turn_bytes)
                    if not is_fresh and not self._is_resident(part, size):
                        self._load(part, self._position, self._position + size)
                        return False
                    done = self._send_file(part, size)
                    turn_bytes -= done
                else:
                    more = socket.MSG_MORE if len(parts) > 1 else 0
                    done = self._socket.send(memoryview(part)[self._position :], socket.MSG_DONTWAIT | more)
                self._position += done
                if done == left:
                    parts.popleft()
                    self._position = 0
                    self._seen = None
        except BlockingIOError:
            self._wait()
        except OSError as error:
            self._fail(error)
        else:
            if self._is_corked:
                self._cork(0)
            self._stop_waiting()
            return True
        return False

    def _cork(self, on: int) -> None:
        """All bytes of a response form full segments: the peer is not woken for a few of them. Raises nothing."""
        self._is_corked = bool(on)
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.IPPROTO_TCP, _TCP_CORK, on)

    def _is_resident(self, part: FileSlice, size_bytes: int) -> bool:
        """Checked once for a whole part, and again for its rest only if the peer is slow."""
        now_s = self._loop.time()
        if part is self._seen and now_s < self._seen_until_s:
            return True
        if not part.is_resident(self._position, len(part)):
            return part.is_resident(self._position, self._position + size_bytes)
        self._seen, self._seen_until_s = part, now_s + _SEEN_S
        return True

    def _send_file(self, part: FileSlice, size_bytes: int) -> int:
        done = os.sendfile(self._fd, part.fd, part.position + self._position, size_bytes)
        if not done:
            raise OSError(errno.EIO, "the segment file was truncated")
        return done

    def _wait(self) -> None:
        if not self._waits:
            self._waits = True
            self._loop.add_writer(self._fd, self._later)

    def _stop_waiting(self) -> None:
        if self._waits:
            self._waits = False
            self._loop.remove_writer(self._fd)

    def _load(self, part: FileSlice, start: int, end: int) -> None:
        self._stop_waiting()
        self._loop.run_in_executor(self._threads, partial(part.load, start, end)).add_done_callback(self._loaded)

    def _loaded(self, loading: asyncio.Future[None]) -> None:
        if self._fd < 0 or loading.cancelled():
            return
        error = loading.exception()
        if isinstance(error, OSError):
            self._fail(error)
        elif error is not None:
            raise error
        elif self._continue(is_fresh=True):
            self._sent()

    def _fail(self, error: OSError) -> None:
        self._stop_waiting()
        self._parts.clear()
        self._seen = None
        self._failed(error)
