"""Runs the commands of `make dist`. Owns what a failure looks like: a short reason, and the whole output in a file."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
CACHE: Final = Path(os.environ.get("DIST_CACHE", ROOT / ".cache" / "dist"))
DIST: Final = Path(os.environ.get("DIST_FOLDER", ROOT / "dist"))
LOGS: Final = CACHE / "logs"
_NETWORK: Final = re.compile(
    r"dns error|error sending request|failed to fetch|Could not connect|Connection refused|timed out|Max retries"
    r"|Temporary failure in name resolution",
    re.IGNORECASE,
)
_NOT_INHERITED: Final = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "FENCELINE_", "PYSPARK_", "SPARK_")


class StepFailed(Exception):
    """A step of the build or of a check failed; the text is one line. `output` is what its command printed."""

    def __init__(self, reason: str, output: str = "") -> None:
        super().__init__(reason)
        self.output = output


def run(
    name: str,
    command: Sequence[str | Path],
    *,
    environment: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    timeout_s: float = 900,
) -> str:
    """The output of a command. The process and those that it started end with it. Raises StepFailed."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_NOT_INHERITED)}
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{re.sub(r'[^A-Za-z0-9.]+', '-', name)}.log"
    with log.open("w") as output:
        try:
            process = subprocess.Popen(
                [str(part) for part in command],
                cwd=cwd,
                env={**kept, "UV_PYTHON_DOWNLOADS": "never", **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise StepFailed(f"{command[0]} cannot be run: {error.strerror}") from error
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise StepFailed(f"no end after {timeout_s:.0f} s (see {_short(log)})") from None
        finally:
            _end_group(process)
    text = log.read_text(errors="replace")
    if code:
        raise StepFailed(f"{_reason(text)} (see {_short(log)})", text)
    return text


def tool(name: str) -> Path:
    """A program of the environment that `make dist` made for itself."""
    return Path(sys.executable).with_name(name)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End what a command left behind: it is a process group of its own."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _reason(text: str) -> str:
    if _NETWORK.search(text):
        return "the package index cannot be reached"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    wanted = [line for line in lines if re.search(r"error|failed|assert|not found|needs", line, re.IGNORECASE)]
    return (wanted or lines or ["no output"])[-1][:160]


def _short(path: Path) -> str:
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)
