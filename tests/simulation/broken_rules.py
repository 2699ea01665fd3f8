"""Rules of the quorum and the controller, each with a patch that breaks it: the table of `test_broken_rules`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

import pytest

from fenceline.controller.controller import Controller
from fenceline.errors import ErrorCode
from fenceline.ids import ZERO_UUID
from fenceline.log.partition import retention
from fenceline.node.controller.active_controller import ActiveController
from fenceline.node.controller.driver import ControllerDriver
from fenceline.node.metadata import snapshot_files
from fenceline.node.metadata.batches import control_batch
from fenceline.node.metadata.metadata_log import MetadataLog
from fenceline.node.metadata.replay import MetadataReplay
from fenceline.node.metadata.snapshot_files import SnapshotDamaged
from fenceline.node.metadata.snapshots import Snapshots
from fenceline.quorum import fetches
from fenceline.quorum.control_records import SnapshotFooter, VoterEndpoint, decode_control
from fenceline.quorum.core import Core
from fenceline.quorum.download import Download
from fenceline.quorum.duties import Truncate
from fenceline.quorum.election_state import NO_NODE, ElectionState
from fenceline.quorum.elections import Elections
from fenceline.quorum.fetches import Fetches, Valid, Verdict
from fenceline.quorum.following import Following
from fenceline.quorum.leading import Leading
from fenceline.quorum.log_view import LogView, SnapshotId
from fenceline.quorum.messages import VoteRequest
from fenceline.quorum.replicas import QuorumReplicas
from fenceline.quorum.response_handling import ResponseHandler
from fenceline.quorum.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached
from fenceline.quorum.voter_changes import VoterChanges
from fenceline.quorum.voter_set import VoterSet
from fenceline.records.batch import read_header
from fenceline.records.decode import decode_batch
from fenceline.testing.simulation.disk import LifeDisk
from fenceline.testing.simulation.quorum_node import SimulatedQuorumNode

Patch = Callable[[pytest.MonkeyPatch], None]


class Rule(NamedTuple):
    """How it is broken, and a seed of the scenario that detects it, with the check that does: the rule of a check, or
    the final check of a scenario. Another seed may do as well, and after a change of the code another one must.
    `options` override drawn ones."""

    scenario: str
    breach: Patch
    seed: int
    check: str
    options: Mapping[str, str]


RULES: Final[dict[str, Rule]] = {}


def _breaks(scenario: str, seed: int, check: str, **options: str) -> Callable[[Patch], Patch]:
    def keep(patch: Patch) -> Patch:
        RULES[patch.__name__.strip("_")] = Rule(scenario, patch, seed, check, options)
        return patch

    return keep


# -- the disk ---------------------------------------------------------------------------------------------------------


def _no_fsync_of(suffix: str) -> Callable[[LifeDisk, int], None]:
    fsync = LifeDisk.fsync

    def skip(self: LifeDisk, fd: int) -> None:
        if not self._descriptors[fd].endswith(suffix):
            fsync(self, fd)

    return skip


@_breaks("controller", 0, "Q52")
def _a_flush_is_an_fsync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LifeDisk, "fsync", _no_fsync_of(".log"))


@_breaks("quorum", 0, "Q52")
def _a_follower_flushes_what_it_fetches(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LifeDisk, "fsync", _no_fsync_of(".log"))


@_breaks("controller", 0, "Q52")
def _directories_are_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LifeDisk, "fsync_dir", lambda self, path: None)


@_breaks("controller", 0, "N50")
def _a_snapshot_is_renamed_when_it_is_complete(patch: pytest.MonkeyPatch) -> None:
    def write(self: MetadataLog, snapshot: Any, batches: Any) -> None:
        fd = self._disk.open_append(f"{self.directory}/{snapshot.file_name}")
        for batch in batches:
            self._disk.write(fd, batch)
        self._disk.close(fd)

    patch.setattr(MetadataLog, "write_snapshot", write)


@_breaks("controller", 0, "N50")
def _a_snapshot_ends_with_its_footer(patch: pytest.MonkeyPatch) -> None:
    write = MetadataLog.write_snapshot
    patch.setattr(MetadataLog, "write_snapshot", lambda self, name, batches: write(self, name, list(batches)[:-1]))


@_breaks("controller", 0, "N48")
def _the_log_starts_at_a_snapshot(patch: pytest.MonkeyPatch) -> None:
    advance = retention.advance_log_start
    patch.setattr(retention, "advance_log_start", lambda log, at: advance(log, min(at + 1, log.high_watermark)))


# -- the controller ---------------------------------------------------------------------------------------------------


@_breaks("controllers", 0, "G35")
def _an_image_is_published_when_it_is_committed(patch: pytest.MonkeyPatch) -> None:
    send_off = ActiveController._append

    def early(self: ActiveController, commit: Any) -> None:
        send_off(self, commit)
        if commit.content:
            for image, delta in commit.images:
                self._loader.adopt(image, delta)

    patch.setattr(ActiveController, "_append", early)


_CUT_OFF: Final = {
    **dict.fromkeys(("crash_s", "crash_calls", "stop_s", "pause_s", "full_s", "fail_s", "flip_s", "drop_s"), "0"),
    **dict.fromkeys(("loss_chance", "duplicate_chance", "one_way_chance"), "0"),
    "nodes": "3",
    "safety_s": "30",
    "partition_s": "5",
    "max_delay_ms": "20",
    "max_job_ms": "50",
    "slow_disk_s": "0",
    "clients": "4",
    "think_ms": "50",
    "idle_ms": "0",
    "snapshot_interval_ms": "3600000",
    "snapshot_bytes": "20971520",
    "segment_ms": "604800000",
}
"""Leaders that are cut off while clients, who are sure of every answer, ask for much."""


@_breaks("controllers", 1, "its client expects", **_CUT_OFF)
def _a_response_is_sent_after_the_commit(patch: pytest.MonkeyPatch) -> None:
    send_off = ActiveController._append

    def early(self: ActiveController, commit: Any) -> None:
        send_off(self, commit)
        for answer, value in commit.answers:
            if not answer.done() and not isinstance(value, Exception):
                answer.set_result(value)

    patch.setattr(ActiveController, "_append", early)


@_breaks("controller", 13, "progress")
def _records_that_were_not_appended_are_discarded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Controller, "reset", lambda self, image, next_offset: None)


# -- elections --------------------------------------------------------------------------------------------------------


@_breaks("quorum", 1, "Q50")
def _a_vote_is_persisted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MetadataLog, "write_election", lambda self, state, kraft_version, voters: None)


@_breaks("quorum", 1, "Q50")
def _an_epoch_is_persisted(patch: pytest.MonkeyPatch) -> None:
    write = MetadataLog.write_election

    def votes_only(self: MetadataLog, state: ElectionState, kraft_version: int, voters: tuple[int, ...]) -> None:
        if state.voted_id != NO_NODE:
            write(self, state, kraft_version, voters)

    patch.setattr(MetadataLog, "write_election", votes_only)


@_breaks("quorum", 1, "gave up")
def _a_vote_is_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LifeDisk, "fsync", _no_fsync_of("quorum-state.tmp"))


@_breaks("quorum", 3, "log matching")
def _a_restarted_leader_never_leads_the_same_epoch_again(patch: pytest.MonkeyPatch) -> None:
    boot = Elections.boot

    def lead_on(self: Elections, recorded: ElectionState | None) -> None:
        boot(self, recorded)
        core = self._core
        if isinstance(core.role, Resigned):
            core.role = Candidate(core.epoch, core.local_id, core.local.voter_directory_id)
            self._lead((core.local_id,))

    patch.setattr(Elections, "boot", lead_on)


@_breaks("quorum", 24, "K7")
def _a_candidacy_needs_a_pre_vote(patch: pytest.MonkeyPatch) -> None:
    ask = Elections.start_pre_vote

    def stand(self: Elections) -> None:
        ask(self)
        if isinstance(self._core.role, Prospective) and self._core.is_electable:
            self._become_candidate()

    patch.setattr(Elections, "start_pre_vote", stand)


_CALM: Final = dict.fromkeys(("crash_s", "crash_calls", "pause_s", "stop_s", "admin_s", "flip_s", "observers"), "0")
"""Nothing but partitions: a majority must have been well for a while to be disturbed."""


@_breaks("quorum", 17, "K7", nodes="3", safety_s="20", partition_s="5", **_CALM)
def _a_voter_in_contact_with_its_leader_grants_no_pre_vote(patch: pytest.MonkeyPatch) -> None:
    def would_elect(self: Elections, request: Any) -> bool:
        return not self._is_behind(request)

    patch.setattr(Elections, "_would_elect", would_elect)


@_breaks("quorum", 0, "progress")
def _a_leader_begins_with_a_record_of_its_epoch(patch: pytest.MonkeyPatch) -> None:
    begin = Leading.begin

    def in_silence(self: Leading, granting: Any) -> None:
        begin(self, granting)
        self._core.duties.pop()

    patch.setattr(Leading, "begin", in_silence)


@_breaks("quorum", 1, "log matching")
def _one_vote_an_epoch(patch: pytest.MonkeyPatch) -> None:
    elect = Elections._elect

    def again(self: Elections, request: Any) -> bool:
        return elect(self, request) or (request.replica_epoch == self._core.epoch and not self._is_behind(request))

    patch.setattr(Elections, "_elect", again)


@_breaks("quorum", 40, "Q56")
def _a_vote_needs_a_log_as_long(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Elections, "_is_behind", lambda self, request: False)


@_breaks("quorum", 1, "log matching")
def _a_leader_has_a_majority(patch: pytest.MonkeyPatch) -> None:
    decide = Elections._decide

    def alone(self: Elections) -> None:
        self._granted |= {voter.voter_id for voter in self._core.others()[:2]}
        decide(self)

    patch.setattr(Elections, "_decide", alone)


@_breaks("quorum", 1, "Q17")
def _a_vote_is_remembered(patch: pytest.MonkeyPatch) -> None:
    """Q17: a vote is given once an epoch."""
    real = Elections._elect

    def elect(self: Elections, request: VoteRequest) -> bool:
        role = self._core.role
        if isinstance(role, Unattached | Prospective):
            self._core.role = type(role)(role.epoch, role.leader_id, NO_NODE, ZERO_UUID)
        return real(self, request)

    patch.setattr(Elections, "_elect", elect)


@_breaks("quorum", 0, "Q2")
def _a_role_is_persisted(patch: pytest.MonkeyPatch) -> None:
    """Q2: a vote is durable before it is answered."""
    patch.setattr(Core, "persist", lambda self: None)


@_breaks("quorum", 6, "Q56")
def _half_of_the_voters_are_no_majority(patch: pytest.MonkeyPatch) -> None:
    """Q6."""
    patch.setattr(VoterSet, "majority", property(lambda self: max(1, len(self.voters) // 2)))


@_breaks("quorum", 1, "Q50")
def _an_epoch_never_decreases(patch: pytest.MonkeyPatch) -> None:
    """Q2, Q50: an epoch never falls."""
    real = ResponseHandler._learn_announced_leader

    def adopt(self: ResponseHandler, epoch: int, leader_id: int, endpoints: tuple[VoterEndpoint, ...]) -> ErrorCode:
        core = self._core
        if epoch < core.epoch and not isinstance(core.role, Leader):
            core.role = Follower(epoch, leader_id)
            return ErrorCode.NONE
        return real(self, epoch, leader_id, endpoints)

    patch.setattr(ResponseHandler, "_learn_announced_leader", adopt)


# -- replication ------------------------------------------------------------------------------------------------------


@_breaks("quorum", 3, "Q52")
def _a_leader_counts_what_it_has_flushed(patch: pytest.MonkeyPatch) -> None:
    end = QuorumReplicas.majority_end
    patch.setattr(QuorumReplicas, "majority_end", lambda self, voters, own_end: end(self, voters, 1 << 60))


@_breaks("quorum", 0, "Q52")
def _a_majority_commits(patch: pytest.MonkeyPatch) -> None:
    def any_one(self: QuorumReplicas, voters: Any, own_end: int) -> int:
        return own_end

    patch.setattr(QuorumReplicas, "majority_end", any_one)


@_breaks("quorum", 1, "Q52")
def _a_fetch_reports_what_is_flushed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Following, "_is_durable", True)


@_breaks("quorum", 1, "Q32")
def _old_epochs_are_committed_by_the_new_one(patch: pytest.MonkeyPatch) -> None:
    begin = Leading.begin

    def without_start(self: Leading, granting: Any) -> None:
        begin(self, granting)
        role = self._core.role
        assert isinstance(role, Leader)
        self._core.role = Leader(role.epoch, role.node_id, 0)

    patch.setattr(Leading, "begin", without_start)


@_breaks("quorum", 22, "Q52")
def _a_diverging_log_is_truncated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fetches, "validate_offset_and_epoch", lambda log, offset, epoch: fetches.Valid())


@_breaks("quorum", 0, "the quorum itself")
def _only_the_leader_of_the_epoch_serves(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Core, "leader_only", lambda self, epoch: ErrorCode.NONE)


@_breaks("quorum", 0, "Q52")
def _a_leader_returns_the_committed_high_watermark(patch: pytest.MonkeyPatch) -> None:
    answer = Fetches._answer

    def all_of_it(self: Fetches, *args: Any, **kwargs: Any) -> Any:
        said = answer(self, *args, **kwargs)
        return replace(said, high_watermark=self._core.log.end.offset) if said.high_watermark >= 0 else said

    patch.setattr(Fetches, "_answer", all_of_it)


@_breaks(
    "quorum",
    0,
    "was acknowledged at",
    nodes="3",
    observers="0",
    partition_s="1",
    max_delay_ms="20",
    clients="4",
    think_ms="5",
)
def _a_response_waits_for_a_majority(patch: pytest.MonkeyPatch) -> None:
    propose = SimulatedQuorumNode._propose

    def at_once(self: SimulatedQuorumNode, name: str, value: str, reply: Any) -> None:
        propose(self, name, value, lambda said, error: None)
        reply((0, self.log.end_offset - 1), None)

    patch.setattr(SimulatedQuorumNode, "_propose", at_once)


@_breaks("quorum", 21, "N49")
def _a_log_is_truncated_where_it_diverges(patch: pytest.MonkeyPatch) -> None:
    def too_deep(self: Following, diverging: Any) -> None:
        self._core.log_is_changing = True
        self._core.duties.append(Truncate(max(self._core.log.start_offset, self._core.log.end.offset - 20)))

    patch.setattr(Following, "_truncate", too_deep)


@_breaks("quorum", 0, "the quorum itself")
def _a_follower_commits_only_what_it_has(patch: pytest.MonkeyPatch) -> None:
    def too_far(self: Following) -> None:
        if self._leader_high_watermark > 0:
            self._core.advance_high_watermark(self._leader_high_watermark)

    patch.setattr(Following, "update_high_watermark", too_far)


@_breaks("quorum", 1, "Q52")
def _a_leader_counts_its_flushed_records(patch: pytest.MonkeyPatch) -> None:
    """G35: a leader's own tail counts when it is flushed."""
    real = QuorumReplicas.majority_end
    logs: dict[int, LogView] = {}
    count = Leading.update_high_watermark

    def remember(self: Leading) -> bool:
        if self.replicas is not None:
            logs[id(self.replicas)] = self._core.log
        return count(self)

    def majority_end(self: QuorumReplicas, voters: VoterSet, own_end: int) -> int:
        return real(self, voters, logs[id(self)].end.offset)

    patch.setattr(Leading, "update_high_watermark", remember)
    patch.setattr(QuorumReplicas, "majority_end", majority_end)


