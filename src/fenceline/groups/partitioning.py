"""Which partition of `__consumer_offsets` coordinates a group. Owns that hash, nothing else."""

from __future__ import annotations


def java_string_hash(text: str) -> int:
    """`String.hashCode` of Java: over UTF-16 code units, as a signed 32-bit number."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for position in range(0, len(units), 2):
        value = (31 * value + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def partition_for(group_id: str, partition_count: int) -> int:
    """The partition of a group. The smallest int32 has no positive counterpart and counts as 0, as in Kafka."""
    value = java_string_hash(group_id)
    return (0 if value == -(1 << 31) else abs(value)) % partition_count
