"""How many bytes of replication may pass in a second, for the partitions that are throttled: one side of a broker.

Owns the count of what has passed and the list of partitions that count. Never waits, never reads a clock, and never
decides about a replica: who is in sync is not held back, by Kafka's rule, though its bytes count like all others.

What has passed drains at the rate. As long as more than one second's worth is left, no more is let through; so on
average the rate holds, and a single answer may go beyond it once, whatever its size.

Rules: security.md A62.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ALL: Final = "*"
NO_RATE: Final = 2**63 - 1
"""Kafka's value for "as fast as it goes"."""


class ReplicationQuota:
    """One side's. Times are those of a monotonic clock in milliseconds, rates bytes a second."""

    def __init__(self) -> None:
        self.rate = NO_RATE
        self._partitions: dict[str, frozenset[int] | None] = {}
        """By topic; None for all of its partitions."""
        self._level_bytes = 0.0
        """What has passed and not drained."""
        self._as_of_ms = 0

    @property
    def is_active(self) -> bool:
        """Whether there is anything to count."""
        return self.rate < NO_RATE and bool(self._partitions)

    def set_rate(self, rate: int, now_ms: int) -> None:
        """From now on; what has passed before drains at the new rate."""
        self._drain(now_ms)
        self.rate = max(rate, 0)
        if self.rate >= NO_RATE:
            self._level_bytes = 0.0

    def set_partitions(self, topic: str, replicas: str, broker_id: int) -> None:
        """Of one topic: `partition:broker` pairs with commas between, or `*`; "" for none."""
        text = replicas.strip()
        if text == ALL:
            self._partitions[topic] = None
            return
        pairs = (item.split(":") for item in text.split(",") if item.strip())
        here = frozenset(int(partition) for partition, broker in pairs if int(broker) == broker_id)
        if here:
            self._partitions[topic] = here
        else:
            self._partitions.pop(topic, None)

    def covers(self, topic: str, partition: int) -> bool:
        """Whether a partition's bytes count, and may be held back."""
        if topic not in self._partitions:
            return False
        partitions = self._partitions[topic]
        return partitions is None or partition in partitions

    def passed(self, size_bytes: int, now_ms: int) -> None:
        """So much of what is covered has gone through."""
        if self.rate < NO_RATE:
            self._drain(now_ms)
            self._level_bytes += size_bytes

    def pause_ms(self, now_ms: int) -> int:
        """For how long nothing more of what is covered may pass; 0: it may."""
        self._drain(now_ms)
        above_bytes = self._level_bytes - self.rate
        if self.rate >= NO_RATE or above_bytes <= 0:
            return 0
        return _LONGEST_MS if not self.rate else min(int(above_bytes * 1000 / self.rate) + 1, _LONGEST_MS)

    def _drain(self, now_ms: int) -> None:
        elapsed_ms, self._as_of_ms = max(now_ms - self._as_of_ms, 0), max(now_ms, self._as_of_ms)
        self._level_bytes = max(self._level_bytes - self.rate * elapsed_ms / 1000, 0.0)


_LONGEST_MS: Final = 10_000
"""Looked at anew after that: the rate may have been raised meanwhile."""


class Throttles:
    """Both sides of one broker: `leader` for what it sends to followers, `follower` for what it fetches."""

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self.leader = ReplicationQuota()
        self.follower = ReplicationQuota()

    def set_rates(self, broker_config: Mapping[str, str], now_ms: int) -> None:
        """`*.replication.throttled.rate`; none is no limit."""
        for side, name in ((self.leader, "leader"), (self.follower, "follower")):
            side.set_rate(int(broker_config.get(f"{name}.replication.throttled.rate", NO_RATE)), now_ms)

    def set_topic(self, topic: str, topic_config: Mapping[str, str]) -> None:
        """`*.replication.throttled.replicas`; without them nothing of the topic is throttled."""
        for side, name in ((self.leader, "leader"), (self.follower, "follower")):
            replicas = topic_config.get(f"{name}.replication.throttled.replicas", "")
            side.set_partitions(topic, replicas, self._broker_id)
