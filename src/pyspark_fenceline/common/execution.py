"""Runs the pieces of a job in Spark's tasks or in threads of this process.

Owns how pieces are numbered, distributed and collected, so that a job is written once, as a function of one piece. Such
a function and its pieces are sent to executors. Knows nothing about the work itself.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

THREADS: Final = 4
Piece = TypeVar("Piece")
Result = TypeVar("Result")


def active_session() -> SparkSession:
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


def parallelism(session: SparkSession) -> int:
    try:
        return max(int(session.sparkContext.defaultParallelism), 1)
    except Exception:
        # A Spark Connect client has no context; the server's setting may be available.
        return int(session.conf.get("spark.default.parallelism", None) or 8)


def in_threads(function: Callable[[Piece], Result], pieces: Iterable[Piece]) -> list[Result]:
    """The results in the order of the pieces."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(function, pieces))


def rows_of_pieces(
    session: SparkSession,
    rows: Callable[[int], Iterable[pa.RecordBatch]],
    piece_count: int,
    task_count: int,
    schema: StructType | str,
) -> DataFrame:
    """`rows` of each piece's number, in at most `task_count` tasks."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in _numbers(batches):
            yield from rows(number)

    found: DataFrame = _numbered(session, piece_count, task_count).mapInArrow(run, schema)
    return found


def map_pieces(
    session: SparkSession | None, function: Callable[[Piece], Result], pieces: Sequence[Piece], *, few: int
) -> list[Result]:
    """The results in the order of the pieces. In threads without a session, and for at most `few` pieces."""
    if session is None or len(pieces) <= few:
        return in_threads(function, pieces)

    def run(batches: Iterator[pa.RecordBatch]) -> list[Result]:
        return [function(pieces[number]) for number in _numbers(batches)]

    return collect_objects(_numbered(session, len(pieces), parallelism(session) * 2), run)


def collect_objects(rows: DataFrame, function: Callable[[Iterator[pa.RecordBatch]], Sequence[Result]]) -> list[Result]:
    """The objects that `function` returns for the rows of each task."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        packed = pickle.dumps(list(function(batches)))
        yield pa.RecordBatch.from_pydict({"objects": pa.array([packed], pa.binary())})

    # Only this job's tasks have pickled them.
    packed = rows.mapInArrow(run, "objects binary").collect()
    return [found for row in packed for found in pickle.loads(bytes(row[0]))]


def _numbered(session: SparkSession, piece_count: int, task_count: int) -> DataFrame:
    return session.range(0, piece_count, 1, max(min(piece_count, task_count), 1))


def _numbers(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()
