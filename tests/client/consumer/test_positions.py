"""The consumer's state machine, cell by cell (`epochs.md` E44-E55)."""

from __future__ import annotations

from uuid import UUID

import pytest

from fenceline.client.consumer.positions import Position, PositionPhase, Positions, PositionState, ValidationResult
from fenceline.client.core.epoch_history import EpochQuery, EpochStart
from fenceline.client.core.metadata import LeaderAndEpoch
from fenceline.client.core.offsets import EpochEnd, OffsetAndEpoch
from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition

_TP = TopicPartition("t", 0)
_L5, _L6 = LeaderAndEpoch(1, 5), LeaderAndEpoch(2, 6)


def _at(offset: int, epoch: int, leader: LeaderAndEpoch = _L5) -> tuple[Positions, PositionState]:
    positions = Positions()
    positions.assign([_TP])
    positions.seek(_TP, offset, epoch)
    positions.check_leader(_TP, leader)
    state = positions.of(_TP)
    state.phase = PositionPhase.FETCHING
    return positions, state


def _answer(positions: Positions, end: EpochEnd) -> ValidationResult:
    """The leader's response to the pending request."""
    position, query = positions.of(_TP).fetch_position, positions.validation_query(_TP)
    assert position is not None
    assert query is not None
    return positions.complete_validation(_TP, position, query, end)


def test_a_new_partition_has_no_position_and_is_not_fetched() -> None:
    positions = Positions()
    positions.assign([_TP])
    assert positions.of(_TP).phase is PositionPhase.INITIALIZING
    assert not positions.of(_TP).is_readable
    positions.check_leader(_TP, _L5)
    assert positions.of(_TP).phase is PositionPhase.INITIALIZING


def test_keeping_an_assignment_keeps_the_position() -> None:
    positions, state = _at(10, 5)
    positions.assign([_TP, TopicPartition("t", 1)])
    assert positions.of(_TP) is state


def test_leader_change_requires_validation_when_both_epochs_are_known() -> None:
    positions, state = _at(10, 5)
    positions.check_leader(_TP, _L6)
    assert state.phase is PositionPhase.AWAIT_VALIDATION


@pytest.mark.parametrize(("epoch", "leader"), [(-1, _L6), (5, LeaderAndEpoch(2, -1))])
def test_position_without_an_epoch_is_not_validated(epoch: int, leader: LeaderAndEpoch) -> None:
    positions, state = _at(10, epoch)
    positions.check_leader(_TP, leader)
    assert state.phase is PositionPhase.FETCHING


def test_same_or_unknown_leader_changes_nothing() -> None:
    positions, state = _at(10, 5)
    positions.check_leader(_TP, _L5)
    positions.check_leader(_TP, LeaderAndEpoch(-1, 9))
    assert state.phase is PositionPhase.FETCHING


def test_seek_with_an_epoch_is_validated_before_the_next_fetch() -> None:
    positions, state = _at(10, 5)
    positions.seek(_TP, 7, 4)
    positions.check_leader(_TP, _L5)
    assert state.phase is PositionPhase.AWAIT_VALIDATION
    positions.seek(_TP, 7)
    positions.check_leader(_TP, _L5)
    assert state.phase is PositionPhase.FETCHING


def test_epoch_end_at_or_after_the_position_validates_it() -> None:
    positions, state = _at(10, 5)
    positions.check_leader(_TP, _L6)
    assert _answer(positions, EpochEnd(5, 10)) is ValidationResult.VALID
    assert state.phase is PositionPhase.FETCHING
    assert state.truncation is None


