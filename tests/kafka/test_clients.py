"""Third-party clients with a running node: confluent-kafka, kafka-python, aiokafka, kcat."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import subprocess
import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from fenceline.records.batch import Codec, iter_headers
from fenceline.testing.node import EmbeddedNode
from kafka import KafkaConsumer, KafkaProducer
from tests.conftest import unavailable

pytestmark = pytest.mark.timeout(120)

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_names = itertools.count()


@pytest.fixture
def topic(fenceline_node: EmbeddedNode) -> str:
    """A fresh topic of four partitions."""
    name = f"clients-{next(_names)}"
    admin = AdminClient({"bootstrap.servers": fenceline_node.bootstrap})
    # Keep records with timestamps years in the past.
    admin.create_topics([NewTopic(name, 4, 1, config={"retention.ms": "-1"})])[name].result(60)
    return name


@pytest.fixture
def bootstrap(fenceline_node: EmbeddedNode) -> str:
    return fenceline_node.bootstrap


def records(count: int = 200) -> list[tuple[bytes, bytes | None]]:
    """Keys and values; every seventh value is absent."""
    return [(b"k%d" % n, None if n % 7 == 0 else b"value %d " % n * (n % 30)) for n in range(count)]


def until(condition: Callable[[], bool], wait_s: float = 100) -> None:
    deadline = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < deadline, "the condition was not reached"


def codecs_on_disk(node: EmbeddedNode, topic: str, partition: int) -> list[Codec]:
    """The codecs of the partition's batches, one for each run of batches alike."""
    found: list[Codec] = []
    for segment in sorted((node.log_dir / f"{topic}-{partition}").glob("*.log")):
        found += [header.codec for header in iter_headers(segment.read_bytes(), allow_partial_tail=True)]
    return [codec for codec, _ in itertools.groupby(found)]


# --- confluent-kafka (librdkafka) ---------------------------------------------------------------------------------


def _consume(bootstrap: str, topic: str, count: int, **more: Any) -> list[confluent_kafka.Message]:
    settings = {"bootstrap.servers": bootstrap, "group.id": f"g-{topic}", "auto.offset.reset": "earliest", **more}
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe([topic])
    got: list[confluent_kafka.Message] = []
    until(lambda: _poll_into(consumer, got) >= count)
    consumer.close()
    return got


def _poll_into(consumer: confluent_kafka.Consumer, got: list[confluent_kafka.Message]) -> int:
    for message in consumer.consume(500, 0.2):
        assert message.error() is None, message.error()
        got.append(message)
    return len(got)


