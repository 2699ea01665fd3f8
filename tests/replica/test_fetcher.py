"""A follower's fetch sessions, and whole logs that become equal to their leader's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from fenceline.errors import ErrorCode, PeerError
from fenceline.log.core.compaction_bound import CompleteFrom
from fenceline.replica.fetch_session import FetchSessions
from fenceline.replica.fetcher import MOST_FORGOTTEN, MOST_NAMED, FetchLimits, ReplicaFetcher
from fenceline.replica.follower import (
    AppendFetchedBatches,
    ApplyOffsets,
    AskEnd,
    AskEpochEnd,
    AskStart,
    CutTo,
    FollowerState,
    RestartAt,
)
from fenceline.replica.unused_log import UNUSED_LOG
from fenceline.wire.fetch import FetchedPartition, FetchRequest, FetchResponse
from tests.counting import lines_of
from tests.replica.histories import MemoryLog, answer, histories

TOPIC = bytes(range(16))
LIMITS = FetchLimits(max_wait_ms=500, min_bytes=1, max_bytes=10_000, partition_max_bytes=1_000, backoff_ms=1_000)


class Leader:
    """The leading broker: logs by partition, and its fetch sessions."""

    def __init__(self, logs: dict[int, MemoryLog], epoch: int) -> None:
        self.logs = logs
        self.epoch = epoch
        self.sessions = FetchSessions()
        self.read: list[int] = []
        """How many partitions were requested again in each request."""

    def serve(self, request: FetchRequest, *, at_most: int = 100) -> FetchResponse:
        self.read.append(len(request.partitions))
        try:
            plan = self.sessions.begin(request, uses_topic_ids=True, now_ms=0, fresh_id=77)
        except PeerError as error:
            return FetchResponse([], error_code=error.code)
        fetched = [answer(self.logs[each.index], self.epoch, each, at_most=at_most) for each in plan.partitions]
        return FetchResponse(plan.select(fetched), session_id=plan.session_id)


def follow(fetcher: ReplicaFetcher, log: MemoryLog, *, epoch: int, index: int = 0) -> FollowerState:
    state = FollowerState("topic", TOPIC, index, epoch, log)
    fetcher.follow(state)
    return state


def fetcher() -> ReplicaFetcher:
    return ReplicaFetcher(replica_id=2, broker_epoch=102, limits=LIMITS)


def run(fetcher: ReplicaFetcher, leader: Leader, *, rounds: int = 200, at_most: int = 100) -> dict[int, list[int]]:
    """Fetch until there is nothing new; returns the records that each partition truncated, in order (oldest record
    first each).
    """
    gone: dict[int, list[int]] = {}
    for round_ in range(rounds):
        now_ms = round_ * 10_000
        request = fetcher.next_request(now_ms)
        assert request is not None
        response = leader.serve(request, at_most=at_most)
        duties = list(fetcher.on_answer(response, now_ms))
        is_news = request.partitions or request.forgotten or response.error_code
        if not is_news and all(isinstance(duty, ApplyOffsets) for duty in duties):
            return gone
        pending = duties
        while pending:
            duty = pending.pop(0)
            state = duty.state
            log, leading = state.log, leader.logs[state.index]
            assert isinstance(log, MemoryLog)
            match duty:
                case AppendFetchedBatches():
                    log.append(list(duty.records))
                    fetcher.done(state)
                case CutTo():
                    gone.setdefault(state.index, []).extend(log.cut_to(duty.offset))
                    if (rest := state.on_cut(duty)) is not None:
                        gone[state.index].extend(log.begin_anew(rest.offset))
                    fetcher.done(state)
                case RestartAt():
                    gone.setdefault(state.index, []).extend(log.begin_anew(duty.offset))
                    fetcher.done(state)
                case AskEnd():
                    pending.append(state.on_leader_end(leading.log_end_offset))
                case AskStart():
                    following = state.on_leader_start(leading.log_start_offset)
                    if following is None:
                        fetcher.done(state)
                    else:
                        pending.append(following)
                case ApplyOffsets():
                    pass
    raise AssertionError("the logs never became equal")


@pytest.mark.parametrize("seed", range(300))
def test_follower_becomes_equal_and_truncates_no_record_that_its_leader_has(seed: int) -> None:
    """`epochs.md E25`, E64 (i): after any history, one leader's epoch makes every log equal to its own, and truncates
    exactly the records that the two do not share.
    """
    rng = Random(seed)
    logs, epoch = histories(rng, replicas=4, elections=rng.randint(1, 12))
    leading, *others = rng.sample(logs, len(logs))
    epoch += 1
    leading.lead(epoch)
    leading.append([epoch] * rng.randint(0, 3))
    if rng.random() < 0.3:
        leading.forget_below(rng.randint(0, leading.log_end_offset))
    following = fetcher()
    shared, ends = {}, {}
    for index, log in enumerate(others):
        shared[index], ends[index] = log.common_end(leading), log.log_end_offset
        follow(following, log, epoch=epoch, index=index)
    begins = {index: log.log_start_offset for index, log in enumerate(others)}
    gone = run(following, Leader(dict.fromkeys(range(len(others)), leading), epoch), at_most=rng.randint(1, 4))
    for index, log in enumerate(others):
        assert log.log_end_offset == leading.log_end_offset
        assert log.common_end(leading) == leading.log_end_offset
        if begins[index] == log.log_start_offset:  # did not have to restart empty
            assert len(gone.get(index, [])) == ends[index] - shared[index]


def test_unknown_future_epoch_is_truncated() -> None:
    """A log with an epoch unknown to its leader becomes equal to its leader's (`epochs.md E8`, E13 c)."""
    leading, log = MemoryLog(), MemoryLog()
    leading.append([1, 1, 2, 2, 2])
    log.append([1, 1, 9, 9])
    following = fetcher()
    follow(following, log, epoch=3)
    assert run(following, Leader({0: leading}, 3)) == {0: [9, 9]}
    assert log.records == leading.records


