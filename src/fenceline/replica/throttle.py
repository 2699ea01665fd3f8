"""Replication quotas: how many bytes per second may pass for throttled partitions, on one side of a broker.

Owns the count of passed bytes and the list of throttled partitions. Never waits, never reads a clock, and never decides
about a replica: by Kafka's rule, in-sync replicas are not delayed, although their bytes count.

Passed bytes drain at the rate. While more than one second's worth is left, nothing more passes; so the rate holds on
average, and a single response may exceed it once, whatever its size.

Rules: security.md A62.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ALL: Final = "*"
NO_RATE: Final = 2**63 - 1
"""Kafka's value for no limit."""


class ReplicationQuota:
    """The quota of one side. Times are monotonic, in milliseconds; rates are in bytes per second."""

    def __init__(self) -> None:
        self.rate = NO_RATE
        self._partitions: dict[str, frozenset[int] | None] = {}
        """By topic; None for all of its partitions."""
        self._level_bytes = 0.0
        """Bytes that have passed and not drained yet."""
        self._as_of_ms = 0

    @property
    def is_active(self) -> bool:
        """Whether there is a rate and a throttled partition."""
        return self.rate < NO_RATE and bool(self._partitions)

    def set_rate(self, rate: int, now_ms: int) -> None:
        """Set the rate; bytes that have already passed drain at the new rate."""
        self._drain(now_ms)
        self.rate = max(rate, 0)
        if self.rate >= NO_RATE:
            self._level_bytes = 0.0

    def set_partitions(self, topic: str, replicas: str, broker_id: int) -> None:
        """Set the throttled replicas of one topic: comma-separated `partition:broker` pairs, or `*`; "" for none."""
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
        """Whether a partition's bytes count, and it may be delayed."""
        if topic not in self._partitions:
            return False
        partitions = self._partitions[topic]
        return partitions is None or partition in partitions

    def passed(self, size_bytes: int, now_ms: int) -> None:
        """Count bytes of throttled partitions that have passed."""
        if self.rate < NO_RATE:
            self._drain(now_ms)
            self._level_bytes += size_bytes

    def pause_ms(self, now_ms: int) -> int:
        """How long throttled partitions must wait; 0: not at all."""
        self._drain(now_ms)
        above_bytes = self._level_bytes - self.rate
        if self.rate >= NO_RATE or above_bytes <= 0:
            return 0
        return _LONGEST_MS if not self.rate else min(int(above_bytes * 1000 / self.rate) + 1, _LONGEST_MS)

    def _drain(self, now_ms: int) -> None:
        elapsed_ms, self._as_of_ms = max(now_ms - self._as_of_ms, 0), max(now_ms, self._as_of_ms)
        self._level_bytes = max(self._level_bytes - self.rate * elapsed_ms / 1000, 0.0)


_LONGEST_MS: Final = 10_000
"""Limit of a pause, after which the quota is checked again: the rate may have been raised."""


class Throttles:
    """Both sides of one broker: `leader` for bytes sent to followers, `follower` for bytes fetched."""

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self.leader = ReplicationQuota()
        self.follower = ReplicationQuota()

    def set_rates(self, broker_config: Mapping[str, str], now_ms: int) -> None:
        """Apply `*.replication.throttled.rate`; no value is no limit."""
        for side, name in ((self.leader, "leader"), (self.follower, "follower")):
            side.set_rate(int(broker_config.get(f"{name}.replication.throttled.rate", NO_RATE)), now_ms)

    def set_topic(self, topic: str, topic_config: Mapping[str, str]) -> None:
        """Apply `*.replication.throttled.replicas`; without them the topic is not throttled."""
        for side, name in ((self.leader, "leader"), (self.follower, "follower")):
            replicas = topic_config.get(f"{name}.replication.throttled.replicas", "")
            side.set_partitions(topic, replicas, self._broker_id)
