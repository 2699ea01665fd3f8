"""One Spark session for all tests in this package: local[2], with Spark's Kafka connector if its jars are available."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fenceline.testing.apache_kafka import DEFAULT_JARS, small_kafka
from tests.conftest import need_java
from tests.spark.sessions import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECTOR = DEFAULT_JARS / "connector"
NEEDS_CONNECTOR = pytest.mark.skipif(
    not list(CONNECTOR.glob("*.jar")), reason="Spark's Kafka connector is missing: run `make jars`"
)


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    need_java()
    jars = ",".join(map(str, sorted(CONNECTOR.glob("*.jar"))))
    settings = {"spark__driver__memory": "1g", "spark__sql__python__filterPushdown__enabled": "true"}
    made = session("local[2]", tmp_path_factory.mktemp("spark"), **settings, **({"spark__jars": jars} if jars else {}))
    yield made
    made.stop()


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


class Broker:
    """A running broker, real Kafka or Fenceline, with helpers for tests."""

    def __init__(self, kind: str, bootstrap: str, log_dir: Path = Path()) -> None:
        from fenceline.client.admin.admin import Admin

        self.kind = kind
        self.log_dir = log_dir
        self.bootstrap = bootstrap
        self.admin = Admin(bootstrap)

    def create(self, topic: str, partitions: int = 1) -> str:
        from fenceline.client.admin.admin import NewTopic

        # Test records are dated 1970: time-based retention would delete them.
        self.admin.create_topics([NewTopic(topic, partitions, 1, {"retention.ms": "-1"})])
        return topic

    def produce(self, topic: str, values: Sequence[int], *, partition: int | None = None) -> None:
        """Records with key `k<value % 5>`, the value as text, and a timestamp of `value` seconds."""
        import pyarrow as pa

        from fenceline.client.producer.producer import Producer

        table = pa.table(
            {
                "key": [f"k{v % 5}" for v in values],
                "value": [str(v) for v in values],
                "timestamp": pa.array([v * 1000 for v in values], pa.int64()),
            }
        )
        with Producer(self.bootstrap) as producer:
            promise = producer.send_arrow(table, topic, key="key", timestamp="timestamp", partition=partition)
            producer.flush()
            promise.result()


@pytest.fixture(scope="package")
def apache_kafka() -> Iterator[Broker]:
    with small_kafka() as kafka:
        yield Broker("kafka", kafka.bootstrap, kafka.log_dir)


@pytest.fixture(scope="package")
def fenceline_node() -> Iterator[Broker]:
    from fenceline.testing.node import EmbeddedNode

    with EmbeddedNode() as node:
        yield Broker("fenceline", node.bootstrap, node.log_dir)


@pytest.fixture(params=["fenceline", pytest.param("kafka", marks=pytest.mark.kafka)])
def broker(request: pytest.FixtureRequest) -> Broker:
    """Each test runs against a Fenceline node and against Apache Kafka."""
    name = "apache_kafka" if request.param == "kafka" else "fenceline_node"
    found = request.getfixturevalue(name)
    assert isinstance(found, Broker)
    return found


@pytest.fixture
def no_idle_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle stream reports that there is no new data immediately, without waiting."""
    from pyspark_fenceline.source import stream

    monkeypatch.setattr(stream, "IDLE_WAIT_MS", 0)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name unique to this test."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", request.node.name)[:180] + f"-{next(_numbers)}"


_numbers = itertools.count()
