"""The partition assignors: range, roundrobin, sticky and cooperative-sticky.

Pure and deterministic: every leader computes the same assignment from the same members. The first three are for the
eager protocol (members revoke all partitions before they join); cooperative-sticky never assigns a partition to a new
owner in a rebalance in which the old owner still holds it (KIP-429).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

from fenceline.client.core.errors import ClientError
from fenceline.client.core.group_protocol import ClassicSubscription, decode_owned, encode_owned
from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition

Members = Mapping[str, ClassicSubscription]
Assignments = dict[str, list[TopicPartition]]


class Assignor(NamedTuple):
    name: str
    assign: Callable[[Members, Mapping[str, int]], Assignments]
    """(members, partition count of each topic) -> partitions of each member."""
    is_cooperative: bool = False
    user_data: Callable[[Collection[TopicPartition], int], bytes | None] = lambda owned, generation: None
    """(partitions, generation) of the member's last assignment -> its user data, for protocols without such fields."""


def range_assign(members: Members, partition_counts: Mapping[str, int]) -> Assignments:
    """For each topic, contiguous partitions to the members in order of their ids."""
    assigned: Assignments = {member: [] for member in sorted(members)}
    for topic in sorted(_wanted_topics(members)):
        count = partition_counts.get(topic, 0)
        takers = [m for m in assigned if topic in members[m].topics]
        share, extra = divmod(count, len(takers))
        start = 0
        for position, member in enumerate(takers):
            size = share + (position < extra)
            assigned[member] += [TopicPartition(topic, p) for p in range(start, start + size)]
            start += size
    return assigned


def roundrobin_assign(members: Members, partition_counts: Mapping[str, int]) -> Assignments:
    """All partitions of all topics in order, one to each subscribed member in turn."""
    order = sorted(members)
    assigned: Assignments = {member: [] for member in order}
    turn = 0
    for topic in sorted(_wanted_topics(members)):
        for partition in range(partition_counts.get(topic, 0)):
            while topic not in members[order[turn % len(order)]].topics:
                turn += 1
            assigned[order[turn % len(order)]].append(TopicPartition(topic, partition))
            turn += 1
    return assigned


def sticky_assign(members: Members, partition_counts: Mapping[str, int]) -> Assignments:
    """As balanced as the subscriptions allow, moving as few partitions as possible."""
    held = _held(members, partition_counts)
    assigned: Assignments = {member: sorted(held[member]) for member in sorted(members)}
    owner = {tp: member for member, owned in assigned.items() for tp in owned}
    takers: dict[str, list[str]] = defaultdict(list)
    for member in assigned:
        for topic in members[member].topics:
            takers[topic].append(member)
    for topic in sorted(takers):
        for partition in range(partition_counts.get(topic, 0)):
            tp = TopicPartition(topic, partition)
            if tp not in owner:
                taker = min(takers[topic], key=lambda m: (len(assigned[m]), m))
                assigned[taker].append(tp)
                owner[tp] = taker
    _even_out(assigned, members)
    return {member: sorted(owned) for member, owned in assigned.items()}


def cooperative_sticky_assign(members: Members, partition_counts: Mapping[str, int]) -> Assignments:
    """As `sticky_assign`, but without partitions that another member still owns, until that member has revoked them."""
    target = sticky_assign(members, partition_counts)
    held = _held(members, partition_counts)
    holder = {tp: member for member, owned in held.items() for tp in owned}
    return {member: [tp for tp in owned if holder.get(tp, member) == member] for member, owned in target.items()}


def _wanted_topics(members: Members) -> set[str]:
    return {topic for subscription in members.values() for topic in subscription.topics}


def _held(members: Members, partition_counts: Mapping[str, int]) -> dict[str, set[TopicPartition]]:
    """The partitions that each member may keep: of two claims that of the later generation, of equal ones none."""
    claims: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in sorted(members):
        subscription = members[member]
        owned, generation = subscription.owned, subscription.generation_id
        if not owned and subscription.user_data:
            owned, generation = _owned_of_user_data(subscription.user_data)
        for tp in owned:
            if tp.topic not in subscription.topics or tp.partition >= partition_counts.get(tp.topic, 0):
                continue
            known = claims.get(tp)
            if known is None or generation > known[0]:
                claims[tp] = (generation, member)
            elif generation == known[0]:
                claims[tp] = (generation, None)
    held: dict[str, set[TopicPartition]] = {member: set() for member in members}
    for tp, (_, claimant) in claims.items():
        if claimant is not None:
            held[claimant].add(tp)
    return held


def _owned_of_user_data(raw: bytes) -> tuple[tuple[TopicPartition, ...], int]:
    try:
        return decode_owned(raw)
    except (ClientError, UnicodeDecodeError):
        return (), -1


def _even_out(assigned: Assignments, members: Members) -> None:
    """Move partitions from members with more to members with fewer, while their counts differ by more than one."""
    while True:
        moved = False
        for giver in sorted(assigned, key=lambda m: (-len(assigned[m]), m)):
            for position in range(len(assigned[giver]) - 1, -1, -1):
                tp = assigned[giver][position]
                takers = [m for m in assigned if tp.topic in members[m].topics and m != giver]
                if not takers:
                    continue
                taker = min(takers, key=lambda m: (len(assigned[m]), m))
                if len(assigned[giver]) - len(assigned[taker]) > 1:
                    assigned[taker].append(assigned[giver].pop(position))
                    moved = True
        if not moved:
            return


ASSIGNORS: Final[Mapping[str, Assignor]] = {
    "range": Assignor("range", range_assign),
    "roundrobin": Assignor("roundrobin", roundrobin_assign),
    "sticky": Assignor("sticky", sticky_assign, user_data=encode_owned),
    "cooperative-sticky": Assignor("cooperative-sticky", cooperative_sticky_assign, is_cooperative=True),
}
_JAVA_NAMES: Final[Mapping[str, str]] = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "StickyAssignor": "sticky",
    "CooperativeStickyAssignor": "cooperative-sticky",
}


def assignors_of(names: Collection[str]) -> tuple[Assignor, ...]:
    """The assignors of a `partition.assignment.strategy` (names, or Java's class names), in order of preference."""
    found = []
    for name in names:
        plain = _JAVA_NAMES.get(name.rsplit(".", 1)[-1], name.strip().lower())
        assignor = ASSIGNORS.get(plain)
        if assignor is None:
            raise OperatorError(
                f"partition.assignment.strategy={name} is unknown", f"Use one or more of {', '.join(ASSIGNORS)}."
            )
        found.append(assignor)
    return tuple(found)
