"""Ends the Python process in which Spark plans a stream's batches when its Java parent process has ended.

Owns watching the parent process. Spark does not notify its planner when it ends, and a planner may wait for brokers for
minutes (`default.api.timeout.ms`, `fetchOffset.numRetries`): it would keep connections and memory of a query that no
longer exists. Ending it loses nothing, because a planner writes nothing. Never used in a process that the user started.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from typing import Final

_RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
_CHECK_S: Final = 1.0
_is_watched = False


def end_with_spark() -> None:
    """In Spark's planner process, watch the parent process, once; elsewhere do nothing."""
    global _is_watched
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if not _is_watched and spec is not None and spec.name == _RUNNER:
        _is_watched = True
        end_with(os.getppid())


def end_with(parent: int) -> None:
    """End this process, from a thread, when its parent process ends. `parent`: process id."""
    threading.Thread(target=_await_end, args=(parent,), name="end of Spark", daemon=True).start()


def _await_end(parent: int) -> None:
    if hasattr(os, "pidfd_open"):
        try:
            handle = os.pidfd_open(parent)
            # Readable when the process has ended. If it ended before, the id may belong to another process.
            while os.getppid() == parent and not select.select([handle], [], [], 3600)[0]:
                pass
        except OSError:
            _poll(parent)
    else:
        _poll(parent)
    os._exit(1)


def _poll(parent: int) -> None:
    """For systems without process handles that can be waited for."""
    while os.getppid() == parent:
        time.sleep(_CHECK_S)