@pytest.mark.parametrize(
    ("end", "divergent"),
    [
        pytest.param(EpochEnd(5, 8), (8, 5), id="E49: the epoch ends below the position"),
        pytest.param(EpochEnd(4, 8), (8, 4), id="E49: and the leader has a lower epoch"),
        pytest.param(EpochEnd(4, 40), (9, -1), id="G6: a lower epoch with any end: record 9 is not in the log"),
        pytest.param(EpochEnd(-1, -1), (-1, -1), id="E48: the leader does not know"),
        pytest.param(EpochEnd(5, -1), (-1, -1), id="E48: undefined offset only"),
    ],
)
def test_divergence_below_returned_records_is_kept_until_a_seek(end: EpochEnd, divergent: tuple[int, int]) -> None:
    positions, state = _at(10, 5)
    positions.check_leader(_TP, _L6)
    assert _answer(positions, end) is ValidationResult.DIVERGED
    assert state.phase is PositionPhase.AWAIT_VALIDATION
    error = state.truncation
    assert error is not None
    assert (error.topic, error.partition, error.truncated_from, error.leader_epoch) == ("t", 0, 10, 5)
    assert error.epochs == (5,)
    assert (error.divergent_offset, error.divergent_epoch) == divergent
    positions.check_leader(_TP, LeaderAndEpoch(1, 7))
    assert state.truncation is error
    assert not positions.of(_TP).is_readable
    positions.seek(_TP, 8)
    assert state.truncation is None
    assert positions.of(_TP).is_readable


@pytest.mark.parametrize(
    ("answers", "parting", "epochs"),
    [
        pytest.param([EpochEnd(5, 14)], (14, 5), (5,), id="within the last epoch"),
        pytest.param([EpochEnd(3, 12)], (10, 3), (5,), id="the leader's epoch ends after ours"),
        pytest.param([EpochEnd(3, 40)], (10, 3), (5,), id="and after the position"),
        pytest.param([EpochEnd(3, 9)], (9, 3), (3, 5), id="the leader's epoch ends before ours"),
        pytest.param(
            [EpochEnd(4, 12), EpochEnd(3, 9)], (9, 3), (3, 5), id="an epoch never read: request the one below"
        ),
        pytest.param([EpochEnd(4, 12), EpochEnd(3, 11)], (10, 3), (5,), id="it ends no later than ours"),
        pytest.param([EpochEnd(4, 12), EpochEnd(2, 6)], (6, 2), (3, 5), id="and that one is missing too"),
        pytest.param([EpochEnd(4, 12), EpochEnd(2, 9)], (7, -1), (3, 5), id="nor the record before the first one read"),
        pytest.param([EpochEnd(2, 5)], (5, 2), (3, 5), id="in the first response"),
        pytest.param([EpochEnd(-1, -1), EpochEnd(-1, -1)], (-1, -1), (3, 5), id="the leader does not know"),
        pytest.param([EpochEnd(-1, -1), EpochEnd(3, 9)], (9, 3), (3, 5), id="but it knows the epoch below"),
    ],
)
def test_divergence_is_bounded_by_records_read_from_later_epochs(
    answers: list[EpochEnd], parting: tuple[int, int], epochs: tuple[int, ...]
) -> None:
    """E25, G6. Read from 8 on, where 3 was the epoch: up to 9 in epoch 3, from 10 to 19 in epoch 5."""
    positions, state = _at(8, 3, _L6)
    positions.consumed(_TP, 9, 3, [EpochStart(5, 10)])
    positions.consumed(_TP, 20, 5, [EpochStart(5, 10)])
    assert state.position is not None
    state.fetch_position = state.position._replace(leader=_L6)
    positions.diverged(_TP, answers[0])
    for answer in answers[1:]:
        assert state.truncation is None
        _answer(positions, answer)
    error = state.truncation
    assert error is not None
    assert (error.divergent_offset, error.divergent_epoch) == parting
    assert error.epochs == epochs
    positions.seek(_TP, 12)
    positions.consumed(_TP, 20, 5, [EpochStart(5, 12)])
    state.fetch_position = state.position
    positions.diverged(_TP, EpochEnd(3, 15))
    assert state.truncation is not None
    assert state.truncation.divergent_offset == 12, "records read before a seek do not count"


