"""Compaction compared with Apache Kafka: the same directory cleaned by both, then served by Kafka, and replicated."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from fenceline.client.admin.admin import Admin
from fenceline.client.admin.async_admin import NewTopic
from fenceline.client.producer.producer import Producer
from fenceline.ids import TopicPartition
from fenceline.log.compaction import compaction
from fenceline.log.compaction import swap as compaction_swap
from fenceline.log.compaction.compaction import Limits
from fenceline.log.compaction.plan import Due
from fenceline.log.compaction.swap import Replacement
from fenceline.log.core.checkpoints import read_offsets, write_offsets
from fenceline.log.core.config import LogConfig
from fenceline.log.core.disk import OsDisk
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.records.build import Record
from fenceline.records.decode import decode_all
from fenceline.testing.apache_kafka import run_tool, small_kafka
from fenceline.testing.mixed_cluster import MixedCluster
from fenceline.testing.waiting import eventually
from tests.conftest import need_apache_kafka
from tests.node.replicated_topics import create, in_sync, partition
from tests.scheduling import CLUSTERS
from tests.support.partition_files import epochs, log_bytes

pytestmark = [pytest.mark.kafka, pytest.mark.together(CLUSTERS), pytest.mark.timeout(600)]

TOPICS = ("plain", "packed", "paid", "aged")
"""Not compressed; compressed; with transactions, some of them aborted; with records too old to keep, at its start."""
AGED_TURNS = 60
LONG_AGO_MS = 1_577_836_800_000
RETENTION_MS = 30 * 24 * 60 * 60 * 1000
SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "1.0",
    "delete.retention.ms": "86400000",
}
CLEANER = {"log.cleaner.backoff.ms": "100", "log.cleaner.enable": "true"}
CHECKPOINT = "cleaner-offset-checkpoint"
KEYS = 60


class Batch(NamedTuple):
    """A batch without its compression and base timestamp."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    producer: tuple[int, int, int]
    is_control: bool
    is_transactional: bool
    has_delete_horizon: bool
    codec: int
    records: tuple[Record, ...]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cleanly stopped Kafka directory with dirty, uncleaned logs."""
    need_apache_kafka()
    root = tmp_path_factory.mktemp("compaction")
    with small_kafka(data_dir=root, overrides=CLEANER) as kafka:
        with Admin([kafka.bootstrap]) as admin:
            admin.create_topics([NewTopic(topic, 1, 1, configs=_settings(topic)) for topic in TOPICS])
        _produce(kafka.bootstrap)
        kafka.stop()
    yield root
    shutil.rmtree(root, ignore_errors=True)


def _settings(topic: str) -> dict[str, str]:
    """Disables cleaning and deletion until a test triggers them."""
    return SETTINGS | ({"cleanup.policy": "compact,delete", "retention.ms": "-1"} if topic == "aged" else {})


def _produce(bootstrap: str, *, long_ago_ms: int = LONG_AGO_MS) -> None:
    """`long_ago_ms`: when the first half of the records of `aged` were written; 0 is now."""
    import confluent_kafka

    rng = Random(7)
    producers = {
        "plain": confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True}),
        "packed": confluent_kafka.Producer({"bootstrap.servers": bootstrap, "compression.type": "lz4"}),
        "paid": confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": "till"}),
        "aged": confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True}),
    }
    for producer in producers.values():
        if producer is producers["paid"]:
            producer.init_transactions(60)
    for turn in range(120):
        for topic, producer in producers.items():
            if topic == "paid":
                producer.begin_transaction()
            for _ in range(20):
                value = None if rng.random() < 0.1 else rng.randbytes(1_500)
                at_ms = long_ago_ms if topic == "aged" and turn < AGED_TURNS else 0
                producer.produce(topic, value, key=b"k%d" % rng.randrange(KEYS), timestamp=at_ms)
            producer.flush()
            if topic == "paid":
                (producer.abort_transaction if turn % 3 == 2 else producer.commit_transaction)(60)


def _open(root: Path, topic: str) -> PartitionLog:
    log = PartitionLog.open(
        OsDisk(),
        str(root / "data" / f"{topic}-0"),
        topic_partition=TopicPartition(topic, 0),
        topic_id=None,
        config=LogConfig(
            segment_bytes=1 << 20,
            cleanup_policy=frozenset(_settings(topic)["cleanup.policy"].split(",")),
            retention_ms=RETENTION_MS,
        ),
        clean=True,
        recovery_point=1 << 40,
        now_ms=int(time.time() * 1000),
    )
    log.advance_high_watermark(log.log_end_offset)
    return log


def _compact(root: Path, topic: str) -> int:
    """Applies retention, then compacts all sealed segments like a node. Returns the end of the compacted part."""
    log, disk = _open(root, topic), OsDisk()
    for removed in log.enforce_retention(int(time.time() * 1000)):
        removed.delete()
    due = Due(0, log.segments[-1].base_offset, 1, 1.0)
    work = compaction.begin(log, due, now_ms=int(time.time() * 1000), limits=Limits(secret=bytes(16)))
    for step in work.steps():
        if isinstance(step, Replacement):
            assert compaction_swap.commit(log, step)
            compaction_swap.delete_old(disk, step)
    log.close()
    return work.end


def _batches(root: Path, topic: str) -> list[Batch]:
    return [
        Batch(
            header.base_offset,
            header.last_offset,
            header.leader_epoch,
            (header.producer_id, header.producer_epoch, header.base_sequence),
            header.is_control,
            header.is_transactional,
            header.has_delete_horizon,
            header.codec,
            tuple(records),
        )
        for header, records in decode_all(log_bytes(root / "data", topic))
    ]


def _state(bootstrap: str, topic: str) -> tuple[dict[bytes, bytes], int]:
    """The last value of each key, as a consumer of committed records reads it, and the log's end."""
    import confluent_kafka

    consumer: Any = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reads", "isolation.level": "read_committed"}
    )
    try:
        where = confluent_kafka.TopicPartition(topic, 0)
        start = end = -1

        def end_is_known() -> bool:
            nonlocal start, end
            try:
                start, end = consumer.get_watermark_offsets(where, timeout=60)
            except confluent_kafka.KafkaException as error:
                # A node becomes leader shortly after it starts to respond.
                if error.args[0].code() != confluent_kafka.KafkaError.NOT_LEADER_FOR_PARTITION:
                    raise
            return end >= 0

        eventually(end_is_known, f"the end of {topic}", wait_s=120)
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, start)])
        state: dict[bytes, bytes | None] = {}
        deadline = time.monotonic() + 120
        while consumer.position([where])[0].offset < end:
            assert time.monotonic() < deadline, f"{topic} is not read to its end {end}"
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                state[message.key()] = message.value()
        return {key: value for key, value in state.items() if value is not None}, end
    finally:
        consumer.close()


