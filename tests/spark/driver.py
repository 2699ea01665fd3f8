"""A streaming query's driver and its tasks in one process, against brokers over real sockets: no Spark session."""

from __future__ import annotations

import json
from typing import Any, Final

from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_fenceline.common import connect
from pyspark_fenceline.common.schema import spark_schema
from pyspark_fenceline.source.options import read_options
from pyspark_fenceline.source.stream import FencelineStreamReader
from pyspark_fenceline.source.tasks import ReadPlan, read_ranges

QUICK: Final = {"retry.backoff.ms": "10", "retry.backoff.max.ms": "50", "fetch.max.wait.ms": "50"}
Row = tuple[int, int, bytes]
"""Offset, epoch and value."""


class Driver:
    """One run of a stateless query over the topic `t`. Use as a context manager."""

    def __init__(self, bootstrap: str, **options: str) -> None:
        given = {"kafka.bootstrap.servers": bootstrap, "subscribe": "t", "startingOffsets": "earliest"}
        given |= {f"kafka.{key}": value for key, value in QUICK.items()}
        parsed = read_options(
            {**given, "statefulQuery": "false", "fetchOffset.retryIntervalMs": "10", **options}, streaming=True
        )
        schema = spark_schema(include_headers=False, include_leader_epoch=True)
        self._plan = ReadPlan(parsed.client, schema, parsed.policy)
        self.source = FencelineStreamReader(parsed, self._plan)

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        for kind in ("cluster", "reader"):
            connect.forget(kind, self._plan.client)

    def batch(self, at: dict[str, Any] | None = None) -> tuple[dict[str, Any], list[Row]]:
        """The end offset of the micro-batch after `at` (None: the first one), and its rows."""
        start = self.source.initialOffset() if at is None else at
        end = json.loads(json.dumps(self.source.latestOffset(start, ReadAllAvailable())))
        rows: list[Row] = []
        for task in self.source.partitions(start, end):
            for batch in read_ranges(self._plan, task):
                columns = batch.to_pydict()
                rows += zip(columns["offset"], columns["leader_epoch"], columns["value"], strict=True)
        return end, rows
