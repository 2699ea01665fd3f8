"""The leader of one partition: high watermark, read bounds, followers, the in-sync set and its changes."""

from __future__ import annotations

import pytest

from fenceline.errors import ErrorCode
from fenceline.replica.fencing import CONSUMER_REPLICA_ID, DEBUG_REPLICA_ID, NO_EPOCH, check_leader_epoch, read_bound
from fenceline.replica.leader import InSyncRules, LeaderState, ProposedReplica, Rejection

LAG_MS = 30_000
BROKER_EPOCHS = {1: 101, 2: 102, 3: 103}
"""Brokers that are registered, unfenced and not shutting down."""


def leader(
    isr: set[int],
    *,
    start: int = 0,
    replicas: tuple[int, ...] = (1, 2, 3),
    high_watermark: int = 0,
    brokers: dict[int, int] | None = None,
    is_recovering: bool = False,
    leader_epoch: int = 5,
) -> LeaderState:
    known = BROKER_EPOCHS if brokers is None else brokers
    state = LeaderState(
        node_id=1,
        broker_epoch=101,
        leader_epoch=leader_epoch,
        partition_epoch=7,
        replicas=replicas,
        isr=frozenset(isr),
        epoch_start_offset=start,
        rules=InSyncRules(lambda broker: known.get(broker, NO_EPOCH), LAG_MS),
        high_watermark=high_watermark,
        is_recovering=is_recovering,
    )
    state.inherit_progress(None, now_ms=0)
    return state


def fetch(state: LeaderState, replica: int, offset: int, *, now_ms: int = 0, min_isr: int = 1, epoch: int = 0) -> bool:
    return state.on_fetch(
        replica,
        offset,
        log_start_offset=0,
        broker_epoch=epoch or BROKER_EPOCHS[replica],
        min_insync_replicas=min_isr,
        now_ms=now_ms,
    )


