"""Which leader epoch a position belongs to, and whether the log still holds what was read there.

Owns the two questions that make a checkpoint notice truncation. A position is tagged with the epoch of the record
before it (as a fetching replica tags its own log end), never with the leader's current epoch: only the exact epoch
tells every divergence, because then "the log has no such epoch" and "that epoch ends earlier" are both proof
(`epochs.md E10`).

Never decides what happens after a loss. Rules: `epochs.md` E5, E8-E13, E21; KIP-320.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fenceline.ids import TopicPartition
from pyspark_fenceline.cluster import Cluster, EpochEnd, LogEnd
from pyspark_fenceline.offsets import UNKNOWN_EPOCH, Position


@dataclass(frozen=True, slots=True)
class Holds:
    """The log holds what was read before the position, or nothing is known against it."""


@dataclass(frozen=True, slots=True)
class Diverged:
    """The log was truncated below the position.

    `offset`: where the histories part, None when only "below the position" is known. `log_epoch`: the log's epoch
    before that place (-1: it knows none). `resume_offset`: the best place to go on from, `offset` where that is
    known, else the start of the log's epoch at the position (-1: unknown).
    """

    offset: int | None
    log_epoch: int
    resume_offset: int


Verdict = Holds | Diverged


@dataclass(slots=True)
class _Boundaries:
    """Where a partition's epochs start, newest first, found by asking for ever older ones under one leader epoch."""

    leader_epoch: int
    starts: list[tuple[int, int]]
    oldest_candidate: int = -1
    is_exhausted: bool = False

    def __post_init__(self) -> None:
        self.oldest_candidate = self.leader_epoch

    def epoch_before(self, offset: int) -> int | None:
        """Epoch of record `offset - 1`: -1 when the log can not tell, None when an older epoch must be asked for."""
        for start, epoch in self.starts:
            if start < offset:
                return epoch
        if self.oldest_candidate == 0:
            # 0 is the first epoch there is (E5).
            return 0
        return UNKNOWN_EPOCH if self.is_exhausted else None

    def learn(self, answer: EpochEnd) -> None:
        """Take the answer about `oldest_candidate - 1`: it ends where the candidate starts."""
        if answer.leader_epoch < 0 or answer.end_offset < 0:
            self.is_exhausted = True
            return
        if self.starts and answer.end_offset >= self.starts[-1][0]:
            # Below its first epoch a leader echoes the question with that epoch's start (E13 d): nothing older is left.
            self.is_exhausted = True
            return
        self.starts.append((answer.end_offset, self.oldest_candidate))
        self.oldest_candidate = answer.leader_epoch


class History:
    """Epoch boundaries of partitions, kept while their leader's epoch stays (a leader only appends)."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[TopicPartition, _Boundaries] = {}
        self._held: dict[TopicPartition, tuple[Position, int]] = {}

    def tag(
        self,
        offsets: Mapping[TopicPartition, int],
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, LogEnd],
    ) -> dict[TopicPartition, Position]:
        """Positions at `offsets` with the epoch of the record before each.

        -1 where that record is not in the log (nothing was read, or it expired) and where the broker keeps no epochs.
        `starts` and `ends`: the logs' bounds now.
        """
        tagged: dict[TopicPartition, Position] = {}
        pending: list[TopicPartition] = []
        for tp, offset in offsets.items():
            current = ends[tp].leader_epoch
            if offset <= starts[tp] or current < 0:
                tagged[tp] = Position(offset)
                continue
            known = self._known.get(tp)
            if known is None or known.leader_epoch != current:
                self._known[tp] = _Boundaries(current, [])
            pending.append(tp)
        while pending:
            questions: dict[TopicPartition, tuple[int, int]] = {}
            for tp in pending:
                known = self._known[tp]
                epoch = known.epoch_before(offsets[tp])
                if epoch is None:
                    questions[tp] = (known.oldest_candidate - 1, known.leader_epoch)
                else:
                    tagged[tp] = Position(offsets[tp], epoch)
            for tp, answer in self._cluster.epoch_ends(questions).items() if questions else ():
                self._known[tp].learn(answer)
            pending = list(questions)
        return tagged

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """These belong to another topic now, whose epochs begin anew."""
        for tp in partitions:
            self._known.pop(tp, None)
            self._held.pop(tp, None)

    def check(
        self, positions: Mapping[TopicPartition, Position], ends: Mapping[TopicPartition, LogEnd]
    ) -> dict[TopicPartition, Verdict]:
        """Compare positions with the leaders' logs. Untagged positions can not be compared and count as held.

        A position that was held under a leader's epoch stays held under it and is not asked for again (E46).
        """
        verdicts: dict[TopicPartition, Verdict] = dict.fromkeys(positions, Holds())
        questions = {
            tp: (position.leader_epoch, ends[tp].leader_epoch)
            for tp, position in positions.items()
            if position.leader_epoch >= 0
            and ends[tp].leader_epoch >= 0
            and self._held.get(tp) != (position, ends[tp].leader_epoch)
        }
        if not questions:
            return verdicts
        foreign: dict[TopicPartition, tuple[int, int]] = {}
        for tp, answer in self._cluster.epoch_ends(questions).items():
            position = positions[tp]
            if answer.leader_epoch < 0 or answer.end_offset < 0:
                verdicts[tp] = Diverged(None, UNKNOWN_EPOCH, -1)
            elif answer.end_offset < position.offset:
                verdicts[tp] = Diverged(answer.end_offset, answer.leader_epoch, answer.end_offset)
            elif answer.leader_epoch < position.leader_epoch:
                verdicts[tp] = Diverged(None, answer.leader_epoch, 0)
                if answer.leader_epoch > 0:
                    foreign[tp] = (answer.leader_epoch - 1, ends[tp].leader_epoch)
        for tp in questions:
            if isinstance(verdicts[tp], Holds):
                self._held[tp] = (positions[tp], ends[tp].leader_epoch)
        for tp, answer in self._cluster.epoch_ends(foreign).items() if foreign else ():
            verdicts[tp] = Diverged(None, foreign[tp][0] + 1, answer.end_offset)
        return verdicts
