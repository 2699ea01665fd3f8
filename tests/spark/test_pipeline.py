"""The example of a Spark Declarative Pipeline, run as by a user: source and sink in a pipeline's spec."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pyspark
import pytest
from deltalake import DeltaTable

from fenceline.testing.node import EmbeddedNode
from pyspark_fenceline.auditing.table import audit_here, settings
from tests.conftest import need_java, unavailable
from tests.spark.conftest import Broker
from tests.spark.cut_log import restart_cut
from tests.spark.own_process import started
from tests.spark.sessions import QUICK_JVM

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.together("spark elsewhere"), pytest.mark.timeout(600)]
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "pipeline"
PATIENCE_S = 280


def run(folder: Path, broker: Broker) -> None:
    """One run, which ends when all available records have been read."""
    text = (EXAMPLE / "spark-pipeline.yml").read_text()
    for placeholder, value in {
        "file:///tmp/flights-pipeline": f"file://{folder}/storage",
        "localhost:9092": broker.bootstrap,
        "/tmp/flights": f"{folder}/table",
    }.items():
        assert placeholder in text
        text = text.replace(placeholder, value)
    (folder / "spark-pipeline.yml").write_text(text)
    (folder / "storage").mkdir(exist_ok=True)
    shutil.copytree(EXAMPLE / "transformations", folder / "transformations", dirs_exist_ok=True)
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-pipelines"), "run", "--spec", "spark-pipeline.yml"]
    environment = {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": f"{QUICK_JVM} -Djava.io.tmpdir={folder}",
    }
    with started(command, folder / "run.log", environment, cwd=folder) as running:
        running.await_success(PATIENCE_S)


def test_the_table_of_the_pipeline_stays_equal_to_the_log(tmp_path: Path) -> None:
    need_java()
    if importlib.util.find_spec("grpc") is None or importlib.util.find_spec("yaml") is None:
        unavailable("pyspark[pipelines] is not installed")
    table, topic = str(tmp_path / "table"), "flights"
    with EmbeddedNode() as node:
        broker = Broker("fenceline", node.bootstrap)
        broker.create(topic)
        broker.produce(topic, range(100))
        broker.produce(topic, range(100, 150))
        run(tmp_path, broker)
        assert audit_here(table, settings(broker.bootstrap, topic)).verdict.is_equal
        assert DeltaTable(table).to_pyarrow_table().num_rows == 150
        restart_cut(node, topic, 100)
        # The topic is idle: the sink reads which rows may be removed from the checkpoint in the pipeline's storage.
        run(tmp_path, Broker("fenceline", node.bootstrap))
        assert audit_here(table, settings(node.bootstrap, topic)).verdict.is_equal
        lines = DeltaTable(table).to_pyarrow_table().sort_by("offset").column("line").to_pylist()
        assert lines == [str(number) for number in range(100)]
