"""Randomness as an argument: what the sans-I/O rooms may ask of the generator that is handed to them."""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import Any, Protocol


class Rng(Protocol):
    """The part of `random.Random` that protocol logic uses. A seeded one replays a run."""

    def getrandbits(self, count: int, /) -> int: ...

    def randrange(self, stop: int, /) -> int:
        """An int from 0 to `stop` exclusive."""
        ...

    def shuffle(self, items: MutableSequence[Any], /) -> None:
        """Shuffle in place."""
        ...
