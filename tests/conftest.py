"""Shared fixtures: a running node, and the prerequisites that skip or fail tests."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, settings

from fenceline.compiled import left_out
from fenceline.log.core import tail
from fenceline.testing.apache_kafka import why_unavailable
from fenceline.testing.node import EmbeddedNode

pytest_plugins = ["tests.scheduling", "tests.slices", "tests.support.recorded"]

# Example durations mean nothing on a busy machine, and the first example compiles.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_configure() -> None:
    """Background jobs of a script ignore SIGINT, and so would every process to which a test sends it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Soak tests run only when they are asked for by `-m soak`, those of compiled modules where these are built."""
    unwanted = set() if "soak" in (config.option.markexpr or "") else {"soak"}
    if left_out():
        unwanted.add("compiled")
    for item in items:
        if not tail.IS_NATIVE and item.get_closest_marker("compiled") is not None:
            item.add_marker(pytest.mark.skip(reason="the Cython modules are not built"))
    kept = [item for item in items if all(item.get_closest_marker(name) is None for name in unwanted)]
    dropped = [item for item in items if any(item.get_closest_marker(name) is not None for name in unwanted)]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
    items[:] = kept


# --- skips -----------------------------------------------------------------------------------------------------------

_skipped: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped:
        _skipped.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI all prerequisites are installed: a skip means that an install step is missing."""
    if _skipped and os.environ.get("CI") == "true" and session.exitstatus == pytest.ExitCode.OK:
        print(f"\n{len(_skipped)} tests were skipped, and CI=true makes that a failure: {_skipped[:5]}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def unavailable(reason: str) -> NoReturn:
    """Skip with the reason; in CI, where everything must be there, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"missing in CI: {reason}")
    pytest.skip(reason)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests marked `kafka` require it before any fixture runs."""
    if item.get_closest_marker("kafka") is not None:
        need_apache_kafka()


def need_apache_kafka() -> None:
    """Skip or fail where Apache Kafka cannot run."""
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
