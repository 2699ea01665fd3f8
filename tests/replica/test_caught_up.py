"""When a follower counts as caught up, by its fetches: the cases of Kafka's ReplicaTest and of PartitionTest's shrinks.

Rules: `epochs.md E32-E34`, `E38`.
"""

from __future__ import annotations

import pytest

from fenceline.replica.fencing import NO_EPOCH
from fenceline.replica.leader import InSyncRules, LeaderState
from fenceline.replica.progress import FollowerProgress

LAG_MS = 1_000
RULES = InSyncRules({1: 101, 2: 102}.get, LAG_MS)  # type: ignore[arg-type]
EMPTY, END = 0, 10


@pytest.mark.parametrize(
    ("fetches", "caught_up_ms"),
    [
        ([(END, 50, END)], 50),
        ([(END + 5, 50, END)], 50),
        ([(4, 50, END)], None),
        ([(4, 50, END), (END, 60, END + 8)], 50),
        ([(4, 50, END), (END - 1, 60, END + 8)], None),
        ([(4, 50, END), (END, 60, END + 8), (END + 8, 70, END + 9)], 60),
        ([(END, 50, END), (END, 60, END + 8), (END, 70, END + 8)], 50),
        ([(END, 50, END), (3, 60, END)], 50),
        ([(EMPTY, 50, EMPTY)], 50),
    ],
    ids=[
        "at the end",
        "beyond it",
        "behind",
        "at the end of the fetch before",
        "behind that, too",
        "always a fetch behind",
        "stuck since it was there",
        "went back",
        "nothing was ever written",
    ],
)
def test_last_caught_up_time(fetches: list[tuple[int, int, int]], caught_up_ms: int | None) -> None:
    """testUpdateFetchState, testIsCaughtUp*: fetches are (offset, time, the leader's end before the read); E32."""
    progress = FollowerProgress()
    for offset, at_ms, leader_end in fetches:
        progress.fetched(offset, 0, 102, leader_end, at_ms)
    assert progress.last_caught_up_ms == caught_up_ms
    last_offset, last_ms, _ = fetches[-1]
    assert (progress.log_end_offset, progress.last_fetch_ms, progress.broker_epoch) == (last_offset, last_ms, 102)


@pytest.mark.parametrize(
    ("offset", "at_ms", "leader_end", "caught_up_ms", "now_ms", "expected"),
    [
        (END, 50, END, 50, 50 + 99 * LAG_MS, True),
        (END, 50, END + 1, 50, 50 + LAG_MS, True),
        (END, 50, END + 1, 50, 51 + LAG_MS, False),
        (END, 50, END + 1, None, 50, False),
    ],
    ids=["there and idle", "within the time", "a millisecond too late", "never"],
)
def test_caught_up_within_the_lag_time(
    offset: int, at_ms: int, leader_end: int, caught_up_ms: int | None, now_ms: int, expected: bool
) -> None:
    """testIsCaughtUpWhenReplicaIsCaughtUpToLogEnd, testShouldNotShrinkIsrIfFollowerCaughtUpToLogEnd; E34."""
    progress = FollowerProgress(log_end_offset=offset, last_fetch_ms=at_ms, last_caught_up_ms=caught_up_ms)
    assert progress.is_caught_up(leader_end, now_ms, LAG_MS) is expected


def _leader(isr: set[int], *, epoch: int = 5, start: int = END, before: LeaderState | None = None) -> LeaderState:
    state = LeaderState(
        node_id=1,
        broker_epoch=101,
        leader_epoch=epoch,
        partition_epoch=epoch,
        replicas=(1, 2),
        isr=frozenset(isr),
        epoch_start_offset=start,
        rules=RULES,
    )
    state.inherit_progress(before, now_ms=500)
    return state


def _fetch(state: LeaderState, offset: int, now_ms: int) -> None:
    state.on_fetch(2, offset, log_start_offset=0, broker_epoch=102, min_insync_replicas=1, now_ms=now_ms)


@pytest.mark.parametrize("is_in_sync", [True, False])
def test_a_new_leader_counts_in_sync_replicas_as_caught_up(is_in_sync: bool) -> None:
    """testResetReplicaStateWhenNewLeaderIsElectedAndReplicaIsInSync, ...NotInSync; E33."""
    progress = _leader({1, 2} if is_in_sync else {1}).followers[2]
    assert (progress.log_end_offset, progress.broker_epoch) == (-1, NO_EPOCH)
    assert progress.last_caught_up_ms == (500 if is_in_sync else None)


@pytest.mark.parametrize("is_in_sync", [True, False])
def test_a_reelected_leader_remembers_its_followers(is_in_sync: bool) -> None:
    """testResetReplicaStateWhenLeaderIsReelectedAndReplicaIsInSync, ...NotInSync; E33, gaps.md G53.

    Kafka sets the time of an in-sync replica to now; here it stays the observed one.
    """
    first = _leader({1, 2} if is_in_sync else {1})
    _fetch(first, END, 700)
    again = _leader(set(first.isr), epoch=6, before=first)
    progress = again.followers[2]
    assert (progress.log_end_offset, progress.broker_epoch, progress.last_caught_up_ms) == (END, 102, 700)


def test_the_same_epoch_again_keeps_all_followers() -> None:
    """testDoNotResetReplicaStateIfLeaderEpochIsNotBumped, testDoNotUpdateEpochStartOffsetIf...; E33."""
    state = _leader({1, 2})
    _fetch(state, END, 700)
    state.on_append(END + 5, 1, 710)
    state.on_partition(
        partition_epoch=6, replicas=(1, 2), isr={1}, is_recovering=False, min_insync_replicas=1, now_ms=720
    )
    progress = state.followers[2]
    assert (progress.log_end_offset, progress.last_caught_up_ms, state.epoch_start_offset) == (END, 700, END)


def test_a_follower_always_one_fetch_behind_stays_in_sync() -> None:
    """testShouldNotShrinkIsrIfPreviousFetchIsCaughtUp; E32, E38: always one fetch behind is no lag."""
    state = _leader({1, 2})
    for step in range(1, 20):
        state.on_append(END + step, 1, 500 + step * LAG_MS)
        _fetch(state, END + step - 1, 500 + step * LAG_MS)
        assert state.propose_shrink(500 + step * LAG_MS) is None
    assert state.propose_shrink(500 + 19 * LAG_MS + 1) is not None, (
        "it was last caught up a second before its last fetch"
    )
