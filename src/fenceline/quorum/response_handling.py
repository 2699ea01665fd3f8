"""Handling of responses, and of the leader's announcements: epochs and leaders first, then the content.

Owns the order in which a response is handled: errors of the whole request, the epoch and leader that it names (Q15),
then the part of the quorum that sent the request. After an unusable response the request is repeated a little later; no
response stops the node (G36).

Rules: raft.md Q13-Q15, Q21, Q22; gaps.md G34, G36.
"""

from __future__ import annotations

from typing import TypeAlias

from fenceline.errors import ErrorCode
from fenceline.ids import encode_uuid
from fenceline.quorum.control_records import VoterEndpoint
from fenceline.quorum.core import Core
from fenceline.quorum.download import Download
from fenceline.quorum.duties import Level
from fenceline.quorum.elections import Elections
from fenceline.quorum.following import Following
from fenceline.quorum.leading import Leading
from fenceline.quorum.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    QuorumFetchRequest,
    QuorumFetchResponse,
    QuorumNodeEndpoint,
    UpdateRaftVoterResponse,
    VoteRequest,
    VoteResponse,
)
from fenceline.quorum.outbox import InFlight
from fenceline.quorum.roles import Follower
from fenceline.quorum.voter_changes import VoterChanges
from fenceline.quorum.voter_registration import Registration

EpochResponse: TypeAlias = (
    VoteResponse
    | BeginQuorumEpochResponse
    | EndQuorumEpochResponse
    | QuorumFetchResponse
    | FetchSnapshotResponse
    | UpdateRaftVoterResponse
)
"""Responses that name an epoch and its leader."""


