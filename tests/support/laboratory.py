"""`fenceline lab` as a process of the tests."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx2

from fenceline.local_cluster import reaper

FENCELINE: Final = (sys.executable, "-m", "fenceline")


@dataclass(frozen=True, slots=True)
class Laboratory:
    """A running one."""

    process: subprocess.Popen[str]
    url: str

    def create(self) -> tuple[str, int, Path]:
        """A cluster of one: its URL, the pid of its node, and its folder."""
        made = httpx2.post(f"{self.url}/v1/clusters", json={"nodes": 1}, timeout=60).json()
        pid = made["nodes"][0]["pid"]
        log = Path(f"/proc/{pid}/fd/2").readlink()
        return f"{self.url}/v1/clusters/{made['id']}", pid, log.parent.parent


@contextlib.contextmanager
def laboratory(*options: str) -> Iterator[Laboratory]:
    """Starts one, on a free port unless `options` say otherwise."""
    command = [*FENCELINE, "lab", "--json", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        reaper.watch_process(process.pid)
        try:
            assert process.stdout is not None
            yield Laboratory(process, json.loads(process.stdout.readline())["url"])
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
            process.wait()
            reaper.forget_process(process.pid)
