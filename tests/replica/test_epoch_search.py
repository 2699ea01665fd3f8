"""How a follower finds the start offsets of epochs behind a gap."""

from __future__ import annotations

from random import Random

import pytest

from fenceline.log.core.epoch_cache import EpochCache
from fenceline.replica.epoch_search import EpochSearch
from fenceline.replica.follower import AskEpochEnd, FollowerPhase, FollowerState
from tests.replica.histories import MemoryLog


def follower(end: int, entries: tuple[tuple[int, int], ...] = (), *, start: int = 0) -> MemoryLog:
    log = MemoryLog([0] * (end - start), start)
    log.epochs = EpochCache(entries)
    return log


def searched(search: EpochSearch, leader: EpochCache, end: int) -> list[tuple[int, tuple[int, int]]]:
    """The epochs that were requested, and the responses."""
    said = []
    while not search.is_done:
        answer = leader.end_offset_for(search.asks, end)
        said.append((search.asks, answer))
        search.on_answer(*answer)
    return said


@pytest.mark.parametrize(
    ("leader", "own", "met", "said", "learned"),
    [
        (((0, 0), (1, 100)), ((0, 0),), (1, 150), [(0, (0, 100))], ((1, 100),)),
        (
            ((0, 0), (1, 100), (3, 200)),
            ((0, 0),),
            (3, 250),
            [(2, (1, 200)), (0, (0, 100))],
            ((1, 100), (3, 200)),
        ),
        (((0, 0), (5, 95)), ((0, 0),), (5, 150), [(4, (0, 95))], ((5, 95),)),
        (((0, 0), (5, 150)), ((0, 0),), (5, 150), [(4, (0, 150))], ((5, 150),)),
        (((2, 0), (5, 120)), (), (5, 150), [(4, (2, 120)), (1, (1, 0))], ((2, 95), (5, 120))),
        (((0, 0), (5, 120)), (), (5, 150), [(4, (0, 120))], ((0, 95), (5, 120))),
        (((0, 0),), (), (0, 150), [], ((0, 95),)),
    ],
    ids=["next", "vanished between", "at the end", "where it was met", "all new", "all new from 0", "the first"],
)
def test_requests_go_down_to_a_known_epoch(
    leader: tuple[tuple[int, int], ...],
    own: tuple[tuple[int, int], ...],
    met: tuple[int, int],
    said: list[tuple[int, tuple[int, int]]],
    learned: tuple[tuple[int, int], ...],
) -> None:
    """`epochs.md E13`; the follower's log ends at 95."""
    search = EpochSearch(*met, follower(95, own, start=0 if own else 95))
    assert searched(search, EpochCache(leader), 300) == said
    assert search.starts == learned


def test_a_log_that_starts_where_its_leaders_does() -> None:
    """Epochs below all of the leader's are absent, whatever the response (E13)."""
    search = EpochSearch(3, 90, follower(40, start=40))
    assert searched(search, EpochCache([(3, 40)]), 300) == [(2, (2, 40))]
    assert search.starts == ((3, 40),)


@pytest.mark.parametrize("answer", [(-1, -1), (-1, 120), (0, -1), (7, 120)])
def test_an_unknown_answer_assumes_the_lowest_possible_start(answer: tuple[int, int]) -> None:
    """Too low truncates too much of another log, which is fetched again; too high would not truncate lost records."""
    search = EpochSearch(5, 150, follower(95, ((0, 0),)))
    search.on_answer(*answer)
    assert search.starts == ((5, 95),)


@pytest.mark.parametrize("seed", range(300))
def test_the_found_epochs_are_those_of_the_leader(seed: int) -> None:
    rng = Random(seed)
    leader, offset = EpochCache(), 0
    for epoch in sorted(rng.sample(range(20), rng.randint(1, 8))):
        leader.assign(epoch, offset)
        offset += rng.randint(1, 30)
    end = offset + 1
    log_start = rng.choice([0, rng.randrange(end)])
    leader.truncate_from_start(log_start)
    log_end = rng.randrange(log_start, end)
    base = rng.randrange(log_end, end)
    epoch = leader.epoch_for_offset(base)
    own = EpochCache(entry for entry in leader.entries if entry[1] < log_end)
    begin = log_end if rng.random() < 0.3 else log_start
    log = follower(log_end, own.entries if begin < log_end else (), start=begin)
    if epoch <= log.latest_epoch:
        return
    search = EpochSearch(epoch, base, log)
    said = searched(search, leader, end)
    log.epochs.begin(epoch, base, search.starts)
    log.records += [epoch] * (end - log_end)
    assert len(said) <= len(search.starts) + 1
    for each in range(epoch):
        found, its_end = log.end_offset_for_epoch(each)
        expected = leader.end_offset_for(each, end)
        if log.epochs.earliest is not None and each < log.epochs.earliest[0]:
            assert its_end == log_end if begin == log_end else its_end == expected[1]
        else:
            assert (found, its_end) == expected


@pytest.mark.parametrize("seed", range(300))
def test_the_search_ends_whatever_the_leader_answers(seed: int) -> None:
    rng = Random(seed)
    log = follower(50, ((2, 10),))
    search = EpochSearch(20, 90, log)
    for _ in range(20):
        if search.is_done:
            break
        search.on_answer(rng.randint(-2, 22), rng.randint(-2, 120))
    assert search.is_done
    starts = [start for _, start in search.starts]
    assert starts == sorted(set(starts))
    assert starts[0] >= 50
    assert starts[-1] <= 90
    assert search.starts[-1][0] == 20
    assert [epoch for epoch, _ in search.starts] == sorted({epoch for epoch, _ in search.starts})


def test_found_epochs_apply_only_to_the_gap_they_were_searched_for() -> None:
    """After a truncation the gap is another one."""
    log = follower(95, ((0, 0),))
    state = FollowerState("topic", bytes(16), 0, leader_epoch=20, log=log)
    question = state.on_unknown_epoch(1, 150)
    assert question == AskEpochEnd(state, 0)
    assert state.phase is FollowerPhase.LOOKING
    assert state.epoch_starts == ()
    assert state.on_epoch_end(0, 100) is None
    assert state.epoch_starts == ((1, 100),)
    log.cut_to(80)
    assert state.epoch_starts == ()
