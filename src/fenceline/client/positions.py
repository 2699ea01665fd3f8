"""Where a consumer stands in each of its partitions: the state machine of KIP-320's consumer. Pure.

Owns assignment, positions and their epochs, pauses, resets and validation. Two positions exist for each partition: up
to where records were handed to the caller (`position`, what commits and errors speak of) and up to where they were
fetched ahead. A divergence under what was only fetched is repaired by fetching again; one under what was handed out
is told.

| phase | may go to | why |
|---|---|---|
| INITIALIZING | FETCHING, AWAIT_RESET, AWAIT_VALIDATION | a committed offset, a seek, or none |
| FETCHING | FETCHING, AWAIT_RESET, AWAIT_VALIDATION | seek, offset out of range, another leader or epoch |
| AWAIT_VALIDATION | FETCHING, AWAIT_RESET, AWAIT_VALIDATION | validated, policy, seek |
| AWAIT_RESET | FETCHING, AWAIT_RESET, AWAIT_VALIDATION (by seek only) | ListOffsets answered, seek |

Rules: `epochs.md` E44-E56. Stronger than Kafka's consumer where `gaps.md` says so: a leader that answers a lower epoch
than the position's does not have what was read, whatever offset it names (G6); nothing is asked of a leader whose epoch
is below the position's, so that its ignorance proves nothing (G7); a position of a reset is held against the epoch that
its record can have at most (G9). And a truncation is told whatever `auto.offset.reset` says: that policy is for offsets
that retention removed, not for records that were read and then lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from enum import Enum
from typing import Final, NamedTuple
from uuid import UUID

from fenceline.client.epoch_history import EpochHistory, EpochStart, Parting, Question
from fenceline.client.errors import LogTruncationError, TopicReplacedError
from fenceline.client.metadata import UNKNOWN_LEADER, LeaderAndEpoch
from fenceline.client.offsets import EpochEnd, OffsetAndEpoch
from fenceline.errors import OperatorError
from fenceline.ids import NO_EPOCH, ZERO_UUID, TopicPartition

_SERIALS: Final = 1 << 32
"""More than one state ever has."""


class Phase(Enum):
    INITIALIZING = "initializing"
    FETCHING = "fetching"
    AWAIT_RESET = "await_reset"
    AWAIT_VALIDATION = "await_validation"


class Verdict(Enum):
    """What an answer about an epoch's end means for the position that it was asked for."""

    STANDS = "stands"
    DIVERGED = "diverged"
    ASK_AGAIN = "ask again"
    """For an earlier epoch, or of a leader that is up to date."""
    TOO_LATE = "too late"
    """The position moved on."""


class Position(NamedTuple):
    """The next offset, the epoch of the record before it (-1: unknown), and the leader it was last checked against.

    Not `is_exact`: the epoch is one that the record can have at most, as a look-up of an offset tells it (G9). Such an
    epoch is for validation only; it is neither committed nor sent with a Fetch.
    """

    offset: int
    epoch: int = NO_EPOCH
    leader: LeaderAndEpoch = UNKNOWN_LEADER
    is_exact: bool = True

    @property
    def record_epoch(self) -> int:
        """The epoch of the record before, -1 where only a bound of it is known."""
        return self.epoch if self.is_exact else NO_EPOCH


