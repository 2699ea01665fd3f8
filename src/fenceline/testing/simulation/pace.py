"""How long a simulated client thinks between two requests.

Owns bursts and rests. What a busy story costs grows with its requests, what it may find with its faults: so clients ask
in bursts, and faults meet a cluster that is under load, one that just was, and one at rest.
"""

from __future__ import annotations

from random import Random
from typing import Final

_BURST: Final = (3, 12)
"""Requests from one rest to the next."""
_REST_S: Final = (0.2, 1.2)
_LEISURELY_MS: Final = 100.0
"""Who thinks as long as this has no need to rest."""


class Pace:
    """Of one client, drawn from its random source."""

    def __init__(self, rng: Random, think_ms: float) -> None:
        """`think_ms` on average; busy clients ask in bursts."""
        self._rng = rng
        self._longest_s = think_ms / 500
        self._rests = think_ms < _LEISURELY_MS
        self._left = rng.randint(*_BURST) if self._rests else 0
        """Requests until the next rest."""

    def next_s(self) -> float:
        """Seconds from an answer to the next request."""
        think_s = self._rng.random() * self._longest_s + 0.0001
        if self._rests:
            self._left -= 1
            if self._left <= 0:
                self._left = self._rng.randint(*_BURST)
                think_s += self._rng.uniform(*_REST_S)
        return think_s
