"""Safety rules removed on purpose: some seed must detect each, otherwise the simulation proves nothing about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fenceline.errors import ErrorCode, InternalError
from fenceline.ids import ZERO_UUID
from fenceline.quorum import fetches
from fenceline.quorum.control_records import VoterEndpoint
from fenceline.quorum.core import Core
from fenceline.quorum.elections import Elections
from fenceline.quorum.fetches import Valid, Verdict
from fenceline.quorum.following import Following
from fenceline.quorum.leading import Leading
from fenceline.quorum.log_view import LogView
from fenceline.quorum.messages import NO_NODE, VoteRequest
from fenceline.quorum.replicas import Replicas
from fenceline.quorum.response_handling import ResponseHandler
from fenceline.quorum.roles import Candidate, Follower, Leader, Prospective, Unattached
from fenceline.quorum.voter_changes import VoterChanges
from fenceline.quorum.voter_set import VoterSet
from tests.quorum.invariants import Broken
from tests.quorum.pure_cluster import run_seed

Patch = Callable[[pytest.MonkeyPatch], None]


def forget_the_vote(patch: pytest.MonkeyPatch) -> None:
    """Q17: a vote is given once an epoch."""
    real = Elections._elect

    def elect(self: Elections, request: VoteRequest) -> bool:
        role = self._core.role
        if isinstance(role, Unattached | Prospective):
            self._core.role = type(role)(role.epoch, role.leader_id, NO_NODE, ZERO_UUID)
        return real(self, request)

    patch.setattr(Elections, "_elect", elect)


def vote_without_persisting(patch: pytest.MonkeyPatch) -> None:
    """Q2: a vote is durable before it is answered."""
    patch.setattr(Core, "persist", lambda self: None)


def count_the_unflushed_tail(patch: pytest.MonkeyPatch) -> None:
    """G35: a leader's own tail counts when it is flushed."""
    real = Replicas.majority_end
    logs: dict[int, LogView] = {}
    count = Leading.update_high_watermark

    def remember(self: Leading) -> bool:
        if self.replicas is not None:
            logs[id(self.replicas)] = self._core.log
        return count(self)

    def majority_end(self: Replicas, voters: VoterSet, own_end: int) -> int:
        return real(self, voters, logs[id(self)].end.offset)

    patch.setattr(Leading, "update_high_watermark", remember)
    patch.setattr(Replicas, "majority_end", majority_end)


def fetch_before_the_flush(patch: pytest.MonkeyPatch) -> None:
    """Q28: the offset of a fetch says what the follower has on its disk."""
    patch.setattr(Following, "_is_durable", property(lambda self: True))


def commit_records_of_an_old_term(patch: pytest.MonkeyPatch) -> None:
    """Q32: only past the start of the leader's own epoch."""
    real = Leading.update_high_watermark

    def count(self: Leading) -> bool:
        role = self._core.role
        if not isinstance(role, Leader):
            return real(self)
        self._core.role = Leader(role.epoch, role.node_id, -1)
        try:
            return real(self)
        finally:
            if isinstance(self._core.role, Leader):
                self._core.role = role

    patch.setattr(Leading, "update_high_watermark", count)


def elect_an_older_log(patch: pytest.MonkeyPatch) -> None:
    """Q17: a voter elects no candidate that lacks one of its records."""
    patch.setattr(Elections, "_is_behind", lambda self, request: False)


def win_without_a_majority(patch: pytest.MonkeyPatch) -> None:
    """Q6."""
    patch.setattr(VoterSet, "majority", property(lambda self: max(1, len(self.voters) // 2)))


def go_back_to_an_older_epoch(patch: pytest.MonkeyPatch) -> None:
    """Q2, Q50: an epoch never falls."""
    real = ResponseHandler._learn_announced_leader

    def adopt(self: ResponseHandler, epoch: int, leader_id: int, endpoints: tuple[VoterEndpoint, ...]) -> ErrorCode:
        core = self._core
        if epoch < core.epoch and not isinstance(core.role, Leader):
            core.role = Follower(epoch, leader_id)
            return ErrorCode.NONE
        return real(self, epoch, leader_id, endpoints)

    patch.setattr(ResponseHandler, "_learn_announced_leader", adopt)


def skip_the_cut(patch: pytest.MonkeyPatch) -> None:
    """N26: a diverging log is truncated before the next append."""
    real = fetches.validate_offset_and_epoch

    def judge(log: LogView, offset: int, epoch: int) -> Verdict:
        verdict = real(log, offset, epoch)
        return Valid() if isinstance(verdict, fetches.Diverging) and offset <= log.end.offset else verdict

    patch.setattr(fetches, "validate_offset_and_epoch", judge)


def lead_again_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    """Q10: an epoch is led by one life of one node."""
    real = Elections.boot

    def boot(self: Elections, recorded: Any) -> None:
        core = self._core
        if recorded is not None and recorded.leader_id == core.local_id:
            core.persisted = recorded
            core.role = Unattached(recorded.epoch - 1)
            self._stand_again(recorded.epoch)  # type: ignore[attr-defined]
        else:
            real(self, recorded)

    def stand_again(self: Elections, epoch: int) -> None:
        self._core.role = Candidate(epoch, self._core.local_id, self._core.local.voter_directory_id)
        self._lead((self._core.local_id,))

    patch.setattr(Elections, "_stand_again", stand_again, raising=False)
    patch.setattr(Elections, "boot", boot)


def change_voters_twice_at_once(patch: pytest.MonkeyPatch) -> None:
    """Q41, Q44: a change waits for the one before."""

    def gate(self: VoterChanges, cluster_id: str | None) -> tuple[ErrorCode, str | None]:
        if not isinstance(self._core.role, Leader):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, None
        if self._core.voters.kraft_version < 1:
            return ErrorCode.UNSUPPORTED_VERSION, None
        return ErrorCode.NONE, None

    patch.setattr(VoterChanges, "_check_allowed", gate)


def follow_the_leaders_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """Q28: the high watermark is at most the follower's own log end."""

    def count(self: Following) -> None:
        if self._leader_high_watermark > 0:
            self._core.advance_high_watermark(self._leader_high_watermark)

    patch.setattr(Following, "update_high_watermark", count)


MUTANTS: list[Patch] = [
    forget_the_vote,
    vote_without_persisting,
    count_the_unflushed_tail,
    fetch_before_the_flush,
    commit_records_of_an_old_term,
    elect_an_older_log,
    win_without_a_majority,
    go_back_to_an_older_epoch,
    skip_the_cut,
    lead_again_after_a_restart,
    change_voters_twice_at_once,
    follow_the_leaders_high_watermark,
]

_SEEDS = 60


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_some_seed_detects(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by missing progress: the violation of a safety rule must be seen."""
    mutant(monkeypatch)
    for seed in range(_SEEDS):
        try:
            run_seed(seed)
        except Broken as broken:
            if "no progress" not in str(broken):
                return
        except InternalError:
            return
    pytest.fail(f"{_SEEDS} seeds live without this rule: {mutant.__doc__}")