@_breaks("quorum", 6, "Q32")
def _a_leader_commits_from_the_start_of_its_epoch(patch: pytest.MonkeyPatch) -> None:
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


@_breaks("quorum", 3, "Q52")
def _a_shorter_diverging_log_is_truncated(patch: pytest.MonkeyPatch) -> None:
    """N26: a diverging log is truncated before the next append."""
    real = fetches.validate_offset_and_epoch

    def judge(log: LogView, offset: int, epoch: int) -> Verdict:
        verdict = real(log, offset, epoch)
        return Valid() if isinstance(verdict, fetches.Diverging) and offset <= log.end.offset else verdict

    patch.setattr(fetches, "validate_offset_and_epoch", judge)


# -- snapshots and voters ---------------------------------------------------------------------------------------------


@_breaks("quorum", 1, "G35")
def _a_snapshot_has_committed_records_only(patch: pytest.MonkeyPatch) -> None:
    committed = SimulatedQuorumNode.committed
    patch.setattr(SimulatedQuorumNode, "committed", lambda self, offset: committed(self, self.log.end_offset))


@_breaks("quorum", 10, "gave up")
def _a_download_is_synced_before_it_is_renamed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LifeDisk, "fsync", _no_fsync_of(".part"))


@_breaks("quorum", 6, "N50")
def _a_snapshot_without_its_footer_is_not_loaded(patch: pytest.MonkeyPatch) -> None:
    """Downloads end a chunk early, and the footer is not checked."""
    written, batches, verify = Download.written, snapshot_files._batches, snapshot_files.verify_snapshot

    def early(self: Download, snapshot_id: SnapshotId, end_position: int) -> None:
        if self._state is not None:
            self._state.size = end_position
        written(self, snapshot_id, end_position)

    def while_they_are_whole(disk: Any, path: str) -> Iterator[Any]:
        with suppress(SnapshotDamaged):
            yield from batches(disk, path)

    def take(self: MetadataReplay, batches: Any, snapshot: SnapshotId, path: str) -> None:
        whole = [*batches]
        if not isinstance(_control_of(whole[-1]), SnapshotFooter):
            footer = memoryview(control_batch([SnapshotFooter()], 0, epoch=snapshot.epoch))
            whole.append((footer, read_header(footer)))
        load(self, whole, snapshot, path)

    load = MetadataReplay.replay_snapshot
    patch.setattr(Download, "written", early)
    patch.setattr(snapshot_files, "_batches", while_they_are_whole)
    patch.setattr(snapshot_files._Checks, "finish", lambda self: None)
    patch.setattr(snapshot_files, "verify_snapshot", lambda disk, path, name, size: verify(disk, path, name))
    patch.setattr(MetadataReplay, "replay_snapshot", take)


