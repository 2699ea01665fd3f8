"""Unusual logs, read as records and as tables: huge records, null fields, many partitions, no records."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from fenceline.client.consumer.consumer import Consumer
from fenceline.client.producer.producer import Producer
from fenceline.ids import TopicPartition

MakeTopic = Callable[..., str]
_HUGE_BYTES = 10 * 1024 * 1024


def _rows(consumer: Consumer, count: int, *, arrow: bool) -> list[dict[str, Any]]:
    """Reads at least `count` rows."""
    found: list[dict[str, Any]] = []
    end_s = time.monotonic() + 60
    while len(found) < count:
        assert time.monotonic() < end_s, f"only {len(found)} of {count} rows arrived"
        found += consumer.poll_arrow(200).to_pylist() if arrow else [r._asdict() for r in consumer.poll(200)]
    return found


@pytest.mark.parametrize("arrow", [False, True])
def test_records_larger_than_every_limit_of_the_consumer(bootstrap: str, make_topic: MakeTopic, arrow: bool) -> None:
    topic = make_topic(2, max_message_bytes=str(2 * _HUGE_BYTES))
    sizes = [10, _HUGE_BYTES, 10, _HUGE_BYTES, 10]
    with Producer(bootstrap, **{"max.request.size": 2 * _HUGE_BYTES, "compression.type": "none"}) as producer:
        for partition in (0, 1):
            for size in sizes:
                producer.send(topic, bytes(size), partition=partition).result(60)
    limits = {"queued.max.bytes": 100_000, "max.partition.fetch.bytes": 10_000, "fetch.max.bytes": 50_000}
    with Consumer(bootstrap, **{"auto.offset.reset": "earliest", **limits}) as consumer:
        consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
        rows = _rows(consumer, 10, arrow=arrow)
    for partition in (0, 1):
        assert [len(row["value"]) for row in rows if row["partition"] == partition] == sizes


@pytest.mark.parametrize("arrow", [False, True])
def test_null_keys_values_and_headers(bootstrap: str, make_topic: MakeTopic, arrow: bool) -> None:
    topic = make_topic()
    sent = [(None, None, ()), (b"", b"", ()), (b"key", None, (("", None), ("h", b""))), (None, b"value", ())]
    with Producer(bootstrap) as producer:
        for key, value, headers in sent:
            producer.send(topic, value, key, headers=headers).result(60)
    with Consumer(bootstrap, **{"auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        rows = _rows(consumer, 4, arrow=arrow)
    assert [(row["key"], row["value"]) for row in rows] == [(key, value) for key, value, _ in sent]
    found = rows[2]["headers"]
    assert [tuple(each.values()) if isinstance(each, dict) else tuple(each) for each in found] == [*sent[2][2]]


def test_thousand_mostly_empty_partitions(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(1_000)
    filled = range(0, 1_000, 100)
    with Producer(bootstrap) as producer:
        for partition in filled:
            producer.send(topic, b"%d" % partition, partition=partition)
    with Consumer(bootstrap, **{"auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([TopicPartition(topic, index) for index in range(1_000)])
        rows = _rows(consumer, len(filled), arrow=False)
        assert sorted(row["partition"] for row in rows) == list(filled)
        with Producer(bootstrap) as producer:
            producer.send(topic, b"last", partition=999).result(60)
        assert [row["value"] for row in _rows(consumer, 1, arrow=True)] == [b"last"]


def test_empty_topic_returns_nothing_and_logs_nothing(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    with Consumer(bootstrap, **{"auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert consumer.position(TopicPartition(topic, 0)) == 0
        assert consumer.poll(100) == []
        table = consumer.poll_arrow(100)
        assert (table.num_rows, "value" in table.schema.names) == (0, True)
        assert consumer.position(TopicPartition(topic, 0)) == 0
