"""The socket between the JVM and a Python worker: acknowledges a task's command at once.

The JVM sends a task in two pieces: the command (with the reader or writer, pickled) and the first input, which for a
read is a few hundred bytes. It does not set TCP_NODELAY, so its kernel holds the second piece back until the first is
acknowledged, and a worker that has nothing to send acknowledges only after 40 ms (Nagle's algorithm and delayed
acknowledgements; decision 043). Readers and writers call `acknowledge_command` while they are unpickled: the command
has been received completely by then, and the input has not been read. Has no effect outside of Spark's workers, on
Unix domain sockets (`spark.python.unix.domain.socket.enabled`), and on systems without TCP_QUICKACK.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from types import FrameType
from typing import Any, Final

_WORKER: Final = "pyspark.worker"
_QUICK_ACK: Final = getattr(socket, "TCP_QUICKACK", None)


def acknowledge_command() -> None:
    """Let the kernel acknowledge what this task's worker has received so far. Never raises."""
    if _QUICK_ACK is None:
        return
    received = _worker_input()
    if received is None:
        return
    # Only the delay is at stake: if a Spark version reads from something else, its tasks work as before.
    with suppress(OSError, ValueError, AttributeError), socket.socket(fileno=os.dup(received.fileno())) as jvm:
        if jvm.family in (socket.AF_INET, socket.AF_INET6):
            jvm.setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)


def _worker_input() -> Any:
    """What Spark's worker reads its task from, or None in any other process."""
    if _WORKER not in sys.modules:
        return None
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "main" and frame.f_globals.get("__name__") == _WORKER:
            return frame.f_locals.get("infile")
        frame = frame.f_back
    return None