def test_records_of_a_lost_history_are_truncated_where_the_leader_deleted_its_own() -> None:
    """The leader's log starts where the follower's ends: there is no divergence, though no record is the same."""
    leading, log = MemoryLog(), MemoryLog()
    leading.lead(2)
    leading.append([2, 2, 2])
    leading.forget_below(3)
    log.append([1, 1, 1])
    following = fetcher()
    state = follow(following, log, epoch=2)
    assert run(following, Leader({0: leading}, 2)) == {0: [1, 1, 1]}
    assert log.log_start_offset == 3
    leading.append([2, 2])
    following.done(state)
    run(following, Leader({0: leading}, 2))
    leading.forget_below(5)
    following.done(state)
    assert run(following, Leader({0: leading}, 2)) == {}, "records from this leader are not compared again"


def test_only_changed_partitions_are_requested_again() -> None:
    """KIP-227: idle partitions cost nothing in a request."""
    leading = {index: MemoryLog() for index in range(30)}
    following, leader = fetcher(), Leader(leading, 1)
    for index in range(30):
        follow(following, MemoryLog(), epoch=1, index=index)
    run(following, leader)
    leading[7].append([1])
    run(following, leader)
    assert leader.read == [30, 0, 0, 1, 0]


def test_lost_session_is_reopened_with_all_partitions() -> None:
    leading = {index: MemoryLog() for index in range(3)}
    following, leader = fetcher(), Leader(leading, 1)
    for index in range(3):
        follow(following, MemoryLog(), epoch=1, index=index)
    run(following, leader)
    leader.sessions = FetchSessions()
    leading[1].append([1, 1])
    run(following, leader)
    assert [state.log.log_end_offset for state in following.states.values()] == [0, 2, 0]


def test_response_of_an_older_epoch_is_dropped() -> None:
    """`gaps.md G10`: the same offset in a newer leader epoch; Kafka would append it."""
    leading = MemoryLog()
    leading.append([1, 1])
    following, log = fetcher(), MemoryLog()
    follow(following, log, epoch=1)
    request = following.next_request(0)
    assert request is not None
    late = Leader({0: leading}, 1).serve(request)
    follow(following, log, epoch=2)
    assert list(following.on_answer(late, 0)) == []


