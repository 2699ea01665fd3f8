"""The leader's side of one partition: epoch fencing, high watermark, and what a reader may see.

Owns: leader epoch, the in-sync set as committed by the controller, each replica's log end offset, the high watermark.
Never does: I/O, reading a clock, looking at records.

Rules: `epochs.md E1-E2` (fencing), `E40-E43` (high watermark and read bounds), `list_offsets.md L8-L11` (KIP-207).

| event                      | high watermark becomes                                             |
|----------------------------|--------------------------------------------------------------------|
| become leader, epoch e     | min over the in-sync set; a set of one commits its whole log (L38)  |
| own append to offset o     | min over the in-sync set, never lower                              |
| fewer in sync than min.isr | unchanged                                                          |
"""

from __future__ import annotations

from dataclasses import dataclass, field
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


@dataclass(slots=True)
class LeaderState:
    """A partition that this broker leads. Built anew for every leader epoch."""

    node_id: int
    leader_epoch: int
    partition_epoch: int
    isr: frozenset[int]
    replica_count: int
    epoch_start_offset: int
    """Log end offset when this epoch began; consumers see no end offset before it is committed (KIP-207)."""
    high_watermark: int = 0
    _end_offsets: dict[int, int] = field(default_factory=dict)
    """Log end offsets of the in-sync replicas, this one included. A replica not heard of in this epoch is absent."""
    _is_only_replica: bool = field(init=False)
    """What is in the own log is committed: nobody else is waited for."""

    def __post_init__(self) -> None:
        self._end_offsets[self.node_id] = self.epoch_start_offset
        self._is_only_replica = self.replica_count == 1 and self.isr == {self.node_id}

    def on_append(self, log_end_offset: int, min_insync_replicas: int) -> bool:
        """Note that the own log now ends at `log_end_offset` (exclusive). True if the high watermark moved."""
        self._end_offsets[self.node_id] = log_end_offset
        if self._is_only_replica and log_end_offset > self.high_watermark:
            self.high_watermark = log_end_offset
            return True
        return self._advance(min_insync_replicas)

    def on_isr_change(self, isr: frozenset[int], partition_epoch: int, min_insync_replicas: int) -> bool:
        """The controller committed another in-sync set in the same leader epoch. True if the high watermark moved."""
        assert partition_epoch >= self.partition_epoch, "a partition epoch went back"
        self.isr = isr
        self.partition_epoch = partition_epoch
        self._is_only_replica = self.replica_count == 1 and isr == {self.node_id}
        return self._advance(min_insync_replicas)

    def has_enough_replicas(self, min_insync_replicas: int) -> bool:
        """Whether acks=all may be taken: |ISR| >= min(min.insync.replicas, replication factor) (`E40`, `E42`)."""
        in_sync = len(self.isr)
        return in_sync >= min_insync_replicas or in_sync >= self.replica_count

    def read_bound(self, *, replica_id: int, isolation: int, log_end_offset: int, last_stable_offset: int) -> int:
        """The offset (exclusive) up to which this reader may read (`epochs.md E43`, `list_offsets.md L8`)."""
        if replica_id != CONSUMER_REPLICA_ID:
            return log_end_offset
        if isolation == IsolationLevel.READ_COMMITTED:
            return min(last_stable_offset, self.high_watermark)
        return self.high_watermark

    def hides_end_offset(self, replica_id: int) -> bool:
        """KIP-207: the end offset is not told while the high watermark is below this epoch's start (`L10-L11`)."""
        return replica_id == CONSUMER_REPLICA_ID and self.high_watermark < self.epoch_start_offset

    def _advance(self, min_insync_replicas: int) -> bool:
        if not self.has_enough_replicas(min_insync_replicas):
            return False
        committed = min(self._end_offsets.get(replica, -1) for replica in self.isr) if self.isr else -1
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True
