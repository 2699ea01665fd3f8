"""KIP-320, sentence by sentence, the consumer side: it validates its position before it continues reading.

`§` names the section of the KIP, a number such as E46 the rule of `docs/rules/epochs.md`. The brokers are a scripted
cluster, so every version and every error can be produced. The state machine is tested cell by cell in
`tests/client/consumer/test_positions.py`, whole histories in `tests/client/test_truncation_model.py`.
"""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fenceline.client.admin.admin import Admin
from fenceline.client.consumer.consumer import Consumer
from fenceline.client.core.errors import LogTruncationError, OffsetOutOfRangeError, UnknownEpochError
from fenceline.client.producer.producer import Producer
from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.ids import TopicPartition
from fenceline.wire.apis import ApiKey
from tests.client.scripted_cluster import HANG_UP, SILENT, ScriptedCluster

QUICK = {
    "retry.backoff.ms": 1,
    "retry.backoff.max.ms": 5,
    "reconnect.backoff.ms": 1,
    "fetch.max.wait.ms": 10,
    "auto.offset.reset": "none",
}
VERSIONS = [
    pytest.param({}, id="fetch-18"),
    pytest.param({ApiKey.FETCH: (4, 11)}, id="fetch-11"),
]


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(nodes=2) as scripted:
        yield scripted


def write(cluster: ScriptedCluster, tp: TopicPartition, stem: str, count: int) -> list[bytes]:
    values = [f"{stem}{i}".encode() for i in range(count)]
    with Producer(cluster.bootstrap, **QUICK, **{"linger.ms": 0}) as producer:
        for value in values:
            producer.send(tp.topic, value, partition=tp.partition).result(60)
    return values


@contextmanager
def reading(cluster: ScriptedCluster, tp: TopicPartition, *at: int, **config: Any) -> Iterator[Consumer]:
    """A consumer that starts at offset `at`, or at an offset and the epoch of the record before it."""
    with Consumer(cluster.bootstrap, **{**QUICK, **config}) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, *at)
        yield consumer


def read(consumer: Consumer, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    _until(lambda: found.extend(r.value for r in consumer.poll(50)) or len(found) >= count)
    return found


def reported(consumer: Consumer, kind: type[Exception] = LogTruncationError) -> Any:
    caught: list[Exception] = []

    def poll() -> bool:
        try:
            consumer.poll(50)
        except kind as error:
            caught.append(error)
        return bool(caught)

    _until(poll)
    return caught[0]


def _until(done: Callable[[], object]) -> None:
    end_s = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end_s, "the expected state was not reached"


def asked(cluster: ScriptedCluster) -> list[tuple[int, int]]:
    """(requested epoch, current leader epoch) of every OffsetForLeaderEpoch request."""
    return [
        (int(p.leader_epoch), int(p.current_leader_epoch))
        for key, _, request in cluster.requests
        if key is ApiKey.OFFSET_FOR_LEADER_EPOCH
        for topic in request.topics
        for p in topic.partitions
    ]


# -- § Consumer: validation before the next fetch ------------------------------------------------------------------


def test_e46_leader_epoch_change_is_validated_before_the_next_fetch(cluster: ScriptedCluster) -> None:
    (tp,) = cluster.add_topic("t")
    write(cluster, tp, "a", 4)
    with reading(cluster, tp, 0) as consumer:
        read(consumer, 4)
        assert asked(cluster) == []
        cluster.logs[tp].elect(2)
        write(cluster, tp, "b", 4)
        read(consumer, 4)
        with cluster.lock:
            order = [
                (key, request.partitions[0].current_leader_epoch if key is ApiKey.FETCH else None)
                for key, _, request in cluster.requests
                if key in (ApiKey.FETCH, ApiKey.OFFSET_FOR_LEADER_EPOCH)
            ]
        assert asked(cluster) == [(0, 1)]
        assert order.index((ApiKey.OFFSET_FOR_LEADER_EPOCH, None)) < order.index((ApiKey.FETCH, 1))


def test_e46_the_first_fetch_from_a_committed_offset_is_validated(cluster: ScriptedCluster) -> None:
    """§ Committed offsets; ConsumerCoordinatorTest.testRefreshOffsetWithValidation. A seek is handled alike."""
    (tp,) = cluster.add_topic("t")
    write(cluster, tp, "a", 4)
    with reading(cluster, tp, 2, 0) as consumer:
        assert read(consumer, 2) == [b"a2", b"a3"]
    assert asked(cluster) == [(0, 0)]


def test_e53_seek_without_an_epoch_is_not_validated(cluster: ScriptedCluster) -> None:
    (tp,) = cluster.add_topic("t")
    write(cluster, tp, "a", 4)
    with reading(cluster, tp, 2) as consumer:
        assert read(consumer, 2) == [b"a2", b"a3"]
    assert asked(cluster) == []


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LEADER_NOT_AVAILABLE,
    ],
)
@pytest.mark.parametrize("key", [ApiKey.FETCH, ApiKey.OFFSET_FOR_LEADER_EPOCH])
def test_e51_e52_retriable_errors_are_retried(cluster: ScriptedCluster, key: ApiKey, code: ErrorCode) -> None:
    """§ Fencing: 74 looks up the leader, 75 retries the same one; no error is raised."""

    def metadata_requests() -> int:
        with cluster.lock:
            return sum(key is ApiKey.METADATA for key, _, _ in cluster.requests)

    (tp,) = cluster.add_topic("t")
    write(cluster, tp, "a", 4)
    with reading(cluster, tp, 0) as consumer:
        assert len(read(consumer, 4)) == 4
        before = metadata_requests()
        nodes: set[int] = set()

        def note_node(node: int, asked: ApiKey) -> None:
            if asked is key:
                nodes.add(node)

        cluster.node_rule = note_node
        cluster.faults[key] = [code, code]
        consumer.seek(tp, 2, 0)
        assert read(consumer, 2) == [b"a2", b"a3"]
        assert not cluster.faults[key]
        if code is not ErrorCode.UNKNOWN_LEADER_EPOCH and code is not ErrorCode.OFFSET_NOT_AVAILABLE:
            _until(lambda: metadata_requests() > before)
    assert nodes == {1}


