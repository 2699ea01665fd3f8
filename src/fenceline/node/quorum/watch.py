"""Warnings for the operator about the quorum, as seen from one node.

Owns three warnings: the quorum has no leader, with the unreachable addresses and the reasons; a controller is not a
voter, or its id is a voter with another directory; static voters differ between nodes. Each is logged after it has
lasted for a while, and then once a minute. Decides nothing, and only reads the quorum's state.

Rules: raft.md Q38, Q39, Q45; gaps.md G34.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final
from uuid import UUID

from fenceline.ids import encode_uuid
from fenceline.node.clock import Clock
from fenceline.node.logs import Logger
from fenceline.node.quorum.log import QuorumLog
from fenceline.quorum.control_records import LeaderChange
from fenceline.quorum.quorum import Quorum
from fenceline.quorum.roles import Follower

log = Logger("quorum")

_CHECK_S: Final = 1.0
_LASTS_MS: Final = 5_000
"""Elections and restarts are complete by then."""
_JOIN_MS: Final = 30_000
"""A controller that joins automatically is a voter by then."""
_REPEAT_MS: Final = 60_000
_MAX_ADDRESSES: Final = 20

_LEADERLESS_ADVICE: Final = (
    "A majority of the voters must be running and reach each other and this node. Until then topics, configs"
    " and brokers"
    " cannot be changed and no broker can register; running brokers continue to serve. No data is lost, and no restart"
    " is needed."
)
_UNFOUND_ADVICE: Final = (
    "controller.quorum.bootstrap.servers (or controller.quorum.voters) must name controller listeners, not broker"
    " listeners, and a majority of the controllers must be running. The node retries."
)


class QuorumWatch:
    """See the module. All methods belong to the loop."""

    def __init__(
        self,
        quorum: Quorum,
        view: QuorumLog,
        clock: Clock,
        *,
        node_id: int,
        directory_id: UUID,
        is_controller: bool,
        joins: bool,
    ) -> None:
        """`joins`: this controller becomes a voter automatically."""
        self._quorum = quorum
        self._view = view
        self._compared: LeaderChange | None = None
        self._clock = clock
        self._node_id = node_id
        self._directory_id = directory_id
        self._is_controller = is_controller
        self._joins = joins
        self._unreached: dict[str, str] = {}
        self._leaderless_since_ms: int | None = None
        self._logged_at_ms: int | None = None
        """When the missing leader was last logged."""
        self._outside_since_ms: int | None = None
        self._outside_logged: dict[str, Any] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Check periodically until `close`."""
        self._timer = asyncio.get_running_loop().call_later(_CHECK_S, self._continue)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def request_failed(self, address: str, reason: str) -> None:
        """A request to `address` failed."""
        if address in self._unreached or len(self._unreached) < _MAX_ADDRESSES:
            self._unreached[address] = reason

    def reachable(self, address: str) -> None:
        if self._unreached:
            self._unreached.pop(address, None)

    def check(self) -> None:
        """Log the conditions that have lasted."""
        now_ms = self._clock.monotonic_ms()
        if self._quorum.is_leader or isinstance(self._quorum.role, Follower):
            self._log_leader_found(now_ms)
        else:
            self._log_leaderless(now_ms)
        self._compare_voters()

    # -- internals -----------------------------------------------------------------------------------------------------

    def _continue(self) -> None:
        self.check()
        self.start()

    def _log_leader_found(self, now_ms: int) -> None:
        quorum, since_ms = self._quorum, self._leaderless_since_ms
        if self._logged_at_ms is not None and since_ms is not None:
            log.warning(
                "the quorum has a leader again",
                leader=quorum.leader_id,
                epoch=quorum.epoch,
                without_s=(now_ms - since_ms) // 1000,
            )
        self._leaderless_since_ms = self._logged_at_ms = None
        outside = self._non_voter_reason()
        if outside is None:
            self._outside_since_ms = self._outside_logged = None
            return
        if self._outside_since_ms is None:
            self._outside_since_ms = now_ms
        delay_ms = _JOIN_MS if self._joins else _LASTS_MS
        if outside != self._outside_logged and now_ms - self._outside_since_ms >= delay_ms:
            self._outside_logged = outside
            log.warning("this controller is not a voter", **outside)

    def _log_leaderless(self, now_ms: int) -> None:
        if self._leaderless_since_ms is None:
            self._leaderless_since_ms = now_ms
        lasted_ms = now_ms - self._leaderless_since_ms
        if lasted_ms < _LASTS_MS or (self._logged_at_ms is not None and now_ms - self._logged_at_ms < _REPEAT_MS):
            return
        self._logged_at_ms = now_ms
        voters = [voter.voter_id for voter in self._quorum.voters]
        fields: dict[str, Any] = {"voters": voters, "epoch": self._quorum.epoch, "for_s": lasted_ms // 1000}
        if self._unreached:
            fields["unreached"] = "; ".join(self._unreached.values())
        outside = self._non_voter_reason() or {}
        advice = outside.get("advice") or (_LEADERLESS_ADVICE if voters else _UNFOUND_ADVICE)
        log.warning("the quorum has no leader", **{**fields, **outside, "advice": advice})

    def _compare_voters(self) -> None:
        """Compare this node's static voters with those of the leader, which each LEADER_CHANGE record contains."""
        change = self._view.leader_change
        if change is None or change is self._compared:
            return
        self._compared = change
        own = [voter.voter_id for voter in self._quorum.voters]
        theirs = sorted(voter.voter_id for voter in change.voters)
        if self._quorum.kraft_version == 0 and own and own != theirs:
            log.error(
                "voters differ between nodes",
                here=own,
                leader=change.leader_id,
                there=theirs,
                advice="controller.quorum.voters must name the same controllers on every node, otherwise two majorities"
                " may make conflicting decisions. Correct it and restart the affected nodes.",
            )

    def _non_voter_reason(self) -> dict[str, Any] | None:
        """Why this controller is not a voter; None: it is one, or not a controller, or nothing is known yet."""
        quorum = self._quorum
        if not self._is_controller or not quorum.voters or quorum.is_voter:
            return None
        own, me = encode_uuid(self._directory_id), self._node_id
        fields: dict[str, Any] = {"node": me, "directory": own, "voters": [each.voter_id for each in quorum.voters]}
        registered = quorum.voter_set.of(me)
        if registered is None:
            advice = (
                "It was not added yet, or it was removed. The other voters decide without it. To make it a voter, run"
                " `fenceline quorum add --config FILE` on this machine; otherwise stop it."
            )
            return {**fields, "advice": advice}
        theirs = encode_uuid(registered.voter_directory_id)
        return {
            **fields,
            "registered": theirs,
            "advice": f"Voter {me} is registered with another directory id. If its disk was replaced, run `fenceline"
            f" quorum remove {me} --directory-id {theirs}`, then `fenceline quorum add --config FILE` on this machine."
            f" If another process runs with node.id={me}, stop one of them and give it its own node.id.",
        }
