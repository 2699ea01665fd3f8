"""Server-side assignors of the consumer protocol: who is to have which partitions.

Owns the two that Kafka ships, by their names. An assignor looks at what its members want and at the last target, and
gives the next; it never knows what members hold at the moment. The same input gives the same target: members are looked
at in the order of their ids, topics in that of theirs.

`range`: for each topic consecutive partitions for each of its subscribers, so that a member has the same partition
numbers of topics of one size (co-partitioning); static members first, by their instance ids.
`uniform`: all members have the same number of partitions, or one more, and as little as possible moves; where members
want different topics that is `consumer_uniform`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias
from uuid import UUID

from fenceline.groups.consumer_model import Partitions

UNIFORM: Final = "uniform"
RANGE: Final = "range"


@dataclass(frozen=True, slots=True)
class MemberWish:
    """What an assignor is told of a member: the topics that exist of those it wants, and its last target."""

    member_id: str
    instance_id: str | None
    topics: frozenset[UUID]
    last: Partitions


Target: TypeAlias = dict[str, Partitions]
"""By member id; whoever is to have nothing has an empty mapping."""
Assignor: TypeAlias = Callable[[Sequence[MemberWish], Mapping[UUID, int], bool], Target]
"""(members, partitions of each topic, whether all want the same)"""


def range_target(wishes: Sequence[MemberWish], counts: Mapping[UUID, int], same: bool) -> Target:
    """Each subscriber's share of a topic in one piece; the first ones have one more where it does not come out even."""
    # Those with an instance id first, by it; the others by their ids.
    ordered = sorted(
        wishes,
        key=lambda wish: (1, wish.member_id) if wish.instance_id is None else (0, wish.instance_id),
    )
    shares: dict[str, dict[UUID, frozenset[int]]] = {wish.member_id: {} for wish in wishes}
    for topic_id in _in_order(counts):
        subscribers = [wish.member_id for wish in ordered if topic_id in wish.topics]
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


def uniform_same(wishes: Sequence[MemberWish], counts: Mapping[UUID, int]) -> Target:
    """Everybody wants the same: equal shares, and whoever had something keeps it up to its share."""
    wishes = sorted(wishes, key=lambda wish: wish.member_id)
    wanted = wishes[0].topics if wishes else frozenset()
    if not wanted:
        return {wish.member_id: {} for wish in wishes}
    held = {
        (topic_id, partition)
        for wish in wishes
        for topic_id, partitions in wish.last.items()
        if topic_id in wanted
        for partition in partitions
    }
    topics = _in_order(topic_id for topic_id in wanted if topic_id in counts)
    free = [(topic_id, index) for topic_id in topics for index in range(counts[topic_id])]
    total = len(free)
    free = [each for each in free if each not in held]
    share, more = divmod(total, len(wishes))
    shares: dict[str, dict[UUID, set[int]]] = {}
    unfilled: list[tuple[str, int]] = []
    for position, wish in enumerate(wishes):
        room = share + (position < more)
        kept: dict[UUID, set[int]] = {}
        for topic_id in _in_order(wish.last):
            if topic_id not in wanted:
                continue
            for partition in sorted(wish.last[topic_id]):
                if partition >= counts.get(topic_id, 0):
                    continue
                if room > 0:
                    room -= 1
                    kept.setdefault(topic_id, set()).add(partition)
                else:
                    free.append((topic_id, partition))
        shares[wish.member_id] = kept
        if room > 0:
            unfilled.append((wish.member_id, room))
    position = 0
    for member_id, room in unfilled:
        for topic_id, partition in free[position : position + room]:
            shares[member_id].setdefault(topic_id, set()).add(partition)
        position += room
    assert position >= len(free), "there is room for all"
    return frozen(shares)


def frozen(shares: Mapping[str, Mapping[UUID, set[int]]]) -> Target:
    """A target out of what was built; no topic without a partition."""
    return {
        member_id: {topic_id: frozenset(shared[topic_id]) for topic_id in _in_order(shared) if shared[topic_id]}
        for member_id, shared in shares.items()
    }


def _in_order(topics: Iterable[UUID]) -> list[UUID]:
    return sorted(topics)