def test_search_restarts_with_a_new_leader() -> None:
    """E64: its lookups carry one leader epoch."""
    positions, state = _at(8, 3, _L6)
    positions.consumed(_TP, 20, 5, [EpochStart(5, 10)])
    assert state.position is not None
    state.fetch_position = state.position._replace(leader=_L6)
    positions.diverged(_TP, EpochEnd(4, 12))
    assert positions.validation_query(_TP) == EpochQuery(3, 10)
    positions.check_leader(_TP, LeaderAndEpoch(1, 7))
    assert positions.validation_query(_TP) == EpochQuery(5, 20)
    assert _answer(positions, EpochEnd(5, 20)) is ValidationResult.VALID


def test_responses_to_obsolete_requests_are_ignored() -> None:
    """E47."""
    positions, state = _at(8, 3, _L6)
    positions.consumed(_TP, 20, 5, [EpochStart(5, 10)])
    assert state.position is not None
    state.fetch_position = state.position._replace(leader=_L6)
    positions.diverged(_TP, EpochEnd(4, 12))
    first = EpochQuery(5, 20)
    assert positions.complete_validation(_TP, state.fetch_position, first, EpochEnd(5, 20)) is ValidationResult.STALE
    assert positions.validation_query(_TP) == EpochQuery(3, 10)


def test_leader_older_than_the_position_epoch_is_not_asked() -> None:
    """E54, G7: it would not know the epoch, which proves nothing; the client waits for newer metadata."""
    positions, state = _at(8, 3)
    positions.seek(_TP, 10, 6)
    positions.check_leader(_TP, _L5)
    assert state.phase is PositionPhase.AWAIT_VALIDATION
    assert positions.validation_query(_TP) is None
    assert not positions.of(_TP).is_readable
    positions.check_leader(_TP, _L6)
    assert positions.validation_query(_TP) == EpochQuery(6, 10)


def test_seek_with_an_epoch_is_not_fetched_before_a_leader_is_known() -> None:
    """E53, G8: an epoch seen before the first metadata is remembered."""
    positions = Positions()
    positions.assign([_TP])
    positions.seek(_TP, 10, 6)
    assert not positions.of(_TP).is_readable
    positions.check_leader(_TP, LeaderAndEpoch(-1, -1))
    assert not positions.of(_TP).is_readable
    positions.check_leader(_TP, LeaderAndEpoch(1, -1))
    assert positions.of(_TP).is_readable, "a broker without epochs"


def test_a_negative_epoch_is_none() -> None:
    """E56."""
    positions, state = _at(8, 3)
    positions.seek(_TP, 10, -7)
    assert state.position == Position(10, -1)


_BOUND = OffsetAndEpoch(10, 5)
"""A look-up in epoch 5: the record before offset 10 may be of any epoch up to it."""


@pytest.mark.parametrize(
    ("end", "offset", "epoch"),
    [
        pytest.param(EpochEnd(5, 12), 10, 5, id="still valid"),
        pytest.param(EpochEnd(4, 12), 10, 5, id="valid where the record before may be of that epoch"),
        pytest.param(EpochEnd(-1, -1), 10, 5, id="and where the leader does not know"),
        pytest.param(EpochEnd(4, 7), 7, 4, id="truncated before anything was read: start where the log ended"),
    ],
)
def test_reset_position_has_at_most_an_epoch(end: EpochEnd, offset: int, epoch: int) -> None:
    """E55, G9: a truncation before the first returned record loses nothing, but new records are at those offsets."""
    positions, state = _at(3, 4)
    positions.await_reset(_TP, "latest")
    positions.complete_reset(_TP, state.serial, _BOUND)
    positions.check_leader(_TP, _L6)
    assert positions.validation_query(_TP) == EpochQuery(5, 10)
    _answer(positions, end)
    assert state.truncation is None
    assert state.phase is PositionPhase.FETCHING
    assert state.position is not None
    assert (state.position.offset, state.position.epoch) == (offset, epoch)


def test_divergence_in_prefetched_records_only_is_refetched() -> None:
    positions, state = _at(10, 5)
    positions.consumed(_TP, 10, 5)
    state.fetch_position = Position(50, 5, _L5)
    serial = state.serial
    positions.diverged(_TP, EpochEnd(5, 30))
    assert state.truncation is None
    assert state.fetch_position == Position(10, 5, _L5)
    assert state.phase is PositionPhase.AWAIT_VALIDATION
    assert state.serial > serial, "prefetched records must not be returned"


