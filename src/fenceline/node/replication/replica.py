"""One partition on this node: its log, its current role, and the requests that wait for it.

Owns the steps that belong together: an append may advance the high watermark, and an advanced high watermark completes
waiting requests. Decides neither which replica leads nor what is committed (`fenceline.replica.leader`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from uuid import UUID

from fenceline.errors import ErrorCode
from fenceline.ids import INTERNAL_TOPICS, TopicPartition
from fenceline.log.partition.partition_log import NO_LIMIT
from fenceline.replica.leader import Rejection
from fenceline.replica.waiters import Waiters

if TYPE_CHECKING:
    from fenceline.log.core.config import LogConfig
    from fenceline.log.partition.partition_log import PartitionLog
    from fenceline.node.clock import Clock
    from fenceline.replica.leader import IsrProposal, LeaderState


_NEVER_SEEN: Final = -2
"""A partition epoch that no other one follows."""
_UNKNOWN: Final = -1
"""No last stable offset."""


class Committer(Protocol):
    """Waits for records to be committed."""

    def committed(self, position: int, code: ErrorCode) -> None:
        """NONE: they are committed. Any other code: this leader will not commit them."""


class _Commit(NamedTuple):
    end_offset: int
    waiter: Committer
    position: int


class Cleaning:
    """One running compaction of a log, to be stopped before exclusive access to the log (`storage.log_cleaner`). Event
    loop only; `is_stopped` may be read in any thread."""

    __slots__ = ("_ended", "_stop", "is_stopped")

    def __init__(self) -> None:
        self.is_stopped = False
        self._stop = asyncio.Event()
        self._ended = asyncio.Event()

    async def stop(self) -> None:
        """Stop the compaction; returns once no thread uses the log."""
        self.ask_to_stop()
        await self._ended.wait()

    def ask_to_stop(self) -> None:
        self.is_stopped = True
        self._stop.set()

    def ended(self) -> None:
        self._ended.set()

    async def pause(self, seconds: float) -> None:
        """Sleep, at most until the stop request."""
        if self.is_stopped or seconds <= 0:
            return
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return


class Replica:
    """See the module docstring. Belongs to the event loop, except the log while `is_being_cut`."""

    __slots__ = (
        "_clock",
        "_commits",
        "_partition_epoch",
        "_stable_offset",
        "clean_since",
        "cleaning",
        "config",
        "follower_waiters",
        "follows_recovering",
        "is_being_cut",
        "is_internal",
        "is_leaving",
        "leader",
        "leader_epoch",
        "log",
        "may_lead",
        "refused",
        "stable_waiters",
        "topic_id",
        "topic_id_bytes",
        "topic_partition",
        "waiters",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID,
        partition_log: PartitionLog,
        config: LogConfig,
        clock: Clock,
    ) -> None:
        self.topic_partition = topic_partition
        self.is_internal = topic_partition.topic in INTERNAL_TOPICS
        self.topic_id = topic_id
        self.topic_id_bytes = topic_id.bytes
        self.log = partition_log
        self.config = config
        self.leader: LeaderState | None = None
        """None: another broker leads, or there is no leader."""
        self.leader_epoch = -1
        """Leader epoch of the current role, also as a follower (`epochs.md E2`)."""
        self.follows_recovering = False
        self.clean_since = NO_LIMIT
        """No leader with a later epoch was elected uncleanly; this node has seen each change of the partition since. If
        the leader's log starts later, this tells whether the leader once had the records before its start."""
        self.may_lead = False
        """Whether the metadata has this replica in the ISR or the ELR (KIP-966)."""
        self._partition_epoch = _NEVER_SEEN
        """Of the last change seen."""
        self.is_being_cut = False
        """A thread is truncating or replacing the log."""
        self.cleaning: Cleaning | None = None
        """The compaction of the log in progress."""
        self.is_leaving = False
        """Removed from this node; its files are deleted when the thread finishes."""
        self.waiters = Waiters()
        """Called when the high watermark, log start, role or epoch changes."""
        self.stable_waiters = Waiters()
        """Called when the last stable offset, log start, role or epoch changes."""
        self._stable_offset = _UNKNOWN
        """For which `stable_waiters` were called."""
        self.follower_waiters = Waiters()
        """Called when the log end, log start, role or epoch changes. Followers get a new high watermark with the next
        records: waking their fetches for it alone would find nothing to send."""
        self.refused: tuple[int, frozenset[int]] = (-1, frozenset())
        """The last epoch that this broker led, and the end offsets of appends in it whose producers got an error. Tells
        which truncated records were never acknowledged."""
        self._commits: deque[_Commit] | None = None
        """None before the first one: an empty deque is as large as the rest of an unused replica."""
        self._clock = clock

    @property
    def is_leader(self) -> bool:
        return self.leader is not None

    @property
    def replica(self) -> Replica:
        """See `isr_changes.Proposer`, as the next two."""
        return self

    @property
    def proposal(self) -> IsrProposal | None:
        return self.leader.proposal if self.leader is not None else None

    def on_rejected(self, proposal: IsrProposal, code: ErrorCode) -> Rejection:
        return self.leader.on_rejected(proposal, code) if self.leader is not None else Rejection.REVERTED

    @property
    def is_recovering(self) -> bool:
        """The leader was elected uncleanly and has not recovered: no client is served (V37)."""
        return self.leader.is_recovering if self.leader is not None else self.follows_recovering

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    def on_partition_change(
        self, leader_epoch: int, partition_epoch: int, *, is_recovering: bool, may_lead: bool
    ) -> None:
        """Record a change of the partition in the metadata. An unclean election is a separate change, and a missed
        change may have been one."""
        if partition_epoch == self._partition_epoch:
            return
        self.may_lead = may_lead
        if is_recovering or partition_epoch != self._partition_epoch + 1:
            self.clean_since = leader_epoch
        self._partition_epoch = partition_epoch

    def appended(self) -> None:
        """The leader's log grew: advance the high watermark, and wake waiting readers."""
        leader = self.leader
        if leader is None:
            return
        now_ms = 0 if leader.is_only_replica else self._clock.monotonic_ms()
        if leader.on_append(self.log.log_end_offset, self.config.min_insync_replicas, now_ms):
            self.commit()
        if self.follower_waiters:
            _call_all(self.follower_waiters)

    def commit(self) -> None:
        """The leader's high watermark advanced."""
        leader = self.leader
        assert leader is not None, "only a leader commits"
        high_watermark = self.log.advance_high_watermark(leader.high_watermark)
        commits = self._commits
        if commits and commits[0].end_offset <= high_watermark:
            # E42: the records are committed, with an error code if too few replicas are in sync by now.
            has_enough = leader.had_enough_replicas(self.config.min_insync_replicas)
            code = ErrorCode.NONE if has_enough else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            while commits and commits[0].end_offset <= high_watermark:
                _, waiter, position = commits.popleft()
                waiter.committed(position, code)
        if self.waiters:
            _call_all(self.waiters)
        if self.stable_waiters:
            # Records of an open transaction are of no use to a READ_COMMITTED reader.
            stable_offset = self.log.last_stable_offset
            if stable_offset != self._stable_offset:
                self._stable_offset = stable_offset
                _call_all(self.stable_waiters)

    def apply_leader_offsets(self, high_watermark: int, log_start_offset: int) -> None:
        """Apply the leader's offsets to a follower (E29). The high watermark decreases by truncation only (G14b)."""
        log, has_moved = self.log, False
        if high_watermark > log.high_watermark and log.high_watermark < log.log_end_offset:
            log.advance_high_watermark(high_watermark)
            has_moved = True
        start = min(log_start_offset, log.high_watermark)
        if start > log.log_start_offset:
            log.advance_log_start(start)
            has_moved = True
        if has_moved:
            self.wake()

    def when_committed(self, end_offset: int, waiter: Committer, position: int) -> None:
        """Notify `waiter` when all records below `end_offset` are committed, or this leader will not commit them."""
        if self._commits is None:
            self._commits = deque()
        self._commits.append(_Commit(end_offset, waiter, position))

    def forget(self, waiter: Committer, position: int) -> bool:
        """Stop waiting. False: the waiter has already been notified."""
        commits = self._commits or deque()
        for each in commits:
            if each.waiter is waiter and each.position == position:
                commits.remove(each)
                return True
        return False

    def wake(self) -> None:
        """Call all waiters for a change of this partition; they remove themselves."""
        self._stable_offset = _UNKNOWN
        if self.waiters:
            _call_all(self.waiters)
        if self.stable_waiters:
            _call_all(self.stable_waiters)
        if self.follower_waiters:
            _call_all(self.follower_waiters)

    def end_leadership(self, code: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> None:
        """This broker no longer leads the partition: waiting producers get `code`."""
        commits, self._commits = self._commits or (), None
        if self.leader is not None:
            self.refused = self.leader_epoch, frozenset(commit.end_offset for commit in commits)
        self.leader = None
        for commit in commits:
            commit.waiter.committed(commit.position, code)
        self.wake()


def _call_all(waiters: Waiters) -> None:
    for callback in tuple(waiters):
        callback()
