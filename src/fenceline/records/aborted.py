"""Which batches a read_committed consumer skips.

Owns the rule by which the aborted transactions of a Fetch response and the markers in the log hide batches (KIP-98).
Never reads client records, only the key of a control record.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from fenceline.records.batch import BatchHeader
from fenceline.records.decode import decode_batch
from fenceline.records.errors import corrupt

if TYPE_CHECKING:
    from typing_extensions import Buffer

AbortedTransaction = tuple[int, int]
"""Producer id and the first offset of the transaction, as in a Fetch response."""

_CONTROL_KEY: Final = struct.Struct(">hh")


class ControlType(IntEnum):
    """The kind of a control record (second field of its key); the values above 1 are those of the metadata log."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


def control_type(buf: Buffer, header: BatchHeader) -> int:
    """The kind of the (first) record of a control batch; compare with `ControlType`. Raises RecordsError."""
    records = decode_batch(buf, header)
    key = records[0].key if records else None
    if key is None or len(key) < _CONTROL_KEY.size:
        raise corrupt(f"the control batch at offset {header.base_offset} has no valid key")
    return int(_CONTROL_KEY.unpack_from(key)[1])


class AbortedTransactions:
    """Pass it every batch of one partition in order; it reports which ones belong to aborted transactions."""

    __slots__ = ("_aborting", "_waiting")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        # Later first, so that the next one to begin is popped from the end.
        self._waiting = sorted(aborted, key=lambda entry: entry[1], reverse=True)
        self._aborting: set[int] = set()

    def hides(self, buf: Buffer, header: BatchHeader) -> bool:
        """Whether the records of this batch were aborted. An abort marker ends its producer's transaction."""
        while self._waiting and self._waiting[-1][1] <= header.last_offset:
            self._aborting.add(self._waiting.pop()[0])
        if header.producer_id not in self._aborting:
            return False
        if header.is_control:
            # Compaction leaves the last marker of a producer without its record.
            if header.record_count and control_type(buf, header) == ControlType.ABORT:
                self._aborting.discard(header.producer_id)
            return False
        return header.is_transactional
