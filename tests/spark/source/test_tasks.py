"""How a task handles the client's answers; the client is a fake."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from fenceline.client.core.epoch_history import EpochStart
from fenceline.client.core.errors import (
    ClientError,
    EpochMismatchError,
    LogTruncationError,
    OffsetOutOfRangeError,
    TopicReplacedError,
)
from fenceline.errors import ErrorCode
from fenceline.ids import TopicPartition, encode_uuid
from pyspark_fenceline.common import connect
from pyspark_fenceline.common.planning import PlannedRange
from pyspark_fenceline.common.schema import arrow_schema, spark_schema
from pyspark_fenceline.errors import DataLossError, LossKind
from pyspark_fenceline.source.policy import LENIENT, STRICT, LossPolicy
from pyspark_fenceline.source.tasks import RangesPartition, ReadPlan, read_ranges
from tests.spark.fakes import FakeCluster, FakeLog

TP = TopicPartition("t", 0)
ID = UUID(int=7)


class FakeReader:
    """Returns ranges in batches of ten; each of `troubles` is raised once, before the offset that is its key."""

    def __init__(self, log_start: int = 0, troubles: Mapping[int, Exception] | None = None) -> None:
        self.log_start = log_start
        self.troubles = dict(troubles or {})
        self.asked: list[dict[TopicPartition, Any]] = []
        self.closed = 0

    def close(self) -> None:
        self.closed += 1

    def read(
        self, ranges: dict[TopicPartition, Any], *, progress: dict[TopicPartition, int], **columns: Any
    ) -> Iterator[pa.RecordBatch]:
        self.asked.append(ranges)
        assert columns["timestamp_unit"] == "us"
        for tp, wanted in ranges.items():
            offset = wanted.start_offset
            while offset < wanted.end_offset_exclusive:
                end = min(offset + 10, wanted.end_offset_exclusive)
                for trouble in [at for at in self.troubles if offset <= at < end]:
                    raise self.troubles.pop(trouble)
                progress[tp] = end
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


def use(monkeypatch: pytest.MonkeyPatch, reader: FakeReader, cluster: FakeCluster | None = None) -> FakeReader:
    """`cluster`: the leader that tasks query for truncations; by default a log with 12 records of epoch 2, then 40
    of epoch 9."""
    if cluster is None:
        cluster = FakeCluster(t=2)
        cluster.logs[TP] = FakeLog([2] * 12 + [9] * 40, leader_epoch=9)
    monkeypatch.setattr(connect, "connect", lambda properties: cluster)
    monkeypatch.setattr(connect, "reader", lambda properties: reader)
    monkeypatch.setattr(connect, "forget", lambda kind, properties: reader.close())
    return reader


def offsets(
    task: tuple[PlannedRange, ...],
    *,
    strict: bool = True,
    schema: StructType | None = None,
    policy: LossPolicy | None = None,
) -> list[int]:
    schema = schema or spark_schema(include_headers=False, include_leader_epoch=True)
    plan = ReadPlan({"bootstrap.servers": "h:1"}, schema, policy or (STRICT if strict else LENIENT))
    found: list[int] = []
    for batch in read_ranges(plan, RangesPartition(task, {"t": encode_uuid(ID)}, "here")):
        assert batch.schema.equals(arrow_schema(schema))
        found += batch.column("offset").to_pylist()
    return found


def test_a_range_is_read_with_the_epochs_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = use(monkeypatch, FakeReader())
    assert offsets((PlannedRange(TP, 5, 25, 2, 3),)) == list(range(5, 25))
    (asked,) = reader.asked
    assert (asked[TP].leader_epoch, asked[TP].max_leader_epoch, asked[TP].topic_id) == (2, 3, ID)


def test_splits_of_one_partition_are_read_sequentially(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = use(monkeypatch, FakeReader())
    assert offsets((PlannedRange(TP, 0, 5), PlannedRange(TP, 10, 15))) == [*range(5), *range(10, 15)]
    assert len(reader.asked) == 2


def test_only_chosen_columns_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, FakeReader())
    whole = spark_schema(include_headers=False, include_leader_epoch=False)
    assert offsets((PlannedRange(TP, 0, 3),), schema=StructType([whole["offset"], whole["key"]])) == [0, 1, 2]


def test_the_placeholder_partition_of_spark_reads_nothing() -> None:
    plan = ReadPlan({}, spark_schema(include_headers=False, include_leader_epoch=False), STRICT)
    assert list(read_ranges(plan, InputPartition(None))) == []


EPOCHS = (EpochStart(2, 0), EpochStart(3, 15))
CUT = LogTruncationError("t", 0, 20, 3, divergent_offset=18, divergent_epoch=2)
TROUBLES = [
    (CUT, LossKind.LOG_TRUNCATED, 40, 12),
    (LogTruncationError("t", 0, 20, 3), LossKind.LOG_TRUNCATED, 40, 12),
    (EpochMismatchError("t", 0, 22, 5, 3), LossKind.LOG_TRUNCATED, 40, 12),
    (OffsetOutOfRangeError("t", 0, 20, log_start_offset=25, log_end_offset=90), LossKind.OFFSETS_EXPIRED, 20, None),
    (OffsetOutOfRangeError("t", 0, 20, log_start_offset=0, log_end_offset=20), LossKind.LOG_TRUNCATED, 40, 12),
    (TopicReplacedError("t", ID, UUID(int=8)), LossKind.TOPIC_RECREATED, 20, None),
]


@pytest.mark.parametrize(("trouble", "kind", "offset", "divergence"), TROUBLES)
def test_client_errors_become_losses_with_the_range_of_the_leader(
    monkeypatch: pytest.MonkeyPatch, trouble: ClientError, kind: LossKind, offset: int, divergence: int | None
) -> None:
    reader = use(monkeypatch, FakeReader(troubles={20: trouble}))
    with pytest.raises(DataLossError) as caught:
        offsets((PlannedRange(TP, 0, 40, -1, 3, EPOCHS),))
    (loss,) = caught.value.losses
    assert (loss.kind, loss.offset, loss.divergent_offset) == (kind, offset, divergence)
    assert (loss.cluster_id, loss.found_cluster_id) == ("here", None)
    assert reader.closed == 1


@pytest.mark.parametrize("strict", [True, False])
def test_other_errors_are_raised_unchanged(monkeypatch: pytest.MonkeyPatch, strict: bool) -> None:
    refusal = ClientError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no")
    reader = use(monkeypatch, FakeReader(troubles={20: refusal}))
    with pytest.raises(ClientError, match="no"):
        offsets((PlannedRange(TP, 0, 40),), strict=strict)
    assert reader.closed == 1


def test_tolerated_expired_records_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    expired = OffsetOutOfRangeError("t", 0, 20, log_start_offset=25, log_end_offset=90)
    use(monkeypatch, FakeReader(troubles={20: expired}))
    assert offsets((PlannedRange(TP, 0, 40),), strict=False) == [*range(20), *range(25, 40)]


def test_a_tolerated_truncated_range_ends_and_others_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, FakeReader(troubles={20: CUT}))
    other = PlannedRange(TopicPartition("t", 1), 100, 105)
    assert offsets((PlannedRange(TP, 0, 40, -1, 3, EPOCHS), other), strict=False) == [*range(20), *range(100, 105)]


@pytest.mark.parametrize("trouble", [CUT, TopicReplacedError("t", ID, UUID(int=8))])
def test_a_query_without_a_next_plan_must_fail(monkeypatch: pytest.MonkeyPatch, trouble: ClientError) -> None:
    use(monkeypatch, FakeReader(troubles={20: trouble}))
    with pytest.raises(DataLossError, match="run the query again"):
        offsets((PlannedRange(TP, 0, 40, -1, 3, EPOCHS),), policy=LENIENT.for_one_batch())
    expired = OffsetOutOfRangeError("t", 0, 20, log_start_offset=25, log_end_offset=90)
    use(monkeypatch, FakeReader(troubles={20: expired}))
    assert offsets((PlannedRange(TP, 0, 40),), policy=LENIENT.for_one_batch()) == [*range(20), *range(25, 40)]
    use(monkeypatch, FakeReader(troubles={20: expired}))
    with pytest.raises(DataLossError, match="onExpired"):
        offsets((PlannedRange(TP, 0, 40),), policy=STRICT.for_one_batch())


def test_a_tolerated_range_is_read_up_to_the_next_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan rewinds to 12, and the records below must still be read: ending here would lose them silently."""
    behind = OffsetOutOfRangeError("t", 0, 5, log_start_offset=0, log_end_offset=5)
    use(monkeypatch, FakeReader(troubles={5: behind}))
    assert offsets((PlannedRange(TP, 0, 40, -1, 3, EPOCHS),), strict=False) == list(range(12))


