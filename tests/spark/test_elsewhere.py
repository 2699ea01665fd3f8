"""The same source and sink, unchanged, on a standalone Spark cluster and through Spark Connect, in separate
processes."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from fenceline.ids import TopicPartition
from fenceline.testing.node import EmbeddedNode
from tests.conftest import need_java, unavailable
from tests.spark.conftest import Broker
from tests.spark.cut_log import restart_cut
from tests.spark.elsewhere_query import CUT, DONE, PLANNED
from tests.spark.own_process import driver
from tests.spark.sessions import CONNECT
from tests.spark.standalone_cluster import standalone_cluster

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.together("spark elsewhere"), pytest.mark.timeout(600)]
TOPIC = "t"


@pytest.fixture
def node() -> Iterator[EmbeddedNode]:
    """A topic that begins at offset 7, and one whose log is truncated at offset 100 of 150."""
    with EmbeddedNode() as running:
        broker = Broker("fenceline", running.bootstrap)
        broker.create(TOPIC, 2)
        broker.produce(TOPIC, range(100), partition=0)
        broker.produce(TOPIC, range(50), partition=1)
        broker.admin.delete_records({TopicPartition(TOPIC, 0): 7})
        broker.create(CUT)
        broker.produce(CUT, range(100))
        broker.produce(CUT, range(100, 150))
        broker.admin.close()
        yield running


def run(where: str, node: EmbeddedNode, folder: Path) -> dict[str, Any]:
    """The results of the queries."""
    with driver("elsewhere_query", folder, where, node.bootstrap, TOPIC) as running:
        running.until((folder / PLANNED).exists, "plan")
        restart_cut(node, CUT, 100)
        Broker("fenceline", node.bootstrap).produce(CUT, range(1000, 1100))
        (folder / DONE).touch()
        running.await_success(550)
        found = json.loads([line for line in running.printed.splitlines() if line.startswith("{")][-1])
    assert isinstance(found, dict)
    return found


def check(found: dict[str, Any], folder: Path) -> None:
    rows = [[0, offset, 0] for offset in range(7, 100)] + [[1, offset, 0] for offset in range(50)]
    assert found["batch"] == rows
    assert found["stream"] == rows
    assert found["batches"] > 2
    assert found["losses"] == [["OFFSETS_EXPIRED", 0, 0, 7]]
    reported = found["truncated"]
    assert reported["first"] == [["LOG_TRUNCATED", 100, 150, "executor"]], reported["first text"]
    assert reported["replay"] == [["LOG_TRUNCATED", 100, 150, "driver"]], reported["replay text"]
    assert reported["rewound"] == [["LOG_TRUNCATED", 100, 150, "driver"]]
    assert reported["values"] == [*range(100), *range(1000, 1100)]
    table = DeltaTable(str(folder / "table")).to_pyarrow_table().sort_by("offset")
    assert [int(value) for value in table["value"].to_pylist()] == [*range(100), *range(1000, 1100)]
    assert table["offset"].to_pylist() == list(range(200))


def test_a_standalone_cluster(node: EmbeddedNode, tmp_path: Path) -> None:
    need_java()
    with standalone_cluster(tmp_path / "cluster") as master:
        found = run(master, node, tmp_path)
    assert found["executors"] == 2
    check(found, tmp_path)


def test_spark_connect(node: EmbeddedNode, tmp_path: Path) -> None:
    need_java()
    if importlib.util.find_spec("grpc") is None:
        unavailable("pyspark[connect] is not installed")
    check(run(CONNECT, node, tmp_path), tmp_path)
