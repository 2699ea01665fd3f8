"""The table of Spark's own connector is compared record by record; without its jars the connector does not run."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyspark

from fenceline.demo.connector_comparison import DIGESTED, compare, connector_jars
from fenceline.demo.report import ConnectorResult

LOG = [(0, 0, 10), (0, 1, 11), (1, 0, 12), (1, 1, 13)]


def digests(records: list[tuple[int, int, int]]) -> pa.Table:
    columns = list(zip(*records, strict=True)) if records else [(), (), ()]
    return pa.table({name: pa.array(column, pa.int64()) for name, column in zip(DIGESTED, columns, strict=True)})


def test_an_equal_table() -> None:
    assert compare(digests(LOG[::-1]), digests(LOG), "") == ConnectorResult(4, 0, 0)


def test_other_records_at_the_same_offsets_are_stale_and_missing() -> None:
    theirs = [*LOG[:2], (1, 0, 99), (1, 2, 14)]
    assert compare(digests(theirs), digests(LOG), "it ended") == ConnectorResult(4, 2, 2, "it ended")


def test_no_rows_at_all() -> None:
    assert compare(digests([]), digests(LOG), "") == ConnectorResult(0, 0, 4)


def test_only_jars_for_this_spark_are_used(tmp_path: Path) -> None:
    assert connector_jars(tmp_path) == []
    (tmp_path / "commons-pool2-2.12.0.jar").touch()
    (tmp_path / "spark-sql-kafka-0-10_2.13-1.0.0.jar").touch()
    assert connector_jars(tmp_path) == []
    (tmp_path / f"spark-sql-kafka-0-10_2.13-{pyspark.__version__}.jar").touch()
    assert len(connector_jars(tmp_path)) == 3
