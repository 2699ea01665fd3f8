"""The two times that a coordinator needs, always handed in together. Never reads a clock."""

from __future__ import annotations

from typing import NamedTuple


class Now(NamedTuple):
    wall_ms: int
    """Milliseconds since the epoch: goes into records and is what retention counts."""
    monotonic_ms: int
    """Never goes back: deadlines are in this time, so that a clock that is set does not expire members."""
