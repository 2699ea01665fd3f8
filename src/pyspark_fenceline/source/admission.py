"""The size of a micro-batch: `maxOffsetsPerTrigger`, `minOffsetsPerTrigger`, `maxTriggerDelay`.

Pure: time is a parameter. Spark has no composite limit for Python sources (`pyspark.md S3`), so these rules are not a
`ReadLimit`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fenceline.ids import TopicPartition


def limit_offsets(
    limit: int, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """End offsets that limit the batch to `limit` records, in proportion to what each partition has.

    Every partition with records contributes at least one, so that a small partition never starves; with more such
    partitions than `limit` the sum exceeds it. Partitions without new records keep their end.
    """
    sizes = {tp: end - starts[tp] for tp, end in ends.items() if end > starts[tp]}
    total = sum(sizes.values())
    if total <= limit:
        return dict(ends)
    shares = {tp: max(1, limit * size // total) for tp, size in sizes.items()}
    # The remainder of rounding down goes to the partitions that lost most by it.
    left = limit - sum(shares.values())
    for tp in sorted(sizes, key=lambda tp: (-(limit * sizes[tp] % total), tp)):
        if left <= 0:
            break
        if shares[tp] < sizes[tp]:
            shares[tp] += 1
            left -= 1
    return {tp: starts[tp] + shares[tp] if tp in shares else end for tp, end in ends.items()}


@dataclass(slots=True)
class TriggerGate:
    """Delays a batch until it has enough records. The first one always runs, as in Spark's Kafka source."""

    min_offsets: int | None
    max_delay_ms: int
    last_trigger_ms: int | None = None

    def admit(self, available: int, now_ms: int) -> bool:
        """Whether a batch of `available` new records (> 0) may run now."""
        if (
            self.min_offsets is not None
            and self.last_trigger_ms is not None
            and available < self.min_offsets
            and now_ms - self.last_trigger_ms < self.max_delay_ms
        ):
            return False
        self.last_trigger_ms = now_ms
        return True
