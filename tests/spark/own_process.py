"""Processes started by a test: drivers that are killed, daemons of a Spark cluster. Each leads a session, which is
killed at the end, with the JVM and the Python workers in it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fenceline.local_cluster import reaper

PATIENCE_S: Final = 240


class OwnProcess:
    """A running or ended process; `log` holds its output."""

    def __init__(self, running: subprocess.Popen[bytes], log: Path) -> None:
        self._running = running
        self.log = log

    @property
    def printed(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def log_tail(self) -> str:
        return self.printed[-6000:]

    @property
    def has_ended(self) -> bool:
        return self._running.poll() is not None

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """The exit code; the negative signal number if a signal ended the process."""
        return self._running.wait(timeout_s)

    def await_success(self, timeout_s: float = PATIENCE_S) -> None:
        assert self.wait(timeout_s) == 0, self.log_tail

    def meets(self, condition: Callable[[], bool], what: str) -> bool:
        """Wait until the process meets the condition; False if it ends first."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if self.has_ended:
                return condition()
            assert time.monotonic() < deadline, f"no {what}:\n{self.log_tail}"
            time.sleep(0.005)
        return True

    def until(self, condition: Callable[[], bool], what: str) -> None:
        assert self.meets(condition, what), f"it ended without {what}:\n{self.log_tail}"

    def await_line(self, pattern: str) -> None:
        self.until(lambda: re.search(pattern, self.printed) is not None, repr(pattern))


@contextmanager
def started(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None, *, cwd: Path | None = None
) -> Iterator[OwnProcess]:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        running = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, **(environment or {})},
            start_new_session=True,
        )
    reaper.watch_process(running.pid)
    try:
        yield OwnProcess(running, log)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        reaper.forget_process(running.pid)


@contextmanager
def driver(module: str, folder: Path, *arguments: object) -> Iterator[OwnProcess]:
    """Run a module of `tests.spark` as a Spark driver. Its first argument is `folder`, which also holds its log."""
    command = [sys.executable, "-m", f"tests.spark.{module}", str(folder), *map(str, arguments)]
    with started(command, folder / "driver.log") as running:
        yield running
