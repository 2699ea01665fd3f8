"""A group of the consumer protocol and its members (KIP-848): data and the invariants between its fields.

All values are immutable: each record of the log makes the next group (`consumer.replay`). So a rejected write is easy
to undo, and a loaded group equals the original one.

Three epochs show the progress of a group. The group epoch is raised when a new assignment is needed; the assignment
epoch is the group epoch for which the target was computed; a member's epoch is the assignment epoch that it has
reached. A member that still has to revoke partitions keeps its epoch until it has.

| state       | condition                                        |
|-------------|--------------------------------------------------|
| Empty       | it has no members                                |
| Assigning   | the target is older than the group epoch         |
| Reconciling | a member has not reached the target yet          |
| Stable      | all have                                         |
| Dead        | the group is deleted: it has no value any more   |

Invariants (`ConsumerGroup.check`): a partition is owned by at most one member, whether it is assigned or being revoked;
every instance id belongs to a member that has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from immutables import Map

from fenceline.groups.messages import Partitions, Protocols

GROUP_TYPE: Final = "consumer"
INITIAL_EPOCH: Final = 1
"""Of a group and of its assignment before the first member joins."""
JOINING_EPOCH: Final = 0
LEAVING_EPOCH: Final = -1
STATIC_LEAVING_EPOCH: Final = -2
"""A static member that will return: its place is kept for its session timeout."""
NEW_MEMBER_PREVIOUS_EPOCH: Final = -1

Held: TypeAlias = Mapping[UUID, Mapping[int, int]]
"""By topic id and partition: the assignment epoch at which the member got it (KIP-1251)."""
SubscriptionKey: TypeAlias = tuple[frozenset[str], str]
"""A member's subscription: names, and a regular expression or ""."""
NONE_HELD: Final[Held] = {}
NO_PARTITIONS: Final[Partitions] = {}


class ConsumerGroupState(StrEnum):
    """The value is the name in ListGroups and ConsumerGroupDescribe."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class MemberState(IntEnum):
    """A member's progress towards the target. The value is that of the record."""

    STABLE = 0
    """It has everything that it could be given at its epoch."""
    UNREVOKED_PARTITIONS = 1
    """It has to revoke partitions and has not confirmed that yet."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that another member owns."""
    UNKNOWN = 127
    """Written by a newer release: the member has to rejoin."""


