"""Waits for a condition: the one function for this in tests, benchmarks and local clusters."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from fenceline.errors import FencelineError

_T = TypeVar("_T")

NOT_YET: Final = (OSError, FencelineError, AssertionError, LookupError)
"""Errors that a condition may raise while it does not hold: broken connections, rejections, incomplete responses."""


def eventually(condition: Callable[[], _T | None], what: str = "", *, wait_s: float = 60.0, step_s: float = 0.02) -> _T:
    """The result of `condition` once it is true; an error of `NOT_YET` counts as false.

    Raises TimeoutError, which contains `what` and is caused by the last such error."""
    deadline = time.monotonic() + wait_s
    while True:
        trouble: BaseException | None = None
        try:
            found = condition()
            if found:
                return found
        except NOT_YET as error:
            trouble = error
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what or condition}: not within {wait_s:g} s") from trouble
        time.sleep(step_s)
