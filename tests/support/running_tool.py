"""Kafka's command line tools that run beside a test: what they say while it goes on, and their end."""

from __future__ import annotations

import json
import subprocess
import threading
from typing import Any

from fenceline.local_cluster import reaper
from fenceline.testing.apache_kafka import java_command, tool_options


class RunningTool:
    """One of Kafka's tools in its own process; what it says is kept line by line."""

    def __init__(self, main_class: str, *arguments: str) -> None:
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            java_command(main_class, *arguments, heap="256m", jvm_options=tool_options()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        reaper.watch_process(self._process.pid)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in list(self.lines) if line.startswith("{")]
        return [each for each in found if name in (None, each["name"])]

    def end(self, *, by_eof: bool = False) -> int:
        """As Ctrl-C ends it, or the end of its input."""
        if self.is_running:
            if by_eof:
                assert self._process.stdin is not None
                self._process.stdin.close()
            else:
                self._process.terminate()
        code = self._process.wait(120)
        self._thread.join()
        reaper.forget_process(self._process.pid)
        return code
