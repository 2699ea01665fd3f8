"""kill -9 of a whole driver (Python, JVM, workers) in the middle of a stream, and what the table holds then."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.conftest import need_java
from tests.spark.conftest import Broker

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
ROWS = 4500


def start(broker: Broker, topic: str, table: str, checkpoint: str, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.spark.killed_query", broker.bootstrap, topic, table, checkpoint]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    with log.open("ab") as output:
        # A session of its own, so that the JVM and the workers die with it.
        return subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )


def commits(table: str) -> int:
    return len(list(Path(table, "_delta_log").glob("*.json")))


@pytest.mark.parametrize(
    ("seed", "kills"), [(1, 1), *(pytest.param(seed, 3, marks=pytest.mark.soak) for seed in range(2, 8))]
)
def test_a_killed_query_lands_every_row_once(
    fenceline_node: Broker, topic: str, tmp_path: Path, checkpoint: str, seed: int, kills: int
) -> None:
    need_java()
    chance = random.Random(seed)
    fenceline_node.create(topic, 3)
    for partition in range(3):
        fenceline_node.produce(topic, range(ROWS // 3), partition=partition)
    table, log = str(tmp_path / "table"), tmp_path / "log"
    for _ in range(kills):
        victim = start(fenceline_node, topic, table, checkpoint, log)
        try:
            wanted = commits(table) + chance.randint(2, 3)
            while commits(table) < wanted and victim.poll() is None:
                time.sleep(0.005)
            time.sleep(chance.random() * 0.3)
            assert victim.poll() is None, f"it ended by itself:\n{log.read_text()[-4000:]}"
        finally:
            os.killpg(victim.pid, signal.SIGKILL)
            victim.wait()
    last = start(fenceline_node, topic, table, checkpoint, log)
    try:
        assert last.wait(200) == 0, log.read_text()[-4000:]
    finally:
        if last.poll() is None:
            os.killpg(last.pid, signal.SIGKILL)
            last.wait()
    rows = DeltaTable(table).to_pyarrow_table(columns=["partition", "offset"]).to_pylist()
    found = sorted((row["partition"], row["offset"]) for row in rows)
    assert found == [(partition, offset) for partition in range(3) for offset in range(ROWS // 3)], f"seed {seed}"
