"""Registers `format("fenceline_segments")`: Spark searches modules named `pyspark_*` for one data source each.

Reads logs as files, without a broker. Only this package of the pipeline knows the on-disk format of a log.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_fenceline_segments.source import SegmentsDataSource as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:
    if name != "DefaultSource" or importlib.util.find_spec("pyspark") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pyspark_fenceline.common.compatibility import unsupported_source

    too_old = unsupported_source("fenceline_segments")
    if too_old is not None:
        return too_old
    from pyspark_fenceline_segments.source import SegmentsDataSource

    return SegmentsDataSource
