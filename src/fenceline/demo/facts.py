"""What one demo found out, for the terminal and the page."""

from __future__ import annotations

from dataclasses import dataclass, field

from fenceline.demo.checks import Check


@dataclass(slots=True)
class Facts:
    """Filled in while the demo runs."""

    produced: int = 0
    producing_s: float = 0.0
    restarted_at_rows: int = 0
    streaming_s: float = 0.0
    log_ends: dict[int, int] = field(default_factory=dict)
    """End offset of each partition of the topic."""
    checks: list[Check] = field(default_factory=list)
