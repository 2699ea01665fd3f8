"""Makes `format("fenceline_segments")` known to Spark, which looks modules named `pyspark_*` up for one source each.

Logs as files, read without a broker. This package, and no other of the pipeline, knows how a log lies on the disk.
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
    from pyspark_fenceline.compatibility import stand_in

    too_old = stand_in("fenceline_segments")
    if too_old is not None:
        return too_old
    from pyspark_fenceline_segments.source import SegmentsDataSource

    return SegmentsDataSource
