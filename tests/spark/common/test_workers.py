"""The first task of a worker, and the first plan of a planner, freeze the objects of the process, so that garbage
collections skip them; other processes are unchanged."""

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


@pytest.mark.parametrize("module", ["pyspark.daemon", "pyspark.sql.streaming.python_streaming_source_runner"])
def test_committing_and_planning_processes_are_known_by_their_main_module(
    monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec(module, None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    workers.freeze_gc()
    assert gc.get_freeze_count() > 10_000