class PartitionState:
    """One assigned partition. `serial` changes whenever what was fetched ahead stops being of use."""

    __slots__ = (
        "epochs",
        "fetch_position",
        "high_watermark",
        "is_paused",
        "last_stable_offset",
        "log_start_offset",
        "out_of_range",
        "phase",
        "position",
        "question",
        "read_replica",
        "read_replica_until_s",
        "replaced",
        "reset_to",
        "retry_at_s",
        "serial",
        "topic_id",
        "truncation",
        "unanswered",
        "waits_for_epoch_since_s",
    )

    def __init__(self, serial: int) -> None:
        self.phase = Phase.INITIALIZING
        self.position: Position | None = None
        self.epochs = EpochHistory(0)
        self.fetch_position: Position | None = None
        self.question: Question | None = None
        """The next one of a search for where the logs part; None: the one that a validation begins with."""
        self.is_paused = False
        self.reset_to: str | int | None = None
        self.serial = serial
        self.truncation: LogTruncationError | None = None
        self.replaced: TopicReplacedError | None = None
        self.topic_id = ZERO_UUID
        """Of the topic that the position is in; zero where it is not known."""
        self.out_of_range = False
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.retry_at_s = 0.0
        self.unanswered = 0
        """Requests to the leader, in a row, that it did not answer."""
        self.waits_for_epoch_since_s: float | None = None
        self.read_replica = -1
        """The follower that the leader sent this reader to (KIP-392); -1 for the leader itself."""
        self.read_replica_until_s = 0.0

    @property
    def is_readable(self) -> bool:
        """Whether what was fetched may be handed out: not while the log below it is in doubt."""
        return self.phase is Phase.FETCHING and not self.is_paused and self.replaced is None

    @property
    def is_lost(self) -> bool:
        """Whether what the caller has is not what the log has: nothing is read before a seek."""
        return self.truncation is not None or self.replaced is not None


