"""A planner process ends with the Java process that started it, also while it waits for brokers."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from pyspark_fenceline.source import planner_process

PLANNER = """
import os, sys
from pyspark_fenceline.source import planner_process
if {polls}:
    del os.pidfd_open
planner_process.end_with(os.getppid())
print("watches", flush=True)
sys.stdin.read()
"""
PARENT = """
import subprocess, sys
subprocess.run([sys.executable, "-c", sys.argv[1]])
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("polls", [False, True])
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="one way only")
def test_a_planner_ends_with_its_parent(polls: bool) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, PLANNER.format(polls=polls)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as parent:
        try:
            assert parent.stdout is not None
            assert parent.stdout.readline() == b"watches\n"
            parent.kill()
            # The planner also holds the pipe open: the pipe closes when both have ended.
            assert select.select([parent.stdout], [], [], 30)[0]
            assert parent.stdout.read() == b""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)


def test_only_the_planner_of_spark_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[int] = []
    monkeypatch.setattr(planner_process, "end_with", watched.append)
    monkeypatch.setattr(planner_process, "_is_watched", False)
    planner_process.end_with_spark()
    assert watched == []
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", SimpleNamespace(name=planner_process._RUNNER))
    planner_process.end_with_spark()
    planner_process.end_with_spark()
    assert watched == [os.getppid()]
