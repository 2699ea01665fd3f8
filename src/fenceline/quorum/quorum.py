"""The consensus state machine of one node.

Owns the order in which its parts work; the parts are `elections`, `leading` with `fetches` and `voter_changes`,
`following` with `download`, around the shared `core`. Never does I/O, knows no clock and no randomness: every call
brings the time, and gives back duties (`duties` says what the driver owes). After each call everything that is due by
then has been ordered; `next_deadline_ms` says when `tick` is wanted next.

Rules: raft.md, snapshots.md N24-N39, since_4_0.md K7-K16; what differs from Kafka: `docs/decisions/008`.
"""

from __future__ import annotations

from typing import assert_never

from fenceline.errors import ErrorCode, InternalError
from fenceline.quorum.control_records import Voter, VoterEndpoint
from fenceline.quorum.core import Core
from fenceline.quorum.describe import describe
from fenceline.quorum.download import Download
from fenceline.quorum.duties import Answer, Duty, Level, Token
from fenceline.quorum.election_state import ElectionState
from fenceline.quorum.elections import Elections
from fenceline.quorum.fetches import Fetches
from fenceline.quorum.following import Following
from fenceline.quorum.leading import Leading
from fenceline.quorum.log_view import LogView, SnapshotId
from fenceline.quorum.messages import (
    NOBODY,
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    ApiVersionsRequest,
    ApiVersionsResponse,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    NodeEndpoint,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    ReplicaKey,
    RequestMessage,
    ResponseMessage,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
    VoteRequest,
    VoteResponse,
)
from fenceline.quorum.outbox import InFlight
from fenceline.quorum.roles import TIMEOUTS, Follower, Leader, OnTimeout, Resigned, Role, Unattached, leader_of
from fenceline.quorum.settings import QuorumSettings
from fenceline.quorum.voter_changes import VoterChanges
from fenceline.quorum.voter_registration import Registration
from fenceline.quorum.voter_set import VoterSet
from fenceline.rng import Rng


