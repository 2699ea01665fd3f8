"""Garbage collection in Spark's Python processes, which run tasks, plan batches and writes, and commit them.

Owns the process-wide `gc` settings. Spark's daemon calls `gc.collect()` between two uses of a process, and a process
that has imported Arrow, Spark and the client holds more than 50,000 objects that never become garbage: traversing them
takes 20 times as much CPU as reading a few records, during the batch's other steps (decision 008). The planner of a
stream with 1,000 partitions makes so many objects in a batch that Python itself collects them all in most batches
(decision 043).
"""

from __future__ import annotations

import gc
import sys
from typing import Final

from pyspark import TaskContext

_SPARKS_MODULES: Final = frozenset({"pyspark.daemon", "pyspark.sql.streaming.python_streaming_source_runner"})
"""The main modules of processes that Spark starts: those that the daemon forks, and planners of streams."""
_is_frozen = False


def freeze_gc() -> None:
    """Exclude the current objects from later collections. Call at the end of a task, a plan or a commit; only the first
    call has an effect.

    Does nothing outside Spark's processes. Objects created later are collected as before; current ones that become
    cyclic garbage are never freed.
    """
    global _is_frozen
    if _is_frozen or not (TaskContext.get() is not None or _is_started_by_spark()):
        return
    _is_frozen = True
    gc.collect()
    gc.freeze()


def _is_started_by_spark() -> bool:
    """Whether this is a process of Spark's own; needed because plans and commits have no TaskContext."""
    return getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", None) in _SPARKS_MODULES