@pytest.mark.parametrize("key", [ApiKey.FETCH, ApiKey.OFFSET_FOR_LEADER_EPOCH])
def test_e51_permanent_error_is_raised(cluster: ScriptedCluster, key: ApiKey) -> None:
    (tp,) = cluster.add_topic("t")
    cluster.faults[key] = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    with reading(cluster, tp, 0, 0) as consumer:
        assert reported(consumer, PeerError).code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_unresponsive_leader_blocks_only_its_own_partitions(cluster: ScriptedCluster) -> None:
    first, second = cluster.add_topic("t", 2)
    write(cluster, first, "a", 2)
    write(cluster, second, "b", 2)
    cluster.logs[second].elect(2)
    cluster.node_rule = lambda node, key: SILENT if (node, key) == (2, ApiKey.OFFSET_FOR_LEADER_EPOCH) else None
    with Consumer(cluster.bootstrap, **QUICK) as consumer:
        consumer.assign([first, second])
        consumer.seek(first, 0)
        consumer.seek(second, 1, 0)
        assert read(consumer, 2) == [b"a0", b"a1"]
        _until(lambda: asked(cluster) == [(0, 1)])
        consumer.seek(first, 1, 0)
        assert read(consumer, 1) == [b"a1"]


# -- § Consumer: truncation ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("versions", VERSIONS)
def test_e49_e50_truncation_reports_the_position_and_the_divergence(
    versions: dict[ApiKey, tuple[int, int]],
) -> None:
    """§ LogTruncationException: raised by poll, again until a seek; the partition is not fetched meanwhile."""
    with ScriptedCluster(nodes=2, versions=versions) as cluster:
        (tp,) = cluster.add_topic("t")
        write(cluster, tp, "a", 4)
        cluster.logs[tp].elect(2)
        write(cluster, tp, "b", 4)
        with reading(cluster, tp, 0) as consumer:
            read(consumer, 8)
            cluster.logs[tp].elect(1, cut_to=3)
            new = write(cluster, tp, "c", 9)
            error = reported(consumer)
            assert (error.topic, error.partition, error.truncated_from, error.leader_epoch) == ("t", 0, 8, 1)
            assert (error.divergent_offset, error.divergent_epoch, error.epochs, error.evidence) == (3, 0, (0, 1), ())
            assert isinstance(pickle.loads(pickle.dumps(error)), LogTruncationError)
            assert "records 3 to 7, read in epochs 0 and 1, were removed" in str(error)
            assert reported(consumer).truncated_from == 8
            assert [e.truncated_from for e in consumer.truncations()] == [8]
            # A lost position is not committed (E44).
            assert consumer._on_loop(consumer._async.committable) == {}
            consumer.seek(tp, error.divergent_offset, error.divergent_epoch)
            assert consumer._on_loop(consumer._async.committable) == {tp: (3, 0, "")}
            assert read(consumer, 9) == new


