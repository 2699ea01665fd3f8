"""A small Spark session, with Spark's own Kafka connector if `SPARK_KAFKA_JARS` names a folder with its jars."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def connector_jars() -> list[str]:
    folder = os.environ.get("SPARK_KAFKA_JARS")
    return [] if folder is None else [str(each) for each in sorted(Path(folder).glob("*.jar"))]


@pytest.fixture(scope="session")
def spark(connector_jars: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    scratch = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.local.dir": str(scratch / "local"),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={scratch} -XX:TieredStopAtLevel=1",
        "spark.log.level": "ERROR",
        "spark.jars": ",".join(connector_jars),
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    yield made
    made.stop()
