"""kill -9 of a whole driver (Python, JVM, workers) while it copies a topic exactly once, at any moment of a batch.

Rules: transactions.md X69-X72. Runs against a Fenceline node and against Apache Kafka as shipped.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from fenceline.client import TopicPartition
from tests.conftest import need_java
from tests.spark.conftest import Broker
from tests.spark.exactly_once_query import ROWS_A_BATCH
from tests.spark.own_process import driver
from tests.support.read_to_end import read_to_end

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.together("killed driver")]
PARTITIONS = 3


def committed(broker: Broker, topic: str) -> Counter[bytes]:
    partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
    return Counter(record.value or b"" for record in read_to_end(broker.bootstrap, partitions))


@pytest.mark.timeout(3_000)
@pytest.mark.parametrize(("seed", "kills"), [(1, 1), pytest.param(2, 50, marks=pytest.mark.soak)])
def test_killed_query_writes_every_row_once_and_whole_batches(
    broker: Broker, topic: str, tmp_path: Path, checkpoint: str, seed: int, kills: int
) -> None:
    """Each kill follows at least one more batch, at a random time of the next ones."""
    need_java()
    chance = random.Random(seed)
    rows = ROWS_A_BATCH * (6 * kills + 6)
    source, target = broker.create(f"{topic}-in", PARTITIONS), broker.create(f"{topic}-out", PARTITIONS)
    for partition in range(PARTITIONS):
        broker.produce(source, range(rows // PARTITIONS), partition=partition)
    given = (broker.bootstrap, source, target, checkpoint)
    for _ in range(kills):
        before = committed(broker, target).total()
        assert before % ROWS_A_BATCH == 0, "a batch is there whole or not at all"
        with driver("exactly_once_query", tmp_path / "scratch", *given, "endless") as victim:
            victim.until(lambda before=before: committed(broker, target).total() > before, "one more batch")  # type: ignore[misc]
            time.sleep(chance.random())
            assert not victim.has_ended, victim.log_tail
    with driver("exactly_once_query", tmp_path / "scratch", *given, "done") as last:
        last.await_success()
    expected = {
        f"{partition} {offset}".encode(): 1 for partition in range(PARTITIONS) for offset in range(rows // PARTITIONS)
    }
    assert committed(broker, target) == expected, f"seed {seed}"
