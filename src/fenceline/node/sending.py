"""Answers that carry stored records: from the page cache to the socket, without reading them into this process.

Owns a second descriptor of a connection's socket and the answer that is on its way. Never holds the loop for more than
a slice at a time, never sends what is not in the page cache: a thread brings it back first (a slow peer may take so
long that the system needed the memory for something else).

Why not through the transport: a send from memory copies every byte, on the loop, and the first touch of a page costs
more than its copy (`docs/decisions/005-what-made-the-server-fast.md`).
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final

from fenceline.log.disk import FileSlice

SLICE_BYTES: Final = 256 << 10
"""What is sent before others have their turn."""
LARGE_SLICE_BYTES: Final = 1 << 20
"""The same while nobody is in a hurry: a turn has a price, too."""
_DRAIN_POLL_S: Final = 0.002
_SEEN_S: Final = 0.05
"""For how long bytes that were seen in the page cache are taken to be there."""

Part = bytes | bytearray | memoryview | FileSlice


class FileSender:
    """Sends one answer at a time. `sent` is called when it is out, `failed` when it never will be; neither from `send`
    itself but for `failed`."""

    __slots__ = (
        "_failed",
        "_fd",
        "_hurried",
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
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        threads: Executor,
        *,
        sent: Callable[[], None],
        failed: Callable[[OSError], None],
        hurried: Callable[[], bool] = lambda: True,
    ) -> None:
        """`hurried`: whether others want their turn soon."""
        self._transport = transport
        self._threads = threads
        self._sent = sent
        self._failed = failed
        self._hurried = hurried
        self._loop = asyncio.get_running_loop()
        shared = transport.get_extra_info("socket")
        # The loop watches the transport's own descriptor already.
        self._socket = socket.socket(shared.family, socket.SOCK_STREAM, 0, fileno=os.dup(shared.fileno()))
        self._fd = self._socket.fileno()
        self._parts: deque[Part] = deque()
        self._position = 0
        self._waits = False
        self._seen: FileSlice | None = None
        self._seen_until_s = 0.0

    @property
    def is_busy(self) -> bool:
        return bool(self._parts)

    def send(self, parts: Sequence[Part]) -> bool:
        """Send what the socket takes at once; whether that was all. Never called while busy."""
        assert not self._parts, "one answer at a time"
        self._parts.extend(parts)
        if self._transport.get_write_buffer_size():
            # Small answers before this one are still with the transport.
            self._loop.call_later(_DRAIN_POLL_S, self._when_drained)
            return False
        return self._go_on(is_fresh=True)

    def close(self) -> None:
        """The connection is gone: drop what was not sent."""
        if self._fd < 0:
            return
        self._stop_waiting()
        self._fd = -1
        self._socket.close()
        self._parts.clear()
        self._seen = None

    def _when_drained(self) -> None:
        if self._fd < 0:
            return
        if self._transport.get_write_buffer_size():
            self._loop.call_later(_DRAIN_POLL_S, self._when_drained)
        else:
            self._later()

    def _later(self) -> None:
        if self._go_on(is_fresh=False):
            self._sent()

    def _go_on(self, *, is_fresh: bool) -> bool:
        """Send until all is out (then True), the socket is full, the turn is over, or the disk must be waited for.

        `is_fresh`: that the records are in the page cache was seen a moment ago.
        """
        parts = self._parts
        turn_bytes = SLICE_BYTES if self._hurried() else LARGE_SLICE_BYTES
        try:
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
            self._stop_waiting()
            return True
        return False

    def _is_resident(self, part: FileSlice, size_bytes: int) -> bool:
        """Asked once for a whole part, and again for what is left of it only when its peer took its time."""
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
            raise OSError(errno.EIO, "the segment is shorter than it was")
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
        elif self._go_on(is_fresh=True):
            self._sent()

    def _fail(self, error: OSError) -> None:
        self._stop_waiting()
        self._parts.clear()
        self._seen = None
        self._failed(error)
