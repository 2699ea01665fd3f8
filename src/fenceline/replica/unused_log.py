"""The log of a replica that has no records and no files, for the follower's side of its partition.

All such replicas share one: nothing in it ever changes. A replica that gets its first record is opened, and followed
with a log of its own (`fenceline.replica.follower`).
"""

from __future__ import annotations

from typing import Final

from fenceline.log.core.compaction_bound import COMPLETE
from fenceline.log.core.epoch_cache import UNDEFINED
from fenceline.replica.fencing import NO_EPOCH


class UnusedLog:
    """As `FollowedLog`."""

    log_start_offset: Final = 0
    log_end_offset: Final = 0
    latest_epoch: Final = NO_EPOCH
    latest_epoch_start: Final = UNDEFINED
    complete_from: Final = COMPLETE

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """It has no epoch."""
        return NO_EPOCH, UNDEFINED

    def last_deleted_epoch_is(self, epoch: int) -> bool:
        """Nothing was ever deleted here."""
        return False


UNUSED_LOG: Final = UnusedLog()