def _told_of_an_older_log(cluster: ScriptedCluster) -> Any:
    """Nine are read, from 5 on in epoch 1. Then the log truncated there returns: twelve records of epoch 0."""
    (tp,) = cluster.add_topic("t")
    write(cluster, tp, "a", 12)
    log = cluster.logs[tp]
    batches = list(log.batches)
    log.elect(2, cut_to=5)
    write(cluster, tp, "lost", 4)
    with reading(cluster, tp, 0) as consumer:
        read(consumer, 9)
        with cluster.lock:
            log.batches, log.epochs = batches, [(0, 0)]
            log.elect(1)
        return reported(consumer)


@pytest.mark.parametrize("versions", VERSIONS)
def test_g5_g6_lower_epoch_than_the_position_is_a_truncation(
    versions: dict[ApiKey, tuple[int, int]],
) -> None:
    """Kafka's consumer accepts (epoch 0, end 12) for a position at 9 of epoch 1, and keeps the lost records."""
    with ScriptedCluster(nodes=2, versions=versions) as cluster:
        error = _told_of_an_older_log(cluster)
        assert (error.truncated_from, error.divergent_offset, error.divergent_epoch) == (9, 5, 0)
        assert error.epochs == (1,)


@pytest.mark.parametrize("versions", VERSIONS)
def test_search_continues_below_an_epoch_that_was_never_read(versions: dict[ApiKey, tuple[int, int]]) -> None:
    """E25: read in epochs 0 and 3; the returning log has epoch 1 instead, from 4 on."""
    with ScriptedCluster(nodes=2, versions=versions) as cluster:
        (tp,) = cluster.add_topic("t")
        write(cluster, tp, "a", 6)
        log = cluster.logs[tp]
        log.elect(2, cut_to=4)
        write(cluster, tp, "never read", 8)
        batches, epochs = list(log.batches), list(log.epochs)
        with cluster.lock:
            log.batches = [raw for raw in batches if raw in batches[:4]]
            log.epochs, log.leader_epoch = [(0, 0)], 2
        write_first = [b"a4'", b"a5'"]
        with cluster.lock:
            # Another leader continued from the same four with two of epoch 0, then started epoch 3.
            log.leader_epoch = 0
        for value in write_first:
            write(cluster, tp, value.decode(), 1)
        with cluster.lock:
            log.leader_epoch = 2
            log.elect(1)
        write(cluster, tp, "lost", 3)
        with reading(cluster, tp, 0) as consumer:
            read(consumer, 9)
            with cluster.lock:
                log.batches, log.epochs = batches, epochs
                log.elect(2)
            error = reported(consumer)
            assert (error.truncated_from, error.divergent_offset, error.divergent_epoch) == (9, 4, 0)
            assert error.epochs == (0, 3)


def test_e48_undefined_epoch_end_means_unknown_divergence(cluster: ScriptedCluster) -> None:
    (tp,) = cluster.add_topic("t")
    write(cluster, tp, "a", 4)
    with reading(cluster, tp, 0) as consumer:
        read(consumer, 4)
        with cluster.lock:
            log = cluster.logs[tp]
            log.elect(1)
            log.epochs = [(-1, 0)]
        error = reported(consumer)
        assert (error.truncated_from, error.divergent_offset, error.divergent_epoch) == (4, -1, -1)
        assert error.epochs == (0,)


