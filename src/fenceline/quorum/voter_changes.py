"""Changes of the voter set on the leader: add, remove or update a voter, and upgrade to kraft.version 1.

Owns the single change that may be in progress. A change starts only when the set in force and a record of this term are
committed. It replaces the set by one that differs in one voter, and takes effect when appended (Q40, Q44).

Differences from Kafka, on the same wire protocol: a new voter that has not caught up is waited for until the request
times out instead of being rejected at once, and it must have caught up recently, not at any earlier time (G37).

Rules: raft.md Q39-Q45; since_4_0.md K15, K16; gaps.md G37.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from fenceline.errors import ErrorCode, InternalError, PeerError
from fenceline.ids import ZERO_UUID
from fenceline.quorum.control_records import ControlRecord, KRaftVersion, KRaftVersionFeature, KRaftVoters, Voter
from fenceline.quorum.core import Core
from fenceline.quorum.duties import AppendControlBatch, Level, Peer, QuorumAnswer, Token
from fenceline.quorum.leading import Leading
from fenceline.quorum.messages import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    ApiVersionsRequest,
    ApiVersionsResponse,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    ReplicaKey,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
)
from fenceline.quorum.roles import Leader


class _Stage(Enum):
    PROBING = auto()
    CATCHING_UP = auto()
    COMMITTING = auto()


@dataclass(slots=True)
class _Change:
    token: Token | None
    """None: already completed."""
    adds: Voter | None
    """None: a removal."""
    deadline_ms: int
    stage: _Stage
    offset_before: int
    """Offset of the voter set in force before."""
    ack_when_committed: bool = True


class VoterChanges:
    """See the module."""

    def __init__(self, core: Core, leading: Leading) -> None:
        self._core = core
        self._leading = leading
        self._change: _Change | None = None
        self._reported: dict[int, Voter] = {}
        """With kraft.version 0: the voters' own registrations, for the upgrade to 1 (K15)."""

    # -- requests ----------------------------------------------------------------------------------------------------

    def add(self, token: Token, request: AddRaftVoterRequest) -> None:
        """Q41, K16."""
        core = self._core
        endpoint = core.default_endpoint(request.listeners)
        error, text = self._check_allowed(request.cluster_id)
        if error is ErrorCode.NONE:
            if request.voter_directory_id == ZERO_UUID or endpoint is None or request.voter_id < 0:
                error, text = (
                    ErrorCode.INVALID_REQUEST,
                    "A voter needs an id, a directory id and an endpoint of the quorum's listener.",
                )
            elif core.voters.of(request.voter_id) is not None:
                error, text = ErrorCode.DUPLICATE_VOTER, f"Node {request.voter_id} is already a voter."
        if error is not ErrorCode.NONE:
            core.duties.append(QuorumAnswer(token, AddRaftVoterResponse(error, text)))
            return
        assert endpoint is not None, "checked above"
        voter = Voter(request.voter_id, request.voter_directory_id, request.listeners)
        self._change = _Change(
            token,
            voter,
            core.now_ms + max(0, request.timeout_ms),
            _Stage.PROBING,
            core.voters.offset,
            request.ack_when_committed,
        )
        core.send(Peer(request.voter_id, endpoint.host, endpoint.port), ApiVersionsRequest())

    def remove(self, token: Token, request: RemoveRaftVoterRequest) -> None:
        """Q42. The leader may remove itself: it leads, without counting itself, until that is committed."""
        core = self._core
        error, text = self._check_allowed(request.cluster_id)
        if error is ErrorCode.NONE:
            voters = core.voters
            if not voters.has(ReplicaKey(request.voter_id, request.voter_directory_id)):
                error, text = (
                    ErrorCode.VOTER_NOT_FOUND,
                    f"Node {request.voter_id} is not a voter with that directory id.",
                )
            elif len(voters) == 1:
                error, text = ErrorCode.VOTER_NOT_FOUND, "The last voter cannot be removed."
        if error is not ErrorCode.NONE:
            core.duties.append(QuorumAnswer(token, RemoveRaftVoterResponse(error, text)))
            return
        deadline_ms = core.now_ms + core.settings.request_timeout_ms
        self._change = _Change(token, None, deadline_ms, _Stage.COMMITTING, core.voters.offset)
        self._append(core.voters.without(request.voter_id))

    def update(self, token: Token, request: UpdateRaftVoterRequest) -> None:
        """Q43, K15. Completed when appended."""
        core = self._core
        error = core.leader_only(request.current_leader_epoch)
        if core.wrong_cluster(request.cluster_id):
            error = ErrorCode.INCONSISTENT_CLUSTER_ID
        if error is ErrorCode.NONE:
            error = self._update(request)
        answer = UpdateRaftVoterResponse(error, core.leader_id, core.epoch, core.leader_endpoints())
        core.duties.append(QuorumAnswer(token, answer))

    def _update(self, request: UpdateRaftVoterRequest) -> ErrorCode:
        core = self._core
        voters = core.voters
        key = ReplicaKey(request.voter_id, request.voter_directory_id)
        voter = Voter(request.voter_id, request.voter_directory_id, request.listeners, request.k_raft_version_feature)
        if core.default_endpoint(request.listeners) is None or not _supports(
            request.k_raft_version_feature, voters.kraft_version
        ):
            return ErrorCode.INVALID_REQUEST
        if not voters.has(key):
            return ErrorCode.VOTER_NOT_FOUND
        if voters.kraft_version == 0:
            self._reported[request.voter_id] = voter
            return ErrorCode.NONE
        if voters.of(request.voter_id) == voter:
            return ErrorCode.NONE
        error, _ = self._check_allowed(request.cluster_id)
        if error is ErrorCode.NONE:
            self._append(voters.with_voter(voter))
        return error

    def finalize_kraft_version(self, version: int) -> None:
        """K15: 0 to 1, never back. Raises PeerError."""
        core = self._core
        voters = core.voters
        if version == voters.kraft_version:
            return
        if version != 1:
            raise PeerError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"kraft.version cannot be set to {version}: only an upgrade from 0 to 1 is supported.",
            )
        if not isinstance(core.role, Leader) or self._leading.high_watermark is None or self._change is not None:
            raise PeerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "This node is not the leader of the quorum.")
        known = self._reported | {core.local_id: core.local}
        missing = [
            voter_id
            for voter_id in voters.ids
            if voter_id not in known or not _supports(known[voter_id].k_raft_version_feature, version)
        ]
        if missing:
            raise PeerError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"Voters {missing} do not support kraft.version 1, or have not reported their support.",
            )
        new = tuple(known[voter_id] for voter_id in voters.ids)
        records: tuple[ControlRecord, ...] = (KRaftVersion(0, version), KRaftVoters(0, new))
        core.duties.append(AppendControlBatch(core.epoch, records))

    def _check_allowed(self, cluster_id: str | None) -> tuple[ErrorCode, str | None]:
        """Conditions of every change (Q41)."""
        core = self._core
        if core.wrong_cluster(cluster_id):
            return ErrorCode.INCONSISTENT_CLUSTER_ID, "The request names another cluster id."
        if not isinstance(core.role, Leader):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, "This node is not the leader of the quorum."
        if self._change is not None:
            return ErrorCode.REQUEST_TIMED_OUT, "Another change of voters is in progress."
        committed = self._leading.high_watermark
        if committed is None:
            return ErrorCode.REQUEST_TIMED_OUT, "The leader has not committed a record of its term yet."
        if core.voters.kraft_version < 1:
            return ErrorCode.UNSUPPORTED_VERSION, "With kraft.version 0 the voters are static."
        if core.voters.offset >= committed:
            return ErrorCode.REQUEST_TIMED_OUT, "The last change of voters is not committed yet."
        return ErrorCode.NONE, None

    # -- progress of a change ----------------------------------------------------------------------------------------

    def probed(self, response: ApiVersionsResponse) -> None:
        """The prospective voter reported the versions it supports."""
        change = self._change
        if change is None or change.stage is not _Stage.PROBING or change.adds is None:
            return
        if response.error_code is not ErrorCode.NONE:
            self._finish(ErrorCode.REQUEST_TIMED_OUT, "The new voter does not respond at the given endpoint.")
        elif not _supports(response.k_raft_version_feature, self._core.voters.kraft_version):
            self._finish(ErrorCode.INVALID_REQUEST, "The new voter does not support the current kraft.version.")
        else:
            voter = change.adds
            change.adds = Voter(
                voter.voter_id, voter.voter_directory_id, voter.endpoints, response.k_raft_version_feature
            )
            change.stage = _Stage.CATCHING_UP
            self.fetched(ReplicaKey(voter.voter_id, voter.voter_directory_id))
            if change.stage is _Stage.CATCHING_UP and not change.ack_when_committed:
                # The new voter sent the request itself (K16), and Kafka's observers do not fetch while they wait for
                # the response.
                self._finish(ErrorCode.REQUEST_TIMED_OUT, "The new voter has not caught up yet.")

    def fetched(self, key: ReplicaKey) -> None:
        """A replica has fetched: check whether it is the new voter, and has caught up."""
        core, change = self._core, self._change
        if change is None or change.stage is not _Stage.CATCHING_UP or change.adds is None:
            return
        if key != ReplicaKey(change.adds.voter_id, change.adds.voter_directory_id):
            return
        replica = None if self._leading.replicas is None else self._leading.replicas.of(key)
        if replica is None or replica.caught_up_ms is None:
            return
        if core.now_ms - replica.caught_up_ms > core.settings.fetch_timeout_ms:
            return
        change.stage = _Stage.COMMITTING
        self._append(core.voters.with_voter(change.adds))
        if not change.ack_when_committed and change.token is not None:
            core.duties.append(QuorumAnswer(change.token, AddRaftVoterResponse()))
            change.token = None

    def _append(self, voters: tuple[Voter, ...]) -> None:
        before, committed = self._core.voters, self._leading.high_watermark
        if committed is None or before.offset >= committed:
            raise InternalError(f"Q44: the voters {before.ids} change again before their set is committed")
        if len(_keys(before.voters) ^ _keys(voters)) > 1:
            raise InternalError(f"Q44: more than one voter changes at a time: {before.voters} to {voters}")
        self._core.duties.append(AppendControlBatch(self._core.epoch, (KRaftVoters(0, voters),)))

    def high_watermark_moved(self) -> None:
        """Check whether the set in force is committed, by a majority of itself."""
        core = self._core
        committed = self._leading.high_watermark
        if committed is None or core.voters.offset >= committed:
            return
        change = self._change
        if change is not None and change.stage is _Stage.COMMITTING and core.voters.offset > change.offset_before:
            self._finish(ErrorCode.NONE, None)
        if not core.is_voter and isinstance(core.role, Leader):
            core.log_line(Level.INFO, "This node is no longer a voter. Resigning as leader.")
            self._leading.resign()

    def leadership_lost(self) -> None:
        self._finish(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, "The leader changed. The voter change may or may not have been made."
        )
        self._reported.clear()

    def tick(self) -> None:
        if self._change is not None and self._change.deadline_ms <= self._core.now_ms:
            self._finish(ErrorCode.REQUEST_TIMED_OUT, "Timed out. A voter change in progress may still be made.")

    def next_deadline_ms(self) -> int | None:
        return None if self._change is None else self._change.deadline_ms

    def _finish(self, error: ErrorCode, text: str | None) -> None:
        change, self._change = self._change, None
        if change is None or change.token is None:
            return
        answer = RemoveRaftVoterResponse(error, text) if change.adds is None else AddRaftVoterResponse(error, text)
        self._core.duties.append(QuorumAnswer(change.token, answer))


def _keys(voters: Iterable[Voter]) -> set[ReplicaKey]:
    return {ReplicaKey(voter.voter_id, voter.voter_directory_id) for voter in voters}


def _supports(feature: KRaftVersionFeature, version: int) -> bool:
    return feature.min_supported_version <= version <= feature.max_supported_version
