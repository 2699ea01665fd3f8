"""kill -9 of a whole driver (Python, JVM, workers) in the middle of a stream, and what the table holds then."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deltalake import DeltaTable

from fenceline.testing import reaper
from tests.conftest import need_java
from tests.spark.conftest import Broker
from tests.spark.killed_query import ROWS_A_BATCH

# A driver and a JVM of its own: it need not wait for the others of Spark.
pytestmark = [pytest.mark.spark, pytest.mark.together("killed driver"), pytest.mark.timeout(300)]
ROWS = 3000


@contextmanager
def driver(
    broker: Broker, topic: str, table: str, checkpoint: str, scratch: Path, end: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A driver that works; killed at the end, with its JVM and its workers."""
    scratch.mkdir(exist_ok=True)
    arguments = (broker.bootstrap, topic, table, checkpoint, str(scratch), end)
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    with (scratch / "log").open("ab") as output:
        # A session of its own, so that the JVM and the workers die with it.
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.killed_query", *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    reaper.watch_process(process.pid)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reaper.forget_process(process.pid)


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
    table, scratch = str(tmp_path / "table"), tmp_path / "scratch"
    for _ in range(kills):
        with driver(fenceline_node, topic, table, checkpoint, scratch, "endless") as victim:
            wanted = min(commits(table) + chance.randint(2, 3), ROWS // ROWS_A_BATCH - 1)
            while commits(table) < wanted and victim.poll() is None:
                time.sleep(0.005)
            time.sleep(chance.random() * 0.3)
            assert victim.poll() is None, f"it ended by itself:\n{(scratch / 'log').read_text()[-4000:]}"
    with driver(fenceline_node, topic, table, checkpoint, scratch, "done") as last:
        assert last.wait(250) == 0, (scratch / "log").read_text()[-4000:]
    rows = DeltaTable(table).to_pyarrow_table(columns=["partition", "offset"]).to_pylist()
    found = sorted((row["partition"], row["offset"]) for row in rows)
    assert found == [(partition, offset) for partition in range(3) for offset in range(ROWS // 3)], f"seed {seed}"