def test_unvalidated_records_are_not_returned(cluster: ScriptedCluster) -> None:
    """Ten are fetched, one is returned; nine are held until the new leader answers, then replaced by its records."""
    (tp,) = cluster.add_topic("t")
    old = write(cluster, tp, "a", 10)
    with reading(cluster, tp, 0, **{"max.poll.records": 1}) as consumer:
        assert read(consumer, 1) == old[:1]
        cluster.fault_rule = lambda key: SILENT if key is ApiKey.OFFSET_FOR_LEADER_EPOCH else None
        cluster.logs[tp].elect(2, cut_to=6)
        new = write(cluster, tp, "b", 4)
        _until(lambda: ApiKey.OFFSET_FOR_LEADER_EPOCH in cluster.seen or _nothing(consumer))
        assert consumer.poll(50) == []
        cluster.fault_rule = None
        cluster.hang_up()
        found = read(consumer, 9)
        assert found == [*old[1:6], *new]
        assert consumer.truncations() == []


def _nothing(consumer: Consumer) -> bool:
    """Makes the client check its leader without returning a record."""
    consumer.lag(TopicPartition("t", 0))
    return False


# -- § Reset policies ----------------------------------------------------------------------------------------------


def _cut_under(cluster: ScriptedCluster, **config: Any) -> tuple[Consumer, TopicPartition, list[bytes]]:
    """A consumer that has read 10 records, of which the log kept 6; four new ones follow."""
    (tp,) = cluster.add_topic("t")
    write(cluster, tp, "a", 10)
    consumer = Consumer(cluster.bootstrap, **{**QUICK, **config})
    consumer.assign([tp])
    consumer.seek(tp, 0)
    read(consumer, 10)
    cluster.logs[tp].elect(2, cut_to=6)
    return consumer, tp, write(cluster, tp, "b", 4)


@pytest.mark.parametrize("reset", ["earliest", "latest", "none"])
def test_on_truncation_rewind_continues_from_the_divergence(
    cluster: ScriptedCluster, reset: str, caplog: pytest.LogCaptureFixture
) -> None:
    """E49: to the divergence under any reset policy; the truncation is logged and kept."""
    consumer, tp, new = _cut_under(cluster, **{"on.truncation": "rewind", "auto.offset.reset": reset})
    with consumer, caplog.at_level(logging.WARNING, "fenceline.client"):
        assert read(consumer, 4) == new
        assert consumer.position_and_epoch(tp)[:2] == (10, 1)
        (met,) = consumer.truncations()
        assert (met.truncated_from, met.divergent_offset) == (10, 6)
        assert "it diverges at offset 6" in caplog.text


def test_on_truncation_latest_continues_from_the_end(cluster: ScriptedCluster) -> None:
    consumer, tp, _ = _cut_under(cluster, **{"on.truncation": "latest"})
    with consumer:
        _until(lambda: consumer.poll(20) or consumer.truncations())
        assert consumer.position(tp) == 10
        newer = write(cluster, tp, "c", 2)
        assert read(consumer, 2) == newer


@pytest.mark.parametrize(
    ("choice", "goes_on_at"), [("rewind", 6), (2, 2), ((8, 1), 8), ("latest", 10), (None, None), ("fail", None)]
)
def test_on_truncation_may_be_a_function(cluster: ScriptedCluster, choice: Any, goes_on_at: int | None) -> None:
    met: list[LogTruncationError] = []
    consumer, tp, _ = _cut_under(cluster, on_truncation=lambda error: (met.append(error), choice)[1])
    with consumer:
        if goes_on_at is None:
            assert reported(consumer).truncated_from == 10
        else:
            found: list[int] = []
            _until(lambda: found.extend(r.offset for r in consumer.poll(20)) or met)
            assert met[0].divergent_offset == 6
            _until(lambda: found.extend(r.offset for r in consumer.poll(20)) or len(found) >= 10 - goes_on_at)
            assert found == list(range(goes_on_at, 10))
            assert consumer.position(tp) == 10
            assert len(met) == 1


def test_callback_may_seek_and_use_the_consumer(cluster: ScriptedCluster) -> None:
    """The callback runs in the polling thread."""
    made: list[Consumer] = []

    def decide(error: LogTruncationError) -> None:
        tp = TopicPartition(error.topic, error.partition)
        assert made[0].end_offsets([tp])[tp] == 10
        made[0].seek(tp, 7)

    consumer, _, new = _cut_under(cluster, on_truncation=decide)
    made.append(consumer)
    with consumer:
        assert read(consumer, 3) == new[1:]


