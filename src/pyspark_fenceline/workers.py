"""The Python processes that Spark runs tasks in, and those that plan writes and commit them.

Owns what is done to such a process itself. Spark's daemon calls `gc.collect()` between two uses of one, and a process
that has imported Arrow, Spark and the client holds more than 50,000 objects that never become garbage: looking at them
takes 20 times as much CPU as reading a handful of records, while Spark is at the batch's other steps (decision 008).
"""

from __future__ import annotations

import gc
import sys
from typing import Final

from pyspark import TaskContext

_DAEMON: Final = "pyspark.daemon"
_settled = False


def settle() -> None:
    """Call at the end of a task or a commit: what the process holds after its first one is left out of later
    collections.

    Does nothing outside of Spark's workers. Objects made afterwards are collected as before; those of the first use
    that are part of a cycle stay.
    """
    global _settled
    if _settled or not (TaskContext.get() is not None or _is_forked_by_spark()):
        return
    _settled = True
    gc.collect()
    gc.freeze()


def _is_forked_by_spark() -> bool:
    """Whether Spark's daemon made this process, which then is none of the user's; commits have no TaskContext."""
    return getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", None) == _DAEMON
