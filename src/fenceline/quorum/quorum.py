"""The consensus state machine of one node.

Owns the order in which its parts work. The parts are `elections`, `leading` with `fetches` and `voter_changes`,
`following` with `download`, and `response_handling`, around the shared `core`; `status` reports the state.
Does no I/O and has no clock and no randomness: every call passes the time and returns duties (`duties` specifies what
the driver must do). After each call everything that is due has been ordered; `next_deadline_ms` is when to call `tick`.

Rules: raft.md, snapshots.md N24-N39, since_4_0.md K7-K16; differences from Kafka: `docs/decisions/009`.
"""

from __future__ import annotations

from typing import assert_never

from fenceline.errors import InternalError
from fenceline.quorum.control_records import Voter
from fenceline.quorum.core import Core
from fenceline.quorum.download import Download
from fenceline.quorum.duties import Duty, Level, QuorumAnswer, Token
from fenceline.quorum.election_state import ElectionState
from fenceline.quorum.elections import Elections
from fenceline.quorum.fetches import Fetches
from fenceline.quorum.following import Following
from fenceline.quorum.leading import Leading
from fenceline.quorum.log_view import LogView, SnapshotId
from fenceline.quorum.messages import (
    NO_NODE,
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    ApiVersionsRequest,
    ApiVersionsResponse,
    BeginQuorumEpochRequest,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    QuorumFetchRequest,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    ReplicaKey,
    RequestMessage,
    ResponseMessage,
    UpdateRaftVoterRequest,
    VoteRequest,
)
from fenceline.quorum.response_handling import ResponseHandler
from fenceline.quorum.roles import TIMEOUTS, Follower, Leader, OnTimeout, Resigned, Role, Unattached, leader_of
from fenceline.quorum.settings import QuorumSettings
from fenceline.quorum.status import QuorumStatus
from fenceline.quorum.voter_changes import VoterChanges
from fenceline.quorum.voter_registration import Registration
from fenceline.rng import Rng


