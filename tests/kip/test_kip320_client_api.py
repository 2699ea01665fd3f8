"""KIP-320, § Public Interfaces and § Consumer Handling: leader epochs and truncations in the client API.

One test for each sentence about a client's API; truncation detection by the consumer is in
`test_kip320_consumer.py`. Names differ from Java's where `docs/client.md` says so.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fenceline.client import (
    AsyncConsumer,
    CommittedOffset,
    Consumer,
    ConsumerRecords,
    FencedLeaderEpochError,
    LogTruncationError,
    OffsetOutOfRangeError,
    RetriableError,
    TopicPartition,
    UnknownLeaderEpochError,
)
from fenceline.client.admin.admin import Admin
from fenceline.client.core.errors import RETRIABLE, ClientError, TimedOut, broker_error
from fenceline.errors import ErrorCode
from fenceline.testing.waiting import eventually
from fenceline.wire.apis import ApiKey
from tests.client.scripted_cluster import ScriptedCluster
from tests.kip.test_kip320_consumer import QUICK, read, reading, reported, write


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(nodes=2) as scripted:
        yield scripted


def _cut(cluster: ScriptedCluster, *tps: TopicPartition, to: int = 6) -> None:
    with cluster.lock:
        for tp in tps:
            cluster.logs[tp].elect(2, cut_to=to)


# -- § LogTruncationException --------------------------------------------------------------------------------------


def test_truncation_error_extends_the_out_of_range_error(cluster: ScriptedCluster) -> None:
    """Code that catches that error with auto.offset.reset=none also catches this one, with the same attributes."""
    (tp,) = cluster.add_topic("t")
    write(cluster, tp, "a", 10)
    with reading(cluster, tp, 0) as consumer:
        read(consumer, 10)
        _cut(cluster, tp)
        error = reported(consumer, OffsetOutOfRangeError)
    assert isinstance(error, LogTruncationError)
    assert (error.code, error.topic, error.partition) == (ErrorCode.OFFSET_OUT_OF_RANGE, "t", 0)
    assert (error.offset, error.leader_epoch, error.log_start_offset, error.log_end_offset) == (10, 0, -1, -1)
    assert error.offset_out_of_range_partitions == {tp: 10}


def test_e50_error_includes_all_truncated_partitions_and_divergence_offsets(
    cluster: ScriptedCluster,
) -> None:
    first, second, whole = cluster.add_topic("t", 3)
    for tp in (first, second, whole):
        write(cluster, tp, "a", 10)
    with Consumer(cluster.bootstrap, **QUICK) as consumer:
        consumer.assign([first, second, whole])
        for tp, offset in ((first, 0), (second, 2), (whole, 5)):
            consumer.seek(tp, offset)
        read(consumer, 23)
        _cut(cluster, first)
        _cut(cluster, second, to=4)
        _until_lost(consumer, 2)
        error = reported(consumer)
        assert {(e.topic, e.partition, e.truncated_from) for e in error.truncations} == {("t", 0, 10), ("t", 1, 10)}
        assert error.offset_out_of_range_partitions == {first: 10, second: 10}
        assert error.truncation_offsets == {first: CommittedOffset(6, 0), second: CommittedOffset(4, 0)}
        assert "Other truncated partitions: 1. t-1: the log was truncated below offset 10" in str(error)
        copy = pickle.loads(pickle.dumps(error))
        assert (str(copy), copy.truncation_offsets) == (str(error), error.truncation_offsets)
        assert reported(consumer).truncation_offsets == error.truncation_offsets, "until a seek"
        assert [(met.partition, met.others) for met in consumer.truncations()] == [(0, ()), (1, ())]
        # Handlers seek to these offsets.
        for tp, offset in error.truncation_offsets.items():
            consumer.seek(tp, offset)
        new = write(cluster, first, "b", 2) + write(cluster, second, "c", 2)
        assert sorted(filter(None, read(consumer, 4))) == sorted(new)


def _until_lost(consumer: Consumer, count: int) -> None:
    """A leader answers for all partitions at once, but a test elects its leaders one after the other."""
    eventually(lambda: len(consumer._on_loop(consumer._async.positions.lost)) == count)


def test_g4_partition_with_unknown_divergence_has_no_offset(cluster: ScriptedCluster) -> None:
    known, unknown = cluster.add_topic("t", 2)
    for tp in (known, unknown):
        write(cluster, tp, "a", 10)
    with Consumer(cluster.bootstrap, **QUICK) as consumer:
        consumer.assign([known, unknown])
        for tp in (known, unknown):
            consumer.seek(tp, 0)
        read(consumer, 20)
        _cut(cluster, known, unknown)
        with cluster.lock:
            cluster.logs[unknown].epochs = [(-1, 0)]
        _until_lost(consumer, 2)
        error = reported(consumer)
    assert error.offset_out_of_range_partitions == {known: 10, unknown: 10}
    assert error.truncation_offsets == {known: (6, 0, "")}


def test_callback_decides_per_partition_and_the_rest_fail_together(cluster: ScriptedCluster) -> None:
    tps = cluster.add_topic("t", 3)
    for tp in tps:
        write(cluster, tp, "a", 10)
    config: dict[str, Any] = {"on.truncation": lambda error: "rewind" if error.partition == 1 else "fail"}
    with Consumer(cluster.bootstrap, **QUICK, **config) as consumer:
        consumer.assign(tps)
        for tp in tps:
            consumer.seek(tp, 0)
        read(consumer, 30)
        _cut(cluster, *tps)
        _until_lost(consumer, 3)
        assert set(reported(consumer).truncation_offsets) == {tps[0], tps[2]}
        assert consumer.position(tps[1]) == 6


# -- § Offset reset policies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_e49_reset_policy_resets_the_position_to_the_divergence(
    cluster: ScriptedCluster, reset: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Both modes alike, "as precisely as possible"; the consumer logs a message and raises nothing."""
    (tp,) = cluster.add_topic("t")
    write(cluster, tp, "a", 10)
    config = {"on.truncation": "reset", "auto.offset.reset": reset}
    with reading(cluster, tp, 0, **config) as consumer, caplog.at_level(logging.WARNING, "fenceline.client"):
        read(consumer, 10)
        _cut(cluster, tp)
        new = write(cluster, tp, "b", 4)
        assert read(consumer, 4) == new
        assert [(e.truncated_from, e.divergent_offset) for e in consumer.truncations()] == [(10, 6)]
        assert "t-0: the log was truncated below offset 10" in caplog.text


