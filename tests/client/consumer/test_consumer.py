"""Consumer against real brokers: positions, commits, pauses, isolation, Arrow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pyarrow as pa
import pytest
from confluent_kafka import Producer as ConfluentProducer

from fenceline.client.admin.admin import Admin
from fenceline.client.consumer.async_consumer import AsyncConsumer
from fenceline.client.consumer.consumer import Consumer
from fenceline.client.core.errors import NoOffsetError
from fenceline.client.core.fetched import ConsumerRecord
from fenceline.client.core.offsets import CommittedOffset
from fenceline.client.producer.producer import Producer
from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition

MakeTopic = Callable[..., str]
Unique = Callable[[str], str]


def _fill(bootstrap: str, topic: str, rows: int, partitions: int = 1, start: int = 0, **config: object) -> None:
    with Producer(bootstrap, **{"batch.size": 1_000, **config}) as producer:
        deliveries = [
            producer.send(topic, b"%d" % i, partition=i % partitions, timestamp_ms=1_000 + i)
            for i in range(start, start + rows)
        ]
        producer.flush()
        assert [d.exception(0) for d in deliveries] == [None] * rows


def _take(consumer: Consumer, count: int, **options: int) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    end_s = time.monotonic() + 60
    while len(found) < count:
        assert time.monotonic() < end_s, f"only {len(found)} of {count} records arrived"
        found += consumer.poll(200, **options)
    return found


def _numbers(records: list[ConsumerRecord]) -> list[int]:
    return [int(r.value or b"-1") for r in records]


@pytest.mark.parametrize("arrow", [False, True])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_reads_all_records_from_the_beginning_in_order(
    bootstrap: str, make_topic: MakeTopic, codec: str, arrow: bool
) -> None:
    """The batches are worth compressing, and a response holds only a few of them."""
    topic = make_topic(3)
    batches = {"linger.ms": 20, "batch.size": 16_000}
    _fill(bootstrap, topic, 9_000, 3, **batches, **{"compression.type": codec})
    rows: list[tuple[int, int, int, int]] = []
    end_s = time.monotonic() + 60
    with Consumer(bootstrap, auto_offset_reset="earliest", max_partition_fetch_bytes=2_000) as consumer:
        consumer.assign([TopicPartition(topic, i) for i in range(3)])
        while len(rows) < 9_000:
            assert time.monotonic() < end_s, f"only {len(rows)} rows arrived"
            if arrow:
                table = consumer.poll_arrow(200).select(["partition", "offset", "leader_epoch", "value"]).to_pydict()
                rows += [(*row, int(value)) for *row, value in zip(*table.values(), strict=True)]
            else:
                rows += [(r.partition, r.offset, r.leader_epoch, int(r.value or b"-1")) for r in consumer.poll(200)]
    for partition in range(3):
        mine = [row for row in rows if row[0] == partition]
        assert mine == [(partition, offset, 0, partition + 3 * offset) for offset in range(3_000)]


def test_latest_reads_only_records_written_later(bootstrap: str, make_topic: MakeTopic) -> None:
    tp = TopicPartition(make_topic(), 0)
    _fill(bootstrap, tp.topic, 10)
    with Consumer(bootstrap) as consumer:
        consumer.assign([tp])
        assert consumer.position(tp) == 10
        _fill(bootstrap, tp.topic, 5, start=10)
        assert _numbers(_take(consumer, 5)) == [10, 11, 12, 13, 14]


def test_reset_policy_none_raises_without_a_committed_offset(bootstrap: str, make_topic: MakeTopic) -> None:
    tp = TopicPartition(make_topic(), 0)
    with Consumer(bootstrap, auto_offset_reset="none") as consumer:
        consumer.assign([tp])
        with pytest.raises(NoOffsetError, match=r"auto\.offset\.reset"):
            consumer.poll(1_000)


def test_seek(bootstrap: str, make_topic: MakeTopic) -> None:
    tp = TopicPartition(make_topic(), 0)
    _fill(bootstrap, tp.topic, 50)
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([tp])
        assert _numbers(_take(consumer, 5, max_records=5)) == [0, 1, 2, 3, 4]
        assert consumer.position_and_epoch(tp) == CommittedOffset(5, 0)
        consumer.seek(tp, 40)
        assert _numbers(_take(consumer, 10)) == list(range(40, 50))
        consumer.seek_to_beginning()
        assert _numbers(_take(consumer, 1, max_records=1)) == [0]
        consumer.seek_to_end([tp])
        assert consumer.position(tp) == 50
        assert consumer.poll(100) == []
        consumer.seek(tp, 20, 0)
        assert _numbers(_take(consumer, 1, max_records=1)) == [20]


def test_poll_and_poll_arrow_alternate(bootstrap: str, make_topic: MakeTopic) -> None:
    tp = TopicPartition(make_topic(), 0)
    _fill(bootstrap, tp.topic, 400)
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([tp])
        first = _numbers(_take(consumer, 7, max_records=7))
        rest: list[int] = []
        while len(rest) < 393:
            batch = consumer.poll_arrow(1_000)
            rest += [int(v) for v in batch.column("value").to_pylist()]
            assert consumer.position(tp) == len(first) + len(rest)
    assert first + rest == list(range(400))


def test_tables_have_all_columns_even_when_empty(bootstrap: str, make_topic: MakeTopic) -> None:
    tp = TopicPartition(make_topic(), 0)
    with Producer(bootstrap) as producer:
        producer.send(tp.topic, b"v", b"k", headers=[("h", b"1")], timestamp_ms=5).result(60)
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([tp])
        batch = consumer.poll_arrow(10_000)
        empty = consumer.poll_arrow(50)
    assert isinstance(batch, pa.RecordBatch)
    row = batch.to_pylist()[0]
    assert (row["topic"], row["partition"], row["offset"], row["leader_epoch"]) == (tp.topic, 0, 0, 0)
    assert (row["key"], row["value"], row["headers"]) == (b"k", b"v", [{"key": "h", "value": b"1"}])
    assert row["timestamp"].timestamp() == 0.005
    assert (empty.num_rows, empty.schema) == (0, batch.schema)


def test_paused_partition_loses_no_records(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(2)
    _fill(bootstrap, topic, 200, 2)
    tps = [TopicPartition(topic, i) for i in range(2)]
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(tps)
        found = _take(consumer, 10, max_records=10)
        consumer.pause([tps[0]])
        assert consumer.paused() == [tps[0]]
        for _ in range(20):
            more = consumer.poll(50)
            assert all(r.partition == 1 for r in more)
            found += more
        consumer.resume([tps[0]])
        found += _take(consumer, 200 - len(found))
    for tp in tps:
        assert [r.offset for r in found if r.partition == tp.partition] == list(range(100))


def test_end_offsets_offsets_for_times_and_lag(bootstrap: str, make_topic: MakeTopic, admin: Admin) -> None:
    tp = TopicPartition(make_topic(), 0)
    _fill(bootstrap, tp.topic, 20)
    admin.delete_records({tp: 5})
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        assert consumer.beginning_offsets([tp]) == {tp: 5}
        assert consumer.end_offsets([tp]) == {tp: 20}
        found = consumer.offsets_for_times({tp: 1_010})[tp]
        assert found is not None
        assert (found.offset, found.timestamp, found.leader_epoch) == (10, 1_010, 0)
        assert consumer.offsets_for_times({tp: 9_999}) == {tp: None}
        assert consumer.partitions_for(tp.topic) == [0]
        consumer.assign([tp])
        assert consumer.lag(tp) is None
        _take(consumer, 5, max_records=5)
        assert consumer.lag(tp) == 10


def test_commits_carry_epochs_and_reading_resumes_from_them(
    bootstrap: str, make_topic: MakeTopic, unique: Unique, admin: Admin
) -> None:
    tp, group = TopicPartition(make_topic(), 0), unique("group")
    _fill(bootstrap, tp.topic, 20)
    config = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    with Consumer(bootstrap, **config) as consumer:
        consumer.assign([tp])
        _take(consumer, 8, max_records=8)
        consumer.commit()
        assert consumer.committed([tp]) == {tp: CommittedOffset(8, 0)}
    with Consumer(bootstrap, **config) as consumer:
        consumer.assign([tp])
        assert _numbers(_take(consumer, 1, max_records=1)) == [8]
        consumer.commit({tp: CommittedOffset(3, 0, "note")})
    assert admin.list_group_offsets(group) == {tp: CommittedOffset(3, 0, "note")}


def test_close_commits_returned_records(bootstrap: str, make_topic: MakeTopic, unique: Unique) -> None:
    tp, group = TopicPartition(make_topic(), 0), unique("group")
    _fill(bootstrap, tp.topic, 20)
    for expected in ([0, 1, 2, 3], [4, 5, 6, 7]):
        with Consumer(bootstrap, group_id=group, auto_offset_reset="earliest") as consumer:
            consumer.assign([tp])
            assert _numbers(_take(consumer, 4, max_records=4)) == expected


@pytest.mark.kafka
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_aborted_records_are_read_only_with_read_uncommitted(
    kafka_bootstrap: str, unique: Unique, isolation: str
) -> None:
    with Admin(kafka_bootstrap) as admin:
        topic = unique("transactions")
        admin.create_topics([topic])
    settings = {"bootstrap.servers": kafka_bootstrap, "transactional.id": unique("tx"), "linger.ms": 0}
    producer = ConfluentProducer(settings)
    producer.init_transactions(60)
    expected = []
    for number in range(6):
        producer.begin_transaction()
        for _ in range(3):
            producer.produce(topic, b"%d" % number, partition=0)
            producer.flush(60)
        if number % 2:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
        if number % 2 == 0 or isolation == "read_uncommitted":
            expected += [number] * 3
    config = {"isolation.level": isolation, "auto.offset.reset": "earliest"}
    tp = TopicPartition(topic, 0)
    with Consumer(kafka_bootstrap, **config) as consumer:
        consumer.assign([tp])
        assert _numbers(_take(consumer, len(expected))) == expected
        assert consumer.end_offsets([tp]) == {tp: 24}
        # The marker after the last record is skipped, too.
        end_s = time.monotonic() + 60
        while consumer.position(tp) != 24:
            assert time.monotonic() < end_s
            assert consumer.poll(50) == []
        consumer.seek_to_beginning()
        rows: list[int] = []
        while len(rows) < len(expected):
            rows += [int(v) for v in consumer.poll_arrow(1_000).column("value").to_pylist()]
        assert rows == expected


def test_misuse_raises_clear_errors(bootstrap: str, make_topic: MakeTopic) -> None:
    tp = TopicPartition(make_topic(), 0)
    with Consumer(bootstrap) as consumer:
        with pytest.raises(OperatorError, match="assign or subscribe"):
            consumer.poll(10)
        with pytest.raises(OperatorError, match=r"group\.id"):
            consumer.subscribe([tp.topic])
        with pytest.raises(OperatorError, match=r"group\.id"):
            consumer.commit({tp: 1})
        with pytest.raises(OperatorError, match="not assigned"):
            consumer.seek(tp, 0)
    with pytest.raises(OperatorError, match="closed"):
        consumer.poll(0)


def test_memory_is_bounded_and_no_record_is_lost(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(4)
    _fill(bootstrap, topic, 4_000, 4)
    config = {"auto.offset.reset": "earliest", "queued.max.bytes": 4_000, "max.partition.fetch.bytes": 1_500}
    with Consumer(bootstrap, **config) as consumer:
        consumer.assign([TopicPartition(topic, i) for i in range(4)])
        assert sorted(_numbers(_take(consumer, 4_000))) == list(range(4_000))


def test_the_asynchronous_consumer(bootstrap: str, make_topic: MakeTopic) -> None:
    tp = TopicPartition(make_topic(), 0)
    _fill(bootstrap, tp.topic, 50)

    async def scenario() -> list[ConsumerRecord]:
        found: list[ConsumerRecord] = []
        async with AsyncConsumer(bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([tp])
            while len(found) < 50:
                found += await consumer.poll(1_000)
        return found

    assert _numbers(asyncio.run(scenario())) == list(range(50))
