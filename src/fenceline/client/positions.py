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

Rules: `epochs.md` E44-E56. Unlike Kafka's consumer a truncation is raised whatever `auto.offset.reset` says: that
policy is for offsets that retention removed, not for records that were read and then lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from enum import Enum
from typing import Final, NamedTuple

from fenceline.client.epoch_history import EpochHistory, EpochStart
from fenceline.client.errors import LogTruncationError
from fenceline.client.metadata import UNKNOWN_LEADER, LeaderAndEpoch
from fenceline.client.offsets import EpochEnd
from fenceline.errors import OperatorError
from fenceline.ids import NO_EPOCH, TopicPartition

_SERIALS: Final = 1 << 32
"""More than one state ever has."""


class Phase(Enum):
    INITIALIZING = "initializing"
    FETCHING = "fetching"
    AWAIT_RESET = "await_reset"
    AWAIT_VALIDATION = "await_validation"


class Position(NamedTuple):
    """The next offset, the epoch of the record before it (-1: unknown), and the leader it was last checked against."""

    offset: int
    epoch: int = NO_EPOCH
    leader: LeaderAndEpoch = UNKNOWN_LEADER


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
        "reset_to",
        "retry_at_s",
        "serial",
        "truncation",
    )

    def __init__(self, serial: int) -> None:
        self.phase = Phase.INITIALIZING
        self.position: Position | None = None
        self.epochs = EpochHistory()
        self.fetch_position: Position | None = None
        self.is_paused = False
        self.reset_to: str | int | None = None
        self.serial = serial
        self.truncation: LogTruncationError | None = None
        self.out_of_range = False
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.retry_at_s = 0.0


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

    def states(self) -> list[PartitionState]:
        return list(self._states.values())

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
        state.position = state.fetch_position = Position(offset, epoch)
        state.epochs = EpochHistory(epoch)
        state.phase = Phase.FETCHING
        state.truncation, state.reset_to, state.out_of_range = None, None, False
        state.serial += 1

    def await_reset(self, tp: TopicPartition, to: str | int) -> None:
        """Drop the position and look one up: "earliest", "latest" or a timestamp."""
        state = self.of(tp)
        state.phase, state.reset_to = Phase.AWAIT_RESET, to
        state.position = state.fetch_position = None
        state.truncation, state.out_of_range = None, False
        state.serial += 1

    def complete_reset(self, tp: TopicPartition, serial: int, offset: int) -> None:
        """The look-up's answer; stored without an epoch (E55). Ignored when the state moved on meanwhile."""
        state = self._states.get(tp)
        if state is None or state.serial != serial or state.phase is not Phase.AWAIT_RESET:
            return
        state.position = state.fetch_position = Position(offset)
        state.epochs = EpochHistory()
        state.phase, state.reset_to = Phase.FETCHING, None
        state.serial += 1

    def check_leader(self, tp: TopicPartition, leader: LeaderAndEpoch) -> None:
        """Hold the position against metadata: another leader or epoch means validation before the next fetch (E46)."""
        state = self._states.get(tp)
        if state is None or leader.leader < 0 or state.fetch_position is None:
            return
        if state.phase not in (Phase.FETCHING, Phase.AWAIT_VALIDATION) or state.fetch_position.leader == leader:
            return
        state.fetch_position = state.fetch_position._replace(leader=leader)
        if state.fetch_position.epoch >= 0 and leader.epoch >= 0:
            state.phase = Phase.AWAIT_VALIDATION
        elif state.truncation is None:
            state.phase = Phase.FETCHING

    def demand_validation(self, tp: TopicPartition) -> bool:
        """Something looks wrong (offset out of range): validate, if there is an epoch to do it with."""
        state = self._states.get(tp)
        if state is None or state.fetch_position is None or state.fetch_position.epoch < 0:
            return False
        state.phase, state.out_of_range = Phase.AWAIT_VALIDATION, True
        return True

    def complete_validation(self, tp: TopicPartition, checked: Position, end: EpochEnd) -> bool:
        """Take in OffsetForLeaderEpoch's answer for `checked`. True when the position stands (E47-E49).

        A divergence below what was handed out is kept in `truncation`, for the next poll to raise; one above it makes
        the consumer fetch from the handed-out position again, validating that.
        """
        state = self._states.get(tp)
        if state is None or state.phase is not Phase.AWAIT_VALIDATION or state.fetch_position != checked:
            return False
        if end.end_offset >= checked.offset and end.leader_epoch >= 0:
            state.phase = Phase.FETCHING
            return True
        self.diverged(tp, end)
        return False

    def diverged(self, tp: TopicPartition, end: EpochEnd) -> None:
        """The leader's log parts from what was fetched: at end.end_offset, or at an unknown place (-1). Or earlier:
        what was handed out of later epochs is not in the leader's log, even where that goes on in an older one."""
        state = self.of(tp)
        position, ahead = state.position, state.fetch_position
        assert position is not None, "only a position can diverge"
        assert ahead is not None, "who has a position fetches from one"
        state.serial += 1
        if (position.offset, position.epoch) != (ahead.offset, ahead.epoch):
            state.fetch_position = position._replace(leader=ahead.leader)
            state.phase = Phase.AWAIT_VALIDATION if position.epoch >= 0 else Phase.FETCHING
            return
        state.phase = Phase.AWAIT_VALIDATION
        parting = state.epochs.parting(end)
        state.truncation = LogTruncationError(
            tp.topic,
            tp.partition,
            position.offset,
            position.epoch,
            divergent_offset=parting.end_offset,
            divergent_epoch=parting.leader_epoch,
        )

    def rewind(self, tp: TopicPartition) -> None:
        """Forget what was fetched ahead (a pause): go on from what was handed out."""
        state = self.of(tp)
        if state.position is not None and state.fetch_position is not None:
            state.fetch_position = state.position._replace(leader=state.fetch_position.leader)
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

    def is_fetchable(self, tp: TopicPartition, now_s: float) -> bool:
        state = self._states[tp]
        return state.phase is Phase.FETCHING and not state.is_paused and now_s >= state.retry_at_s
