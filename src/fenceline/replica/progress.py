"""The progress of one follower, from its fetches at the leader.

Rules: `epochs.md E31-E34`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fenceline.replica.fencing import NO_EPOCH

UNKNOWN_OFFSET: Final = -1


@dataclass(slots=True)
class FollowerProgress:
    """`log_end_offset` is the last fetch offset, which is the follower's log end; unknown before its first fetch at
    this leader. Times are of the leader's monotonic clock."""

    log_end_offset: int = UNKNOWN_OFFSET
    log_start_offset: int = UNKNOWN_OFFSET
    broker_epoch: int = NO_EPOCH
    last_fetch_ms: int = 0
    last_caught_up_ms: int | None = None
    """None: never at this leader."""
    caught_up_epoch: int = NO_EPOCH
    """Broker epoch of the process that was caught up then."""
    leader_end_at_last_fetch: int = 0

    def fetched(
        self, fetch_offset: int, log_start_offset: int, broker_epoch: int, leader_end_offset: int, now_ms: int
    ) -> None:
        """A fetch arrived while the leader's log ended at `leader_end_offset` (E32)."""
        if fetch_offset >= leader_end_offset:
            self.last_caught_up_ms = now_ms
            self.caught_up_epoch = broker_epoch
        elif self.log_end_offset != UNKNOWN_OFFSET and fetch_offset >= self.leader_end_at_last_fetch:
            self.last_caught_up_ms = max(self.last_fetch_ms, self.last_caught_up_ms or 0)
            self.caught_up_epoch = self.broker_epoch
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        self.broker_epoch = broker_epoch
        self.leader_end_at_last_fetch = leader_end_offset
        self.last_fetch_ms = now_ms

    def confirm_caught_up(self, at_ms: int) -> None:
        """It fetched at the leader's log end again at `at_ms`, without a call of `fetched` (see `fetch_session`)."""
        self.last_fetch_ms = max(at_ms, self.last_fetch_ms)
        self.last_caught_up_ms = max(at_ms, self.last_caught_up_ms or 0)
        self.caught_up_epoch = self.broker_epoch

    def is_caught_up(self, leader_end_offset: int, now_ms: int, max_lag_ms: int) -> bool:
        """E34: at the leader's end, or was there at most `replica.lag.time.max.ms` ago."""
        if self.log_end_offset == leader_end_offset:
            return True
        return self.last_caught_up_ms is not None and now_ms - self.last_caught_up_ms <= max_lag_ms