def reported(state: LeaderState, isr: set[int], *, partition_epoch: int = 8, recovering: bool = False) -> bool:
    return state.on_partition(
        partition_epoch=partition_epoch,
        replicas=state.replicas,
        isr=isr,
        is_recovering=recovering,
        min_insync_replicas=1,
        now_ms=0,
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


class TestHighWatermark:
    """`epochs.md E40-E41`."""

    def test_single_replica_commits_its_appends(self) -> None:
        state = leader({1}, replicas=(1,))
        assert state.on_append(10, 1, 0)
        assert state.high_watermark == 10
        assert not state.on_append(10, 1, 0)

    def test_single_member_isr_commits_its_appends(self) -> None:
        state = leader({1})
        assert state.on_append(10, 1, 0)
        assert state.high_watermark == 10

    def test_is_the_least_end_of_the_in_sync_replicas(self) -> None:
        state = leader({1, 2, 3})
        assert not state.on_append(10, 1, 0)
        assert not fetch(state, 2, 10)
        assert fetch(state, 3, 6)
        assert state.high_watermark == 6
        assert fetch(state, 3, 10)
        assert state.high_watermark == 10

    def test_never_moves_before_every_in_sync_replica_has_fetched(self) -> None:
        state = leader({1, 2})
        assert not state.on_append(10, 1, 0)
        assert state.high_watermark == 0
        assert reported(state, {1})
        assert state.high_watermark == 10

    def test_never_goes_back_when_a_replica_does(self) -> None:
        state = leader({1, 2})
        state.on_append(10, 1, 0)
        fetch(state, 2, 10)
        assert not fetch(state, 2, 4)
        assert state.high_watermark == 10

    def test_stays_with_fewer_in_sync_than_min_insync(self) -> None:
        """|ISR| < min(min.insync.replicas, replication factor) holds it."""
        state = leader({1})
        assert not state.on_append(10, 2, 0)
        assert not state.has_enough_replicas(2)
        assert leader({1}, replicas=(1,)).has_enough_replicas(2)

    def test_waits_for_a_caught_up_replica_that_will_join(self) -> None:
        """`gaps.md G48`: a caught-up, eligible replica holds it without being in sync, until it lags."""
        state = leader({1, 2})
        state.on_append(10, 1, 0)
        fetch(state, 3, 10, now_ms=1)
        fetch(state, 2, 10, now_ms=1)
        assert state.high_watermark == 10
        state.on_append(20, 1, 2)
        assert not fetch(state, 2, 20, now_ms=2)
        assert fetch(state, 2, 20, now_ms=2 + LAG_MS)
        assert state.high_watermark == 20

    def test_does_not_wait_for_a_replica_that_was_caught_up_before_its_restart(self) -> None:
        """It may lack gigabytes: producers would wait for them, for up to `replica.lag.time.max.ms`, as Kafka's do."""
        brokers = dict(BROKER_EPOCHS)
        state = leader({1, 2}, brokers=brokers)
        state.on_append(10, 1, 0)
        fetch(state, 3, 10, now_ms=1_000)
        assert fetch(state, 2, 10, now_ms=1_000)
        brokers[3] = 203
        state.on_append(50, 1, 2_000)
        assert fetch(state, 2, 50, now_ms=2_000), "it is registered as another incarnation"
        fetch(state, 3, 10, now_ms=3_000, epoch=203)
        state.on_append(60, 1, 3_000)
        assert fetch(state, 2, 60, now_ms=3_000)
        assert state.high_watermark == 60
        fetch(state, 3, 60, now_ms=4_000, epoch=203)
        state.on_append(70, 1, 5_000)
        assert not fetch(state, 2, 70, now_ms=5_000), "it joins at once"

    def test_does_not_wait_for_a_caught_up_replica_that_may_not_join(self) -> None:
        """PartitionTest.testHighWatermarkIncreasesWithFencedOrShutdownFollower."""
        state = leader({1, 2}, brokers={1: 101, 2: 102})
        state.on_append(10, 1, 0)
        fetch(state, 3, 10)
        fetch(state, 2, 10)
        state.on_append(20, 1, 1)
        assert fetch(state, 2, 20, now_ms=1)

    def test_does_not_wait_for_a_replica_that_the_controller_removed(self) -> None:
        """Its broker is alive, its directory has failed (KIP-858): it no longer fetches this partition."""
        state = leader({1, 2})
        state.on_append(5, 1, 0)
        fetch(state, 2, 5)
        assert state.high_watermark == 5
        reported(state, {1})
        assert state.on_append(7, 1, 10)
        assert state.high_watermark == 7
        # Once it fetches again, it is waited for again.
        fetch(state, 2, 7, now_ms=20)
        assert not state.on_append(8, 1, 30)


class TestReaders:
    def test_read_bounds_by_role(self) -> None:
        """`epochs.md E43`: followers to the log end, read_uncommitted to the high watermark, read_committed the LSO."""
        bounds = {"log_end_offset": 10, "high_watermark": 6, "last_stable_offset": 4}
        assert read_bound(replica_id=2, isolation=0, **bounds) == 10
        assert read_bound(replica_id=DEBUG_REPLICA_ID, isolation=1, **bounds) == 10
        assert read_bound(replica_id=CONSUMER_REPLICA_ID, isolation=0, **bounds) == 6
        assert read_bound(replica_id=CONSUMER_REPLICA_ID, isolation=1, **bounds) == 4

    def test_end_offset_is_hidden_until_the_epochs_start_is_committed(self) -> None:
        """`list_offsets.md L11`: blocked while the high watermark is below the epoch's start; equal is not blocked."""
        state = leader({1, 2}, start=5, high_watermark=2)
        assert state.hides_end_offset(CONSUMER_REPLICA_ID)
        assert not state.hides_end_offset(2)
        assert fetch(state, 2, 5)
        assert not state.hides_end_offset(CONSUMER_REPLICA_ID)


class TestFollowers:
    def test_unknown_replica_is_rejected(self) -> None:
        """`epochs.md E30`."""
        state = leader({1}, replicas=(1, 2))
        assert state.check_follower(3, 103, knows_epoch=True) is ErrorCode.UNKNOWN_LEADER_EPOCH
        assert state.check_follower(3, 103, knows_epoch=False) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert state.check_follower(1, 101, knows_epoch=True) is ErrorCode.UNKNOWN_LEADER_EPOCH

    def test_replaced_process_is_rejected(self) -> None:
        """`epochs.md E31` (KIP-903)."""
        state = leader({1, 2})
        assert state.check_follower(2, 101, knows_epoch=True) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert state.check_follower(2, 102, knows_epoch=True) is ErrorCode.NONE
        assert state.check_follower(2, NO_EPOCH, knows_epoch=True) is ErrorCode.NONE

    def test_caught_up_means_at_the_end_of_the_previous_fetch(self) -> None:
        """`epochs.md E32`: a replica that has the leader's end at its previous fetch was caught up then."""
        state = leader({1, 2})
        state.on_append(10, 1, 0)
        fetch(state, 2, 0, now_ms=100)
        state.on_append(20, 1, 0)
        fetch(state, 2, 10, now_ms=200)
        assert state.followers[2].last_caught_up_ms == 100
        fetch(state, 2, 20, now_ms=300)
        assert state.followers[2].last_caught_up_ms == 300

    def test_first_fetch_under_a_new_leader_catches_no_follower_up(self) -> None:
        state = leader({1}, start=10)
        fetch(state, 3, 4, now_ms=50)
        assert state.followers[3].last_caught_up_ms is None

    def test_same_leader_keeps_follower_log_ends_in_a_higher_epoch(self) -> None:
        """`epochs.md E33`, `gaps.md G53`."""
        before = leader({1, 2}, leader_epoch=4)
        before.on_append(10, 1, 0)
        fetch(before, 2, 10)
        after = leader({1, 2}, start=10, high_watermark=10)
        after.inherit_progress(before, now_ms=5)
        assert after.followers[2].log_end_offset == 10
        anew = leader({1, 2}, start=10)
        assert anew.followers[2].log_end_offset == -1

    def test_same_leader_drops_log_ends_where_another_may_have_led_between(self) -> None:
        """`gaps.md G53`. Epoch 3 was broker 1's, 4 was broker 2's, 5 is broker 1's again, and it learns of both at
        once. Broker 3 had offset 9 of epoch 3 and was truncated by the leader of epoch 4: nothing of it may count as
        committed.
        """
        before = leader({1, 2, 3}, leader_epoch=3)
        before.on_append(10, 1, 0)
        fetch(before, 3, 10)
        after = leader({1, 3}, start=10, high_watermark=5)
        after.inherit_progress(before, now_ms=5)
        assert after.followers[3].log_end_offset == -1
        assert not after.advance(1, now_ms=5)
        assert after.high_watermark == 5

    def test_low_watermark_waits_for_live_replicas(self) -> None:
        state = leader({1, 2, 3})
        for replica, start in ((2, 4), (3, 2)):
            state.on_fetch(replica, 9, log_start_offset=start, broker_epoch=1, min_insync_replicas=1, now_ms=0)
        assert state.low_watermark(7, lambda _: True) == 2
        assert state.low_watermark(7, lambda replica: replica == 2) == 4


class TestInSyncSet:
    def test_joins_at_the_start_of_this_epoch(self) -> None:
        """`epochs.md E35`: PartitionTest.testFollowerDoesNotJoinISRUntilCaughtUpToOffsetWithinCurrentLeaderEpoch."""
        state = leader({1, 2}, start=10, high_watermark=6)
        fetch(state, 3, 8)
        assert state.propose_expansion(3) is None
        fetch(state, 3, 10)
        proposal = state.propose_expansion(3)
        assert proposal is not None
        assert proposal.members == (ProposedReplica(1, 101), ProposedReplica(2, NO_EPOCH), ProposedReplica(3, 103))
        assert (proposal.leader_epoch, proposal.partition_epoch) == (5, 7)

    def test_does_not_join_below_the_high_watermark(self) -> None:
        state = leader({1}, high_watermark=0)
        state.on_append(10, 1, 0)
        fetch(state, 3, 9)
        assert state.propose_expansion(3) is None

    def test_does_not_join_with_only_records_below_the_log_start(self) -> None:
        """`epochs.md E13` (d): a game of the search (seed 7000004 of `operations`): the follower's log ended where the
        leader's began, and was of another history.
        """
        state = leader({1}, high_watermark=0)
        state.on_append(13, 1, 0)
        state.on_fetch(3, 13, log_start_offset=10, broker_epoch=103, min_insync_replicas=1, now_ms=0)
        assert state.propose_expansion(3, 13) is None
        assert state.propose_expansion(3, 12) is not None, "the record before was compared"

    def test_does_not_join_with_an_empty_log_above_the_log_start(self) -> None:
        """It restarts at the leader's start with this response (`operations`, seed 9100327); an eligible leader
        replica, whose records had been deleted, does not (seed 22000370: it was out of sync forever).
        """
        state = leader({1}, high_watermark=0)
        state.on_append(13, 1, 0)
        state.on_fetch(3, 13, log_start_offset=13, broker_epoch=103, min_insync_replicas=1, now_ms=0)
        assert state.propose_expansion(3, 12) is None
        assert state.propose_expansion(3, 12, may_lead=True) is not None

    def test_joins_with_an_empty_log_at_the_log_start(self) -> None:
        state = leader({1}, high_watermark=0)
        state.on_append(13, 1, 0)
        state.on_fetch(3, 13, log_start_offset=13, broker_epoch=103, min_insync_replicas=1, now_ms=0)
        assert state.propose_expansion(3, 13) is not None

    @pytest.mark.parametrize("brokers", [{1: 101}, {1: 101, 3: 104}])
    def test_ineligible_replica_does_not_join(self, brokers: dict[int, int]) -> None:
        """`epochs.md E36`: fenced, shutting down, gone; or another incarnation than the one that fetched (KIP-903)."""
        state = leader({1}, brokers=brokers)
        fetch(state, 3, 0, epoch=103)
        assert state.propose_expansion(3) is None

    def test_replica_without_a_broker_epoch_does_not_join(self) -> None:
        """`gaps.md G14c`."""
        state = leader({1})
        fetch(state, 3, 0, epoch=NO_EPOCH)
        assert state.propose_expansion(3) is None

    def test_new_member_is_waited_for_before_the_controller_answers(self) -> None:
        """`epochs.md E37`: the maximal set counts for the high watermark, the committed one for min.insync.replicas."""
        state = leader({1}, brokers={1: 101, 3: 103})
        fetch(state, 3, 0)
        assert state.propose_expansion(3) is not None
        assert not state.on_append(10, 1, 2 * LAG_MS)
        assert not state.has_enough_replicas(2)
        assert state.had_enough_replicas(2)

    def test_old_member_is_waited_for_until_the_controller_removes_it(self) -> None:
        state = leader({1, 2, 3})
        state.on_append(10, 1, 0)
        fetch(state, 2, 10, now_ms=LAG_MS + 1)
        proposal = state.propose_shrink(LAG_MS + 1)
        assert proposal is not None
        assert [member.broker_id for member in proposal.members] == [1, 2]
        assert state.high_watermark == 0
        assert reported(state, {1, 2})
        assert state.high_watermark == 10

    def test_no_member_is_removed_within_the_lag_time(self) -> None:
        state = leader({1, 2, 3})
        state.on_append(10, 1, 0)
        assert state.propose_shrink(LAG_MS) is None

    def test_idle_followers_stay_in_sync(self) -> None:
        """`epochs.md E34`: at the leader's end is caught up, however long ago the last fetch was."""
        state = leader({1, 2})
        state.on_append(10, 1, 0)
        fetch(state, 2, 10)
        assert state.propose_shrink(100 * LAG_MS) is None

    def test_one_change_at_a_time(self) -> None:
        state = leader({1})
        fetch(state, 2, 0)
        fetch(state, 3, 0)
        assert state.propose_expansion(2) is not None
        assert state.propose_expansion(3) is None
        assert state.propose_shrink(10 * LAG_MS) is None
        reported(state, {1, 2})
        assert state.propose_expansion(3) is not None

    def test_older_metadata_changes_nothing(self) -> None:
        """`epochs.md E33`."""
        state = leader({1, 2})
        assert not reported(state, {1}, partition_epoch=7)
        assert not reported(state, {1}, partition_epoch=6)
        assert state.isr == {1, 2}

    @pytest.mark.parametrize(
        ("code", "outcome", "stays"),
        [
            (ErrorCode.OPERATION_NOT_ATTEMPTED, Rejection.REVERTED, False),
            (ErrorCode.INELIGIBLE_REPLICA, Rejection.REVERTED, False),
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, Rejection.STANDS, True),
            (ErrorCode.UNKNOWN_TOPIC_ID, Rejection.STANDS, True),
            (ErrorCode.FENCED_LEADER_EPOCH, Rejection.STANDS, True),
            (ErrorCode.INVALID_UPDATE_VERSION, Rejection.STANDS, True),
            (ErrorCode.INVALID_REQUEST, Rejection.STANDS, True),
            (ErrorCode.NEW_LEADER_ELECTED, Rejection.STANDS, True),
            (ErrorCode.NOT_CONTROLLER, Rejection.ASK_AGAIN, True),
            (ErrorCode.UNKNOWN_SERVER_ERROR, Rejection.ASK_AGAIN, True),
        ],
    )
    def test_rejected_change(self, code: ErrorCode, outcome: Rejection, stays: bool) -> None:
        """`epochs.md E39`."""
        state = leader({1})
        fetch(state, 2, 0)
        proposal = state.propose_expansion(2)
        assert proposal is not None
        assert state.on_rejected(proposal, code) is outcome
        assert (state.proposal is proposal) is stays

    def test_rejection_of_an_older_change_does_not_affect_the_newer(self) -> None:
        state = leader({1})
        fetch(state, 2, 0)
        older = state.propose_expansion(2)
        assert older is not None
        reported(state, {1, 2})
        fetch(state, 3, 0)
        newer = state.propose_expansion(3)
        assert state.on_rejected(older, ErrorCode.INELIGIBLE_REPLICA) is Rejection.REVERTED
        assert state.proposal is newer


