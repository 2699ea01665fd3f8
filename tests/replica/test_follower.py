"""How a follower handles a leader's responses, one response at a time."""

from __future__ import annotations

import pytest

from fenceline.log.core.compaction_bound import CompleteFrom
from fenceline.replica.follower import (
    AskEnd,
    AskEpochEnd,
    AskStart,
    CutTo,
    FollowerPhase,
    FollowerState,
    RestartAt,
    TruncationCause,
)
from tests.replica.histories import MemoryLog


def follower(epochs: list[int], *, start: int = 0) -> FollowerState:
    log = MemoryLog(log_start_offset=start)
    log.append(epochs)
    return FollowerState("topic", bytes(16), 0, leader_epoch=20, log=log)


HISTORY = [0] * 3 + [2] * 5 + [4] * 5 + [7] * 1 + [9] * 3
"""0@0, 2@3, 4@8, 7@13, 9@14, end 17."""


@pytest.mark.parametrize(
    ("leader_epoch", "leader_end", "expected"),
    [
        (9, 16, 16),  # the same epoch, shorter there
        (9, 40, 17),  # the same epoch, longer there
        (8, 30, 14),  # unknown here: the next lower one ends here at 14
        (4, 10, 10),  # known on both sides
        (4, 13, 13),
        (1, 3, 3),  # unknown here, between 0 and 2
        (-1, 5, 5),  # a leader that knows no epoch, but an end
        (12, 9, 9),  # above all epochs that are known here
        (4, -1, 17),  # a leader that does not know: the offset where following began
    ],
)
def test_divergence(leader_epoch: int, leader_end: int, expected: int) -> None:
    """`epochs.md E25`, all its branches; ReplicaFetcherThreadTest.shouldTruncateIfLeaderRepliesWithDivergingEpochNot...

    KnownToFollower is the third row.
    """
    state = follower(HISTORY)
    duty = state.on_divergence(leader_epoch, leader_end)
    assert duty == CutTo(state, expected, TruncationCause.DIVERGENCE)
    assert state.phase is FollowerPhase.CUTTING


def test_truncates_to_a_shorter_leader() -> None:
    """`epochs.md E28`."""
    state = follower(HISTORY)
    assert state.on_out_of_range() == AskEnd(state)
    assert state.on_leader_end(12) == CutTo(state, 12, TruncationCause.LEADER_IS_SHORTER)


def test_restarts_at_a_later_leader_start() -> None:
    """`epochs.md E28`."""
    state = follower(HISTORY)
    state.on_out_of_range()
    assert state.on_leader_end(60) == AskStart(state)
    assert state.on_leader_start(50) == RestartAt(state, 50, TruncationCause.LEADER_STARTS_LATER)


def test_epoch_unknown_to_the_leader_is_truncated() -> None:
    """`epochs.md E8`, E13 (c): in range, rejected; Kafka retries in a loop."""
    state = follower(HISTORY)
    state.on_out_of_range()
    state.on_leader_end(17)
    assert state.on_leader_start(0) == CutTo(state, 14, TruncationCause.UNKNOWN_EPOCH)


def test_empty_log_fetches_again() -> None:
    state = follower([], start=5)
    state.on_out_of_range()
    state.on_leader_end(9)
    assert state.on_leader_start(2) is None
    assert state.phase is FollowerPhase.FETCHING


def test_a_leader_that_starts_at_the_log_end_has_nothing_to_compare() -> None:
    """`epochs.md E13` (d): it repeats an epoch that it has deleted, so records of a lost history would be deleted below
    its log start without a receipt.
    """
    state = follower(HISTORY)
    assert state.on_agreement(17) == RestartAt(state, 17, TruncationCause.LEADER_STARTS_LATER)
    assert state.phase is FollowerPhase.CUTTING


def test_a_leader_with_a_record_of_the_log_compares_it_once() -> None:
    """Records that it deletes later are the same on both sides."""
    state = follower(HISTORY)
    assert state.on_agreement(16) is None
    assert state.is_compared
    assert state.phase is FollowerPhase.FETCHING
    assert follower([], start=5).on_agreement(5) is None, "an empty log loses nothing"


