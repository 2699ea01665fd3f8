"""One partition of `__consumer_offsets`: its groups and their offsets, from the replay of its log until it is unloaded.

Owns the composition of the parts that act on one `ShardState`, which of them serves a classic request (by the kind of
the group), and the dispatch of timers. Never executes a duty by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Final
from uuid import UUID

from fenceline.errors import ErrorCode, PeerError
from fenceline.groups.classic.membership import ClassicMembership
from fenceline.groups.classic.model import ClassicGroup, ClassicGroupMember
from fenceline.groups.classic.rebalance import Rebalance
from fenceline.groups.classic.states import GroupState
from fenceline.groups.consumer.classic_members import ClassicMembers
from fenceline.groups.consumer.groups import ConsumerGroups
from fenceline.groups.consumer.membership import ConsumerMembership
from fenceline.groups.consumer.migration import Migration
from fenceline.groups.consumer.model import ConsumerGroup, ConsumerMember, DescribedConsumerGroup
from fenceline.groups.consumer.subscriptions import Subscriptions
from fenceline.groups.consumer.targets import TargetAssignments
from fenceline.groups.consumer.topics import TopicHashes
from fenceline.groups.deleted_topics import DeletedTopics
from fenceline.groups.messages import (
    ClassicHeartbeat,
    DescribedGroup,
    Duty,
    HeartbeatResponse,
    JoinRequest,
    LeaveRequest,
    LeaveResponse,
    ListedGroup,
    Now,
    PositionsDropped,
    SyncRequest,
    Ticket,
)
from fenceline.groups.offset_requests import OffsetRequests
from fenceline.groups.removals import Removals, RetentionRounds
from fenceline.groups.replay import GroupReplay, replay_record
from fenceline.groups.settings import GroupSettings
from fenceline.groups.state import ShardState
from fenceline.groups.timers import PartitionTimers, TimerKey, TimerKind
from fenceline.groups.writes import Writes
from fenceline.metadata.image import MetadataImage
from fenceline.rng import Rng

_RESUMED_AT_ONCE: Final = 100
"""10 us each: thousands of members may be loaded at once."""


class Shard:
    def __init__(
        self,
        partition: int,
        epoch: int,
        settings: GroupSettings,
        rng: Rng,
        next_write_id: Callable[[], int],
        epoch_end: Callable[[str, int, int], int],
        image: Callable[[], MetadataImage],
        hashes: TopicHashes,
        rounds: RetentionRounds,
    ) -> None:
        state, timers = ShardState(), PartitionTimers(partition)
        writes = Writes(partition, epoch, next_write_id, state.offsets)
        rebalance = Rebalance(state.classic, settings.initial_rebalance_delay_ms, writes, timers)
        consumers = ConsumerGroups(
            state.consumer, state.classic, state.foreign, settings.consumer, writes, timers, image, hashes
        )
        targets = TargetAssignments(consumers, timers)
        subscriptions = Subscriptions(consumers, targets)
        migration = Migration(consumers, state.classic, state.foreign, rebalance, timers, settings.max_size)
        membership = ConsumerMembership(consumers, subscriptions, targets, migration, rng)
        self.partition: Final = partition
        self.epoch: Final = epoch
        self.state: Final = state
        self.writes: Final = writes
        self.subscriptions: Final = subscriptions
        self.consumer_membership: Final = membership
        self.offset_requests: Final = OffsetRequests(
            state, settings.offset_metadata_max_chars, rebalance, writes, epoch_end
        )
        self.removals: Final = Removals(state, settings, consumers, writes, timers, rounds)
        self.deleted_topics: Final = DeletedTopics(state, writes, image)
        self.timers: Final = timers
        self._rebalance = rebalance
        self._membership = ClassicMembership(
            state.classic,
            state.foreign,
            settings.max_size,
            settings.new_member_join_timeout_ms,
            rebalance,
            writes,
            timers,
            rng,
        )
        self._consumers = consumers
        self._classic_members = ClassicMembers(consumers, subscriptions, targets, migration, membership, writes, timers)
        self._deleted_while_loading: list[tuple[str, UUID]] = []
        self._classic_to_resume = _classic_members(state.classic)
        self._consumers_to_resume = _consumer_members(state.consumer)

    def pop_duties(self) -> list[Duty]:
        duties = self.writes.pop_duties()
        if dropped := self.state.offsets.pop_dropped():
            duties.append(PositionsDropped(tuple(dropped)))
        return duties

    # --- classic requests ----------------------------------------

    def join(self, ticket: Ticket, request: JoinRequest, now: Now) -> None:
        group = self.state.consumer.get(request.group_id)
        if group is None:
            self._membership.join(ticket, request, now)
        elif group.is_empty:
            # A classic group can have the name of an empty one.
            self._consumers.remove(group, now)
            self._membership.join(ticket, request, now)
        else:
            self._classic_members.join(group, ticket, request, now)

    def sync(self, ticket: Ticket, request: SyncRequest, now: Now) -> None:
        group = self.state.consumer.get(request.group_id)
        if group is None or group.is_empty:
            self._membership.sync(ticket, request, now)
        else:
            self._classic_members.sync(group, ticket, request, now)

    def heartbeat(self, request: ClassicHeartbeat, now: Now) -> HeartbeatResponse:
        group = self.state.consumer.get(request.group_id)
        if group is None or group.is_empty:
            return self._membership.heartbeat(request, now)
        return self._classic_members.heartbeat(group, request, now)

    def leave(self, request: LeaveRequest, now: Now) -> LeaveResponse:
        group = self.state.consumer.get(request.group_id)
        if group is None or group.is_empty:
            return self._membership.leave(request, now)
        return self._classic_members.leave(group, request, now)

    # --- groups as a whole ----------------------------------------

    def list_groups(self, states: frozenset[str], types: frozenset[str]) -> list[ListedGroup]:
        """`states` and `types` in lower case; an empty filter matches everything."""
        every = chain((group.listed() for group in self.state.classic.values()), self._consumers.listed())
        return [
            listed
            for listed in every
            if (not states or listed.state.lower() in states) and (not types or listed.group_type.lower() in types)
        ]

    def describe(self, group_id: str) -> DescribedGroup:
        """Raises PeerError GROUP_ID_NOT_FOUND."""
        group = self.state.classic.get(group_id)
        if group is None:
            why = "is not a classic group" if self.state.has_group(group_id) else "not found"
            raise PeerError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {why}.")
        protocol_name = group.protocol_name if group.state is GroupState.STABLE else None
        return DescribedGroup(
            group_id,
            state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=protocol_name or "",
            members=tuple(member.described(protocol_name) for member in group.members.values()),
        )

    def describe_consumer_group(self, group_id: str) -> DescribedConsumerGroup:
        """Raises PeerError GROUP_ID_NOT_FOUND."""
        return self._consumers.describe(group_id)

    # --- time ----------------------------------------

    def on_timer(self, key: TimerKey, now: Now) -> None:
        if key.group_id in self.state.consumer:
            self.consumer_membership.on_timer(key, now)
            return
        match key.kind:
            case TimerKind.SESSION:
                self._membership.on_session_timeout(key.group_id, key.member_id, now)
            case TimerKind.JOIN:
                self._rebalance.on_join_timeout(key.group_id, now)
            case TimerKind.SYNC:
                self._rebalance.on_sync_timeout(key.group_id, now)
            case TimerKind.EXPIRY:
                self.removals.expire_some(now)

    def check(self) -> None:
        """Assert the invariants of all groups and offsets: for tests, after any event."""
        for group in self.state.classic.values():
            self._rebalance.check(group)
        self._consumers.check()
        self.state.offsets.check()

    # --- replay ----------------------------------------

    def replaying(self) -> GroupReplay:
        """Applies the log, batch by batch."""
        return GroupReplay(self.state)

    def replay(self, key: bytes | None, value: bytes | None, now: Now, transaction_of: int | None = None) -> None:
        """Apply one record of the log (`replay.replay_record`). Raises InternalError on an unreadable one."""
        replay_record(self.state, key, value, now, transaction_of)

    def on_deleted_while_loading(self, topics: Sequence[tuple[str, UUID]]) -> None:
        """Topics, by name and id, were deleted during the load: their offsets are deleted after it."""
        self._deleted_while_loading.extend(topics)

    def replay_marker(self, producer_id: int, *, committed: bool) -> None:
        """Apply a transaction's end."""
        self.state.offsets.end_transaction(producer_id, committed=committed)

    def pop_deleted_while_loading(self) -> list[tuple[str, UUID]]:
        deleted, self._deleted_while_loading = self._deleted_while_loading, []
        return deleted

    def resume_some(self, now: Now) -> bool:
        """Replay is complete: arm the timers of some members. Whether there may be more."""
        left = _RESUMED_AT_ONCE
        for classic_group, classic_member in islice(self._classic_to_resume, left):
            self._rebalance.keep_alive(classic_group, classic_member, now)
            left -= 1
        for group, member in islice(self._consumers_to_resume, left):
            self._consumers.watch(group, member, now)
            left -= 1
        return not left

    def resume(self, now: Now) -> None:
        """Replay is complete: timers run from here on."""
        while self.resume_some(now):
            pass
        for group in self.state.classic.values():
            self._membership.prepare_if_too_large(group, now)
        self.removals.arm_expiry(now)
        self.deleted_topics.loaded(self.pop_deleted_while_loading())

    def unload(self, now: Now) -> None:
        """Another broker coordinates this partition: waiting requests get NOT_COORDINATOR; late writes change
        nothing."""
        for group in self.state.classic.values():
            self._rebalance.unload(group, now)
        self.writes.unload(now)
        self.state.classic.clear()
        self._consumers.unload()
        self.removals.end_round()


def _classic_members(groups: Mapping[str, ClassicGroup]) -> Iterator[tuple[ClassicGroup, ClassicGroupMember]]:
    """Of the groups that are there when the first one is asked for."""
    for group in groups.values():
        for member in group.members.values():
            yield group, member


def _consumer_members(groups: Mapping[str, ConsumerGroup]) -> Iterator[tuple[ConsumerGroup, ConsumerMember]]:
    for group in groups.values():
        for member in group.members.values():
            yield group, member