def test_response_for_a_moved_partition_is_dropped() -> None:
    """`epochs.md E26`."""
    leading = MemoryLog()
    leading.append([1, 1])
    following, log = fetcher(), MemoryLog()
    follow(following, log, epoch=1)
    request = following.next_request(0)
    assert request is not None
    late = Leader({0: leading}, 1).serve(request)
    log.append([0])
    assert list(following.on_answer(late, 0)) == []
    following.leave((TOPIC, 0))
    assert following.next_request(0) is None


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
)
def test_rejected_partition_backs_off_and_is_always_retried(code: ErrorCode) -> None:
    """`epochs.md E27`; `gaps.md G3`: also when it is fenced in the newest known epoch. The others continue."""
    following = fetcher()
    state = follow(following, MemoryLog(), epoch=1, index=0)
    other = follow(following, MemoryLog(), epoch=1, index=1)
    pauses, now_ms = [], 0
    for _ in range(9):
        assert following.next_request(now_ms) is not None
        refused = FetchedPartition(None, TOPIC, 0, error_code=code)
        assert list(following.on_answer(FetchResponse([refused], session_id=5), now_ms)) == []
        assert other.is_ready(now_ms)
        assert not state.is_ready(now_ms)
        ready = following.next_ready_ms()
        assert ready is not None
        pauses.append(ready - now_ms)
        now_ms = ready
    assert pauses == [20, 40, 80, 160, 320, 640, 1_000, 1_000, 1_000]


def test_a_request_waits_no_longer_than_a_partition_backs_off() -> None:
    """A new partition is refused by a leader that has not heard of it. The fetch of the others would delay it."""
    following = fetcher()
    follow(following, MemoryLog(), epoch=1, index=0)
    follow(following, MemoryLog(), epoch=1, index=1)
    waits, now_ms = [], 0
    for _ in range(7):
        request = following.next_request(now_ms)
        assert request is not None
        waits.append(request.max_wait_ms)
        refused = FetchedPartition(None, TOPIC, 0, error_code=ErrorCode.UNKNOWN_TOPIC_ID)
        known = {each.index for each in request.partitions}
        list(following.on_answer(FetchResponse([refused] if 0 in known else [], session_id=5), now_ms))
        now_ms += 15
    assert waits == [500, 20, 500, 25, 20, 500, 65]


def test_partitions_in_backoff_are_not_looked_at_before_it_ends() -> None:
    """A node that knows of 50,000 new leaders before they do has all of these in back-off at once."""
    following = fetcher()
    states = [follow(following, MemoryLog(), epoch=1, index=index) for index in range(3)]
    assert following.next_request(0) is not None
    refused = [FetchedPartition(None, TOPIC, index, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER) for index in range(3)]
    list(following.on_answer(FetchResponse(refused, session_id=5), 0))
    following.hold_back(states[2], 30, 10)
    assert following.next_request(10) is None
    assert following._changed == {}
    assert following.next_ready_ms() == 20

    follow(following, MemoryLog(), epoch=2, index=1)
    request = following.next_request(15)
    assert request is not None
    assert ([each.index for each in request.partitions], request.max_wait_ms) == ([1], 20)
    following.on_connection_lost()
    request = following.next_request(20)
    assert request is not None
    assert ([each.index for each in request.partitions], request.max_wait_ms) == ([0, 1], 20)
    list(following.on_answer(FetchResponse([], session_id=6), 20))
    assert following.next_ready_ms() == 40
    request = following.next_request(40)
    assert request is not None
    assert ([each.index for each in request.partitions], request.max_wait_ms) == ([2], 500)


