"""Compares the table that Spark's own Kafka connector writes with the log.

Owns the lookup of the connector's jars and the comparison, record by record, by offset and a digest of the value.
Starts no query: `pipeline.py` does, in the same session.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fenceline.demo.report import ConnectorResult
from fenceline.testing.apache_kafka import DEFAULT_JARS

if TYPE_CHECKING:
    import pyarrow as pa

NO_JARS: Final = "its jars are not installed (`make jars` downloads them with Maven)"
DIGESTED: Final = ("partition", "offset", "digest")
"""The columns that are compared."""


def connector_jars(folder: Path = DEFAULT_JARS / "connector") -> list[Path]:
    """The connector's jars and their dependencies; empty if they are not downloaded or are for another Spark."""
    import pyspark

    jars = sorted(path for path in folder.glob("*.jar") if os.access(path, os.R_OK))
    is_for_this_spark = any(
        path.name.startswith("spark-sql-kafka") and path.stem.endswith(f"-{pyspark.__version__}") for path in jars
    )
    return jars if is_for_this_spark else []


def compare(theirs: pa.Table, log: pa.Table, error: str) -> ConnectorResult:
    """Compare the connector's rows with the log's records. Both have the columns of `DIGESTED`."""
    keys = list(DIGESTED)
    stale = theirs.join(log, keys, join_type="left anti").num_rows
    missing = log.join(theirs, keys, join_type="left anti").num_rows
    return ConnectorResult(theirs.num_rows, stale, missing, error)
