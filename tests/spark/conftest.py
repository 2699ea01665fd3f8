"""One Spark session for all tests here: local[2], with Spark's own Kafka connector when its jars are there."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fenceline.testing.apache_kafka import DEFAULT_JARS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECTOR = DEFAULT_JARS / "connector"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    if shutil.which("java") is None:
        pytest.skip("Java is missing")
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    root = tmp_path_factory.mktemp("spark")
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("fenceline-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(root / "warehouse"))
        .config("spark.local.dir", str(root / "local"))
        .config("spark.log.level", "ERROR")
        .config("spark.sql.python.filterPushdown.enabled", "true")
    )
    jars = sorted(CONNECTOR.glob("*.jar"))
    if jars:
        builder = builder.config("spark.jars", ",".join(map(str, jars)))
    session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")