@pytest.mark.parametrize("records", [0, 30])
def test_a_log_beyond_the_leaders_end_restarts_at_the_leaders_start(records: int) -> None:
    """Never at the leader's end, where it would lack all earlier records; once it led, the others would delete
    those.
    """
    state = follower([3] * records, start=500)
    state.on_out_of_range()
    assert state.on_leader_end(100) == AskStart(state)
    assert state.phase is FollowerPhase.LOOKING
    assert state.on_leader_start(20) == RestartAt(state, 20, TruncationCause.LEADER_IS_SHORTER)
    assert state.phase is FollowerPhase.CUTTING


@pytest.mark.parametrize(("leader_epoch", "leader_end"), [(2, 100), (-1, 400), (1, 500), (20, 500)])
def test_a_log_that_keeps_no_record_restarts_at_the_leaders_start(leader_epoch: int, leader_end: int) -> None:
    """All of it diverges from the leader's history below its own start, or there."""
    state = follower([2] * 5, start=500)
    state.may_lead = False
    assert state.on_divergence(leader_epoch, leader_end) == AskStart(state)
    assert state.on_leader_start(300) == RestartAt(state, 300, TruncationCause.DIVERGENCE)


@pytest.mark.parametrize(("leader_epoch", "leader_end"), [(2, 100), (1, 500), (20, 500), (1, 510)])
def test_a_log_that_keeps_no_record_keeps_its_start_while_the_replica_may_lead(
    leader_epoch: int, leader_end: int
) -> None:
    """The records it deleted were committed. After a restart it ended below them, and could be elected (operations,
    seed 36001086).
    """
    state = follower([2] * 5, start=500)
    assert state.on_divergence(leader_epoch, leader_end) == CutTo(state, 500, TruncationCause.DIVERGENCE)
    assert state.phase is FollowerPhase.CUTTING


@pytest.mark.parametrize(("epochs", "deleted"), [([2] * 5, 1), ([1] * 4 + [2] * 5, 4), ([1, 1, 2, 2, 2], 2)])
def test_a_log_that_deleted_records_of_the_leader_keeps_its_start(epochs: list[int], deleted: int) -> None:
    """An in-sync replica has all committed records: restarted at the leader's start, it would lack them for a while."""
    state = follower(epochs)
    state.log.forget_below(deleted)  # type: ignore[attr-defined]
    reported = epochs[deleted - 1]
    assert state.on_divergence(reported, deleted) == CutTo(state, deleted, TruncationCause.DIVERGENCE)
    assert state.phase is FollowerPhase.CUTTING


def test_a_log_that_deleted_another_history_restarts_at_the_leaders_start() -> None:
    """Its records below its start were of epoch 1, the leader has some of epoch 0 there."""
    state = follower([1] * 4 + [2] * 5)
    state.may_lead = False
    state.log.forget_below(4)  # type: ignore[attr-defined]
    assert state.on_divergence(0, 4) == AskStart(state)
    assert state.on_leader_start(0) == RestartAt(state, 0, TruncationCause.DIVERGENCE)


def test_records_left_below_the_leaders_start_are_truncated_as_well() -> None:
    """`epochs.md E13` (d): the leader repeats an epoch that it has deleted. The next fetch would bring the replica into
    the in-sync set with records that no leader compared.
    """
    state = follower([1] * 10)
    duty = CutTo(state, 6, TruncationCause.DIVERGENCE)
    assert state.on_divergence(1, 6, 6) == duty
    state.log.cut_to(6)  # type: ignore[attr-defined]
    assert state.on_cut(duty) == RestartAt(state, 6, TruncationCause.LEADER_STARTS_LATER)
    assert state.on_cut(duty) is None, "the response is not remembered"


