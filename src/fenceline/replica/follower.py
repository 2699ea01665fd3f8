"""The follower's side of one partition: where it fetches next, and what it does with the leader's responses.

Owns the state of following one leader in one leader epoch. Never changes a log: it reads the state of the log and
returns what to do with it (`Duty`). `fenceline.replica.fetcher` combines partitions into one fetch.

| phase    | means                                     | left by                                        |
|----------|-------------------------------------------|------------------------------------------------|
| FETCHING | asks for records from the own log end     | divergence, out of range, an error             |
| CUTTING  | the log is being truncated or emptied     | `resume`                                       |
| FLUSHING | appended records are flushed before the   | `resume`                                       |
|          | next fetch acknowledges them              |                                                |
|          | (`flush.messages`)                        |                                                |
| LOOKING  | asks for an end of the leader's log, or   | `on_leader_end`, `on_leader_start`,            |
|          | for the end of one of its epochs          | `on_epoch_end`, an error                       |
| WAITING  | backs off until `ready_at_ms`             | time                                           |

| response                                | what follows                                              | rule      |
|-----------------------------------------|-----------------------------------------------------------|-----------|
| records                                 | append them, apply high watermark and log start           | E29       |
| records of a newer epoch, after a gap   | ask where it starts (`epoch_search`), fetch them again    | E13, E14  |
| diverging (epoch, end)                  | truncate to where the own log leaves that epoch, fetch    | E25       |
|                                         | again                                                     |           |
| 1 out of range                          | ask for the leader's end: if it is below ours, truncate;  | E28       |
|                                         | else for its start: if it is above our end, restart       |           |
|                                         | there; else the leader does not know our last epoch:      | E8, G14a  |
|                                         | truncate that epoch                                       |           |
| the leader's log starts at our end, and | restart there: it has no record to compare with ours, and | E13 d     |
| no response has compared the two yet    | its response only repeats our epoch                       |           |
| a truncation that would leave nothing   | ask for the leader's start, restart there: an empty log   | E19, E28  |
|                                         | at any other offset would lack the records between, and   |           |
|                                         | as leader it would make the others delete them; except if |           |
|                                         | the leader's record below our start is one we deleted     |           |
| a truncation that leaves only records   | restart there, before the next fetch                      | E13 d     |
| below the leader's log start            |                                                           |           |
| a truncation below `complete_from` of a | compare the complete log first (`agreement`), truncate    | decision  |
| compacted log                           | what the leader does not have, empty it and fetch it      | 022       |
|                                         | again: records removed by compaction in favour of newer,  |           |
|                                         | truncated ones may be in the leader's log                 |           |
| 74 while no newer leader epoch is known | retry; never given up                                     | G3        |
| 75, 6, 3, 56, 100, 103 and others       | retry                                                     | E27       |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, TypeAlias

from fenceline.log.core.agreement import AgreementSearch, EpochsOfLog
from fenceline.log.core.compaction_bound import CompleteFrom
from fenceline.log.core.epoch_cache import UNDEFINED
from fenceline.replica.epoch_search import EpochSearch
from fenceline.replica.fencing import NO_EPOCH
from fenceline.replica.unused_log import UNUSED_LOG


class FollowedLog(EpochsOfLog, Protocol):
    """What a follower needs to know of its own log."""

    @property
    def latest_epoch_start(self) -> int: ...
    @property
    def complete_from(self) -> CompleteFrom: ...
    def last_deleted_epoch_is(self, epoch: int) -> bool: ...


class FollowerPhase(Enum):
    FETCHING = "fetching"
    CUTTING = "cutting"
    FLUSHING = "flushing"
    LOOKING = "looking"
    WAITING = "waiting"


class TruncationCause(Enum):
    """Why a follower truncates its log; recorded in the receipt of the loss."""

    DIVERGENCE = "the leader's log diverged from this one"
    LEADER_IS_SHORTER = "the leader's log ends before this one"
    UNKNOWN_EPOCH = "the leader does not know the last epoch of this log"
    LEADER_STARTS_LATER = "the leader's log starts at the end of this one, or after it"


def leaves_nothing(log: FollowedLog, end: int) -> bool:
    """Whether truncating to `end` would leave an empty log that may start above the leader's."""
    start = log.log_start_offset
    return end < start or (end == start < log.log_end_offset and start > 0)


