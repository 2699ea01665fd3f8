"""Producer against real brokers."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections.abc import Callable

import pyarrow as pa
import pytest
from confluent_kafka import Producer as ConfluentProducer

from fenceline.client.admin.admin import Admin
from fenceline.client.producer.delivery import RecordMetadata
from fenceline.client.producer.producer import AsyncProducer, Producer
from fenceline.client.reader.reader import RangeReader
from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.ids import TopicPartition

MakeTopic = Callable[..., str]


def _read(bootstrap: str, topic: str, partitions: int = 1) -> dict[int, list[tuple[bytes | None, bytes | None]]]:
    tps = [TopicPartition(topic, i) for i in range(partitions)]
    with Admin(bootstrap) as admin, RangeReader(bootstrap) as reader:
        ends = admin.list_offsets(dict.fromkeys(tps, "latest"))
        found: dict[int, list[tuple[bytes | None, bytes | None]]] = {i: [] for i in range(partitions)}
        for records in reader.read({tp: (0, end.offset) for tp, end in ends.items()}, arrow=False):
            for r in records:
                found[r.partition].append((r.key, r.value))
    return found


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", ["all", 1, 0])
def test_records_arrive_with_every_codec_and_acks(
    bootstrap: str, make_topic: MakeTopic, codec: str, acks: object
) -> None:
    topic = make_topic()
    values = [b"%d" % i * 20 for i in range(300)]
    if acks == 0:
        # With acks=0 no response reports that a leader is not ready yet: make sure that it is.
        with Producer(bootstrap) as producer:
            producer.send(topic, b"start").result(60)
    with Producer(bootstrap, acks=acks, compression_type=codec, batch_size=1_000) as producer:
        deliveries = [producer.send(topic, value) for value in values]
        producer.flush()
        offsets = [d.result(0).offset for d in deliveries]
    assert offsets == ([-1] * 300 if acks == 0 else list(range(300)))
    if acks == 0:
        with Producer(bootstrap) as producer:
            producer.send(topic, b"end").result(60)
        values += [b"start", b"end"]
        # The broker may process the first connection's request after the second connection's.
        while len(found := _read(bootstrap, topic)[0]) < len(values):
            time.sleep(0.05)
        assert sorted(v for _, v in found if v) == sorted(values)
    else:
        assert [v for _, v in _read(bootstrap, topic)[0]] == values


def test_delivery_future_reports_the_result(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(2)
    reported: list[tuple[RecordMetadata | None, Exception | None]] = []
    with Producer(bootstrap) as producer:
        delivery = producer.send(
            topic, b"v", partition=1, timestamp_ms=77, on_delivery=lambda m, e: reported.append((m, e))
        )
        assert delivery.result(60) == RecordMetadata(topic, 1, 0, 77)
        assert delivery.done()
        assert delivery.exception(0) is None
        producer.flush()
    assert reported == [(RecordMetadata(topic, 1, 0, 77), None)]


def test_log_append_time_is_the_brokers(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(message_timestamp_type="LogAppendTime")
    with Producer(bootstrap) as producer:
        assert producer.send(topic, b"v", timestamp_ms=77).result(60).timestamp > 1_000_000


def test_keys_are_partitioned_like_librdkafkas_murmur2(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(7)
    keys = [os.urandom(n % 23 + 1) for n in range(300)] + [b""]
    theirs: dict[bytes, int] = {}
    other = ConfluentProducer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    for key in keys:
        other.produce(topic, b"", key, on_delivery=lambda _, m: theirs.__setitem__(m.key(), m.partition()))
    other.flush(60)
    # librdkafka treats an empty key as null.
    keys.remove(b"")
    with Producer(bootstrap) as producer:
        ours = {key: producer.send(topic, b"", key) for key in keys}
        producer.flush()
        assert {key: d.result(0).partition for key, d in ours.items()} == {key: theirs[key] for key in keys}
        table = pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array([b"arrow"] * len(keys), pa.binary())})
        producer.send_arrow(table, topic, key="key").result(60)
    for partition, found in _read(bootstrap, topic, 7).items():
        assert all(theirs[key] == partition for key, value in found if value == b"arrow" and key)


def test_records_without_keys_share_batches_and_reach_every_partition(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(3)
    with Producer(bootstrap, batch_size=500) as producer:
        deliveries = [producer.send(topic, b"x" * 50) for _ in range(600)]
        producer.flush()
        partitions = [d.result(0).partition for d in deliveries]
    assert set(partitions) == {0, 1, 2}
    assert sum(a != b for a, b in itertools.pairwise(partitions)) < 150


def test_table_rows_arrive_in_order(bootstrap: str, make_topic: MakeTopic) -> None:
    topic, rows = make_topic(3), 5_000
    table = pa.table(
        {
            "k": pa.array([None if i % 10 == 0 else b"%d" % (i % 97) for i in range(rows)], pa.binary()),
            "value": pa.array([f"row {i}" for i in range(rows)], pa.string()),
            "at": pa.array(range(rows), pa.timestamp("ms", "UTC")),
        }
    )
    with Producer(bootstrap, batch_size=2_000, compression_type="lz4") as producer:
        sent = producer.send_arrow(table, topic, key="k", timestamp="at").result(60)
    assert sum(batch.record_count for batch in sent) == rows
    found = _read(bootstrap, topic, 3)
    numbers = {p: [int((value or b"").split()[1]) for key, value in records if key] for p, records in found.items()}
    assert all(values == sorted(values) for values in numbers.values())
    assert sorted(n for values in numbers.values() for n in values) == [i for i in range(rows) if i % 10]
    assert sum(len(records) for records in found.values()) == rows


def test_a_table_with_a_partition_column_or_number(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(3)
    table = pa.table({"value": pa.array([b"a", b"b", b"c"], pa.binary()), "to": pa.array([2, 0, 2], pa.int64())})
    with Producer(bootstrap) as producer:
        producer.send_arrow(table, topic, partition="to").result(60)
        producer.send_arrow(table, topic, partition=1).result(60)
        with pytest.raises(OperatorError, match="no partition 3"):
            producer.send_arrow(table, topic, partition=3)
        with pytest.raises(OperatorError, match="no column who"):
            producer.send_arrow(table, topic, key="who")
        with pytest.raises(OperatorError, match="binary or string"):
            producer.send_arrow(table, topic, key="to")
    found = {p: [v for _, v in records] for p, records in _read(bootstrap, topic, 3).items()}
    assert found == {0: [b"b"], 1: [b"a", b"b", b"c"], 2: [b"a", b"c"]}


def test_a_table_larger_than_the_buffer(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    table = pa.table({"value": pa.array([b"x" * 100] * 20_000, pa.binary())})
    with Producer(bootstrap, buffer_memory=300_000, batch_size=50_000) as producer:
        assert sum(b.record_count for b in producer.send_arrow(table, topic).result(60)) == 20_000


def test_records_larger_than_the_buffer_wait_for_room(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    with Producer(bootstrap, buffer_memory=50_000, batch_size=10_000) as producer:
        for _ in range(200):
            producer.send(topic, b"x" * 5_000)
        producer.flush()
    assert len(_read(bootstrap, topic)[0]) == 200


def test_many_threads_send_at_once(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(2)
    with Producer(bootstrap, batch_size=500) as producer:

        def work(number: int) -> None:
            for i in range(300):
                producer.send(topic, b"%d:%d" % (number, i), b"%d" % number)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush()
    found = [value for records in _read(bootstrap, topic, 2).values() for _, value in records]
    for number in range(4):
        mine = [v for v in found if v is not None and v.startswith(b"%d:" % number)]
        assert mine == [b"%d:%d" % (number, i) for i in range(300)]


def test_rejections_have_clear_messages(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(max_message_bytes="1000")
    with Producer(bootstrap) as producer:
        with pytest.raises(PeerError, match=r"max\.message\.bytes") as large:
            producer.send(topic, b"x" * 2_000).result(60)
        assert large.value.code is ErrorCode.MESSAGE_TOO_LARGE
        with pytest.raises(PeerError, match=r"max\.request\.size"):
            producer.send(topic, b"x" * 2_000_000)
        with pytest.raises(OperatorError, match="no partition 9"):
            producer.send(topic, b"x", partition=9)
        assert producer.send(topic, b"small").result(60).offset == 0


def test_a_topic_that_does_not_exist(bootstrap: str, unique: Callable[[str], str]) -> None:
    with Producer(bootstrap, allow_auto_create_topics=False, max_block_ms=1_500) as producer:
        with pytest.raises(PeerError) as error:
            producer.send(unique("never"), b"x")
        assert error.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_is_created_on_first_use(bootstrap: str, admin: Admin, unique: Callable[[str], str]) -> None:
    topic = unique("auto")
    with Producer(bootstrap) as producer:
        assert producer.send(topic, b"x").result(60).offset == 0
    admin.delete_topics([topic])


def test_the_asynchronous_producer(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()

    async def scenario() -> list[int]:
        async with AsyncProducer(bootstrap, batch_size=1_000, buffer_memory=20_000) as producer:
            promises = [await producer.send(topic, b"x" * 100) for _ in range(500)]
            await producer.flush()
            table = pa.table({"value": pa.array([b"t"] * 3, pa.binary())})
            await (await producer.send_arrow(table, topic))
            return [(await promise).offset for promise in promises]

    assert asyncio.run(scenario()) == list(range(500))


def test_a_producer_does_not_survive_a_fork(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    with Producer(bootstrap) as producer:
        producer.send(topic, b"x").result(60)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                producer.send(topic, b"y")
            except OperatorError as error:
                status = 0 if "fork" in str(error) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        producer.send(topic, b"z").result(60)
