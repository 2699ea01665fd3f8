"""Registers `format("fenceline_delta")`: Spark searches modules named `pyspark_*` for one data source each.

Owns nothing: the sink is `pyspark_fenceline.delta.sink`.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_fenceline.delta.sink import DeltaDataSource as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:
    if name != "DefaultSource" or importlib.util.find_spec("pyspark") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pyspark_fenceline.common.compatibility import unsupported_source

    too_old = unsupported_source("fenceline_delta")
    if too_old is not None:
        return too_old
    from pyspark_fenceline.delta.sink import DeltaDataSource

    return DeltaDataSource
