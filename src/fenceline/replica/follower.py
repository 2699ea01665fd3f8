"""The follower's side of one partition: where it fetches next, and what the leader's answers make it do.

Owns the state of following one leader in one leader epoch. Never changes a log: it reads where the log stands and says
what is to be done with it (`Duty`). Which partitions go into one fetch is the work of `fenceline.replica.fetcher`.

| phase    | means                                     | left by                                        |
|----------|-------------------------------------------|------------------------------------------------|
| FETCHING | asks for records from the own log end     | divergence, out of range, an error             |
| CUTTING  | the log is being cut back or emptied      | `resume`                                       |
| FLUSHING | what was appended is made durable before  | `resume`                                       |
|          | the next fetch acknowledges it            |                                                |
|          | (`flush.messages`)                        |                                                |
| LOOKING  | waits for one end of the leader's log, or | `on_leader_end`, `on_leader_start`,            |
|          | for where one of its epochs ends          | `on_epoch_end`, an error                       |
| WAITING  | backs off until `ready_at_ms`             | time                                           |

| answer                                  | what follows                                              | rule      |
|-----------------------------------------|-----------------------------------------------------------|-----------|
| records                                 | append them, take over high watermark and log start       | E29       |
| records of a newer epoch, behind a gap  | ask where it begins (`epoch_search`), fetch them again    | E13, E14  |
| diverging (epoch, end)                  | cut to where the own log leaves that epoch, fetch again   | E25       |
| 1 out of range                          | ask for the leader's end: where it is below ours, cut;    | E28       |
|                                         | else for its start: where it is above our end, begin anew |           |
|                                         | there; else the leader knows nothing of our last epoch:   | E8, G14a  |
|                                         | cut that off                                              |           |
| the leader's log starts at our end,     | begin anew there: it has no record that could be compared | E13 d     |
| and no answer has compared the two yet  | with ours, and its answer only repeats our epoch          |           |
| a cut that would leave nothing          | ask for the leader's start, begin anew there: an empty    | E19, E28  |
|                                         | log at any other offset would lack what lies between, and |           |
|                                         | once it led, the others would delete it; not where the    |           |
|                                         | leader's record below our start is the one we deleted     |           |
| a cut that leaves records below the     | begin anew there, before the next fetch                   | E13 d     |
| leader's log start only                 |                                                           |           |
| a cut below `complete_from` of a log    | compare all of it first (`agreement`), cut what is not    | decision  |
| that is compacted                       | the leader's, empty it and fetch it anew: records that    | 022       |
|                                         | compaction left out for newer ones that are cut may be in |           |
|                                         | the leader's                                              |           |
| 74 while no newer leader epoch is known | wait and ask again; never given up                        | G3        |
| 75, 6, 3, 56, 100, 103 and others       | wait and ask again                                        | E27       |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, TypeAlias

from fenceline.log.agreement import AgreementSearch, EpochsOfLog
from fenceline.log.compaction_bound import CompleteFrom
from fenceline.log.epoch_cache import UNDEFINED
from fenceline.replica.epoch_search import EpochSearch
from fenceline.replica.fencing import NO_EPOCH


class FollowedLog(EpochsOfLog, Protocol):
    """What a follower reads of its own log."""

    @property
    def latest_epoch_start(self) -> int: ...
    @property
    def complete_from(self) -> CompleteFrom: ...
    def last_deleted_epoch_is(self, epoch: int) -> bool: ...


class Phase(Enum):
    FETCHING = "fetching"
    CUTTING = "cutting"
    FLUSHING = "flushing"
    LOOKING = "looking"
    WAITING = "waiting"


class Cause(Enum):
    """Why a follower cuts its log; goes into the receipt of the loss."""

    DIVERGENCE = "the leader's log went another way"
    LEADER_IS_SHORTER = "the leader's log ends before this one"
    UNKNOWN_EPOCH = "the leader does not know the last epoch of this log"
    LEADER_STARTS_LATER = "the leader's log starts at the end of this one, or after it"


def leaves_nothing(log: FollowedLog, end: int) -> bool:
    """Whether a cut to `end` would leave an empty log that may start above the leader's."""
    start = log.log_start_offset
    return end < start or (end == start < log.log_end_offset and start > 0)


