"""The leader's side of one partition: each follower's progress, the in-sync set, and what a reader may see.

Owns one leader epoch of one partition: the ISR as committed by the controller, the proposed change of it, each
follower's progress, the high watermark, and whether the leader is recovering from an unclean election. Never does I/O,
reads a clock, reads records, or asks the controller (it returns what to ask: `IsrProposal`).

| event                      | high watermark becomes                                              |
|----------------------------|---------------------------------------------------------------------|
| become leader              | the minimum log end of the replicas waited for; alone, its own (L38) |
| own append                 | the log end if no other replica is waited for, else unchanged       |
| a follower's fetch         | the minimum log end of the replicas waited for, never lower         |
| in-sync set committed      | the same                                                            |
| fewer in sync than min.isr | unchanged                                                           |

Waited for (E40) are the replicas that are or may already be in the ISR: new members of a proposed expansion, old
members of a proposed shrink; and replicas that are caught up and eligible, since they will join soon; but not replicas
that only an earlier process of their broker had caught up.

Rules: `epochs.md E30-E43`, `E65`; `list_offsets.md L8-L11` (KIP-207); `recovery.md V37-V42` (KIP-704); `gaps.md G14c`,
`G48`, `G49`, `G53`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple

from fenceline.errors import ErrorCode
from fenceline.replica.fencing import CONSUMER_REPLICA_ID, NO_EPOCH
from fenceline.replica.progress import FollowerProgress

EligibleEpoch = Callable[[int], int]
"""Broker id -> its broker epoch, if it may join an ISR now: registered, unfenced, not shutting down (E36).
NO_EPOCH for any other."""


@lru_cache(maxsize=1024)
def in_sync_set(members: tuple[int, ...]) -> frozenset[int]:
    """Many partitions have equal ones: they share an object."""
    return frozenset(members)


class InSyncRules(NamedTuple):
    """Settings that all partitions of a broker share."""

    eligible: EligibleEpoch
    max_lag_ms: int
    """`replica.lag.time.max.ms`."""


class ProposedReplica(NamedTuple):
    """A replica proposed for the ISR, and its broker epoch as the leader knows it (KIP-903; NO_EPOCH: unknown)."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class IsrProposal:
    """An ISR change that a leader proposes to the controller; it also says RECOVERED (V38).

    It names the epochs in which it was made, and is void once they are outdated (V17, V18).
    """

    leader_epoch: int
    partition_epoch: int
    members: tuple[ProposedReplica, ...]
    maximal_isr: frozenset[int]
    """The ISR that the leader waits for while the request is in flight (E37)."""
    growth: int = 0
    """The number of members added; negative if removed."""


class Rejection(Enum):
    """What happens to a proposal that the controller rejected (E39)."""

    REVERTED = "reverted to the committed in-sync set"
    STANDS = "pending until the metadata log shows the result"
    ASK_AGAIN = "sent again unchanged"


_REVERTING: Final = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})
_FINAL: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)


def rejection_of(code: ErrorCode) -> Rejection:
    """What an error of the controller does to the current proposal of a partition (E39)."""
    if code in _REVERTING:
        return Rejection.REVERTED
    return Rejection.STANDS if code in _FINAL else Rejection.ASK_AGAIN


