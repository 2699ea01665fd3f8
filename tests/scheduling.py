"""Which tests run on one worker, and in which order: pytest plugin of `tests/conftest.py`.

`--dist loadgroup` of pytest-xdist 3.8 silently does nothing under pytest 9: it writes groups into names that
pytest no longer reads. So a file passes the groups to the scheduler here.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from fenceline.local_cluster import reaper

_SHARING = ("client", "kafka")
"""Rooms whose tests share one Apache Kafka."""

CLUSTERS = "kafka of clusters"
"""The group of all tests that start several nodes of Apache Kafka: two such clusters at once are more than a small
machine can carry in time."""

_LONG = (CLUSTERS, "spark", "kafka of kafka", "kafka of client", "killed driver", "kafka of")
"""How the names of groups begin that take long, the longest first."""

_GROUPS = pytest.StashKey[Path]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Groups go to the workers in order: the long ones first, so that no worker is left with one at the end."""
    group_of = {item: _group_of(item) for item in items}
    if (workerinput := getattr(config, "workerinput", None)) is not None:
        _tell_groups(Path(workerinput["groups"]), {item.nodeid: group for item, group in group_of.items()})
    for item, group in group_of.items():
        if _place(group) < len(_LONG) and item.get_closest_marker("timeout") is None:
            # It may be the one that starts a JVM, on a machine that has no time for it.
            item.add_marker(pytest.mark.timeout(300))
    items.sort(key=lambda item: _place(group_of[item]))


def _group_of(item: pytest.Item) -> str:
    """One Spark session, one Apache Kafka a room, and one node a module: whoever shares one runs where it is."""
    if (chosen := item.get_closest_marker("together")) is not None:
        return str(chosen.args[0])
    module = item.nodeid.partition("::")[0]
    if item.get_closest_marker("spark") is not None:
        return "spark"
    if item.get_closest_marker("kafka") is not None:
        room = module.split("/")[1]
        return f"kafka of {room}" if room in _SHARING else f"kafka of {module}"
    return module


def _place(group: str) -> int:
    return next((place for place, start in enumerate(_LONG) if group.startswith(start)), len(_LONG))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """In the process that hands out tests, for each worker."""
    node.workerinput["groups"] = str(_groups_file(node.config))


def _groups_file(config: pytest.Config) -> Path:
    if _GROUPS not in config.stash:
        folder = Path(tempfile.mkdtemp(prefix="fenceline-tests-"))
        reaper.watch_folder(folder)
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        config.stash[_GROUPS] = folder / "groups.json"
    return config.stash[_GROUPS]


def _tell_groups(path: Path, group_of: dict[str, str]) -> None:
    """In a worker: all of them tell the same."""
    draft = path.with_name(f"{os.getpid()}.json")
    draft.write_text(json.dumps(group_of))
    draft.replace(path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        """Whole groups, in the order in which they were collected."""

        @cached_property
        def group_of(self) -> dict[str, str]:
            found: dict[str, str] = json.loads(_groups_file(config).read_text())
            return found

        def _split_scope(self, nodeid: str) -> str:
            return self.group_of[nodeid]

        def schedule(self) -> None:
            """A worker does not run a test before it knows the next one, or that there is none. xdist does not care for
            that with one that replaces another."""
            super().schedule()
            for node in self.nodes:
                while self.workqueue and self._pending_of(self.assigned_work[node]) < 2:
                    self._assign_work_unit(node)
                if not self.workqueue and not node.shutting_down:
                    node.shutdown()

        def remove_node(self, node: Any) -> str | None:
            """The test during which a worker ended has failed. xdist would run it again, and end the next worker."""
            left = self.assigned_work.pop(node)
            ended_it = next((test for tests in left.values() for test, done in tests.items() if not done), None)
            for group, tests in left.items():
                if ended_it in tests:
                    tests[ended_it] = True
                if not all(tests.values()):
                    self.workqueue[group] = tests
            for other in self.assigned_work:
                self._reschedule(other)
            return ended_it

    config.option.loadscopereorder = False
    return ByGroup(config, log)
