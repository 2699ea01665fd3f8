"""Chooses the compaction kernel: Cython if a matching build exists, else the pure-Python twin.

`FENCELINE_PURE_PYTHON=1` forces the twin. Owns nothing else; import the functions from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fenceline.compiled import compiled
from fenceline.log.compaction import _compaction_py
from fenceline.log.compaction._compaction_py import FULL, REST, SPECIAL

if TYPE_CHECKING:
    from fenceline.log.compaction._compaction_py import (
        IS_NATIVE,
        SLOT_BYTES,
        KeyOffsets,
        filter_chunk,
        filter_records,
        index_chunk,
        index_records,
        tell_batches,
    )
else:
    _chosen = compiled("fenceline.log.compaction._compaction", _compaction_py.ABI) or _compaction_py
    IS_NATIVE = _chosen.IS_NATIVE
    SLOT_BYTES = _chosen.SLOT_BYTES
    KeyOffsets = _chosen.KeyOffsets
    filter_chunk = _chosen.filter_chunk
    filter_records = _chosen.filter_records
    index_chunk = _chosen.index_chunk
    index_records = _chosen.index_records
    tell_batches = _chosen.tell_batches

__all__ = [
    "FULL",
    "IS_NATIVE",
    "REST",
    "SLOT_BYTES",
    "SPECIAL",
    "KeyOffsets",
    "filter_chunk",
    "filter_records",
    "index_chunk",
    "index_records",
    "tell_batches",
]