def test_truncating_partition_leaves_the_session_and_returns() -> None:
    leading, log = MemoryLog(), MemoryLog()
    leading.append([1, 3])
    log.append([1, 2, 2])
    following, leader = fetcher(), Leader({0: leading, 1: MemoryLog()}, 3)
    follow(following, log, epoch=3, index=0)
    follow(following, MemoryLog(), epoch=3, index=1)
    request = following.next_request(0)
    assert request is not None
    duties = [duty for duty in following.on_answer(leader.serve(request), 0) if isinstance(duty, CutTo)]
    assert [duty.offset for duty in duties] == [1]
    request = following.next_request(0)
    assert request is not None
    assert request.forgotten == [(None, TOPIC, [0])]
    list(following.on_answer(leader.serve(request), 0))
    log.cut_to(1)
    following.done(duties[0].state)
    request = following.next_request(0)
    assert request is not None
    assert [(each.index, each.fetch_offset, each.last_fetched_epoch) for each in request.partitions] == [(0, 1, 1)]


def test_a_partition_to_be_compared_first_is_not_fetched_before() -> None:
    """`epochs.md E18`: with a fetch the leader would count it."""
    log = MemoryLog()
    log.complete_from = CompleteFrom(5)
    log.append([1] * 3)
    following = fetcher()
    state = follow(following, log, epoch=2)
    assert state.on_follow(2) is None
    assert following.to_compare(0) == [state]
    assert following.next_request(0) is None
    assert state.first_question() == AskEpochEnd(state, 1)
    assert following.to_compare(0) == [], "it waits for the response"
    following.failed(state, 0)
    assert following.to_compare(0) == []
    assert following.to_compare(10_000) == [state]
    assert following.next_request(10_000) is None
    state.first_question()
    state.on_epoch_end(1, 3)
    assert isinstance(state.on_leader_start(0), RestartAt)
    following.done(state)
    request = following.next_request(10_000)
    assert request is not None
    assert [each.index for each in request.partitions] == [0]


def test_one_request_is_pending_at_a_time() -> None:
    following = fetcher()
    follow(following, MemoryLog(), epoch=1)
    assert following.next_request(0) is not None
    assert following.next_request(0) is None
    following.on_connection_lost()
    again = following.next_request(0)
    assert again is not None
    assert (again.session_id, again.session_epoch) == (0, 0)


def test_request_carries_replica_id_and_offsets() -> None:
    """`epochs.md E24`."""
    following, log = fetcher(), MemoryLog(log_start_offset=3)
    log.append([4, 4])
    follow(following, log, epoch=6)
    request = following.next_request(0)
    assert request is not None
    assert (request.replica_id, request.replica_epoch, request.isolation_level) == (2, 102, 0)
    (asked,) = request.partitions
    assert (asked.fetch_offset, asked.current_leader_epoch, asked.last_fetched_epoch, asked.log_start_offset) == (
        5,
        6,
        4,
        3,
    )


def test_an_abandoned_session_is_closed_when_the_next_is_opened() -> None:
    """KIP-227: the leader frees its slot at once, not when it expires."""
    following, leader = fetcher(), Leader({0: MemoryLog()}, 1)
    follow(following, MemoryLog(), epoch=1)
    run(following, leader)
    following.on_connection_lost()
    leader.sessions = sessions = FetchSessions()
    again = following.next_request(0)
    assert again is not None
    assert (again.session_id, again.session_epoch) == (77, 0)
    list(following.on_answer(leader.serve(again), 0))
    following.on_connection_lost()
    run(following, leader)
    assert len(sessions) == 1


def test_a_session_unknown_to_the_leader_is_not_named_again() -> None:
    following = fetcher()
    follow(following, MemoryLog(), epoch=1)
    run(following, Leader({0: MemoryLog()}, 1))
    assert following.next_request(0) is not None
    list(following.on_answer(FetchResponse([], error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND), 0))
    again = following.next_request(0)
    assert again is not None
    assert (again.session_id, again.session_epoch) == (0, 0)


def test_moved_log_start_is_sent_though_nothing_was_written() -> None:
    """Kafka's leader delays the DeleteRecords response until each live follower's log starts there, too."""
    leading, log = MemoryLog(), MemoryLog()
    leading.append([1, 1, 1])
    following, leader = fetcher(), Leader({0: leading}, 1)
    follow(following, log, epoch=1)
    run(following, leader)
    leading.forget_below(2)
    request = following.next_request(0)
    assert request is not None
    (learn,) = following.on_answer(leader.serve(request), 0)
    assert isinstance(learn, ApplyOffsets)
    assert learn.log_start_offset == 2
    log.forget_below(2)
    request = following.next_request(0)
    assert request is not None
    assert [each.log_start_offset for each in request.partitions] == [2]


