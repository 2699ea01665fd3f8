"""Chooses the tail of logs: Cython if a matching build exists, else the pure-Python twin.

`FENCELINE_PURE_PYTHON=1` forces the twin. Owns nothing else; import the classes from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fenceline.compiled import compiled
from fenceline.log.core import _tail_py
from fenceline.log.core._tail_py import BATCHES_KEPT, NEWEST_BYTES, NOT_PLAIN, PRODUCER, WRITE_BYTES, BatchSeen
from fenceline.records import kernel

if TYPE_CHECKING:
    from fenceline.log.core._tail_py import LogTail, ProducerEntry, SegmentTail, encode_producers, expired_producers

    IS_NATIVE: bool
else:
    # Its checks are those of the compiled kernel: never use one without the other.
    _chosen = (compiled("fenceline.log.core._tail", _tail_py.ABI) if kernel.IS_NATIVE else None) or _tail_py
    IS_NATIVE = _chosen is not _tail_py
    LogTail = _chosen.LogTail
    ProducerEntry = _chosen.ProducerEntry
    SegmentTail = _chosen.SegmentTail
    encode_producers = _chosen.encode_producers
    expired_producers = _chosen.expired_producers

__all__ = [
    "BATCHES_KEPT",
    "IS_NATIVE",
    "NEWEST_BYTES",
    "NOT_PLAIN",
    "PRODUCER",
    "WRITE_BYTES",
    "BatchSeen",
    "LogTail",
    "ProducerEntry",
    "SegmentTail",
    "encode_producers",
    "expired_producers",
]
