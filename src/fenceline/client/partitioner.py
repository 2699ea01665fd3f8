"""Which partition a record goes to.

Owns the rule of Kafka's own producer: a record with a key goes to murmur2(key) modulo the partitions, so the same key
goes to the same partition from every client; records without a key stick to one partition for a batch and then move
on (KIP-480), which makes few large batches of many small ones.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from fenceline.records.kernel import murmur2


def partition_of_key(key: bytes, partition_count: int) -> int:
    """As Java's `Utils.toPositive(Utils.murmur2(key)) % numPartitions`."""
    return murmur2(key) % partition_count


class Sticky:
    """The partition for records without a key; `move_on` after each batch."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()
        self._current: dict[str, int] = {}

    def current(self, topic: str, available: Sequence[int]) -> int:
        chosen = self._current.get(topic)
        if chosen is None:
            chosen = self._current[topic] = self._rng.choice(available)
        return chosen

    def move_on(self, topic: str, available: Sequence[int]) -> int:
        """Another partition than now, where there is one."""
        now = self._current.get(topic)
        others = [p for p in available if p != now] or list(available)
        chosen = self._current[topic] = self._rng.choice(others)
        return chosen
