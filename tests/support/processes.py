"""Looking at processes of the tests."""

from __future__ import annotations

from pathlib import Path


def is_alive(pid: int) -> bool:
    """Whether one of its threads lives: the others keep files and ports of a process whose first thread has ended."""
    try:
        states = [stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:
        return Path(f"/proc/{pid}").exists()  # a thread went away meanwhile
    return any(state not in "ZX" for state in states)
