"""Log lines of simulated applications and of the client library: in the story instead of on the terminal.

Owns the handler of the standard `logging` module while a seed runs. Warnings and errors become lines of the story;
lower levels are dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Final

from fenceline.testing.applications.timeline import StoryTimeline
from fenceline.testing.simulation.loop import SimLoop

_SHOWN: Final = 160


class _StoryHandler(logging.Handler):
    def __init__(self, timeline: StoryTimeline) -> None:
        super().__init__(logging.WARNING)
        self._timeline = timeline

    def emit(self, record: logging.LogRecord) -> None:
        try:
            loop: object = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        who = loop.name if isinstance(loop, SimLoop) else "a job"
        text = " ".join(record.getMessage().split())
        cut = f"{text[:_SHOWN]} ..." if len(text) > _SHOWN else text
        self._timeline.add(f"{who} logs {record.levelname} {record.name}: {cut}")


@contextlib.contextmanager
def captured_logs(timeline: StoryTimeline) -> Iterator[None]:
    """Write warnings to the timeline, and nothing anywhere else."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    handler = _StoryHandler(timeline)
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.handlers[:] = before
        root.setLevel(level)
