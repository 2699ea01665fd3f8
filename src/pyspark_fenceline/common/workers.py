"""Garbage collection in Spark's Python processes, which run tasks, plan writes and commit them.

Owns the process-wide `gc` settings. Spark's daemon calls `gc.collect()` between two uses of a process, and a process
that has imported Arrow, Spark and the client holds more than 50,000 objects that never become garbage: traversing them
takes 20 times as much CPU as reading a few records, during the batch's other steps (decision 008).
"""

from __future__ import annotations

import gc
import sys
from typing import Final

from pyspark import TaskContext

_DAEMON: Final = "pyspark.daemon"
_is_frozen = False


def freeze_gc() -> None:
    """Exclude the current objects from later collections. Call at the end of a task or a commit; only the first call
    has an effect.

    Does nothing outside Spark's workers. Objects created later are collected as before; current ones that become
    cyclic garbage are never freed.
    """
    global _is_frozen
    if _is_frozen or not (TaskContext.get() is not None or _is_forked_by_spark()):
        return
    _is_frozen = True
    gc.collect()
    gc.freeze()


def _is_forked_by_spark() -> bool:
    """Whether Spark's daemon forked this process; needed because commits have no TaskContext."""
    return getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", None) == _DAEMON