class ResponseHandler:
    """See the module."""

    def __init__(
        self,
        core: Core,
        *,
        elections: Elections,
        leading: Leading,
        following: Following,
        download: Download,
        changes: VoterChanges,
        registration: Registration,
    ) -> None:
        self._core = core
        self._elections = elections
        self._leading = leading
        self._following = following
        self._download = download
        self._changes = changes
        self._registration = registration

    # -- responses ---------------------------------------------------------------------------------------------------

    def request_failed(self, request_id: int, refused: bool) -> None:
        core = self._core
        sent = core.outbox.complete(request_id)
        if sent is None:
            return
        core.outbox.request_failed(core.now_ms, sent)
        if isinstance(sent.message, ApiVersionsRequest):
            self._changes.probed(ApiVersionsResponse(ErrorCode.REQUEST_TIMED_OUT))
        elif isinstance(sent.message, QuorumFetchRequest | FetchSnapshotRequest):
            self._following.fetch_failed()
        if refused:
            self._following.connection_refused(sent.peer.node_id)
        if refused and isinstance(sent.message, VoteRequest):
            self._elections.connection_refused(sent.peer.node_id)

    def answered(self, sent: InFlight, response: EpochResponse) -> None:
        """Q15: handle the epoch and leader of the response first."""
        core = self._core
        if isinstance(sent.message, VoteRequest) and isinstance(response, VoteResponse):
            unsupported = response.error_code is ErrorCode.UNSUPPORTED_VERSION and sent.message.pre_vote
            if unsupported:
                self._elections.answered(sent.peer.node_id, sent.message, response)
                return
        error = response.error_code
        if not isinstance(response, UpdateRaftVoterResponse):
            if error is not ErrorCode.NONE:
                self._log_rejection(sent, error)
                return
            error = response.partition_error_code
        if isinstance(response, UpdateRaftVoterResponse):
            self._registration.updated(error)
        if response.leader_epoch < core.epoch or error is ErrorCode.UNKNOWN_LEADER_EPOCH:
            self._postpone(sent)
            return
        core.learn_leader(response.leader_epoch, response.leader_id, response.node_endpoints)
        if isinstance(response, FetchSnapshotResponse) and isinstance(sent.message, FetchSnapshotRequest):
            self._snapshot_piece(sent, sent.message, response)
            return
        if error is not ErrorCode.NONE:
            if error is ErrorCode.INVALID_REQUEST:
                core.log_line(Level.ERROR, f"Node {sent.peer.node_id} rejected a request as invalid: {sent.message}")
            elif error is ErrorCode.INVALID_VOTER_KEY:
                self._log_wrong_peer(sent)
            self._postpone(sent)
            return
        match sent.message, response:
            case VoteRequest() as asked, VoteResponse():
                self._elections.answered(sent.peer.node_id, asked, response)
            case QuorumFetchRequest() as asked, QuorumFetchResponse():
                self._following.answered(asked, response, sent.sent_ms)
            case EndQuorumEpochRequest(), EndQuorumEpochResponse():
                self._leading.end_quorum_epoch_answered(sent.peer.node_id)
            case _:
                pass

    def _snapshot_piece(self, sent: InFlight, asked: FetchSnapshotRequest, response: FetchSnapshotResponse) -> None:
        """N34: an error other than a leader epoch error concerns the snapshot; the leader is alive (Q28)."""
        core = self._core
        about_epochs = (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        same_epoch = isinstance(core.role, Follower) and asked.current_leader_epoch == core.epoch
        if response.partition_error_code in about_epochs or not same_epoch:
            self._postpone(sent)
            return
        self._following.leader_contacted()
        if not self._download.answered(asked, response):
            self._following.back_off()

    def _log_rejection(self, sent: InFlight, error: ErrorCode) -> None:
        advice, reason = "", error.name
        if error is ErrorCode.INCONSISTENT_CLUSTER_ID:
            reason += f". This node belongs to cluster {self._core.settings.cluster_id}"
            advice = (
                "Either that address or this node's directory belongs to another cluster. Compare cluster.id in"
                " meta.properties of both, and check controller.quorum.voters and controller.quorum.bootstrap.servers."
            )
        self._core.log_line(
            Level.WARNING, f"{sent.peer.host}:{sent.peer.port} rejects requests of this node: {reason}", advice
        )
        self._postpone(sent, 10)

    def _log_wrong_peer(self, sent: InFlight) -> None:
        """Q16, Q21: the node at that address has another id or directory than the request names."""
        core, peer = self._core, sent.peer
        voter = core.voters.of(peer.node_id)
        directory = ""
        if voter is not None and not core.voters.names_no_directory(voter):
            directory = f" with directory id {encode_uuid(voter.voter_directory_id)}"
        core.log_line(
            Level.WARNING,
            f"The node at {peer.host}:{peer.port} is not voter {peer.node_id}{directory}.",
            "Check controller.quorum.voters for swapped addresses, and the nodes for swapped directories. If a disk was"
            " replaced, remove the old voter with `fenceline quorum remove` and add the new one with"
            " `fenceline quorum add`.",
        )

    def _postpone(self, sent: InFlight, times: int = 1) -> None:
        """The response is unusable: repeat the request a little later."""
        core = self._core
        until_ms = core.now_ms + times * max(core.settings.retry_backoff_ms, 100)
        core.outbox.postpone(sent.peer.node_id, type(sent.message), until_ms)
        if isinstance(sent.message, QuorumFetchRequest | FetchSnapshotRequest) and not self._fresh_role():
            self._following.back_off()

    def _fresh_role(self) -> bool:
        """Whether this response named a leader to fetch from: then fetch without delay."""
        return self._following.is_fresh and self._core.leader_peer() is not None

    # -- announcements -----------------------------------------------------------------------------------------------

    def begin_quorum_epoch(self, request: BeginQuorumEpochRequest) -> BeginQuorumEpochResponse:
        """Q21. A node with another key than the request names stays in its epoch (G34)."""
        core = self._core
        if core.wrong_cluster(request.cluster_id):
            return BeginQuorumEpochResponse(ErrorCode.INCONSISTENT_CLUSTER_ID)
        error = ErrorCode.NONE
        if not core.is_local_key(request.voter_id, request.voter_directory_id):
            error = ErrorCode.INVALID_VOTER_KEY
        else:
            error = self._learn_announced_leader(request.leader_epoch, request.leader_id, request.leader_endpoints)
        return BeginQuorumEpochResponse(ErrorCode.NONE, error, core.leader_id, core.epoch, core.leader_endpoints())

    def end_quorum_epoch(self, request: EndQuorumEpochRequest) -> EndQuorumEpochResponse:
        """Q22."""
        core = self._core
        if core.wrong_cluster(request.cluster_id):
            return EndQuorumEpochResponse(ErrorCode.INCONSISTENT_CLUSTER_ID)
        error = self._learn_announced_leader(request.leader_epoch, request.leader_id, request.leader_endpoints)
        if error is ErrorCode.NONE:
            self._following.leader_resigned(request)
        return EndQuorumEpochResponse(ErrorCode.NONE, error, core.leader_id, core.epoch, core.leader_endpoints())

    def _learn_announced_leader(self, epoch: int, leader_id: int, endpoints: tuple[VoterEndpoint, ...]) -> ErrorCode:
        core = self._core
        if epoch < core.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if leader_id < 0 or leader_id == core.local_id:
            return ErrorCode.INVALID_REQUEST
        endpoint = core.endpoint_of(endpoints)
        known = () if endpoint is None else (QuorumNodeEndpoint(leader_id, endpoint.host, endpoint.port),)
        core.learn_leader(epoch, leader_id, known)
        return ErrorCode.NONE if core.leader_id == leader_id else ErrorCode.INVALID_REQUEST
