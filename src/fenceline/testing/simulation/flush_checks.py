"""Durability of topics with `flush.messages=1`: what a replica acknowledges is durable on its disk.

Owns the comparison of a batch with the durable bytes of one log, and the partitions to which it applies. Two moments
count, because each replica acknowledges for itself:

- A follower acknowledges by its next fetch. So what a leader reports as committed is durable on each other member of
  the in-sync set that the commit is based on.
- A leader acknowledges by its response to the producer (acks=all and acks=1), not by the high watermark: consumers may
  read a record that the leader has not flushed if all other members of the in-sync set have it.

Compacted logs are excluded, because compaction replaces batches. So are topics whose setting was ever different, or was
sent again: until a broker receives it, records may have been acknowledged under the previous setting.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from fenceline.testing.sim_disk import SimDisk
from fenceline.testing.simulation.checks import InvariantBroken
from fenceline.testing.simulation.world import StoredBatch

if TYPE_CHECKING:
    from fenceline.log.partition.partition_log import PartitionLog

FLUSH_MESSAGES: Final = "flush.messages"


def check_durable(disk: SimDisk, log: PartitionLog, batches: Iterable[StoredBatch], where: str) -> None:
    """Batches that the log has must be durable on its disk; missing ones are found by other checks. Raises
    InvariantBroken."""
    bases = [segment.base_offset for segment in log.segments]
    for batch in batches:
        number = bisect_right(bases, batch.base_offset) - 1
        if number < 0 or not log.log_start_offset <= batch.base_offset < batch.next_offset <= log.log_end_offset:
            continue
        segment = log.segments[number]
        directory, _, name = segment.path.rpartition("/")
        has_it = batch.content in (disk.peek(segment.path) or b"")
        is_durable = name in disk.durable_names(directory) and batch.content in disk.durable_content(directory, name)
        if has_it and not is_durable:
            raise InvariantBroken(
                f"{where}: acknowledged the batch at {batch.base_offset} of epoch {batch.epoch} before it was flushed"
                " (durability)"
            )