def _first_segment(root: Path, topic: str) -> int:
    return min(int(each.stem) for each in (root / "data" / f"{topic}-0").glob("*.log"))


@pytest.fixture(scope="module")
def by_kafka(written: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A copy cleaned by Kafka, with the records that readers got before."""
    root = tmp_path_factory.mktemp("by-kafka") / "root"
    shutil.copytree(written, root)
    with small_kafka(data_dir=root, overrides=CLEANER) as kafka:
        with Admin([kafka.bootstrap]) as admin:
            admin.alter_configs({("topic", "aged"): {"retention.ms": str(RETENTION_MS)}})
            eventually(lambda: _first_segment(root, "aged") > 0, "Kafka's retention", wait_s=120)
            states = {topic: _state(kafka.bootstrap, topic) for topic in TOPICS}
            admin.alter_configs({("topic", topic): {"min.cleanable.dirty.ratio": "0.0"} for topic in TOPICS})
        bases = {
            topic: max(int(each.stem) for each in (root / "data" / f"{topic}-0").glob("*.log")) for topic in TOPICS
        }

        def cleaned() -> bool:
            found = read_offsets(OsDisk(), str(root / "data" / CHECKPOINT))
            return all(found.get(TopicPartition(topic, 0)) == base for topic, base in bases.items())

        eventually(cleaned, "Kafka's cleaner", wait_s=120)
        kafka.stop()
    yield root, states
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="module")
def by_fenceline(written: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("by-fenceline") / "root"
    shutil.copytree(written, root)
    ends = {TopicPartition(topic, 0): _compact(root, topic) for topic in TOPICS}
    write_offsets(OsDisk(), str(root / "data" / CHECKPOINT), ends)
    yield root
    shutil.rmtree(root, ignore_errors=True)


@pytest.mark.parametrize("topic", TOPICS)
def test_same_batches_remain_as_in_kafka(
    topic: str, by_kafka: tuple[Path, Any], by_fenceline: Path, written: Path
) -> None:
    theirs, ours = _batches(by_kafka[0], topic), _batches(by_fenceline, topic)
    assert ours == theirs
    assert len(ours) < len(_batches(written, topic))
    ends = [read_offsets(OsDisk(), str(root / "data" / CHECKPOINT)) for root in (by_kafka[0], by_fenceline)]
    assert ends[0] == ends[1]
    assert _first_segment(by_kafka[0], topic) == _first_segment(by_fenceline, topic)


@pytest.mark.parametrize("topic", TOPICS)
def test_kafkas_tool_finds_no_errors(topic: str, by_fenceline: Path) -> None:
    for path in sorted((by_fenceline / "data" / f"{topic}-0").glob("*.log")):
        printed = run_tool("org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--files", str(path))
        assert "isvalid: false" not in printed
        for suffix in (".index", ".timeindex"):
            index = path.with_suffix(suffix)
            found = run_tool("org.apache.kafka.tools.DumpLogSegments", "--index-sanity-check", "--files", str(index))
            assert "passed sanity check" in found or f"{index} is empty." in found


def test_kafka_serves_and_cleans_a_compacted_directory(
    by_kafka: tuple[Path, dict[str, Any]], by_fenceline: Path, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    shutil.copytree(by_fenceline, root)
    with small_kafka(data_dir=root, overrides=CLEANER) as kafka:
        for topic in TOPICS:
            assert _state(kafka.bootstrap, topic) == by_kafka[1][topic]
        _produce(kafka.bootstrap, long_ago_ms=0)
        after = {topic: _state(kafka.bootstrap, topic) for topic in TOPICS}
        kafka.stop()
    for topic in TOPICS:
        _compact(root, topic)
    with small_kafka(data_dir=root, overrides=CLEANER) as kafka:
        for topic in TOPICS:
            assert _state(kafka.bootstrap, topic) == after[topic]
        kafka.stop()


def test_cleaning_interrupted_between_renames_is_completed(written: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(written, root)
    before = _open(root, "plain")
    ends = (before.log_start_offset, before.log_end_offset, before.epochs.entries)
    due = Due(0, before.segments[-1].base_offset, 1, 1.0)
    work = compaction.begin(before, due, now_ms=int(time.time() * 1000), limits=Limits(secret=bytes(16)))
    steps = work.steps()
    replacement = next(step for step in steps if isinstance(step, Replacement))
    copy = tmp_path / "killed"
    shutil.copytree(root, copy)
    steps.close()
    before.close(clean=False)
    assert list((copy / "data" / "plain-0").glob("*.log.swap"))
    ours = _open(copy, "plain")
    assert ends == (ours.log_start_offset, ours.log_end_offset, ours.epochs.entries)
    assert not list((copy / "data" / "plain-0").glob("*.swap"))
    assert ours.segments[0].size_bytes == replacement.new.size_bytes
    ours.close(clean=False)


def leave_alone(cluster: MixedCluster, topic: str) -> None:
    """A copied replica's segments end elsewhere: compacting them would make the replicas differ."""
    with Admin(cluster.nodes[0].bootstrap) as admin:
        admin.alter_configs({("topic", topic): {"min.cleanable.dirty.ratio": "1.0"}})


def await_compacted(log_dir: Path, topic: str, beyond: int = 0) -> None:
    """Returns once all sealed segments are compacted, and one of them begins past an offset."""

    def compacted() -> bool:
        cleaned = read_offsets(OsDisk(), str(log_dir / CHECKPOINT)).get(TopicPartition(topic, 0), 0)
        return beyond < cleaned == max(int(each.stem) for each in (log_dir / f"{topic}-0").glob("*.log"))

    eventually(compacted, "all sealed segments are compacted")


def send(bootstrap: str, topic: str, keys: Iterable[int], rng: Random) -> dict[bytes, bytes]:
    """A record of each key, all acknowledged; the newest value of each."""
    newest: dict[bytes, bytes] = {}
    with Producer([bootstrap]) as producer:
        for number in keys:
            key, value = b"k%d" % number, rng.randbytes(1_500)
            newest[key] = value
            producer.send(topic, value, key=key, partition=0)
        producer.flush()
    return newest


def test_kafka_replicates_from_a_compacted_leader(tmp_path: Path) -> None:
    need_apache_kafka()
    kinds = ["broker,controller", "kafka:broker"]
    topic, rng = "followed", Random(3)
    with MixedCluster(tmp_path / "cluster", kinds, settings=CLEANER) as cluster:
        ours, theirs = cluster.nodes
        cluster.wait_ready()
        create(cluster, topic, replicas=2, configs={**SETTINGS, "min.cleanable.dirty.ratio": "0.01"})
        in_sync(cluster, topic, {ours.node_id, theirs.node_id})
        theirs.kill()
        in_sync(cluster, topic, {ours.node_id})
        newest = send(ours.bootstrap, topic, (rng.randrange(KEYS) for _ in range(3_000)), rng)
        await_compacted(ours.log_dir, topic)
        leave_alone(cluster, topic)
        theirs.start()
        in_sync(cluster, topic, {ours.node_id, theirs.node_id})
        for node in (ours, theirs):
            found = {
                record.key: record.value
                for _, records in decode_all(log_bytes(node.log_dir, topic))
                for record in records
            }
            assert found == newest, node.kind
        # A follower of a compacted log knows only the remaining part of an epoch.
        left = [header for header, _ in decode_all(log_bytes(theirs.log_dir, topic))]
        epoch, first = epochs(ours.log_dir, topic)[-1]
        assert first == 0 < left[0].base_offset
        assert epochs(theirs.log_dir, topic)[-1] == (epoch, left[0].base_offset)
        assert _state(ours.bootstrap, topic) == (newest, 3_000)


def test_follower_of_a_compacted_kafka_log_knows_all_epoch_starts(tmp_path: Path) -> None:
    """Also of epochs whose first batches were removed, which the batches do not show (`epochs.md E13`)."""
    need_apache_kafka()
    topic, rng = "followed", Random(3)
    with MixedCluster(
        tmp_path / "cluster", ["broker,controller", "kafka:broker", "broker"], settings=CLEANER
    ) as cluster:
        first, theirs, ours = cluster.nodes
        cluster.wait_ready()
        with Admin(first.bootstrap) as admin:
            configs = {**SETTINGS, "min.cleanable.dirty.ratio": "0.01"}
            where = {0: [theirs.node_id, ours.node_id]}
            admin.create_topics([NewTopic(topic, assignments=where, configs=configs)])
        in_sync(cluster, topic, {theirs.node_id, ours.node_id})
        ours.kill()
        in_sync(cluster, topic, {theirs.node_id})
        for turn in range(3):
            if turn:
                theirs.stop()
                eventually(lambda: partition(cluster, topic).leader < 0, "nobody leads")
                theirs.start()
                eventually(lambda: partition(cluster, topic).leader == theirs.node_id, "it leads again")
            send(first.bootstrap, topic, (number % KEYS for number in range(1_500)), rng)
        await_compacted(theirs.log_dir, topic, beyond=3_000)
        leave_alone(cluster, topic)
        ours.start()
        in_sync(cluster, topic, {theirs.node_id, ours.node_id})
        assert log_bytes(ours.log_dir, topic) == log_bytes(theirs.log_dir, topic)
        known = epochs(theirs.log_dir, topic)
        assert [start for _, start in known] == [0, 1_500, 3_000]
        left = [header for header, _ in decode_all(log_bytes(ours.log_dir, topic))]
        assert any(
            min(each.base_offset for each in left if each.leader_epoch == epoch) > start for epoch, start in known
        )
        eventually(
            lambda: epochs(ours.log_dir, topic) == known, "the follower has written the epochs that the leader sent"
        )
