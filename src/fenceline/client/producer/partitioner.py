"""The partition of a record, as in Kafka's own producer.

A record with a key goes to partition murmur2(key) modulo the partition count, so all clients send a key to the same
partition; records without a key stay in one partition for a batch and then switch (KIP-480), for larger batches.
"""

from __future__ import annotations

from collections.abc import Sequence

from fenceline.client.core.surroundings import RandomNumbers, surroundings
from fenceline.records.kernel import murmur2


def partition_of_key(key: bytes, partition_count: int) -> int:
    """As `Utils.toPositive(Utils.murmur2(key)) % numPartitions` in Java."""
    return murmur2(key) % partition_count


class StickyPartitioner:
    """The partition for records without a key; call `switch` after each batch."""

    def __init__(self, rng: RandomNumbers | None = None) -> None:
        self._rng = rng or surroundings().rng
        self._current: dict[str, int] = {}

    def current(self, topic: str, available: Sequence[int]) -> int:
        chosen = self._current.get(topic)
        if chosen is None:
            chosen = self._current[topic] = self._rng.choice(available)
        return chosen

    def switch(self, topic: str, available: Sequence[int]) -> int:
        """Switch to another partition if there is one."""
        now = self._current.get(topic)
        others = [p for p in available if p != now] or list(available)
        chosen = self._current[topic] = self._rng.choice(others)
        return chosen
