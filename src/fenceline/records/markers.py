"""Control batches that end a transaction (KIP-98), as a log stores them.

Owns their bytes. Never decides the outcome of a transaction.
"""

from __future__ import annotations

import struct
from typing import Final

from fenceline.records.build import build_batch

_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
_VERSION: Final = 0
_ABORT: Final = 0


def abort_marker(producer_id: int, producer_epoch: int, coordinator_epoch: int, timestamp_ms: int) -> bytearray:
    """A batch of one record that aborts a producer's open transaction; offset and leader epoch are still unset."""
    key = _KEY.pack(_VERSION, _ABORT)
    value = _VALUE.pack(_VERSION, max(coordinator_epoch, 0))
    return build_batch(
        [(timestamp_ms, key, value, ())],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )
