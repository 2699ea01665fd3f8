"""Initial positions of partitions; a poll waits for them no longer than its timeout."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fenceline.client.consumer.consumer import Consumer
from fenceline.client.core.errors import NoOffsetError, TimedOut
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TopicPartition
from fenceline.records.build import build_batch
from fenceline.wire.apis import ApiKey
from tests.client.scripted_cluster import SILENT, ScriptedCluster

COUNT = 10
_QUESTION = ApiKey.OFFSET_FOR_LEADER_EPOCH
QUICK = {
    "group.id": "g",
    "enable.auto.commit": False,
    "retry.backoff.ms": 1,
    "retry.backoff.max.ms": 5,
    "reconnect.backoff.ms": 1,
    "fetch.max.wait.ms": 10,
    # An unanswered request stays in flight.
    "request.timeout.ms": 600_000,
    "default.api.timeout.ms": 600_000,
}


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster() as scripted:
        for tp in scripted.add_topic("t", 3):
            for number in range(COUNT):
                scripted.logs[tp].append(build_batch([(0, None, b"%d" % number, ())]))
        yield scripted


@pytest.fixture
def tps(cluster: ScriptedCluster) -> list[TopicPartition]:
    return list(cluster.logs)


def consumer_of(cluster: ScriptedCluster, **config: Any) -> Consumer:
    return Consumer(cluster.bootstrap, **{**QUICK, "auto.offset.reset": "earliest", **config})


def until(done: Callable[[], object]) -> None:
    end_s = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end_s, "the expected state was not reached"


def first_offsets(consumer: Consumer, count: int) -> dict[int, int]:
    """The first offset of each partition that returned records, once that many have."""
    found: dict[int, int] = {}

    def poll() -> bool:
        for record in consumer.poll(20):
            found.setdefault(record.partition, record.offset)
        return len(found) >= count

    until(poll)
    return found


def test_starts_at_the_committed_offset_or_by_the_reset_policy(
    cluster: ScriptedCluster, tps: list[TopicPartition]
) -> None:
    cluster.committed = {tps[0]: (4, 0), tps[2]: (7, -1)}
    with consumer_of(cluster) as consumer:
        consumer.assign(tps)
        assert first_offsets(consumer, 3) == {0: 4, 1: 0, 2: 7}
    (request,) = [request for key, _, request in cluster.requests if key is ApiKey.OFFSET_FETCH]
    assert (request.groups[0].member_id, request.groups[0].member_epoch) == (None, -1), "only KIP-848's members do"


def test_committed_epoch_is_validated_before_the_first_fetch(
    cluster: ScriptedCluster, tps: list[TopicPartition]
) -> None:
    """`epochs.md E46`: also for the first fetch of an assignment."""
    cluster.committed = {tps[0]: (4, 0)}
    with consumer_of(cluster) as consumer:
        consumer.assign(tps[:1])
        assert first_offsets(consumer, 1) == {0: 4}
    about = [(key, request) for key, _, request in cluster.requests if key in (ApiKey.FETCH, _QUESTION)]
    first, question = about[0]
    assert first is _QUESTION
    assert question.topics[0].partitions[0].leader_epoch == 0
    fetched = about[1][1].partitions[0]
    assert (fetched.fetch_offset, fetched.last_fetched_epoch) == (4, 0)


def test_missing_offset_without_a_policy_raises_and_other_partitions_start(
    cluster: ScriptedCluster, tps: list[TopicPartition]
) -> None:
    cluster.committed = {tps[0]: (4, 0), tps[1]: (5, 0)}
    with consumer_of(cluster, **{"auto.offset.reset": "none"}) as consumer:
        consumer.assign(tps)
        with pytest.raises(NoOffsetError) as reported:
            until(lambda: consumer.poll(20) and False)
        assert (reported.value.topic, reported.value.partition) == tps[2]
        consumer.seek(tps[2], 1)
        assert first_offsets(consumer, 3) == {0: 4, 1: 5, 2: 1}


def test_unresponsive_coordinator_does_not_block_poll(cluster: ScriptedCluster, tps: list[TopicPartition]) -> None:
    cluster.committed = {tps[0]: (4, 0), tps[1]: (5, 0), tps[2]: (6, 0)}
    cluster.faults[ApiKey.OFFSET_FETCH] = [SILENT]
    with consumer_of(cluster) as consumer:
        consumer.assign(tps[:1])
        for _ in range(3):
            assert consumer.poll(10) == []
        with pytest.raises(TimedOut, match="no position"):
            consumer.position(tps[0], timeout_ms=10)
        until(lambda: consumer.poll(10) == [] and cluster.seen[ApiKey.OFFSET_FETCH] == 1)
        # A partition added meanwhile is looked up afterwards; one that already has a position keeps it.
        consumer.assign(tps)
        consumer.seek(tps[1], 1)
        assert first_offsets(consumer, 1) == {1: 1}
        assert cluster.seen[ApiKey.OFFSET_FETCH] == 1
        cluster.hang_up()
        assert first_offsets(consumer, 2) == {0: 4, 2: 6}


def test_loading_coordinator_is_retried_across_polls(cluster: ScriptedCluster, tps: list[TopicPartition]) -> None:
    cluster.committed = {tps[0]: (4, 0)}
    loads = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    cluster.fault_rule = lambda key: loads if key is ApiKey.OFFSET_FETCH else None
    with consumer_of(cluster) as consumer:
        consumer.assign(tps[:1])
        until(lambda: consumer.poll(5) == [] and cluster.seen[ApiKey.OFFSET_FETCH] > 5)
        cluster.fault_rule = None
        assert first_offsets(consumer, 1) == {0: 4}


def test_permanent_error_is_raised_by_every_poll(cluster: ScriptedCluster, tps: list[TopicPartition]) -> None:
    refused = ErrorCode.GROUP_AUTHORIZATION_FAILED
    cluster.fault_rule = lambda key: refused if key is ApiKey.OFFSET_FETCH else None
    with consumer_of(cluster) as consumer:
        consumer.assign(tps[:1])
        for _ in range(2):
            with pytest.raises(PeerError, match="GROUP_AUTHORIZATION_FAILED"):
                until(lambda: consumer.poll(20) and False)
        cluster.fault_rule = None
        assert first_offsets(consumer, 1) == {0: 0}


def test_response_for_a_former_assignment_is_ignored(cluster: ScriptedCluster, tps: list[TopicPartition]) -> None:
    cluster.committed = {tps[0]: (4, 0)}
    cluster.faults[ApiKey.OFFSET_FETCH] = [SILENT]
    with consumer_of(cluster) as consumer:
        consumer.assign(tps[:1])
        until(lambda: consumer.poll(10) == [] and cluster.seen[ApiKey.OFFSET_FETCH] == 1)
        consumer.assign(tps[1:2])
        consumer.assign(tps[:1])
        answers: list[tuple[int, int]] = []
        plain = cluster._offset_fetch

        def answer(node_id: int, request: Any, code: ErrorCode | None) -> dict[str, Any]:
            """Others go on committing."""
            cluster.committed[tps[0]] = (cluster.committed[tps[0]][0] + 1, 0)
            answers.append(cluster.committed[tps[0]])
            return plain(node_id, request, code)

        cluster._offset_fetch = answer  # type: ignore[method-assign]
        cluster.hang_up()
        assert first_offsets(consumer, 1) == {0: 6}
        assert answers == [(5, 0), (6, 0)]
