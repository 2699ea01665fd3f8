"""Randomness as an argument: the interface of the generator that the sans-I/O packages are given."""

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
