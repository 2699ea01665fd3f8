"""Log files in both directions: Kafka reads ours, we read Kafka's."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from fenceline.ids import TopicPartition
from fenceline.log.core.config import LogConfig
from fenceline.log.core.disk import OsDisk
from fenceline.log.core.producer_state import Origin
from fenceline.log.directories.log_dir import LogDir
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.records.batch import Codec
from fenceline.records.build import build_batch
from fenceline.records.decode import decode_batch
from fenceline.testing.apache_kafka import QUICK_START, java_command, run_tool, small_kafka
from tests.log.helpers import batch, open_log, read_all

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.timeout(300),
]

DUMP = "org.apache.kafka.tools.DumpLogSegments"
CONFIG = LogConfig(segment_bytes=40_000, index_interval_bytes=500)
CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]


@pytest.fixture(scope="module")
def kafka_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The log directory of a real Kafka: topics with several segments, cleanly shut down."""
    root = tmp_path_factory.mktemp("kafka")
    with small_kafka(data_dir=root, overrides={"log.index.interval.bytes": "500"}) as kafka:
        produce(kafka.bootstrap)
        kafka.stop()
    yield root
    shutil.rmtree(root, ignore_errors=True)


def produce(bootstrap: str) -> None:
    """Topic `plain` in small segments by an idempotent producer, `paid` with transactions, one of them aborted, `bank`
    with transactions of two producers that overlap, over several segments."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    # The timestamps are of 1970: time retention would delete the records 30 s after Kafka's start.
    small = {"segment.bytes": "1048576", "retention.ms": "-1"}
    futures = admin.create_topics([NewTopic(name, 1, 1, config=small) for name in ("plain", "paid", "bank")])
    for future in futures.values():
        future.result(60)
    plain = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": "lz4"})
    for number in range(5000):
        plain.produce("plain", b"%d" % number, key=b"k%d" % number, timestamp=1_000_000 + number)
        if number % 50 == 49:
            plain.flush()
    incompressible = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for number in range(40):
        incompressible.produce("plain", bytes((number * i * 7919) & 0xFF for i in range(60_000)))
        incompressible.flush()
    paid = Producer({"bootstrap.servers": bootstrap, "transactional.id": "till"})
    paid.init_transactions(60)
    for number in range(6):
        paid.begin_transaction()
        for _ in range(10):
            paid.produce("paid", b"x%d" % number)
        paid.flush()
        (paid.abort_transaction if number % 3 == 2 else paid.commit_transaction)(60)
    tellers = [Producer({"bootstrap.servers": bootstrap, "transactional.id": f"teller-{each}"}) for each in range(2)]
    for teller in tellers:
        teller.init_transactions(60)
        teller.begin_transaction()
    for number in range(40):
        # One ends every third turn, the other every turn: its transactions lie within those of the first.
        for teller, turns in zip(tellers, (3, 1), strict=True):
            teller.produce("bank", bytes((number * i * 7919) & 0xFF for i in range(60_000)))
            teller.flush()
            if number % turns == 0:
                (teller.commit_transaction if number % 4 == 0 else teller.abort_transaction)(60)
                teller.begin_transaction()
    for teller in tellers:
        teller.abort_transaction(60)


def _open_kafka(root: Path, topic: str, *, clean: bool = True) -> PartitionLog:
    return PartitionLog.open(
        OsDisk(),
        str(root / "data" / f"{topic}-0"),
        topic_partition=TopicPartition(topic, 0),
        topic_id=None,
        config=LogConfig(index_interval_bytes=500),
        clean=clean,
        now_ms=int(time.time() * 1000),
    )


def _dump(path: Path, *options: str) -> str:
    return run_tool(DUMP, "--files", str(path), *options)


@pytest.mark.parametrize("clean", [True, False])
def test_log_of_kafka_opens_and_reads_back_equal(kafka_root: Path, clean: bool, tmp_path: Path) -> None:
    shutil.copytree(kafka_root, tmp_path / "copy")
    log = _open_kafka(tmp_path / "copy", "plain", clean=clean)
    assert log.log_end_offset == 5040
    assert len(log.segments) >= 3
    found = read_all(log, max_bytes=100_000)
    rows = [record for header, content in found for record in decode_batch(content, header._replace(position=0))]
    assert [row.offset for row in rows] == list(range(5040))
    assert [row.value for row in rows[:5000]] == [b"%d" % number for number in range(5000)]
    assert log.epochs.entries == ((0, 0),)
    assert log.recovery is not None
    assert log.recovery.cut_bytes == 0
    hit = log.offset_for_timestamp(1_000_000 + 3210)
    assert hit is not None
    assert (hit.offset, hit.timestamp) == (3210, 1_000_000 + 3210)
    log.close(clean=False)


def test_transactions_written_by_kafka_are_read(kafka_root: Path, tmp_path: Path) -> None:
    shutil.copytree(kafka_root, tmp_path / "copy")
    logs = [_open_kafka(tmp_path / "copy", "paid", clean=clean) for clean in (True, False)]
    for log in logs:
        log.advance_high_watermark(log.log_end_offset)
        assert log.last_stable_offset == log.log_end_offset
        aborted = log.aborted_transactions(0, log.log_end_offset)
        assert len(aborted) == 2
        assert [entry.first_offset for entry in aborted] == [22, 55]
        log.close(clean=False)
    assert [entry.producer_id for entry in logs[0].producers] == [entry.producer_id for entry in logs[1].producers]


def test_rebuilt_transaction_indexes_equal_those_of_kafka(kafka_root: Path, tmp_path: Path) -> None:
    """From the batches alone, over several segments; and so do the files that a clean close leaves (X42)."""
    shutil.copytree(kafka_root, tmp_path / "copy")
    home = tmp_path / "copy" / "data" / "bank-0"
    kafkas = {path.name: path.read_bytes() for path in home.glob("*.txnindex")}
    assert sum(bool(content) for content in kafkas.values()) >= 3
    log = _open_kafka(tmp_path / "copy", "bank")
    by_kafka = log.aborted_transactions(0, log.log_end_offset)
    producers = {each.producer_id: (each.epoch, each.last_sequence) for each in log.producers}
    log.close(clean=False)
    assert len(by_kafka) > 20
    for path in (*home.glob("*.txnindex"), *home.glob("*.snapshot")):
        path.unlink()
    log = _open_kafka(tmp_path / "copy", "bank", clean=False)
    log.advance_high_watermark(log.log_end_offset)
    assert log.aborted_transactions(0, log.log_end_offset) == by_kafka
    assert log.last_stable_offset == log.log_end_offset
    assert {each.producer_id: (each.epoch, each.last_sequence) for each in log.producers} == producers
    log.close()
    ours = {path.name: path.read_bytes() for path in home.glob("*.txnindex")}
    assert ours == {name: content for name, content in kafkas.items() if content}


def test_rebuilt_index_files_equal_those_of_kafka(kafka_root: Path) -> None:
    """Rebuilding Kafka's sealed indexes gives Kafka's own bytes: the same entries at the same positions."""
    log = _open_kafka(kafka_root, "plain")
    for segment in log.segments[:-1]:
        index, time_index = segment.rebuild_indexes(500)
        assert index.encode() == Path(segment.stem + ".index").read_bytes()
        assert time_index.encode() == Path(segment.stem + ".timeindex").read_bytes()
    log.close(clean=False)


@pytest.fixture(scope="module")
def our_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with every codec, epochs, idempotent producers, a transaction aborted and one committed."""
    root = tmp_path_factory.mktemp("ours")
    log = open_log(OsDisk(), str(root / "rain-0"), config=CONFIG)
    sequence = 0
    for number in range(300):
        made = batch(5, size=40, timestamp=1_000_000 + number * 10, codec=CODECS[number % 5])
        if number % 2:
            made = batch(3, timestamp=1_000_000 + number * 10, producer_id=9, producer_epoch=1, base_sequence=sequence)
            sequence += 3
        log.append_as_leader(made, leader_epoch=number // 100, now_ms=1_003_000)
    for commit in (False, True):
        made = batch(4, producer_id=12, producer_epoch=0, base_sequence=0 if not commit else 4, transactional=True)
        log.append_as_leader(made, leader_epoch=2, now_ms=1_003_000)
        log.append_as_leader(_marker(12, 0, commit=commit), leader_epoch=2, now_ms=1_003_000, origin=Origin.COORDINATOR)
    log.close()
    return root


def _marker(producer_id: int, epoch: int, *, commit: bool, coordinator_epoch: int = 0) -> memoryview:
    key = b"\x00\x00" + (b"\x00\x01" if commit else b"\x00\x00")
    value = b"\x00\x00" + coordinator_epoch.to_bytes(4, "big")
    return memoryview(
        build_batch(
            [(1_003_000, key, value, ())],
            producer_id=producer_id,
            producer_epoch=epoch,
            transactional=True,
            control=True,
        )
    )


def test_kafkas_dump_accepts_our_log(our_directory: Path) -> None:
    logs = sorted((our_directory / "rain-0").glob("*.log"))
    assert len(logs) > 1
    files = ",".join(str(path) for path in logs)
    said = run_tool(DUMP, "--files", files, "--deep-iteration")
    # The tool starts counting at -1 in every file and prints that.
    assert not re.search(r"(?i)isvalid: false|corrupt|mismatch|\n  [0-9]+ is followed by", said)
    offsets = [int(found) for found in re.findall(r"^\| offset: (\d+)", said, re.M)]
    assert offsets == list(range(offsets[-1] + 1))
    assert len(offsets) == 300 * 4 + 2 * 5


def test_kafkas_index_checks_accept_our_indexes(our_directory: Path) -> None:
    for suffix in ("index", "timeindex"):
        paths = sorted((our_directory / "rain-0").glob(f"*.{suffix}"))
        assert all(path.stat().st_size for path in paths[:-1])
        said = run_tool(DUMP, "--files", ",".join(map(str, paths)), "--index-sanity-check")
        assert said.count("passed sanity check") == len(paths), said
        said = run_tool(DUMP, "--files", ",".join(map(str, paths)), "--verify-index-only")
        assert not re.search(r"(?i)mismatch|not found|out of order", said), said


def test_kafka_reads_our_snapshots_and_transaction_index(our_directory: Path) -> None:
    directory = our_directory / "rain-0"
    snapshots = sorted(directory.glob("*.snapshot"))
    said = _dump(snapshots[-1])
    assert re.search(r"producerId: 9 producerEpoch: 1 .*lastSequence: 449", said), said
    assert "producerId: 12" in said
    [aborted] = directory.glob("*.txnindex")
    assert re.search(r"producerId: 12 firstOffset: 1200 lastOffset: 1204 lastStableOffset: 1205", _dump(aborted))


def test_a_kafka_broker_serves_our_partition(kafka_root: Path, our_directory: Path, tmp_path: Path) -> None:
    """Our segments replace those of one of Kafka's topics: after a clean shutdown Kafka accepts them silently."""
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as KafkaPartition

    root = tmp_path / "moved"
    shutil.copytree(kafka_root, root)
    home = root / "data" / "plain-0"
    metadata = (home / "partition.metadata").read_bytes()
    shutil.rmtree(home)
    shutil.copytree(our_directory / "rain-0", home)
    (home / "partition.metadata").write_bytes(metadata)
    (home / "lost+found").mkdir()
    (home / "lost+found" / "00000000000000000000.log.0").write_bytes(b"evidence")
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        path = root / "data" / name
        path.write_text(re.sub(r"plain 0 \d+", "plain 0 1210", path.read_text()))
    with small_kafka(data_dir=root, overrides={"log.index.interval.bytes": "500"}) as kafka:
        settings = {"bootstrap.servers": kafka.bootstrap, "group.id": "g", "isolation.level": "read_committed"}
        consumer = Consumer({**settings, "enable.partition.eof": False})
        consumer.assign([KafkaPartition("plain", 0, 0)])
        offsets: list[int] = []
        while not offsets or offsets[-1] < 1208:
            # `consume` waits until it has all requested records.
            got = consumer.consume(1, 60)
            assert got, f"no record after {offsets[-1:]}"
            assert all(message.error() is None for message in got)
            offsets += [message.offset() for message in got]
        consumer.close()
        kafka.stop()
    for path in sorted(home.glob("*.index"))[:-1]:
        assert path.read_bytes() == (our_directory / "rain-0" / path.name).read_bytes(), "Kafka rebuilt an index"
    for path in (our_directory / "rain-0").glob("*.txnindex"):
        assert path.read_bytes() == (home / path.name).read_bytes()
    # The aborted transaction is skipped, and markers are not records.
    assert offsets == [*range(1200), *range(1205, 1209)]


def test_log_directory_of_kafka_opens(kafka_root: Path, tmp_path: Path) -> None:
    shutil.copytree(kafka_root, tmp_path / "copy")
    path = str(tmp_path / "copy" / "data")
    log_dir = LogDir.open(path, OsDisk(), node_id=1)
    assert log_dir.clean
    assert log_dir.previous_broker_epoch >= 0
    names = {str(found.topic_partition): found.topic_id for found in log_dir.existing()}
    assert isinstance(names["plain-0"], UUID)
    assert "__cluster_metadata-0" in names
    for found in list(log_dir.existing()):
        log = log_dir.partition(found.topic_partition, found.topic_id, LogConfig(), now_ms=int(time.time() * 1000))
        assert len(read_all(log)) > 0 or log.log_end_offset == log.log_start_offset
    log_dir.close()
    with small_kafka(data_dir=tmp_path / "copy") as kafka:
        kafka.stop()
    again = _open_kafka(tmp_path / "copy", "plain")
    assert again.log_end_offset == 5040
    again.close(clean=False)


def test_each_program_respects_the_lock_of_the_other(kafka_root: Path, tmp_path: Path) -> None:
    from fenceline.errors import OperatorError

    root = tmp_path / "copy"
    shutil.copytree(kafka_root, root)
    with small_kafka(data_dir=root), pytest.raises(OperatorError, match="in use"):
        LogDir.open(str(root / "data"), OsDisk())
    # Kafka leaves a mark of a kill, but not of a lock: the check is what it does with our lock.
    held = LogDir.open(str(root / "data"), OsDisk())
    command = java_command("kafka.Kafka", str(root / "server.properties"), heap="512m", jvm_options=QUICK_START)
    done = subprocess.run(command, capture_output=True, timeout=200, check=False)
    assert done.returncode != 0
    held.close(clean=False)
    with small_kafka(data_dir=root) as kafka:
        kafka.stop()