class TestRecovering:
    """`recovery.md V37-V42` (KIP-704)."""

    def test_in_sync_set_stays_until_the_controller_knows_of_the_recovery(self) -> None:
        state = leader({1}, is_recovering=True)
        fetch(state, 2, 0)
        assert state.propose_expansion(2) is None
        proposal = state.propose_recovered()
        assert proposal is not None
        assert proposal.members == (ProposedReplica(1, 101),)
        reported(state, {1})
        assert not state.is_recovering
        assert state.propose_expansion(2) is not None

    def test_metadata_without_recovered_leaves_it_recovering(self) -> None:
        state = leader({1}, is_recovering=True)
        reported(state, {1}, recovering=True)
        assert state.is_recovering
        assert state.propose_recovered() is not None

    def test_recovered_is_proposed_again_after_another_change_within_the_epoch(self) -> None:
        state = leader({1}, is_recovering=True)
        assert state.propose_recovered_again() is None, "recovery is not done"
        first = state.propose_recovered()
        assert state.propose_recovered_again() is None, "the first proposal is pending"
        reported(state, {1}, recovering=True)
        again = state.propose_recovered_again()
        assert first is not None
        assert again is not None
        assert again.partition_epoch > first.partition_epoch
        state.on_rejected(again, ErrorCode.INELIGIBLE_REPLICA)
        assert state.propose_recovered_again() is not None, "a rejection that reverts leaves nothing proposed"
        reported(state, {1})
        assert state.propose_recovered_again() is None, "the controller has accepted it"

    def test_recovered_leader_proposes_nothing(self) -> None:
        assert leader({1}).propose_recovered() is None


@pytest.mark.parametrize("min_isr", [1, 3])
@pytest.mark.parametrize("isr", [{1, 2, 3}, {1, 2}])
@pytest.mark.parametrize("high_watermark", [4, 5])
@pytest.mark.parametrize("ends", [(5, 5), (5, 4), (5, None), (None, None)])
def test_a_settled_leader_has_nothing_to_do(
    isr: set[int], high_watermark: int, ends: tuple[int | None, ...], min_isr: int
) -> None:
    state = leader(isr)
    state.log_end_offset = 5
    for replica, end in zip((2, 3), ends, strict=True):
        if end is not None:
            state.followers[replica].log_end_offset = end
    state.high_watermark = high_watermark
    is_settled = state.is_settled
    assert is_settled == (isr == {1, 2, 3} and high_watermark == 5 and ends == (5, 5))
    if is_settled:
        assert state.propose_shrink(2 * LAG_MS) is None
        assert not state.advance(min_isr, 2 * LAG_MS)
