"""The client with Apache Kafka 2.1.1, the oldest supported version: two brokers and a ZooKeeper.

The limitations of such brokers are tested in `tests/client/test_older_kafka.py`, where each answer can be scripted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack

import pytest
from typer.testing import CliRunner

from fenceline.cli.app import app
from fenceline.client import (
    Admin,
    CommittedOffset,
    Consumer,
    ConsumerRecord,
    LogTruncationError,
    NewTopic,
    OffsetRange,
    Producer,
    RangeReader,
    TopicPartition,
)
from fenceline.errors import ErrorCode, PeerError
from fenceline.testing.waiting import eventually
from pyspark_fenceline.errors import DataLossError, LossKind
from tests.conftest import unavailable
from tests.spark.driver import Driver
from tests.support.old_kafka import OldKafka, why_no_old_kafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
WAIT_S = 120
BEFORE, AFTER, LOST = 100, 40, 50


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OldKafka]:
    if (reason := why_no_old_kafka()) is not None:
        unavailable(reason)
    with OldKafka(tmp_path_factory.mktemp("old")) as running:
        with Admin(running.bootstrap) as admin:
            eventually(lambda: len(admin.metadata().brokers) == 2, "both brokers are there", wait_s=WAIT_S)
        yield running


def create(kafka: OldKafka, topic: str, configs: Mapping[str, str] | None = None) -> TopicPartition:
    """One partition, led by broker 1 and followed by broker 2."""
    with Admin(kafka.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, assignments={0: [1, 2]}, configs=dict(configs or {}))])
    eventually(lambda: in_sync(kafka, topic) == {1, 2}, f"{topic} is in sync", wait_s=WAIT_S)
    return TopicPartition(topic, 0)


def leader(kafka: OldKafka, tp: TopicPartition) -> int:
    with Admin(kafka.bootstrap) as admin:
        return admin.metadata([tp.topic]).topics[tp.topic].partitions[tp.partition].leader


def in_sync(kafka: OldKafka, topic: str) -> set[int]:
    with Admin(kafka.bootstrap) as admin:
        found = admin.metadata([topic]).topics.get(topic)
    return set(found.partitions[0].isr) if found is not None and 0 in found.partitions else set()


def write(kafka: OldKafka, tp: TopicPartition, count: int, stem: str) -> list[bytes]:
    values = [f"{stem}{number}".encode() for number in range(count)]
    with Producer(kafka.bootstrap) as producer:
        for delivery in [producer.send(tp.topic, value, partition=tp.partition) for value in values]:
            delivery.result(WAIT_S)
    return values


def read(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    end_s = time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < end_s, f"{len(found)} of {count} records arrived"
        found += consumer.poll(1000)
    return found


def test_all_codecs_round_trip(kafka: OldKafka) -> None:
    tp = create(kafka, "codecs")
    for codec in CODECS:
        with Producer(kafka.bootstrap, **{"compression.type": codec}) as producer:
            producer.send(tp.topic, codec.encode(), b"key", partition=0, headers=[("a", b"b")]).result(WAIT_S)
    with Consumer(kafka.bootstrap, **{"auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([tp])
        records = read(consumer, len(CODECS))
    assert [(record.offset, record.value, record.key) for record in records] == [
        (offset, codec.encode(), b"key") for offset, codec in enumerate(CODECS)
    ]
    assert {tuple(record.headers) for record in records} == {(("a", b"b"),)}


def test_groups_positions_and_ranges_keep_epochs_across_a_leader_change(kafka: OldKafka) -> None:
    tp = create(kafka, "epochs")
    before = write(kafka, tp, BEFORE, "before")
    group = {"group.id": "old", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    with Consumer(kafka.bootstrap, **group) as consumer:
        consumer.subscribe([tp.topic])
        assert [record.value for record in read(consumer, BEFORE)] == before
        consumer.commit()
        first = consumer.committed([tp])[tp]
    assert first is not None
    assert (first.offset, first.leader_epoch) == (BEFORE, 0)

    kafka.kill(1)
    after = write(kafka, tp, AFTER, "after")
    with Consumer(kafka.bootstrap, **group) as consumer:
        consumer.subscribe([tp.topic])
        records = read(consumer, AFTER)
    assert [record.value for record in records] == after
    (epoch,) = {record.leader_epoch for record in records}
    assert epoch is not None
    assert epoch > 0
    with Consumer(kafka.bootstrap, **{"auto.offset.reset": "none"}) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, BEFORE, 0)
        assert read(consumer, 1)[0].offset == BEFORE
    with Admin(kafka.bootstrap) as admin:
        ends = admin.offsets_for_leader_epoch({tp: 0})[tp]
    assert (ends.leader_epoch, ends.end_offset) == (0, BEFORE)
    with RangeReader(kafka.bootstrap) as reader:
        wanted = {tp: OffsetRange(BEFORE - 1, BEFORE + 2, leader_epoch=0)}
        values = [value for batch in reader.read(wanted) for value in batch["value"].to_pylist()]
    assert values == [before[-1], *after[:2]]
    kafka.spawn(1)
    kafka.await_ready(1)
    eventually(lambda: in_sync(kafka, tp.topic) == {1, 2}, "both are in sync again", wait_s=WAIT_S)


@pytest.fixture
def queries(kafka: OldKafka) -> Iterator[Callable[[str], Driver]]:
    """Streaming queries of a topic, as their driver and tasks run them."""
    with ExitStack() as stack:
        yield lambda topic: stack.enter_context(Driver(kafka.bootstrap, subscribe=topic))


def test_unclean_election_is_reported_to_all_affected_readers(
    kafka: OldKafka, queries: Callable[[str], Driver], caplog: pytest.LogCaptureFixture
) -> None:
    """Broker 1 has 50 records more than broker 2, which leads without them and appends others."""
    tp = create(kafka, "cut", {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"})
    write(kafka, tp, BEFORE, "kept")
    query = queries(tp.topic)
    config = {"auto.offset.reset": "none", "on.truncation": "fail"}
    with Consumer(kafka.bootstrap, **config) as running:
        running.assign([tp])
        running.seek(tp, 0)
        read(running, BEFORE)
        kafka.kill(2)
        write(kafka, tp, LOST, "lost")
        assert running.position(tp) == BEFORE
        assert [record.value for record in read(running, LOST)][-1] == b"lost49"
        checkpoint, rows = query.batch()
        assert len(rows) == BEFORE + LOST
        kafka.kill(1)
        kafka.spawn(2)
        kafka.await_ready(2)
        eventually(lambda: leader(kafka, tp) == 2, "broker 2 leads", wait_s=WAIT_S)
        write(kafka, tp, 2 * LOST, "new")
        assert_cut(truncation(running))

    # Until it is back there is no group coordinator.
    kafka.spawn(1)
    kafka.await_ready(1)
    eventually(lambda: in_sync(kafka, tp.topic) == {1, 2}, "both are in sync again", wait_s=WAIT_S)
    with Admin(kafka.bootstrap) as admin:
        admin.alter_group_offsets("cut", {tp: CommittedOffset(BEFORE + LOST, 0)})
    with Consumer(kafka.bootstrap, **config, **{"group.id": "cut", "enable.auto.commit": False}) as later:
        later.assign([tp])
        assert_cut(truncation(later))
        later.seek(tp, BEFORE, 0)
        assert read(later, 2 * LOST)[0].value == b"new0"
    with RangeReader(kafka.bootstrap) as reader:
        wanted = {tp: OffsetRange(BEFORE + LOST, BEFORE + 2 * LOST, leader_epoch=0)}
        with pytest.raises(LogTruncationError) as cut:
            list(reader.read(wanted))
    assert_cut(cut.value)
    # A running driver, and one restarted from the checkpoint.
    for driver in (query, queries(tp.topic)):
        with pytest.raises(DataLossError) as lost:
            driver.batch(checkpoint)
        (loss,) = lost.value.losses
        assert (loss.kind, loss.offset, loss.divergent_offset) == (LossKind.LOG_TRUNCATED, BEFORE + LOST, BEFORE)
    assert "too old" not in caplog.text
    assert "keep no leader epochs" not in caplog.text


def truncation(consumer: Consumer) -> LogTruncationError:
    """The truncation that it raises before it returns another record."""
    end_s = time.monotonic() + WAIT_S
    while time.monotonic() < end_s:
        try:
            assert consumer.poll(1000) == []
        except LogTruncationError as error:
            return error
    raise AssertionError("the truncation was not reported")


def assert_cut(error: LogTruncationError) -> None:
    assert (error.truncated_from, error.divergent_offset, error.divergent_epoch) == (BEFORE + LOST, BEFORE, 0)


def test_cli_supports_its_groups(kafka: OldKafka) -> None:
    tp = create(kafka, "listed")
    write(kafka, tp, 3, "value")
    with Admin(kafka.bootstrap) as admin:
        admin.alter_group_offsets("listed", {tp: 1})

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["groups", *arguments, "--bootstrap", kafka.bootstrap])
        assert done.exit_code == 0, done.output
        return done.stdout

    described = json.loads(run("describe", "listed", "--json"))
    assert "listed" in json.dumps(described)
    assert "listed" in run("list")
    run("delete", "listed")
    assert "listed" not in run("list")


def test_unsupported_requests_are_rejected(kafka: OldKafka) -> None:
    with Admin(kafka.bootstrap) as admin, pytest.raises(PeerError) as refused:
        admin.describe_quorum()
    assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