def test_callback_result_is_validated(cluster: ScriptedCluster) -> None:
    consumer, _, _ = _cut_under(cluster, on_truncation=lambda error: "somewhere")
    with consumer:
        assert "'somewhere'" in str(reported(consumer, OperatorError))


@pytest.mark.parametrize(("reset", "offset"), [("earliest", 0), ("latest", 4)])
def test_e48_rewind_with_unknown_divergence_uses_the_reset_policy(
    cluster: ScriptedCluster, reset: str, offset: int
) -> None:
    (tp,) = cluster.add_topic("t")
    write(cluster, tp, "a", 4)

    def decide(error: LogTruncationError) -> str:
        assert error.divergent_offset == -1
        with cluster.lock:
            cluster.logs[tp].epochs = [(0, 0), (1, 4)]  # the leader knows its epochs again
        return "rewind"

    with reading(cluster, tp, 0, **{"on.truncation": decide, "auto.offset.reset": reset}) as consumer:
        read(consumer, 4)
        with cluster.lock:
            cluster.logs[tp].elect(1)
            cluster.logs[tp].epochs = [(-1, 0)]
        found: list[int] = []
        _until(lambda: found.extend(r.offset for r in consumer.poll(20)) or consumer.truncations())
        _until(lambda: found.extend(r.offset for r in consumer.poll(20)) or len(found) >= 4 - offset)
        assert found == list(range(offset, 4))
        assert consumer.position(tp) == 4


# -- § Unknown epochs, metadata ------------------------------------------------------------------------------------


def test_e54_g7_g8_epoch_newer_than_metadata_waits_for_metadata(cluster: ScriptedCluster) -> None:
    """Kafka's consumer asks the old leader, which does not know the epoch, and treats that as a truncation."""
    (tp,) = cluster.add_topic("t")
    write(cluster, tp, "a", 4)
    with reading(cluster, tp, 4, 1) as consumer:
        _until(lambda: consumer.poll(20) or cluster.seen[ApiKey.METADATA] > 3)
        assert asked(cluster) == []
        cluster.logs[tp].elect(2)
        new = write(cluster, tp, "b", 2)
        assert read(consumer, 2) == new
        assert asked(cluster) == [(1, 1)]
        assert consumer.truncations() == []


def test_epoch_that_never_existed_is_finally_reported(cluster: ScriptedCluster) -> None:
    """A checkpoint of another cluster: nothing is read, and other partitions are unaffected."""
    (tp,) = cluster.add_topic("t")
    write(cluster, tp, "a", 4)
    with reading(cluster, tp, 2, 77, **{"default.api.timeout.ms": 200}) as consumer:
        error = reported(consumer, UnknownEpochError)
        assert (error.offset, error.leader_epoch, error.known_epoch) == (2, 77, 0)
        consumer.seek(tp, 2)
        assert read(consumer, 2) == [b"a2", b"a3"]


def test_g9_truncation_before_the_first_record_loses_and_skips_nothing(cluster: ScriptedCluster) -> None:
    """Reading starts at the end, 10, which was truncated to 6 before the first record: all later records are new."""
    (tp,) = cluster.add_topic("t")
    write(cluster, tp, "a", 10)
    with Consumer(cluster.bootstrap, **{**QUICK, "auto.offset.reset": "latest"}) as consumer:
        consumer.assign([tp])
        assert consumer.poll(20) == []
        assert consumer.position(tp) == 10
        cluster.logs[tp].elect(2, cut_to=6)
        new = write(cluster, tp, "b", 8)
        assert read(consumer, 8) == new
        assert consumer.truncations() == []


def test_e59_kip951_leader_hint_needs_no_metadata_request(cluster: ScriptedCluster) -> None:
    (tp,) = cluster.add_topic("t")
    write(cluster, tp, "a", 4)
    # A backoff that would fail the test.
    with Consumer(
        cluster.bootstrap, **{**QUICK, "retry.backoff.ms": 30_000, "retry.backoff.max.ms": 30_000}
    ) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 0)
        read(consumer, 4)
        known = cluster.seen[ApiKey.METADATA]
        cluster.logs[tp].elect(2)
        cluster.fault_rule = lambda key: SILENT if key is ApiKey.METADATA else None
        _until(lambda: consumer.poll(20) or asked(cluster) == [(0, 1)])
        assert cluster.seen[ApiKey.METADATA] <= known + 1


