"""A micro-batch is in the topic exactly once, whole, wherever its driver or a task dies (`transactions.md X69-X74`).

Each test runs against a Fenceline node and against Apache Kafka as shipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from fenceline.client import ConsumerRecord, TopicPartition
from fenceline.client.producer import transaction_requests
from fenceline.client.producer.partitioner import partition_of_key
from fenceline.client.producer.transaction_handle import TransactionHandle
from fenceline.client.producer.transaction_owner import AsyncTransactionOwner, TransactionOwner
from fenceline.errors import ErrorCode, OperatorError
from fenceline.wire.apis import ApiKey
from pyspark_fenceline import exactly_once
from pyspark_fenceline.source.exactly_once import ExactlyOnceTopic
from pyspark_fenceline.source.transaction_tasks import PARTITION, SECOND_ATTEMPT, RowPartitioner, TransactionTask
from tests.spark.conftest import Broker
from tests.support.raw import RawConnection
from tests.support.read_to_end import read_to_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
PARTITIONS = 3


class Died(BaseException):
    """The driver's process ends here."""


def rows(spark: SparkSession, name: str, count: int = 40) -> DataFrame:
    return spark.range(count, numPartitions=4).selectExpr("concat('k', id % 7) key", f"concat('{name} ', id) value")


def values(name: str, count: int = 40) -> list[str]:
    return sorted(f"{name} {number}" for number in range(count))


def committed(broker: Broker, topic: str) -> list[str]:
    return sorted((record.value or b"").decode() for record in committed_records(broker, topic))


def committed_records(broker: Broker, topic: str) -> list[ConsumerRecord]:
    return read_to_end(broker.bootstrap, [TopicPartition(topic, index) for index in range(PARTITIONS)])


@pytest.fixture
def made() -> Iterator[list[ExactlyOnceTopic]]:
    """Sinks to close at the end."""
    sinks: list[ExactlyOnceTopic] = []
    yield sinks
    for sink in sinks:
        sink.close()


def sink_of(made: list[ExactlyOnceTopic], broker: Broker, topic: str, **options: str) -> ExactlyOnceTopic:
    given = {"kafka.bootstrap.servers": broker.bootstrap, "topic": topic}
    sink = exactly_once(f"id of {topic}", {**given, **options})
    made.append(sink)
    return sink


def test_batches_are_written_and_replays_are_skipped(
    spark: SparkSession, broker: Broker, topic: str, made: list[ExactlyOnceTopic]
) -> None:
    broker.create(topic, PARTITIONS)
    sink = sink_of(made, broker, topic)
    for number, name in enumerate("abc"):
        sink(rows(spark, name), number)
    sink(rows(spark, "c"), 2)
    expected = sorted(values("a") + values("b") + values("c"))
    assert committed(broker, topic) == expected
    restarted = sink_of(made, broker, topic)
    restarted(rows(spark, "c"), 2)
    assert committed(broker, topic) == expected


def _dies_after_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = AsyncTransactionOwner.begin

    async def begin_and_die(self: Any) -> Any:
        await begin(self)
        raise Died

    monkeypatch.setattr(AsyncTransactionOwner, "begin", begin_and_die)


def _dies_before_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def die(*_: Any) -> Any:
        raise Died

    monkeypatch.setattr(AsyncTransactionOwner, "commit", die)


def _dies_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def die(*_: Any, **__: Any) -> Any:
        raise Died

    monkeypatch.setattr(transaction_requests.TransactionRequests, "end", die)


def _dies_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    end = transaction_requests.TransactionRequests.end

    async def end_and_die(self: Any, *given: Any, **named: Any) -> Any:
        await end(self, *given, **named)
        raise Died

    monkeypatch.setattr(transaction_requests.TransactionRequests, "end", end_and_die)


STEPS = {
    "after begin": (_dies_after_begin, False),
    "before the commit": (_dies_before_the_commit, False),
    "between progress and end": (_dies_before_the_end, False),
    "after the end": (_dies_after_the_end, True),
}


