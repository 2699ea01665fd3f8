"""Chooses the tail of logs: Cython when it was built and fits, else the pure-Python twin.

`FENCELINE_PURE_PYTHON=1` forces the twin. Owns nothing else; import the classes from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fenceline.log import _tail_py
from fenceline.log._tail_py import BATCHES_KEPT, NOT_PLAIN, WRITE_BYTES, BatchSeen
from fenceline.records import kernel

if TYPE_CHECKING:
    from fenceline.log._tail_py import LogTail, Producer, SegmentTail

    IS_NATIVE: bool
else:

    def _native():
        if not kernel.IS_NATIVE:
            return None
        try:
            from fenceline.log import _tail
        except ImportError:
            return None
        # A build left over from another version of the sources must not be mixed with this one.
        return _tail if getattr(_tail, "ABI", None) == _tail_py.ABI else None

    _chosen = _native() or _tail_py
    IS_NATIVE = _chosen is not _tail_py
    LogTail = _chosen.LogTail
    Producer = _chosen.Producer
    SegmentTail = _chosen.SegmentTail

__all__ = [
    "BATCHES_KEPT",
    "IS_NATIVE",
    "NOT_PLAIN",
    "WRITE_BYTES",
    "BatchSeen",
    "LogTail",
    "Producer",
    "SegmentTail",
]
