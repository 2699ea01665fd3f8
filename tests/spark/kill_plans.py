"""Deaths at one step at a time, planned by a test and carried out by the process that reaches the step.

A file in the folder of plans names a side (`driver`, `executor`) and a step. The process that reaches the step removes
the file and does what the file says: by default it dies by SIGKILL, only the Python worker on the executors' side, the
whole driver with its JVM on the driver's side.
"""

from __future__ import annotations

import inspect
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

Steps: TypeAlias = Mapping[str, tuple[Any, str]]
"""By name: the owner and the name of the function that is the step."""

ALONE: Final = "alone"
"""Only the driver's Python process that reaches the step dies, and its query with it."""
DEAD: Final = "dead"
"""A file that signals that a single process has died."""
STAND_STILL: Final = "stand still"
"""The process is suspended (SIGSTOP), for the test to resume."""
SLEEPER: Final = "sleeper"
"""A file with the id of the suspended process."""
JVM: Final = "jvm"
"""The executor of the Python worker dies."""
OTHER: Final = "process "
"""Followed by a process id: that process dies, this one goes on."""


def plans_of(steps: Steps) -> list[str]:
    return [f"{moment} {step}" for step in steps for moment in ("before", "after")]


def carry_out(folder: str, side: str, plan: str) -> None:
    """Does nothing unless this process claims the plan."""
    file = Path(folder, f"{side} {plan}")
    try:
        what = file.read_text()
        if what == STAND_STILL:
            Path(folder, SLEEPER).write_text(str(os.getpid()))
        os.unlink(file)
    except FileNotFoundError:
        return
    if what == STAND_STILL:
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    if what.startswith(OTHER):
        os.kill(int(what.removeprefix(OTHER)), signal.SIGKILL)
        return
    if what == ALONE:
        Path(folder, DEAD).touch()
    elif what == JVM:
        # The worker is a child of Spark's Python daemon, which is a child of the executor.
        os.kill(_parent_of(os.getppid()), signal.SIGKILL)
    elif side == "driver":
        # Spark's daemons have their own process groups; their session is still the one that the driver leads.
        os.killpg(os.getsid(0), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


_armed: set[str] = set()


def arm(folder: str, side: str, steps: Steps) -> None:
    """Once per process and side: wrap each step in checks for its plans."""
    if side in _armed:
        return
    _armed.add(side)
    for step, (owner, name) in steps.items():
        setattr(owner, name, _checked(folder, side, step, getattr(owner, name)))


def _checked(folder: str, side: str, step: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def run(*positional: Any, **named: Any) -> Any:
        carry_out(folder, side, f"before {step}")
        result = real(*positional, **named)
        carry_out(folder, side, f"after {step}")
        return result

    async def run_async(*positional: Any, **named: Any) -> Any:
        carry_out(folder, side, f"before {step}")
        result = await real(*positional, **named)
        carry_out(folder, side, f"after {step}")
        return result

    return run_async if inspect.iscoroutinefunction(real) else run