@dataclass(frozen=True, slots=True)
class ClassicMember:
    """The data of a member that speaks the classic protocol."""

    session_timeout_ms: int
    protocols: Protocols


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """One member. `revoking`: partitions that it was asked to revoke and may still use."""

    member_id: str
    epoch: int = JOINING_EPOCH
    previous_epoch: int = NEW_MEMBER_PREVIOUS_EPOCH
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    subscribed_names: frozenset[str] = frozenset()
    subscribed_regex: str = ""
    """"" for none."""
    server_assignor: str | None = None
    classic: ClassicMember | None = None
    assigned: Held = field(default_factory=lambda: NONE_HELD)
    revoking: Held = field(default_factory=lambda: NONE_HELD)

    @property
    def uses_classic(self) -> bool:
        return self.classic is not None

    @property
    def subscription_key(self) -> SubscriptionKey:
        return self.subscribed_names, self.subscribed_regex

    @property
    def must_revoke(self) -> bool:
        """Whether it has to revoke partitions within its rebalance timeout."""
        return self.state is MemberState.UNREVOKED_PARTITIONS and not self.uses_classic

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == assignment_epoch

    def epoch_of(self, topic_id: UUID, partition: int) -> int | None:
        """The epoch at which the member got a partition; None if the partition is not its own."""
        for held in (self.assigned, self.revoking):
            epoch = held.get(topic_id, {}).get(partition)
            if epoch is not None:
                return epoch
        return None


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    """The topics that matched a regular expression, the metadata version and the time."""

    topics: frozenset[str] = frozenset()
    version: int = -1
    timestamp_ms: int = -1


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """One group. `owners`, `static_members` and `subscription_counts` are derived from the members."""

    group_id: str
    epoch: int = INITIAL_EPOCH
    metadata_hash: int = 0
    assignment_epoch: int = INITIAL_EPOCH
    assigned_at_ms: int = 0
    """When the target was computed; 0 if unknown."""
    members: Map[str, ConsumerMember] = Map()  # noqa: RUF009
    target: Map[str, Partitions] = Map()  # noqa: RUF009
    regexes: Map[str, ResolvedRegex] = Map()  # noqa: RUF009
    static_members: Map[str, str] = Map()  # noqa: RUF009
    """Instance id to member id."""
    owners: Map[tuple[UUID, int], str] = Map()  # noqa: RUF009
    """Which member owns a partition, assigned or being revoked."""
    subscription_counts: Map[SubscriptionKey, int] = Map()  # noqa: RUF009
    """How many members have the same subscription, so that it need not be counted again."""
    has_old_metadata: bool = False
    """The log has a record of subscribed topics from Kafka 4.0; the next epoch deletes it."""

    # --- reading ----------------------------------------

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def is_empty(self) -> bool:
        return not self.members

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        member_id = None if instance_id is None else self.static_members.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def target_of(self, member_id: str) -> Partitions:
        return self.target.get(member_id, NO_PARTITIONS)

    def subscription_of(self, member: ConsumerMember) -> frozenset[str]:
        """The names of all topics that a member subscribes to, whether they exist or not."""
        return self._topics_of(member.subscription_key)

    def _topics_of(self, subscription_key: SubscriptionKey) -> frozenset[str]:
        names, regex = subscription_key
        resolved = self.regexes.get(regex) if regex else None
        return names if resolved is None or not resolved.topics else names | resolved.topics

    def subscribed_topics(self) -> frozenset[str]:
        """Of all members."""
        wanted: set[str] = set()
        for subscription_key in self.subscription_counts:
            wanted |= self._topics_of(subscription_key)
        return frozenset(wanted)

    def is_subscribed_to(self, topic: str) -> bool:
        return any(topic in self._topics_of(subscription_key) for subscription_key in self.subscription_counts)

    def subscribers_of(self, regex: str) -> int:
        return (
            sum(count for subscription_key, count in self.subscription_counts.items() if subscription_key[1] == regex)
            if regex
            else 0
        )

    def is_homogeneous(self) -> bool:
        """Whether all members have the same subscription."""
        return len(self.subscription_counts) <= 1

    def preferred_assignor(self) -> str | None:
        """The one that most members name."""
        votes: dict[str, int] = {}
        for member in self.members.values():
            if member.server_assignor is not None:
                votes[member.server_assignor] = votes.get(member.server_assignor, 0) + 1
        # At a tie the last name: `uniform` before `range`, as Kafka has it.
        return max(votes, key=lambda name: (votes[name], name)) if votes else None

    def supports_classic(self, names: Iterator[str]) -> bool:
        """Whether all members of the classic protocol support one of these protocols."""
        classics = [member.classic for member in self.members.values() if member.classic is not None]
        known = [{name for name, _ in classic.protocols} for classic in classics]
        return any(all(name in each for each in known) for name in names)

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """Whether another member still owns partitions that a member is to get."""
        if member.state is not MemberState.UNRELEASED_PARTITIONS:
            return False
        return any(
            (topic_id, partition) in self.owners
            for topic_id, partitions in self.target_of(member.member_id).items()
            for partition in partitions
            if partition not in member.assigned.get(topic_id, {})
        )

    # --- the next value ----------------------------------------

    def with_member(self, member: ConsumerMember) -> ConsumerGroup:
        """The group with this member added or replaced."""
        before = self.members.get(member.member_id)
        owners = self.owners
        if before is None or before.assigned is not member.assigned or before.revoking is not member.revoking:
            owners = _updated_owners(owners, before, member)
        static_members = self.static_members
        if member.instance_id is not None and static_members.get(member.instance_id) != member.member_id:
            static_members = static_members.set(member.instance_id, member.member_id)
        subscription_counts = self.subscription_counts
        if before is None or before.subscription_key != member.subscription_key:
            subscription_counts = _updated_counts(subscription_counts, before, member)
        return replace(
            self,
            members=self.members.set(member.member_id, member),
            owners=owners,
            static_members=static_members,
            subscription_counts=subscription_counts,
        )

    def without_member(self, member_id: str) -> ConsumerGroup:
        before = self.members.get(member_id)
        if before is None:
            return self
        static_members = self.static_members
        if before.instance_id is not None and static_members.get(before.instance_id) == member_id:
            static_members = static_members.delete(before.instance_id)
        return replace(
            self,
            members=self.members.delete(member_id),
            owners=_updated_owners(self.owners, before, None),
            static_members=static_members,
            subscription_counts=_updated_counts(self.subscription_counts, before, None),
        )

    def check_step(self, before: ConsumerGroup, member_id: str) -> None:
        """Assert that no epoch of the group or of this member went back, and that none is ahead of its target."""
        assert before.epoch <= self.epoch, f"group {self.group_id}: epoch {before.epoch} before {self.epoch}"
        assert self.assignment_epoch <= self.epoch, f"group {self.group_id}: a target of a future epoch"
        was, member = before.members.get(member_id), self.members.get(member_id)
        if member is None:
            return
        assert member.epoch <= self.assignment_epoch, f"member {member_id} has reached no target at {member.epoch}"
        # One that joins again, or leaves for a while, starts over.
        assert was is None or was.epoch <= member.epoch or member.epoch <= JOINING_EPOCH, (
            f"member {member_id} of group {self.group_id}: epoch {was.epoch} before {member.epoch}"
        )

    def check(self) -> None:
        """Assert the invariants of this module's docstring."""
        held: dict[tuple[UUID, int], str] = {}
        for member in self.members.values():
            for partitions in (member.assigned, member.revoking):
                for topic_id, epochs in partitions.items():
                    assert epochs, "no topic without a partition"
                    for partition in epochs:
                        where = (topic_id, partition)
                        assert where not in held, f"{where} is owned by {held[where]} and by {member.member_id}"
                        held[where] = member.member_id
        assert held == dict(self.owners), "owners match the members"
        assert Counter(member.subscription_key for member in self.members.values()) == dict(self.subscription_counts), (
            "subscription counts match the members"
        )
        assert all(
            self.members[member_id].instance_id == instance for instance, member_id in self.static_members.items()
        ), "an instance id belongs to its member"


