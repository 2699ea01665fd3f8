"""RangeReader while brokers, leaders and topics change: the whole range, or an error with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pyarrow as pa
import pytest

from fenceline.client.core.deadline import Deadline
from fenceline.client.core.errors import ClientError, TimedOut, TopicReplacedError
from fenceline.client.reader import reader as reader_module
from fenceline.client.reader.ranges import OffsetRange
from fenceline.client.reader.reader import RangeReader
from fenceline.errors import ErrorCode
from fenceline.ids import TopicPartition
from fenceline.records.batch import assign_in_place
from fenceline.records.build import build_batch
from fenceline.wire.apis import ApiKey
from tests.client.scripted_cluster import ScriptedCluster

QUICK = {"retry.backoff.ms": 1, "retry.backoff.max.ms": 5, "reconnect.backoff.ms": 1, "fetch.max.wait.ms": 10}
A_BATCH_AT_A_TIME = {"max.partition.fetch.bytes": 1, "queued.max.bytes": 1024}
"""What the caller does not take is not fetched."""
COUNT = 100


@pytest.fixture
def tp(cluster: ScriptedCluster) -> TopicPartition:
    """A partition whose batches hold one record each."""
    (made,) = cluster.add_topic("t")
    fill(cluster, made)
    return made


def fill(cluster: ScriptedCluster, tp: TopicPartition) -> None:
    for offset in range(COUNT):
        raw = bytearray(build_batch([(1_000, None, b"v" * 1000, ())]))
        assign_in_place(raw, 0, offset, cluster.logs[tp].leader_epoch)
        cluster.logs[tp].batches.append(bytes(raw))


def offsets(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


class Clock(Deadline):
    """A deadline that expires on demand."""

    made: list[Clock]

    def __init__(self, timeout_ms: float) -> None:
        super().__init__(timeout_ms)
        self.has_passed = False
        self.made.append(self)

    @property
    def is_over(self) -> bool:
        return self.has_passed


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> list[Clock]:
    made: list[Clock] = []
    monkeypatch.setattr(Clock, "made", made, raising=False)
    monkeypatch.setattr(reader_module, "Deadline", Clock)
    return made


def test_read_may_outlast_the_leader_lookup_timeout(
    cluster: ScriptedCluster, tp: TopicPartition, clocks: list[Clock]
) -> None:
    with RangeReader(cluster.bootstrap, **QUICK, **A_BATCH_AT_A_TIME) as reader:
        read = reader.read({tp: (0, COUNT)})
        found = offsets(islice(read, 1))
        for leader in (2, 1):
            for clock in clocks:
                clock.has_passed = True
            with cluster.lock:
                cluster.logs[tp].elect(leader)
            # More than were prefetched.
            found += offsets(islice(read, 5))
        assert found + offsets(read) == list(range(COUNT))


def test_partition_rejected_while_another_is_read_keeps_its_full_timeout(
    cluster: ScriptedCluster, clocks: list[Clock]
) -> None:
    first, second = cluster.add_topic("t", 2)
    fill(cluster, first)
    fill(cluster, second)

    def move(node_id: int, key: ApiKey) -> None:
        """The second partition's leader changes when the first Fetch arrives."""
        if key is ApiKey.FETCH and cluster.seen[key] == 1:
            cluster.logs[second].elect(2)

    cluster.node_rule = move
    with RangeReader(cluster.bootstrap, **QUICK, **A_BATCH_AT_A_TIME) as reader:
        read = reader.read({first: (0, COUNT), second: (0, COUNT)})
        batch = next(read)
        assert batch.column("partition").to_pylist() == [0] * batch.num_rows
        for clock in clocks:
            clock.has_passed = True
        assert batch.num_rows + len(offsets(read)) == 2 * COUNT


def test_leader_lookup_timeout_reports_the_last_error(cluster: ScriptedCluster, tp: TopicPartition) -> None:
    cluster.fault_rule = lambda key: ErrorCode.NOT_LEADER_OR_FOLLOWER if key is ApiKey.FETCH else None
    with (
        RangeReader(cluster.bootstrap, **QUICK, **{"default.api.timeout.ms": 200}) as reader,
        pytest.raises(TimedOut, match="reading t-0 at offset 3: NOT_LEADER_OR_FOLLOWER"),
    ):
        offsets(reader.read({tp: (3, COUNT)}))


def test_corruption_reported_by_a_broker_fails_the_read(cluster: ScriptedCluster, tp: TopicPartition) -> None:
    cluster.fault_rule = lambda key: ErrorCode.CORRUPT_MESSAGE if key is ApiKey.FETCH else None
    with RangeReader(cluster.bootstrap, **QUICK) as reader, pytest.raises(ClientError) as caught:
        offsets(reader.read({tp: (3, COUNT)}))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert "reading t-0 at offset 3" in str(caught.value)
    assert cluster.seen[ApiKey.FETCH] == 1


@pytest.mark.parametrize("is_known", [True, False])
def test_topic_recreated_during_a_read_is_detected(
    cluster: ScriptedCluster, tp: TopicPartition, is_known: bool
) -> None:
    """Its records have the same offsets and epochs, so only the topic id differs."""
    old = cluster.ids["t"]
    with RangeReader(cluster.bootstrap, **QUICK, **A_BATCH_AT_A_TIME) as reader:
        read = reader.read({tp: OffsetRange(0, COUNT, topic_id=old if is_known else None)})
        found = next(read).column("offset").to_pylist()
        with cluster.lock:
            cluster.add_topic("t")
            fill(cluster, tp)
        if not is_known:
            assert found + offsets(read) == list(range(COUNT))
            return
        with pytest.raises(TopicReplacedError) as caught:
            offsets(read)
        assert caught.value.facts == {"topic": "t", "expected_id": old, "found_id": cluster.ids["t"]}
