"""The demo restarts a query whose Python worker did not start in time; other failures are raised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fenceline.demo.pipeline import LATE_WORKER, Pipeline
from fenceline.demo.stopping import Stopping
from fenceline.errors import OperatorError


class Java:
    def poll(self) -> None:
        """It is running."""


class Query:
    recentProgress: tuple[()] = ()

    def __init__(self, failure: str) -> None:
        self.failure = failure

    def exception(self) -> Exception | None:
        return Exception(self.failure) if self.failure else None

    def stop(self) -> None:
        """Nothing to stop."""


class SimulatedPipeline(Pipeline):
    """Its queries fail with these errors, one after the other; the last one runs."""

    def __init__(self, directory: Path, *failures: str) -> None:
        super().__init__("nowhere:1", "t", directory, Stopping())
        self._failures = [*failures, ""]
        self.starts = 0
        spark: Any = Java()
        self._java = spark

    def start(self) -> None:
        self.starts += 1
        query: Any = Query(self._failures.pop(0))
        self._stream = query


def test_a_stream_whose_worker_was_late_is_restarted(tmp_path: Path) -> None:
    pipeline = SimulatedPipeline(tmp_path, f"Query raw failed: {LATE_WORKER}.")
    pipeline.start()
    assert [pipeline.keep_running() for _ in range(3)] == [True, False, False]
    assert pipeline.starts == 2


def test_too_many_restarts_are_an_error(tmp_path: Path) -> None:
    pipeline = SimulatedPipeline(tmp_path, *[LATE_WORKER] * 20)
    pipeline.start()
    for _ in range(5):
        assert pipeline.keep_running()
    with pytest.raises(OperatorError, match=LATE_WORKER):
        pipeline.keep_running()


def test_other_failures_are_raised(tmp_path: Path) -> None:
    pipeline = SimulatedPipeline(tmp_path, "LOG_TRUNCATED\nand much more")
    pipeline.start()
    with pytest.raises(OperatorError, match="failed: LOG_TRUNCATED\n"):
        pipeline.keep_running()
    assert pipeline.starts == 1
