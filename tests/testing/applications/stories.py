"""Small stories and applications for the tests of simulated applications."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from fenceline.testing.applications.loading import stories_of
from fenceline.testing.applications.story import Story

EXAMPLE: Final = Path(__file__).parents[3] / "examples" / "orders"
FAST: Final = {"request.timeout.ms": 2000, "session.timeout.ms": 1500, "heartbeat.interval.ms": 500}
"""For consumers, so that time-outs happen within seconds."""


def story_of_orders() -> Story:
    """That of the service without a mistake."""
    return _story("simulated.py")


def story_of_the_mistake() -> Story:
    """That of the service that commits first."""
    return _story("simulated_mistake.py")


def _story(file: str) -> Story:
    try:
        return stories_of(str(EXAMPLE / file))[0]
    finally:
        sys.path[:] = [each for each in sys.path if each != str(EXAMPLE)]
