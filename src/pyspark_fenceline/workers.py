"""The Python process that Spark runs tasks in.

Owns what is done to that process itself. Spark's daemon calls `gc.collect()` between two tasks of a worker, and a
worker that has imported Arrow, Spark and the client holds more than 50,000 objects that never become garbage: looking
at them takes 20 times as much CPU as reading a handful of records, while Spark commits the batch beside it
(decision 008).
"""

from __future__ import annotations

import gc

from pyspark import TaskContext

_settled = False


def settle() -> None:
    """Call at the end of a task: what the process holds after its first one is left out of later collections.

    Does nothing outside of Spark's workers. Objects made afterwards are collected as before; those of the first task
    that are part of a cycle stay.
    """
    global _settled
    if _settled or TaskContext.get() is None:
        return
    _settled = True
    gc.collect()
    gc.freeze()
