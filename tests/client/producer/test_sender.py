"""Exactly once and in order under any fault: the producer against a misbehaving cluster."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from typing import Any

import pytest

from fenceline.client.core.connection import Connection
from fenceline.client.core.errors import ClientError
from fenceline.client.producer.producer import Producer
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TopicPartition
from fenceline.wire.apis import ApiKey
from tests.client.scripted_cluster import HANG_UP, REFUSE, SILENT, ScriptedCluster

_QUICK = {"retry.backoff.ms": 1, "retry.backoff.max.ms": 5, "reconnect.backoff.ms": 1, "reconnect.backoff.max.ms": 5}
_SMALL = {**_QUICK, "batch.size": 200, "linger.ms": 0}


def _values(count: int) -> list[bytes]:
    return [b"%06d" % i for i in range(count)]


def _send_all(cluster: ScriptedCluster, tp: TopicPartition, values: list[bytes], **config: object) -> list[int]:
    with Producer(cluster.bootstrap, **{**_SMALL, **config}) as producer:
        deliveries = [producer.send(tp.topic, value, partition=tp.partition) for value in values]
        producer.flush(60)
        return [delivery.result(0).offset for delivery in deliveries]


@pytest.mark.parametrize("fault", [HANG_UP, REFUSE, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR])
@pytest.mark.parametrize("position", [0, 1, 5])
def test_transient_fault_causes_no_loss_duplicate_or_reordering(
    cluster: ScriptedCluster, fault: object, position: int
) -> None:
    (tp,) = cluster.add_topic("t")
    cluster.faults[ApiKey.PRODUCE] = [None] * position + [fault]
    values = _values(300)
    assert _send_all(cluster, tp, values) == list(range(300))
    assert cluster.logs[tp].values() == values


@pytest.mark.parametrize("seed", range(8))
def test_random_faults_cause_no_loss_duplicate_or_reordering(cluster: ScriptedCluster, seed: int) -> None:
    rng = random.Random(seed)
    tps = cluster.add_topic("t", 3)
    faults = [HANG_UP, REFUSE, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.CORRUPT_MESSAGE]

    def rule(key: ApiKey) -> object:
        if key is ApiKey.METADATA and rng.random() < 0.1:
            return REFUSE
        if key is not ApiKey.PRODUCE:
            return None
        if rng.random() < 0.1:
            log = cluster.logs[rng.choice(tps)]
            log.elect(3 - log.leader)
        return rng.choice(faults) if rng.random() < 0.25 else None

    values = _values(400)
    with Producer(cluster.bootstrap, **_SMALL) as producer:
        producer.partitions_for("t")
        cluster.fault_rule = rule
        deliveries = [producer.send("t", v, partition=i % 3) for i, v in enumerate(values)]
        producer.flush(60)
        assert [d.exception(0) for d in deliveries] == [None] * len(values)
    for tp in tps:
        assert cluster.logs[tp].values() == values[tp.partition :: 3]


def test_moved_leader_is_found_by_the_response_hint(cluster: ScriptedCluster) -> None:
    (tp,) = cluster.add_topic("t")
    with Producer(cluster.bootstrap, **_SMALL) as producer:
        producer.send("t", b"a").result(60)
        asked = cluster.seen[ApiKey.METADATA]
        cluster.logs[tp].elect(2)
        producer.send("t", b"b").result(60)
        assert cluster.logs[tp].values() == [b"a", b"b"]
        assert cluster.seen[ApiKey.METADATA] <= asked + 1


def test_rejected_batch_fails_alone_and_later_batches_use_a_new_epoch(cluster: ScriptedCluster) -> None:
    (tp,) = cluster.add_topic("t")
    with Producer(cluster.bootstrap, **_SMALL) as producer:
        producer.send("t", b"first").result(60)
        cluster.faults[ApiKey.PRODUCE] = [ErrorCode.MESSAGE_TOO_LARGE]
        refused = producer.send("t", b"large")
        with pytest.raises(PeerError, match=r"max\.message\.bytes"):
            refused.result(60)
        rest = [producer.send("t", v) for v in _values(100)]
        producer.flush(60)
        assert [d.exception(0) for d in rest] == [None] * 100
    assert cluster.logs[tp].values() == [b"first", *_values(100)]
    ((last_epoch, *_),) = [known[-1] for known in cluster.logs[tp].producers.values()]
    assert last_epoch == 1


def test_rejected_batch_among_many_in_flight(cluster: ScriptedCluster) -> None:
    (tp,) = cluster.add_topic("t")
    cluster.faults[ApiKey.PRODUCE] = [None, None, ErrorCode.MESSAGE_TOO_LARGE]
    values = _values(200)
    with Producer(cluster.bootstrap, **_SMALL) as producer:
        deliveries = [producer.send("t", v) for v in values]
        producer.flush(60)
        failed = [v for v, d in zip(values, deliveries, strict=True) if d.exception(0) is not None]
    assert failed
    assert cluster.logs[tp].values() == [v for v in values if v not in failed]


def test_records_lost_by_the_leader_are_reported(cluster: ScriptedCluster) -> None:
    (tp,) = cluster.add_topic("t")
    with Producer(cluster.bootstrap, **_SMALL) as producer:
        for value in (b"a", b"b"):
            producer.send("t", value).result(60)
        log = cluster.logs[tp]
        log.producers[next(iter(log.producers))].pop()
        with pytest.raises(PeerError) as error:
            producer.send("t", b"c").result(60)
        assert error.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert producer.send("t", b"d").result(60).offset == 2


def test_batches_forgotten_by_the_leader_fail_and_are_not_duplicated(cluster: ScriptedCluster) -> None:
    """A restarted Kafka broker knows only the last batch of each producer, but five were in flight."""
    (tp,) = cluster.add_topic("t")
    with Producer(cluster.bootstrap, **{**_SMALL, "batch.size": 1}) as producer:
        producer.send("t", b"before").result(60)
        log = cluster.logs[tp]

        def forgets(key: ApiKey) -> object:
            if key is not ApiKey.PRODUCE:
                return None
            if len(log.batches) < 6:
                return SILENT if len(log.batches) < 5 else HANG_UP
            # All five are written, and the first of them is retried.
            cluster.fault_rule = None
            (known,) = log.producers.values()
            del known[:-1]
            return None

        cluster.fault_rule = forgets
        values = _values(5)
        on_their_way = [producer.send("t", value) for value in values]
        producer.flush(60)
        reported = [each.exception(0) for each in on_their_way[:-1]]
        codes = [error.code for error in reported if isinstance(error, PeerError)]
        assert codes == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER] * 4
        assert producer.send("t", b"after").result(60).offset == 6
    assert log.values() == [b"before", *values, b"after"]


def test_unknown_producer_id_is_replaced_without_loss(cluster: ScriptedCluster) -> None:
    (tp,) = cluster.add_topic("t")
    with Producer(cluster.bootstrap, **_SMALL) as producer:
        producer.send("t", b"a").result(60)
        cluster.faults[ApiKey.PRODUCE] = [ErrorCode.UNKNOWN_PRODUCER_ID]
        assert producer.send("t", b"b").result(60).offset == 1
    assert cluster.logs[tp].values() == [b"a", b"b"]


def test_undeliverable_records_time_out_and_do_not_block_the_rest(cluster: ScriptedCluster) -> None:
    (tp,) = cluster.add_topic("t")
    with Producer(cluster.bootstrap, **_SMALL, **{"delivery.timeout.ms": 1_500}) as producer:
        producer.send("t", b"a").result(60)
        cluster.fault_rule = lambda key: ErrorCode.NOT_ENOUGH_REPLICAS if key is ApiKey.PRODUCE else None
        with pytest.raises(PeerError, match=r"delivery\.timeout\.ms"):
            producer.send("t", b"lost").result(60)
        cluster.fault_rule = None
        producer.send("t", b"b").result(60)
    assert cluster.logs[tp].values() == [b"a", b"b"]


def test_expired_batch_that_was_written_does_not_break_the_sequence(cluster: ScriptedCluster) -> None:
    (tp,) = cluster.add_topic("t")
    with Producer(cluster.bootstrap, **_SMALL, **{"delivery.timeout.ms": 1_500}) as producer:
        producer.send("t", b"a").result(60)
        cluster.fault_rule = lambda key: HANG_UP if key is ApiKey.PRODUCE else None
        with pytest.raises(PeerError):
            producer.send("t", b"unknown fate").result(60)
        cluster.fault_rule = None
        producer.send("t", b"b").result(60)
    assert cluster.logs[tp].values() == [b"a", b"unknown fate", b"b"]


def test_batches_in_flight_do_not_change(cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """CVE-2026-35554: the buffer of a batch that had expired in flight was used for another one while it was sent."""
    (tp,) = cluster.add_topic("t")
    written: list[tuple[list[Any], bytes]] = []
    write = Connection._write

    def noted(self: Connection, key: ApiKey, version: int, correlation_id: int, body: Sequence[Any]) -> None:
        if key is ApiKey.PRODUCE:
            written.append(([*body], b"".join(body)))
        write(self, key, version, correlation_id, body)

    monkeypatch.setattr(Connection, "_write", noted)
    cluster.faults[ApiKey.PRODUCE] = [None, SILENT, SILENT]
    limits = {"request.timeout.ms": 500, "delivery.timeout.ms": 1_000}
    with Producer(cluster.bootstrap, **_SMALL, **limits) as producer:
        producer.send("t", b"first", partition=0).result(60)
        expired = [producer.send("t", b"expired", partition=0) for _ in range(3)]
        for each in expired:
            with contextlib.suppress(PeerError, ClientError):
                each.result(60)
        for number in range(50):
            producer.send("t", b"%d" % number, partition=0).result(60)
    assert len(written) > 50
    for parts, before in written:
        assert b"".join(parts) == before
    assert cluster.logs[tp].values()[-50:] == [b"%d" % number for number in range(50)]


def test_no_producer_id_is_sent_without_idempotence(cluster: ScriptedCluster) -> None:
    (tp,) = cluster.add_topic("t")
    assert _send_all(cluster, tp, [b"a"], acks=1) == [0]
    assert cluster.seen[ApiKey.INIT_PRODUCER_ID] == 0
    assert not cluster.logs[tp].producers


def test_acks_0_does_not_wait_for_a_response(cluster: ScriptedCluster) -> None:
    (tp,) = cluster.add_topic("t")
    assert _send_all(cluster, tp, [b"a"], acks=0) == [-1]
    with Producer(cluster.bootstrap, **_SMALL) as producer:
        producer.send("t", b"b").result(60)
    # The second response came over another connection; the first request has no response.
    assert b"b" in cluster.logs[tp].values()


@pytest.mark.parametrize("version", [3, 8, 9, 12])
def test_old_brokers_without_topic_ids(version: int) -> None:
    with ScriptedCluster(versions={ApiKey.PRODUCE: (3, version), ApiKey.METADATA: (0, 7)}) as cluster:
        (tp,) = cluster.add_topic("t")
        assert _send_all(cluster, tp, _values(50)) == list(range(50))


def test_close_sends_queued_records(cluster: ScriptedCluster) -> None:
    (tp,) = cluster.add_topic("t")
    with Producer(cluster.bootstrap, **{**_SMALL, "linger.ms": 60_000, "batch.size": 100_000}) as producer:
        producer.send("t", b"a")
    assert cluster.logs[tp].values() == [b"a"]