@pytest.mark.parametrize("is_idempotent", [False, True])
def test_confluent_kafka_every_codec(
    bootstrap: str, topic: str, is_idempotent: bool, fenceline_node: EmbeddedNode
) -> None:
    sent = {}
    # librdkafka sends a batch as it is where compressing makes it longer, so no batch may be short: all records wait
    # for the flush.
    settings = {"bootstrap.servers": bootstrap, "enable.idempotence": is_idempotent, "linger.ms": 60_000}
    for codec in CODECS:
        producer = confluent_kafka.Producer({**settings, "compression.type": codec})
        for key, value in records():
            key = codec.encode() + key
            sent[key] = value
            producer.produce(topic, value, key, headers=[("codec", codec.encode()), ("empty", None)])
        assert producer.flush(60) == 0
    got = _consume(bootstrap, topic, len(sent))
    assert {message.key(): message.value() for message in got} == sent
    assert len(got) == len(sent)
    for message in got:
        codec = dict(message.headers())["codec"]
        assert message.key().startswith(codec)
        assert message.headers() == [("codec", codec), ("empty", None)]
    for partition in range(4):
        # On a busy machine a flush may leave a short batch behind, which stays as it is.
        found = dict.fromkeys(codecs_on_disk(fenceline_node, topic, partition))
        assert list(found) == [Codec.from_name(codec) for codec in CODECS]
        offsets = [message.offset() for message in got if message.partition() == partition]
        assert offsets == list(range(len(offsets)))


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_confluent_kafka_acks(bootstrap: str, topic: str, acks: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "acks": acks})
    failed: list[Any] = []
    for key, value in records():
        producer.produce(topic, value, key, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(60) == 0
    assert failed == []
    assert len(_consume(bootstrap, topic, 200)) == 200


def test_confluent_kafka_offsets(bootstrap: str, topic: str) -> None:
    """Commit, resume, look up by timestamp, seek."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for n in range(100):
        producer.produce(topic, b"%d" % n, partition=0, timestamp=1_700_000_000_000 + n * 10)
    producer.flush(60)
    group = f"offsets-{topic}"
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    first = confluent_kafka.Consumer({**settings, "enable.auto.commit": False})
    place = confluent_kafka.TopicPartition(topic, 0)
    first.assign([place])
    got: list[confluent_kafka.Message] = []
    until(lambda: _poll_into(first, got) >= 60)
    first.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 60, metadata="half way")], asynchronous=False)
    assert first.get_watermark_offsets(place, timeout=60) == (0, 100)
    at = confluent_kafka.TopicPartition(topic, 0, 1_700_000_000_000 + 305)
    assert first.offsets_for_times([at], timeout=60)[0].offset == 31
    first.close()
    second = confluent_kafka.Consumer(settings)
    committed = second.committed([place], timeout=60)[0]
    assert (committed.offset, committed.metadata) == (60, "half way")
    second.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_STORED)])
    got = []
    until(lambda: _poll_into(second, got) >= 40)
    assert [message.offset() for message in got] == list(range(60, 100))
    second.close()
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for spec, offset in ((OffsetSpec.earliest(), 0), (OffsetSpec.latest(), 100), (OffsetSpec.max_timestamp(), 99)):
        assert admin.list_offsets({place: spec})[place].result(60).offset == offset


def test_confluent_kafka_out_of_range(bootstrap: str, topic: str) -> None:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "x", "auto.offset.reset": "error", "enable.partition.eof": False}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 77)])
    message = None
    deadline = time.monotonic() + 60
    while message is None and time.monotonic() < deadline:
        message = consumer.poll(0.5)
    assert message is not None
    assert message.error().code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET
    consumer.close()


# --- groups -------------------------------------------------------------------------------------------------------


class Member:
    """A group consumer that a test polls explicitly."""

    def __init__(self, bootstrap: str, topic: str, group: str, **more: Any) -> None:
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 30_000,
                "heartbeat.interval.ms": 200,
                **more,
            }
        )
        self.rebalances = 0
        self.consumer.subscribe([topic], on_assign=self._assigned)

    def _assigned(self, *_: Any) -> None:
        self.rebalances += 1

    def poll(self) -> None:
        self.consumer.poll(0.05)

    @property
    def partitions(self) -> set[int]:
        return {each.partition for each in self.consumer.assignment()}


def _settled(members: list[Member], *sizes: int) -> Callable[[], bool]:
    def look() -> bool:
        for member in members:
            member.poll()
        held = [member.partitions for member in members]
        return sorted(map(len, held)) == sorted(sizes) and set().union(*held) == {0, 1, 2, 3}

    return look


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_members_join_and_leave(bootstrap: str, topic: str, strategy: str) -> None:
    group = f"rebalance-{topic}"
    members = [Member(bootstrap, topic, group, **{"partition.assignment.strategy": strategy}) for _ in range(2)]
    until(_settled(members, 2, 2))
    members.append(Member(bootstrap, topic, group, **{"partition.assignment.strategy": strategy}))
    until(_settled(members, 1, 1, 2))
    members.pop(0).consumer.close()
    until(_settled(members, 2, 2))
    members.pop(0).consumer.close()
    until(_settled(members, 4))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    described = admin.describe_consumer_groups([group])[group].result(60)
    assert described.state == confluent_kafka.ConsumerGroupState.STABLE
    assert len(described.members) == 1
    members.pop().consumer.close()


def test_static_member_rejoins_with_its_partitions(bootstrap: str, topic: str) -> None:
    group = f"static-{topic}"
    names = ("one", "two")
    members = [Member(bootstrap, topic, group, **{"group.instance.id": name}) for name in names]
    until(_settled(members, 2, 2))
    mine, others = (member.partitions for member in members)
    rebalances = members[1].rebalances
    members[0].consumer.close()
    members[0] = Member(bootstrap, topic, group, **{"group.instance.id": "one"})
    until(_settled(members, 2, 2))
    assert (members[0].partitions, members[1].partitions) == (mine, others)
    assert members[1].rebalances == rebalances
    for member in members:
        member.consumer.close()


def test_offsets_survive_a_rebalance(bootstrap: str, topic: str) -> None:
    """Every record is read; later members do not reread committed records."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for key, value in records():
        producer.produce(topic, value, key)
    producer.flush(60)
    assert len(_consume(bootstrap, topic, 200)) == 200
    for n in range(10):
        producer.produce(topic, b"late", b"late%d" % n)
    producer.flush(60)
    assert {message.value() for message in _consume(bootstrap, topic, 10)} == {b"late"}


# --- kafka-python -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "gzip"])  # no library for the other codecs is installed
def test_kafka_python(bootstrap: str, topic: str, codec: str) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap, compression_type=None if codec == "none" else codec)
    sent = [producer.send(topic, value, key, headers=[("h", b"1")]) for key, value in records()]
    producer.flush(60)
    assert sorted(each.get(10).offset for each in sent)[0] == 0
    producer.close()
    consumer = KafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=f"kp-{topic}", auto_offset_reset="earliest", max_poll_records=1000
    )
    got: list[Any] = []

    def poll() -> bool:
        for batch in consumer.poll(500).values():
            got.extend(batch)
        return len(got) >= 200

    until(poll)
    consumer.commit()
    consumer.close()
    assert {(record.key, record.value) for record in got} == set(records())
    assert all(list(record.headers) == [("h", b"1")] for record in got)


