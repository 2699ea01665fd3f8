"""Spark's own Kafka connector on the same stream: its jars, and what its table came to.

Owns the finding of the jars and the comparison, record by record, by offset and a digest of the value. Starts no query:
`pipeline.py` does, in the same session.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fenceline.demo.story import Connector
from fenceline.testing.apache_kafka import DEFAULT_JARS

if TYPE_CHECKING:
    import pyarrow as pa

WHY_NOT: Final = "its jars are not here. `make jars` fetches them, and needs Maven"
DIGESTED: Final = ("partition", "offset", "digest")
"""Columns of what is compared."""


def connector_jars(folder: Path = DEFAULT_JARS / "connector") -> list[Path]:
    """The connector's jars and what it needs; empty where they were not fetched, or not for this Spark."""
    import pyspark

    jars = sorted(path for path in folder.glob("*.jar") if os.access(path, os.R_OK))
    made_for_it = any(
        path.name.startswith("spark-sql-kafka") and path.stem.endswith(f"-{pyspark.__version__}") for path in jars
    )
    return jars if made_for_it else []


def compared(theirs: pa.Table, log: pa.Table, ended_with: str) -> Connector:
    """Their rows against the log's records. Both have the columns of `DIGESTED`."""
    keys = list(DIGESTED)
    stale = theirs.join(log, keys, join_type="left anti").num_rows
    missing = log.join(theirs, keys, join_type="left anti").num_rows
    return Connector(theirs.num_rows, stale, missing, ended_with)
