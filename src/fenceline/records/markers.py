"""Control batches that end a transaction (KIP-98), as a log stores them.

Owns their bytes. Never decides the outcome of a transaction.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from fenceline.records.aborted import ControlType
from fenceline.records.batch import BatchHeader
from fenceline.records.build import build_batch
from fenceline.records.decode import decode_batch

_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
_VERSION: Final = 0


class EndMarker(NamedTuple):
    """A control record that ends a transaction."""

    commit: bool
    coordinator_epoch: int
    timestamp_ms: int


def end_marker(
    commit: bool, producer_id: int, producer_epoch: int, coordinator_epoch: int, timestamp_ms: int
) -> bytearray:
    """A batch of one record that ends a producer's transaction; offset and leader epoch are still unset
    (transactions.md X39)."""
    key = _KEY.pack(_VERSION, ControlType.COMMIT if commit else ControlType.ABORT)
    value = _VALUE.pack(_VERSION, coordinator_epoch)
    return build_batch(
        [(timestamp_ms, key, value, ())],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def decode_end_marker(key: bytes | None, value: bytes | None, timestamp_ms: int) -> EndMarker | None:
    """The end marker in a control record; None for control records of another kind (leader changes, ...)."""
    if key is None or len(key) < _KEY.size or value is None or len(value) < _VALUE.size:
        return None
    kind = _KEY.unpack_from(key)[1]
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    return EndMarker(kind == ControlType.COMMIT, _VALUE.unpack_from(value)[1], timestamp_ms)


def read_end_marker(header: BatchHeader, content: memoryview) -> EndMarker | None:
    """The end marker of a control batch; None if it has another kind of control record, or none. Raises
    RecordsError."""
    records = decode_batch(content, header._replace(position=0))
    if not records:
        return None
    return decode_end_marker(records[0].key, records[0].value, records[0].timestamp)