@pytest.mark.parametrize("versions", VERSIONS)
def test_truncation_is_detected_with_one_request_to_the_new_leader(versions: dict[ApiKey, tuple[int, int]]) -> None:
    """Within one round trip after learning of the new leader, and before any Fetch of the new epoch."""
    with ScriptedCluster(nodes=2, versions=versions) as cluster:
        consumer, _, _ = _cut_under(cluster)
        with consumer:
            reported(consumer)
            epochs = [r.partitions[0].current_leader_epoch for _, _, r in cluster.fetches if r.partitions]
            assert 1 not in epochs
            assert asked(cluster) == [(0, 1)]


# -- § Offsets with epochs -----------------------------------------------------------------------------------------


def test_e55_offsets_include_epochs(cluster: ScriptedCluster) -> None:
    (tp,) = cluster.add_topic("t")
    write(cluster, tp, "a", 4)
    cluster.logs[tp].elect(2)
    with Consumer(cluster.bootstrap, **QUICK) as consumer:
        consumer.assign([tp])
        assert consumer.offsets_for_times({tp: 0})[tp] == (0, 1, -1)
        assert consumer.end_offsets([tp])[tp] == 4
        assert consumer.end_offsets([tp])[tp].leader_epoch == 1
        assert consumer.beginning_offsets([tp])[tp].leader_epoch == 1


def test_g15_offset_not_available_is_retried_without_metadata(cluster: ScriptedCluster) -> None:
    """KIP-207 chose the code so that clients do not look for another leader."""
    (tp,) = cluster.add_topic("t")
    with Admin(cluster.bootstrap, **QUICK) as admin:
        admin.list_offsets({tp: "latest"})
        before = cluster.seen[ApiKey.METADATA]
        cluster.faults[ApiKey.LIST_OFFSETS] = [ErrorCode.OFFSET_NOT_AVAILABLE] * 3
        assert admin.list_offsets({tp: "latest"})[tp].offset == 0
        assert cluster.seen[ApiKey.METADATA] == before
        assert cluster.seen[ApiKey.LIST_OFFSETS] == 5


# -- § Compatibility -----------------------------------------------------------------------------------------------

OLD: list[Any] = [
    pytest.param({ApiKey.OFFSET_FOR_LEADER_EPOCH: (0, 1), ApiKey.METADATA: (0, 9)}, id="no fenced lookups"),
    pytest.param({ApiKey.METADATA: (0, 6), ApiKey.OFFSET_FOR_LEADER_EPOCH: (0, 1)}, id="2.0"),
    pytest.param({ApiKey.METADATA: (0, 7), ApiKey.LIST_OFFSETS: (1, 3)}, id="no epochs of offsets"),
]


@pytest.mark.parametrize("older", OLD)
def test_e46_too_old_broker_is_not_asked(
    older: dict[ApiKey, tuple[int, int]], caplog: pytest.LogCaptureFixture
) -> None:
    versions = {ApiKey.FETCH: (4, 10), ApiKey.LIST_OFFSETS: (1, 5), **older}
    with ScriptedCluster(nodes=2, versions=versions) as cluster, caplog.at_level(logging.WARNING, "fenceline.client"):
        (tp,) = cluster.add_topic("t")
        write(cluster, tp, "a", 4)
        with reading(cluster, tp, 2, 0) as consumer:
            assert read(consumer, 2) == [b"a2", b"a3"]
            cluster.logs[tp].elect(2)
            assert read_all(cluster, consumer, tp, 3)
        assert asked(cluster) == []
        assert "is too old to validate positions" in caplog.text


def read_all(cluster: ScriptedCluster, consumer: Consumer, tp: TopicPartition, count: int) -> bool:
    new = write(cluster, tp, "b", count)
    return read(consumer, count) == new


def test_records_of_an_older_epoch_reveal_a_truncation_on_old_brokers() -> None:
    """A log's epochs never decrease: the next record was written before the ones already read."""
    versions = {
        ApiKey.FETCH: (4, 8),
        ApiKey.LIST_OFFSETS: (1, 3),
        ApiKey.METADATA: (0, 7),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: (0, 1),
    }
    with ScriptedCluster(nodes=2, versions=versions) as cluster:
        error = _told_of_an_older_log(cluster)
        assert (error.truncated_from, error.leader_epoch, error.divergent_offset) == (9, 1, -1)


