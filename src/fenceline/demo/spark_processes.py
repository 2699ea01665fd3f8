"""How Spark's processes end: Java, and the Python processes that Java started.

Owns the order, and that nothing of it is surprised or left. Starts nothing. Which processes are Java's is seen in
`/proc`; where there is none they end by themselves a moment after Java.
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
_LOOK_S: Final = 0.05


def end_spark(java: subprocess.Popen[bytes]) -> None:
    """End Java, and with it its Python processes, within seconds."""
    from pyspark import SparkContext

    # Its thread reads from Java, and prints an error where Java ends first.
    hang_up(getattr(SparkContext._active_spark_context, "_accumulatorServer", None))
    started = children_of(java.pid)
    java.terminate()
    try:
        java.wait(_END_WITHIN_S)
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()
    # They see that Java is gone, and go.
    give_up_at = time.monotonic() + _END_WITHIN_S
    while any(map(is_running, started)) and time.monotonic() < give_up_at:
        time.sleep(_LOOK_S)
    for left in filter(is_running, started):
        with contextlib.suppress(ProcessLookupError):
            os.kill(left, signal.SIGKILL)
    # Another session in this process needs another Java.
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None


def hang_up(server: AccumulatorTCPServer | AccumulatorUnixServer | None) -> None:
    """Have a Spark context's server of accumulators end, which looks once a second whether it is to; None is that of a
    context which has stopped.
    """
    if server is not None:
        ending = threading.Thread(target=server.shutdown, name="accumulators' end", daemon=True)
        ending.start()
        ending.join(_END_WITHIN_S)


def children_of(pid: int) -> list[int]:
    """Processes that were started by it, and by those that it started."""
    found: list[int] = []
    for each in Path("/proc").glob(f"{pid}/task/*/children"):
        try:
            found += map(int, each.read_text().split())
        except OSError:
            # The thread has ended.
            continue
    return [*found, *(below for child in found for below in children_of(child))]


def is_running(pid: int) -> bool:
    """Whether there is such a process; one that has ended and waits for its parent is none."""
    try:
        # The state follows the name, which may hold anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
