"""Spark sessions of the tests: small, quiet, with no files outside the test's folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECT: Final = "connect"
# Tests are too short to benefit from a better compiler.
QUICK_JVM: Final = "-XX:TieredStopAtLevel=1"


def session(where: str, folder: str | Path, **settings: str) -> SparkSession:
    """`where`: a master, or `CONNECT` for a local Spark Connect server. In `settings`, two underscores stand for a
    dot."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    scratch = Path(folder, "tmp")
    scratch.mkdir(parents=True, exist_ok=True)
    chosen = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(Path(folder, "warehouse")),
        "spark.local.dir": str(Path(folder, "local")),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={scratch} {QUICK_JVM}",
        "spark.executor.extraJavaOptions": QUICK_JVM,
        "spark.log.level": "ERROR",
        **{key.replace("__", "."): value for key, value in settings.items()},
    }
    builder = SparkSession.builder
    builder = builder.remote("local[2]") if where == CONNECT else builder.master(where)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
