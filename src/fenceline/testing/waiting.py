"""Waiting for a condition: the one way in which tests, benchmarks and the clusters here do it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from fenceline.errors import FencelineError

_T = TypeVar("_T")

NOT_YET: Final = (OSError, FencelineError, AssertionError, LookupError)
"""What a look may raise while the condition does not hold: broken connections, refusals, answers without the thing."""


def eventually(look: Callable[[], _T | None], what: str = "", *, wait_s: float = 60.0, step_s: float = 0.02) -> _T:
    """What `look` gives once it is true; an error of `NOT_YET` counts as not yet.

    Raises TimeoutError, which names `what` was waited for and comes from the last such error.
    """
    deadline = time.monotonic() + wait_s
    while True:
        trouble: BaseException | None = None
        try:
            found = look()
            if found:
                return found
        except NOT_YET as error:
            trouble = error
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what or look}: not within {wait_s:g} s") from trouble
        time.sleep(step_s)
