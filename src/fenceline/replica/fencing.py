"""Leader epoch checks and read bounds, the same for every request about a partition.

Rules: `epochs.md E1-E2`, `E5`, `E43`; `list_offsets.md L8`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from fenceline.errors import ErrorCode

CONSUMER_REPLICA_ID: Final = -1
DEBUG_REPLICA_ID: Final = -2
NO_EPOCH: Final = -1


class IsolationLevel(IntEnum):
    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


def check_leader_epoch(requested: int, local: int) -> ErrorCode:
    """Fence a request by its leader epoch: NONE, FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH (`epochs.md E1-E2`)."""
    if requested in (local, NO_EPOCH):
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH if requested < local else ErrorCode.UNKNOWN_LEADER_EPOCH


def read_bound(
    *, replica_id: int, isolation: int, log_end_offset: int, high_watermark: int, last_stable_offset: int
) -> int:
    """The offset (exclusive) up to which a reader may read (`epochs.md E43`, `list_offsets.md L8`)."""
    if replica_id != CONSUMER_REPLICA_ID:
        return log_end_offset
    if isolation == IsolationLevel.READ_COMMITTED:
        return min(last_stable_offset, high_watermark)
    return high_watermark