@pytest.mark.parametrize("strict", [True, False])
def test_a_lagging_log_is_no_truncation(monkeypatch: pytest.MonkeyPatch, strict: bool) -> None:
    cluster = FakeCluster(t=1)
    cluster.logs[TP] = FakeLog([2] * 15 + [3] * 25, leader_epoch=3)
    behind = OffsetOutOfRangeError("t", 0, 20, log_start_offset=0, log_end_offset=20)
    use(monkeypatch, FakeReader(troubles={20: behind}), cluster)
    with pytest.raises(OffsetOutOfRangeError):
        offsets((PlannedRange(TP, 0, 40, -1, 3, EPOCHS),), strict=strict)


@pytest.mark.parametrize("trouble", [CUT, EpochMismatchError("t", 0, 22, 5, 3)])
def test_records_the_leader_does_not_confirm_are_read_again(
    monkeypatch: pytest.MonkeyPatch, trouble: ClientError
) -> None:
    cluster = FakeCluster(t=1)
    cluster.logs[TP] = FakeLog([2] * 15 + [3] * 25, leader_epoch=3)
    use(monkeypatch, FakeReader(troubles={20: trouble}), cluster)
    assert offsets((PlannedRange(TP, 0, 40, -1, 3, EPOCHS),)) == list(range(40))


def test_a_range_without_epochs_ends_at_the_log_end(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = OffsetOutOfRangeError("t", 0, 20, log_start_offset=0, log_end_offset=20)
    use(monkeypatch, FakeReader(troubles={20: gone}))
    assert offsets((PlannedRange(TP, 0, 40),), strict=False) == list(range(20))


def test_a_recreated_topic_is_left_to_the_next_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, FakeReader(troubles={20: TopicReplacedError("t", ID, UUID(int=8))}))
    found = offsets((PlannedRange(TP, 0, 40, -1, 3, EPOCHS), PlannedRange(TopicPartition("t", 1), 0, 5)), strict=False)
    assert found == list(range(20))
