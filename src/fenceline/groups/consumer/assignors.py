"""Server-side assignors of the consumer protocol: which member gets which partitions.

Owns the two that Kafka ships, by their names. An assignor reads its members' subscriptions and the last target, and
returns the next; it never knows which partitions members own at the moment. The same input gives the same target:
members are processed in the order of their ids, as are topics.

`range`: each topic's partitions are split into consecutive ranges for its subscribers, so that a member has the same
partition numbers of topics of one size (co-partitioning); static members first, by instance id. `uniform`: all members
have the same number of partitions, or one more, and few partitions move; if members want different topics,
`consumer.uniform` computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias
from uuid import UUID

from fenceline.groups.messages import Partitions

UNIFORM: Final = "uniform"
RANGE: Final = "range"


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """The assignor's input for a member: its subscribed topics that exist, and its last target."""

    member_id: str
    instance_id: str | None
    topics: frozenset[UUID]
    last: Partitions


Target: TypeAlias = dict[str, Partitions]
"""By member id; a member without partitions has an empty mapping."""
Assignor: TypeAlias = Callable[[Sequence[MemberSubscription], Mapping[UUID, int], bool], Target]
"""(members, partitions of each topic, whether all subscriptions are equal)"""


def range_target(members: Sequence[MemberSubscription], counts: Mapping[UUID, int], same: bool) -> Target:
    """Each subscriber gets a range of each topic; the first ones get one more if it does not divide evenly."""
    # Static members first, by instance id; then the others by member id.
    ordered = sorted(
        members,
        key=lambda member: (1, member.member_id) if member.instance_id is None else (0, member.instance_id),
    )
    shares: dict[str, dict[UUID, frozenset[int]]] = {member.member_id: {} for member in members}
    for topic_id in _in_order(counts):
        subscribers = [member.member_id for member in ordered if topic_id in member.topics]
        if not subscribers:
            continue
        share, more = divmod(counts[topic_id], len(subscribers))
        start = 0
        for position, member_id in enumerate(subscribers):
            end = start + share + (position < more)
            if start < end:
                shares[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return dict(shares)


def uniform_same(members: Sequence[MemberSubscription], counts: Mapping[UUID, int]) -> Target:
    """All members have the same subscription: equal shares, and every member keeps its partitions up to its share."""
    members = sorted(members, key=lambda member: member.member_id)
    wanted = members[0].topics if members else frozenset()
    if not wanted:
        return {member.member_id: {} for member in members}
    held = {
        (topic_id, partition)
        for member in members
        for topic_id, partitions in member.last.items()
        if topic_id in wanted
        for partition in partitions
    }
    topics = _in_order(topic_id for topic_id in wanted if topic_id in counts)
    free = [(topic_id, index) for topic_id in topics for index in range(counts[topic_id])]
    total = len(free)
    free = [each for each in free if each not in held]
    share, more = divmod(total, len(members))
    shares: dict[str, dict[UUID, set[int]]] = {}
    unfilled: list[tuple[str, int]] = []
    for position, member in enumerate(members):
        room = share + (position < more)
        kept: dict[UUID, set[int]] = {}
        for topic_id in _in_order(member.last):
            if topic_id not in wanted:
                continue
            for partition in sorted(member.last[topic_id]):
                if partition >= counts.get(topic_id, 0):
                    continue
                if room > 0:
                    room -= 1
                    kept.setdefault(topic_id, set()).add(partition)
                else:
                    free.append((topic_id, partition))
        shares[member.member_id] = kept
        if room > 0:
            unfilled.append((member.member_id, room))
    position = 0
    for member_id, room in unfilled:
        for topic_id, partition in free[position : position + room]:
            shares[member_id].setdefault(topic_id, set()).add(partition)
        position += room
    assert position >= len(free), "the shares cover all partitions"
    return frozen(shares)


def frozen(shares: Mapping[str, Mapping[UUID, set[int]]]) -> Target:
    """The shares as an immutable target, without empty topics."""
    return {
        member_id: {topic_id: frozenset(shared[topic_id]) for topic_id in _in_order(shared) if shared[topic_id]}
        for member_id, shared in shares.items()
    }


def _in_order(topics: Iterable[UUID]) -> list[UUID]:
    return sorted(topics)
