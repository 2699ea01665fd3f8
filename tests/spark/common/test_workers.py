"""The first task of a worker freezes its objects, so that Spark's garbage collections skip them; other processes are
unchanged."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
from pyspark import TaskContext

from pyspark_fenceline.common import workers


@pytest.fixture(autouse=True)
def unfrozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(workers, "_is_frozen", False)
    gc.unfreeze()
    yield
    gc.unfreeze()


def in_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "get", classmethod(lambda cls: object()))


def test_objects_alive_after_the_first_task_are_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_task(monkeypatch)
    workers.freeze_gc()
    held = gc.get_freeze_count()
    assert held > 10_000
    assert len(gc.get_objects()) < held / 10


def test_only_the_first_task_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_task(monkeypatch)
    workers.freeze_gc()
    gc.unfreeze()
    workers.freeze_gc()
    assert gc.get_freeze_count() == 0


def test_a_process_without_tasks_is_unchanged() -> None:
    workers.freeze_gc()
    assert gc.get_freeze_count() == 0


def test_a_committing_process_is_identified_by_the_spark_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = ModuleType("__main__")
    daemon.__spec__ = ModuleSpec("pyspark.daemon", None)
    monkeypatch.setitem(sys.modules, "__main__", daemon)
    workers.freeze_gc()
    assert gc.get_freeze_count() > 10_000