@dataclass(slots=True)
class FollowerState:
    """A partition that is followed, in one leader epoch. `topic_id`: 16 raw bytes."""

    topic: str
    topic_id: bytes
    index: int
    leader_epoch: int
    log: FollowedLog
    phase: FollowerPhase = FollowerPhase.FETCHING
    ready_at_ms: int = 0
    failures: int = 0
    """Consecutive failures."""
    leader_high_watermark: int = -1
    """From the leader's last response. For throttles, a replica below it counts as out of sync."""
    comparison: AgreementSearch | None = None
    """The comparison with the leader's log before the next fetch, after which the log is emptied and fetched again."""
    search: EpochSearch | None = None
    """The search for the last gap."""
    restart_cause: TruncationCause | None = None
    """Why the log will be emptied, while the leader's log start is being asked for."""
    leader_start: int = -1
    """The leader's log start in the last diverging response; -1: unknown."""
    is_compared: bool = False
    """Whether the leader has confirmed in this leader epoch that its log agrees with this one."""
    may_lead: bool = True
    """Whether the replica was in the ISR or ELR (KIP-966) when following began."""
    initial_offset: int = field(init=False)
    """Log end when following began: truncated to if the leader does not know an epoch's end (E25)."""

    def __post_init__(self) -> None:
        self.initial_offset = self.log.log_end_offset

    @property
    def is_unused(self) -> bool:
        """Whether the replica has no files: it is followed without an object of its own until its first record."""
        return self.log is UNUSED_LOG

    def continue_from(self, unused: FollowerState) -> None:
        """The replica was opened, and its log is empty: what its leader has answered still holds."""
        assert unused.is_unused, "an opened log is followed from its own end"
        self.phase = unused.phase
        self.ready_at_ms = unused.ready_at_ms
        self.failures = unused.failures
        self.leader_high_watermark = unused.leader_high_watermark
        self.is_compared = unused.is_compared

    def is_ready(self, now_ms: int) -> bool:
        """Whether it is to be fetched now."""
        if self.phase is FollowerPhase.WAITING and now_ms >= self.ready_at_ms:
            self.phase = FollowerPhase.FETCHING
        return self.phase is FollowerPhase.FETCHING

    def wait_until(self, ready_at_ms: int) -> None:
        """Back off after an error, in any phase."""
        self.phase = FollowerPhase.WAITING
        self.ready_at_ms = ready_at_ms
        self.failures += 1
        self.restart_cause = None
        if self.comparison is not None:
            self.comparison = AgreementSearch(self.log)

    @property
    def may_be_held_back(self) -> bool:
        """Whether a throttle may delay it: it fetches, and lacks committed records."""
        return self.phase is FollowerPhase.FETCHING and not 0 <= self.leader_high_watermark <= self.log.log_end_offset

    def resume(self) -> None:
        """The duty was executed: fetch from the log end."""
        self.phase = FollowerPhase.FETCHING
        self.failures = 0

    def on_divergence(
        self, leader_epoch: int, leader_end: int, leader_start: int = -1
    ) -> CutTo | AskStart | AskEpochEnd:
        """The leader's newest epoch not above our last one is `leader_epoch`, and it ends at `leader_end` (E25).

        If our log does not have that epoch, truncate to the end of our next lower one; the next response continues from
        there. Each round removes at least one epoch.
        """
        log_end = self.log.log_end_offset
        self.leader_start = leader_start
        own_epoch, own_end = self.log.end_offset_for_epoch(leader_epoch)
        if leader_end == UNDEFINED:
            end = self.initial_offset
        elif leader_epoch == NO_EPOCH or own_end == UNDEFINED:
            end = leader_end
        elif own_epoch == leader_epoch:
            end = min(own_end, leader_end)
        else:
            end = own_end
        end = max(0, min(end, log_end))
        log_start = self.log.log_start_offset
        is_at_start = end == leader_end == log_start and NO_EPOCH < leader_epoch < self.leader_epoch
        may_empty = self.may_lead and log_start < log_end and leaves_nothing(self.log, end)
        if may_empty or (is_at_start and self.log.last_deleted_epoch_is(leader_epoch)):
            # The leader has records that were deleted here: they were committed, because this replica is in the ISR or
            # ELR, or the leader's record right below our start is the one that we deleted. If this replica restarted at
            # the leader's start, it would lack committed records until it has fetched them, and could be elected then.
            return self._cut_to(log_start, TruncationCause.DIVERGENCE)
        return self._cut(end, TruncationCause.DIVERGENCE)

    def on_follow(self, clean_since: int) -> RestartAt | None:
        """Before the first fetch. `clean_since`: no leader with a later epoch was elected uncleanly. If the log ends
        below `complete_from`, a leader elected uncleanly since may have records that this log lacks, so it is compared
        first: see `first_question`. An empty log has nothing to compare; it is kept while this replica may lead,
        because after a restart it would end below the high watermark."""
        log = self.log
        if log.log_end_offset >= log.complete_from.offset or clean_since <= log.complete_from.leader_epoch:
            return None
        if log.log_end_offset > log.log_start_offset:
            self.comparison = AgreementSearch(log)
            return None
        if self.may_lead:
            return None
        return self._restart_at(0, TruncationCause.DIVERGENCE, leader_has_all=True)

    def first_question(self) -> AskEpochEnd | AskStart:
        """The question to ask the leader before the next fetch, if there is a `comparison`."""
        assert self.comparison is not None, "there is one"
        return self._compare(self.comparison)

    def _compare(self, comparison: AgreementSearch) -> AskEpochEnd | AskStart:
        self.phase = FollowerPhase.LOOKING
        return AskStart(self) if comparison.is_done else AskEpochEnd(self, comparison.asks)

    def _on_compared(self, end: int, leader_start: int) -> CutTo | RestartAt:
        """The leader's log, from `leader_start` on, agrees with this one up to `end`. The remaining records are lost,
        with a receipt."""
        log = self.log
        if end <= log.log_start_offset:
            return self._restart_at(leader_start, TruncationCause.DIVERGENCE)
        if end < log.log_end_offset:
            self.leader_start = leader_start
            return self._cut_to(end, TruncationCause.DIVERGENCE)
        if leader_start >= end:
            return self._restart_at(leader_start, TruncationCause.LEADER_STARTS_LATER)
        return self._restart_at(leader_start, TruncationCause.DIVERGENCE, leader_has_all=True)

    def on_cut(self, duty: CutTo | RestartAt) -> RestartAt | None:
        """After a truncation: if all remaining records are below the leader's log start (`on_agreement`), or lack
        records removed by compaction (`complete_from`; it was compared), empty the log before the next fetch, because
        with that fetch the leader would count this replica."""
        leader_start, self.leader_start = self.leader_start, -1
        log = self.log
        is_empty = log.log_end_offset == log.log_start_offset
        if leader_start >= log.log_end_offset and not is_empty:
            return RestartAt(self, leader_start, TruncationCause.LEADER_STARTS_LATER)
        if isinstance(duty, CutTo) and duty.offset < log.complete_from.offset:
            return RestartAt(self, max(leader_start, 0), duty.cause, leader_has_all=True)
        return None

    def on_agreement(self, leader_start: int, *, had_records: bool = True) -> RestartAt | None:
        """The leader's log starts at `leader_start` and continues at our log end. None: the logs agree. `had_records`:
        this log, when the request was sent; retention may have emptied it since.

        A leader whose log starts at our end has forgotten our last epoch: it returns that epoch and its own start,
        whatever our records are (E13 d). They may belong to a history that no later leader had.

        An empty log has no record to compare. If it were fetched from its own start, it would lack the leader's records
        below, which may be of another history than the deleted ones: it restarts at the leader's start, unless this
        replica may lead, and so has been compared.
        """
        log = self.log
        is_empty = log.log_end_offset == log.log_start_offset
        if is_empty and not had_records and log.log_start_offset > leader_start and not self.may_lead:
            return self._restart_at(leader_start, TruncationCause.DIVERGENCE)
        if leader_start < log.log_end_offset or is_empty:
            self.is_compared = True
            return None
        return self._restart_at(leader_start, TruncationCause.LEADER_STARTS_LATER)

    def on_ineligible(self, leader_start: int) -> None:
        """The replica is no longer in the ISR or ELR. An empty log above the leader's start, which was kept while the
        replica might lead, is checked again with the next response."""
        log = self.log
        if self.may_lead and log.log_end_offset == log.log_start_offset > leader_start:
            self.may_lead = self.is_compared = False

    def _cut(self, end: int, cause: TruncationCause) -> CutTo | AskStart | AskEpochEnd:
        """If nothing would be left, restart at the leader's start, never at the own one. If the remaining records would
        have to be emptied too, because compaction has removed records, compare the complete log first."""
        if leaves_nothing(self.log, end):
            self.phase = FollowerPhase.LOOKING
            self.restart_cause = cause
            return AskStart(self)
        if end < self.log.complete_from.offset:
            self.comparison = AgreementSearch(self.log)
            return self._compare(self.comparison)
        return self._cut_to(end, cause)

    def _cut_to(self, end: int, cause: TruncationCause) -> CutTo:
        """A log never ends below its start, and no truncation makes it longer."""
        start, log_end = self.log.log_start_offset, self.log.log_end_offset
        assert start <= end <= log_end, f"{self.topic}-{self.index}: {start}..{log_end} is to end at {end}"
        self.phase = FollowerPhase.CUTTING
        return CutTo(self, end, cause)

    def _restart_at(self, offset: int, cause: TruncationCause, *, leader_has_all: bool = False) -> RestartAt:
        self.phase = FollowerPhase.CUTTING
        return RestartAt(self, offset, cause, leader_has_all)

    @property
    def epoch_starts(self) -> tuple[tuple[int, int], ...]:
        """Known epochs that start between the log end and the leader's next batch."""
        search = self.search
        return search.starts if search is not None and search.log_end_offset == self.log.log_end_offset else ()

    def on_unknown_epoch(self, epoch: int, first_offset: int) -> AskEpochEnd | None:
        """The leader's next batch, the first remaining one of `epoch`, is after a gap. None: fetch it again."""
        self.phase = FollowerPhase.LOOKING
        self.search = EpochSearch(epoch, first_offset, self.log)
        return self._next_question(self.search)

    def on_epoch_end(self, epoch: int, end: int) -> AskEpochEnd | AskStart | None:
        """E13. None: the epoch starts are known, fetch again."""
        if self.comparison is not None:
            self.comparison.on_answer(epoch, end)
            return self._compare(self.comparison)
        assert self.search is not None, "it was asked for"
        self.search.on_answer(epoch, end)
        return self._next_question(self.search)

    def _next_question(self, search: EpochSearch) -> AskEpochEnd | None:
        return None if search.is_done else AskEpochEnd(self, search.asks)

    def on_out_of_range(self) -> AskEnd:
        self.phase = FollowerPhase.LOOKING
        return AskEnd(self)

    def on_leader_end(self, leader_end: int) -> CutTo | AskStart | AskEpochEnd:
        """E28."""
        if leader_end < self.log.log_end_offset:
            return self._cut(max(leader_end, 0), TruncationCause.LEADER_IS_SHORTER)
        return AskStart(self)

    def on_leader_start(self, leader_start: int) -> CutTo | RestartAt | AskStart | AskEpochEnd | None:
        """E28. None: the log end is within the leader's log now, fetch again."""
        log, restart_cause = self.log, self.restart_cause
        self.restart_cause = None
        comparison, self.comparison = self.comparison, None
        if comparison is not None:
            return self._on_compared(comparison.end, leader_start)
        if restart_cause is not None:
            return self._restart_at(leader_start, restart_cause)
        if leader_start > log.log_end_offset:
            return self._restart_at(leader_start, TruncationCause.LEADER_STARTS_LATER)
        if log.latest_epoch > NO_EPOCH and log.log_end_offset > log.log_start_offset:
            # In range but rejected: all epochs of the leader are below our last one (E8, E13 c).
            end = max(log.latest_epoch_start, log.log_start_offset)
            if log.log_start_offset < end < log.complete_from.offset:
                return self._cut(end, TruncationCause.UNKNOWN_EPOCH)
            return self._cut_to(end, TruncationCause.UNKNOWN_EPOCH)
        self.phase = FollowerPhase.FETCHING
        return None


