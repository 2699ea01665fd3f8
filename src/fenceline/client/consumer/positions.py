"""The state of each assigned partition: the state machine of KIP-320's consumer. Pure.

Owns assignment, positions and their epochs, pauses, resets and validation. Each partition has two positions: the end of
the records returned to the caller (`position`, for commits and errors) and the end of the prefetched records
(`fetch_position`). A divergence among prefetched records is repaired by fetching again; a divergence among returned
records is reported.

| phase | next phase | cause |
|---|---|---|
| INITIALIZING | FETCHING, AWAIT_RESET, AWAIT_VALIDATION | a committed offset, a seek, or neither |
| FETCHING | FETCHING, AWAIT_RESET, AWAIT_VALIDATION | seek, offset out of range, another leader or epoch |
| AWAIT_VALIDATION | FETCHING, AWAIT_RESET, AWAIT_VALIDATION | validated, policy, seek |
| AWAIT_RESET | FETCHING, AWAIT_RESET, AWAIT_VALIDATION (by seek only) | ListOffsets response, seek |

Rules: `epochs.md` E44-E56. Stricter than Kafka's consumer (`gaps.md`): a leader that answers with a lower epoch than
the position's does not have the records read, whatever offset it returns (G6); a leader whose epoch is below the
position's is not asked, because its answer proves nothing (G7); a position from a reset is validated with the highest
epoch that its record can have (G9). A truncation is reported whatever `auto.offset.reset` is: that policy is for
offsets that retention removed, not for records that were read and then lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from enum import Enum
from typing import Final, NamedTuple
from uuid import UUID

from fenceline.client.core.epoch_history import Divergence, EpochHistory, EpochQuery, EpochStart
from fenceline.client.core.errors import LogTruncationError, TopicReplacedError
from fenceline.client.core.metadata import UNKNOWN_LEADER, LeaderAndEpoch
from fenceline.client.core.offsets import EpochEnd, OffsetAndEpoch
from fenceline.errors import OperatorError
from fenceline.ids import NO_EPOCH, ZERO_UUID, TopicPartition

_SERIALS_PER_ASSIGNMENT: Final = 1 << 32
"""More serials than one state ever uses."""


class PositionPhase(Enum):
    INITIALIZING = "initializing"
    FETCHING = "fetching"
    AWAIT_RESET = "await_reset"
    AWAIT_VALIDATION = "await_validation"


class ValidationResult(Enum):
    """The result of validating a position with an OffsetForLeaderEpoch response."""

    VALID = "valid"
    DIVERGED = "diverged"
    ASK_AGAIN = "ask again"
    """About an earlier epoch, or about the returned position."""
    STALE = "stale"
    """The position has changed since the request."""


class Position(NamedTuple):
    """The next offset, the epoch of the record before it (-1: unknown), and the leader it was last checked against.

    Not `is_exact`: the epoch is an upper bound for that record, from ListOffsets (G9). It is used for validation only,
    and neither committed nor sent with a Fetch.
    """

    offset: int
    epoch: int = NO_EPOCH
    leader: LeaderAndEpoch = UNKNOWN_LEADER
    is_exact: bool = True

    @property
    def record_epoch(self) -> int:
        """The epoch of the record before `offset`, -1 if only an upper bound is known."""
        return self.epoch if self.is_exact else NO_EPOCH


class PositionState:
    """One assigned partition. `serial` changes whenever prefetched records become invalid."""

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
        "query",
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
        self.phase = PositionPhase.INITIALIZING
        self.position: Position | None = None
        self.epochs = EpochHistory(0)
        self.fetch_position: Position | None = None
        self.query: EpochQuery | None = None
        """The next query of a search for the divergence; None: the first query of a validation."""
        self.is_paused = False
        self.reset_to: str | int | None = None
        self.serial = serial
        self.truncation: LogTruncationError | None = None
        self.replaced: TopicReplacedError | None = None
        self.topic_id = ZERO_UUID
        """The id of the topic that the position belongs to; zero if unknown."""
        self.out_of_range = False
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.retry_at_s = 0.0
        self.unanswered = 0
        """Consecutive requests to the leader without a response."""
        self.waits_for_epoch_since_s: float | None = None
        self.read_replica = -1
        """The preferred read replica that the leader named (KIP-392); -1 for the leader."""
        self.read_replica_until_s = 0.0

    @property
    def is_readable(self) -> bool:
        """Whether prefetched records may be returned: not before the position is validated."""
        return self.phase is PositionPhase.FETCHING and not self.is_paused and self.replaced is None

    @property
    def is_lost(self) -> bool:
        """Whether the log was truncated below the position, or the topic recreated: nothing is read until a seek."""
        return self.truncation is not None or self.replaced is not None


class Positions:
    """All assigned partitions."""

    def __init__(self) -> None:
        self._states: dict[TopicPartition, PositionState] = {}
        self._assigned_count = 0
        """How many partitions were assigned so far; makes the serials of each assignment unique."""

    def __contains__(self, tp: TopicPartition) -> bool:
        return tp in self._states

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._states)

    def items(self) -> list[tuple[TopicPartition, PositionState]]:
        return list(self._states.items())

    def lost(self) -> list[tuple[TopicPartition, PositionState]]:
        """Partitions with a truncation or a recreated topic that poll must report."""
        return [(tp, state) for tp, state in self._states.items() if state.is_lost]

    def get(self, tp: TopicPartition) -> PositionState | None:
        return self._states.get(tp)

    def of(self, tp: TopicPartition) -> PositionState:
        """The state of an assigned partition. Raises OperatorError for any other."""
        state = self._states.get(tp)
        if state is None:
            raise OperatorError(
                f"{tp} is not assigned to this consumer", "Assign it, or wait for the group's assignment."
            )
        return state

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Replace the assignment; partitions that stay assigned keep their state."""
        wanted = {TopicPartition(*tp) for tp in partitions}
        for tp in self._states.keys() - wanted:
            del self._states[tp]
        for tp in sorted(wanted - self._states.keys()):
            # Records fetched for a former assignment must not be valid for this one.
            self._assigned_count += 1
            self._states[tp] = PositionState(self._assigned_count * _SERIALS_PER_ASSIGNMENT)

    def seek(self, tp: TopicPartition, offset: int, epoch: int = NO_EPOCH) -> None:
        """Set the position; with an epoch it is validated before the next fetch (E53)."""
        if offset < 0:
            raise OperatorError(
                f"{offset} is not an offset", "Offsets start at 0. See seek_to_beginning and seek_to_end."
            )
        state = self.of(tp)
        epoch = max(epoch, NO_EPOCH)  # E56
        self._set_position(state, Position(offset, epoch))
        # A position with an epoch is not fetched from before a leader has validated it.
        state.phase = PositionPhase.AWAIT_VALIDATION if epoch >= 0 else PositionPhase.FETCHING

    def await_reset(self, tp: TopicPartition, to: str | int) -> None:
        """Drop the position and look up a new one: "earliest", "latest" or a timestamp."""
        state = self.of(tp)
        state.phase, state.reset_to = PositionPhase.AWAIT_RESET, to
        state.position = state.fetch_position = None
        state.truncation, state.query, state.out_of_range = None, None, False
        state.replaced, state.topic_id = None, ZERO_UUID
        state.serial += 1

    def complete_reset(self, tp: TopicPartition, serial: int, found: OffsetAndEpoch) -> None:
        """Set the position that the reset found. Its epoch is an upper bound for the record before it (E55, G9).
        Ignored if the state has changed meanwhile."""
        state = self._states.get(tp)
        if state is None or state.serial != serial or state.phase is not PositionPhase.AWAIT_RESET:
            return
        self._set_position(state, Position(found.offset, found.leader_epoch, is_exact=found.leader_epoch < 0))
        state.phase = PositionPhase.FETCHING

    def check_leader(self, tp: TopicPartition, leader: LeaderAndEpoch) -> bool:
        """Check the position against metadata: after a change of leader or epoch it is validated before the next fetch
        (E46). True if leader or epoch have changed."""
        state = self._states.get(tp)
        if state is None or leader.leader < 0 or state.fetch_position is None:
            return False
        if (
            state.phase not in (PositionPhase.FETCHING, PositionPhase.AWAIT_VALIDATION)
            or state.fetch_position.leader == leader
        ):
            return False
        state.fetch_position = state.fetch_position._replace(leader=leader)
        # All queries of a search carry the same current leader epoch (E64).
        state.query = None
        # Errors and timeouts of the previous leader do not delay requests to this one.
        state.retry_at_s, state.unanswered = 0.0, 0
        state.read_replica = -1
        if state.fetch_position.epoch >= 0 and leader.epoch >= 0:
            state.phase = PositionPhase.AWAIT_VALIDATION
        elif state.truncation is None:
            state.phase = PositionPhase.FETCHING
        return True

    def check_topic(self, tp: TopicPartition, topic_id: UUID) -> bool:
        """Check the position against the topic's id: offsets and epochs of a deleted topic are invalid in a new one.
        True if this call found that the topic was recreated."""
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

    def validation_query(self, tp: TopicPartition) -> EpochQuery | None:
        """The query to the leader for a position that awaits validation. None if there is none, or if the known leader
        has an older epoch than the position: then metadata is stale (G7).
        """
        state = self._states.get(tp)
        if state is None or state.phase is not PositionPhase.AWAIT_VALIDATION or state.fetch_position is None:
            return None
        position = state.fetch_position
        if state.is_lost or position.leader.leader < 0 or position.epoch > position.leader.epoch:
            return None
        return state.query or EpochQuery(position.epoch, position.offset)

    def request_validation(self, tp: TopicPartition) -> bool:
        """Request a validation of the position; False if it or its leader has no known epoch."""
        state = self._states.get(tp)
        if state is None or state.fetch_position is None or state.fetch_position.epoch < 0:
            return False
        if state.fetch_position.leader.epoch < 0:
            return False
        state.phase, state.query = PositionPhase.AWAIT_VALIDATION, None
        return True

    def complete_validation(
        self, tp: TopicPartition, checked: Position, asked: EpochQuery, end: EpochEnd
    ) -> ValidationResult:
        """Apply the OffsetForLeaderEpoch response to a query about `checked` (E47-E49).

        A divergence below `position` is kept in `truncation`, for the next poll to raise. For one above it, the
        prefetched records are dropped and `position` is validated next.
        """
        state = self._states.get(tp)
        if state is None or state.phase is not PositionPhase.AWAIT_VALIDATION or state.fetch_position != checked:
            return ValidationResult.STALE
        if asked != (state.query or EpochQuery(checked.epoch, checked.offset)):
            return ValidationResult.STALE
        return self._apply_epoch_end(tp, state, asked, end)

    def skip_validation(self, tp: TopicPartition, checked: Position) -> None:
        """The leader does not support validation (E46)."""
        state = self._states.get(tp)
        if state is not None and state.phase is PositionPhase.AWAIT_VALIDATION and state.fetch_position == checked:
            state.phase = PositionPhase.FETCHING

    def diverged(self, tp: TopicPartition, end: EpochEnd) -> ValidationResult:
        """Apply the DivergingEpoch of a Fetch response (E10), as an OffsetForLeaderEpoch response."""
        state = self.of(tp)
        ahead = state.fetch_position
        assert ahead is not None, "only a position can diverge"
        state.phase = PositionPhase.AWAIT_VALIDATION
        return self._apply_epoch_end(tp, state, EpochQuery(ahead.epoch, ahead.offset), end)

    def rewritten(self, tp: TopicPartition) -> None:
        """Records of an older epoch follow the ones read, and no (old) broker can be asked where the log diverged."""
        state = self.of(tp)
        if self._refetch_from_position(state):
            return
        state.phase = PositionPhase.AWAIT_VALIDATION
        self._set_truncation(tp, state, Divergence(-1, NO_EPOCH, is_exact=False))

    def rewind(self, tp: TopicPartition) -> None:
        """Drop prefetched records (after a pause, for example): fetch from `position` again."""
        state = self.of(tp)
        if state.position is not None and state.fetch_position is not None:
            state.fetch_position = state.position._replace(leader=state.fetch_position.leader)
            if state.phase is PositionPhase.AWAIT_VALIDATION and state.position.epoch < 0 and not state.is_lost:
                # Only the prefetched position had an epoch to validate.
                state.phase = PositionPhase.FETCHING
        state.query = None
        state.serial += 1

    def consumed(self, tp: TopicPartition, offset: int, epoch: int, starts: Iterable[EpochStart] = ()) -> None:
        """Records up to `offset` (exclusive), the last one of `epoch`, were returned to the caller. `starts`: where
        epochs start in or behind them."""
        state = self._states.get(tp)
        if state is not None:
            for start in starts:
                if start.offset < offset:
                    state.epochs.note(start)
            state.position = Position(offset, epoch, UNKNOWN_LEADER)

    # -- inside

    @staticmethod
    def _set_position(state: PositionState, position: Position) -> None:
        state.position = state.fetch_position = position
        state.epochs = EpochHistory(position.offset, position.record_epoch)
        state.truncation, state.query, state.reset_to, state.out_of_range = None, None, None, False
        state.replaced, state.topic_id = None, ZERO_UUID
        state.waits_for_epoch_since_s, state.retry_at_s = None, 0.0
        state.read_replica = -1
        state.serial += 1

    def _apply_epoch_end(
        self, tp: TopicPartition, state: PositionState, asked: EpochQuery, end: EpochEnd
    ) -> ValidationResult:
        ahead = state.fetch_position
        assert ahead is not None, "only a position is validated"
        is_first = asked.epoch == ahead.epoch
        if is_first and end.leader_epoch == asked.epoch and end.end_offset >= ahead.offset:
            state.phase, state.query = PositionPhase.FETCHING, None
            return ValidationResult.VALID
        if self._refetch_from_position(state):
            return ValidationResult.ASK_AGAIN
        found = state.epochs.compare(asked, end)
        if isinstance(found, EpochQuery):
            state.query = found
            return ValidationResult.ASK_AGAIN
        if found.offset >= ahead.offset or (found.offset < 0 and not ahead.is_exact):
            state.phase, state.query = PositionPhase.FETCHING, None
            return ValidationResult.VALID
        self._set_truncation(tp, state, found)
        return ValidationResult.DIVERGED

    @staticmethod
    def _refetch_from_position(state: PositionState) -> bool:
        """If there are prefetched records, drop them and validate `position` next; False if there are none."""
        position, ahead = state.position, state.fetch_position
        assert position is not None, "only a position can diverge"
        assert ahead is not None, "a partition with a position has a fetch position"
        if (position.offset, position.epoch) == (ahead.offset, ahead.epoch):
            return False
        state.serial += 1
        state.fetch_position = position._replace(leader=ahead.leader)
        can_be_asked = position.epoch >= 0 and ahead.leader.epoch >= 0
        state.phase = PositionPhase.AWAIT_VALIDATION if can_be_asked else PositionPhase.FETCHING
        state.query = None
        return True

    def _set_truncation(self, tp: TopicPartition, state: PositionState, found: Divergence) -> None:
        position = state.position
        assert position is not None, "only a position can diverge"
        if not position.is_exact and found.offset >= 0:
            # No record was returned since the reset, and the log was truncated below it: start at the divergence.
            self._set_position(state, Position(found.offset, found.epoch))
            state.phase = PositionPhase.FETCHING
            return
        state.serial += 1
        state.query = None
        state.truncation = LogTruncationError(
            tp.topic,
            tp.partition,
            position.offset,
            position.epoch,
            divergent_offset=found.offset,
            divergent_epoch=found.epoch,
            epochs=state.epochs.read_from(found.offset),
        )
