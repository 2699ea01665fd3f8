"""Fenceline for PySpark: `format("fenceline")` for topics, `format("fenceline_delta")` for Delta tables.

Spark 4.2 and newer find both without registration, because the module names start with `pyspark_` and each module
offers a `DefaultSource`. `audit` compares a table with the log, `repair` makes the table match the log, `backfill` adds
missing leader epochs to the rows of a table, and `changes` returns the rows inserted and deleted between two versions.
`export_checkpoint` writes a checkpoint for Spark's own Kafka source, `lag_of` returns the lag of a query, and
`batch_timeline` shows where the time of a micro-batch goes.
`pyspark_fenceline.errors.parse(exception)` returns the losses that ended a query. `use_this_python`, called before the
session is created, lets Spark start the Python in which this is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark_fenceline.auditing.backfill_table import backfill
    from pyspark_fenceline.auditing.repair_table import repair
    from pyspark_fenceline.auditing.table import audit
    from pyspark_fenceline.common.spark_python import use_this_python
    from pyspark_fenceline.delta.table_changes import changes
    from pyspark_fenceline.source.checkpoint_export import export_checkpoint
    from pyspark_fenceline.source.exactly_once import exactly_once
    from pyspark_fenceline.source.progress import lag_of
    from pyspark_fenceline.source.source import FencelineDataSource as DefaultSource
    from pyspark_fenceline.source.timeline import batch_timeline

__all__ = [
    "DefaultSource",
    "audit",
    "backfill",
    "batch_timeline",
    "changes",
    "exactly_once",
    "export_checkpoint",
    "lag_of",
    "repair",
    "use_this_python",
]
_FUNCTIONS: Final = {
    "audit": "auditing.table",
    "backfill": "auditing.backfill_table",
    "batch_timeline": "source.timeline",
    "changes": "delta.table_changes",
    "exactly_once": "source.exactly_once",
    "export_checkpoint": "source.checkpoint_export",
    "lag_of": "source.progress",
    "repair": "auditing.repair_table",
    "use_this_python": "common.spark_python",
}


def __getattr__(name: str) -> Any:
    # Lazy, so that `pyspark_fenceline.errors` can be imported without Spark.
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(f"{__name__}.{_FUNCTIONS[name]}"), name)
    if name != "DefaultSource" or importlib.util.find_spec("pyspark") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pyspark_fenceline.common.compatibility import unsupported_source

    too_old = unsupported_source("fenceline")
    if too_old is not None:
        return too_old
    from pyspark_fenceline.source.source import FencelineDataSource

    return FencelineDataSource
