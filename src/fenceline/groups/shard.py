"""One partition of `__consumer_offsets`: its groups and their offsets, from the replay of its log until it is unloaded.

Owns the groups, the pending duties, and the dispatch of timers. `membership` owns members, `offsets.requests` offsets,
`removals` deletions, `writes` the order of writes and responses. Never executes a duty by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final

from fenceline.errors import ErrorCode, PeerError
from fenceline.groups.classic.membership import Membership
from fenceline.groups.classic.model import Group
from fenceline.groups.classic.rebalance import Rebalance
from fenceline.groups.classic.states import GroupState
from fenceline.groups.consumer.groups import ConsumerGroups
from fenceline.groups.consumer.topics import TopicHashes
from fenceline.groups.messages import (
    Answer,
    DescribedGroup,
    Duty,
    ListedGroup,
    Now,
    Outcome,
    Ticket,
)
from fenceline.groups.offsets.offsets import OffsetSlot, OffsetStore
from fenceline.groups.offsets.requests import OffsetRequests
from fenceline.groups.removals import Removals
from fenceline.groups.replay import Replay, replay_record
from fenceline.groups.settings import GroupSettings
from fenceline.groups.timers import TimerKey, TimerKind, Timers
from fenceline.groups.writes import Writes
from fenceline.ids import encode_uuid, random_id
from fenceline.rng import Rng

if TYPE_CHECKING:
    from fenceline.metadata.image import MetadataImage


class Shard:
    def __init__(
        self,
        partition: int,
        epoch: int,
        settings: GroupSettings,
        timers: Timers,
        rng: Rng,
        next_write_id: Callable[[], int],
        epoch_end: Callable[[str, int, int], int],
        image: Callable[[], MetadataImage],
        hashes: TopicHashes,
    ) -> None:
        self.partition = partition
        self.epoch = epoch
        self.settings = settings
        self.groups: dict[str, Group] = {}
        self.offsets = OffsetStore()
        self.duties: list[Duty] = []
        self.skipped_record_count = 0
        """Records of kinds that this coordinator does not serve (share and streams groups)."""
        self.foreign_groups: set[str] = set()
        """Share and streams groups in the log: they exist, but not for consumers."""
        self.writes: Final = Writes(self, next_write_id)
        self.removals: Final = Removals(self)
        self.rebalance: Final = Rebalance(self)
        self.membership: Final = Membership(self, self.rebalance)
        self.offset_requests: Final = OffsetRequests(self)
        self.consumers: Final = ConsumerGroups(self, image, hashes)
        self._timers = timers
        self._rng = rng
        self._epoch_end = epoch_end
        self._deleted_while_loading: list[tuple[str, int]] = []

    # --- duties, timers, ids ----------------------------------------

    def answer(self, ticket: Ticket, outcome: Outcome) -> None:
        self.duties.append(Answer(ticket, outcome))

    def arm(self, kind: TimerKind, group_id: str, member_id: str, deadline_ms: int) -> None:
        self._timers.arm(TimerKey(self.partition, kind, group_id, member_id), deadline_ms)

    def disarm(self, kind: TimerKind, group_id: str, member_id: str = "") -> None:
        self._timers.disarm(TimerKey(self.partition, kind, group_id, member_id))

    def is_armed(self, kind: TimerKind, group_id: str, member_id: str = "") -> bool:
        return self._timers.deadline_ms(TimerKey(self.partition, kind, group_id, member_id)) is not None

    def new_consumer_id(self) -> str:
        """Of a consumer group member that did not generate its own: in the form of Kafka's ids."""
        return encode_uuid(random_id(self._rng))

    def has_group(self, group_id: str) -> bool:
        """Of any kind."""
        return group_id in self.groups or group_id in self.consumers.groups or group_id in self.foreign_groups

    def new_member_id(self, prefix: str) -> str:
        return f"{prefix}-{random_id(self._rng)}"

    def epoch_end(self, slot: OffsetSlot, leader_epoch: int) -> int:
        """Where this epoch ends now in the log of the slot's partition; -1 if unknown here."""
        return self._epoch_end(slot.topic, slot.partition, leader_epoch)

    def create_group(self, group_id: str, now: Now) -> Group:
        if group_id in self.foreign_groups:
            raise PeerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        group = self.groups[group_id] = Group(group_id, now.wall_ms)
        return group

    # --- groups as a whole ----------------------------------------

    def list_groups(self, states: frozenset[str], types: frozenset[str]) -> list[ListedGroup]:
        """`states` and `types` in lower case; an empty filter matches everything."""
        return [
            listed
            for listed in chain((group.listed() for group in self.groups.values()), self.consumers.listed())
            if (not states or listed.state.lower() in states) and (not types or listed.group_type.lower() in types)
        ]

    def describe(self, group_id: str) -> DescribedGroup:
        """Raises PeerError GROUP_ID_NOT_FOUND."""
        group = self.groups.get(group_id)
        if group is None:
            why = "is not a classic group" if self.has_group(group_id) else "not found"
            raise PeerError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {why}.")
        protocol_name = group.protocol_name if group.state is GroupState.STABLE else None
        return DescribedGroup(
            group_id,
            state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=protocol_name or "",
            members=tuple(member.described(protocol_name) for member in group.members.values()),
        )

    # --- time ----------------------------------------

    def on_timer(self, key: TimerKey, now: Now) -> None:
        if key.group_id in self.consumers.groups:
            self.consumers.on_timer(key, now)
            return
        match key.kind:
            case TimerKind.SESSION:
                self.membership.on_session_timeout(key.group_id, key.member_id, now)
            case TimerKind.JOIN:
                self.rebalance.on_join_timeout(key.group_id, now)
            case TimerKind.SYNC:
                self.rebalance.on_sync_timeout(key.group_id, now)
            case TimerKind.EXPIRY:
                self.removals.expire_some(now)

    # --- replay ----------------------------------------

    def replaying(self) -> Replay:
        """Applies the log, batch by batch."""
        return Replay(self)

    def replay(self, key: bytes | None, value: bytes | None, now: Now, transaction_of: int | None = None) -> None:
        """Apply one record of the log (`replay.replay_record`). Raises InternalError on an unreadable one."""
        replay_record(self, key, value, now, transaction_of)

    def on_deleted_while_loading(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Topic partitions were deleted during the load: their offsets are deleted after it."""
        self._deleted_while_loading.extend(partitions)

    def replay_marker(self, producer_id: int, *, committed: bool) -> None:
        """Apply a transaction's end."""
        self.offsets.end_transaction(producer_id, committed=committed)

    def pop_deleted_while_loading(self) -> list[tuple[str, int]]:
        deleted, self._deleted_while_loading = self._deleted_while_loading, []
        return deleted

    def resume(self, now: Now) -> None:
        """Replay is complete: timers run from here on."""
        for group in self.groups.values():
            self.membership.resume(group, now)
        self.consumers.resume(now)
        self.removals.arm_expiry(now)
        if deleted := self.pop_deleted_while_loading():
            self.offset_requests.on_partitions_deleted(deleted, now)

    def unload(self, now: Now) -> None:
        """Another broker coordinates this partition: waiting requests get NOT_COORDINATOR; late writes change
        nothing."""
        for group in self.groups.values():
            self.membership.unload(group, now)
        self.writes.unload(now)
        self.groups.clear()
        self.consumers.unload()
        self._timers.disarm_partition(self.partition)
