"""The supported Spark versions.

Owns the version check. Spark looks up data sources in every session, so the look-up must not fail in an old Spark: it
gets a source that raises the error when it is used.
"""

from __future__ import annotations

from typing import Any, Final

OLDEST_SPARK: Final = (4, 2)


def is_supported(version: str) -> bool:
    """Whether a PySpark version has what the sources need: Arrow writers for streams, admission control, triggers."""
    parts = version.split(".")
    return (
        len(parts) >= 2 and parts[0].isdigit() and parts[1].isdigit() and (int(parts[0]), int(parts[1])) >= OLDEST_SPARK
    )


def unsupported_source(name: str) -> type[Any] | None:
    """For a Spark that is too old, a source of that name that raises an error; None if Spark is new enough."""
    import pyspark

    version = pyspark.__version__
    if is_supported(version):
        return None
    from pyspark.sql.datasource import DataSource

    from fenceline.errors import OperatorError

    class TooOld(DataSource):
        def __init__(self, options: Any) -> None:
            raise OperatorError(
                f"format('{name}') needs PySpark {OLDEST_SPARK[0]}.{OLDEST_SPARK[1]} or newer, this is {version}",
                "Upgrade with: pip install -U 'pyspark[sql]>=4.2'",
            )

        @classmethod
        def name(cls) -> str:
            return name

    return TooOld
