"""RangeReader against real brokers: the exact ranges or an error."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from fenceline.client.admin.admin import Admin
from fenceline.client.core.errors import (
    EpochMismatchError,
    LogTruncationError,
    OffsetOutOfRangeError,
    TopicReplacedError,
)
from fenceline.client.producer.producer import Producer
from fenceline.client.reader.ranges import Budget, OffsetRange
from fenceline.client.reader.reader import AsyncRangeReader, RangeReader
from fenceline.errors import OperatorError, PeerError
from fenceline.ids import TopicPartition
from fenceline.wire.apis import ApiKey
from tests.client.scripted_cluster import SILENT, ScriptedCluster

MakeTopic = Callable[..., str]


def _fill(bootstrap: str, topic: str, partitions: int, rows: int, **config: object) -> None:
    with Producer(bootstrap, **{"batch.size": 1_000, **config}) as producer:
        for partition in range(partitions):
            for i in range(rows):
                producer.send(topic, b"%d/%d" % (partition, i), partition=partition, timestamp_ms=1_000 + i)


def _read(reader: RangeReader, ranges: dict[TopicPartition, object]) -> dict[int, list[tuple[int, bytes]]]:
    found: dict[int, list[tuple[int, bytes]]] = {}
    for batch in reader.read(ranges):  # type: ignore[arg-type]
        columns = batch.to_pydict()
        for partition, offset, value in zip(columns["partition"], columns["offset"], columns["value"], strict=True):
            found.setdefault(partition, []).append((offset, value))
    return found


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_reads_exactly_the_rows_of_the_ranges(bootstrap: str, make_topic: MakeTopic, codec: str) -> None:
    topic = make_topic(3)
    _fill(bootstrap, topic, 3, 500, **{"compression.type": codec})
    ranges = {
        TopicPartition(topic, 0): (0, 500),
        TopicPartition(topic, 1): (17, 331, 0),
        TopicPartition(topic, 2): (9, 9),
    }
    with RangeReader(bootstrap, max_partition_fetch_bytes=2_000) as reader:
        found = _read(reader, ranges)  # type: ignore[arg-type]
    assert found == {
        0: [(i, b"0/%d" % i) for i in range(500)],
        1: [(i, b"1/%d" % i) for i in range(17, 331)],
    }


def test_columns_and_records(bootstrap: str, make_topic: MakeTopic) -> None:
    tp = TopicPartition(make_topic(), 0)
    with Producer(bootstrap) as producer:
        producer.send(tp.topic, b"v", b"k", headers={"h": b"1", "n": None}, timestamp_ms=5)
        producer.send(tp.topic)
    with RangeReader(bootstrap) as reader:
        (batch,) = list(reader.read({tp: (0, 2)}))
        ((first, second),) = list(reader.read({tp: (0, 2)}, arrow=False))
    assert isinstance(batch, pa.RecordBatch)
    assert batch.column("key").to_pylist() == [b"k", None]
    assert batch.column("leader_epoch").to_pylist() == [0, 0]
    assert first == (tp.topic, 0, 0, 5, 0, 0, b"k", b"v", (("h", b"1"), ("n", None)))
    assert (second.key, second.value, second.headers) == (None, None, ())


def test_pieces_of_a_response_are_delivered_together(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(20)
    _fill(bootstrap, topic, 20, 1)
    delivered: list[Any] = []

    async def read() -> None:
        async with AsyncRangeReader(bootstrap) as reader:
            ranges = {TopicPartition(topic, index): OffsetRange(0, 1) for index in range(20)}
            await reader.fetch_all(ranges, delivered.append, Budget(reader.config["queued.max.bytes"]))

    asyncio.run(read())
    pieces, end = delivered
    assert end is None
    assert sorted(piece.partition for piece in pieces) == list(range(20))


def test_epoch_missing_from_the_log_is_a_truncation(bootstrap: str, make_topic: MakeTopic) -> None:
    tp = TopicPartition(make_topic(), 0)
    _fill(bootstrap, tp.topic, 1, 20)
    with RangeReader(bootstrap) as reader, pytest.raises(LogTruncationError) as error:
        list(reader.read({tp: (10, 20, 4)}))
    assert (error.value.topic, error.value.partition, error.value.offset, error.value.leader_epoch) == (*tp, 10, 4)


def test_position_past_its_epoch_end_reports_the_divergence(bootstrap: str, make_topic: MakeTopic) -> None:
    tp = TopicPartition(make_topic(), 0)
    _fill(bootstrap, tp.topic, 1, 20)
    with RangeReader(bootstrap) as reader, pytest.raises(LogTruncationError) as error:
        list(reader.read({tp: (25, 30, 0)}))
    assert (error.value.divergent_offset, error.value.divergent_epoch) == (20, 0)


def test_range_past_the_log_end_does_not_wait_forever(bootstrap: str, make_topic: MakeTopic) -> None:
    tp = TopicPartition(make_topic(), 0)
    _fill(bootstrap, tp.topic, 1, 20)
    rows: list[int] = []
    with (
        RangeReader(bootstrap, stall_timeout_ms=200, fetch_max_wait_ms=50) as reader,
        pytest.raises(OffsetOutOfRangeError) as error,
    ):
        rows.extend(batch.num_rows for batch in reader.read({tp: (0, 30)}))
    assert sum(rows) in (0, 20)
    assert error.value.log_end_offset == 20


def test_offsets_deleted_by_retention_report_the_remaining_range(
    admin: Admin, bootstrap: str, make_topic: MakeTopic
) -> None:
    tp = TopicPartition(make_topic(), 0)
    _fill(bootstrap, tp.topic, 1, 20)
    admin.delete_records({tp: 5})
    for wanted in ((0, 20), (0, 20, 0)):
        with RangeReader(bootstrap) as reader, pytest.raises(OffsetOutOfRangeError) as error:
            list(reader.read({tp: wanted}))
        assert (error.value.log_start_offset, error.value.log_end_offset) == (5, 20)


def test_rows_of_a_newer_epoch_than_planned_are_rejected(bootstrap: str, make_topic: MakeTopic) -> None:
    tp = TopicPartition(make_topic(), 0)
    _fill(bootstrap, tp.topic, 1, 5)
    with RangeReader(bootstrap) as reader:
        assert sum(b.num_rows for b in reader.read({tp: OffsetRange(0, 5, max_leader_epoch=0)})) == 5


def test_recreated_topic_is_rejected(bootstrap: str, make_topic: MakeTopic) -> None:
    tp = TopicPartition(make_topic(), 0)
    with RangeReader(bootstrap) as reader, pytest.raises(TopicReplacedError, match="recreated"):
        list(reader.read({tp: OffsetRange(0, 0, topic_id=uuid4())}))


def test_invalid_ranges_are_rejected(bootstrap: str, make_topic: MakeTopic) -> None:
    tp = TopicPartition(make_topic(), 0)
    with RangeReader(bootstrap) as reader, pytest.raises(OperatorError, match="not an offset range"):
        list(reader.read({tp: (5, 4)}))


def test_a_topic_that_does_not_exist(bootstrap: str) -> None:
    with (
        RangeReader(bootstrap, default_api_timeout_ms=1_500) as reader,
        pytest.raises(PeerError, match="UNKNOWN_TOPIC"),
    ):
        list(reader.read({TopicPartition("never-made", 0): (0, 1)}))


def test_reader_is_reusable_after_complete_and_abandoned_reads(bootstrap: str, make_topic: MakeTopic) -> None:
    tp = TopicPartition(make_topic(), 0)
    _fill(bootstrap, tp.topic, 1, 2_000)
    with RangeReader(bootstrap, max_partition_fetch_bytes=1_000, queued_max_bytes=2_048) as reader:
        for _ in reader.read({tp: (0, 2_000)}):
            break
        assert sum(b.num_rows for b in reader.read({tp: (0, 2_000)})) == 2_000


def test_no_ranges_return_no_rows(bootstrap: str) -> None:
    with RangeReader(bootstrap) as reader:
        assert list(reader.read({})) == []


def test_epoch_mismatch_has_its_own_error() -> None:
    assert "planned when the log ended in epoch 4" in str(EpochMismatchError("t", 0, 10, 5, 4))


def test_closing_the_reader_ends_a_read_that_waits(cluster: ScriptedCluster) -> None:
    (tp,) = cluster.add_topic("t")
    asked = threading.Event()

    def rule(node: int, key: ApiKey) -> object:
        if key is ApiKey.FETCH:
            asked.set()
            return SILENT
        return None

    cluster.node_rule = rule
    reader = RangeReader(cluster.bootstrap)

    def close_later() -> None:
        asked.wait(60)
        reader.close()

    closing = threading.Thread(target=close_later)
    closing.start()
    with pytest.raises(OperatorError, match="The client is closed"):
        list(reader.read({tp: (0, 5)}))
    closing.join()