# --- aiokafka -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_aiokafka(bootstrap: str, topic: str, codec: str, fenceline_node: EmbeddedNode) -> None:
    # It sends a batch as it is where compressing makes it longer, and nothing tells it how many records to wait for: so
    # every single record is one that gets shorter.
    sent = [(key * 50, value) for key, value in records()]

    async def story() -> set[tuple[bytes, bytes | None]]:
        kind = None if codec == "none" else codec
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, compression_type=kind)
        await producer.start()
        for key, value in sent:
            await producer.send(topic, value, key)
        await producer.stop()
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap, group_id=f"aio-{topic}", auto_offset_reset="earliest"
        )
        await consumer.start()
        got = [await asyncio.wait_for(consumer.getone(), 60) for _ in sent]
        await consumer.commit()
        await consumer.stop()
        return {(record.key, record.value) for record in got}

    assert asyncio.run(story()) == set(sent)
    for partition in range(4):
        assert codecs_on_disk(fenceline_node, topic, partition) == [Codec.from_name(codec)]


# --- kcat ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def kcat(bootstrap: str) -> Callable[..., str]:
    if shutil.which("kcat") is None:
        unavailable("kcat is missing")

    def run(*arguments: str, stdin: str = "") -> str:
        done = subprocess.run(
            ["kcat", "-b", bootstrap, *arguments],
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=110,
            check=True,
        )
        return done.stdout

    return run


# Long because kcat is not on PyPI: `make test-slice` and `make test-all` install it, `make test` does not.
@pytest.mark.long
def test_kcat(kcat: Callable[..., str], topic: str, fenceline_node: EmbeddedNode) -> None:
    lines = [f"key{n}:value {n}" for n in range(100)]
    one_batch = ("-X", "linger.ms=60000", "-X", f"batch.num.messages={len(lines)}")
    for codec in CODECS:
        kcat("-P", "-t", topic, "-p", "1", "-K:", "-z", codec, "-H", "a=b", *one_batch, stdin="\n".join(lines) + "\n")
    assert codecs_on_disk(fenceline_node, topic, 1) == [Codec.from_name(codec) for codec in CODECS]
    out = kcat("-C", "-t", topic, "-p", "1", "-o", "beginning", "-e", "-q", "-f", "%o %k:%s %h\n")
    assert out.splitlines() == [f"{n} {lines[n % 100]} a=b" for n in range(500)]
    assert f'topic "{topic}" with 4 partitions' in kcat("-L", "-t", topic)
    assert kcat("-Q", "-t", f"{topic}:1:-1").strip() == f"{topic} [1] offset 500"
    group = kcat(
        "-G", f"kcat-{topic}", topic, "-o", "beginning", "-e", "-q", "-c", "500", "-X", "auto.offset.reset=earliest"
    )
    assert sorted(line for line in group.splitlines() if line.startswith("value")) == sorted(
        line.split(":")[1] for line in lines * 5
    )
