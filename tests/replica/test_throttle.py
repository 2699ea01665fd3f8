"""Throttled replication on virtual time: the rate holds on average, and in-sync replicas are not throttled (security.md
A62).
"""

from __future__ import annotations

from random import Random

import pytest

from fenceline.replica.fetcher import FetchLimits, ReplicaFetcher
from fenceline.replica.follower import AppendFetchedBatches, FollowerPhase, FollowerState
from fenceline.replica.throttle import NO_RATE, ReplicationQuota, Throttles
from fenceline.wire.fetch import FetchedPartition, FetchResponse
from tests.replica.histories import MemoryLog

TOPIC = bytes(range(16))
LIMITS = FetchLimits(max_wait_ms=500, min_bytes=1, max_bytes=10_000, partition_max_bytes=1_000, backoff_ms=1_000)


def quota(rate: int, replicas: str = "*") -> ReplicationQuota:
    made = ReplicationQuota()
    made.set_rate(rate, 0)
    made.set_partitions("rain", replicas, 1)
    return made


@pytest.mark.parametrize("seed", range(20))
def test_the_rate_holds_on_average(seed: int) -> None:
    """If all is sent as soon as allowed: in any interval at most the rate, one second's worth and the last response."""
    rng = Random(seed)
    rate, largest = rng.choice((1, 1_000, 50_000_000)), 1 << rng.randint(4, 24)
    side, now_ms = quota(rate), rng.randint(0, 10_000)
    sent: list[tuple[int, int]] = []
    began_ms = now_ms
    while now_ms - began_ms < 200_000 and len(sent) < 3_000:
        pause_ms = side.pause_ms(now_ms)
        if pause_ms:
            now_ms += rng.choice((pause_ms, rng.randint(1, pause_ms)))
        else:
            sent.append((now_ms, rng.randint(1, largest)))
            side.passed(sent[-1][1], now_ms)
            now_ms += rng.choice((0, 0, 1, 50))
        total = sum(size for _, size in sent)
        assert total <= rate * (now_ms - began_ms) / 1000 + rate + largest
    assert sent


def test_a_pause_is_no_longer_than_necessary() -> None:
    side = quota(1_000)
    side.passed(1_000, 0)
    assert side.pause_ms(0) == 0, "one second's worth may pass at once"
    side.passed(2_000, 0)
    assert side.pause_ms(0) == 2_001
    assert side.pause_ms(1_500) == 501
    assert side.pause_ms(2_001) == 0
    side.set_rate(NO_RATE, 2_001)
    side.passed(1 << 60, 2_001)
    assert side.pause_ms(2_001) == 0


def test_a_rate_of_zero_blocks_and_is_read_again() -> None:
    side = quota(0)
    assert side.pause_ms(0) == 0
    side.passed(1, 0)
    assert side.pause_ms(100) == side.pause_ms(10**9) == 10_000
    side.set_rate(1_000, 10**9)
    assert side.pause_ms(10**9) == 0


@pytest.mark.parametrize(
    ("replicas", "covered"), [("", ()), ("*", (0, 1, 2, 7)), ("0:1,2:1,1:2", (0, 2)), (" 1:1 , ", (1,)), ("0:2", ())]
)
def test_which_replicas_are_throttled(replicas: str, covered: tuple[int, ...]) -> None:
    side = quota(1_000, replicas)
    assert tuple(index for index in (0, 1, 2, 7) if side.covers("rain", index)) == covered
    assert side.is_active is bool(covered)
    assert not side.covers("snow", 0)
    side.set_partitions("rain", "", 1)
    assert not side.is_active


def test_settings_of_leader_and_follower() -> None:
    throttles = Throttles(1)
    throttles.set_rates({"leader.replication.throttled.rate": "700"}, 0)
    throttles.set_topic("rain", {"follower.replication.throttled.replicas": "3:1"})
    assert (throttles.leader.rate, throttles.follower.rate) == (700, NO_RATE)
    assert throttles.follower.covers("rain", 3)
    assert not throttles.leader.covers("rain", 3)
    throttles.set_rates({}, 0)
    throttles.set_topic("rain", {})
    assert throttles.leader.rate == NO_RATE
    assert not throttles.follower.covers("rain", 3)


def answer(index: int, size: int, high_watermark: int) -> FetchedPartition:
    return FetchedPartition(None, TOPIC, index, high_watermark=high_watermark, log_start_offset=0, records=bytes(size))


def test_a_throttled_partition_leaves_the_session_and_returns() -> None:
    following = ReplicaFetcher(replica_id=1, broker_epoch=101, limits=LIMITS)
    states = [FollowerState("rain", TOPIC, index, 1, MemoryLog()) for index in (0, 1)]
    for state in states:
        following.follow(state)
    assert following.next_request(0) is not None
    for duty in following.on_answer(FetchResponse([answer(0, 3, 9), answer(1, 3, 3)], session_id=5), 0):
        assert isinstance(duty, AppendFetchedBatches)
        log = duty.state.log
        assert isinstance(log, MemoryLog)
        log.append([1] * len(duty.records))
        following.done(duty.state)
    assert [state.may_be_held_back for state in states] == [True, False], "the other one is in sync"
    following.hold_back(states[0], 400, 1_000)
    assert (states[0].phase, states[0].failures) == (FollowerPhase.WAITING, 0)
    request = following.next_request(1_000)
    assert request is not None
    assert [each.index for each in request.partitions] == [1]
    assert request.forgotten == [(None, TOPIC, [0])]
    assert list(following.on_answer(FetchResponse([], session_id=5), 1_000)) == []
    assert following.next_ready_ms() == 1_400
    request = following.next_request(1_400)
    assert request is not None
    assert [(each.index, each.fetch_offset) for each in request.partitions] == [(0, 3)]


def test_a_replica_before_its_first_response_is_not_in_sync() -> None:
    assert FollowerState("rain", TOPIC, 0, 1, MemoryLog()).may_be_held_back
