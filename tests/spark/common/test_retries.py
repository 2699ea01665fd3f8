"""Temporarily unavailable brokers: on the driver, in a reading task, and in the sink. The cluster is in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import pytest

from fenceline.client.core.errors import BrokersUnreachable, ClientError, ConnectionLost, TimedOut
from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.ids import TopicPartition
from pyspark_fenceline.common import connect
from pyspark_fenceline.common.cluster import TopicFacts
from pyspark_fenceline.common.given_options import GivenOptions
from pyspark_fenceline.common.planning import PlannedRange
from pyspark_fenceline.common.retries import RetryPolicy, retry_policy, with_retries
from pyspark_fenceline.common.schema import spark_schema
from pyspark_fenceline.delta import evidence as delta_evidence
from pyspark_fenceline.delta.options import delta_options
from pyspark_fenceline.source.policy import STRICT
from pyspark_fenceline.source.tasks import RangesPartition, ReadPlan, read_ranges
from tests.spark.delta.test_plan import commit, log_rows, records, table_rows, task, write
from tests.spark.fakes import FakeCluster
from tests.spark.source.test_tasks import FakeReader, use

TP = TopicPartition("t", 0)
THREE = RetryPolicy(3, 0)
NOBODY = BrokersUnreachable("No broker answered within 60000 ms", "Check that the broker runs.")
LOST, LATE = ConnectionLost("h:1 hung up"), TimedOut("h:1 did not answer")
AWAY: list[BrokersUnreachable | ClientError] = [NOBODY, LOST, LATE]


def test_the_options_of_sparks_source_and_their_defaults() -> None:
    assert retry_policy(GivenOptions({})) == RetryPolicy(3, 1000)
    given = {"fetchOffset.numRetries": "7", "fetchoffset.retryintervalms": "0"}
    assert retry_policy(GivenOptions(given)) == RetryPolicy(7, 0)
    assert delta_options({"path": "t", **given}).retries == RetryPolicy(7, 0)
    for name in ("fetchOffset.numRetries", "fetchOffset.retryIntervalMs"):
        for word in ("-1", "many"):
            with pytest.raises(OperatorError, match=name):
                delta_options({"path": "t", name: word})


def failing(times: int, error: Exception) -> Callable[[], int]:
    """Fails `times` times, then returns the number of calls."""
    calls = 0

    def work() -> int:
        nonlocal calls
        calls += 1
        if calls <= times:
            raise error
        return calls

    return work


@pytest.mark.parametrize("error", AWAY)
def test_the_configured_number_of_attempts_is_made(error: Exception) -> None:
    assert with_retries(failing(2, error), THREE) == 3
    with pytest.raises(type(error)) as caught:
        with_retries(failing(3, error), THREE)
    assert ("fetchOffset.numRetries: 3" in str(caught.value)) is (error is NOBODY)


def test_permanent_errors_are_raised_immediately() -> None:
    refused = PeerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "topic t")
    with pytest.raises(PeerError, match="topic t"):
        with_retries(failing(1, refused), THREE)


def test_there_is_a_pause_between_two_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    with_retries(failing(2, LOST), RetryPolicy(3, 250))
    assert pauses == [0.25, 0.25]


# Reading tasks --------------------------------------------------------------------------------------------------------


def read(monkeypatch: pytest.MonkeyPatch, reader: FakeReader) -> list[int]:
    use(monkeypatch, reader)
    schema = spark_schema(include_headers=False, include_leader_epoch=True)
    plan = ReadPlan({"bootstrap.servers": "h:1"}, schema, STRICT, THREE)
    task = RangesPartition((PlannedRange(TP, 0, 40),), {"t": None})
    return [offset for batch in read_ranges(plan, task) for offset in batch.column("offset").to_pylist()]


class UnavailableReader(FakeReader):
    """Brokers that are unavailable before the given offsets, each time for that number of consecutive attempts."""

    def __init__(self, error: Exception, times: Mapping[int, int]) -> None:
        super().__init__()
        self.error, self.left = error, dict(times)
        self._refill()

    def _refill(self) -> None:
        self.troubles = {offset: self.error for offset, left in self.left.items() if left > 0}

    def close(self) -> None:
        # A task closes its connections after each failure that the reader has reported.
        super().close()
        met = next(offset for offset, left in self.left.items() if offset not in self.troubles and left > 0)
        self.left[met] -= 1
        self._refill()


@pytest.mark.parametrize("error", AWAY)
def test_a_task_resumes_at_its_position_when_brokers_return(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    reader = UnavailableReader(error, {20: 2})
    assert read(monkeypatch, reader) == list(range(40))
    assert [asked[TP].start_offset for asked in reader.asked] == [0, 20, 20]


def test_a_task_resets_its_attempts_after_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch, UnavailableReader(NOBODY, {10: 2, 20: 2, 30: 2})) == list(range(40))


@pytest.mark.parametrize("error", AWAY)
def test_a_task_fails_when_brokers_stay_unavailable(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    reader = UnavailableReader(error, {0: 3})
    with pytest.raises(type(error)):
        read(monkeypatch, reader)
    assert len(reader.asked) == 3


@pytest.mark.parametrize("code", [ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
def test_a_task_does_not_retry_permanent_errors(monkeypatch: pytest.MonkeyPatch, code: ErrorCode) -> None:
    reader = UnavailableReader(ClientError(code, "t-0"), {0: 3})
    with pytest.raises(ClientError):
        read(monkeypatch, reader)
    assert len(reader.asked) == 1


# The sink -------------------------------------------------------------------------------------------------------------


class FlakyCluster(FakeCluster):
    """Fails that number of times before each metadata request."""

    away = 0

    def topics(self, names: Collection[str] | None) -> Mapping[str, TopicFacts]:
        if self.away > 0:
            self.away -= 1
            raise NOBODY
        return super().topics(names)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FlakyCluster:
    made = FlakyCluster(t=2)
    monkeypatch.setattr(connect, "connect", lambda _: made)
    monkeypatch.setattr(delta_evidence, "_caches", {})
    made.log("t").append(10)
    return made


def test_a_writing_task_retries(cluster: FlakyCluster) -> None:
    cluster.away = 2
    assert delta_evidence.gather_evidence({}, (), {TP: 0}, THREE).leader_epochs == {TP: 0}
    cluster.away = 3
    with pytest.raises(BrokersUnreachable, match="numRetries: 3"):
        delta_evidence.gather_evidence({}, (), {TP: 0}, THREE)


def test_a_commit_retries(cluster: FlakyCluster, tmp_path: Path) -> None:
    given = {"path": str(tmp_path / "table"), "kafka.bootstrap.servers": "fake"}
    options = delta_options({**given, "fetchOffset.numRetries": "3", "fetchOffset.retryIntervalMs": "0"})
    write(options, 0, records(cluster, 0, 10))
    cluster.log("t").elect(1, keep=7)
    cluster.log("t").append(2)
    # Rows are removed by the answer that the commit itself gets from the leader.
    files, evidence = task(options, records(cluster, 7, 9))
    cluster.away = 3
    with pytest.raises(BrokersUnreachable, match="numRetries: 3"):
        commit(options, 1, files, evidence)
    cluster.away = 2
    commit(options, 1, files, evidence)
    assert cluster.away == 0
    assert table_rows(options) == log_rows(cluster)
