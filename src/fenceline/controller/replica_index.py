"""Indexes of partitions by broker: in ISR, in ELR, leader; and of partitions without a leader, or not led by the
preferred one.

Owns indexes over the image, so that the cost of a decision depends on what it changes and not on the size of the
cluster (docs/how-it-works.md "Cost"). Built from an image, in parts if it is large, then updated by deltas. The
partitions of a topic on a broker are the bits of one integer: there is little to build, and nothing that the garbage
collector traverses.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias
from uuid import UUID

from fenceline.ids import NO_LEADER
from fenceline.metadata.changes import ChangedPartition, Delta
from fenceline.metadata.image import MetadataImage, PartitionImage, TopicImage

_Partitions: TypeAlias = dict[UUID, int]
"""By topic id; bit i is set for partition i. A topic without set bits has no entry."""
_NOTHING: Final[_Partitions] = {}


class ReplicaIndex:
    """Topic ids and partition indexes by broker."""

    __slots__ = (
        "_elr",
        "_imbalanced",
        "_isr",
        "_leaderless",
        "_leaderless_of",
        "_leads",
        "_preferred",
        "_reassigning",
        "_to_build",
    )

    def __init__(self, image: MetadataImage) -> None:
        """Empty: `build` adds the topics of `image`."""
        self._isr: defaultdict[int, _Partitions] = defaultdict(dict)
        self._elr: defaultdict[int, _Partitions] = defaultdict(dict)
        self._leads: defaultdict[int, _Partitions] = defaultdict(dict)
        self._preferred: defaultdict[int, int] = defaultdict(int)
        """Number of partitions whose preferred leader is the broker."""
        self._leaderless: _Partitions = {}
        self._leaderless_of: defaultdict[int, _Partitions] = defaultdict(dict)
        self._imbalanced: defaultdict[int, _Partitions] = defaultdict(dict)
        self._reassigning: _Partitions = {}
        self._to_build: Iterator[TopicImage] | None = iter(image.topics_by_id.values())

    def build(self, partitions: float = math.inf) -> bool:
        """Add topics, until they have so many partitions. Returns whether the index is complete; before that it must
        not be used."""
        if self._to_build is None:
            return True
        for topic in self._to_build:
            self._add_topic(topic)
            partitions -= len(topic.partitions)
            if partitions <= 0:
                return False
        self._to_build = None
        return True

    def update(self, delta: Delta) -> None:
        for topic in delta.deleted_topics:
            for bits, count, partition in _equal(topic.partitions):
                self._remove(topic.id, bits, count, partition)
        for topic in delta.created_topics:
            self._add_topic(topic)
        for topic_id, before, after, indexes in _alike(delta.changed_partitions):
            bits = _bits_at(indexes)
            if before is not None:
                self._remove(topic_id, bits, len(indexes), before)
            self._add(topic_id, bits, len(indexes), after)

    def in_isr(self, broker_id: int) -> Iterator[tuple[UUID, int]]:
        """Partitions with the broker in their ISR."""
        return _pairs(self._isr.get(broker_id, _NOTHING))

    def in_elr(self, broker_id: int) -> Iterator[tuple[UUID, int]]:
        return _pairs(self._elr.get(broker_id, _NOTHING))

    def leads_any(self, broker_id: int) -> bool:
        return bool(self._leads.get(broker_id))

    def followers_of(self, broker_id: int) -> Iterator[int]:
        """Other brokers in the ISR of a partition that the broker leads."""
        led = self._leads.get(broker_id, _NOTHING)
        for other, held in self._isr.items():
            if other != broker_id and any(held.get(topic_id, 0) & partitions for topic_id, partitions in led.items()):
                yield other

    def leaderless(self) -> Iterator[tuple[UUID, int]]:
        return _pairs(self._leaderless)

    def leaderless_of(self, broker_id: int) -> Iterator[tuple[UUID, int]]:
        """Partitions without a leader that have a replica on the broker."""
        return _pairs(self._leaderless_of.get(broker_id, _NOTHING))

    def imbalanced(self) -> Iterator[int]:
        """Brokers that are the preferred leader of a partition that they do not lead."""
        return iter(sorted(broker for broker, partitions in self._imbalanced.items() if partitions))

    def imbalance_of(self, broker_id: int) -> float:
        """Percentage of the partitions with this preferred leader that it does not lead."""
        preferred = self._preferred.get(broker_id, 0)
        missing = sum(held.bit_count() for held in self._imbalanced.get(broker_id, _NOTHING).values())
        return 100 * missing / preferred if preferred else 0.0

    def imbalanced_of(self, broker_id: int) -> Iterator[tuple[UUID, int]]:
        """The partitions with this preferred leader that it does not lead."""
        return _pairs(self._imbalanced.get(broker_id, _NOTHING))

    def reassigning(self) -> Iterator[tuple[UUID, int]]:
        """Partitions with a reassignment in progress."""
        return _pairs(self._reassigning)

    def _places(self, partition: PartitionImage) -> Iterable[_Partitions]:
        """The further indexes that list the partition, besides those by ISR and leader."""
        if partition.leader == NO_LEADER:
            yield self._leaderless
            for broker in partition.replicas:
                yield self._leaderless_of[broker]
        if partition.leader != partition.preferred_leader:
            yield self._imbalanced[partition.preferred_leader]
        if partition.adding or partition.removing:
            yield self._reassigning
        for broker in partition.elr:
            yield self._elr[broker]

    def _add_topic(self, topic: TopicImage) -> None:
        """Same as `_add` for its partitions, but cheaper: a topic id is hashed once for each broker."""
        isr: dict[int, int] = {}
        leads: dict[int, int] = {}
        for bits, count, partition in _equal(topic.partitions):
            for broker in partition.isr:
                isr[broker] = isr.get(broker, 0) | bits
            leader = partition.leader
            if leader != NO_LEADER:
                leads[leader] = leads.get(leader, 0) | bits
            self._preferred[partition.preferred_leader] += count
            if partition.replicas[:1] != (leader,) or partition.elr or partition.adding or partition.removing:
                for place in self._places(partition):
                    _insert(place, topic.id, bits)
        for broker, held in isr.items():
            self._isr[broker][topic.id] = held
        for broker, held in leads.items():
            self._leads[broker][topic.id] = held

    def _add(self, topic_id: UUID, bits: int, count: int, partition: PartitionImage) -> None:
        """Add `count` partitions that are all in this state."""
        self._preferred[partition.preferred_leader] += count
        for broker in partition.isr:
            _insert(self._isr[broker], topic_id, bits)
        if partition.leader != NO_LEADER:
            _insert(self._leads[partition.leader], topic_id, bits)
        for place in self._places(partition):
            _insert(place, topic_id, bits)

    def _remove(self, topic_id: UUID, bits: int, count: int, partition: PartitionImage) -> None:
        self._preferred[partition.preferred_leader] -= count
        for broker in partition.isr:
            _discard(self._isr[broker], topic_id, bits)
        if partition.leader != NO_LEADER:
            _discard(self._leads[partition.leader], topic_id, bits)
        for place in self._places(partition):
            _discard(place, topic_id, bits)


def _alike(
    changes: Iterable[ChangedPartition],
) -> Iterator[tuple[UUID, PartitionImage | None, PartitionImage, list[int]]]:
    """(topic id, before, after, partitions): successive partitions of a topic with the same change, which share both
    images, are one step. Within one delta a partition has one change, so the order does not matter."""
    groups: dict[tuple[int, int], tuple[PartitionImage | None, PartitionImage, list[int]]] = {}
    topic_id: UUID | None = None
    for change in changes:
        if change.topic_id is not topic_id:
            if topic_id is not None:
                yield from ((topic_id, *group) for group in groups.values())
            groups, topic_id = {}, change.topic_id
        key = id(change.before), id(change.after)
        group = groups.get(key)
        if group is None:
            groups[key] = change.before, change.after, [change.index]
        else:
            group[2].append(change.index)
    if topic_id is not None:
        yield from ((topic_id, *group) for group in groups.values())


def _equal(partitions: Sequence[PartitionImage]) -> Iterator[tuple[int, int, PartitionImage]]:
    """The partitions of a topic, those that share an image together: (bits, count, image)."""
    indexes: dict[int, list[int]] = {}
    for index, partition in enumerate(partitions):
        found = indexes.get(id(partition))
        if found is None:
            indexes[id(partition)] = [index]
        else:
            found.append(index)
    return ((_bits_at(each), len(each), partitions[each[0]]) for each in indexes.values())


def _bits_at(indexes: Sequence[int]) -> int:
    if len(indexes) == 1:
        return 1 << indexes[0]
    digits = bytearray(max(indexes) // 8 + 1)
    for index in indexes:
        digits[index >> 3] |= 1 << (index & 7)
    return int.from_bytes(digits, "little")


def _pairs(partitions: _Partitions) -> Iterator[tuple[UUID, int]]:
    """A snapshot of each topic when the iteration reaches it; later changes do not affect it."""
    return ((topic_id, index) for topic_id in list(partitions) for index in _bits(partitions.get(topic_id, 0)))


def _bits(number: int) -> Iterator[int]:
    digits = bin(number)[:1:-1]  # lowest bit first
    index = digits.find("1")
    while index >= 0:
        yield index
        index = digits.find("1", index + 1)


def _insert(partitions: _Partitions, topic_id: UUID, bits: int) -> None:
    partitions[topic_id] = partitions.get(topic_id, 0) | bits


def _discard(partitions: _Partitions, topic_id: UUID, bits: int) -> None:
    left = partitions.get(topic_id, 0) & ~bits
    if left:
        partitions[topic_id] = left
    else:
        partitions.pop(topic_id, None)