def test_e50_without_a_reset_policy_the_error_is_raised(cluster: ScriptedCluster) -> None:
    (tp,) = cluster.add_topic("t")
    write(cluster, tp, "a", 10)
    with reading(cluster, tp, 0, **{"on.truncation": "reset", "auto.offset.reset": "none"}) as consumer:
        read(consumer, 10)
        _cut(cluster, tp)
        assert reported(consumer).truncation_offsets == {tp: (6, 0, "")}


@pytest.mark.parametrize(("reset", "position"), [("earliest", 0), ("latest", 6)])
def test_e48_unknown_divergence_uses_the_reset_policy(cluster: ScriptedCluster, reset: str, position: int) -> None:
    (tp,) = cluster.add_topic("t")
    write(cluster, tp, "a", 10)

    def decide(error: LogTruncationError) -> str:
        assert error.truncation_offsets == {}
        with cluster.lock:
            cluster.logs[tp].epochs = [(0, 0), (1, 6)]  # the leader knows its epochs again
        return "reset"

    with reading(cluster, tp, 0, **{"on.truncation": decide, "auto.offset.reset": reset}) as consumer:
        read(consumer, 10)
        with cluster.lock:
            cluster.logs[tp].elect(2, cut_to=6)
            cluster.logs[tp].epochs = [(-1, 0)]
        found: list[int] = []
        _poll_until(consumer, found, lambda: bool(consumer.truncations()))
        assert consumer.position(tp) in (position, 6)
        write(cluster, tp, "b", 1)
        _poll_until(consumer, found, lambda: found[-1:] == [6])
        assert len(consumer.truncations()) == 1
    assert found == list(range(position, 7))


def _poll_until(consumer: Consumer, found: list[int], done: Callable[[], bool]) -> None:
    eventually(lambda: found.extend(record.offset for record in consumer.poll(20)) or done())


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_default_raises_regardless_of_the_reset_policy(cluster: ScriptedCluster, reset: str) -> None:
    """Different on purpose: that policy is meant for offsets that retention removed, not for losses."""
    (tp,) = cluster.add_topic("t")
    write(cluster, tp, "a", 10)
    with reading(cluster, tp, 0, **{"auto.offset.reset": reset}) as consumer:
        read(consumer, 10)
        _cut(cluster, tp)
        assert reported(consumer).truncation_offsets == {tp: (6, 0, "")}


# -- § Error codes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.FENCED_LEADER_EPOCH, FencedLeaderEpochError),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, UnknownLeaderEpochError),
    ],
)
def test_new_error_codes_are_retriable(code: ErrorCode, kind: type[ClientError]) -> None:
    error = broker_error(code, "a fetch of t-0")
    assert type(error) is kind
    assert isinstance(error, RetriableError)
    assert type(pickle.loads(pickle.dumps(error))) is kind
    assert (error.code, code in RETRIABLE) == (code, True)


def test_permanent_errors_are_not_retriable() -> None:
    for code in ErrorCode:
        assert isinstance(broker_error(code, "a test"), RetriableError) == (code in RETRIABLE), code
    assert not isinstance(LogTruncationError("t", 0, 1, 0), RetriableError)


