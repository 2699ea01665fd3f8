"""Readers detect a truncated log and its divergence point (KIP-320, `epochs.md` I)."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from fenceline.client.consumer.consumer import Consumer
from fenceline.client.core.errors import EpochMismatchError, LogTruncationError, OffsetOutOfRangeError
from fenceline.client.producer.producer import Producer
from fenceline.client.reader.ranges import OffsetRange
from fenceline.client.reader.reader import RangeReader
from fenceline.errors import ErrorCode
from fenceline.ids import TopicPartition
from fenceline.wire.apis import ApiKey
from tests.client.scripted_cluster import HANG_UP, ScriptedCluster

_QUICK = {"retry.backoff.ms": 1, "retry.backoff.max.ms": 5, "reconnect.backoff.ms": 1, "fetch.max.wait.ms": 10}


def _write(cluster: ScriptedCluster, tp: TopicPartition, values: list[bytes]) -> None:
    with Producer(cluster.bootstrap, **_QUICK, **{"linger.ms": 0}) as producer:
        for value in values:
            producer.send(tp.topic, value, partition=tp.partition).result(60)


def _values(stem: str, count: int) -> list[bytes]:
    return [f"{stem}{i}".encode() for i in range(count)]


def _poll_until(consumer: Consumer, done: Callable[[list[bytes | None]], bool]) -> list[bytes | None]:
    found: list[bytes | None] = []
    end_s = time.monotonic() + 60
    while not done(found):
        assert time.monotonic() < end_s, f"stopped at {found}"
        found += [record.value for record in consumer.poll(50)]
    return found


def _poll_for_error(consumer: Consumer, kind: type[Exception]) -> Exception:
    end_s = time.monotonic() + 60
    while time.monotonic() < end_s:
        try:
            consumer.poll(50)
        except kind as error:
            return error
    raise AssertionError("no error came")


_VERSIONS = [
    pytest.param({}, id="fetch-reports"),
    pytest.param({ApiKey.FETCH: (4, 11)}, id="validation-reports"),
]


@pytest.mark.parametrize("versions", _VERSIONS)
@pytest.mark.parametrize("policy", ["latest", "earliest", "none"])
def test_truncation_below_read_records_is_raised(versions: dict[ApiKey, tuple[int, int]], policy: str) -> None:
    with ScriptedCluster(nodes=2, versions=versions) as cluster:
        (tp,) = cluster.add_topic("t")
        _write(cluster, tp, _values("old", 10))
        with Consumer(cluster.bootstrap, **_QUICK, **{"auto.offset.reset": policy}) as consumer:
            consumer.assign([tp])
            consumer.seek(tp, 0)
            assert _poll_until(consumer, lambda found: len(found) == 10) == _values("old", 10)
            cluster.logs[tp].elect(2, cut_to=6)
            _write(cluster, tp, _values("new", 8))
            error = _poll_for_error(consumer, LogTruncationError)
            assert isinstance(error, LogTruncationError)
            assert (error.topic, error.partition, error.offset, error.leader_epoch) == ("t", 0, 10, 0)
            assert (error.divergent_offset, error.divergent_epoch) == (6, 0)
            with pytest.raises(LogTruncationError):
                consumer.poll(50)
            consumer.seek(tp, error.divergent_offset, error.divergent_epoch)
            assert _poll_until(consumer, lambda found: len(found) == 8) == _values("new", 8)


@pytest.mark.parametrize("versions", _VERSIONS)
@pytest.mark.parametrize("at_once", [500, 1])
def test_leader_returning_with_more_of_an_older_epoch(versions: dict[ApiKey, tuple[int, int]], at_once: int) -> None:
    """It had written offsets 6 and 7 when another broker was elected without them. Its epoch's end, 8, does not cover
    the records read at 6 and 7 instead: the reader knows that their epoch started there."""
    with ScriptedCluster(nodes=2, versions=versions) as cluster:
        (tp,) = cluster.add_topic("t")
        _write(cluster, tp, _values("old", 8))
        log = cluster.logs[tp]
        batches = list(log.batches)
        log.elect(2, cut_to=6)
        _write(cluster, tp, _values("lost", 4))
        with Consumer(cluster.bootstrap, **_QUICK, **{"max.poll.records": at_once}) as consumer:
            consumer.assign([tp])
            consumer.seek(tp, 0)
            read = _poll_until(consumer, lambda found: len(found) == 10)
            assert read == [*_values("old", 6), *_values("lost", 4)]
            with cluster.lock:
                log.batches, log.epochs = batches, [(0, 0)]
                log.elect(1)
            _write(cluster, tp, _values("new", 4))
            error = _poll_for_error(consumer, LogTruncationError)
            assert isinstance(error, LogTruncationError)
            assert (error.offset, error.divergent_offset, error.divergent_epoch) == (10, 6, 0)
            consumer.seek(tp, error.divergent_offset, error.divergent_epoch)
            assert _poll_until(consumer, lambda found: len(found) == 6) == [*_values("old", 8)[6:], *_values("new", 4)]


def test_truncation_of_only_prefetched_records_raises_nothing(
    cluster: ScriptedCluster,
) -> None:
    (tp,) = cluster.add_topic("t")
    _write(cluster, tp, _values("old", 10))
    with Consumer(cluster.bootstrap, **_QUICK) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 0)
        found = _poll_until(consumer, lambda found: len(found) >= 1)
        # All ten are buffered by now; only records returned by a poll count as read.
        while len(found) < 3:
            found += [r.value for r in consumer.poll(50, max_records=1)]
    assert found[:3] == _values("old", 3)
    with Consumer(cluster.bootstrap, **_QUICK) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 0)
        (first,) = _poll_one(consumer)
        assert first == b"old0"
        cluster.logs[tp].elect(2, cut_to=6)
        _write(cluster, tp, _values("new", 4))
        consumer.pause([tp])
        consumer.resume([tp])
        rest = _poll_until(consumer, lambda found: len(found) == 9)
        assert rest == [*_values("old", 6)[1:], *_values("new", 4)]


def _poll_one(consumer: Consumer) -> list[bytes | None]:
    while not (found := consumer.poll(50, max_records=1)):
        pass
    return [record.value for record in found]


def test_committed_offset_with_an_epoch_is_validated_before_the_first_read(cluster: ScriptedCluster) -> None:
    (tp,) = cluster.add_topic("t")
    _write(cluster, tp, _values("old", 10))
    cluster.logs[tp].elect(2, cut_to=6)
    _write(cluster, tp, _values("new", 10))
    with Consumer(cluster.bootstrap, **_QUICK) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 9, 0)
        error = _poll_for_error(consumer, LogTruncationError)
        assert isinstance(error, LogTruncationError)
        assert (error.offset, error.divergent_offset, error.divergent_epoch) == (9, 6, 0)


def test_lossless_election_raises_nothing(cluster: ScriptedCluster) -> None:
    (tp,) = cluster.add_topic("t")
    with Consumer(cluster.bootstrap, **_QUICK) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 0)
        expected: list[bytes] = []
        got: list[bytes | None] = []
        for round_ in range(5):
            expected += _values(f"{round_}-", 4)
            _write(cluster, tp, expected[-4:])
            got += _poll_until(consumer, lambda found: len(found) == 4)
            cluster.logs[tp].elect(1 + round_ % 2)
        assert got == expected
        assert consumer.position_and_epoch(tp)[:2] == (20, 4)


def test_disconnects_and_rejections_raise_nothing(cluster: ScriptedCluster) -> None:
    (tp,) = cluster.add_topic("t")
    _write(cluster, tp, _values("v", 30))
    faults = [HANG_UP, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.OFFSET_NOT_AVAILABLE]
    cluster.faults[ApiKey.FETCH] = [faults[i % 4] if i % 2 else None for i in range(40)]
    cluster.faults[ApiKey.LIST_OFFSETS] = list(faults)
    with Consumer(cluster.bootstrap, **_QUICK, **{"max.partition.fetch.bytes": 100}) as consumer:
        consumer.assign([tp])
        consumer.seek_to_beginning()
        assert _poll_until(consumer, lambda found: len(found) == 30) == _values("v", 30)


def test_out_of_range_uses_the_reset_policy_only_after_retention(cluster: ScriptedCluster) -> None:
    (tp,) = cluster.add_topic("t")
    _write(cluster, tp, _values("v", 10))
    log = cluster.logs[tp]
    log.batches, log.start_offset = log.batches[5:], 5
    log.epochs = [(0, 5)]
    with Consumer(cluster.bootstrap, **_QUICK, **{"auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 2, 0)
        assert _poll_until(consumer, lambda found: len(found) == 5) == _values("v", 10)[5:]
    with Consumer(cluster.bootstrap, **_QUICK, **{"auto.offset.reset": "none"}) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 2)
        error = _poll_for_error(consumer, OffsetOutOfRangeError)
        assert isinstance(error, OffsetOutOfRangeError)
        assert error.offset == 2


def test_range_reader_raises_on_truncation(cluster: ScriptedCluster) -> None:
    (tp,) = cluster.add_topic("t")
    _write(cluster, tp, _values("old", 10))
    cluster.logs[tp].elect(2, cut_to=6)
    _write(cluster, tp, _values("new", 10))
    with RangeReader(cluster.bootstrap, **_QUICK) as reader:
        with pytest.raises(LogTruncationError) as cut:
            list(reader.read({tp: (8, 12, 0)}))
        assert (cut.value.divergent_offset, cut.value.divergent_epoch) == (6, 0)
        with pytest.raises(EpochMismatchError) as rewritten:
            list(reader.read({tp: OffsetRange(4, 10, 0, max_leader_epoch=0)}))
        assert (rewritten.value.offset, rewritten.value.leader_epoch) == (6, 1)
        assert sum(b.num_rows for b in reader.read({tp: OffsetRange(4, 16, 0, max_leader_epoch=1)})) == 12


def test_range_is_read_despite_elections_and_faults(cluster: ScriptedCluster) -> None:
    tps = cluster.add_topic("t", 3)
    for tp in tps:
        _write(cluster, tp, _values(f"{tp.partition}-", 20))
    cluster.logs[tps[1]].elect(2)
    cluster.faults[ApiKey.FETCH] = [HANG_UP, ErrorCode.FENCED_LEADER_EPOCH, HANG_UP, ErrorCode.NOT_LEADER_OR_FOLLOWER]
    with RangeReader(cluster.bootstrap, **_QUICK, **{"max.partition.fetch.bytes": 150}) as reader:
        found: dict[int, list[bytes | None]] = {}
        for records in reader.read(dict.fromkeys(tps, (0, 20)), arrow=False):
            for record in records:
                found.setdefault(record.partition, []).append(record.value)
    assert found == {tp.partition: _values(f"{tp.partition}-", 20) for tp in tps}


@pytest.mark.parametrize("versions", [{}, {ApiKey.FETCH: (4, 11)}, {ApiKey.FETCH: (4, 10), ApiKey.METADATA: (0, 7)}])
def test_every_fetch_carries_the_known_epochs(versions: dict[ApiKey, tuple[int, int]]) -> None:
    with ScriptedCluster(versions=versions) as cluster:
        (tp,) = cluster.add_topic("t")
        _write(cluster, tp, _values("v", 6))
        cluster.logs[tp].elect(1)
        _write(cluster, tp, _values("w", 6))
        with RangeReader(cluster.bootstrap, **_QUICK, **{"max.partition.fetch.bytes": 150}) as reader:
            assert sum(b.num_rows for b in reader.read({tp: (0, 12, 0)})) == 12
        fetches = [
            (version, request.partitions[0]) for key, version, request in cluster.requests if key is ApiKey.FETCH
        ]
        trusted = ApiKey.METADATA not in versions
        for version, asked in fetches:
            assert asked.current_leader_epoch == (1 if version >= 9 and trusted else -1)
            expected = 0 if asked.fetch_offset <= 6 else 1
            assert asked.last_fetched_epoch == (expected if version >= 12 else -1)
        assert len(fetches) > 3
