"""The two times that a coordinator needs, always passed together. Never reads a clock."""

from __future__ import annotations

from typing import NamedTuple


class Now(NamedTuple):
    wall_ms: int
    """Milliseconds since the epoch: written into records and used by retention."""
    monotonic_ms: int
    """Never decreases: deadlines use this time, so that a clock adjustment does not expire members."""
