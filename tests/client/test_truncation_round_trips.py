"""A polling consumer reports a truncation one request after it learns of the new leader.

Requests are counted, not timed, so the result does not depend on latency.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from fenceline.client import Consumer, LogTruncationError
from fenceline.client.core.errors import ConnectionLost
from fenceline.ids import TopicPartition
from fenceline.records.build import build_batch
from fenceline.wire.apis import ApiKey
from tests.client.scripted_cluster import REFUSE, SILENT, ScriptedCluster
from tests.support.watched_consumer import Asked, Learned, WatchedConsumer

READ, CUT_TO, ANEW = 10, 6, 20
_QUICK = {
    "retry.backoff.ms": 1,
    "retry.backoff.max.ms": 5,
    "reconnect.backoff.ms": 1,
    "fetch.max.wait.ms": 10,
    "auto.offset.reset": "none",
    # An unanswered request stays in flight.
    "request.timeout.ms": 600_000,
}
_ABOUT_POSITIONS = (ApiKey.FETCH, ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.LIST_OFFSETS)


def _fill(cluster: ScriptedCluster, tp: TopicPartition, count: int) -> None:
    with cluster.lock:
        for _ in range(count):
            cluster.logs[tp].append(build_batch([(0, None, b"value", ())]))


@pytest.fixture(params=[{}, {ApiKey.FETCH: (4, 15)}, {ApiKey.FETCH: (4, 11)}], ids=["fetch-18", "fetch-15", "fetch-11"])
def cluster(request: pytest.FixtureRequest) -> Iterator[ScriptedCluster]:
    """Fetch returns leader hints from version 16 and divergence from version 12."""
    with ScriptedCluster(nodes=2, versions=request.param) as scripted:
        yield scripted


@pytest.fixture
def tp(cluster: ScriptedCluster) -> TopicPartition:
    (tp,) = cluster.add_topic("t")
    _fill(cluster, tp, READ)
    return tp


@pytest.fixture
def consumer(cluster: ScriptedCluster, tp: TopicPartition) -> Iterator[Consumer]:
    with Consumer(cluster.bootstrap, **_QUICK) as made:
        made.assign([tp])
        made.seek(tp, 0)
        yield made


def _read(consumer: Consumer, count: int) -> None:
    end_s, found = time.monotonic() + 60, 0
    while found < count:
        assert time.monotonic() < end_s, f"{found} of {count} records arrived"
        found += len(consumer.poll(50))


def _told(consumer: Consumer) -> LogTruncationError:
    end_s = time.monotonic() + 60
    while time.monotonic() < end_s:
        try:
            assert consumer.poll(50) == []
        except LogTruncationError as error:
            return error
    raise AssertionError("the truncation is not reported")


@pytest.mark.parametrize("leader", [1, 2], ids=["the same leader", "another leader"])
def test_truncation_takes_one_request_to_the_new_leader(
    cluster: ScriptedCluster, tp: TopicPartition, consumer: Consumer, leader: int
) -> None:
    watched = WatchedConsumer(consumer, tp)
    _read(consumer, READ)
    with cluster.lock:
        cluster.logs[tp].elect(leader, cut_to=CUT_TO)
        _fill(cluster, tp, ANEW)
    error = _told(consumer)
    assert (error.truncated_from, error.divergent_offset) == (READ, CUT_TO)
    asked = watched.asked_since(Learned(leader, 1), *_ABOUT_POSITIONS)
    assert asked[0] == Asked(ApiKey.OFFSET_FOR_LEADER_EPOCH, leader)
    # Only the receipt lookup follows; no further request concerns the partition.
    assert [each for each in asked[1:] if each.key is not ApiKey.LIST_OFFSETS] == []


def test_validation_does_not_wait_for_a_fetch_in_flight(
    cluster: ScriptedCluster, tp: TopicPartition, consumer: Consumer
) -> None:
    """The fetch is parked at the old leader while that leader is down."""
    watched = WatchedConsumer(consumer, tp)
    _read(consumer, READ)
    cluster.node_rule = lambda node, key: SILENT if (node, key) == (1, ApiKey.FETCH) else None
    seen = len(cluster.fetches)
    end_s = time.monotonic() + 60
    while len(cluster.fetches) == seen:
        assert time.monotonic() < end_s, "no Fetch is in flight"
        assert consumer.poll(10) == []
    with cluster.lock:
        cluster.logs[tp].elect(2, cut_to=CUT_TO)
        _fill(cluster, tp, ANEW)
    consumer._on_loop(consumer._async.cluster.request_refresh)
    assert _told(consumer).divergent_offset == CUT_TO
    asked = watched.asked_since(Learned(2, 1), *_ABOUT_POSITIONS)
    assert [each for each in asked if each.key is not ApiKey.LIST_OFFSETS] == [Asked(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2)]


def test_validation_does_not_wait_for_a_retry_to_the_old_leader(cluster: ScriptedCluster, tp: TopicPartition) -> None:
    """The backoff is long enough to fail the test."""
    with Consumer(
        cluster.bootstrap, **{**_QUICK, "retry.backoff.ms": 600_000, "retry.backoff.max.ms": 600_000}
    ) as made:
        made.assign([tp])
        made._loop_thread.run(made._async.cluster.refresh())
        made.seek(tp, 0)
        _read(made, READ)
        cluster.node_rule = lambda node, key: REFUSE if (node, key) == (1, ApiKey.FETCH) else None
        end_s = time.monotonic() + 60
        while not made._async.positions.of(tp).retry_at_s:
            assert time.monotonic() < end_s, "no Fetch is rejected"
            assert made.poll(10) == []
        with cluster.lock:
            cluster.logs[tp].elect(2, cut_to=CUT_TO)
            _fill(cluster, tp, ANEW)
        made._loop_thread.run(made._async.cluster.refresh())
        assert _told(made).divergent_offset == CUT_TO


def test_validation_is_retried_soon_after_a_long_outage_of_the_old_leader(
    cluster: ScriptedCluster, tp: TopicPartition
) -> None:
    """Backoff grows with a leader's unanswered requests; here the first request to the next leader is lost."""
    with Consumer(cluster.bootstrap, **{**_QUICK, "retry.backoff.max.ms": 600_000}) as made:
        made.assign([tp])
        made.seek(tp, 0)
        _read(made, READ)
        state = made._async.positions.of(tp)
        cluster.node_rule = lambda node, key: REFUSE if (node, key) == (1, ApiKey.FETCH) else None
        end_s = time.monotonic() + 60
        while not state.unanswered:
            assert time.monotonic() < end_s, "no Fetch is rejected"
            assert made.poll(10) == []
        with cluster.lock:
            made._on_loop(lambda: setattr(state, "unanswered", 30))
            cluster.faults[ApiKey.OFFSET_FOR_LEADER_EPOCH].append(REFUSE)
            cluster.logs[tp].elect(2, cut_to=CUT_TO)
            _fill(cluster, tp, ANEW)
        made._loop_thread.run(made._async.cluster.refresh())
        assert _told(made).divergent_offset == CUT_TO
        assert not cluster.faults[ApiKey.OFFSET_FOR_LEADER_EPOCH]