def test_stale_epoch_in_a_lookup_raises_its_fencing_error(cluster: ScriptedCluster) -> None:
    (tp,) = cluster.add_topic("t")
    write(cluster, tp, "a", 1)
    cluster.logs[tp].elect(1)
    with Admin(cluster.bootstrap, **QUICK) as admin, pytest.raises(FencedLeaderEpochError):
        admin.offsets_for_leader_epoch({tp: (0, 0)})


def test_timeout_while_the_broker_is_behind_reports_that_cause(cluster: ScriptedCluster) -> None:
    (tp,) = cluster.add_topic("t")
    cluster.fault_rule = lambda key: ErrorCode.UNKNOWN_LEADER_EPOCH if key is ApiKey.LIST_OFFSETS else None
    with (
        Consumer(cluster.bootstrap, **QUICK, **{"default.api.timeout.ms": 1000}) as consumer,
        pytest.raises(TimedOut) as caught,
    ):
        consumer.end_offsets([tp])
    assert isinstance(caught.value.__cause__, UnknownLeaderEpochError)


# -- § Offsets with epochs: records, seek, commits -----------------------------------------------------------------


def test_e55_poll_result_has_next_offsets_with_epochs(cluster: ScriptedCluster) -> None:
    first, _ = cluster.add_topic("t", 2)
    write(cluster, first, "a", 4)
    cluster.logs[first].elect(2)
    write(cluster, first, "b", 2)
    with reading(cluster, first, 0) as consumer:
        records = consumer.poll(60_000, max_records=3)
        assert isinstance(records, ConsumerRecords)
        assert [record.leader_epoch for record in records] == [0, 0, 0]
        assert records.next_offsets() == {first: CommittedOffset(3, 0)} == consumer.next_offsets()
        rest = list[Any]()
        while len(rest) < 3:
            given = consumer.poll(60_000)
            rest += given
        assert given.next_offsets() == {first: CommittedOffset(6, 1)}
        assert records.next_offsets() == {first: CommittedOffset(3, 0)}, "the offsets of its own poll"
        nothing = consumer.poll(20)
        assert (nothing, nothing.next_offsets(), consumer.next_offsets()) == ([], {}, {})
        copy = pickle.loads(pickle.dumps(given))
        assert (copy, copy.next_offsets()) == (given, given.next_offsets())


def test_e55_tables_have_next_offsets_with_epochs(cluster: ScriptedCluster) -> None:
    (tp,) = cluster.add_topic("t")
    write(cluster, tp, "a", 4)
    with reading(cluster, tp, 0) as consumer:
        rows = 0
        while rows < 4:
            rows += consumer.poll_arrow(60_000, max_bytes=1).num_rows
            assert consumer.next_offsets() == {tp: CommittedOffset(rows, 0)}

    async def story() -> None:
        async with AsyncConsumer(cluster.bootstrap, **QUICK) as consumer:
            consumer.assign([tp])
            consumer.seek(tp, CommittedOffset(2, 0))
            assert (await consumer.poll(60_000)).next_offsets()[tp].leader_epoch == 0
            consumer.seek(tp, CommittedOffset(0, 0))
            rows = (await consumer.poll_arrow(60_000)).num_rows
            assert rows > 0
            assert consumer.next_offsets() == {tp: CommittedOffset(rows, 0)}

    asyncio.run(story())


def test_e53_seek_accepts_an_externally_stored_offset_and_epoch(cluster: ScriptedCluster) -> None:
    """If the log was truncated after the offset was stored, the next poll raises."""
    (tp,) = cluster.add_topic("t")
    write(cluster, tp, "a", 10)
    with reading(cluster, tp, 0) as consumer:
        read(consumer, 10)
        stored = consumer.position_and_epoch(tp)
    _cut(cluster, tp)
    with reading(cluster, tp, 0) as consumer:
        consumer.seek(tp, stored)
        assert reported(consumer).truncation_offsets == {tp: (6, 0, "")}


def test_e56_a_negative_epoch_reads_as_none(cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    (tp,) = cluster.add_topic("t")
    write(cluster, tp, "a", 4)
    sent: list[CommittedOffset] = []

    async def commit(*given: Any, **_: Any) -> None:
        sent.extend(given[2].values())

    monkeypatch.setattr("fenceline.client.consumer.consumer_offsets.commit", commit)
    with Consumer(cluster.bootstrap, **QUICK, **{"group.id": "g", "enable.auto.commit": False}) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, CommittedOffset(2, -7))
        assert read(consumer, 2) == [b"a2", b"a3"]
        consumer.commit({tp: CommittedOffset(4, -7, "kept")})
        consumer.commit({tp: (4, 0)})  # type: ignore[dict-item]
        consumer.commit(consumer.next_offsets())
    assert sent[:2] == [(4, -1, "kept"), (4, 0, "")]
