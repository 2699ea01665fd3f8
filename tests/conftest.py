"""Fixtures that every room may use: a running node, and what it needs to be skipped or failed honestly."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, settings

from fenceline.compiled import left_out
from fenceline.log import tail
from fenceline.testing import reaper
from fenceline.testing.apache_kafka import why_unavailable
from fenceline.testing.node import EmbeddedNode

# How long an example takes says nothing of the code on a machine that has other work, and the first one compiles.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Soak tests run only when they are asked for by `-m soak`; tests that share a process stay on one worker."""
    unwanted = set() if "soak" in (config.option.markexpr or "") else {"soak"}
    if left_out():
        unwanted.add("compiled")
    group_of = {item: _group_of(item) for item in items}
    if (workerinput := getattr(config, "workerinput", None)) is not None:
        _tell_groups(Path(workerinput["groups"]), {item.nodeid: group for item, group in group_of.items()})
    for item, group in group_of.items():
        if _place(group) < len(_LONG) and item.get_closest_marker("timeout") is None:
            # It may be the one that starts a JVM, on a machine that has no time for it.
            item.add_marker(pytest.mark.timeout(300))
        if not tail.IS_NATIVE and item.get_closest_marker("compiled") is not None:
            item.add_marker(pytest.mark.skip(reason="the Cython modules are not built"))
    kept = [item for item in items if all(item.get_closest_marker(name) is None for name in unwanted)]
    dropped = [item for item in items if any(item.get_closest_marker(name) is not None for name in unwanted)]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
    # Groups go to the workers in this order: the long ones first, so that no worker is left with one at the end.
    items[:] = sorted(kept, key=lambda item: _place(group_of[item]))


# --- tests that share something run on one worker -------------------------------------------------------------------
#
# `--dist loadgroup` of pytest-xdist 3.8 does nothing under pytest 9, without a word: it writes groups into names that
# pytest does not look at any more. So the groups are told to the scheduler here, by a file.

_SHARING = ("client", "kafka")
"""Rooms whose tests share one Apache Kafka."""

_LONG = ("spark", "kafka of kafka", "kafka of client", "killed driver", "kafka of")
"""How the names of groups begin that take long, the longest first."""


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


_GROUPS = pytest.StashKey[Path]()


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

    config.option.loadscopereorder = False
    return ByGroup(config, log)


# --- skips -----------------------------------------------------------------------------------------------------------

_skipped: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped:
        _skipped.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI everything that tests need is there: a skip means that an install step was lost."""
    if _skipped and os.environ.get("CI") == "true" and session.exitstatus == pytest.ExitCode.OK:
        print(f"\n{len(_skipped)} tests were skipped, and CI=true makes that a failure: {_skipped[:5]}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


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


def unavailable(reason: str) -> NoReturn:
    """Skip with the reason; in CI, where everything must be there, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"missing in CI: {reason}")
    pytest.skip(reason)


def need_apache_kafka() -> None:
    """Skip or fail where Apache Kafka can not be run."""
    if (reason := why_unavailable()) is not None:
        unavailable(reason)


def need_java() -> None:
    """Skip or fail where there is no Java, which Spark needs."""
    if shutil.which("java") is None:
        unavailable("Java is missing")


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    """One node for a module's tests, on a fresh directory."""
    with EmbeddedNode() as running:
        yield running