def _control_of(batch: Any) -> Any:
    records, header = batch
    if not header.is_control:
        return None
    last = list(decode_batch(records, header))[-1]
    return decode_control(last.key, last.value)


@_breaks("quorum", 6, "log matching")
def _voters_change_one_at_a_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(VoterChanges, "_check_allowed", lambda self, cluster_id: (ErrorCode.NONE, None))


@_breaks("quorum", 0, "Q44")
def _a_voter_change_waits_for_the_one_before(patch: pytest.MonkeyPatch) -> None:
    """Q41, Q44: a change waits for the one before."""

    def gate(self: VoterChanges, cluster_id: str | None) -> tuple[ErrorCode, str | None]:
        if not isinstance(self._core.role, Leader):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, None
        if self._core.voters.kraft_version < 1:
            return ErrorCode.UNSUPPORTED_VERSION, None
        return ErrorCode.NONE, None

    patch.setattr(VoterChanges, "_check_allowed", gate)


# -- from Kafka's history (`kafka_history`) ----------------------------------------------------------------------------


@_breaks("controllers", 0, "N50")
def _kafka_14618_a_snapshot_is_named_by_its_end_offset(patch: pytest.MonkeyPatch) -> None:
    """By the offset after its last record, not by that record's."""
    begin = Snapshots._begin

    def one_less(self: Snapshots, image: Any, quorum: Any) -> None:
        begin(self, replace(image, offset=image.offset - 1), quorum)

    patch.setattr(Snapshots, "_begin", one_less)


