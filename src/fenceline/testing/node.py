"""A Fenceline node as a child process, for tests, benchmarks and the demo."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from fenceline.local_cluster import reaper
from fenceline.local_cluster.child_processes import ChildProcesses


class NodeFailed(RuntimeError):
    """The process ended before it was ready, or was not ready in time; contains its output."""


class EmbeddedNode(ChildProcesses):
    """One node in its own process. `data_dir` is kept if given.

    `port` 0 selects a free port, which is kept for restarts. `security_protocol` is that of the only listener."""

    def __init__(
        self,
        *,
        data_dir: Path | None = None,
        port: int = 0,
        overrides: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        log_level: str = "warning",
        security_protocol: str = "PLAINTEXT",
    ) -> None:
        super().__init__(data_dir, prefix="fenceline-")
        self.port = port
        self._overrides = dict(overrides or {})
        self._environment = dict(environment or {})
        self._log_level = log_level
        self._security_protocol = security_protocol
        self._process: subprocess.Popen[str] | None = None
        self._errors: list[str] = []
        self._reader: threading.Thread | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the node is not started"
        return self._process.pid

    @property
    def log_dir(self) -> Path:
        """The directory of the partitions."""
        return self.root / "data"

    @property
    def errors(self) -> str:
        """The stderr output of the node so far."""
        return "".join(self._errors)

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "fenceline", "start", "--data-dir", str(self.log_dir)]
        command += ["--log-level", self._log_level]
        address, protocol, overrides = f"127.0.0.1:{self.port}", self._security_protocol, self._overrides
        if protocol == "PLAINTEXT":
            command += ["--listen", address]
        else:
            secured = {"listeners": f"{protocol}://{address}", "security.inter.broker.protocol": protocol}
            overrides = {**secured, **overrides}
        for key, value in overrides.items():
            command += ["--override", f"{key}={value}"]
        return command

    def start(self, *, wait_s: float = 60) -> str:
        """Spawn the process and wait for its ready line, which is returned. Raises NodeFailed."""
        self._process = process = subprocess.Popen(
            self.command(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **self._environment},
            # Ctrl-C in a test run goes to the tests, which then close the node themselves.
            start_new_session=True,
        )
        reaper.watch_process(process.pid)
        self._errors = []
        self._reader = threading.Thread(target=self._read_errors, args=(process,), daemon=True)
        self._reader.start()
        watchdog = threading.Timer(wait_s, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            process.wait()
            reaper.forget_process(process.pid)
            self._reader.join()
            self._process = None
            raise NodeFailed(f"the node ended with exit code {process.returncode} before it was ready:\n{self.errors}")
        self.port = int(line.rsplit(":", 1)[1].split()[0])
        return line.strip()

    @property
    def is_running(self) -> bool:
        """Whether the process runs; False also if it ended by itself."""
        return self._process is not None and self._process.poll() is None

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal; does nothing if the process has ended."""
        assert self._process is not None, "the node is not started"
        self._process.send_signal(number)

    def wait(self, *, wait_s: float = 30) -> int:
        """Wait until the process has ended by itself; returns its exit code."""
        return self._wait_ended(None, wait_s)

    def stop(self, *, wait_s: float = 30) -> int:
        """Stop cleanly (SIGTERM); returns the exit code. The data directory is kept."""
        return self._wait_ended(signal.SIGTERM, wait_s)

    def kill(self) -> None:
        """kill -9; the data directory is left unchanged."""
        self._wait_ended(signal.SIGKILL, 30)

    def _end(self) -> None:
        self.kill()

    def _wait_ended(self, number: signal.Signals | None, wait_s: float) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        if number is not None:
            process.send_signal(number)
        try:
            code = process.wait(wait_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            reaper.forget_process(process.pid)
            if self._reader is not None:
                self._reader.join(5)
            if process.stdout is not None:
                process.stdout.close()
            if process.stderr is not None:
                process.stderr.close()
        return code

    def _read_errors(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self._errors.append(line)