class Quorum(QuorumStatus):
    """See the module. Times are monotonic ms; a time before the previous one counts as the previous one."""

    def __init__(self, local: Voter, log: LogView, settings: QuorumSettings, rng: Rng) -> None:
        """`local` is this node as a voter set would list it; `rng` decides timeouts and which peer to ask."""
        core = self._core = Core(local, log, settings, rng, self._role_changed)
        self._leading = Leading(core)
        self._fetches = Fetches(
            core,
            fetched=self._fetched,
            contacted=self._leading.contacted,
            leader_high_watermark=lambda: self._leading.high_watermark,
        )
        self._changes = VoterChanges(core, self._leading)
        self._download = Download(core)
        self._following = Following(core, self._download, lambda: self._elections.start_pre_vote())
        self._registration = Registration(core)
        self._elections = Elections(core, lambda: self._following.in_touch, self._leading.begin)
        self._responses = ResponseHandler(
            core,
            elections=self._elections,
            leading=self._leading,
            following=self._following,
            download=self._download,
            changes=self._changes,
            registration=self._registration,
        )
        self._closes_at_ms: int | None = None
        self._began_with: tuple[int, int | None] = (core.epoch, None)
        """Epoch and high watermark before the current call."""

    @property
    def has_closed(self) -> bool:
        """After `shutdown`: no announcement is pending (Q23)."""
        core = self._core
        if self._closes_at_ms is None or isinstance(core.role, Leader):
            return False
        return not isinstance(core.role, Resigned) or core.is_only_voter or core.now_ms >= self._closes_at_ms

    def caught_up_ms(self, now_ms: int) -> int | None:
        """The last time up to which this log is known to have all that was committed, in monotonic time; None: never.

        For a leader, when a majority last fetched from it: since then there may be another leader."""
        if not self.is_leader:
            return self._following.caught_up_ms
        lost_at_ms = self._leading.majority_lost_at_ms()
        return now_ms if lost_at_ms is None else lost_at_ms - self._core.settings.check_quorum_ms

    @property
    def next_deadline_ms(self) -> int | None:
        """The latest time to call `tick`; None: no timer is running."""
        core = self._core
        times = (
            core.timeout_at_ms,
            core.outbox.next_deadline_ms(core.now_ms),
            self._fetches.next_deadline_ms(),
            self._following.next_deadline_ms(),
            self._leading.next_deadline_ms(),
            self._changes.next_deadline_ms(),
            self._registration.next_deadline_ms(),
            None if self.has_closed else self._closes_at_ms,
        )
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    def finalize_kraft_version(self, now_ms: int, version: int) -> list[Duty]:
        """UpdateFeatures of kraft.version on the leader (K15). Raises PeerError."""
        self._begin(now_ms)
        self._changes.finalize_kraft_version(version)
        return self._end()

    def check_leads(self, epoch: int) -> None:
        """Q35, before the controller appends: raises PeerError (6) if this node does not lead `epoch`."""
        self._leading.check_leads(epoch)

    # -- lifecycle -----------------------------------------------------------------------------------------------------

    def start(self, now_ms: int, recorded: ElectionState | None) -> list[Duty]:
        """Boot (Q10). `recorded` is the content of `quorum-state`, None if there is no file. A single voter leads at
        once (Q6). The log holds nothing unflushed."""
        core = self._begin(now_ms)
        latest = core.log.latest_snapshot
        if latest is not None and latest.end_offset > 0:
            core.high_watermark = latest.end_offset  # a snapshot contains only committed records (N15)
        self._elections.boot(recorded)
        return self._end()

    def tick(self, now_ms: int) -> list[Duty]:
        """Handle expired timers. Harmless at any time."""
        core = self._begin(now_ms)
        for request_id in core.outbox.expired(core.now_ms):
            self._responses.request_failed(request_id, refused=False)
        self._fetches.expire()
        self._leading.tick()
        self._changes.tick()
        self._following.tick()
        if core.timeout_at_ms is not None and core.timeout_at_ms <= core.now_ms:
            self._role_timed_out()
        if self._closes_at_ms is not None and self.is_leader:
            # The votes arrived after the shutdown began.
            self._leading.resign()
            core.timeout_at_ms = None
        return self._end()

    def resign(self, now_ms: int) -> list[Duty]:
        """Stop leading. Does nothing if this node does not lead."""
        self._begin(now_ms)
        if self.is_leader:
            self._leading.resign()
        return self._end()

    def shutdown(self, now_ms: int, timeout_ms: int) -> list[Duty]:
        """Q23: resign, and take no further part in elections. The node may stop when `has_closed`, or after
        `timeout_ms`."""
        core = self._begin(now_ms)
        self._closes_at_ms = core.now_ms + timeout_ms
        if self.is_leader:
            self._leading.resign()
        core.timeout_at_ms = None
        return self._end()

    # -- the network ---------------------------------------------------------------------------------------------------

    def request(self, now_ms: int, token: Token, message: RequestMessage) -> list[Duty]:
        """A request arrived; a QuorumAnswer, ServeRecords or ServePiece with `token` follows now or later, exactly
        once."""
        core = self._begin(now_ms)
        asker = getattr(message, "replica_id", getattr(message, "leader_id", None))
        if asker is not None:
            core.mark_reachable(asker)
        match message:
            case VoteRequest():
                core.duties.append(QuorumAnswer(token, self._elections.vote(message)))
            case BeginQuorumEpochRequest():
                core.duties.append(QuorumAnswer(token, self._responses.begin_quorum_epoch(message)))
            case EndQuorumEpochRequest():
                core.duties.append(QuorumAnswer(token, self._responses.end_quorum_epoch(message)))
            case QuorumFetchRequest():
                self._fetches.fetch(token, message)
            case FetchSnapshotRequest():
                self._fetches.fetch_snapshot(token, message)
            case DescribeQuorumRequest():
                core.duties.append(QuorumAnswer(token, self.describe()))
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
        """The response to a `Send`. Ignored if it is no longer expected."""
        core = self._begin(now_ms)
        sent = core.outbox.complete(request_id)
        if sent is not None:
            core.outbox.peer_reachable(sent.peer)
            match message:
                case ApiVersionsResponse():
                    self._changes.probed(message)
                case AddRaftVoterResponse() | RemoveRaftVoterResponse():
                    self._registration.answered(message)
                case DescribeQuorumResponse():
                    raise InternalError("the quorum never sends DescribeQuorum")
                case _:
                    self._responses.answered(sent, message)
        return self._end()

    def no_response(self, now_ms: int, request_id: int, refused: bool) -> list[Duty]:
        """A `Send` gets no response: its connection was lost. `refused`: the address refuses connections, so no process
        listens there; a voter whose leader is lost that way starts a pre-vote at once."""
        self._begin(now_ms)
        self._responses.request_failed(request_id, refused)
        return self._end()

    # -- the log -------------------------------------------------------------------------------------------------------

    def appended(self, now_ms: int) -> list[Duty]:
        """Records were appended: by a duty, or by the controller on this leader."""
        self._begin(now_ms).log_is_changing = False
        self._log_changed()
        return self._end()

    def flushed(self, now_ms: int) -> list[Duty]:
        """More of the log is flushed and counts from now on (Q32, G35)."""
        self._begin(now_ms)
        self._log_changed()
        return self._end()

    def append_failed(self, now_ms: int, reason: str) -> list[Duty]:
        """No record of an AppendFetched or AppendControlBatch was appended. A leader resigns then."""
        core = self._begin(now_ms)
        core.log_is_changing = False
        if self.is_leader:
            core.log_line(Level.ERROR, f"Cannot append to the metadata log: {reason}", "Check the disk.")
            self._leading.resign()
        else:
            self._following.append_failed(reason)
        return self._end()

    def truncated(self, now_ms: int) -> list[Duty]:
        """A Truncate has completed."""
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
        """Opening, writing or verifying the file failed."""
        self._begin(now_ms)
        self._download.failed(snapshot_id, reason)
        self._following.back_off()
        return self._end()

    def snapshot_frozen(self, now_ms: int, snapshot_id: SnapshotId) -> list[Duty]:
        """The downloaded snapshot is complete, verified and durable."""
        self._begin(now_ms)
        self._download.frozen(snapshot_id)
        return self._end()

    def snapshot_loaded(self, now_ms: int) -> list[Duty]:
        """The log now starts and ends at its newest snapshot."""
        self._begin(now_ms).log_is_changing = False
        self._download.loaded()
        self._log_changed()
        return self._end()

    def snapshot_not_loaded(self, now_ms: int, snapshot_id: SnapshotId, reason: str) -> list[Duty]:
        """A LoadSnapshot found the file damaged: it was set aside, and the log is unchanged (G24)."""
        core = self._begin(now_ms)
        core.log_is_changing = False
        core.log_line(
            Level.WARNING,
            f"The snapshot {snapshot_id.file_name} is damaged and was set aside: {reason}",
            "It will be fetched again. Check the disk.",
        )
        self._following.back_off()
        return self._end()

    # -- internals -----------------------------------------------------------------------------------------------------

    def _begin(self, now_ms: int) -> Core:
        core = self._core
        core.now_ms = max(core.now_ms, now_ms)
        self._began_with = (core.epoch, core.high_watermark)
        core.duties = []
        return core

    def _end(self) -> list[Duty]:
        """Order everything that is due, and return the duties of this call."""
        self._elections.pump()
        self._leading.pump()
        self._following.pump()
        if self._closes_at_ms is None:
            self._registration.pump()
        self._core.check(*self._began_with)
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
            self._following.begin(same_leader=leader_of(old) == leader_of(new) != NO_NODE)

    def _role_timed_out(self) -> None:
        core = self._core
        core.timeout_at_ms = None
        if self._closes_at_ms is not None:
            return
        for_voter, for_observer = TIMEOUTS[type(core.role)]
        match for_voter if core.is_electable else for_observer:
            case OnTimeout.PRE_VOTE:
                self._elections.start_pre_vote()
            case OnTimeout.GIVE_UP:
                self._elections.give_up()
            case OnTimeout.NEW_EPOCH:
                core.become_unattached(core.epoch + 1)
            case OnTimeout.FIND_LEADER:
                self._following.fetch_timed_out()
            case OnTimeout.RESIGN | OnTimeout.NOTHING:
                pass

    def _fetched(self, key: ReplicaKey, offset: int) -> None:
        self._leading.fetched(key, offset)
        self._changes.fetched(key)
        if self._core.voters.of(key.replica_id) is not None:
            self._update_high_watermark()

    def _update_high_watermark(self) -> None:
        if self._leading.update_high_watermark():
            self._fetches.high_watermark_moved()
            self._changes.high_watermark_moved()

    def _log_changed(self) -> None:
        core = self._core
        if isinstance(core.role, Leader):
            self._fetches.records_appended()
            self._update_high_watermark()
        else:
            self._following.update_high_watermark()
            if core.is_electable and core.timeout_at_ms is None and isinstance(core.role, Unattached):
                core.timeout_at_ms = core.election_timeout()