def test_validation_does_not_wait_for_the_reconnect_backoff_of_a_broker(
    cluster: ScriptedCluster, tp: TopicPartition
) -> None:
    """An elected broker is up again. A call that already waits for its connection stops waiting, too."""
    with Consumer(
        cluster.bootstrap, **{**_QUICK, "reconnect.backoff.ms": 600_000, "reconnect.backoff.max.ms": 600_000}
    ) as made:
        made.assign([tp])
        made.seek(tp, 0)
        _read(made, READ)
        cluster.node_rule = lambda node, key: REFUSE if node == 2 else None
        link = made._on_loop(lambda: made._async.cluster.link(2))
        with pytest.raises(ConnectionLost):
            made._loop_thread.run(link.connection())
        waiting = asyncio.run_coroutine_threadsafe(link.connection(), made._loop_thread.loop)
        with cluster.lock:
            cluster.node_rule = None
            cluster.logs[tp].elect(2, cut_to=CUT_TO)
            _fill(cluster, tp, ANEW)
        made._on_loop(made._async.cluster.request_refresh)
        assert _told(made).divergent_offset == CUT_TO
        assert waiting.result(60).is_open


def test_truncation_to_an_older_history_takes_no_more_requests(
    cluster: ScriptedCluster, tp: TopicPartition, consumer: Consumer
) -> None:
    """The returning leader had appended more of its epoch than any follower had replicated (`gaps.md G6`)."""
    watched = WatchedConsumer(consumer, tp)
    log = cluster.logs[tp]
    _read(consumer, READ)
    old_batches, old_epochs = list(log.batches), list(log.epochs)
    with cluster.lock:
        log.elect(2)
        _fill(cluster, tp, ANEW)
    _read(consumer, ANEW)
    assert watched.asked_since(Learned(2, 1), ApiKey.OFFSET_FOR_LEADER_EPOCH) == [
        Asked(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2)
    ]
    with cluster.lock:
        log.batches, log.epochs = old_batches, old_epochs
        log.batches += [build_batch([(0, None, b"alone", ())], base_offset=READ + i, leader_epoch=0) for i in range(5)]
        log.elect(1)
        _fill(cluster, tp, 2 * ANEW)
    error = _told(consumer)
    assert (error.truncated_from, error.divergent_offset) == (READ + ANEW, READ)
    asked = watched.asked_since(Learned(1, 2), ApiKey.FETCH, ApiKey.OFFSET_FOR_LEADER_EPOCH)
    assert asked == [Asked(ApiKey.OFFSET_FOR_LEADER_EPOCH, 1)]


@pytest.mark.parametrize("reset", ["none", "earliest", "latest"])
@pytest.mark.parametrize(
    ("version", "questions"),
    [(18, []), (11, [Asked(ApiKey.OFFSET_FOR_LEADER_EPOCH, 1)])],
    ids=["reported by the fetch", "out of range"],
)
def test_truncation_without_a_new_epoch_is_reported_by_the_next_fetch(
    version: int, questions: list[Asked], reset: str
) -> None:
    """As when metadata missed two quick elections (`gaps.md G5`). Brokers before version 12 only report
    offset out of range: one request distinguishes that from retention before a reset policy applies."""
    with ScriptedCluster(versions={ApiKey.FETCH: (4, version)}) as cluster:
        (tp,) = cluster.add_topic("t")
        _fill(cluster, tp, READ)
        with Consumer(cluster.bootstrap, **{**_QUICK, "auto.offset.reset": reset}) as consumer:
            consumer.assign([tp])
            consumer.seek(tp, 0)
            watched = WatchedConsumer(consumer, tp)
            _read(consumer, READ)
            with cluster.lock:
                log = cluster.logs[tp]
                log.batches = log.batches[:CUT_TO]
                fetched = len(cluster.fetches)
            assert _told(consumer).divergent_offset == CUT_TO
            # One request may have been answered before the truncation.
            assert len(cluster.fetches) - fetched <= 1
            asked = [each for each in watched.story if isinstance(each, Asked)]
            assert [each for each in asked if each.key is ApiKey.OFFSET_FOR_LEADER_EPOCH] == questions
