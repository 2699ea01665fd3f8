"""In-sync sets between a leader and its controller: the requests, their timing, and the effect of answers.

The cases of Kafka's AlterPartitionManagerTest, and those of PartitionTest with controller requests. Rules: `epochs.md
E31-E39`; controller.md C47.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from fenceline.controller.partition_requests import AlteredPartition
from fenceline.errors import ErrorCode, PeerError
from tests.node.desk import RECOVERING, Desk, run_story, turns

LAG_MS = 30_000


def _taken(change: Any, **other: Any) -> AlteredPartition:
    """The controller accepted the change."""
    fields = {
        "index": change.index,
        "leader": 1,
        "leader_epoch": change.leader_epoch,
        "isr": tuple(member.broker_id for member in change.new_isr),
        "partition_epoch": change.partition_epoch + 1,
    }
    return AlteredPartition(**{**fields, **other})


def _answering(*outcomes: Callable[[Any], AlteredPartition | None] | ErrorCode) -> Callable[[Any], Any]:
    """Outcomes in turn, for every partition of a request; None leaves a partition out, and the last one repeats."""
    left = list(outcomes)

    def answer(request: Any) -> Any:
        outcome = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(outcome, ErrorCode):
            return PeerError(outcome)
        topics = [
            (topic_id, tuple(found for each in changes if (found := outcome(each)) is not None))
            for topic_id, changes in request.topics
        ]
        return SimpleNamespace(topics=tuple(topics))

    return answer


def _refused(code: ErrorCode) -> Callable[[Any], AlteredPartition]:
    return lambda change: AlteredPartition(change.index, code)


def _changes(request: Any) -> list[tuple[int, list[int]]]:
    """(partition, wanted in-sync set) of a request."""
    return sorted(
        (change.index, [member.broker_id for member in change.new_isr])
        for _, changes in request.topics
        for change in changes
    )


async def _asked(desk: Desk, count: int) -> None:
    while len(desk.controller.asked) < count:
        await turns(1)


def _isr(desk: Desk, index: int = 0) -> set[int]:
    leader = desk.replica(index).leader
    assert leader is not None
    return set(leader.isr)


def _pending(desk: Desk) -> bool:
    leader = desk.replica().leader
    assert leader is not None
    return leader.proposal is not None


# -- the request -------------------------------------------------------------------------------------------------------


def test_request_has_epochs_members_and_recovery_state() -> None:
    """testBasicSentLeaderRecoveryState; KIP-903: each member with the broker epoch that the leader knows."""

    async def story(desk: Desk) -> None:
        desk.lead(5, isr=(1,))
        desk.follower_fetched(2, 0)
        await _asked(desk, 1)
        (request,) = desk.controller.asked
        ((topic_id, (change,)),) = request.topics
        assert (request.broker_id, request.broker_epoch, topic_id) == (1, 101, desk.topic_id)
        assert (change.leader_epoch, change.partition_epoch) == (5, 1)
        assert [(each.broker_id, each.broker_epoch) for each in change.new_isr] == [(1, 101), (2, 102)]
        assert change.leader_recovery_state == 0

    run_story(story)


def test_one_request_in_flight_and_the_next_has_all_changes() -> None:
    """testOneInFlight; E35, C47."""

    async def story(desk: Desk) -> None:
        for index in range(3):
            desk.lead(5, isr=(1,), index=index)
        desk.follower_fetched(2, 0, index=0)
        await _asked(desk, 1)
        desk.follower_fetched(2, 0, index=1)
        desk.follower_fetched(3, 0, index=2)
        desk.follower_fetched(3, 0, index=0)
        await turns()
        assert [_changes(each) for each in desk.controller.asked] == [[(0, [1, 2])]]
        desk.controller.answer = _answering(_taken)
        desk.controller.lose()
        await _asked(desk, 2)
        assert _changes(desk.controller.asked[1]) == [(0, [1, 2]), (1, [1, 2]), (2, [1, 3])]

    run_story(story, partitions=3)


# -- the answer --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("follower", [2, 3])
def test_accepted_isr_applies_at_once(follower: int) -> None:
    """testIsrExpansion: the answer is enough, before the metadata log has the change."""

    async def story(desk: Desk) -> None:
        desk.controller.answer = _answering(_taken)
        desk.lead(5, isr=(1,))
        desk.follower_fetched(follower, 0)
        while _pending(desk):
            await turns(1)
        assert _isr(desk) == {1, follower}
        desk.tell(isr=(1, follower))
        assert _isr(desk) == {1, follower}
        assert not _pending(desk)

    run_story(story)


@pytest.mark.parametrize("code", [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA])
def test_rejected_expansion_is_retried_on_the_next_fetch(code: ErrorCode) -> None:
    """testIsrNotExpandedIfUpdateFails; E39: reverted at once."""

    async def story(desk: Desk) -> None:
        desk.controller.answer = _answering(_refused(code))
        desk.lead(5, isr=(1,))
        desk.follower_fetched(2, 0)
        woken: list[bool] = []
        desk.replica().follower_waiters.add(lambda: woken.append(_pending(desk)))
        while _pending(desk):
            await turns(1)
        await turns()
        assert woken == [False], "a session that has the follower as idle reads the partition again"
        assert len(desk.controller.asked) == 1
        assert _isr(desk) == {1}
        desk.follower_fetched(2, 0)
        await _asked(desk, 2)

    run_story(story)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    ],
)
def test_outdated_request_waits_for_the_metadata_log(code: ErrorCode) -> None:
    """testAlterIsrNewLeaderElected, ...UnknownTopic, ...InvalidVersion, testInvalidAlterPartitionRequestsAreNotRetried.

    E39: a change that may have been accepted stays pending.
    """

    async def story(desk: Desk) -> None:
        desk.controller.answer = _answering(_refused(code))
        desk.lead(5, isr=(1,))
        desk.follower_fetched(2, 0)
        await _asked(desk, 1)
        await turns()
        desk.follower_fetched(2, 0)
        desk.follower_fetched(3, 0)
        await turns()
        assert len(desk.controller.asked) == 1
        desk.append(1)
        assert desk.replica().high_watermark == 0, "the replica may be in sync"
        desk.tell(isr=(1,))
        assert not _pending(desk)
        desk.follower_fetched(3, 1)
        await _asked(desk, 2)

    run_story(story)


@pytest.mark.parametrize(
    "outcome",
    [
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_CONTROLLER,
        _refused(ErrorCode.UNKNOWN_SERVER_ERROR),
        _refused(ErrorCode.NOT_CONTROLLER),
        lambda change: None,
    ],
    ids=[
        "stale broker epoch",
        "no answer",
        "no controller",
        "unknown server error",
        "not the active controller",
        "left out",
    ],
)
def test_transient_error_resends_the_same_change(outcome: Callable[[Any], AlteredPartition | None] | ErrorCode) -> None:
    """testStaleBrokerEpoch, testPartitionMissingInResponse, testAlterIsrUnexpectedError, testRetryShrinkIsr; C47.

    Resent with the current broker epoch: the broker may have registered again.
    """

    async def story(desk: Desk) -> None:
        desk.controller.answer = _answering(outcome, outcome, _taken)
        desk.lead(5, isr=(1,))
        desk.follower_fetched(2, 0)
        await _asked(desk, 1)
        desk.broker_epoch = 909
        while _pending(desk):
            await turns(1)
        assert [_changes(each) for each in desk.controller.asked] == [[(0, [1, 2])]] * 3
        assert [each.broker_epoch for each in desk.controller.asked] == [101, 909, 909]
        assert _isr(desk) == {1, 2}

    run_story(story)


@pytest.mark.parametrize("news", ["newer partition epoch", "newer leader epoch", "another leads"])
@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.INELIGIBLE_REPLICA, ErrorCode.UNKNOWN_SERVER_ERROR])
def test_answer_older_than_the_metadata_log_is_ignored(news: str, code: ErrorCode) -> None:
    """testAlterIsrLeaderAndIsrRace; E39, E33: nor is the request sent again."""

    async def story(desk: Desk) -> None:
        desk.lead(5, isr=(1,))
        desk.follower_fetched(2, 0)
        await _asked(desk, 1)
        asked = desk.controller.asked[0]
        match news:
            case "newer partition epoch":
                desk.tell(isr=(1, 3), partition_epoch=7)
            case "newer leader epoch":
                desk.lead(6, isr=(1, 3))
            case _:
                desk.follow(6)
        late = _answering(_taken if code is ErrorCode.NONE else _refused(code))(asked)
        (out,) = desk.controller._out
        out.set_result(late)
        await turns()
        assert len(desk.controller.asked) == 1
        leader = desk.replica().leader
        if news == "another leads":
            assert leader is None
        else:
            assert leader is not None
            assert (set(leader.isr), leader.proposal) == ({1, 3}, None)

    run_story(story)


# -- removal from the ISR ----------------------------------------------------------------------------------------------


def _lagging(desk: Desk) -> None:
    """Replica 3 is in sync and fetched its last record long ago."""
    desk.lead(5, isr=(1, 2, 3))
    desk.append(2)
    for follower in (2, 3):
        desk.follower_fetched(follower, 2)
    desk.append(1)
    desk.clock.ms += LAG_MS + 1
    desk.follower_fetched(2, 3)


def test_lagging_replica_counts_until_its_removal_is_committed() -> None:
    """testMaybeShrinkIsr; E37, E38: the high watermark moves when the change is committed."""

    async def story(desk: Desk) -> None:
        _lagging(desk)
        desk.replication.shrink_isrs()
        await _asked(desk, 1)
        assert _changes(desk.controller.asked[0]) == [(0, [1, 2])]
        desk.follower_fetched(2, 3)
        assert (_isr(desk), desk.replica().high_watermark) == ({1, 2, 3}, 2)
        desk.controller.answer = _answering(_taken)
        desk.controller.lose()
        while _pending(desk):
            await turns(1)
        assert (_isr(desk), desk.replica().high_watermark) == ({1, 2}, 3)

    run_story(story)


def test_rejected_shrink_is_retried_by_the_next_check() -> None:
    """testIsrNotShrunkIfUpdateFails."""

    async def story(desk: Desk) -> None:
        _lagging(desk)
        desk.controller.answer = _answering(_refused(ErrorCode.OPERATION_NOT_ATTEMPTED))
        desk.replication.shrink_isrs()
        while _pending(desk):
            await turns(1)
        assert (_isr(desk), desk.replica().high_watermark) == ({1, 2, 3}, 2)
        desk.replication.shrink_isrs()
        await _asked(desk, 2)

    run_story(story)


# -- eligibility -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("broker", "joins"),
    [
        ({}, True),
        ({"fenced": True}, False),
        ({"in_controlled_shutdown": True}, False),
        ({"epoch": 95}, False),
    ],
    ids=["as registered", "fenced", "shutting down", "another incarnation"],
)
def test_eligibility_for_the_isr(broker: dict[str, Any], joins: bool) -> None:
    """testIsrNotExpandedIfReplicaIsFencedOrShutdown, ...InControlledShutdown,
    testIsrCanExpandedIfBrokerEpochsMatchWithKraftMetadataCache, testHighWatermarkIncreasesWithFencedOrShutdownFollower.

    E36, E40: a replica that may not join does not hold back the high watermark either.
    """

    async def story(desk: Desk) -> None:
        desk.lead(5, isr=(1, 2))
        desk.tell_broker(3, **broker)
        assert desk.follower_fetched(3, 0).error_code == 0
        await turns()
        assert bool(desk.controller.asked) is joins
        desk.append(1)
        desk.follower_fetched(2, 1)
        assert desk.replica().high_watermark == (0 if joins else 1)

    run_story(story)


# -- recovered leaders -------------------------------------------------------------------------------------------------


def _of_the_current_epoch(desk: Desk) -> Callable[[Any], Any]:
    """Answers as a controller with the partition state of `desk`."""

    def answer(change: Any) -> AlteredPartition:
        leader = desk.replica().leader
        assert leader is not None
        if change.partition_epoch < leader.partition_epoch:
            return AlteredPartition(change.index, ErrorCode.INVALID_UPDATE_VERSION)
        return _taken(change)

    return _answering(answer)


@pytest.mark.parametrize("changes", [1, 3])
def test_recovered_is_proposed_again_after_a_partition_change(changes: int) -> None:
    """V37-V39, E39: a reassignment within the epoch bumps the partition epoch while RECOVERED is out, and the
    controller rejects a change based on the old state.
    """

    async def story(desk: Desk) -> None:
        desk.lead(4, leader_recovery_state=RECOVERING)
        await _asked(desk, 1)
        for number in range(changes):
            desk.tell(replicas=(1, 2, 3, 4 + number), adding=(4 + number,))
        assert desk.replica().is_recovering
        (out,) = desk.controller._out
        out.set_result(_of_the_current_epoch(desk)(desk.controller.asked[0]))
        desk.controller.answer = _of_the_current_epoch(desk)
        while desk.replica().is_recovering:
            await turns(1)
        assert len(desk.controller.asked) == 2
        assert desk.fetched().error_code == ErrorCode.NONE

    run_story(story)


@pytest.mark.parametrize("code", [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA])
def test_rejected_recovered_is_proposed_again_by_the_next_check(code: ErrorCode) -> None:
    async def story(desk: Desk) -> None:
        desk.controller.answer = _answering(_refused(code), _taken)
        desk.lead(4, leader_recovery_state=RECOVERING)
        await _asked(desk, 1)
        while _pending(desk):
            await turns(1)
        assert desk.replica().is_recovering
        desk.replication.shrink_isrs()
        while desk.replica().is_recovering:
            await turns(1)

    run_story(story)


def test_recovered_is_not_proposed_before_recovery_completes() -> None:
    """The partition changes while the log is flushed."""

    async def story(desk: Desk) -> None:
        flushed = asyncio.Event()
        flush_up_to = desk.flushes.up_to

        async def slow(*arguments: Any) -> Any:
            await flushed.wait()
            return await flush_up_to(*arguments)

        desk.replication._flush_up_to = slow
        desk.lead(4, leader_recovery_state=RECOVERING)
        await turns()
        desk.tell(replicas=(1, 2, 3, 4), adding=(4,))
        desk.replication.shrink_isrs()
        await turns()
        assert desk.controller.asked == []
        flushed.set()
        await _asked(desk, 1)

    run_story(story)
