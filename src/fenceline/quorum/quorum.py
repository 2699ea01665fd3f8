"""The consensus state machine of one node.

Owns the role, the voter set in force and the high watermark. Never does I/O: each call returns duties, in the order in
which the driver must do them; a duty's effect is reported back by the next call (`flushed`). Adjacent `PersistElection`
duties may be done as one, the last: nobody has seen those before it.

How it works with one voter: `start` goes Prospective, Candidate, Leader at once in a new epoch (Q6, K7), so every start
has its own epoch and nothing of an older one is ever written again (Q10). The leader counts itself only up to what it
has flushed, so the high watermark never passes data that a crash can take (`gaps.md G35`).

Rules: raft.md Q2, Q6, Q10, Q31-Q34; since_4_0.md K7, K17.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from fenceline.errors import InternalError
from fenceline.quorum.control_records import ControlRecord, KRaftVersion, KRaftVoters, Voter, leader_change
from fenceline.quorum.election_state import NOBODY, ElectionState
from fenceline.quorum.roles import (
    Candidate,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Role,
    Unattached,
    check_transition,
    persisted_form,
)


class LogEnd(NamedTuple):
    """Where the log ends: epoch of the last record (0 when empty) and the next offset."""

    epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class PersistElection:
    """Write `quorum-state` durably before anything that follows."""

    state: ElectionState


@dataclass(frozen=True, slots=True)
class AppendControlBatch:
    """Append one control batch in `epoch` and flush it."""

    epoch: int
    records: tuple[ControlRecord, ...]


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    """Everything below `offset` is committed."""

    offset: int


Duty: TypeAlias = PersistElection | AppendControlBatch | AdvanceHighWatermark


class Quorum:
    """See the module. `voters` is the newest set in the log, a snapshot or the static list."""

    def __init__(self, local: Voter, voters: Sequence[Voter], *, kraft_version: int, voters_in_log: bool) -> None:
        self._local = local
        self._voters = {voter.voter_id: voter for voter in voters}
        self._kraft_version = kraft_version
        self._voters_in_log = voters_in_log
        self._role: Role = Unattached(0)
        self._ends: dict[int, int | None] = {}
        self._high_watermark: int | None = None

    @property
    def role(self) -> Role:
        return self._role

    @property
    def epoch(self) -> int:
        return self._role.epoch

    @property
    def leader_id(self) -> int:
        """Who leads this epoch as far as known, -1 = nobody known."""
        match self._role:
            case Leader(_, node, _) | Resigned(_, node):
                return node
            case Follower(_, leader) | Unattached(_, leader) | Prospective(_, leader):
                return leader
            case Candidate():
                return NOBODY

    @property
    def is_leader(self) -> bool:
        return isinstance(self._role, Leader)

    @property
    def is_only_voter(self) -> bool:
        return self._voters.keys() == {self._local.voter_id}

    @property
    def high_watermark(self) -> int | None:
        """End of what is committed, None until known in this term (Q32)."""
        return self._high_watermark

    @property
    def voters(self) -> tuple[Voter, ...]:
        return tuple(self._voters[voter] for voter in sorted(self._voters))

    @property
    def kraft_version(self) -> int:
        return self._kraft_version

    def start(self, election: ElectionState | None, log_end: LogEnd) -> list[Duty]:
        """Boot (Q10) and, as the only voter, lead at once (Q6)."""
        self._role = self._boot_role((election or ElectionState()).with_epoch_at_least(log_end.epoch))
        if not self.is_only_voter:
            raise InternalError(
                f"the quorum's voters are {sorted(self._voters)} and this node is {self._local.voter_id}: "
                "this release can only lead a quorum of one"
            )
        state = persisted_form(self._role)
        duties: list[Duty] = []
        if not isinstance(self._role, Candidate):
            self._become(Prospective(state.epoch, state.leader_id, state.voted_id, state.voted_directory_id))
            candidate = Candidate(state.epoch + 1, self._local.voter_id, self._local.voter_directory_id)
            duties += self._become(candidate)
        return duties + self._lead(log_end, granting=(self._local.voter_id,))

    def _boot_role(self, election: ElectionState) -> Role:
        me = self._local.voter_id
        if election.leader_id == me:
            return Resigned(election.epoch, me)
        if election.voted_id == me and election.voted_directory_id in (
            self._local.voter_directory_id,
            ElectionState().voted_directory_id,
        ):
            return Candidate(election.epoch, me, self._local.voter_directory_id)
        return Unattached(election.epoch, election.leader_id, election.voted_id, election.voted_directory_id)

    def _become(self, role: Role) -> list[Duty]:
        """Q2: what is persisted of a role comes before the role's effects; Prospective and Resigned live in memory."""
        check_transition(self._role, role)
        self._role = role
        return [] if isinstance(role, Prospective | Resigned) else [PersistElection(persisted_form(role))]

    def _lead(self, log_end: LogEnd, granting: Sequence[int]) -> list[Duty]:
        """Q31: the first batch of the epoch; with kraft.version 1 also who votes, unless the log already says so."""
        epoch = self._role.epoch
        duties = self._become(Leader(epoch, self._local.voter_id, log_end.offset))
        self._high_watermark = None
        self._ends = dict.fromkeys(self._voters)
        records: list[ControlRecord] = [leader_change(self._local.voter_id, sorted(self._voters), granting)]
        if self._kraft_version >= 1 and (not self._voters_in_log or self._voters[self._local.voter_id] != self._local):
            self._voters[self._local.voter_id] = self._local
            self._voters_in_log = True
            records += [KRaftVersion(0, self._kraft_version), KRaftVoters(0, self.voters)]
        return [*duties, AppendControlBatch(epoch, tuple(records))]

    def flushed(self, end_offset: int) -> list[Duty]:
        """The leader's own log is durable up to `end_offset`: it counts from here on (Q32, G35)."""
        role = self._role
        if not isinstance(role, Leader):
            raise InternalError(f"only a leader counts its flushed log, not {role}")
        self._ends[self._local.voter_id] = end_offset
        known = sorted((end for end in self._ends.values() if end is not None), reverse=True)
        majority = len(self._voters) // 2
        if majority >= len(known):
            return []
        candidate = known[majority]
        if candidate <= role.epoch_start_offset or candidate <= (self._high_watermark or 0):
            return []
        self._high_watermark = candidate
        return [AdvanceHighWatermark(candidate)]

    def resign(self) -> None:
        """Stop leading (Q9, Q23). The only voter has nobody to tell."""
        if isinstance(self._role, Leader):
            self._become(Resigned(self._role.epoch, self._role.node_id))
