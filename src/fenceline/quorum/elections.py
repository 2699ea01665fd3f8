"""Requesting and granting votes.

Owns the tally of the election that this node runs. A pre-vote runs in the same epoch and changes no state on any node;
winning it is the only way to become a candidate, which uses up an epoch (K7). In its requests a node claims only the
flushed part of its log: a candidate that restarts must not have less than it was elected for.

Differences from Kafka, on the same wire protocol: a vote or pre-vote that can no longer be won is repeated after a
short random time instead of an election timeout (Q20 against K9). So is a vote that one voter rejects while another
does not respond, as after a frozen leader that all followers miss in the same millisecond. A rejection by a voter that
starts its own pre-vote meanwhile is forgotten. A receiver whose key differs from the one in the request stays in its
epoch (G34). A follower whose leader has resigned or refuses connections grants a pre-vote.

Rules: raft.md Q5, Q6, Q10, Q16-Q20, Q60; since_4_0.md K7-K9; gaps.md G24, G34, G39.
"""

from __future__ import annotations

from collections.abc import Callable

from fenceline.errors import ErrorCode
from fenceline.ids import ZERO_UUID
from fenceline.quorum.core import Core
from fenceline.quorum.election_state import ElectionState
from fenceline.quorum.log_view import QuorumLogEnd
from fenceline.quorum.messages import NO_NODE, VoteRequest, VoteResponse
from fenceline.quorum.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached


class Elections:
    """See the module. `in_touch` returns whether a follower is in contact with its leader; `lead` makes this node the
    leader."""

    def __init__(self, core: Core, in_touch: Callable[[], bool], lead: Callable[[tuple[int, ...]], None]) -> None:
        self._core = core
        self._in_touch = in_touch
        self._lead = lead
        self._granted: set[int] = set()
        self._rejected: set[int] = set()
        self._unreachable: set[int] = set()
        """Voters whose addresses refuse connections: no vote is expected from them."""
        self._is_lost = False
        self._retry_is_scheduled = False
        self._consecutive_losses = 0

    # -- boot --------------------------------------------------------------------------------------------------------

    def boot(self, recorded: ElectionState | None) -> None:
        """Q10: a former leader does not continue to lead; a candidacy continues; otherwise follow the known leader."""
        core = self._core
        core.persisted = recorded or ElectionState()
        election = core.persisted.with_epoch_at_least(core.log.end.epoch)
        me, epoch = core.local_id, election.epoch
        voted_me = election.voted_id == me and election.voted_directory_id in (ZERO_UUID, core.local.voter_directory_id)
        if election.leader_id == me:
            core.role = Resigned(epoch, me)
        elif voted_me and core.is_electable and election.leader_id == NO_NODE:
            core.role = Candidate(epoch, me, core.local.voter_directory_id)
        else:
            core.role = Unattached(epoch, election.leader_id, election.voted_id, election.voted_directory_id)
            if core.leader_peer() is not None:
                core.role = Follower(epoch, election.leader_id, election.voted_id, election.voted_directory_id)
        core.persist()
        if isinstance(core.role, Follower):
            core.timeout_at_ms = core.now_ms + core.settings.fetch_timeout_ms
        elif isinstance(core.role, Unattached) and core.is_electable:
            # If the whole quorum starts there is no leader to wait for; if there is a leader, the pre-votes are
            # rejected.
            core.timeout_at_ms = core.now_ms + 1 + core.rng.randrange(core.settings.election_timeout_ms // 5 + 1)
        elif core.is_electable or isinstance(core.role, Resigned):
            core.timeout_at_ms = core.election_timeout()
        if core.is_only_voter and not isinstance(core.role, Candidate):
            self.start_pre_vote()
        elif isinstance(core.role, Candidate):
            self._reset_tally()
            self._decide()

    # -- sending requests --------------------------------------------------------------------------------------------

    def start_pre_vote(self) -> None:
        """Become Prospective: would a majority elect this node? (Q60, K7)"""
        core = self._core
        state = core.persisted
        if isinstance(core.role, Follower):
            self._consecutive_losses = 0
        if isinstance(core.role, Resigned):
            core.become(Prospective(core.epoch, core.local_id, NO_NODE, ZERO_UUID))
        else:
            core.become(Prospective(core.epoch, core.leader_id, state.voted_id, state.voted_directory_id))
        core.timeout_at_ms = core.election_timeout()
        self._reset_tally()
        self._decide()

    def _become_candidate(self) -> None:
        """Become Candidate in the next epoch. The only way into a candidacy."""
        core = self._core
        core.become(Candidate(core.epoch + 1, core.local_id, core.local.voter_directory_id))
        core.timeout_at_ms = core.election_timeout()
        self._reset_tally()
        self._decide()

    def _reset_tally(self) -> None:
        self._granted = {self._core.local_id} if self._core.is_voter else set()
        self._rejected = set()
        self._unreachable = set()
        self._is_lost = False
        self._retry_is_scheduled = False

    def _decide(self) -> None:
        core = self._core
        votes = len(self._granted & set(core.voters.ids))
        if core.is_electable and votes >= core.voters.majority:
            if isinstance(core.role, Prospective):
                self._become_candidate()
            else:
                self._consecutive_losses = 0
                self._lead(tuple(sorted(self._granted)))
        elif not self._is_lost and len(self._rejected | self._unreachable) > len(core.voters) - core.voters.majority:
            self._is_lost = True
            if isinstance(core.role, Prospective):
                self.give_up()
            self._schedule_retry()
        elif self._rejected and isinstance(core.role, Candidate):
            self._schedule_retry()

    def _schedule_retry(self) -> None:
        """Retry after a short random time that grows (Q20), to avoid another split vote."""
        core = self._core
        if self._retry_is_scheduled or isinstance(core.role, Follower) or not core.is_electable:
            return
        self._retry_is_scheduled = True
        limit = min(100 << min(self._consecutive_losses, 10), core.settings.election_backoff_max_ms)
        self._consecutive_losses += 1
        core.timeout_at_ms = core.now_ms + core.settings.retry_backoff_ms + core.rng.randrange(max(1, limit))

    def give_up(self) -> None:
        """End a pre-vote: follow the leader if its address is known, or else wait in the same epoch (K7)."""
        core = self._core
        if core.leader_peer() is not None:
            core.become_follower(core.epoch, core.leader_id)
        else:
            core.become_unattached(core.epoch, core.leader_id)

    def pump(self) -> None:
        """Send vote requests to all voters that have not responded."""
        core = self._core
        if not isinstance(core.role, Prospective | Candidate):
            return
        end = core.log.flushed
        for voter in core.others():
            node_id = voter.voter_id
            if node_id in self._granted or node_id in self._rejected:
                continue
            peer = core.peer(voter)
            if peer is None or not core.outbox.may_send(core.now_ms, peer, VoteRequest):
                continue
            core.send(
                peer,
                VoteRequest(
                    core.settings.cluster_id,
                    core.epoch,
                    core.local_id,
                    end.epoch,
                    end.offset,
                    core.local.voter_directory_id,
                    node_id,
                    core.voters.key_of(voter).replica_directory_id,
                    pre_vote=isinstance(core.role, Prospective),
                ),
            )

    def answered(self, node_id: int, asked: VoteRequest, response: VoteResponse) -> None:
        """The response belongs to the current election: a change of role forgets earlier requests."""
        core = self._core
        if response.error_code is ErrorCode.UNSUPPORTED_VERSION and asked.pre_vote:
            if isinstance(core.role, Prospective):
                self._become_candidate()
            return
        if not isinstance(core.role, Prospective | Candidate) or response.leader_epoch != core.epoch:
            return
        self._unreachable.discard(node_id)
        (self._granted if response.vote_granted else self._rejected).add(node_id)
        self._decide()

    def connection_refused(self, node_id: int) -> None:
        """A voter's address refuses connections. It is asked again while the election lasts."""
        if isinstance(self._core.role, Prospective | Candidate):
            self._unreachable.add(node_id)
            self._decide()

    # -- voting ------------------------------------------------------------------------------------------------------

    def vote(self, request: VoteRequest) -> VoteResponse:
        """Q16, Q17, K8, K9. The response is sent only after the state that it promises is durable. Neither the sender
        nor this node need be a voter: voter sets may differ for a while (Q19; wasteful at worst, G39)."""
        core = self._core
        if core.wrong_cluster(request.cluster_id):
            return VoteResponse(ErrorCode.INCONSISTENT_CLUSTER_ID)
        error = self._refusal(request)
        granted = False
        if error is ErrorCode.NONE:
            if request.replica_epoch > core.epoch:
                core.become_unattached(request.replica_epoch)
            elif request.pre_vote and isinstance(core.role, Prospective):
                self._rejected.discard(request.replica_id)  # the sender lost its leader too: it may grant a vote now
            granted = self._would_elect(request) if request.pre_vote else self._elect(request)
        return VoteResponse(ErrorCode.NONE, error, core.leader_id, core.epoch, granted, core.leader_endpoints())

    def _refusal(self, request: VoteRequest) -> ErrorCode:
        if not self._core.is_local_key(request.voter_id, request.voter_directory_id):
            return ErrorCode.INVALID_VOTER_KEY
        if request.replica_epoch < self._core.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        newest = request.replica_epoch if request.pre_vote else request.replica_epoch - 1
        if request.replica_id < 0 or request.last_offset < 0 or not 0 <= request.last_offset_epoch <= newest:
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    def _is_behind(self, request: VoteRequest) -> bool:
        """Q17, Q18: whether the sender lacks records of this log, or of this log before it was reset (G24): a vote must
        not go to a node that lacks records which this node has acknowledged. A download in progress does not count
        (N37)."""
        own = max(self._core.log.end, self._core.log.promised)
        return QuorumLogEnd(request.last_offset_epoch, request.last_offset) < own

    def _would_elect(self, request: VoteRequest) -> bool:
        if self._is_behind(request) or isinstance(self._core.role, Leader):
            return False
        return not (isinstance(self._core.role, Follower) and self._in_touch())

    def _elect(self, request: VoteRequest) -> bool:
        core = self._core
        role = core.role
        if not isinstance(role, Unattached | Prospective):
            return False
        if role.voted_id != NO_NODE:
            same = role.voted_id == request.replica_id
            return same and role.voted_directory_id in (ZERO_UUID, request.replica_directory_id)
        if role.leader_id != NO_NODE or self._is_behind(request):
            return False
        voted = type(role)(role.epoch, NO_NODE, request.replica_id, request.replica_directory_id)
        if isinstance(voted, Unattached):
            core.become(voted)
            core.timeout_at_ms = core.election_timeout() if core.is_electable else None
        else:
            core.role = voted
            core.persist()
        return True
