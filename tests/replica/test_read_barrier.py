"""Whom a leader asks before it answers from memory, which answers confirm it, and which reads a question covers.

Rules: epochs.md E2, E23, E37.
"""

from __future__ import annotations

import pytest

from fenceline.errors import ErrorCode
from fenceline.metadata.image import PartitionImage
from fenceline.replica.leader import InSyncRules, LeaderState
from fenceline.replica.read_barrier import OfficeAnswer, ReadBarrier, office_answer, possible_successors

CONFIRMED, UNDECIDED = OfficeAnswer.CONFIRMED, OfficeAnswer.UNDECIDED


def leader(isr: set[int], partition_epoch: int = 5) -> LeaderState:
    state = LeaderState(
        node_id=1,
        broker_epoch=1,
        leader_epoch=7,
        partition_epoch=partition_epoch,
        replicas=(1, 2, 3, 4),
        isr=frozenset(isr),
        epoch_start_offset=0,
        rules=InSyncRules(lambda _: 9, 30_000),
    )
    state.inherit_progress(None, 0)
    return state


def image(isr: tuple[int, ...], elr: tuple[int, ...] = (), partition_epoch: int = 5) -> PartitionImage:
    return PartitionImage((1, 2, 3, 4), isr, 1, 7, partition_epoch, elr=elr)


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        (ErrorCode.UNKNOWN_LEADER_EPOCH, CONFIRMED),
        (ErrorCode.FENCED_LEADER_EPOCH, OfficeAnswer.REPLACED),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, OfficeAnswer.REPLACED),
        (ErrorCode.NONE, OfficeAnswer.REPLACED),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, UNDECIDED),
        (ErrorCode.KAFKA_STORAGE_ERROR, UNDECIDED),
        (ErrorCode.UNKNOWN_SERVER_ERROR, UNDECIDED),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, UNDECIDED),
    ],
)
def test_only_an_unknown_epoch_confirms(code: ErrorCode, meaning: OfficeAnswer) -> None:
    assert office_answer(code) is meaning


def test_members_of_isr_and_elr_may_have_been_elected() -> None:
    assert possible_successors(leader({1, 2}), image((1, 2))) == {2}
    assert possible_successors(leader({1}), image((1,), elr=(3,))) == {3}
    assert possible_successors(leader({1}), image((1,))) == set()


def test_a_pending_expansion_counts() -> None:
    state = leader({1, 2})
    state.on_fetch(3, 0, log_start_offset=0, broker_epoch=9, min_insync_replicas=1, now_ms=0)
    assert state.propose_expansion(3) is not None
    assert possible_successors(state, image((1, 2))) == {2, 3}


def test_a_member_counts_while_its_removal_is_pending() -> None:
    state = leader({1, 2, 3})
    state.on_fetch(2, 0, log_start_offset=0, broker_epoch=9, min_insync_replicas=1, now_ms=60_000)
    assert state.propose_shrink(60_000) is not None
    assert possible_successors(state, image((1, 2))) == {2, 3}


def test_nothing_is_certain_while_the_metadata_is_older_than_the_leader() -> None:
    assert possible_successors(leader({1}, partition_epoch=6), image((1, 2), partition_epoch=5)) is None


def test_members_in_newer_metadata_count() -> None:
    assert possible_successors(leader({1, 2}), image((1,), elr=(2, 4), partition_epoch=6)) == {2, 4}


def _ask(barrier: ReadBarrier[str], others: set[int]) -> list[int]:
    asked = barrier.to_ask(others)
    for broker in asked:
        barrier.wanted(broker)
    return asked


def test_all_must_confirm() -> None:
    barrier: ReadBarrier[str] = ReadBarrier(7)
    barrier.add("a", 1.0)
    assert _ask(barrier, {2, 3}) == [2, 3]
    assert barrier.sent(2)
    assert barrier.sent(3)
    barrier.answered(2, CONFIRMED)
    assert barrier.pop_confirmed({2, 3}) == []
    assert _ask(barrier, {2, 3}) == []
    barrier.answered(3, CONFIRMED)
    assert barrier.pop_confirmed({2, 3}) == ["a"]
    assert barrier.is_empty


def test_a_question_covers_the_reads_before_it_is_sent() -> None:
    barrier: ReadBarrier[str] = ReadBarrier(7)
    barrier.add("a", 1.0)
    assert _ask(barrier, {2}) == [2]
    barrier.add("b", 2.0)
    barrier.sent(2)
    barrier.add("c", 3.0)
    barrier.add("d", 4.0)
    assert _ask(barrier, {2}) == []
    barrier.answered(2, CONFIRMED)
    assert barrier.pop_confirmed({2}) == ["a", "b"]
    assert _ask(barrier, {2}) == [2]
    barrier.sent(2)
    barrier.answered(2, CONFIRMED)
    assert barrier.pop_confirmed({2}) == ["c", "d"]


def test_a_broker_that_is_undecided_is_asked_again() -> None:
    barrier: ReadBarrier[str] = ReadBarrier(7)
    barrier.add("a", 1.0)
    _ask(barrier, {2})
    barrier.sent(2)
    barrier.answered(2, UNDECIDED)
    assert barrier.pop_confirmed({2}) == []
    assert _ask(barrier, {2}) == [2]


def test_a_broker_that_left_is_not_waited_for_and_one_that_came_is() -> None:
    barrier: ReadBarrier[str] = ReadBarrier(7)
    barrier.add("a", 1.0)
    _ask(barrier, {2})
    barrier.sent(2)
    assert barrier.pop_confirmed({3}) == []
    assert _ask(barrier, {3}) == [3]
    assert barrier.pop_confirmed(set()) == ["a"]


def test_confirmation_is_not_kept_for_later_reads() -> None:
    barrier: ReadBarrier[str] = ReadBarrier(7)
    barrier.add("a", 1.0)
    _ask(barrier, {2})
    barrier.sent(2)
    barrier.answered(2, CONFIRMED)
    assert barrier.pop_confirmed({2}) == ["a"]
    barrier.add("b", 2.0)
    assert barrier.pop_confirmed({2}) == []
    assert _ask(barrier, {2}) == [2]


def test_reads_expire_in_order() -> None:
    barrier: ReadBarrier[str] = ReadBarrier(7)
    assert barrier.next_deadline_s is None
    barrier.add("a", 1.0)
    barrier.add("b", 2.0)
    assert barrier.next_deadline_s == 1.0
    assert barrier.pop_expired(1.5) == ["a"]
    _ask(barrier, {2})
    assert barrier.pop_all() == ["b"]
    assert not barrier.sent(2)
