"""Registration of a voter's endpoints and supported versions with the leader, and joining automatically.

Rules: raft.md Q43; since_4_0.md K15, K16.
"""

from __future__ import annotations

from fenceline.errors import ErrorCode
from fenceline.ids import ZERO_UUID
from fenceline.quorum.control_records import Voter
from fenceline.quorum.core import Core
from fenceline.quorum.messages import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    UpdateRaftVoterRequest,
)
from fenceline.quorum.roles import Follower


class Registration:
    """Sends one request each fetch timeout while the registration is outdated."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._next_ms = 0
        self._registered: Voter | None = None
        self._is_up_to_date = False
        """Whether `_registered` equals this node's current registration."""
        self._acknowledged_epoch = -1
        """With kraft.version 0: the epoch whose leader has acknowledged the registration."""

    @property
    def _must_send(self) -> bool:
        core = self._core
        if not isinstance(core.role, Follower) or not core.settings.flushes:
            return False
        if not core.is_voter:
            return core.settings.auto_join and core.voters.kraft_version >= 1
        if core.voters.kraft_version == 0:
            return self._acknowledged_epoch != core.epoch and core.local.voter_directory_id != ZERO_UUID
        registered = core.voters.of(core.local_id)
        if registered is not self._registered:
            self._registered = registered
            self._is_up_to_date = registered == core.local
        return not self._is_up_to_date

    def pump(self) -> None:
        core = self._core
        if core.now_ms < self._next_ms or not self._must_send:
            return
        peer = core.leader_peer()
        if peer is None:
            return
        message = self._message()
        if core.outbox.may_send(core.now_ms, peer, type(message)):
            self._next_ms = core.now_ms + core.settings.fetch_timeout_ms
            core.send(peer, message)

    def _message(self) -> UpdateRaftVoterRequest | AddRaftVoterRequest | RemoveRaftVoterRequest:
        core, local = self._core, self._core.local
        cluster_id = core.settings.cluster_id
        if core.is_voter:
            return UpdateRaftVoterRequest(
                cluster_id,
                core.epoch,
                core.local_id,
                local.voter_directory_id,
                local.endpoints,
                local.k_raft_version_feature,
            )
        former = core.voters.of(core.local_id)
        if former is not None:
            return RemoveRaftVoterRequest(cluster_id, core.local_id, former.voter_directory_id)
        return AddRaftVoterRequest(
            cluster_id,
            core.settings.request_timeout_ms,
            core.local_id,
            local.voter_directory_id,
            local.endpoints,
            ack_when_committed=False,
        )

    def updated(self, error: ErrorCode) -> None:
        if error in (ErrorCode.NONE, ErrorCode.UNSUPPORTED_VERSION):
            self._acknowledged_epoch = self._core.epoch

    def answered(self, response: AddRaftVoterResponse | RemoveRaftVoterResponse) -> None:
        """After a removal join at once; otherwise retry after the period."""
        if isinstance(response, RemoveRaftVoterResponse) and response.error_code is ErrorCode.NONE:
            self._next_ms = self._core.now_ms

    def next_deadline_ms(self) -> int | None:
        return self._next_ms if self._next_ms > self._core.now_ms and self._must_send else None