@dataclass(slots=True)
class LeaderState:
    """A partition that this broker leads. Created for every leader epoch."""

    node_id: int
    broker_epoch: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: frozenset[int]
    """As committed by the controller."""
    epoch_start_offset: int
    """Log end when this epoch began (E65); consumers see no end offset before it is committed (KIP-207)."""
    rules: InSyncRules
    high_watermark: int = 0
    is_recovering: bool = False
    """Elected uncleanly, and the controller does not know yet that it has recovered: no client is served (V37)."""
    followers: dict[int, FollowerProgress] = field(default_factory=dict)
    proposal: IsrProposal | None = None
    """Sent to the controller, without a response or a metadata change yet. One at a time (E35)."""
    _not_waited_for: frozenset[int] = frozenset()
    """Removed from the ISR, without a fetch since. Its directory may have failed while its broker is alive (KIP-858),
    so it is not waited for. Kafka waits for `replica.lag.time.max.ms`."""
    _has_recovered: bool = False
    """The leader's part of the recovery is complete: only the controller must learn of it (V38)."""
    log_end_offset: int = field(init=False)
    is_only_replica: bool = field(init=False)
    """The own log is committed: there is no other replica to wait for, now or soon."""

    def __post_init__(self) -> None:
        self.log_end_offset = self.epoch_start_offset
        self._set_replicas()
        self._check()

    def _check(self) -> None:
        """The invariants, at the start of the epoch and after each change by the controller."""
        where = f"leader of epoch {self.leader_epoch}"
        high_watermark, end = self.high_watermark, self.log_end_offset
        assert 0 <= high_watermark <= end, f"{where}: high watermark {high_watermark}, log end {end}"
        assert self.epoch_start_offset <= end, f"{where}: it starts at {self.epoch_start_offset}, log end {end}"
        assert self.node_id not in self.followers, f"{where}: it follows itself"

    def _set_replicas(self) -> None:
        known = self.followers
        self.followers = {each: known.get(each) or FollowerProgress() for each in self.replicas if each != self.node_id}
        self.is_only_replica = not self.followers and self.isr == {self.node_id}

    def inherit_progress(self, before: LeaderState | None, now_ms: int) -> None:
        """Start an epoch (E33).

        A broker that led the previous epoch keeps its followers' progress, because no log changed in between (G53);
        otherwise the ISR counts as caught up now, other followers as never. A broker that was suspended may learn of
        several epochs at once: in between, another leader may have truncated its followers.
        """
        followed = before.followers if before is not None and before.leader_epoch + 1 == self.leader_epoch else {}
        for replica, progress in self.followers.items():
            old = followed.get(replica)
            if old is not None:
                self.followers[replica] = old
                if before is not None and replica in (before._not_waited_for | before.isr) - self.isr:
                    self._not_waited_for |= {replica}
            elif replica in self.isr:
                progress.last_caught_up_ms = now_ms

    # -- high watermark ------------------------------------------------------------------------------------------------

    @property
    def maximal_isr(self) -> frozenset[int]:
        """E37."""
        return self.isr if self.proposal is None else self.proposal.maximal_isr

    def on_append(self, log_end_offset: int, min_insync_replicas: int, now_ms: int) -> bool:
        """The own log now ends at `log_end_offset` (exclusive). True if the high watermark advanced."""
        self.log_end_offset = log_end_offset
        if self.is_only_replica:
            moved = log_end_offset > self.high_watermark
            if moved:
                self.high_watermark = log_end_offset
            return moved
        if len(self.maximal_isr) > 1:
            return False  # another in-sync replica does not have it yet
        return self.advance(min_insync_replicas, now_ms)

    def advance(self, min_insync_replicas: int, now_ms: int) -> bool:
        """Advance the high watermark to the minimum log end of the replicas waited for (E40). True if it advanced."""
        if not self.has_enough_replicas(min_insync_replicas) or self.node_id not in self.isr:
            return False
        maximal_isr, committed = self.maximal_isr, self.log_end_offset
        for replica, progress in self.followers.items():
            if progress.log_end_offset < committed and (
                replica in maximal_isr or self._joins_soon(replica, progress, now_ms)
            ):
                committed = progress.log_end_offset
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True

    def _joins_soon(self, replica: int, progress: FollowerProgress, now_ms: int) -> bool:
        """Whether it is caught up, by its current process: a restarted broker may lack gigabytes, whatever it had
        before. Kafka waits for it too, and so do its producers.
        """
        if replica in self._not_waited_for:
            return False
        if progress.log_end_offset != self.log_end_offset and progress.caught_up_epoch != progress.broker_epoch:
            return False
        return progress.is_caught_up(self.log_end_offset, now_ms, self.rules.max_lag_ms) and self._is_eligible(
            replica, progress
        )

    def has_enough_replicas(self, min_insync_replicas: int) -> bool:
        """Whether acks=all is accepted: |ISR| >= min(min.insync.replicas, replication factor) (`E40`, `E42`)."""
        return self._suffices(len(self.isr), min_insync_replicas)

    def had_enough_replicas(self, min_insync_replicas: int) -> bool:
        """Whether the records committed just now are on enough replicas to be acknowledged without an error (E42)."""
        return self._suffices(len(self.maximal_isr), min_insync_replicas)

    def _suffices(self, in_sync: int, min_insync_replicas: int) -> bool:
        return in_sync >= min_insync_replicas or in_sync >= len(self.replicas)

    # -- readers -------------------------------------------------------------------------------------------------------

    def hides_end_offset(self, replica_id: int) -> bool:
        """KIP-207: no end offset is returned while the high watermark is below this epoch's start (`L10-L11`)."""
        return replica_id == CONSUMER_REPLICA_ID and self.high_watermark < self.epoch_start_offset

    # -- followers -----------------------------------------------------------------------------------------------------

    def check_follower(self, replica_id: int, broker_epoch: int, *, knows_epoch: bool) -> ErrorCode:
        """Whether a broker may fetch here as a replica: NONE, 75 or 6.

        knows_epoch: the request has a leader epoch. Not assigned: E30. A broker epoch older than the registration's is
        that of a replaced process (E31).
        """
        if replica_id not in self.followers:
            return ErrorCode.UNKNOWN_LEADER_EPOCH if knows_epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER
        if NO_EPOCH != broker_epoch < self.rules.eligible(replica_id):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE

    def on_fetch(
        self,
        replica_id: int,
        fetch_offset: int,
        *,
        log_start_offset: int,
        broker_epoch: int,
        min_insync_replicas: int,
        now_ms: int,
    ) -> bool:
        """A follower that was checked and does not diverge has everything below `fetch_offset` (E31). Not called when a
        parked fetch is read again. True if the high watermark advanced.
        """
        progress = self.followers[replica_id]
        progress.fetched(fetch_offset, log_start_offset, broker_epoch, self.log_end_offset, now_ms)
        if self._not_waited_for:
            self._not_waited_for -= {replica_id}
        return self.advance(min_insync_replicas, now_ms)

    def low_watermark(self, own_log_start_offset: int, is_alive: Callable[[int], bool]) -> int:
        """The log start that all live replicas have reached: what DeleteRecords waits for."""
        others = [each.log_start_offset for replica, each in self.followers.items() if is_alive(replica)]
        return min([own_log_start_offset, *others])

    # -- in-sync set ---------------------------------------------------------------------------------------------------

    def propose_expansion(
        self, replica_id: int, own_log_start_offset: int = 0, *, may_lead: bool = False
    ) -> IsrProposal | None:
        """Propose to add a follower to the ISR (E35). `may_lead`: it is in the ELR (KIP-966).

        None if it may not join, a proposal is pending, or the leader recovers (V39); also if all its records are below
        the leader's log start, or its log is empty above it: then no record shows whether its log diverges (`epochs.md
        E13` d). It restarts, or advances its log start, with this response. A replica in the ELR has all committed
        records: if its log is empty above the leader's start, it was emptied by DeleteRecords or retention, and is
        kept.
        """
        if self.proposal is not None or self.is_recovering or replica_id in self.isr:
            return None
        progress = self.followers.get(replica_id)
        if (
            progress is None
            or not self._has_reached_this_epoch(progress)
            or progress.log_start_offset < progress.log_end_offset <= own_log_start_offset
            or (progress.log_start_offset == progress.log_end_offset > own_log_start_offset and not may_lead)
            or not self._is_eligible(replica_id, progress)
        ):
            return None
        return self._propose(self.isr | {replica_id}, maximal_isr=self.isr | {replica_id})

    def _has_reached_this_epoch(self, progress: FollowerProgress) -> bool:
        return progress.log_end_offset >= max(self.high_watermark, self.epoch_start_offset)

    def _is_eligible(self, replica_id: int, progress: FollowerProgress) -> bool:
        """E36; a broker epoch that was never sent is not eligible (G14c)."""
        return progress.broker_epoch != NO_EPOCH and progress.broker_epoch == self.rules.eligible(replica_id)

    @property
    def is_settled(self) -> bool:
        """Whether all replicas are in sync and at the log end, which is committed: `advance` and `propose_shrink` have
        nothing to do."""
        end = self.log_end_offset
        if self.high_watermark != end or len(self.isr) != len(self.replicas):
            return False
        return all(progress.log_end_offset == end for progress in self.followers.values())

    def propose_shrink(self, now_ms: int) -> IsrProposal | None:
        """Propose the ISR without lagging replicas (E38); None if none lags, or a proposal is pending."""
        if self.proposal is not None or self.is_recovering:
            return None
        lagging = {replica for replica in self.isr if replica != self.node_id and self._lags(replica, now_ms)}
        return self._propose(self.isr - lagging, maximal_isr=self.isr) if lagging else None

    def _lags(self, replica_id: int, now_ms: int) -> bool:
        progress = self.followers.get(replica_id)
        return progress is None or not progress.is_caught_up(self.log_end_offset, now_ms, self.rules.max_lag_ms)

    def propose_recovered(self) -> IsrProposal | None:
        """Recovery is complete: report it to the controller, with the unchanged ISR (V38). None if it is known."""
        self._has_recovered = True
        return self.propose_recovered_again()

    def propose_recovered_again(self) -> IsrProposal | None:
        """Report it again, if the proposal was dropped by another change of the partition within the epoch, or rejected
        (E39). None if the controller knows, the recovery is not complete, or a proposal is pending.
        """
        if self.proposal is not None or not self.is_recovering or not self._has_recovered:
            return None
        return self._propose(self.isr, maximal_isr=self.isr)

    def _propose(self, isr: Iterable[int], *, maximal_isr: frozenset[int]) -> IsrProposal:
        members = tuple(ProposedReplica(each, self._epoch_of(each)) for each in sorted(isr))
        growth = len(members) - len(self.isr)
        self.proposal = IsrProposal(self.leader_epoch, self.partition_epoch, members, maximal_isr, growth)
        return self.proposal

    def _epoch_of(self, replica_id: int) -> int:
        return self.broker_epoch if replica_id == self.node_id else self.followers[replica_id].broker_epoch

    def on_partition(
        self,
        *,
        partition_epoch: int,
        replicas: tuple[int, ...],
        isr: Iterable[int],
        is_recovering: bool,
        min_insync_replicas: int,
        now_ms: int,
    ) -> bool:
        """The partition's state from the controller, in the metadata log or in a response, in the same leader epoch.

        A state that is not newer changes nothing (E33). True if the high watermark advanced.
        """
        if partition_epoch <= self.partition_epoch:
            return False
        self.partition_epoch = partition_epoch
        self.proposal = None
        before, self.isr = self.isr, in_sync_set(tuple(isr))
        self._not_waited_for = (self._not_waited_for | before) - self.isr
        self.is_recovering = is_recovering
        self.replicas = replicas
        self._set_replicas()
        has_advanced = self.advance(min_insync_replicas, now_ms)
        self._check()
        return has_advanced

    def on_rejected(self, proposal: IsrProposal, code: ErrorCode) -> Rejection:
        """The controller rejected a proposal (E39). One that is not the current one is dropped."""
        if proposal is not self.proposal:
            return Rejection.REVERTED
        rejection = rejection_of(code)
        if rejection is Rejection.REVERTED:
            self.proposal = None
        return rejection