class Positions:
    """All assigned partitions."""

    def __init__(self) -> None:
        self._states: dict[TopicPartition, PartitionState] = {}
        self._assigned_count = 0
        """Of partitions, each time that one came."""

    def __contains__(self, tp: TopicPartition) -> bool:
        return tp in self._states

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._states)

    def items(self) -> list[tuple[TopicPartition, PartitionState]]:
        return list(self._states.items())

    def lost(self) -> list[tuple[TopicPartition, PartitionState]]:
        """Those of which the caller is to be told."""
        return [(tp, state) for tp, state in self._states.items() if state.is_lost]

    def get(self, tp: TopicPartition) -> PartitionState | None:
        return self._states.get(tp)

    def of(self, tp: TopicPartition) -> PartitionState:
        """The state of an assigned partition. Raises OperatorError for any other."""
        state = self._states.get(tp)
        if state is None:
            raise OperatorError(
                f"{tp} is not assigned to this consumer", "Assign it, or wait for the group's assignment."
            )
        return state

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Make this the whole assignment; partitions kept keep their state."""
        wanted = {TopicPartition(*tp) for tp in partitions}
        for tp in self._states.keys() - wanted:
            del self._states[tp]
        for tp in sorted(wanted - self._states.keys()):
            # What was fetched for a former assignment must not be taken for this one's.
            self._assigned_count += 1
            self._states[tp] = PartitionState(self._assigned_count * _SERIALS)

    def seek(self, tp: TopicPartition, offset: int, epoch: int = NO_EPOCH) -> None:
        """Go to an offset; with an epoch it is validated before the next fetch (E53)."""
        if offset < 0:
            raise OperatorError(
                f"{offset} is not an offset", "Offsets start at 0; see seek_to_beginning and seek_to_end."
            )
        state = self.of(tp)
        epoch = max(epoch, NO_EPOCH)  # E56
        self._place(state, Position(offset, epoch))
        # A position that was told to have an epoch is not read from before a leader has been held against it.
        state.phase = Phase.AWAIT_VALIDATION if epoch >= 0 else Phase.FETCHING

    def await_reset(self, tp: TopicPartition, to: str | int) -> None:
        """Drop the position and look one up: "earliest", "latest" or a timestamp."""
        state = self.of(tp)
        state.phase, state.reset_to = Phase.AWAIT_RESET, to
        state.position = state.fetch_position = None
        state.truncation, state.question, state.out_of_range = None, None, False
        state.replaced, state.topic_id = None, ZERO_UUID
        state.serial += 1

    def complete_reset(self, tp: TopicPartition, serial: int, found: OffsetAndEpoch) -> None:
        """The look-up's answer. Its epoch is one that the record before can have at most (E55, G9). Ignored when the
        state moved on meanwhile."""
        state = self._states.get(tp)
        if state is None or state.serial != serial or state.phase is not Phase.AWAIT_RESET:
            return
        self._place(state, Position(found.offset, found.leader_epoch, is_exact=found.leader_epoch < 0))
        state.phase = Phase.FETCHING

    def check_leader(self, tp: TopicPartition, leader: LeaderAndEpoch) -> bool:
        """Hold the position against metadata: another leader or epoch means validation before the next fetch (E46).
        Whether it is another one."""
        state = self._states.get(tp)
        if state is None or leader.leader < 0 or state.fetch_position is None:
            return False
        if state.phase not in (Phase.FETCHING, Phase.AWAIT_VALIDATION) or state.fetch_position.leader == leader:
            return False
        state.fetch_position = state.fetch_position._replace(leader=leader)
        # A search is fenced by one epoch of the leader from its first question to its last (E64).
        state.question = None
        # Whatever the leader before refused or left unanswered, this one was not asked yet.
        state.retry_at_s, state.unanswered = 0.0, 0
        state.read_replica = -1
        if state.fetch_position.epoch >= 0 and leader.epoch >= 0:
            state.phase = Phase.AWAIT_VALIDATION
        elif state.truncation is None:
            state.phase = Phase.FETCHING
        return True

    def check_topic(self, tp: TopicPartition, topic_id: UUID) -> bool:
        """Hold the position against the topic's id: offsets and epochs of a deleted topic mean nothing in a new one.
        Whether it was found just now that the topic is another one."""
        state = self._states.get(tp)
        if state is None or state.position is None or topic_id in (ZERO_UUID, state.topic_id):
            return False
        if state.topic_id == ZERO_UUID:
            state.topic_id = topic_id
        elif state.replaced is None:
            state.replaced = TopicReplacedError(tp.topic, state.topic_id, topic_id)
            state.serial += 1
            return True
        return False

    def question(self, tp: TopicPartition) -> Question | None:
        """What the leader is to be asked for a position that awaits validation. None where there is nothing to ask, or
        nobody who would know: a leader of an older epoch than the position's is one that metadata is behind of (G7).
        """
        state = self._states.get(tp)
        if state is None or state.phase is not Phase.AWAIT_VALIDATION or state.fetch_position is None:
            return None
        position = state.fetch_position
        if state.is_lost or position.leader.leader < 0 or position.epoch > position.leader.epoch:
            return None
        return state.question or Question(position.epoch, position.offset)

    def demand_validation(self, tp: TopicPartition) -> bool:
        """Something looks wrong: have the leader asked, if there is an epoch to do it with."""
        state = self._states.get(tp)
        if state is None or state.fetch_position is None or state.fetch_position.epoch < 0:
            return False
        if state.fetch_position.leader.epoch < 0:
            return False
        state.phase, state.question = Phase.AWAIT_VALIDATION, None
        return True

    def complete_validation(self, tp: TopicPartition, checked: Position, asked: Question, end: EpochEnd) -> Verdict:
        """Take in OffsetForLeaderEpoch's answer to a question about `checked` (E47-E49).

        A divergence below what was handed out is kept in `truncation`, for the next poll to raise; one above it makes
        the consumer fetch from the handed-out position again, validating that.
        """
        state = self._states.get(tp)
        if state is None or state.phase is not Phase.AWAIT_VALIDATION or state.fetch_position != checked:
            return Verdict.TOO_LATE
        if asked != (state.question or Question(checked.epoch, checked.offset)):
            return Verdict.TOO_LATE
        return self._take_end(tp, state, asked, end)

    def skip_validation(self, tp: TopicPartition, checked: Position) -> None:
        """The leader is too old to be asked (E46)."""
        state = self._states.get(tp)
        if state is not None and state.phase is Phase.AWAIT_VALIDATION and state.fetch_position == checked:
            state.phase = Phase.FETCHING

    def diverged(self, tp: TopicPartition, end: EpochEnd) -> Verdict:
        """A Fetch was answered with DivergingEpoch (E10): what OffsetForLeaderEpoch would answer for the position."""
        state = self.of(tp)
        ahead = state.fetch_position
        assert ahead is not None, "only a position can diverge"
        state.phase = Phase.AWAIT_VALIDATION
        return self._take_end(tp, state, Question(ahead.epoch, ahead.offset), end)

    def rewritten(self, tp: TopicPartition) -> None:
        """Records of an older epoch follow those that were read, and nobody can be asked since when (old brokers)."""
        state = self.of(tp)
        if self._goes_back(state):
            return
        state.phase = Phase.AWAIT_VALIDATION
        self._part(tp, state, Parting(-1, NO_EPOCH, is_exact=False))

    def rewind(self, tp: TopicPartition) -> None:
        """Forget what was fetched ahead (a pause): go on from what was handed out."""
        state = self.of(tp)
        if state.position is not None and state.fetch_position is not None:
            state.fetch_position = state.position._replace(leader=state.fetch_position.leader)
            if state.phase is Phase.AWAIT_VALIDATION and state.position.epoch < 0 and not state.is_lost:
                # It was what came behind that could be asked about.
                state.phase = Phase.FETCHING
        state.question = None
        state.serial += 1

    def consumed(self, tp: TopicPartition, offset: int, epoch: int, starts: Iterable[EpochStart] = ()) -> None:
        """Records up to `offset` (exclusive), the last one written in `epoch`, were handed to the caller. `starts`:
        where epochs begin in these, or behind them."""
        state = self._states.get(tp)
        if state is not None:
            for start in starts:
                if start.offset < offset:
                    state.epochs.note(start)
            state.position = Position(offset, epoch, UNKNOWN_LEADER)

    # -- inside

    @staticmethod
    def _place(state: PartitionState, position: Position) -> None:
        state.position = state.fetch_position = position
        state.epochs = EpochHistory(position.offset, position.record_epoch)
        state.truncation, state.question, state.reset_to, state.out_of_range = None, None, None, False
        state.replaced, state.topic_id = None, ZERO_UUID
        state.waits_for_epoch_since_s, state.retry_at_s = None, 0.0
        state.read_replica = -1
        state.serial += 1

    def _take_end(self, tp: TopicPartition, state: PartitionState, asked: Question, end: EpochEnd) -> Verdict:
        ahead = state.fetch_position
        assert ahead is not None, "who is validated has a position"
        is_first = asked.epoch == ahead.epoch
        if is_first and end.leader_epoch == asked.epoch and end.end_offset >= ahead.offset:
            state.phase, state.question = Phase.FETCHING, None
            return Verdict.STANDS
        if self._goes_back(state):
            return Verdict.ASK_AGAIN
        found = state.epochs.compare(asked, end)
        if isinstance(found, Question):
            state.question = found
            return Verdict.ASK_AGAIN
        if found.offset >= ahead.offset or (found.offset < 0 and not ahead.is_exact):
            state.phase, state.question = Phase.FETCHING, None
            return Verdict.STANDS
        self._part(tp, state, found)
        return Verdict.DIVERGED

    @staticmethod
    def _goes_back(state: PartitionState) -> bool:
        """Whether only what was fetched ahead is concerned so far: then it is fetched again, and first what was handed
        out is validated."""
        position, ahead = state.position, state.fetch_position
        assert position is not None, "only a position can diverge"
        assert ahead is not None, "who has a position fetches from one"
        if (position.offset, position.epoch) == (ahead.offset, ahead.epoch):
            return False
        state.serial += 1
        state.fetch_position = position._replace(leader=ahead.leader)
        can_be_asked = position.epoch >= 0 and ahead.leader.epoch >= 0
        state.phase = Phase.AWAIT_VALIDATION if can_be_asked else Phase.FETCHING
        state.question = None
        return True

    def _part(self, tp: TopicPartition, state: PartitionState, found: Parting) -> None:
        position = state.position
        assert position is not None, "only a position can diverge"
        if not position.is_exact and found.offset >= 0:
            # Nothing was handed out since the look-up: what it found was cut off, and reading begins where that was.
            self._place(state, Position(found.offset, found.epoch))
            state.phase = Phase.FETCHING
            return
        state.serial += 1
        state.question = None
        state.truncation = LogTruncationError(
            tp.topic,
            tp.partition,
            position.offset,
            position.epoch,
            divergent_offset=found.offset,
            divergent_epoch=found.epoch,
            epochs=state.epochs.read_from(found.offset),
        )
