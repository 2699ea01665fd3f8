"""State shared by the parts of the quorum: the role, election timers, the voters and the high watermark.

Owns every change of role (`become`), so that durable state is ordered before anything else (Q2), and every advance of
the high watermark. The parts append to `duties` and never remove from it.

Rules: raft.md Q2-Q4, Q7-Q9, Q13-Q15, Q39, Q40; since_4_0.md K7, K10; gaps.md G24, G36, G38 (this high watermark is the
single source; the log's own is updated by a duty).
"""

from __future__ import annotations

from collections.abc import Callable

from fenceline.errors import ErrorCode, InternalError
from fenceline.ids import ZERO_UUID
from fenceline.quorum.control_records import Voter, VoterEndpoint
from fenceline.quorum.duties import AdvanceHighWatermark, Duty, Level, LogLine, Peer, PersistElection
from fenceline.quorum.election_state import ElectionState
from fenceline.quorum.log_view import NO_PROMISED_END, LogView
from fenceline.quorum.messages import NO_NODE, QuorumNodeEndpoint, ReplicaKey, RequestMessage
from fenceline.quorum.outbox import QuorumOutbox
from fenceline.quorum.roles import (
    Candidate,
    Follower,
    Leader,
    Prospective,
    Role,
    Unattached,
    check_transition,
    leader_of,
    persisted_form,
)
from fenceline.quorum.settings import QuorumSettings
from fenceline.quorum.voter_set import VoterSet
from fenceline.rng import Rng