@dataclass(frozen=True, slots=True)
class AppendFetchedBatches:
    """Append these batches; then apply the offsets as `ApplyOffsets` does."""

    state: FollowerState
    records: memoryview
    high_watermark: int
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class ApplyOffsets:
    """Apply the leader's high watermark and log start, within the own log (E29)."""

    state: FollowerState
    high_watermark: int
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class CutTo:
    """Truncate the log so that it ends at `offset`, even if it already does (E18)."""

    state: FollowerState
    offset: int
    cause: TruncationCause


@dataclass(frozen=True, slots=True)
class RestartAt:
    """Truncate the log fully and start at `offset`. `leader_has_all`: the leader has all the removed records."""

    state: FollowerState
    offset: int
    cause: TruncationCause
    leader_has_all: bool = False


@dataclass(frozen=True, slots=True)
class AskEnd:
    """Ask for the leader's log end, with the leader epoch (ListOffsets, latest)."""

    state: FollowerState


@dataclass(frozen=True, slots=True)
class AskStart:
    """Ask for the leader's log start, with the leader epoch (ListOffsets, earliest local)."""

    state: FollowerState


@dataclass(frozen=True, slots=True)
class AskEpochEnd:
    """Ask where an epoch ends in the leader's log, with the leader epoch (OffsetForLeaderEpoch)."""

    state: FollowerState
    epoch: int


Question: TypeAlias = AskEnd | AskStart | AskEpochEnd
Duty: TypeAlias = AppendFetchedBatches | ApplyOffsets | CutTo | RestartAt | Question
