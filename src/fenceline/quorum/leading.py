"""Leading: the first batch of an epoch, committing, check-quorum, resigning.

Owns the leader's state of one epoch. The high watermark is known only once a record of this epoch is committed. Of this
node's own log only the flushed part counts (G35).

Rules: raft.md Q9, Q21-Q23, Q31-Q34; since_4_0.md K7, K11, K17.
"""

from __future__ import annotations

from fenceline.errors import ErrorCode, InternalError, PeerError
from fenceline.quorum.control_records import ControlRecord, KRaftVersion, KRaftVoters, Voter, leader_change
from fenceline.quorum.core import Core
from fenceline.quorum.duties import AppendControlBatch, Lead, Level, StopLeading
from fenceline.quorum.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    ReplicaKey,
)
from fenceline.quorum.replicas import QuorumReplicas
from fenceline.quorum.roles import Leader, Resigned
from fenceline.quorum.voter_set import VoterSet


class Leading:
    """See the module."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.replicas: QuorumReplicas | None = None
        self.high_watermark: int | None = None
        """Of this term; None until known."""
        self._begin_at_ms: dict[int, int] = {}
        self._due_ms: int | None = None
        """Before this time no majority is missed and no announcement is due, since fetches only move both later. None:
        there is nothing to wait for."""
        self._due_for: tuple[VoterSet, int] | None = None
        """Of which voters and replicas (`QuorumReplicas.changes`)."""
        self._successors: tuple[ReplicaKey, ...] = ()
        """Preferred successors, as EndQuorumEpoch names them."""
        self._acknowledged: set[int] = set()

    # -- start and end -----------------------------------------------------------------------------------------------

    def begin(self, granting: tuple[int, ...]) -> None:
        """Q31, K17: elected. With kraft.version 1 the first batch also contains the voter set, if it is not in the
        log."""
        core = self._core
        voters = core.voters
        if len(set(granting) & set(voters.ids)) < voters.majority:
            raise InternalError(f"Q6: node {core.local_id} was elected by {granting}, no majority of {voters.ids}")
        core.become(Leader(core.epoch, core.local_id, core.log.end.offset))
        core.timeout_at_ms = None
        self.high_watermark = None
        self.replicas = QuorumReplicas(core.local_id, core.now_ms, core.settings.max_observers)
        self._begin_at_ms = {}
        self._due_for = None
        records: list[ControlRecord] = [leader_change(core.local_id, voters.ids, granting)]
        changed = voters.offset < 0 or voters.of(core.local_id) != core.local
        if voters.kraft_version >= 1 and changed and core.is_voter:
            records += [KRaftVersion(0, voters.kraft_version), KRaftVoters(0, voters.with_voter(core.local))]
        core.duties.append(AppendControlBatch(core.epoch, tuple(records)))

    def ended(self, old: Leader) -> None:
        self._core.duties.append(StopLeading(old.epoch))
        self.replicas = None
        self.high_watermark = None

    def resign(self) -> None:
        """Q9, Q23: stop leading, and send the others the preferred successors."""
        core = self._core
        if self.replicas is None or not isinstance(core.role, Leader):
            raise InternalError(f"only a leader can resign, not {core.role}")
        self._successors = self.replicas.successors(core.voters)
        self._acknowledged = set()
        core.become(Resigned(core.epoch, core.local_id))
        core.timeout_at_ms = core.election_timeout()

    # -- committing --------------------------------------------------------------------------------------------------

    def fetched(self, key: ReplicaKey, offset: int) -> None:
        assert self.replicas is not None, "fetches are valid only at a leader"
        self.replicas.fetched(key, offset, self._core.log.end.offset, self._core.now_ms)

    def contacted(self, key: ReplicaKey) -> None:
        assert self.replicas is not None, "only a leader serves snapshots"
        self.replicas.contact(key, self._core.now_ms)

    def update_high_watermark(self) -> bool:
        """Q32. Returns whether the high watermark of this term moved."""
        core = self._core
        role = core.role
        if not isinstance(role, Leader) or self.replicas is None:
            return False
        end = self.replicas.majority_end(core.voters, core.log.flushed.offset)
        end = min(end, core.log.end.offset)
        if end <= role.epoch_start_offset or end <= (self.high_watermark or 0):
            return False
        first = self.high_watermark is None
        self.high_watermark = end
        core.advance_high_watermark(end)
        if first:
            core.duties.append(Lead(role.epoch, role.epoch_start_offset))
        return True

    def check_leads(self, epoch: int) -> None:
        """Q35: raises PeerError unless this node leads `epoch` now."""
        if not isinstance(self._core.role, Leader) or epoch < self._core.epoch:
            raise PeerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"This node does not lead epoch {epoch}.")
        if epoch > self._core.epoch:
            raise InternalError(f"append in epoch {epoch}, but the current epoch is {self._core.epoch}")

    # -- timers ------------------------------------------------------------------------------------------------------

    def majority_lost_at_ms(self) -> int | None:
        if self.replicas is None:
            return None
        core = self._core
        return self.replicas.majority_lost_at_ms(core.voters, core.is_voter, core.settings.check_quorum_ms)

    def tick(self) -> None:
        """Q34: a leader that a majority no longer fetches from resigns, so that its clients look for another one."""
        core = self._core
        if self.replicas is None:
            return
        self.replicas.forget_observers(core.voters, core.now_ms - core.settings.observer_forgotten_ms)
        if not self._may_be_due():
            return
        lost_at_ms = self.majority_lost_at_ms()
        if lost_at_ms is not None and lost_at_ms <= core.now_ms:
            core.log_line(
                Level.WARNING,
                f"No majority of the voters {core.voters.ids} has fetched for {core.settings.check_quorum_ms} ms."
                f" Resigning as the leader of epoch {core.epoch}.",
                "Check that the other controllers are running and can reach this one.",
            )
            self.resign()

    def pump(self) -> None:
        if isinstance(self._core.role, Leader):
            self._announce()
        elif isinstance(self._core.role, Resigned):
            self._send_end_quorum_epoch()

    def _announce(self) -> None:
        """Q21, K11: send BeginQuorumEpoch to voters that have not fetched lately."""
        core = self._core
        assert self.replicas is not None, "a leader tracks its replicas"
        if not self._may_be_due():
            return
        for voter in core.others():
            if core.now_ms < self._announce_at_ms(voter):
                continue
            peer = core.peer(voter)
            if peer is None or not core.outbox.may_send(core.now_ms, peer, BeginQuorumEpochRequest):
                continue
            self._begin_at_ms[voter.voter_id] = core.now_ms + core.settings.begin_quorum_ms
            core.send(
                peer,
                BeginQuorumEpochRequest(
                    core.settings.cluster_id,
                    core.local_id,
                    core.epoch,
                    voter.voter_id,
                    core.voters.key_of(voter).replica_directory_id,
                    core.local.endpoints,
                ),
            )
        times = [self.majority_lost_at_ms(), *map(self._announce_at_ms, core.others())]
        self._due_ms = min((at_ms for at_ms in times if at_ms is not None), default=None)
        self._due_for = (core.voters, self.replicas.changes)

    def _may_be_due(self) -> bool:
        """Whether a majority may be missed, or an announcement be due."""
        if self._due_for is None or self._due_ms is None or self.replicas is None:
            return True
        voters, changes = self._due_for
        is_known = voters is self._core.voters and changes == self.replicas.changes
        return not is_known or self._core.now_ms >= self._due_ms

    def _announce_at_ms(self, voter: Voter) -> int:
        core = self._core
        replica = None if self.replicas is None else self.replicas.of_voter(core.voters, voter)
        fetched_ms = None if replica is None else replica.last_fetch_ms
        after_fetch = core.now_ms if fetched_ms is None else fetched_ms + core.settings.begin_quorum_ms
        return max(self._begin_at_ms.get(voter.voter_id, core.now_ms), after_fetch)

    def _send_end_quorum_epoch(self) -> None:
        """Q9, Q22: send EndQuorumEpoch to each voter until it has responded."""
        core = self._core
        for voter in core.others():
            peer = core.peer(voter)
            if voter.voter_id in self._acknowledged or peer is None:
                continue
            if core.outbox.may_send(core.now_ms, peer, EndQuorumEpochRequest):
                core.send(
                    peer,
                    EndQuorumEpochRequest(
                        core.settings.cluster_id, core.local_id, core.epoch, self._successors, core.local.endpoints
                    ),
                )

    def end_quorum_epoch_answered(self, node_id: int) -> None:
        self._acknowledged.add(node_id)

    def next_deadline_ms(self) -> int | None:
        core = self._core
        if not isinstance(core.role, Leader):
            return None
        if not self._may_be_due():
            return self._due_ms
        earliest_ms = self.majority_lost_at_ms()
        for voter in core.others():
            at_ms = self._announce_at_ms(voter)
            if at_ms > core.now_ms and (earliest_ms is None or at_ms < earliest_ms):
                earliest_ms = at_ms
        return earliest_ms