class Core:
    """See the module."""

    def __init__(
        self,
        local: Voter,
        log: LogView,
        settings: QuorumSettings,
        rng: Rng,
        role_changed: Callable[[Role, Role], None],
    ) -> None:
        """`role_changed` is called after each change, with the old and the new role."""
        self.local = local
        self.log = log
        self.settings = settings
        self.rng = rng
        self.now_ms = 0
        self.duties: list[Duty] = []
        self.role: Role = Unattached(0)
        self.persisted = ElectionState()
        self.timeout_at_ms: int | None = None
        """When the role times out: election timeout, or fetch timeout of a follower. None: never."""
        self.high_watermark: int | None = None
        self.log_is_changing = False
        """An append, a truncation or a snapshot load was ordered as a follower and is not reported yet."""
        self.outbox = QuorumOutbox(settings.request_timeout_ms, settings.retry_backoff_ms, rng)
        self.learned_endpoint: QuorumNodeEndpoint | None = None
        """The leader's address as named by a peer."""
        self._role_changed = role_changed
        self._voters_seen: object = self
        self._voter_set = VoterSet()
        self._others: list[Voter] = []
        self._is_voter = False
        self._found_persisted: tuple[Role, ElectionState] | None = None
        """The last role that `check` compared with what was ordered to be persisted."""

    # -- identity ----------------------------------------------------------------------------------------------------

    @property
    def local_id(self) -> int:
        return self.local.voter_id

    @property
    def local_key(self) -> ReplicaKey:
        return ReplicaKey(self.local.voter_id, self.local.voter_directory_id)

    @property
    def epoch(self) -> int:
        return self.role.epoch

    @property
    def leader_id(self) -> int:
        return leader_of(self.role)

    @property
    def voters(self) -> VoterSet:
        """The voter set in force (Q40), or else the static one (Q39)."""
        newest = self.log.voters
        if newest is not self._voters_seen:
            self._voters_seen = newest
            if newest is None:
                self._voter_set = VoterSet(self.settings.static_voters)
            else:
                self._voter_set = VoterSet(newest.voters, newest.kraft_version, newest.offset)
            self._others = [voter for voter in self._voter_set.voters if voter.voter_id != self.local_id]
            self._is_voter = self._voter_set.has(self.local_key)
        return self._voter_set

    @property
    def is_voter(self) -> bool:
        return bool(self.voters) and self._is_voter

    @property
    def is_electable(self) -> bool:
        """Whether this node may be elected: it is a voter, or its removal is not committed yet. In that case the others
        may be unable to commit the removal without it, since its log may be the longest. Never true while the node
        lacks records it has acknowledged (G24)."""
        if self.log.promised != NO_PROMISED_END:
            return False
        if self.is_voter:
            return True
        newest = self.voters
        if newest.offset < (self.high_watermark or 0):
            return False
        before = self.log.voters_before(newest.offset)
        return before is not None and VoterSet(before.voters, before.kraft_version).has(self.local_key)

    @property
    def is_only_voter(self) -> bool:
        """False while the node lacks records it has acknowledged: these may have added other voters (G24)."""
        return len(self.voters) == 1 and self.is_voter and self.log.promised == NO_PROMISED_END

    def others(self) -> list[Voter]:
        """The other voters in ascending order of id. Callers must not modify the list."""
        return self._others if self.voters else []

    def is_local_key(self, voter_id: int, directory_id: object) -> bool:
        """Whether a request names this node as its receiver; older versions name no receiver (Q16, Q21)."""
        return voter_id == NO_NODE or (
            voter_id == self.local_id and directory_id in (ZERO_UUID, self.local.voter_directory_id)
        )

    def peer(self, voter: Voter) -> Peer | None:
        endpoint = self.endpoint_of(voter.endpoints)
        return None if endpoint is None else Peer(voter.voter_id, endpoint.host, endpoint.port)

    def endpoint_of(self, endpoints: tuple[VoterEndpoint, ...]) -> VoterEndpoint | None:
        """The endpoint of the quorum's listener, or else the first one."""
        wanted = self.settings.listener
        for endpoint in endpoints:
            if endpoint.name.upper() == wanted.upper():
                return endpoint
        return endpoints[0] if endpoints else None

    def default_endpoint(self, endpoints: tuple[VoterEndpoint, ...]) -> VoterEndpoint | None:
        """The endpoint of the quorum's listener, which every voter must have: Kafka's voters stop when a voter set
        lacks it (Q41, Q43)."""
        endpoint, wanted = self.endpoint_of(endpoints), self.settings.listener
        return None if endpoint is None or (wanted and endpoint.name.upper() != wanted.upper()) else endpoint

    def leader_peer(self) -> Peer | None:
        """The leader's address if known: as named by the leader or a peer, or else as in the voter set."""
        leader = self.leader_id
        if leader in (NO_NODE, self.local_id):
            return None
        if self.learned_endpoint is not None and self.learned_endpoint.node_id == leader:
            return Peer(*self.learned_endpoint)
        voter = self.voters.of(leader)
        return None if voter is None else self.peer(voter)

    def leader_endpoints(self) -> tuple[QuorumNodeEndpoint, ...]:
        """The leader's endpoint, for responses."""
        if self.leader_id == self.local_id:
            endpoint = self.endpoint_of(self.local.endpoints)
            return () if endpoint is None else (QuorumNodeEndpoint(self.local_id, endpoint.host, endpoint.port),)
        peer = self.leader_peer()
        return () if peer is None else (QuorumNodeEndpoint(peer.node_id, peer.host, peer.port),)

    # -- roles -------------------------------------------------------------------------------------------------------

    def become(self, role: Role) -> None:
        """Change the role. Persisting its durable state is the first duty (Q2)."""
        old = self.role
        check_transition(old, role)
        self.role = role
        self.persist()
        self.outbox.clear()
        if self.learned_endpoint is not None and self.learned_endpoint.node_id != self.leader_id:
            self.learned_endpoint = None
        self._role_changed(old, role)

    def persist(self) -> None:
        state = persisted_form(self.role)
        if state != self.persisted:
            state.check_follows(self.persisted)
            self.persisted = state
            self.duties.append(PersistElection(state))

    def become_unattached(self, epoch: int, leader_id: int = NO_NODE) -> None:
        """Q3: a peer is in a higher epoch, or there is no leader left to follow in this one."""
        kept = self.timeout_at_ms if isinstance(self.role, Unattached | Prospective | Candidate) else None
        voted, directory = NO_NODE, ZERO_UUID
        if epoch == self.epoch:
            voted, directory = self.persisted.voted_id, self.persisted.voted_directory_id
        self.become(Unattached(epoch, leader_id, voted, directory))
        if self.is_electable:
            self.timeout_at_ms = self.election_timeout() if kept is None else kept
        else:
            self.timeout_at_ms = None

    def become_follower(self, epoch: int, leader_id: int) -> None:
        """Follow the leader if its address is known; otherwise only remember its id (K7, K10)."""
        if self._address_of(leader_id):
            state = self.persisted if epoch == self.epoch else ElectionState()
            self.become(Follower(epoch, leader_id, state.voted_id, state.voted_directory_id))
            self.timeout_at_ms = self.now_ms + self.settings.fetch_timeout_ms
        elif epoch > self.epoch or self.leader_id == NO_NODE:
            self.become_unattached(epoch, leader_id)

    def _address_of(self, node_id: int) -> bool:
        if self.learned_endpoint is not None and self.learned_endpoint.node_id == node_id:
            return True
        voter = self.voters.of(node_id)
        return voter is not None and bool(voter.endpoints)

    def learn_leader(self, epoch: int, leader_id: int, endpoints: tuple[QuorumNodeEndpoint, ...] = ()) -> None:
        """A peer names `leader_id` (-1 unknown) as the leader of `epoch` (Q3, Q7, Q15). A second leader in one epoch,
        which stops a Kafka node (Q8), is logged and ignored (G36)."""
        if epoch < self.epoch:
            return
        if leader_id == self.local_id and not (epoch == self.epoch and self.leader_id == self.local_id):
            self.log_line(
                Level.ERROR,
                f"A peer names node {self.local_id} as the leader of epoch {epoch}, but this process does not lead it.",
                f"Another process runs with node.id={self.local_id}. Stop one of them and give it its own"
                " node.id and log"
                " directory. Never run a copy of a log directory.",
            )
            leader_id = NO_NODE
        if leader_id not in (NO_NODE, self.local_id):
            self._learn_endpoint(leader_id, epoch, endpoints)
        if epoch > self.epoch:
            if leader_id == NO_NODE:
                self.become_unattached(epoch)
            else:
                self.become_follower(epoch, leader_id)
        elif leader_id not in (NO_NODE, self.local_id, self.leader_id) and self.leader_id != NO_NODE:
            self.log_line(
                Level.ERROR,
                f"Two leaders in epoch {epoch}: this node knows {self.leader_id}, a peer names {leader_id}. Ignoring"
                f" {leader_id}.",
                "Either two nodes run with the same node.id, or a node lost its quorum-state file. Stop that node.",
            )
        elif leader_id not in (NO_NODE, self.local_id) and self._awaits(leader_id):
            self.become_follower(epoch, leader_id)

    def _awaits(self, leader_id: int) -> bool:
        """A prospective keeps asking for votes when a peer only names the leader it already doubts."""
        doubted = isinstance(self.role, Prospective) and self.leader_id == leader_id
        return isinstance(self.role, Unattached | Candidate | Prospective) and not doubted

    def _learn_endpoint(self, leader_id: int, epoch: int, endpoints: tuple[QuorumNodeEndpoint, ...]) -> None:
        if epoch == self.epoch and self.leader_id not in (NO_NODE, leader_id):
            return
        for endpoint in endpoints:
            if endpoint.node_id == leader_id and endpoint.host:
                self.learned_endpoint = endpoint

    # -- timers ------------------------------------------------------------------------------------------------------

    def election_timeout(self) -> int:
        """When an election that starts now times out (Q4)."""
        timeout = self.settings.election_timeout_ms
        return self.now_ms + timeout + self.rng.randrange(timeout)

    # -- invariants --------------------------------------------------------------------------------------------------

    def check(self, epoch: int, high_watermark: int | None) -> None:
        """What holds after each call that began with this epoch and high watermark. Raises InternalError."""
        role, end = self.role, self.log.end
        if role.epoch < epoch:
            raise InternalError(f"Q50: the epoch cannot decrease: {epoch} to {role}")
        found = self._found_persisted
        if found is None or found[0] is not role or found[1] is not self.persisted:
            if persisted_form(role) != self.persisted:
                raise InternalError(f"Q2: {role} is not what was ordered to be persisted: {self.persisted}")
            self._found_persisted = (role, self.persisted)
        if end.epoch > role.epoch:
            raise InternalError(f"Q10: the log ends in epoch {end.epoch}, the quorum is in {role.epoch}")
        if isinstance(role, Leader) and role.epoch_start_offset > end.offset:
            raise InternalError(f"Q55: the log of {role} was truncated to {end.offset}")
        if self.high_watermark is None:
            if high_watermark is not None:
                raise InternalError(f"Q53: the high watermark {high_watermark} was forgotten")
        elif self.high_watermark < (high_watermark or 0):
            raise InternalError(f"Q53: the high watermark cannot decrease: {high_watermark} to {self.high_watermark}")
        elif self.high_watermark > end.offset:
            raise InternalError(f"Q54: high watermark {self.high_watermark} past the log's end {end.offset}")

    # -- shared helpers ----------------------------------------------------------------------------------------------

    def send(self, peer: Peer, message: RequestMessage) -> None:
        self.duties.append(self.outbox.send(self.now_ms, peer, message))

    def mark_reachable(self, node_id: int) -> None:
        """A request arrived from the node, so its address is reachable again."""
        if not self.outbox.has_failures:
            return
        voter = self.voters.of(node_id)
        peer = None if voter is None else self.peer(voter)
        if peer is not None:
            self.outbox.peer_reachable(peer)

    def log_line(self, level: Level, text: str, advice: str = "") -> None:
        self.duties.append(LogLine(level, text, advice))

    def advance_high_watermark(self, offset: int) -> bool:
        """Advance the high watermark, never back (Q53). Returns whether it moved."""
        if self.high_watermark is not None and offset <= self.high_watermark:
            return False
        if offset > self.log.end.offset:
            raise InternalError(f"high watermark {offset} past the log's end {self.log.end.offset}")
        self.high_watermark = offset
        self.duties.append(AdvanceHighWatermark(offset))
        return True

    def wrong_cluster(self, cluster_id: str | None) -> bool:
        """Q13: an absent id is accepted."""
        return cluster_id is not None and cluster_id != self.settings.cluster_id

    def leader_only(self, epoch: int) -> ErrorCode:
        """Q14, for requests that only the leader serves."""
        if epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > self.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if isinstance(self.role, Leader) else ErrorCode.NOT_LEADER_OR_FOLLOWER