class DescribedConsumerMember(NamedTuple):
    member: ConsumerMember
    target: Partitions


@dataclass(frozen=True, slots=True)
class DescribedConsumerGroup:
    """The fields of ConsumerGroupDescribe."""

    group_id: str
    state: str
    epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[DescribedConsumerMember, ...]


def _updated_counts(
    subscription_counts: Map[SubscriptionKey, int], before: ConsumerMember | None, after: ConsumerMember | None
) -> Map[SubscriptionKey, int]:
    """The subscription counts after one member is replaced."""
    changed = subscription_counts.mutate()
    if before is not None:
        if left := changed[before.subscription_key] - 1:
            changed[before.subscription_key] = left
        else:
            del changed[before.subscription_key]
    if after is not None:
        changed[after.subscription_key] = changed.get(after.subscription_key, 0) + 1
    return changed.finish()


def _updated_owners(
    owners: Map[tuple[UUID, int], str], before: ConsumerMember | None, after: ConsumerMember | None
) -> Map[tuple[UUID, int], str]:
    """The owners after one member is replaced. In a compacted log an older record of a partition's owner may follow the
    newer one of another member: only partitions that are still the member's own are removed."""
    changed = owners.mutate()
    if before is not None:
        for where in _partitions_of(before):
            if changed.get(where) == before.member_id:
                del changed[where]
    if after is not None:
        for where in _partitions_of(after):
            changed[where] = after.member_id
    return changed.finish()


def _partitions_of(member: ConsumerMember) -> Iterator[tuple[UUID, int]]:
    for held in (member.assigned, member.revoking):
        for topic_id, partitions in held.items():
            for partition in partitions:
                yield topic_id, partition