@_breaks("quorum", 7, "Q52")
def _kafka_16530_a_leader_outside_of_the_voters_does_not_count(patch: pytest.MonkeyPatch) -> None:
    end = QuorumReplicas.majority_end

    def counts_itself(self: QuorumReplicas, voters: Any, own_end: int) -> int:
        if any(voter.voter_id == self._local_id for voter in voters.voters):
            return end(self, voters, own_end)
        ends = [own_end]
        for voter in voters.voters:
            replica = self.of_voter(voters, voter)
            ends.append(-1 if replica is None or replica.end_offset is None else replica.end_offset)
        return sorted(ends, reverse=True)[len(ends) // 2]

    patch.setattr(QuorumReplicas, "majority_end", counts_itself)


@_breaks("controllers", 91, "C1")
def _kafka_15345_a_controller_has_applied_its_log(patch: pytest.MonkeyPatch) -> None:
    """Before it decides anything."""
    begin = ControllerDriver._begin_term

    def at_once(self: ControllerDriver) -> None:
        if self._term is not None and not self._active.is_active:
            self._term = self._term[0], 0
            busy, self._loader._is_busy = self._loader._is_busy, False
            committed, self._loader._committed_offset = self._loader._committed_offset, 0
            try:
                begin(self)
            finally:
                self._loader._is_busy, self._loader._committed_offset = busy, committed
            return
        begin(self)

    patch.setattr(ControllerDriver, "_begin_term", at_once)
