"""A classic group and its members: data and the invariants between its fields. Decides nothing.

Invariants (asserted by `ClassicGroup.check`): every static instance id and every pending sync belongs to a member, the leader
is a member, a member is never pending as well, and the counts of protocols and parked joins match the members.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from fenceline.errors import ErrorCode, InternalError, PeerError
from fenceline.groups.classic.states import GroupState, Step, next_state
from fenceline.groups.messages import (
    DescribedMember,
    JoinedMember,
    ListedGroup,
    Protocols,
    Ticket,
)

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
GROUP_TYPE: Final = "classic"


class StoredMember(NamedTuple):
    """A static member as stored in the log."""

    member_id: str
    protocols: Protocols
    rebalance_timeout_ms: int
    session_timeout_ms: int


@dataclass(slots=True)
class ClassicGroupMember:
    """One member of a group."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False
    """Its first JoinGroup is still parked: it does not know its id, so parking does not keep it alive."""
    join_ticket: Ticket | None = None
    sync_ticket: Ticket | None = None
    open_replacements: int = 0
    """Number of new ids of a static member whose writes are pending."""
    stored_state: StoredMember | None = None
    """The state to restore if those writes are rejected."""

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def is_kept_alive_by_waiting(self) -> bool:
        """A member that waits for a response cannot send heartbeats."""
        return not self.is_new and (self.join_ticket is not None or self.sync_ticket is not None)

    def metadata(self, protocol_name: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        raise InternalError(f"member {self.member_id} does not support the protocol {protocol_name!r}")

    def described(self, protocol_name: str | None) -> DescribedMember:
        """None leaves the metadata out: only a stable group shows it."""
        return DescribedMember(
            self.member_id,
            self.group_instance_id,
            self.client_id,
            self.client_host,
            b"" if protocol_name is None else self.metadata(protocol_name),
            self.assignment,
        )


@dataclass(slots=True)
class ClassicGroup:
    """One group: its members, its generation, and what they agreed on."""

    group_id: str
    state_since_ms: int
    """When the state last changed; -1 if an old record does not have it."""
    state: GroupState = GroupState.EMPTY
    previous_state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str | None = None
    members: dict[str, ClassicGroupMember] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    """Instance id to member id."""
    pending_joins: set[str] = field(default_factory=set)
    """Ids returned with MEMBER_ID_REQUIRED that have not joined yet."""
    pending_syncs: set[str] = field(default_factory=set)
    """Members of this generation that have not sent SyncGroup."""
    new_member_added: bool = False
    initial_delay_ms: int = 0
    initial_remaining_ms: int | None = None
    """The rest of the initial rebalance delay; None outside an initial rebalance."""
    subscribed_topics: frozenset[str] | None = None
    """None: not known."""
    _parked_joins: int = 0
    _supporters: dict[str, int] = field(default_factory=dict)

    # --- reading ----------------------------------------

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def is_consumer_group(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def all_joined(self) -> bool:
        return len(self.members) == self._parked_joins and not self.pending_joins

    @property
    def parked_join_count(self) -> int:
        return self._parked_joins

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of all members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these protocols can be in this group."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        return self.protocol_type == protocol_type and any(
            self._supporters.get(name, 0) == len(self.members) for name, _ in protocols
        )

    def is_subscribed_to(self, topic: str) -> bool:
        """A consumer group with an unreadable subscription counts as subscribed to every topic."""
        if self.subscribed_topics is None:
            return self.is_consumer_group
        return topic in self.subscribed_topics

    def require_member(self, member_id: str, group_instance_id: str | None) -> ClassicGroupMember:
        """The member. Raises PeerError UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if a newer one replaced it."""
        if group_instance_id is not None:
            current = self.static_members.get(group_instance_id)
            if current is None:
                raise PeerError(ErrorCode.UNKNOWN_MEMBER_ID)
            if current != member_id:
                raise PeerError(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise PeerError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def select_protocol(self) -> str:
        """Each member votes for its first protocol that all support. Most votes win, at a tie the first."""
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = next((name for name, _ in member.protocols if self._supporters[name] == len(self.members)), None)
            if choice is None:
                raise InternalError(f"group {self.group_id} has no protocol that all its members support")
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=votes.__getitem__)

    def joined_members(self) -> tuple[JoinedMember, ...]:
        """The leader's input for the assignment."""
        return tuple(
            JoinedMember(member.member_id, member.group_instance_id, member.metadata(self.protocol_name))
            for member in self.members.values()
        )

    def listed(self) -> ListedGroup:
        return ListedGroup(self.group_id, self.protocol_type or "", self.state.value, GROUP_TYPE)

    # --- changing ----------------------------------------

    def transition(self, step: Step, now_ms: int) -> None:
        """Apply a step of the transition table. Raises InternalError if the table does not allow it."""
        after = next_state(self.state, step)
        self.previous_state, self.state, self.state_since_ms = self.state, after, now_ms

    def add(self, member: ClassicGroupMember) -> None:
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self.static_members, "one member per instance id"
            self.static_members[member.group_instance_id] = member.member_id
        assert member.member_id not in self.members, f"member {member.member_id} joins group {self.group_id} once"
        self.members[member.member_id] = member
        self.leader_id = self.leader_id or member.member_id
        self._count(member.protocols, 1)
        self._parked_joins += member.join_ticket is not None
        self.pending_joins.discard(member.member_id)

    def remove(self, member_id: str) -> ClassicGroupMember | None:
        """Remove a member or a pending one; if it was the leader, the next member leads. The caller handles parked
        requests."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count(member.protocols, -1)
            self._parked_joins -= member.join_ticket is not None
            if member.group_instance_id is not None:
                self.static_members.pop(member.group_instance_id, None)
            if self.leader_id == member_id:
                self.leader_id = next(iter(self.members), None)
        self.pending_joins.discard(member_id)
        self.pending_syncs.discard(member_id)
        return member

    def update(
        self, member: ClassicGroupMember, protocols: Protocols, rebalance_timeout_ms: int, session_timeout_ms: int
    ) -> None:
        self._count(member.protocols, -1)
        member.protocols = protocols
        self._count(protocols, 1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def park_join(self, member: ClassicGroupMember, ticket: Ticket) -> Ticket | None:
        """Park a JoinGroup until the join phase ends. Returns the ticket that it displaces."""
        assert self.members.get(member.member_id) is member, f"{member.member_id} is no member of group {self.group_id}"
        displaced, member.join_ticket = member.join_ticket, ticket
        self._parked_joins += displaced is None
        return displaced

    def unpark_join(self, member: ClassicGroupMember) -> Ticket | None:
        ticket, member.join_ticket = member.join_ticket, None
        self._parked_joins -= ticket is not None
        return ticket

    def rename_static(self, member: ClassicGroupMember, new_member_id: str) -> None:
        """A static member returned under a new id: same place, assignment and leadership."""
        old_member_id = member.member_id
        assert member.group_instance_id is not None, "only static members are replaced"
        assert new_member_id not in self.members, f"member id {new_member_id} is new in group {self.group_id}"
        # The order of members is the order of joining: keep the place.
        self.members = {
            (new_member_id if member_id == old_member_id else member_id): other
            for member_id, other in self.members.items()
        }
        member.member_id = new_member_id
        self.static_members[member.group_instance_id] = new_member_id
        if self.leader_id == old_member_id:
            self.leader_id = new_member_id
        if old_member_id in self.pending_syncs:
            self.pending_syncs.remove(old_member_id)
            self.pending_syncs.add(new_member_id)

    def elect_joined_leader(self) -> bool:
        """Make a rejoined member the leader. False if no member has rejoined."""
        leader = self.members.get(self.leader_id) if self.leader_id is not None else None
        if leader is None:
            return False
        if leader.join_ticket is None:
            joined = next((member for member in self.members.values() if member.join_ticket is not None), None)
            if joined is None:
                return False
            self.leader_id = joined.member_id
        return True

    def start_generation(self, now_ms: int) -> None:
        assert all(member.join_ticket is not None or member.is_static for member in self.members.values()), (
            f"group {self.group_id}: a dynamic member that did not join is in no generation"
        )
        self.generation += 1
        self.pending_syncs.clear()
        if self.members:
            self.protocol_name = self.select_protocol()
            self.subscribed_topics = self.read_subscriptions()
            self.transition(Step.JOINED, now_ms)
        else:
            self.protocol_name = None
            self.subscribed_topics = self.read_subscriptions()
            self.transition(Step.EMPTIED, now_ms)

    def read_subscriptions(self) -> frozenset[str] | None:
        """All topics that a consumer group subscribes to; None for another kind of group or an unreadable
        subscription."""
        if not self.is_consumer_group:
            return None
        if not self.members:
            return frozenset()
        if self.protocol_name is None:
            return None
        try:
            return frozenset(
                topic
                for member in self.members.values()
                for topic in subscription_topics(member.metadata(self.protocol_name))
            )
        except (struct.error, UnicodeDecodeError, ValueError):
            return None

    def check(self) -> None:
        """Assert the invariants of this module's docstring."""
        assert self.leader_id is None or self.leader_id in self.members, "the leader is a member"
        assert all(
            self.members[member_id].group_instance_id == instance for instance, member_id in self.static_members.items()
        )
        assert self.pending_joins.isdisjoint(self.members), "a member is not pending as well"
        assert self.pending_syncs <= self.members.keys(), "only members sync"
        assert self._parked_joins == sum(member.join_ticket is not None for member in self.members.values())
        supporters: dict[str, int] = {}
        for member in self.members.values():
            for name, _ in member.protocols:
                supporters[name] = supporters.get(name, 0) + 1
        assert supporters == {name: count for name, count in self._supporters.items() if count}

    def _count(self, protocols: Protocols, by: int) -> None:
        for name, _ in protocols:
            self._supporters[name] = self._supporters.get(name, 0) + by


def subscription_topics(metadata: bytes) -> Iterator[str]:
    """The topics in a consumer's JoinGroup metadata: the part that version 0 shares with all later ones.

    Raises ValueError, struct.error or UnicodeDecodeError if it is anything else.
    """
    version, count = struct.unpack_from(">hi", metadata)
    if version < 0 or count < 0:
        raise ValueError("not a consumer subscription")
    position = 6
    for _ in range(count):
        (size,) = struct.unpack_from(">h", metadata, position)
        position += 2
        if size < 0 or position + size > len(metadata):
            raise ValueError("not a consumer subscription")
        yield metadata[position : position + size].decode()
        position += size
