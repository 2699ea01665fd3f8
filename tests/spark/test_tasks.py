"""What a task does with the client's answers; the client is a fake."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from fenceline.client.errors import (
    ClientError,
    EpochMismatchError,
    LogTruncationError,
    OffsetOutOfRangeError,
    TopicReplacedError,
)
from fenceline.errors import ErrorCode
from fenceline.ids import TopicPartition, encode_uuid
from pyspark_fenceline import connect
from pyspark_fenceline.errors import DataLossError, LossKind
from pyspark_fenceline.planning import OffsetRange
from pyspark_fenceline.schema import arrow_schema, spark_schema
from pyspark_fenceline.tasks import RangesPartition, ReadPlan, read_ranges

TP = TopicPartition("t", 0)
ID = UUID(int=7)


class FakeReader:
    """Gives ranges in batches of ten; `troubles` are raised, once each, before the offset they are keyed by."""

    def __init__(self, log_start: int = 0, troubles: Mapping[int, Exception] | None = None) -> None:
        self.log_start = log_start
        self.troubles = dict(troubles or {})
        self.asked: list[dict[TopicPartition, Any]] = []
        self.closed = 0

    def close(self) -> None:
        self.closed += 1

    def read(self, ranges: dict[TopicPartition, Any], **columns: Any) -> Iterator[pa.RecordBatch]:
        self.asked.append(ranges)
        assert columns["timestamp_unit"] == "us"
        for tp, wanted in ranges.items():
            offset = wanted.start_offset
            while offset < wanted.end_offset_exclusive:
                end = min(offset + 10, wanted.end_offset_exclusive)
                for trouble in [at for at in self.troubles if offset <= at < end]:
                    raise self.troubles.pop(trouble)
                yield self._batch(tp, range(offset, end))
                offset = end

    @staticmethod
    def _batch(tp: TopicPartition, offsets: range) -> pa.RecordBatch:
        count = len(offsets)
        return pa.RecordBatch.from_pydict(
            {
                "topic": [tp.topic] * count,
                "partition": pa.array([tp.partition] * count, pa.int32()),
                "offset": pa.array(offsets, pa.int64()),
                "timestamp": pa.array([0] * count, pa.timestamp("us", "UTC")),
                "timestamp_type": pa.array([0] * count, pa.int32()),
                "leader_epoch": pa.array([3] * count, pa.int32()),
                "key": pa.array([None] * count, pa.binary()),
                "value": pa.array([b"v"] * count, pa.binary()),
            }
        )


def use(monkeypatch: pytest.MonkeyPatch, reader: FakeReader) -> FakeReader:
    monkeypatch.setattr(connect, "reader", lambda properties: reader)
    monkeypatch.setattr(connect, "forget", lambda kind, properties: reader.close())
    return reader


def offsets(task: tuple[OffsetRange, ...], *, strict: bool = True, schema: StructType | None = None) -> list[int]:
    schema = schema or spark_schema(include_headers=False, include_leader_epoch=True)
    plan = ReadPlan({"bootstrap.servers": "h:1"}, schema, strict)
    found: list[int] = []
    for batch in read_ranges(plan, RangesPartition(task, {"t": encode_uuid(ID)})):
        assert batch.schema.equals(arrow_schema(schema))
        found += batch.column("offset").to_pylist()
    return found


def test_a_range_is_read_with_what_the_plan_knew(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = use(monkeypatch, FakeReader())
    assert offsets((OffsetRange(TP, 5, 25, 2, 3),)) == list(range(5, 25))
    (asked,) = reader.asked
    assert (asked[TP].leader_epoch, asked[TP].max_leader_epoch, asked[TP].topic_id) == (2, 3, ID)


def test_pieces_of_one_partition_are_read_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = use(monkeypatch, FakeReader())
    assert offsets((OffsetRange(TP, 0, 5), OffsetRange(TP, 10, 15))) == [*range(5), *range(10, 15)]
    assert len(reader.asked) == 2


def test_only_chosen_columns_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, FakeReader())
    whole = spark_schema(include_headers=False, include_leader_epoch=False)
    assert offsets((OffsetRange(TP, 0, 3),), schema=StructType([whole["offset"], whole["key"]])) == [0, 1, 2]


def test_the_partition_that_spark_stands_in_reads_nothing() -> None:
    plan = ReadPlan({}, spark_schema(include_headers=False, include_leader_epoch=False), True)
    assert list(read_ranges(plan, InputPartition(None))) == []


TROUBLES = [
    (LogTruncationError("t", 0, 20, 3, divergent_offset=12, divergent_epoch=2), LossKind.LOG_TRUNCATED, 20, 12),
    (LogTruncationError("t", 0, 20, 3), LossKind.LOG_TRUNCATED, 20, None),
    (EpochMismatchError("t", 0, 22, 5, 3), LossKind.LOG_TRUNCATED, 40, 22),
    (OffsetOutOfRangeError("t", 0, 20, log_start_offset=25, log_end_offset=90), LossKind.OFFSETS_EXPIRED, 20, None),
    (OffsetOutOfRangeError("t", 0, 20, log_start_offset=0, log_end_offset=20), LossKind.LOG_TRUNCATED, 40, 20),
    (TopicReplacedError("t", ID, UUID(int=8)), LossKind.TOPIC_RECREATED, 0, None),
]


@pytest.mark.parametrize(("trouble", "kind", "offset", "divergence"), TROUBLES)
def test_the_clients_findings_become_losses(
    monkeypatch: pytest.MonkeyPatch, trouble: ClientError, kind: LossKind, offset: int, divergence: int | None
) -> None:
    reader = use(monkeypatch, FakeReader(troubles={20: trouble}))
    with pytest.raises(DataLossError) as caught:
        offsets((OffsetRange(TP, 0, 40, -1, 3),))
    (loss,) = caught.value.losses
    assert (loss.kind, loss.offset, loss.divergence_offset) == (kind, offset, divergence)
    assert reader.closed == 1


@pytest.mark.parametrize("strict", [True, False])
def test_any_other_refusal_stays_what_it_is(monkeypatch: pytest.MonkeyPatch, strict: bool) -> None:
    refusal = ClientError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no")
    reader = use(monkeypatch, FakeReader(troubles={20: refusal}))
    with pytest.raises(ClientError, match="no"):
        offsets((OffsetRange(TP, 0, 40),), strict=strict)
    assert reader.closed == 1


def test_without_failing_expired_records_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    expired = OffsetOutOfRangeError("t", 0, 20, log_start_offset=25, log_end_offset=90)
    use(monkeypatch, FakeReader(troubles={20: expired}))
    assert offsets((OffsetRange(TP, 0, 40),), strict=False) == [*range(20), *range(25, 40)]


def test_without_failing_a_cut_range_ends_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = LogTruncationError("t", 0, 20, 3, divergent_offset=12, divergent_epoch=2)
    use(monkeypatch, FakeReader(troubles={20: cut}))
    other = OffsetRange(TopicPartition("t", 1), 100, 105)
    assert offsets((OffsetRange(TP, 0, 40), other), strict=False) == [*range(20), *range(100, 105)]
