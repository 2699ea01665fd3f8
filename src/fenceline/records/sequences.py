"""Sequence numbers of producers: they count records, and wrap to 0 after 2^31 - 1 (KIP-98).

Owns their order. Never knows which sequences were sent or appended.
"""

from __future__ import annotations

from typing import Final

MAX_SEQUENCE: Final = (1 << 31) - 1
_HALF: Final = 1 << 30


def is_after(one: int, other: int) -> bool:
    """Whether the sequence `one` comes after `other`: less than half the cycle ahead of it. Neither is negative."""
    return 0 < (one - other) & MAX_SEQUENCE < _HALF