def test_a_compacted_log_truncated_below_its_complete_offset_is_fetched_again() -> None:
    """Story `operations`, seed 30012: compaction had removed a record for a newer one, the newer one was truncated
    after an unclean election, and the replica led the next epoch with neither (`docs/decisions/022`).
    """
    state = follower(HISTORY)
    state.log.complete_from = CompleteFrom(12, 4)  # type: ignore[misc]
    duty = state.on_divergence(9, 16)
    assert isinstance(duty, CutTo)
    assert state.on_cut(duty) is None, "all that it relies on stays"
    assert state.on_divergence(4, 10) == AskEpochEnd(state, 9), (
        "the leader must have all records on which compaction relied"
    )
    assert state.on_epoch_end(4, 10) == AskStart(state)
    shorter = state.on_leader_start(1)
    assert shorter == CutTo(state, 10, TruncationCause.DIVERGENCE)
    state.log.cut_to(10)  # type: ignore[attr-defined]
    assert state.on_cut(shorter) == RestartAt(state, 1, TruncationCause.DIVERGENCE, leader_has_all=True)
    assert state.phase is FollowerPhase.CUTTING


@pytest.mark.parametrize(
    ("answers", "leader_start", "offset", "cause", "is_cut"),
    [
        ([(9, 17)], 2, 2, None, False),  # all of it
        ([(9, 15)], 2, 15, TruncationCause.DIVERGENCE, True),
        ([(8, 30), (6, 20), (3, 9), (2, 8)], 2, 8, TruncationCause.DIVERGENCE, True),  # 9, 7 and 4 are absent
        ([(1, 30), (0, 3)], 2, 3, TruncationCause.DIVERGENCE, True),
        ([(-1, -1)] * 5, 2, 2, TruncationCause.DIVERGENCE, False),  # none of it
        (
            [(9, 17)],
            17,
            17,
            TruncationCause.LEADER_STARTS_LATER,
            False,
        ),  # records that cannot be compared count as lost
    ],
)
def test_a_log_that_lacks_records_compaction_relied_on_is_compared_first(
    answers: list[tuple[int, int]], leader_start: int, offset: int, cause: TruncationCause | None, is_cut: bool
) -> None:
    """`operations`, seed 9320170: emptied without a comparison, it lost without a receipt the records that its leader
    did not have.
    """
    state = follower(HISTORY)
    state.log.complete_from = CompleteFrom(18)  # type: ignore[misc]
    assert state.on_follow(0) is None
    following: object = state.first_question()
    asked = []
    for answer in answers:
        assert isinstance(following, AskEpochEnd)
        asked.append(following.epoch)
        following = state.on_epoch_end(*answer)
    assert asked == sorted(asked, reverse=True)
    assert following == AskStart(state)
    assert state.phase is FollowerPhase.LOOKING
    duty = state.on_leader_start(leader_start)
    if is_cut:
        assert duty == CutTo(state, offset, TruncationCause.DIVERGENCE)
    else:
        assert duty == RestartAt(state, offset, cause or TruncationCause.DIVERGENCE, leader_has_all=cause is None)
    assert state.comparison is None


def test_a_failed_comparison_is_restarted() -> None:
    """With the next leader's responses, or newer ones of the same leader; it is not fetched before."""
    state = follower(HISTORY)
    state.log.complete_from = CompleteFrom(18)  # type: ignore[misc]
    state.on_follow(0)
    assert state.on_epoch_end(6, 20) == AskEpochEnd(state, 4)
    state.wait_until(10)
    assert state.is_ready(10)
    assert state.first_question() == AskEpochEnd(state, 9)


