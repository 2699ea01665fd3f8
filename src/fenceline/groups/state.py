"""What the log of one partition of `__consumer_offsets` says: its groups and their committed offsets.

Owns the values that replay rebuilds and requests change. Decides nothing, writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fenceline.groups.classic.model import ClassicGroup
from fenceline.groups.consumer.model import ConsumerGroup
from fenceline.groups.offsets.offsets import OffsetStore


@dataclass(slots=True)
class ShardState:
    """The groups by name; a name belongs to one kind of group, apart from pending changes of its protocol."""

    classic: dict[str, ClassicGroup] = field(default_factory=dict)
    consumer: dict[str, ConsumerGroup] = field(default_factory=dict)
    foreign: set[str] = field(default_factory=set)
    """Share and streams groups in the log: they exist, but not for consumers."""
    offsets: OffsetStore = field(default_factory=OffsetStore)
    skipped_record_count: int = 0
    """Records of kinds that this coordinator does not serve (share and streams groups)."""

    def has_group(self, group_id: str) -> bool:
        """Of any kind."""
        return group_id in self.classic or group_id in self.consumer or group_id in self.foreign
