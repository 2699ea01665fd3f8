"""kill -9 between any two steps of a batch, of a Python worker or of the whole driver, while the table is repaired.

The table starts with rows that the stream reads again and with rows that are not in the log, so that every batch
rewrites files. In the end it must equal the log, row by row.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from fenceline.client.reader.reader import RangeReader
from fenceline.ids import TopicPartition
from fenceline.testing.node import EmbeddedNode
from tests.conftest import need_java
from tests.spark.conftest import Broker
from tests.spark.kill_plans import SLEEPER, STAND_STILL
from tests.spark.killed_steps import ROWS_A_BATCH, plans
from tests.spark.own_process import driver

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.together("killed steps"), pytest.mark.timeout(3600)]
PARTITIONS = 2
BATCHES = 8
ROWS = ROWS_A_BATCH * BATCHES // PARTITIONS


@pytest.fixture
def restarted(tmp_path: Path) -> Iterator[Broker]:
    """A node whose topic `t` has two epochs."""
    with EmbeddedNode() as node:
        broker = Broker("fenceline", node.bootstrap)
        broker.create("t", PARTITIONS)
        for partition in range(PARTITIONS):
            broker.produce("t", range(ROWS // 2), partition=partition)
        node.stop()
        node.start()
        broker = Broker("fenceline", node.bootstrap)
        for partition in range(PARTITIONS):
            broker.produce("t", range(ROWS // 2, ROWS), partition=partition)
        yield broker


def of_log(broker: Broker) -> pa.Table:
    with RangeReader({"bootstrap.servers": broker.bootstrap}) as reader:
        ranges = {TopicPartition("t", partition): (0, ROWS) for partition in range(PARTITIONS)}
        rows = pa.Table.from_batches(list(reader.read(ranges)))
    order = ["key", "value", "topic", "partition", "offset", "timestamp", "timestamp_type", "leader_epoch"]
    named = rows.select(order).rename_columns([{"timestamp_type": "timestampType"}.get(name, name) for name in order])
    return named.sort_by([("partition", "ascending"), ("offset", "ascending")])


def corrupted(rows: pa.Table) -> pa.Table:
    """Every fourth record as the log has it, and every eighth in the epoch of the log's other half."""
    offsets = rows["offset"]
    fourth = rows.filter(pa.compute.equal(pa.compute.bit_wise_and(offsets, 3), 0))
    eighth = rows.filter(pa.compute.equal(pa.compute.bit_wise_and(offsets, 7), 5))
    first, second = sorted(set(rows["leader_epoch"].to_pylist()))
    other = pa.compute.subtract(pa.scalar(first + second, pa.int32()), eighth["leader_epoch"])
    wrong = eighth.set_column(eighth.schema.get_field_index("leader_epoch"), "leader_epoch", other)
    return pa.concat_tables([fourth, wrong]).sort_by([("partition", "ascending"), ("offset", "ascending")])


def is_claimed(plan: Path) -> bool:
    return not plan.exists()


@pytest.mark.parametrize(
    ("seed", "worker_kills", "driver_kills"),
    [(1, 3, 1), pytest.param(2, 50, 50, marks=pytest.mark.soak)],
)
def test_a_process_killed_at_any_step_leaves_the_table_equal_to_the_log(
    restarted: Broker, tmp_path: Path, checkpoint: str, seed: int, worker_kills: int, driver_kills: int
) -> None:
    need_java()
    chance = random.Random(seed)
    folder, scratch, table = tmp_path / "plans", tmp_path / "scratch", str(tmp_path / "table")
    folder.mkdir()
    expected = of_log(restarted)
    waiting = [f"driver {chance.choice(plans('driver'))}" for _ in range(driver_kills)]
    waiting += [f"executor {chance.choice(plans('executor'))}" for _ in range(worker_kills)]
    chance.shuffle(waiting)
    done = rounds = 0
    while waiting or not done:
        # Each round is a separate query, on a table that is corrupted again.
        rounds += 1
        place, state = f"{table}-{rounds}", f"{checkpoint}-{rounds}"
        if not (waiting and waiting[-1].endswith(" table")):
            # Otherwise the query creates the table.
            write_deltalake(place, corrupted(expected), partition_by=["topic", "partition"] if rounds % 2 else None)
        while True:
            with driver("killed_steps", scratch, restarted.bootstrap, "t", place, state, folder) as victim:
                while waiting and not victim.has_ended:
                    plan = folder / waiting[-1]
                    plan.touch()
                    if not victim.meets(partial(is_claimed, plan), plan.name):
                        plan.unlink(missing_ok=True)
                        break
                    waiting.pop()
                    done += 1
                if (code := victim.wait()) == 0:
                    break
                assert code == -signal.SIGKILL, victim.log_tail
        check(place, expected)
    assert done == worker_kills + driver_kills


@pytest.mark.parametrize(
    "step",
    [
        "before entry",
        *(
            pytest.param(plan, marks=pytest.mark.soak)
            for plan in plans("driver")
            if plan not in ("before entry", "after left-overs") and not plan.endswith(" table")
        ),
    ],
)
def test_a_suspended_driver_resumed_after_a_takeover_changes_nothing(
    restarted: Broker, tmp_path: Path, checkpoint: str, step: str
) -> None:
    """The driver is suspended in the middle of a commit. Another one runs the query to its end, from the same
    checkpoint."""
    need_java()
    folder, scratch, table = tmp_path / "plans", tmp_path / "scratch", str(tmp_path / "table")
    folder.mkdir()
    expected = of_log(restarted)
    write_deltalake(table, corrupted(expected), partition_by=["topic", "partition"])
    plan = folder / f"driver {step}"
    plan.write_text(STAND_STILL)
    given = (restarted.bootstrap, "t", table, checkpoint, folder)
    with driver("killed_steps", scratch, *given) as zombie:
        zombie.until(partial(is_claimed, plan), step)
        with driver("killed_steps", tmp_path / "another", *given) as successor:
            successor.await_success()
        check(table, expected)
        version = DeltaTable(table).version()
        os.kill(int((folder / SLEEPER).read_text()), signal.SIGCONT)
        # Spark rejects the zombie's commit of the batch, or the zombie finds nothing left to do.
        zombie.wait()
        check(table, expected)
        assert DeltaTable(table).version() == version


def check(table: str, expected: pa.Table) -> None:
    found = DeltaTable(table).to_pyarrow_table().select(expected.column_names)
    found = found.sort_by([("partition", "ascending"), ("offset", "ascending")]).cast(expected.schema)
    assert found.equals(expected), table
