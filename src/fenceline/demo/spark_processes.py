"""Stops Spark's processes: Java, and the Python processes that Java started.

Owns the order, so that no process prints an error or is left running. Starts nothing. Java's children are found in
`/proc`; on systems without it they end by themselves shortly after Java.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.accumulators import AccumulatorTCPServer, AccumulatorUnixServer

_END_WITHIN_S: Final = 10.0
_POLL_S: Final = 0.05


def end_spark(java: subprocess.Popen[bytes]) -> None:
    """Stop Java and its Python processes within seconds."""
    from pyspark import SparkContext

    # Its thread reads from Java, and prints an error if Java ends first.
    stop_accumulator_server(getattr(SparkContext._active_spark_context, "_accumulatorServer", None))
    started = children_of(java.pid)
    java.terminate()
    try:
        java.wait(_END_WITHIN_S)
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()
    # They exit when their connection to Java is closed.
    deadline = time.monotonic() + _END_WITHIN_S
    while any(map(is_running, started)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    for left in filter(is_running, started):
        with contextlib.suppress(ProcessLookupError):
            os.kill(left, signal.SIGKILL)
    # Another session in this process needs another Java.
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None


def stop_accumulator_server(server: AccumulatorTCPServer | AccumulatorUnixServer | None) -> None:
    """Stop the accumulator server of a Spark context, which polls once a second for a stop; None: already stopped."""
    if server is not None:
        ending = threading.Thread(target=server.shutdown, name="accumulator-server-stop", daemon=True)
        ending.start()
        ending.join(_END_WITHIN_S)


def children_of(pid: int) -> list[int]:
    """The children of a process, and all their descendants."""
    found: list[int] = []
    for each in Path("/proc").glob(f"{pid}/task/*/children"):
        try:
            found += map(int, each.read_text().split())
        except OSError:
            # The thread has ended.
            continue
    return [*found, *(below for child in found for below in children_of(child))]


def is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        # The state follows the name, which may contain any character.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
