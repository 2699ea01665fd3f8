"""Fenceline for PySpark: `format("fenceline")` for topics, `format("fenceline_delta")` for Delta tables.

Spark 4.2 and newer find both by themselves, because the modules' names start with `pyspark_` and they offer a
`DefaultSource`; nothing has to be registered. Losses that end a query can be told from its message:
`pyspark_fenceline.errors.parse(exception)`.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_fenceline.source import FencelineDataSource as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:
    # Late, so that `pyspark_fenceline.errors` can be imported where there is no Spark.
    if name != "DefaultSource" or importlib.util.find_spec("pyspark") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pyspark_fenceline.compatibility import stand_in

    too_old = stand_in("fenceline")
    if too_old is not None:
        return too_old
    from pyspark_fenceline.source import FencelineDataSource

    return FencelineDataSource
