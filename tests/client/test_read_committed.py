"""isolation.level on every face of the client: transactions that interleave, span fetches, are compressed or compacted.

The expected rows come from a model of the log: which offset has which value, and whether it was committed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from fenceline.client import Admin, Consumer, NewTopic, OffsetOutOfRangeError, OffsetRange, Producer, RangeReader
from fenceline.ids import TopicPartition
from fenceline.testing.waiting import eventually

pytestmark = pytest.mark.kafka
Unique = Callable[[str], str]
LEVELS = ("read_committed", "read_uncommitted")


@dataclass
class Story:
    """One partition: the value of each record, and which records a read_committed reader sees."""

    broker: str
    tp: TopicPartition
    values: dict[int, bytes] = field(default_factory=dict)
    visible: set[int] = field(default_factory=set)
    last_stable_offset: int = 0
    high_watermark: int = 0

    def expected(self, level: str, start: int = 0, end: int = 2**62) -> list[tuple[int, bytes]]:
        return [
            (offset, value)
            for offset, value in sorted(self.values.items())
            if start <= offset < end and (level == "read_uncommitted" or offset in self.visible)
        ]

    def end(self, level: str) -> int:
        return self.high_watermark if level == "read_uncommitted" else self.last_stable_offset


def _write(broker: str, topic: str, seed: int, key: str) -> Story:
    """Three transactional producers and a plain one take turns; one transaction stays open at the end."""
    rng, story = random.Random(seed), Story(broker, TopicPartition(topic, 0))
    codecs = ["none", "gzip", "lz4", "zstd", "snappy"]
    producers = [
        Producer(broker, **{"transactional.id": f"{key}-{n}", "linger.ms": 0, "compression.type": rng.choice(codecs)})
        for n in range(3)
    ]
    plain = Producer(broker, **{"linger.ms": 0, "compression.type": rng.choice(codecs)})
    pending: list[list[int] | None] = [None, None, None]

    def write(producer: Producer) -> list[int]:
        values = [rng.randbytes(rng.choice([3, 200])) for _ in range(rng.randrange(1, 6))]
        sent = [(producer.send(topic, value, partition=0), value) for value in values]
        producer.flush()
        found = {delivery.result(0).offset: value for delivery, value in sent}
        story.values |= found
        return list(found)

    try:
        for producer in producers:
            producer.init_transactions()
        for _ in range(60):
            turn = rng.randrange(4)
            if turn == 3:
                story.visible |= set(write(plain))
                continue
            opened = pending[turn]
            if opened is None:
                producers[turn].begin_transaction()
                pending[turn] = write(producers[turn])
            elif rng.random() < 0.5:
                opened += write(producers[turn])
            elif rng.random() < 0.5:
                producers[turn].commit_transaction()
                story.visible |= set(opened)
                pending[turn] = None
            else:
                producers[turn].abort_transaction()
                pending[turn] = None
        for turn, opened in enumerate(pending):
            if opened is not None:
                producers[turn].abort_transaction()
        with Admin(broker) as admin:
            # The markers of the last transactions are written after the answers.
            level = "read_committed"
            end = eventually(
                lambda: (
                    admin.list_offsets({story.tp: "latest"}, isolation_level=level)[story.tp].offset
                    == admin.list_offsets({story.tp: "latest"})[story.tp].offset
                    and admin.list_offsets({story.tp: "latest"})[story.tp].offset
                ),
                "all transactions completed",
            )
            producers[0].begin_transaction()
            (story.last_stable_offset, *_) = sorted(write(producers[0]))
            assert story.last_stable_offset == end
            write(plain)
            story.high_watermark = admin.list_offsets({story.tp: "latest"})[story.tp].offset
    finally:
        plain.close()
        # The first producer's transaction stays open: closing it would abort it.
        for producer in producers[1:]:
            producer.close()
    story_open.append(producers[0])
    return story


story_open: list[Producer] = []


@pytest.fixture(scope="module", params=[1, 2], ids=lambda seed: f"seed{seed}")
def story(request: pytest.FixtureRequest, kafka_bootstrap: str) -> Iterator[Story]:
    topic = f"read-committed-{request.param}"
    with Admin(kafka_bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 1, {"segment.bytes": "1048576"})])
        eventually(lambda: admin.describe_configs([("topic", topic)]), f"{topic} described")
    yield _write(kafka_bootstrap, topic, request.param, topic)
    story_open.pop().close()


def _poll(consumer: Consumer, end: int, tp: TopicPartition, *, arrow: bool) -> list[tuple[int, bytes]]:
    """Read until the position reaches `end`."""
    found: list[tuple[int, bytes]] = []

    def read() -> bool:
        if arrow:
            batch = consumer.poll_arrow(100)
            found.extend(zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True))
        else:
            found.extend((record.offset, record.value or b"") for record in consumer.poll(100))
        return consumer.position(tp) >= end

    eventually(read, f"position {end}")
    return found


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("fetch_bytes", [1, 2_000, 1_000_000])
@pytest.mark.parametrize("arrow", [False, True], ids=["records", "arrow"])
def test_the_consumer(story: Story, level: str, fetch_bytes: int, arrow: bool) -> None:
    """With fetches of one batch, aborted transactions span many of them."""
    config = {"isolation.level": level, "auto.offset.reset": "earliest", "max.partition.fetch.bytes": fetch_bytes}
    with Consumer(story.broker, **config) as consumer:
        consumer.assign([story.tp])
        found = _poll(consumer, story.end(level), story.tp, arrow=arrow)
        assert found == story.expected(level, end=story.end(level))
        assert consumer.position(story.tp) == story.end(level)
        assert consumer.lag(story.tp) == 0
        assert consumer.end_offsets([story.tp]) == {story.tp: story.end(level)}
        consumer.seek_to_end()
        assert consumer.position(story.tp) == story.end(level)
        assert consumer.poll(50) == []


@pytest.mark.parametrize("level", LEVELS)
def test_the_consumer_from_any_offset(story: Story, level: str) -> None:
    """Also in the middle of aborted transactions."""
    rng = random.Random(level)
    config = {"isolation.level": level, "max.partition.fetch.bytes": 2_000}
    with Consumer(story.broker, **config) as consumer:
        consumer.assign([story.tp])
        for _ in range(25):
            start = rng.randrange(story.end(level))
            consumer.seek(story.tp, start)
            found = _poll(consumer, story.end(level), story.tp, arrow=rng.random() < 0.5)
            assert found == story.expected(level, start, story.end(level)), f"from offset {start}"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("fetch_bytes", [1, 1_000_000])
@pytest.mark.parametrize("arrow", [False, True], ids=["records", "arrow"])
def test_the_range_reader(story: Story, level: str, fetch_bytes: int, arrow: bool) -> None:
    rng = random.Random(fetch_bytes)
    end = story.end(level)
    ranges = [(0, end), *(sorted((rng.randrange(end), rng.randrange(end + 1))) for _ in range(20))]
    config: dict[str, Any] = {"isolation.level": level, "max.partition.fetch.bytes": fetch_bytes}
    with RangeReader(story.broker, **config) as reader:
        for start, stop in ranges:
            wanted = {story.tp: OffsetRange(start, stop, leader_epoch=0, max_leader_epoch=0)}
            found: list[tuple[int, bytes]] = []
            if arrow:
                for batch in reader.read(wanted):
                    assert batch.num_rows
                    found += zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True)
            else:
                for records in reader.read(wanted, arrow=False):
                    found += [(record.offset, record.value or b"") for record in records]
            assert found == story.expected(level, start, stop), f"range {start} to {stop}"


def test_the_range_reader_does_not_read_beyond_the_last_stable_offset(story: Story) -> None:
    config = {"isolation.level": "read_committed"}
    with RangeReader(story.broker, stall_timeout_ms=300, **config) as reader:
        found: list[int] = []
        batches = reader.read({story.tp: (0, story.high_watermark)})
        with pytest.raises(OffsetOutOfRangeError, match="readable log has ended") as caught:
            found.extend(offset for batch in batches for offset in batch["offset"].to_pylist())
    assert caught.value.log_end_offset == story.last_stable_offset
    assert found == [offset for offset, _ in story.expected("read_committed", end=story.last_stable_offset)]


def test_the_lag_is_counted_to_the_last_stable_offset(story: Story) -> None:
    for level in LEVELS:
        config = {"isolation.level": level, "auto.offset.reset": "earliest", "max.partition.fetch.bytes": 1}
        with Consumer(story.broker, **config) as consumer:
            consumer.assign([story.tp])
            (first,) = eventually(lambda consumer=consumer: consumer.poll(100, max_records=1), "a record")
            assert consumer.lag(story.tp) == story.end(level) - first.offset - 1


@pytest.mark.parametrize("level", LEVELS)
def test_compacted_transactions(kafka_bootstrap: str, unique: Unique, level: str) -> None:
    """Compaction removes aborted records and markers, and leaves batches without records."""
    topic = unique("compacted")
    configs = {
        "cleanup.policy": "compact",
        "segment.bytes": "1048576",
        "min.cleanable.dirty.ratio": "0.0001",
        "delete.retention.ms": "0",
        "segment.ms": "100",
        "max.compaction.lag.ms": "100",
    }
    tp = TopicPartition(topic, 0)
    with Admin(kafka_bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 1, configs)])
        eventually(lambda: admin.describe_configs([("topic", topic)]), f"{topic} described")
    expected: dict[bytes, bytes] = {}
    with Producer(kafka_bootstrap, **{"transactional.id": unique("id"), "linger.ms": 0}) as producer:
        producer.init_transactions()
        for number in range(30):
            producer.begin_transaction()
            key, value = b"%d" % (number % 4), b"%d" % number
            producer.send(topic, value, key, partition=0).result(60)
            if number % 3 == 1:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
                expected[key] = value
    with Producer(kafka_bootstrap) as plain:

        def compacted() -> bool:
            """New records roll the segment; the aborted and the superseded records vanish."""
            plain.send(topic, b"last", b"last", partition=0).result(60)
            with RangeReader(kafka_bootstrap) as reader, Admin(kafka_bootstrap) as admin:
                end = admin.list_offsets({tp: "latest"})[tp].offset
                rows = [row for batch in reader.read({tp: (0, end)}) for row in batch["value"].to_pylist()]
            return len([row for row in rows if row != b"last"]) <= len(expected)

        eventually(compacted, "compaction", step_s=0.3)
    config = {"isolation.level": level, "auto.offset.reset": "earliest", "max.partition.fetch.bytes": 1}
    with Consumer(kafka_bootstrap, **config) as consumer, RangeReader(kafka_bootstrap, **config) as reader:
        consumer.assign([tp])
        end = consumer.end_offsets([tp])[tp]
        # The cleaner goes on to remove records of the key "last".
        found = [row for row in _poll(consumer, end, tp, arrow=False) if row[1] != b"last"]
        assert sorted(value for _, value in found) == sorted(expected.values())
        rows = [row for batch in reader.read({tp: (0, end)}) for row in batch.select(["offset", "value"]).to_pylist()]
        assert [row["offset"] for row in rows if row["value"] != b"last"] == [offset for offset, _ in found]
