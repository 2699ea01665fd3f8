"""Sends responses with stored records through the transport: for TLS, which must see every byte.

Owns the response in transit. Never blocks the event loop for more than a slice, and never for the disk: a thread loads
what is not in the page cache. Its counterpart without TLS is `sending`.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final

from fenceline.log.core.disk import FileSlice

_SLICE_BYTES: Final = 256 << 10
"""Read, encrypted and written in one iteration of the event loop."""

Part = bytes | bytearray | memoryview | FileSlice


class CopySender:
    """As `sending.FileSender`: one response at a time; `sent` is called when all of it is with the transport."""

    __slots__ = (
        "_failed",
        "_is_open",
        "_loop",
        "_parts",
        "_position",
        "_sent",
        "_threads",
        "_transport",
        "_waits",
        "is_used",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        threads: Executor,
        *,
        sent: Callable[[], None],
        failed: Callable[[OSError], None],
    ) -> None:
        self._transport = transport
        self._threads = threads
        self._sent = sent
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._parts: deque[Part] = deque()
        self._position = 0
        self._is_open = True
        self._waits = False
        self.is_used = True

    @property
    def is_busy(self) -> bool:
        return bool(self._parts)

    def send(self, parts: Sequence[Part]) -> bool:
        """Send as much as the peer takes at once; whether that was all. Never called while busy."""
        assert not self._parts, "one answer at a time"
        self.is_used = True
        self._parts.extend(parts)
        self._loop.call_soon(self._later)
        return False

    def close(self) -> None:
        """The connection is closed: drop unsent data."""
        self._is_open = False
        self._parts.clear()

    def drained(self) -> None:
        """The transport has resumed its protocol."""
        if self._waits:
            self._waits = False
            self._transport.set_write_buffer_limits()
            self._later()

    def _later(self) -> None:
        """Send a slice, and the rest in later iterations."""
        if not self._is_open:
            return
        parts = self._parts
        while parts:
            if self._transport.get_write_buffer_size():
                # The transport pauses its protocol now, and resumes it when it is empty.
                self._waits = True
                self._transport.set_write_buffer_limits(high=0)
                return
            part = parts[0]
            if not isinstance(part, FileSlice):
                self._transport.write(part)
                parts.popleft()
                continue
            size = min(len(part) - self._position, _SLICE_BYTES)
            if part.is_resident(self._position, self._position + size):
                self._copy(part, size)
                if parts:
                    self._loop.call_soon(self._later)
                    return
            else:
                loading = self._loop.run_in_executor(
                    self._threads, partial(part.load, self._position, self._position + size)
                )
                loading.add_done_callback(partial(self._loaded, part, size))
                return
        if self._is_open:
            self._sent()

    def _loaded(self, part: FileSlice, size: int, loading: asyncio.Future[None]) -> None:
        if not self._is_open or loading.cancelled():
            return
        error = loading.exception()
        if isinstance(error, OSError):
            self._fail(error)
        elif error is not None:
            raise error
        else:
            self._copy(part, size)
            self._later()

    def _copy(self, part: FileSlice, size: int) -> None:
        try:
            data = os.pread(part.fd, size, part.position + self._position)
            if not data:
                raise OSError(errno.EIO, "the segment file was truncated")
        except OSError as error:
            self._fail(error)
            return
        self._transport.write(data)
        self._position += len(data)
        if self._position == len(part):
            self._parts.popleft()
            self._position = 0

    def _fail(self, error: OSError) -> None:
        self._parts.clear()
        self._failed(error)
