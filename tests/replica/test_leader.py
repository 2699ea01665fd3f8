"""The leader's fencing, high watermark and read bounds."""

from __future__ import annotations

import pytest

from fenceline.errors import ErrorCode
from fenceline.replica.leader import CONSUMER_REPLICA_ID, DEBUG_REPLICA_ID, LeaderState, check_leader_epoch


def leader(isr: set[int], *, start: int = 0, replicas: int = 3, high_watermark: int = 0) -> LeaderState:
    return LeaderState(
        node_id=1,
        leader_epoch=5,
        partition_epoch=7,
        isr=frozenset(isr),
        replica_count=replicas,
        epoch_start_offset=start,
        high_watermark=high_watermark,
    )


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        (-1, ErrorCode.NONE),
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (5, ErrorCode.NONE),
        (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_epoch_check(requested: int, expected: ErrorCode) -> None:
    """`epochs.md E1-E2`: absent passes, lower is fenced, higher is unknown."""
    assert check_leader_epoch(requested, 5) is expected


def test_a_set_of_one_commits_what_it_appends() -> None:
    state = leader({1})
    assert state.on_append(10, 1)
    assert state.high_watermark == 10
    assert not state.on_append(10, 1)


def test_nothing_is_committed_before_every_insync_replica_was_heard() -> None:
    state = leader({1, 2})
    assert not state.on_append(10, 1)
    assert state.high_watermark == 0
    assert state.on_isr_change(frozenset({1}), 8, 1)
    assert state.high_watermark == 10


def test_high_watermark_stays_below_min_insync() -> None:
    """`epochs.md E40`: never advances with fewer in sync than min(min.insync.replicas, replication factor)."""
    state = leader({1}, replicas=3)
    assert not state.on_append(10, 2)
    assert not state.has_enough_replicas(2)
    assert leader({1}, replicas=1).has_enough_replicas(2)


def test_read_bounds_by_role() -> None:
    """`epochs.md E43`: followers to the log end, read_uncommitted to the high watermark, read_committed to the LSO."""
    state = leader({1, 2}, high_watermark=6)
    bounds = {"log_end_offset": 10, "last_stable_offset": 4}
    assert state.read_bound(replica_id=2, isolation=0, **bounds) == 10
    assert state.read_bound(replica_id=DEBUG_REPLICA_ID, isolation=1, **bounds) == 10
    assert state.read_bound(replica_id=CONSUMER_REPLICA_ID, isolation=0, **bounds) == 6
    assert state.read_bound(replica_id=CONSUMER_REPLICA_ID, isolation=1, **bounds) == 4


def test_end_offset_is_hidden_until_the_epochs_start_is_committed() -> None:
    """`list_offsets.md L11`: blocked while the high watermark is below the epoch's start; equal is not blocked."""
    state = leader({1, 2}, start=5, high_watermark=2)
    assert state.hides_end_offset(CONSUMER_REPLICA_ID)
    assert not state.hides_end_offset(2)
    assert state.on_isr_change(frozenset({1}), 8, 1)
    assert not state.hides_end_offset(CONSUMER_REPLICA_ID)