@pytest.mark.parametrize(
    ("complete_from", "clean_since", "begins_anew"),
    [
        (CompleteFrom(17, 5), 20, False),  # the log is complete
        (CompleteFrom(18, 5), 5, False),  # it is being fetched, from leaders with a complete log
        (CompleteFrom(18, 5), 6, True),  # the leader of epoch 6 was elected uncleanly
        (CompleteFrom(18), 0, True),  # no epoch is known
    ],
)
def test_before_the_first_fetch(complete_from: CompleteFrom, clean_since: int, begins_anew: bool) -> None:
    """A log that ends below `complete_from` would be in sync with its first fetch."""
    state = follower(HISTORY)
    state.log.complete_from = complete_from  # type: ignore[misc]
    assert state.on_follow(clean_since) is None
    assert (state.comparison is not None) is begins_anew
    empty = follower([], start=3)
    empty.log.complete_from = complete_from  # type: ignore[misc]
    assert empty.on_follow(clean_since) is None, "it may lead, and ended below the committed records (game 25000129)"
    empty.may_lead = False
    if begins_anew:
        assert empty.on_follow(clean_since) == RestartAt(empty, 0, TruncationCause.DIVERGENCE, leader_has_all=True)


@pytest.mark.parametrize("may_lead", [False, True])
def test_an_empty_log_above_the_leaders_start_restarts_there_unless_it_may_lead(may_lead: bool) -> None:
    """`operations`, seed 9100327: retention had emptied a replica up to 17, a leader whose log ended at 7 was elected
    uncleanly and wrote up to 23. From 17 on, the replica would have lacked committed records, in sync.
    """
    state = follower([], start=17)
    state.may_lead = may_lead
    assert state.on_agreement(7, had_records=False) == (
        None if may_lead else RestartAt(state, 7, TruncationCause.DIVERGENCE)
    )
    assert state.is_compared is may_lead
    state.log.begin_anew(7)  # type: ignore[attr-defined]
    assert state.on_agreement(7) is None
    assert state.is_compared


def test_an_empty_log_is_checked_again_when_the_replica_may_no_longer_lead() -> None:
    """An eligible leader replica is no longer one once enough others are in sync. With an empty log above its leader's
    start it would be out of sync until the next record.
    """
    state = follower([], start=17)
    assert state.on_agreement(7, had_records=False) is None
    state.on_ineligible(17)
    assert state.is_compared
    state.on_ineligible(7)
    assert not state.is_compared
    assert state.on_agreement(7, had_records=False) == RestartAt(state, 7, TruncationCause.DIVERGENCE)


def test_a_log_emptied_since_the_request_keeps_its_start() -> None:
    """`operations`, seed 9320087: the leader had just reported it in sync, and retention emptied it before its node
    learned that. Restarted at 0 it lacked committed records, and could be elected.
    """
    state = follower([], start=71)
    state.may_lead = False
    assert state.on_agreement(0, had_records=True) is None
    assert state.phase is FollowerPhase.FETCHING
    assert state.is_compared


def test_records_left_above_the_leaders_start_stay() -> None:
    state = follower([1] * 10)
    duty = state.on_divergence(1, 6, 5)
    assert isinstance(duty, CutTo)
    state.log.cut_to(6)  # type: ignore[attr-defined]
    assert state.on_cut(duty) is None


def test_an_emptied_log_asks_again_after_an_error() -> None:
    """The error is not remembered: the next response is about the log in its current state."""
    state = follower([2] * 5, start=500)
    state.on_divergence(2, 100)
    state.wait_until(10)
    assert state.is_ready(10)
    state.on_out_of_range()
    state.on_leader_end(505)
    assert state.on_leader_start(600) == RestartAt(state, 600, TruncationCause.LEADER_STARTS_LATER)


def test_an_empty_log_drops_an_epoch_without_records() -> None:
    """E18: its end is its start, and stays."""
    state = follower([], start=500)
    state.log.epochs.assign(4, 500)  # type: ignore[attr-defined]
    assert state.on_divergence(3, 500) == CutTo(state, 500, TruncationCause.DIVERGENCE)
    assert follower([2] * 5).on_divergence(-1, 0).__class__ is CutTo, "no log begins below offset 0"


def test_backs_off_until_the_delay_expires() -> None:
    state = follower(HISTORY)
    state.wait_until(100)
    assert not state.is_ready(99)
    assert state.is_ready(100)
