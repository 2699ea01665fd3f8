"""The leader epoch of a position, and whether the log still holds the records that were read before it.

Owns the two steps by which a checkpoint detects truncation. A position is tagged with the epoch of the record before it
(as a fetching replica tags its own log end), never with the leader's current epoch: only the exact epoch detects every
divergence, because then "the log has no such epoch" and "that epoch ends earlier" are both proof (`epochs.md E10`). It
is also tagged with earlier epochs: with them the point of divergence is found exactly, over as many elections as it has
epochs (`gaps.md G6`).

Never decides what happens after a loss. Rules: `epochs.md` E5, E8-E13, E21; KIP-101, KIP-279, KIP-320.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from fenceline.client.core.epoch_history import Divergence, EpochHistory, EpochQuery
from fenceline.ids import TopicPartition
from pyspark_fenceline.common.cluster import ReadableEnd, SourceCluster
from pyspark_fenceline.common.epoch_walk import EpochWalk
from pyspark_fenceline.common.offsets import EPOCHS_KEPT, UNKNOWN_EPOCH, PartitionPosition


@dataclass(frozen=True, slots=True)
class Holds:
    """The log holds what was read before the position, or nothing proves otherwise."""


@dataclass(frozen=True, slots=True)
class Diverged:
    """The log was truncated below the position.

    `offset`: the exact point of divergence; None if only "below the position" is known. `log_epoch`: the log's epoch
    before that offset (-1: unknown). `resume_offset`: where to continue so that no record of the log is skipped:
    `offset`, or else 0.
    """

    offset: int | None
    log_epoch: int
    resume_offset: int = 0


Verdict = Holds | Diverged


class _Held(NamedTuple):
    """The last two positions of a partition that were held under a leader: both ends of a batch."""

    leader_epoch: int
    newest: PartitionPosition
    before_that: PartitionPosition | None


def _position_at(offset: int, walk: EpochWalk, log_start: int) -> PartitionPosition | None:
    """The position at an offset above the log's start: without an epoch if the log does not have it, None while an
    older epoch must be requested."""
    below = tuple(start for start in walk.starts(log_start) if start.offset < offset)
    if len(below) < EPOCHS_KEPT and walk.next_epoch(log_start) is not None:
        return None
    return PartitionPosition(offset, below[-1].epoch if below else UNKNOWN_EPOCH, below[-EPOCHS_KEPT:])


class EpochHistories:
    """Epoch boundaries of partitions, cached while their leader's epoch is current (a leader only appends)."""

    def __init__(self, cluster: SourceCluster) -> None:
        self._cluster = cluster
        self._known: dict[TopicPartition, EpochWalk] = {}
        self._held: dict[TopicPartition, _Held] = {}

    def tag(
        self,
        offsets: Mapping[TopicPartition, int],
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, ReadableEnd],
    ) -> dict[TopicPartition, PartitionPosition]:
        """Positions at `offsets` with the epoch of the record before each, and the epochs before that.

        -1 if that record is not in the log (nothing was read, or it expired) or the broker keeps no epochs. `starts`
        and `ends`: the logs' current bounds.
        """
        tagged: dict[TopicPartition, PartitionPosition] = {}
        pending: list[TopicPartition] = []
        for tp, offset in offsets.items():
            current = ends[tp].leader_epoch
            if offset <= starts[tp] or current < 0:
                tagged[tp] = PartitionPosition(offset)
                continue
            known = self._known.get(tp)
            if known is None or known.leader_epoch != current:
                self._known[tp] = EpochWalk(current)
            pending.append(tp)
        while pending:
            questions: dict[TopicPartition, tuple[int, int]] = {}
            for tp in pending:
                walk = self._known[tp]
                position = _position_at(offsets[tp], walk, starts[tp])
                if position is not None:
                    tagged[tp] = position
                    if position.leader_epoch >= 0:
                        # By this leader's own answers, so `check` would only ask for the same again.
                        self._hold(tp, position, walk.leader_epoch)
                elif (older := walk.next_epoch(starts[tp])) is not None:
                    questions[tp] = (older, walk.leader_epoch)
            for tp, answer in self._cluster.epoch_ends(questions).items() if questions else ():
                self._known[tp].add_answer(answer)
            pending = list(questions)
        return tagged

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """For partitions of a recreated topic, whose epochs restart."""
        for tp in partitions:
            self._known.pop(tp, None)
            self._held.pop(tp, None)

    def check(
        self, positions: Mapping[TopicPartition, PartitionPosition], ends: Mapping[TopicPartition, ReadableEnd]
    ) -> dict[TopicPartition, Verdict]:
        """Compare positions with the leaders' logs. Untagged positions cannot be compared and count as held.

        A position that was held under a leader's epoch stays held under it and is not checked again (E46).
        """
        verdicts: dict[TopicPartition, Verdict] = dict.fromkeys(positions, Holds())
        questions: dict[TopicPartition, EpochQuery] = {}
        for tp, position in positions.items():
            if position.leader_epoch >= 0:
                current = ends[tp].leader_epoch
                if current >= 0 and not self._is_held(tp, position, current):
                    questions[tp] = EpochQuery(position.leader_epoch, position.offset)
        read = {tp: EpochHistory.remembered(positions[tp].offset, positions[tp].read_epochs) for tp in questions}
        while questions:
            answers = self._cluster.epoch_ends(
                {tp: (question.epoch, ends[tp].leader_epoch) for tp, question in questions.items()}
            )
            next_questions: dict[TopicPartition, EpochQuery] = {}
            for tp, question in questions.items():
                position = positions[tp]
                match read[tp].compare(question, answers[tp]):
                    case EpochQuery() as older:
                        next_questions[tp] = older
                    case Divergence(is_exact=False):
                        verdicts[tp] = Diverged(None, answers[tp].leader_epoch)
                    case Divergence(offset, log_epoch) if offset < position.offset:
                        verdicts[tp] = Diverged(offset, log_epoch, offset)
                    case Divergence():
                        self._hold(tp, position, ends[tp].leader_epoch)
            questions = next_questions
        return verdicts

    def _hold(self, tp: TopicPartition, position: PartitionPosition, leader_epoch: int) -> None:
        known = self._held.get(tp)
        before = known.newest if known is not None and known.leader_epoch == leader_epoch else None
        if position != before:
            self._held[tp] = _Held(leader_epoch, position, before)

    def _is_held(self, tp: TopicPartition, position: PartitionPosition, leader_epoch: int) -> bool:
        known = self._held.get(tp)
        return (
            known is not None and known.leader_epoch == leader_epoch and position in (known.newest, known.before_that)
        )
