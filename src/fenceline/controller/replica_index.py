"""Which partitions a broker is in sync in, eligible for, or leads; which have no leader.

Owns indexes over the image, so that a broker's fencing costs what it holds and not what the cluster holds
(design.md section 8). Built from an image on first use, kept current by deltas from then on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final
from uuid import UUID

from fenceline.ids import NO_LEADER
from fenceline.metadata.changes import Delta
from fenceline.metadata.image import MetadataImage, PartitionImage

_NOTHING: Final[dict[UUID, set[int]]] = {}


class ReplicaIndex:
    """Topic ids and partition indexes by broker."""

    __slots__ = ("_elr", "_isr", "_leaderless", "_leads")

    def __init__(self, image: MetadataImage) -> None:
        self._isr: defaultdict[int, dict[UUID, set[int]]] = defaultdict(dict)
        self._elr: defaultdict[int, dict[UUID, set[int]]] = defaultdict(dict)
        self._leads: defaultdict[int, int] = defaultdict(int)
        self._leaderless: dict[UUID, set[int]] = {}
        for topic in image.topics_by_id.values():
            for index, partition in enumerate(topic.partitions):
                self._add(topic.id, index, partition)

    def update(self, delta: Delta) -> None:
        for topic in delta.deleted_topics:
            for index, partition in enumerate(topic.partitions):
                self._remove(topic.id, index, partition)
        for topic in delta.created_topics:
            for index, partition in enumerate(topic.partitions):
                self._add(topic.id, index, partition)
        for change in delta.changed_partitions:
            if change.before is not None:
                self._remove(change.topic_id, change.index, change.before)
            self._add(change.topic_id, change.index, change.after)

    def in_isr(self, broker_id: int) -> Iterator[tuple[UUID, int]]:
        """Partitions that have the broker in their ISR."""
        return _pairs(self._isr.get(broker_id, _NOTHING))

    def in_elr(self, broker_id: int) -> Iterator[tuple[UUID, int]]:
        return _pairs(self._elr.get(broker_id, _NOTHING))

    def leaderless(self) -> Iterator[tuple[UUID, int]]:
        return _pairs(self._leaderless)

    def leads_any(self, broker_id: int) -> bool:
        return self._leads.get(broker_id, 0) > 0

    def _add(self, topic_id: UUID, index: int, partition: PartitionImage) -> None:
        for broker in partition.isr:
            self._isr[broker].setdefault(topic_id, set()).add(index)
        for broker in partition.elr:
            self._elr[broker].setdefault(topic_id, set()).add(index)
        if partition.leader == NO_LEADER:
            self._leaderless.setdefault(topic_id, set()).add(index)
        else:
            self._leads[partition.leader] += 1

    def _remove(self, topic_id: UUID, index: int, partition: PartitionImage) -> None:
        for broker in partition.isr:
            _discard(self._isr[broker], topic_id, index)
        for broker in partition.elr:
            _discard(self._elr[broker], topic_id, index)
        if partition.leader == NO_LEADER:
            _discard(self._leaderless, topic_id, index)
        else:
            self._leads[partition.leader] -= 1


def _pairs(partitions: dict[UUID, set[int]]) -> Iterator[tuple[UUID, int]]:
    return ((topic_id, index) for topic_id in list(partitions) for index in sorted(partitions[topic_id]))


def _discard(partitions: dict[UUID, set[int]], topic_id: UUID, index: int) -> None:
    indexes = partitions.get(topic_id)
    if indexes is not None:
        indexes.discard(index)
        if not indexes:
            del partitions[topic_id]
