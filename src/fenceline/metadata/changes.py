"""The difference between two images, for their subscribers.

Owns the form of a change and the comparison of any two images; `delta` owns the changes that a record makes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from immutables import Map

from fenceline.metadata.image import ConfigResource, MetadataImage, PartitionImage, QuotaEntity, TopicImage

K = TypeVar("K")
V = TypeVar("V")


class ChangedPartition(NamedTuple):
    """A partition of a topic that existed before. `before` is None for a partition added to it."""

    topic: str
    topic_id: UUID
    index: int  # type: ignore[assignment]  # hides tuple.index
    before: PartitionImage | None
    after: PartitionImage


@dataclass(frozen=True, slots=True)
class Delta:
    """The difference between two images. Partitions of created and deleted topics are not listed separately."""

    created_topics: tuple[TopicImage, ...] = ()
    deleted_topics: tuple[TopicImage, ...] = ()
    changed_partitions: tuple[ChangedPartition, ...] = ()
    changed_configs: tuple[ConfigResource, ...] = ()
    changed_brokers: tuple[int, ...] = ()
    """Registered, re-registered, fenced, unfenced, shutting down or unregistered."""
    changed_controllers: tuple[int, ...] = ()
    changed_features: tuple[str, ...] = ()
    producer_ids_changed: bool = False
    changed_acls: tuple[UUID, ...] = ()
    """Added or removed; an ACL never changes."""
    changed_client_quotas: tuple[QuotaEntity, ...] = ()
    changed_scram: tuple[tuple[str, int], ...] = ()
    """Users and mechanisms."""
    changed_delegation_tokens: tuple[str, ...] = ()

    @property
    def partitions_gained(self) -> int:
        """Number of partitions added; negative when topics were deleted."""
        return (
            sum(len(topic.partitions) for topic in self.created_topics)
            - sum(len(topic.partitions) for topic in self.deleted_topics)
            + sum(1 for change in self.changed_partitions if change.before is None)
        )

    @property
    def is_empty(self) -> bool:
        return self == _EMPTY_DELTA


_EMPTY_DELTA: Final = Delta()


def difference(before: MetadataImage, after: MetadataImage) -> Delta:
    """The difference between two images that need not be consecutive, as after loading a snapshot (N41)."""
    if before.topics_by_id is after.topics_by_id:
        created: list[TopicImage] = []
        deleted: list[TopicImage] = []
        changed: list[ChangedPartition] = []
    else:
        old, new = before.topics_by_id, after.topics_by_id
        created = [topic for key, topic in new.items() if key not in old]
        deleted = [topic for key, topic in old.items() if key not in new]
        changed = []
        for key, topic in new.items():
            previous = old.get(key)
            if previous is not None and previous is not topic:
                changed.extend(changed_partitions(topic, previous, range(len(topic.partitions))))
    return Delta(
        tuple(created),
        tuple(deleted),
        tuple(changed),
        _differing(before.configs, after.configs),
        _differing(before.brokers, after.brokers),
        _differing(before.controllers, after.controllers),
        _differing(before.features, after.features),
        before.next_producer_id != after.next_producer_id,
        _differing(before.acls, after.acls),
        _differing(before.client_quotas, after.client_quotas),
        _differing(before.scram, after.scram),
        _differing(before.delegation_tokens, after.delegation_tokens),
    )


def changed_partitions(topic: TopicImage, before: TopicImage, indexes: Iterable[int]) -> Iterable[ChangedPartition]:
    known = len(before.partitions)
    for index in indexes:
        old = before.partitions[index] if index < known else None
        new = topic.partitions[index]
        if old is not new and old != new:
            yield ChangedPartition(topic.name, topic.id, index, old, new)


def _differing(before: Map[K, V], after: Map[K, V]) -> tuple[K, ...]:
    if before is after:
        return ()
    removed = [key for key in before if key not in after]
    return tuple(removed + [key for key, value in after.items() if before.get(key) != value])
