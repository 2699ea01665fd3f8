"""The `uniform` assignor: equal shares, few moves.

Owns the choice between the two cases, and the case in which members subscribe to different topics. That one has three
steps. First, members keep partitions that they had and still want. Second, free partitions go to the member with the
fewest, topics with most partitions per subscriber first. Third, in up to 16 rounds over the topics, partitions move
from the subscriber with most to the one with fewest until they differ by at most one. If all subscribers of a topic
have the same subscription, one round is enough; if subscriptions overlap, some imbalance may remain after the last
round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Final
from uuid import UUID

from fenceline.groups.consumer.assignors import (
    RANGE,
    UNIFORM,
    Assignor,
    MemberSubscription,
    Target,
    frozen,
    range_target,
    uniform_same,
)

MAX_ROUNDS: Final = 16


def uniform_target(members: Sequence[MemberSubscription], counts: Mapping[UUID, int], same: bool) -> Target:
    """Equal shares as far as subscriptions allow."""
    if not members:
        return {}
    return uniform_same(members, counts) if same else _Mixed(members, counts).target()


ASSIGNORS: Final[Mapping[str, Assignor]] = {UNIFORM: uniform_target, RANGE: range_target}


class _Mixed:
    """One computation for members with different subscriptions."""

    def __init__(self, members: Sequence[MemberSubscription], counts: Mapping[UUID, int]) -> None:
        self._members = sorted(members, key=lambda member: member.member_id)
        self._counts = counts
        self._sizes = dict.fromkeys((member.member_id for member in self._members), 0)
        self._shares: dict[str, dict[UUID, set[int]]] = {member.member_id: {} for member in self._members}
        self._subscribers: dict[UUID, list[str]] = {}
        for member in self._members:
            for topic_id in sorted(member.topics):
                if topic_id in counts:
                    self._subscribers.setdefault(topic_id, []).append(member.member_id)

    def target(self) -> Target:
        self._keep()
        self._give_out()
        self._balance()
        return frozen(self._shares)

    def _ordered(self) -> list[UUID]:
        """Most partitions per subscriber first, then the fewest subscribers."""
        return sorted(
            self._subscribers,
            key=lambda topic_id: (
                -self._counts[topic_id] / len(self._subscribers[topic_id]),
                len(self._subscribers[topic_id]),
                topic_id,
            ),
        )

    def _keep(self) -> None:
        for member in self._members:
            for topic_id, partitions in member.last.items():
                if topic_id in member.topics:
                    for partition in sorted(partitions):
                        if partition < self._counts.get(topic_id, 0):
                            self._give(topic_id, partition, member.member_id)

    def _give_out(self) -> None:
        for topic_id in self._ordered():
            held = {
                partition
                for member_id in self._subscribers[topic_id]
                for partition in self._shares[member_id].get(topic_id, ())
            }
            least = [(self._sizes[member_id], member_id) for member_id in self._subscribers[topic_id]]
            heapify(least)
            for partition in range(self._counts[topic_id]):
                if partition not in held:
                    size, member_id = heappop(least)
                    self._give(topic_id, partition, member_id)
                    heappush(least, (size + 1, member_id))

    def _balance(self) -> None:
        topics = [topic_id for topic_id in self._ordered() if len(self._subscribers[topic_id]) >= 2]
        calm = 0
        for _ in range(MAX_ROUNDS):
            for topic_id in topics:
                calm = 0 if self._level(topic_id) else calm + 1
                if calm >= len(topics):
                    return

    def _level(self, topic_id: UUID) -> bool:
        """Move partitions of one topic until its subscribers differ by at most one. Returns whether any moved."""
        subscribers = self._subscribers[topic_id]
        least = [(self._sizes[member_id], member_id) for member_id in subscribers]
        most = [(-size, member_id) for size, member_id in least if self._shares[member_id].get(topic_id)]
        heapify(least)
        heapify(most)
        moved = False
        while most:
            size, giver = heappop(most)
            if -size != self._sizes[giver]:
                if self._shares[giver].get(topic_id):
                    heappush(most, (-self._sizes[giver], giver))
                continue
            while least[0][0] != self._sizes[least[0][1]]:
                _, stale = heappop(least)
                heappush(least, (self._sizes[stale], stale))
            receiver = least[0][1]
            if self._sizes[giver] - self._sizes[receiver] <= 1:
                return moved
            partition = max(self._shares[giver][topic_id])
            self._shares[giver][topic_id].discard(partition)
            self._sizes[giver] -= 1
            self._give(topic_id, partition, receiver)
            moved = True
            if self._shares[giver][topic_id]:
                heappush(most, (-self._sizes[giver], giver))
        return moved

    def _give(self, topic_id: UUID, partition: int, member_id: str) -> None:
        self._shares[member_id].setdefault(topic_id, set()).add(partition)
        self._sizes[member_id] += 1