def test_records_fetched_for_a_former_assignment_are_discarded() -> None:
    """A rebalance revokes a partition and assigns it again: it is read once, from the committed offset."""
    positions, state = _at(10, 5)
    serials = {state.serial}
    for _ in range(3):
        positions.assign([])
        positions.assign([_TP])
        positions.seek(_TP, 10, 5)
        serials.add(positions.of(_TP).serial)
    assert len(serials) == 4


def test_responses_for_an_outdated_position_are_ignored() -> None:
    positions, state = _at(10, 5)
    positions.check_leader(_TP, _L6)
    old = state.fetch_position
    assert old is not None
    positions.seek(_TP, 3, 5)
    state.phase = PositionPhase.AWAIT_VALIDATION
    asked = EpochQuery(5, 10)
    assert positions.complete_validation(_TP, old, asked, EpochEnd(1, 1)) is ValidationResult.STALE
    assert state.truncation is None
    positions.await_reset(_TP, "latest")
    positions.complete_reset(_TP, state.serial - 1, OffsetAndEpoch(99))
    assert state.position is None


@pytest.mark.parametrize("epoch", [-1, 5])
def test_reset_has_no_position_until_answered_and_commits_no_epoch(epoch: int) -> None:
    positions, state = _at(10, 5)
    positions.await_reset(_TP, "earliest")
    assert (state.position, state.phase) == (None, PositionPhase.AWAIT_RESET)
    positions.check_leader(_TP, _L6)
    assert state.phase is PositionPhase.AWAIT_RESET
    positions.complete_reset(_TP, state.serial, OffsetAndEpoch(3, epoch))
    assert state.position is not None
    assert (state.position.offset, state.position.record_epoch) == (3, -1)
    assert state.phase is PositionPhase.FETCHING


def test_pause_rewinds_to_the_end_of_returned_records() -> None:
    positions, state = _at(10, 5)
    positions.consumed(_TP, 12, 5)
    state.fetch_position = Position(50, 5, _L5)
    state.is_paused = True
    positions.rewind(_TP)
    assert state.fetch_position == Position(12, 5, _L5)
    assert not positions.of(_TP).is_readable


def test_pause_cancels_validation_of_prefetched_records() -> None:
    positions, state = _at(10, -1)
    state.fetch_position = Position(50, 5, _L5)
    positions.check_leader(_TP, _L6)
    assert state.phase is PositionPhase.AWAIT_VALIDATION
    positions.rewind(_TP)
    assert positions.validation_query(_TP) is None
    assert (state.phase, state.fetch_position) == (PositionPhase.FETCHING, Position(10, -1, _L6))


def test_paused_position_is_still_validated() -> None:
    positions, state = _at(10, 5)
    positions.seek(_TP, 7, 4)
    positions.rewind(_TP)
    assert state.phase is PositionPhase.AWAIT_VALIDATION


def test_negative_offsets_and_unassigned_partitions_are_rejected() -> None:
    positions, _ = _at(10, 5)
    with pytest.raises(OperatorError):
        positions.seek(_TP, -1)
    with pytest.raises(OperatorError, match="not assigned"):
        positions.seek(TopicPartition("u", 0), 1)


def test_position_is_invalid_for_a_recreated_topic() -> None:
    positions, state = _at(10, 5)
    first, second = UUID(int=7), UUID(int=8)
    positions.check_topic(_TP, first)
    positions.check_topic(_TP, UUID(int=0))
    assert positions.of(_TP).is_readable
    positions.check_topic(_TP, second)
    assert state.replaced is not None
    assert (state.replaced.expected_id, state.replaced.found_id) == (first, second)  # type: ignore[attr-defined]
    assert not positions.of(_TP).is_readable
    positions.seek(_TP, 0)
    positions.check_topic(_TP, second)
    assert positions.of(_TP).is_readable
