"""Two directories of one partition: which of them is the log.

Owns the comparison. A move between directories that a loss of power interrupted leaves the log in one and what was to
take its place in the other, under the same name; so does Apache Kafka's when it is killed between its two renames. One
of them then goes on where the other ends. Where the two part, nobody but the operator knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fenceline.log.agreement import agreed_end

if TYPE_CHECKING:
    from fenceline.log.partition_log import PartitionLog


def the_longer(one: PartitionLog, other: PartitionLog) -> PartitionLog | None:
    """The one that has all that the other has, the first of two that are the same; None where they part."""
    longer, shorter = (one, other) if one.log_end_offset >= other.log_end_offset else (other, one)
    overlap = shorter.log_end_offset >= longer.log_start_offset
    if overlap and agreed_end(shorter, longer) == shorter.log_end_offset:
        return longer
    return None