# -- KIP-392 -------------------------------------------------------------------------------------------------------


def _readers(cluster: ScriptedCluster) -> set[int]:
    return {node for node, _, _ in cluster.fetches}


def test_kip392_consumer_with_a_rack_reads_from_the_preferred_replica(cluster: ScriptedCluster) -> None:
    (tp,) = cluster.add_topic("t")
    values = write(cluster, tp, "a", 4)
    cluster.logs[tp].read_replica = 2
    with reading(cluster, tp, 0, **{"client.rack": "here"}) as consumer:
        assert read(consumer, 4) == values
        first_at_replica = next(i for i, (node, _, _) in enumerate(cluster.fetches) if node == 2)
        assert all(node == 1 for node, _, _ in cluster.fetches[:first_at_replica])
        more = write(cluster, tp, "b", 4)
        assert read(consumer, 4) == more
        assert all(node == 2 for node, _, _ in cluster.fetches[first_at_replica:])
        request = cluster.fetches[-1][2]
        assert (request.rack_id, request.partitions[0].last_fetched_epoch) == ("here", 0)


def test_kip392_consumer_without_a_rack_reads_from_the_leader(cluster: ScriptedCluster) -> None:
    (tp,) = cluster.add_topic("t")
    values = write(cluster, tp, "a", 4)
    cluster.logs[tp].read_replica = 2
    with reading(cluster, tp, 0) as consumer:
        assert read(consumer, 4) == values
    assert _readers(cluster) == {1}


@pytest.mark.parametrize("trouble", ["behind", "out of range", "out of range and of time", "hangs up", "refuses"])
def test_e52_failing_replica_is_abandoned_for_the_leader(cluster: ScriptedCluster, trouble: str) -> None:
    """A lagging replica that lost its disk reports a divergence (E10): only the leader can decide."""
    (tp,) = cluster.add_topic("t")
    values = write(cluster, tp, "a", 4)
    log = cluster.logs[tp]
    log.read_replica = 2
    with reading(cluster, tp, 0, **{"client.rack": "here"}) as consumer:
        assert read(consumer, 4) == values
        assert 2 in _readers(cluster)

        def refuse(node: int, key: ApiKey) -> object:
            if (node, key) != (2, ApiKey.FETCH):
                return None
            if trouble == "out of range and of time":
                # Its preferred lease ends while the request is in flight.
                consumer._async.positions.of(tp).read_replica = -1
            return HANG_UP if trouble == "hangs up" else ErrorCode.OFFSET_OUT_OF_RANGE

        with cluster.lock:
            if trouble == "behind":
                log.replica_end = 2
            elif trouble == "refuses":
                log.read_replica = 3
            else:
                cluster.node_rule = refuse
            before = len(cluster.fetches)
        _until(lambda: consumer.poll(10) or any(node == 1 for node, _, _ in cluster.fetches[before:]))
        with cluster.lock:
            log.read_replica, log.replica_end, cluster.node_rule = None, None, None
        more = write(cluster, tp, "b", 2)
        assert read(consumer, 2) == more
        assert consumer.truncations() == []


def test_kip392_replica_also_reports_truncation(cluster: ScriptedCluster) -> None:
    (tp,) = cluster.add_topic("t")
    write(cluster, tp, "a", 10)
    log = cluster.logs[tp]
    log.read_replica = 2
    with reading(cluster, tp, 0, **{"client.rack": "here"}) as consumer:
        read(consumer, 10)
        log.elect(1, cut_to=6)
        write(cluster, tp, "b", 8)
        assert reported(consumer).divergent_offset == 6


def test_e52_out_of_range_without_truncation_uses_the_reset_policy(cluster: ScriptedCluster) -> None:
    """Retention has deleted the next records."""
    (tp,) = cluster.add_topic("t")
    write(cluster, tp, "a", 10)
    log = cluster.logs[tp]
    log.batches, log.start_offset, log.epochs = log.batches[5:], 5, [(0, 5)]
    with reading(cluster, tp, 2, 0) as consumer:
        error = reported(consumer, OffsetOutOfRangeError)
        assert not isinstance(error, LogTruncationError)
        assert error.offset == 2