@dataclass(slots=True)
class FollowerState:
    """One partition that is followed, in one leader epoch. `topic_id`: 16 raw bytes."""

    topic: str
    topic_id: bytes
    index: int
    leader_epoch: int
    log: FollowedLog
    phase: Phase = Phase.FETCHING
    ready_at_ms: int = 0
    failures: int = 0
    """In a row, since the last answer that helped."""
    leader_high_watermark: int = -1
    """As the leader told it last; a replica that does not reach it is not in sync, as far as a throttle goes."""
    comparison: AgreementSearch | None = None
    """With the leader's log, which comes before the next fetch; the log is emptied then, and fetched anew."""
    search: EpochSearch | None = None
    """Of the gap that was met last."""
    empties_for: Cause | None = None
    """Why nothing of the log stays; where the leader's log starts is being asked."""
    leader_start: int = -1
    """Where the leader's log starts, by the last answer that diverged; -1: not told."""
    is_compared: bool = False
    """Whether the leader has confirmed in this leader epoch that what it has of this log is the same."""
    may_lead: bool = True
    """Whether the metadata counted this replica in sync, or eligible (KIP-966), when following began."""
    initial_offset: int = field(init=False)
    """Log end when following began: where a leader that can not tell an epoch's end makes it cut (E25)."""

    def __post_init__(self) -> None:
        self.initial_offset = self.log.log_end_offset

    def is_ready(self, now_ms: int) -> bool:
        """Whether it belongs into a fetch now."""
        if self.phase is Phase.WAITING and now_ms >= self.ready_at_ms:
            self.phase = Phase.FETCHING
        return self.phase is Phase.FETCHING

    def wait_until(self, ready_at_ms: int) -> None:
        """Back off after an error, whatever was going on."""
        self.phase = Phase.WAITING
        self.ready_at_ms = ready_at_ms
        self.failures += 1
        self.empties_for = None
        if self.comparison is not None:
            self.comparison = AgreementSearch(self.log)

    @property
    def may_be_held_back(self) -> bool:
        """Whether a throttle may make it wait: it fetches, and what is committed is not all here."""
        return self.phase is Phase.FETCHING and not 0 <= self.leader_high_watermark <= self.log.log_end_offset

    def resume(self) -> None:
        """The duty is done, the log stands where it stands: fetch from there."""
        self.phase = Phase.FETCHING
        self.failures = 0

    def on_divergence(
        self, leader_epoch: int, leader_end: int, leader_start: int = -1
    ) -> CutTo | AskStart | AskEpochEnd:
        """The leader's newest epoch not above our last one is `leader_epoch`, and it ends at `leader_end` (E25).

        Where our log does not have that epoch, the cut ends with our next lower one, and the next answer goes on from
        there: each round at least one epoch is gone.
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
            # The leader has what was deleted here: it was committed, as this replica is in sync or eligible, or the
            # leader's record right below our start is the one that we deleted. Begun anew at the leader's start, this
            # replica would lack what is committed there until it is fetched again, and could be elected meanwhile.
            self.phase = Phase.CUTTING
            return CutTo(self, log_start, Cause.DIVERGENCE)
        return self._cut(end, Cause.DIVERGENCE)

    def on_follow(self, clean_since: int) -> BeginAnew | None:
        """Before the first fetch. `clean_since`: no leader of a later epoch was elected uncleanly. Of a log that ends
        below `complete_from`: a leader that was elected uncleanly since may have records that this log lacks. It is
        compared first: see `first_question`. An empty one has nothing to compare, and stays as long as this replica may
        lead: begun anew, it would end below what is committed."""
        log = self.log
        if log.log_end_offset >= log.complete_from.offset or clean_since <= log.complete_from.leader_epoch:
            return None
        if log.log_end_offset > log.log_start_offset:
            self.comparison = AgreementSearch(log)
            return None
        if self.may_lead:
            return None
        self.phase = Phase.CUTTING
        return BeginAnew(self, 0, Cause.DIVERGENCE, is_whole=True)

    def first_question(self) -> AskEpochEnd | AskStart:
        """What the leader is to be asked before the next fetch, where there is a `comparison`."""
        assert self.comparison is not None, "there is one"
        return self._compare(self.comparison)

    def _compare(self, comparison: AgreementSearch) -> AskEpochEnd | AskStart:
        self.phase = Phase.LOOKING
        return AskStart(self) if comparison.is_done else AskEpochEnd(self, comparison.asks)

    def _on_compared(self, end: int, leader_start: int) -> CutTo | BeginAnew:
        """Up to `end` the leader has what this log has, as far as it knows: from `leader_start` on. The rest is lost,
        and has a receipt."""
        log = self.log
        self.phase = Phase.CUTTING
        if end <= log.log_start_offset:
            return BeginAnew(self, leader_start, Cause.DIVERGENCE)
        if end < log.log_end_offset:
            self.leader_start = leader_start
            return CutTo(self, end, Cause.DIVERGENCE)
        if leader_start >= end:
            return BeginAnew(self, leader_start, Cause.LEADER_STARTS_LATER)
        return BeginAnew(self, leader_start, Cause.DIVERGENCE, is_whole=True)

    def on_cut(self, duty: CutTo | BeginAnew) -> BeginAnew | None:
        """The log has been cut. Where all that is left lies below the leader's log start (`on_agreement`), or lacks
        what compaction left out (`complete_from`; it was compared), it goes before the next fetch: with that the
        leader would count this replica."""
        leader_start, self.leader_start = self.leader_start, -1
        log = self.log
        is_empty = log.log_end_offset == log.log_start_offset
        if leader_start >= log.log_end_offset and not is_empty:
            return BeginAnew(self, leader_start, Cause.LEADER_STARTS_LATER)
        if isinstance(duty, CutTo) and duty.offset < log.complete_from.offset:
            return BeginAnew(self, max(leader_start, 0), duty.cause, is_whole=True)
        return None

    def on_agreement(self, leader_start: int, *, had_records: bool = True) -> BeginAnew | None:
        """The leader's log starts at `leader_start` and continues where ours ends. None: what both have is the same.
        `had_records`: this log, when the leader was asked; retention may have emptied it since.

        A leader whose log starts there has forgotten our last epoch: it answers with that epoch and its own start,
        whatever our records are (E13 d). Those may be of a history that no later leader had.

        An empty log has no record that could be compared. Fetched from its own start on it would lack what lies below
        in the leader's log, which may be of another history than what was deleted here: it begins at the leader's
        start, unless this replica may lead, and so has been compared.
        """
        log = self.log
        is_empty = log.log_end_offset == log.log_start_offset
        if is_empty and not had_records and log.log_start_offset > leader_start and not self.may_lead:
            self.phase = Phase.CUTTING
            return BeginAnew(self, leader_start, Cause.DIVERGENCE)
        if leader_start < log.log_end_offset or is_empty:
            self.is_compared = True
            return None
        self.phase = Phase.CUTTING
        return BeginAnew(self, leader_start, Cause.LEADER_STARTS_LATER)

    def may_lead_no_more(self, leader_start: int) -> None:
        """The metadata does not count this replica in sync or eligible. An empty log above the leader's start, which
        was kept as long as it might lead, is judged again with the next answer."""
        log = self.log
        if self.may_lead and log.log_end_offset == log.log_start_offset > leader_start:
            self.may_lead = self.is_compared = False

    def _cut(self, end: int, cause: Cause) -> CutTo | AskStart | AskEpochEnd:
        """Where that leaves nothing, the log begins anew at the leader's start, and never at its own. Where what is
        left would go as well, since it lacks what compaction left out, all of it is compared first."""
        if leaves_nothing(self.log, end):
            self.phase = Phase.LOOKING
            self.empties_for = cause
            return AskStart(self)
        if end < self.log.complete_from.offset:
            self.comparison = AgreementSearch(self.log)
            return self._compare(self.comparison)
        self.phase = Phase.CUTTING
        return CutTo(self, end, cause)

    @property
    def epoch_starts(self) -> tuple[tuple[int, int], ...]:
        """What is known of epochs that begin between the log's end and the leader's next batch."""
        search = self.search
        return search.starts if search is not None and search.log_end_offset == self.log.log_end_offset else ()

    def on_unknown_epoch(self, epoch: int, first_offset: int) -> AskEpochEnd | None:
        """The leader's next batch, the first one of `epoch` that is left, lies behind a gap. None: fetch it again."""
        self.phase = Phase.LOOKING
        self.search = EpochSearch(epoch, first_offset, self.log)
        return self._next_question(self.search)

    def on_epoch_end(self, epoch: int, end: int) -> AskEpochEnd | AskStart | None:
        """E13. None: it is known where they begin, fetch again."""
        if self.comparison is not None:
            self.comparison.on_answer(epoch, end)
            return self._compare(self.comparison)
        assert self.search is not None, "it was asked for"
        self.search.on_answer(epoch, end)
        return self._next_question(self.search)

    def _next_question(self, search: EpochSearch) -> AskEpochEnd | None:
        return None if search.is_done else AskEpochEnd(self, search.asks)

    def on_out_of_range(self) -> AskEnd:
        self.phase = Phase.LOOKING
        return AskEnd(self)

    def on_leader_end(self, leader_end: int) -> CutTo | AskStart | AskEpochEnd:
        """E28."""
        if leader_end < self.log.log_end_offset:
            return self._cut(max(leader_end, 0), Cause.LEADER_IS_SHORTER)
        return AskStart(self)

    def on_leader_start(self, leader_start: int) -> CutTo | BeginAnew | AskStart | AskEpochEnd | None:
        """E28. None: the log lies within the leader's by now, fetch again."""
        log, empties_for = self.log, self.empties_for
        self.empties_for = None
        comparison, self.comparison = self.comparison, None
        if comparison is not None:
            return self._on_compared(comparison.end, leader_start)
        if empties_for is not None:
            self.phase = Phase.CUTTING
            return BeginAnew(self, leader_start, empties_for)
        if leader_start > log.log_end_offset:
            self.phase = Phase.CUTTING
            return BeginAnew(self, leader_start, Cause.LEADER_STARTS_LATER)
        if log.latest_epoch > NO_EPOCH and log.log_end_offset > log.log_start_offset:
            # In range and refused all the same: the leader's epochs all lie below our last one (E8, E13 c).
            end = max(log.latest_epoch_start, log.log_start_offset)
            if log.log_start_offset < end < log.complete_from.offset:
                return self._cut(end, Cause.UNKNOWN_EPOCH)
            self.phase = Phase.CUTTING
            return CutTo(self, end, Cause.UNKNOWN_EPOCH)
        self.phase = Phase.FETCHING
        return None


@dataclass(frozen=True, slots=True)
class Append:
    """Write these batches at the log's end; then, as `Learn`."""

    state: FollowerState
    records: memoryview
    high_watermark: int
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class Learn:
    """Take over the leader's high watermark and log start, within the own log (E29)."""

    state: FollowerState
    high_watermark: int
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class CutTo:
    """Cut the log back so that it ends at `offset`, also where it ends there already (E18)."""

    state: FollowerState
    offset: int
    cause: Cause


@dataclass(frozen=True, slots=True)
class BeginAnew:
    """Empty the log; it goes on at `offset`. `is_whole`: the leader has all that goes by that."""

    state: FollowerState
    offset: int
    cause: Cause
    is_whole: bool = False


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
Duty: TypeAlias = Append | Learn | CutTo | BeginAnew | Question
