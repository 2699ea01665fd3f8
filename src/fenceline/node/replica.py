"""One partition on this node: its log, the role that it has now, and who waits for it.

Owns the steps that belong together: a log that grew moves the high watermark, and a high watermark that moved releases
those who wait for it. Decides neither who leads nor what is committed (`fenceline.replica.leader`).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from uuid import UUID

from fenceline.errors import ErrorCode
from fenceline.ids import INTERNAL_TOPICS, TopicPartition
from fenceline.log.partition_log import NO_LIMIT
from fenceline.replica.waiters import Waiters

if TYPE_CHECKING:
    from fenceline.log.config import LogConfig
    from fenceline.log.partition_log import PartitionLog
    from fenceline.node.cleaning import Cleaning
    from fenceline.node.clock import Clock
    from fenceline.replica.leader import LeaderState


_NEVER_SEEN: Final = -2
"""No partition epoch follows it."""


class Committer(Protocol):
    """Who wants to know when records are committed."""

    def committed(self, position: int, code: ErrorCode) -> None:
        """NONE: they are. Any other code: they will not be by this leader."""


class _Commit(NamedTuple):
    end_offset: int
    waiter: Committer
    position: int


class Replica:
    """See the module. All of it belongs to the loop, but for the log while `is_being_cut`."""

    __slots__ = (
        "_clock",
        "_commits",
        "_partition_epoch",
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
        """None: another broker leads, or nobody."""
        self.leader_epoch = -1
        """Of the role that it has now, also as a follower (`epochs.md E2`)."""
        self.follows_recovering = False
        self.clean_since = NO_LIMIT
        """No leader of a later epoch was elected uncleanly, as this node saw each change of the partition since. Tells
        whether a leader whose log starts later had what it has no more."""
        self.may_lead = False
        """Whether the metadata counts this replica in sync, or eligible (KIP-966)."""
        self._partition_epoch = _NEVER_SEEN
        """Of the change that was seen last."""
        self.is_being_cut = False
        """A thread works on the log."""
        self.cleaning: Cleaning | None = None
        """The compaction of the log that is under way."""
        self.is_leaving = False
        """Removed from this node meanwhile: its files go when the thread ends."""
        self.waiters = Waiters()
        """For a high watermark, a log start, a role or an epoch that changes."""
        self.follower_waiters = Waiters()
        """For a log end, a log start, a role or an epoch that changes. Followers are told of a high watermark with what
        comes next: to read for them because of it would find nothing."""
        self.refused: tuple[int, frozenset[int]] = (-1, frozenset())
        """The epoch that this broker led last, and the ends of what was written then to producers who were told that it
        is not committed. Tells what nobody was told to be written, should it be cut."""
        self._commits: deque[_Commit] = deque()
        self._clock = clock

    @property
    def is_leader(self) -> bool:
        return self.leader is not None

    @property
    def is_recovering(self) -> bool:
        """The partition's leader was elected uncleanly and has not recovered: nobody is served here (V37)."""
        return self.leader.is_recovering if self.leader is not None else self.follows_recovering

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    def saw(self, leader_epoch: int, partition_epoch: int, *, is_recovering: bool, may_lead: bool) -> None:
        """What the metadata says of the partition and of this replica. An unclean election is a change of its own,
        and a change that was passed over may have been one."""
        if partition_epoch == self._partition_epoch:
            return
        self.may_lead = may_lead
        if is_recovering or partition_epoch != self._partition_epoch + 1:
            self.clean_since = leader_epoch
        self._partition_epoch = partition_epoch

    def appended(self) -> None:
        """The leader's log grew: move the high watermark, and wake who waits for records."""
        leader = self.leader
        if leader is None:
            return
        now_ms = 0 if leader.is_only_replica else self._clock.monotonic_ms()
        if leader.on_append(self.log.log_end_offset, self.config.min_insync_replicas, now_ms):
            self.commit()
        if self.follower_waiters:
            _call_all(self.follower_waiters)

    def commit(self) -> None:
        """The leader's high watermark moved."""
        leader = self.leader
        assert leader is not None, "only a leader commits"
        high_watermark = self.log.advance_high_watermark(leader.high_watermark)
        commits = self._commits
        if commits and commits[0].end_offset <= high_watermark:
            # E42: acknowledged it is, with a warning where too few are in sync by now.
            has_enough = leader.had_enough_replicas(self.config.min_insync_replicas)
            code = ErrorCode.NONE if has_enough else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            while commits and commits[0].end_offset <= high_watermark:
                _, waiter, position = commits.popleft()
                waiter.committed(position, code)
        if self.waiters:
            _call_all(self.waiters)

    def learn(self, high_watermark: int, log_start_offset: int) -> None:
        """A follower takes over what its leader tells (E29). The high watermark goes back with the log only (G14b)."""
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
        """Tell when all below `end_offset`, the log end now, is committed, or never will be by this leader."""
        self._commits.append(_Commit(end_offset, waiter, position))

    def forget(self, waiter: Committer, position: int) -> bool:
        """It does not wait any more; False: it was told already."""
        for each in self._commits:
            if each.waiter is waiter and each.position == position:
                self._commits.remove(each)
                return True
        return False

    def wake(self) -> None:
        """Call everybody who waits for a change of this partition; they take themselves off."""
        if self.waiters:
            _call_all(self.waiters)
        if self.follower_waiters:
            _call_all(self.follower_waiters)

    def end_leadership(self, code: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> None:
        """This broker does not lead it any more: who waits for it is told so."""
        if self.leader is not None:
            self.refused = self.leader_epoch, frozenset(commit.end_offset for commit in self._commits)
        self.leader = None
        commits, self._commits = self._commits, deque()
        for commit in commits:
            commit.waiter.committed(commit.position, code)
        self.wake()


def _call_all(waiters: Waiters) -> None:
    for callback in tuple(waiters):
        callback()