@pytest.mark.parametrize("step", STEPS)
def test_driver_dies(
    spark: SparkSession,
    broker: Broker,
    topic: str,
    made: list[ExactlyOnceTopic],
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    """What readers see after the death is the former state or the next one, and after the replay the next one."""
    broker.create(topic, PARTITIONS)
    sink_of(made, broker, topic)(rows(spark, "a"), 0)
    dies, is_committed = STEPS[step]
    with monkeypatch.context() as patched:
        dies(patched)
        with pytest.raises(Died):
            sink_of(made, broker, topic)(rows(spark, "b"), 1)
    following = sink_of(made, broker, topic)
    following._begin("", 1)
    both = sorted(values("a") + values("b"))
    assert committed(broker, topic) == (both if is_committed else values("a"))
    following(rows(spark, "b"), 1)
    following(rows(spark, "c"), 2)
    assert committed(broker, topic) == sorted(both + values("c"))


def test_task_fails_after_others_have_written(
    spark: SparkSession, broker: Broker, topic: str, made: list[ExactlyOnceTopic]
) -> None:
    broker.create(topic, PARTITIONS)
    sink = sink_of(made, broker, topic)
    broken = rows(spark, "a", 400).selectExpr("key", "if(value = 'a 399', raise_error('broken row'), value) value")
    with pytest.raises(Exception, match="broken row"):
        sink(broken, 0)
    assert committed(broker, topic) == []
    sink(rows(spark, "a"), 0)
    assert committed(broker, topic) == values("a")


def test_batch_is_written_again_if_a_task_ran_twice(
    spark: SparkSession,
    broker: Broker,
    topic: str,
    made: list[ExactlyOnceTopic],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker.create(topic, PARTITIONS)
    sink = sink_of(made, broker, topic)
    write, attempts = ExactlyOnceTopic._write, []

    def write_and_fail_once(self: ExactlyOnceTopic, *given: Any) -> None:
        write(self, *given)
        attempts.append(given)
        if len(attempts) == 1:
            raise RuntimeError(f"Job aborted: {SECOND_ATTEMPT}: attempt 1")

    monkeypatch.setattr(ExactlyOnceTopic, "_write", write_and_fail_once)
    sink(rows(spark, "a"), 0)
    assert len(attempts) == 2
    assert committed(broker, topic) == values("a")


def test_lost_answer_of_the_commit_is_looked_up(
    spark: SparkSession,
    broker: Broker,
    topic: str,
    made: list[ExactlyOnceTopic],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fenceline.client.core.errors import TimedOut

    broker.create(topic, PARTITIONS)
    sink = sink_of(made, broker, topic)
    commit, commits = TransactionOwner.commit, []

    def commit_and_time_out(self: Any, *given: Any) -> Any:
        commits.append(commit(self, *given))
        raise TimedOut("the answer is lost")

    monkeypatch.setattr(TransactionOwner, "commit", commit_and_time_out)
    sink(rows(spark, "a"), 0)
    assert len(commits) == 1, "its progress says that it was committed"
    monkeypatch.undo()
    sink(rows(spark, "b"), 1)
    assert committed(broker, topic) == sorted(values("a") + values("b"))


def test_former_run_is_fenced(spark: SparkSession, broker: Broker, topic: str, made: list[ExactlyOnceTopic]) -> None:
    broker.create(topic, PARTITIONS)
    former, current = sink_of(made, broker, topic), sink_of(made, broker, topic)
    former(rows(spark, "a"), 0)
    current(rows(spark, "b"), 1)
    with pytest.raises(OperatorError, match="Another run"):
        former(rows(spark, "b"), 1)
    assert committed(broker, topic) == sorted(values("a") + values("b"))


@pytest.mark.parametrize("aborts", [1, 3])
def test_transaction_that_the_cluster_has_aborted(
    spark: SparkSession,
    broker: Broker,
    topic: str,
    made: list[ExactlyOnceTopic],
    monkeypatch: pytest.MonkeyPatch,
    aborts: int,
) -> None:
    """By its time-out, or by a leader that recovers: it is no other run (transactions.md X16, X19, X62)."""
    broker.create(topic, PARTITIONS)
    sink = sink_of(made, broker, topic)
    sink(rows(spark, "a"), 0)
    write, attempts = ExactlyOnceTopic._write, []

    def write_and_lose(self: ExactlyOnceTopic, *given: Any) -> None:
        write(self, *given)
        attempts.append(given)
        if len(attempts) <= aborts:
            fence(broker, f"id of {topic}")

    monkeypatch.setattr(ExactlyOnceTopic, "_write", write_and_lose)
    if aborts < 3:
        sink(rows(spark, "b"), 1)
        assert committed(broker, topic) == sorted(values("a") + values("b"))
    else:
        with pytest.raises(OperatorError, match=r"(?s)aborted .* in each of 3 attempts.*transaction.timeout.ms"):
            sink(rows(spark, "b"), 1)
        assert committed(broker, topic) == values("a")


def fence(broker: Broker, transactional_id: str) -> None:
    """As a leader that recovers does: the first request aborts what is open, and no second one follows."""
    fields = {
        "transactional_id": transactional_id,
        "transaction_timeout": timedelta(minutes=1),
        "producer_id": -1,
        "producer_epoch": -1,
    }
    with RawConnection(int(broker.bootstrap.rpartition(":")[2])) as connection:
        answer = connection.call(ApiKey.INIT_PRODUCER_ID, 4, fields)
        assert answer.error_code == ErrorCode.CONCURRENT_TRANSACTIONS


def test_progress_of_another_query_is_refused(
    spark: SparkSession, broker: Broker, topic: str, made: list[ExactlyOnceTopic], monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyspark.md S23: a new checkpoint begins at batch 0, which must not be taken for a replay."""
    broker.create(topic, PARTITIONS)
    for query_id in ("first", "second"):
        monkeypatch.setattr("pyspark_fenceline.source.exactly_once._query_id", lambda _, query_id=query_id: query_id)
        if query_id == "first":
            sink_of(made, broker, topic)(rows(spark, "a"), 0)
        else:
            with pytest.raises(OperatorError, match=r"(?s)another query \(first, up to batch 0\).*consumer group"):
                sink_of(made, broker, topic)(rows(spark, "b"), 0)
    assert committed(broker, topic) == values("a")


def test_partitions_are_those_of_a_producer(
    spark: SparkSession, broker: Broker, topic: str, made: list[ExactlyOnceTopic]
) -> None:
    """By the column, by the key, or any."""
    broker.create(topic, PARTITIONS)
    sink = sink_of(made, broker, topic)
    sink(rows(spark, "keyed"), 0)
    chosen = rows(spark, "chosen").selectExpr("key", "value", "cast(if(key = 'k1', 2, null) as int) partition")
    sink(chosen, 1)
    sink(rows(spark, "none").selectExpr("value"), 2)
    sink(rows(spark, "null").selectExpr("if(key < 'k3', key, null) key", "value"), 3)
    found = committed_records(broker, topic)
    assert len(found) == 160
    for record in found:
        kind = (record.value or b"").split()[0]
        if kind == b"chosen" and record.key == b"k1":
            assert record.partition == 2
        elif record.key is not None:
            assert record.partition == partition_of_key(record.key, PARTITIONS)
    assert {record.partition for record in found if (record.value or b"").startswith(b"none")} == {0, 1, 2}


def test_task_refuses_to_write_a_partition_twice(broker: Broker, topic: str) -> None:
    """transactions.md X72: the leader might take a second writer for a retry of the first."""
    broker.create(topic, PARTITIONS)
    client = {"bootstrap.servers": broker.bootstrap}
    batch = pa.RecordBatch.from_pydict({"value": ["a", "b"], PARTITION: pa.array([0, 1], pa.int32())})
    with TransactionOwner(dict(client), "twice") as owner:
        handle = owner.begin()
        task = TransactionTask(client, topic, handle, [])
        assert [each.to_pydict() for each in task(iter([batch]))] == [{"records": [2]}]
        with pytest.raises(OperatorError, match=SECOND_ATTEMPT):
            list(task(iter([batch])))
        handle = owner.commit(handle, {TopicPartition(topic, 0): 1})
        again = TransactionTask(client, topic, handle, [])
        assert list(again(iter([batch]))), "the next transaction may, after the end marker with its epoch"
        owner.abort(handle)


def test_second_attempt_of_a_task_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Second:
        @staticmethod
        def get() -> Any:
            return type("Context", (), {"attemptNumber": lambda _: 1})()

    monkeypatch.setattr("pyspark.taskcontext.TaskContext", Second)
    task = TransactionTask({}, "t", TransactionHandle("id", 1, 0), [])
    with pytest.raises(OperatorError, match=SECOND_ATTEMPT):
        list(task(iter([pa.RecordBatch.from_pydict({"value": ["a"], PARTITION: [0]})])))
    assert [each.to_pydict() for each in task(iter([]))] == [{"records": [0]}], "an empty task has written nothing"


@pytest.mark.parametrize(("chosen", "message"), [([3], "outside 0 to 2"), ([-1], "outside 0 to 2"), ([None, 2], None)])
def test_partition_column_is_checked(chosen: list[int | None], message: str | None) -> None:
    partitioner = RowPartitioner(3, 0)
    given = pa.array(chosen, pa.int32())
    if message is None:
        assert partitioner(None, given, len(chosen), 1).to_pylist() == [1, 2]
    else:
        with pytest.raises(OperatorError, match=message):
            partitioner(None, given, len(chosen), 0)


@pytest.mark.parametrize(
    ("transactional_id", "options", "message"),
    [
        (" ", {"topic": "t"}, "transactional id is empty"),
        ("id", {}, "Option 'topic' is required"),
        ("id", {"topic": "t", "kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers"),
        ("id", {"topic": "t", "kafka.key.serializer": "x"}, "key.serializer"),
    ],
)
def test_options_are_checked(transactional_id: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        exactly_once(transactional_id, {"kafka.bootstrap.servers": "b:9092", **options})


def test_topic_that_does_not_exist(spark: SparkSession, fenceline_node: Broker, made: list[ExactlyOnceTopic]) -> None:
    sink = sink_of(made, fenceline_node, "nowhere")
    with pytest.raises(OperatorError, match="nowhere does not exist"):
        sink(rows(spark, "a"), 0)
