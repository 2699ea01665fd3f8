"""Rules of the quorum and the controller, each with a patch that breaks it: the table of `test_broken_rules`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pytest

from fenceline.controller.controller import Controller
from fenceline.errors import ErrorCode
from fenceline.log import maintenance
from fenceline.node.controller_driver import ControllerDriver
from fenceline.node.metadata_log import MetadataLog
from fenceline.quorum import fetches
from fenceline.quorum.core import Core
from fenceline.quorum.elections import Elections
from fenceline.quorum.following import Following
from fenceline.quorum.leading import Leading
from fenceline.quorum.replicas import Replicas
from fenceline.quorum.roles import Leader
from fenceline.quorum.voter_changes import VoterChanges
from fenceline.testing.simulation.disk import LifeDisk
from fenceline.testing.simulation.quorum_node import QuorumNode

Patch = Callable[[pytest.MonkeyPatch], None]


class Rule(NamedTuple):
    """`story` in which the breach shows, and how it is broken."""

    story: str
    breach: Patch


RULES: Final[dict[str, Rule]] = {}


def _breaks(story: str) -> Callable[[Patch], Patch]:
    def keep(patch: Patch) -> Patch:
        RULES[patch.__name__.strip("_")] = Rule(story, patch)
        return patch

    return keep


# -- the disk ---------------------------------------------------------------------------------------------------------


def _no_fsync_of(suffix: str) -> Callable[[LifeDisk, int], None]:
    fsync = LifeDisk.fsync

    def skip(self: LifeDisk, fd: int) -> None:
        if not self._descriptors[fd].endswith(suffix):
            fsync(self, fd)

    return skip


@_breaks("controller")
def _a_flush_is_an_fsync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LifeDisk, "fsync", _no_fsync_of(".log"))


@_breaks("quorum")
def _a_follower_flushes_what_it_fetches(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LifeDisk, "fsync", _no_fsync_of(".log"))


@_breaks("controller")
def _directories_are_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LifeDisk, "fsync_dir", lambda self, path: None)


@_breaks("controller")
def _a_snapshot_gets_its_name_when_it_is_whole(patch: pytest.MonkeyPatch) -> None:
    def write(self: MetadataLog, snapshot: Any, batches: Any) -> None:
        fd = self._disk.open_append(f"{self.directory}/{snapshot.file_name}")
        for batch in batches:
            self._disk.write(fd, batch)
        self._disk.close(fd)

    patch.setattr(MetadataLog, "write_snapshot", write)


@_breaks("controller")
def _a_snapshot_ends_with_its_footer(patch: pytest.MonkeyPatch) -> None:
    write = MetadataLog.write_snapshot
    patch.setattr(MetadataLog, "write_snapshot", lambda self, name, batches: write(self, name, list(batches)[:-1]))


@_breaks("controller")
def _the_log_starts_at_a_snapshot(patch: pytest.MonkeyPatch) -> None:
    advance = maintenance.advance_log_start
    patch.setattr(maintenance, "advance_log_start", lambda log, at: advance(log, min(at + 1, log.high_watermark)))


# -- the controller ---------------------------------------------------------------------------------------------------


@_breaks("controller")
def _an_image_is_published_when_it_is_flushed(patch: pytest.MonkeyPatch) -> None:
    flush = ControllerDriver._flush

    def early(self: ControllerDriver, flight: Any) -> None:
        for image, delta in flight.images:
            self._publish(image, delta)
        flush(self, flight)

    patch.setattr(ControllerDriver, "_flush", early)


@_breaks("controller")
def _an_answer_is_given_when_it_is_flushed(patch: pytest.MonkeyPatch) -> None:
    flush = ControllerDriver._flush

    def early(self: ControllerDriver, flight: Any) -> None:
        flush(self, flight)
        for answer, value in flight.answers:
            if not answer.done() and not isinstance(value, Exception):
                answer.set_result(value)

    patch.setattr(ControllerDriver, "_flush", early)


@_breaks("controller")
def _what_could_not_be_appended_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Controller, "reset", lambda self, image, next_offset: None)


# -- elections --------------------------------------------------------------------------------------------------------


@_breaks("quorum")
def _a_vote_is_remembered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MetadataLog, "write_election", lambda self, state, kraft_version, voters: None)


@_breaks("quorum")
def _one_vote_an_epoch(patch: pytest.MonkeyPatch) -> None:
    elect = Elections._elect

    def again(self: Elections, request: Any) -> bool:
        return elect(self, request) or (request.replica_epoch == self._core.epoch and not self._is_behind(request))

    patch.setattr(Elections, "_elect", again)


@_breaks("quorum")
def _a_vote_needs_a_log_as_long(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Elections, "_is_behind", lambda self, request: False)


@_breaks("quorum")
def _a_leader_has_a_majority(patch: pytest.MonkeyPatch) -> None:
    decide = Elections._decide

    def alone(self: Elections) -> None:
        self._granted |= {voter.voter_id for voter in self._core.others()[:2]}
        decide(self)

    patch.setattr(Elections, "_decide", alone)


# -- replication ------------------------------------------------------------------------------------------------------


@_breaks("quorum")
def _a_leader_counts_what_it_has_flushed(patch: pytest.MonkeyPatch) -> None:
    end = Replicas.majority_end
    patch.setattr(Replicas, "majority_end", lambda self, voters, own_end: end(self, voters, 1 << 60))


@_breaks("quorum")
def _a_majority_commits(patch: pytest.MonkeyPatch) -> None:
    def any_one(self: Replicas, voters: Any, own_end: int) -> int:
        return own_end

    patch.setattr(Replicas, "majority_end", any_one)


@_breaks("quorum")
def _a_fetch_says_what_is_flushed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Following, "_is_settled", True)


@_breaks("quorum")
def _old_epochs_are_committed_by_the_new_one(patch: pytest.MonkeyPatch) -> None:
    begin = Leading.begin

    def without_start(self: Leading, granting: Any) -> None:
        begin(self, granting)
        role = self._core.role
        assert isinstance(role, Leader)
        self._core.role = Leader(role.epoch, role.node_id, 0)

    patch.setattr(Leading, "begin", without_start)


@_breaks("quorum")
def _a_log_that_differs_is_cut_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fetches, "judge", lambda log, offset, epoch: fetches.Valid())


@_breaks("quorum")
def _only_the_leader_of_the_epoch_serves(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Core, "leader_only", lambda self, epoch: ErrorCode.NONE)


@_breaks("quorum")
def _a_follower_commits_what_it_has(patch: pytest.MonkeyPatch) -> None:
    def too_far(self: Following) -> None:
        if self._leader_high_watermark > 0:
            self._core.advance_high_watermark(self._leader_high_watermark)

    patch.setattr(Following, "count", too_far)


# -- snapshots and voters ---------------------------------------------------------------------------------------------


@_breaks("quorum")
def _a_snapshot_is_of_what_is_committed(patch: pytest.MonkeyPatch) -> None:
    committed = QuorumNode._committed
    patch.setattr(QuorumNode, "_committed", lambda self, offset: committed(self, self.log.end_offset))


@_breaks("quorum")
def _voters_change_one_at_a_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(VoterChanges, "_gate", lambda self, cluster_id: (ErrorCode.NONE, None))
