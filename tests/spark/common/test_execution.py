"""The pieces of a job: the same results, in the same order, in threads and in Spark's tasks."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from pyspark_fenceline.common.execution import collect_objects, in_threads, map_pieces, rows_of_pieces

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_threads_return_results_in_the_order_of_the_pieces() -> None:
    second = threading.Event()

    def work(piece: int) -> int:
        if piece == 1:
            assert second.wait(30), "the second piece runs beside the first one"
        second.set()
        return piece * 10

    assert in_threads(work, [1, 2, 3]) == [10, 20, 30]


def test_without_a_session_or_for_few_pieces_no_task_is_started() -> None:
    assert map_pieces(None, str, range(3), few=1) == ["0", "1", "2"]
    # Not a session: it must not be used.
    assert map_pieces(object(), str, range(2), few=2) == ["0", "1"]  # type: ignore[arg-type]


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_tasks_return_results_in_the_order_of_the_pieces(spark: SparkSession) -> None:
    assert map_pieces(spark, lambda piece: {piece: piece * 10}, range(9), few=1) == [{n: n * 10} for n in range(9)]

    def rows(number: int) -> list[pa.RecordBatch]:
        return [pa.RecordBatch.from_pydict({"n": pa.array([number] * number, pa.int64())})]

    frame = rows_of_pieces(spark, rows, 4, 2, "n long")
    assert [row.n for row in frame.collect()] == [1, 2, 2, 3, 3, 3]
    assert frame.rdd.getNumPartitions() == 2
    assert sum(collect_objects(frame, lambda batches: [batch.num_rows for batch in batches])) == 6
    assert rows_of_pieces(spark, rows, 0, 2, "n long").count() == 0