def test_broker_epoch_is_that_of_the_current_registration() -> None:
    """`epochs.md E31`: a broker that registered again would be rejected forever by its old epoch."""
    following = fetcher()
    follow(following, MemoryLog(), epoch=1)
    following.broker_epoch = 205
    request = following.next_request(0)
    assert request is not None
    assert request.replica_epoch == 205


def test_a_large_session_is_left_in_parts() -> None:
    """What is left but still in the session is ignored; a partition that is followed again is asked for again."""
    count = 2 * MOST_FORGOTTEN + 10
    mine = fetcher()
    logs = {index: MemoryLog() for index in range(count)}
    leader = Leader(logs, epoch=1)
    for index in range(count):
        follow(mine, MemoryLog(), epoch=1, index=index)
    run(mine, leader)
    follow(mine, MemoryLog(), epoch=1, index=count)
    logs[count] = MemoryLog()
    for index in range(count):
        assert mine.leave((TOPIC, index)) is not None
    logs[count - 1].append([1])
    first = mine.next_request(0)
    assert first is not None
    assert (len(first.forgotten), first.max_wait_ms) == (MOST_FORGOTTEN, 0)
    assert not list(mine.on_answer(FetchResponse([_row(count - 1, 1)], session_id=77), 0))
    follow(mine, MemoryLog(), epoch=2, index=count - 1)
    told = []
    while (request := mine.next_request(0)) is not None:
        told.append((len(request.forgotten), request.max_wait_ms))
        asked = {each.index: each.current_leader_epoch for each in request.partitions}
        assert asked.get(count - 1, 2) == 2
        assert not list(mine.on_answer(FetchResponse([], session_id=77), 0))
        if request.max_wait_ms:
            break
    assert told == [(MOST_FORGOTTEN, 0), (9, LIMITS.max_wait_ms)]


def _unused(count: int) -> ReplicaFetcher:
    following = fetcher()
    for index in range(count):
        following.follow(FollowerState("topic", TOPIC, index, 1, UNUSED_LOG))
    return following


def _ask(following: ReplicaFetcher) -> None:
    assert not following.to_compare(0)
    assert following.next_request(0) is not None


def _lose(following: ReplicaFetcher) -> None:
    _ask(following)
    following.on_connection_lost()


def _leave_most(following: ReplicaFetcher) -> None:
    _lose(following)
    for index in range(1, len(following)):
        following.leave((TOPIC, index))


@pytest.mark.parametrize("before", [_lose, _leave_most, lambda following: None])
def test_cost_of_a_request_does_not_grow_with_unused_partitions(before: Callable[[ReplicaFetcher], None]) -> None:
    """A broker that returned followed 150,000 at once: each look at all of them was a pause of 60 to 300 ms."""
    few, many = _unused(5 * MOST_NAMED), _unused(50 * MOST_NAMED)
    costs = []
    for following in (few, many):
        before(following)
        costs.append(lines_of(partial(_ask, following)))
    assert costs[1] <= costs[0] + 10


def test_all_unused_partitions_are_named_after_a_lost_connection() -> None:
    count = 3 * MOST_NAMED
    following = _unused(count)
    _ask(following)
    following.on_connection_lost()
    assert following.leave((TOPIC, 7)) is not None
    follow(following, MemoryLog(), epoch=2, index=8)
    named: list[int] = []
    while (request := following.next_request(0)) is not None:
        named += [each.index for each in request.partitions]
        assert not list(following.on_answer(FetchResponse([], session_id=77), 0))
        if request.max_wait_ms:
            break
    assert sorted(named) == [index for index in range(count) if index != 7]


def _row(index: int, records: int) -> FetchedPartition:
    return FetchedPartition(topic=None, topic_id=TOPIC, index=index, high_watermark=records, records=b"x")
