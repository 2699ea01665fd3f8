"""kill -9 of a whole driver (Python, JVM, workers) in the middle of a stream, and the content of the table
afterwards."""

from __future__ import annotations

import random
import time
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.conftest import need_java
from tests.spark.conftest import Broker
from tests.spark.killed_query import ROWS_A_BATCH
from tests.spark.own_process import driver

# A separate driver and JVM: it need not wait for the other tests of Spark.
pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.together("killed driver"), pytest.mark.timeout(300)]
ROWS = 3000


def commits(table: str) -> int:
    return len(list(Path(table, "_delta_log").glob("*.json")))


def has_commits(table: str, count: int) -> bool:
    return commits(table) >= count


@pytest.mark.parametrize(
    ("seed", "kills"), [(1, 1), *(pytest.param(seed, 3, marks=pytest.mark.soak) for seed in range(2, 8))]
)
def test_a_killed_query_writes_every_row_once(
    fenceline_node: Broker, topic: str, tmp_path: Path, checkpoint: str, seed: int, kills: int
) -> None:
    need_java()
    chance = random.Random(seed)
    fenceline_node.create(topic, 3)
    for partition in range(3):
        fenceline_node.produce(topic, range(ROWS // 3), partition=partition)
    table, folder = str(tmp_path / "table"), tmp_path / "scratch"
    given = (fenceline_node.bootstrap, topic, table, checkpoint)
    for _ in range(kills):
        with driver("killed_query", folder, *given, "endless") as victim:
            wanted = min(commits(table) + chance.randint(2, 3), ROWS // ROWS_A_BATCH - 1)
            victim.until(partial(has_commits, table, wanted), f"{wanted} commits")
            time.sleep(chance.random() * 0.3)
            assert not victim.has_ended, victim.log_tail
    with driver("killed_query", folder, *given, "done") as last:
        last.await_success()
    rows = DeltaTable(table).to_pyarrow_table(columns=["partition", "offset"]).to_pylist()
    found = sorted((row["partition"], row["offset"]) for row in rows)
    assert found == [(partition, offset) for partition in range(3) for offset in range(ROWS // 3)], f"seed {seed}"