class Quorum:
    """See the module. Times are monotonic ms; a time before the last one counts as the last one."""

    def __init__(self, local: Voter, log: LogView, settings: QuorumSettings, rng: Rng) -> None:
        """`local` is this node as it would stand in a voter set; `rng` decides timeouts and whom to ask."""
        core = self._core = Core(local, log, settings, rng)
        self._leading = Leading(core)
        self._fetches = Fetches(
            core,
            fetched=self._fetched,
            heard=self._leading.heard,
            leader_high_watermark=lambda: self._leading.high_watermark,
        )
        self._changes = VoterChanges(core, self._leading)
        self._download = Download(core)
        self._following = Following(core, self._download, lambda: self._elections.ask())
        self._registration = Registration(core)
        self._elections = Elections(core, lambda: self._following.in_touch, self._leading.begin)
        self._closes_at_ms: int | None = None
        core.role_changed = self._role_changed

    # -- what others see -----------------------------------------------------------------------------------------------

    @property
    def role(self) -> Role:
        return self._core.role

    @property
    def epoch(self) -> int:
        return self._core.epoch

    @property
    def leader_id(self) -> int:
        """Who leads this epoch as far as known, -1 = nobody known."""
        return self._core.leader_id

    @property
    def leader_endpoint(self) -> NodeEndpoint | None:
        return next(iter(self._core.leader_endpoints()), None)

    @property
    def is_leader(self) -> bool:
        return isinstance(self._core.role, Leader)

    @property
    def is_voter(self) -> bool:
        """Whether this node is in the newest voter set; else it is an observer."""
        return self._core.is_voter

    @property
    def is_only_voter(self) -> bool:
        return self._core.is_only_voter

    @property
    def high_watermark(self) -> int | None:
        """End of what this node knows to be committed; never falls. None until known."""
        return self._core.high_watermark

    @property
    def voter_set(self) -> VoterSet:
        """In force, committed or not (Q40)."""
        return self._core.voters

    @property
    def voters(self) -> tuple[Voter, ...]:
        return self._core.voters.voters

    @property
    def kraft_version(self) -> int:
        return self._core.voters.kraft_version

    @property
    def has_closed(self) -> bool:
        """After `shutdown`: nothing more is owed to the others (Q23)."""
        core = self._core
        if self._closes_at_ms is None or isinstance(core.role, Leader):
            return False
        return not isinstance(core.role, Resigned) or core.is_only_voter or core.now_ms >= self._closes_at_ms

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` is to be called at the latest; None: nothing is waited for."""
        core = self._core
        times = (
            core.timeout_at_ms,
            core.outbox.next_deadline_ms(core.now_ms),
            self._fetches.next_deadline_ms(),
            self._following.next_deadline_ms(),
            self._leading.next_deadline_ms(),
            self._changes.next_deadline_ms(),
            self._registration.next_deadline_ms(),
        )
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    def finalize_kraft_version(self, now_ms: int, version: int) -> list[Duty]:
        """UpdateFeatures of kraft.version, as the leader (K15). Raises PeerError."""
        self._begin(now_ms)
        self._changes.finalize_kraft_version(version)
        return self._end()

    def check_leads(self, epoch: int) -> None:
        """Q35, before the controller appends: raises PeerError (6) when this node does not lead `epoch`."""
        self._leading.check_leads(epoch)

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self, now_ms: int, recorded: ElectionState | None) -> list[Duty]:
        """Boot (Q10). `recorded` is what `quorum-state` says, None where there is none. The only voter leads at once
        (Q6). The log holds nothing unflushed."""
        core = self._begin(now_ms)
        latest = core.log.latest_snapshot
        if latest is not None and latest.end_offset > 0:
            core.high_watermark = latest.end_offset  # a snapshot stands only for what is committed (N15)
        self._elections.boot(recorded)
        return self._end()

    def tick(self, now_ms: int) -> list[Duty]:
        """Time has passed. Harmless at any time."""
        core = self._begin(now_ms)
        for request_id in core.outbox.expired(core.now_ms):
            self._unanswered(request_id, refused=False)
        self._fetches.expire()
        self._leading.tick()
        self._changes.tick()
        if core.timeout_at_ms is not None and core.timeout_at_ms <= core.now_ms:
            self._time_is_up()
        return self._end()

    def resign(self, now_ms: int) -> list[Duty]:
        """Stop leading; nothing where this node does not lead."""
        self._begin(now_ms)
        if self.is_leader:
            self._leading.resign()
        return self._end()

    def shutdown(self, now_ms: int, timeout_ms: int) -> list[Duty]:
        """Q23: resign, and take part in no election more. The node may go when `has_closed`, or `timeout_ms` later."""
        core = self._begin(now_ms)
        self._closes_at_ms = core.now_ms + timeout_ms
        if self.is_leader:
            self._leading.resign()
        core.timeout_at_ms = None
        return self._end()

    # -- the network ---------------------------------------------------------------------------------------------------

    def request(self, now_ms: int, token: Token, message: RequestMessage) -> list[Duty]:
        """Somebody asks; an Answer, ServeRecords or ServePiece with `token` comes now or later, exactly once."""
        core = self._begin(now_ms)
        match message:
            case VoteRequest():
                core.duties.append(Answer(token, self._elections.vote(message)))
            case BeginQuorumEpochRequest():
                core.duties.append(Answer(token, self._leader_begins(message)))
            case EndQuorumEpochRequest():
                core.duties.append(Answer(token, self._leader_ends(message)))
            case FetchRequest():
                self._fetches.fetch(token, message)
            case FetchSnapshotRequest():
                self._fetches.fetch_snapshot(token, message)
            case DescribeQuorumRequest():
                core.duties.append(Answer(token, describe(core, self._leading)))
            case AddRaftVoterRequest():
                self._changes.add(token, message)
            case RemoveRaftVoterRequest():
                self._changes.remove(token, message)
            case UpdateRaftVoterRequest():
                self._changes.update(token, message)
            case ApiVersionsRequest():
                raise InternalError("the node answers ApiVersions itself")
            case _:
                assert_never(message)
        return self._end()

    def response(self, now_ms: int, request_id: int, message: ResponseMessage) -> list[Duty]:
        """The answer to a `Send`. Nothing happens where it is not waited for any more."""
        core = self._begin(now_ms)
        sent = core.outbox.take(request_id)
        if sent is not None:
            match message:
                case ApiVersionsResponse():
                    self._changes.probed(message)
                case AddRaftVoterResponse() | RemoveRaftVoterResponse():
                    self._registration.answered(message)
                case DescribeQuorumResponse():
                    raise InternalError("the quorum asks nobody for a description")
                case _:
                    self._answered(sent, message)
        return self._end()

    def no_response(self, now_ms: int, request_id: int, refused: bool) -> list[Duty]:
        """A `Send` will not be answered: its connection was lost. `refused`: the address takes no connection, so nobody
        listens there; a voter whose leader is gone that way asks for votes at once."""
        self._begin(now_ms)
        self._unanswered(request_id, refused)
        return self._end()

    # -- the log -------------------------------------------------------------------------------------------------------

    def appended(self, now_ms: int) -> list[Duty]:
        """The log has grown: by a duty, or by the controller of this leader."""
        self._begin(now_ms).log_is_changing = False
        self._log_changed()
        return self._end()

    def flushed(self, now_ms: int) -> list[Duty]:
        """More of the log is flushed: it counts from here on (Q32, G35)."""
        self._begin(now_ms)
        self._log_changed()
        return self._end()

    def append_failed(self, now_ms: int, reason: str) -> list[Duty]:
        """Nothing of an AppendFetched or AppendControlBatch was appended: a leader that can not append resigns."""
        core = self._begin(now_ms)
        core.log_is_changing = False
        if self.is_leader:
            core.say(Level.ERROR, f"This node can not append to the metadata log: {reason}", "Check the disk.")
            self._leading.resign()
        else:
            self._following.append_failed(reason)
        return self._end()

    def truncated(self, now_ms: int) -> list[Duty]:
        """A Truncate is done."""
        self._begin(now_ms).log_is_changing = False
        return self._end()

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def download_begun(self, now_ms: int, snapshot_id: SnapshotId, position: int) -> list[Duty]:
        """The partial file is open and holds `position` bytes."""
        self._begin(now_ms)
        self._download.begun(snapshot_id, position)
        return self._end()

    def piece_written(self, now_ms: int, snapshot_id: SnapshotId, end_position: int) -> list[Duty]:
        """The partial file holds `end_position` bytes."""
        self._begin(now_ms)
        self._download.written(snapshot_id, end_position)
        return self._end()

    def download_failed(self, now_ms: int, snapshot_id: SnapshotId, reason: str) -> list[Duty]:
        """Opening, writing or verifying went wrong."""
        self._begin(now_ms)
        self._download.failed(snapshot_id, reason)
        self._following.back_off()
        return self._end()

    def snapshot_frozen(self, now_ms: int, snapshot_id: SnapshotId) -> list[Duty]:
        """The download is whole, verified and durable in its place."""
        self._begin(now_ms)
        self._download.frozen(snapshot_id)
        return self._end()

    def snapshot_loaded(self, now_ms: int) -> list[Duty]:
        """The log starts and ends at its newest snapshot now."""
        self._begin(now_ms).log_is_changing = False
        self._download.loaded()
        self._log_changed()
        return self._end()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _begin(self, now_ms: int) -> Core:
        core = self._core
        core.now_ms = max(core.now_ms, now_ms)
        core.duties = []
        return core

    def _end(self) -> list[Duty]:
        """Order everything that is due."""
        self._elections.pump()
        self._leading.pump()
        self._following.pump()
        if self._closes_at_ms is None:
            self._registration.pump()
        duties, self._core.duties = self._core.duties, []
        return duties

    def _role_changed(self, old: Role, new: Role) -> None:
        if isinstance(old, Leader):
            self._leading.ended(old)
            self._fetches.end_all()
            self._changes.leadership_lost()
        if isinstance(new, Leader):
            self._download.drop()
        if isinstance(new, Follower | Unattached):
            self._following.begin(same_leader=leader_of(old) == leader_of(new) != NOBODY)

    def _time_is_up(self) -> None:
        core = self._core
        core.timeout_at_ms = None
        if self._closes_at_ms is not None:
            return
        for_voter, for_observer = TIMEOUTS[type(core.role)]
        match for_voter if core.may_stand else for_observer:
            case OnTimeout.ASK:
                self._elections.ask()
            case OnTimeout.GO_BACK:
                self._elections.go_back()
            case OnTimeout.NEW_EPOCH:
                core.become_unattached(core.epoch + 1)
            case OnTimeout.LOOK_AROUND:
                self._following.silent()
            case OnTimeout.RESIGN | OnTimeout.NOTHING:
                pass

    def _fetched(self, key: ReplicaKey, offset: int) -> None:
        self._leading.fetched(key, offset)
        self._changes.fetched(key)
        self._count()

    def _count(self) -> None:
        if self._leading.count():
            self._fetches.high_watermark_moved()
            self._changes.high_watermark_moved()

    def _log_changed(self) -> None:
        core = self._core
        if isinstance(core.role, Leader):
            self._fetches.log_grew()
            self._count()
        else:
            self._following.count()
            if core.may_stand and core.timeout_at_ms is None and isinstance(core.role, Unattached):
                core.timeout_at_ms = core.election_timeout()

    def _unanswered(self, request_id: int, refused: bool) -> None:
        core = self._core
        sent = core.outbox.take(request_id)
        if sent is None:
            return
        core.outbox.put_off(sent.peer.node_id, type(sent.message), core.now_ms + core.settings.retry_backoff_ms)
        if isinstance(sent.message, ApiVersionsRequest):
            self._changes.probed(ApiVersionsResponse(ErrorCode.REQUEST_TIMED_OUT))
        elif isinstance(sent.message, FetchRequest | FetchSnapshotRequest):
            self._following.unanswered()
        if refused:
            self._following.refused(sent.peer.node_id)
        if refused and isinstance(sent.message, VoteRequest):
            self._elections.refused(sent.peer.node_id)

    def _answered(
        self,
        sent: InFlight,
        response: VoteResponse
        | BeginQuorumEpochResponse
        | EndQuorumEpochResponse
        | FetchResponse
        | FetchSnapshotResponse
        | UpdateRaftVoterResponse,
    ) -> None:
        """Q15: what the answer says of epochs comes first."""
        core = self._core
        if isinstance(sent.message, VoteRequest) and isinstance(response, VoteResponse):
            unsupported = response.error_code is ErrorCode.UNSUPPORTED_VERSION and sent.message.pre_vote
            if unsupported:
                self._elections.answered(sent.peer.node_id, sent.message, response)
                return
        error = response.error_code
        if not isinstance(response, UpdateRaftVoterResponse):
            if error is not ErrorCode.NONE:
                self._refused_as_a_whole(sent, error)
                return
            error = response.partition_error_code
        if isinstance(response, UpdateRaftVoterResponse):
            self._registration.updated(error)
        if response.leader_epoch < core.epoch or error is ErrorCode.UNKNOWN_LEADER_EPOCH:
            self._not_now(sent)
            return
        core.adopt(response.leader_epoch, response.leader_id, response.node_endpoints)
        if isinstance(response, FetchSnapshotResponse) and isinstance(sent.message, FetchSnapshotRequest):
            about_epochs = (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if error not in about_epochs and isinstance(core.role, Follower):
                if sent.message.current_leader_epoch == core.epoch:
                    self._following.heard_from_leader()
                    if not self._download.answered(sent.message, response):
                        self._following.back_off()
                return
        if error is not ErrorCode.NONE:
            if error is ErrorCode.INVALID_REQUEST:
                core.say(Level.ERROR, f"Node {sent.peer.node_id} calls this an invalid request: {sent.message}")
            self._not_now(sent)
            return
        match sent.message, response:
            case VoteRequest() as asked, VoteResponse():
                self._elections.answered(sent.peer.node_id, asked, response)
            case FetchRequest() as asked, FetchResponse():
                self._following.answered(asked, response)
            case EndQuorumEpochRequest(), EndQuorumEpochResponse():
                self._leading.goodbye_heard(sent.peer.node_id)
            case _:
                pass

    def _refused_as_a_whole(self, sent: InFlight, error: ErrorCode) -> None:
        advice = ""
        if error is ErrorCode.INCONSISTENT_CLUSTER_ID:
            advice = "That address belongs to another cluster: check controller.quorum.voters and bootstrap.servers."
        self._core.say(
            Level.WARNING,
            f"Node {sent.peer.node_id} at {sent.peer.host}:{sent.peer.port} refuses this node's requests: {error.name}",
            advice,
        )
        self._not_now(sent, 10)

    def _not_now(self, sent: InFlight, times: int = 1) -> None:
        """An answer that is of no use: ask again a little later."""
        core = self._core
        until_ms = core.now_ms + times * max(core.settings.retry_backoff_ms, 100)
        core.outbox.put_off(sent.peer.node_id, type(sent.message), until_ms)
        if isinstance(sent.message, FetchRequest | FetchSnapshotRequest) and not self._fresh_role():
            self._following.back_off()

    def _fresh_role(self) -> bool:
        """Whether this very answer has given a leader to fetch from: then not a moment is lost."""
        return self._following.is_fresh and self._core.leader_peer() is not None

    # -- a leader begins or ends ---------------------------------------------------------------------------------------

    def _leader_begins(self, request: BeginQuorumEpochRequest) -> BeginQuorumEpochResponse:
        """Q21. Whoever is meant by another key stays in its epoch (G34)."""
        core = self._core
        if core.wrong_cluster(request.cluster_id):
            return BeginQuorumEpochResponse(ErrorCode.INCONSISTENT_CLUSTER_ID)
        error = ErrorCode.NONE
        if not core.is_local_key(request.voter_id, request.voter_directory_id):
            error = ErrorCode.INVALID_VOTER_KEY
        else:
            error = self._adopt_leader(request.leader_epoch, request.leader_id, request.leader_endpoints)
        return BeginQuorumEpochResponse(ErrorCode.NONE, error, core.leader_id, core.epoch, core.leader_endpoints())

    def _leader_ends(self, request: EndQuorumEpochRequest) -> EndQuorumEpochResponse:
        """Q22."""
        core = self._core
        if core.wrong_cluster(request.cluster_id):
            return EndQuorumEpochResponse(ErrorCode.INCONSISTENT_CLUSTER_ID)
        error = self._adopt_leader(request.leader_epoch, request.leader_id, request.leader_endpoints)
        if error is ErrorCode.NONE:
            self._following.leader_ends(request)
        return EndQuorumEpochResponse(ErrorCode.NONE, error, core.leader_id, core.epoch, core.leader_endpoints())

    def _adopt_leader(self, epoch: int, leader_id: int, endpoints: tuple[VoterEndpoint, ...]) -> ErrorCode:
        core = self._core
        if epoch < core.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if leader_id < 0 or leader_id == core.me:
            return ErrorCode.INVALID_REQUEST
        endpoint = core.endpoint_of(endpoints)
        known = () if endpoint is None else (NodeEndpoint(leader_id, endpoint.host, endpoint.port),)
        core.adopt(epoch, leader_id, known)
        return ErrorCode.NONE if core.leader_id == leader_id else ErrorCode.INVALID_REQUEST
