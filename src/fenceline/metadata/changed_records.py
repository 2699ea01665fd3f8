"""Which records of a snapshot have been deleted or modified since it was taken: the changed ratio of KIP-630.

Owns the identity of a record (its kind and key) and the count of distinct ones. A record that was added after the
snapshot does not count, unless it was modified or deleted later. Never decides when a snapshot is due.

What one step of the image adds and changes again within the same step is not seen; the steps are those of the delta.

Rules: KIP-630 "When to Snapshot"; snapshots.md N10, N13; gaps.md G23.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Final, TypeVar

from fenceline.metadata.changes import Delta
from fenceline.metadata.image import MetadataImage

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

RecordKey = tuple[Hashable, ...]
"""Kind of record first, then what identifies it among its kind."""

_SECURITY: Final = ("client_quotas", "acls", "scram", "delegation_tokens")


def changed_records(before: MetadataImage, after: MetadataImage, delta: Delta) -> Iterator[RecordKey]:
    """The records that a snapshot of `before` has and that `after` lacks or has otherwise, once each. `delta` is what
    differs between the two."""
    for topic in delta.deleted_topics:
        yield "topic", topic.id
        for index in range(len(topic.partitions)):
            yield "partition", topic.id, index
    for change in delta.changed_partitions:
        if change.before is not None:
            yield "partition", change.topic_id, change.index
    for resource in delta.changed_configs:
        for name in _superseded(before.configs.get(resource), after.configs.get(resource)):
            yield "config", resource, name
    for broker_id in delta.changed_brokers:
        if broker_id in before.brokers:
            yield "broker", broker_id
    for controller_id in delta.changed_controllers:
        if controller_id in before.controllers:
            yield "controller", controller_id
    for feature in delta.changed_features:
        if feature in before.features:
            yield "feature", feature
    if delta.producer_ids_changed and before.next_producer_id:
        yield ("producer ids",)
    if delta.security_changed:
        for kind in _SECURITY:
            old, new = getattr(before, kind), getattr(after, kind)
            for key in _superseded(old, new):
                if kind == "client_quotas":
                    for quota in _superseded(old[key], new.get(key)):
                        yield kind, key, quota
                else:
                    yield kind, key


def record_count(image: MetadataImage) -> int:
    """How many records a snapshot of `image` has, without its control records."""
    return (
        len(image.features)
        + len(image.brokers)
        + len(image.controllers)
        + sum(1 + len(topic.partitions) for topic in image.topics_by_id.values())
        + sum(len(entries) for entries in image.configs.values())
        + sum(len(quotas) for quotas in image.client_quotas.values())
        + (1 if image.next_producer_id else 0)
        + len(image.acls)
        + len(image.scram)
        + len(image.delegation_tokens)
    )


def _superseded(before: Mapping[K, V] | None, after: Mapping[K, V] | None) -> Iterator[K]:
    if before is None or before is after:
        return
    for key, value in before.items():
        if after is None or after.get(key) != value:
            yield key


class ChangedRecords:
    """The distinct records of the newest snapshot that were deleted or modified since; fed with every step of the
    image. Takes no more memory than `limit` keys: beyond it nothing is counted."""

    __slots__ = ("_image", "_keys", "limit")

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._keys: set[RecordKey] = set()
        self.limit = 0
        """How many are enough to know."""

    @property
    def count(self) -> int:
        """At most a step more than `limit`."""
        return len(self._keys)

    def follow(self, image: MetadataImage, delta: Delta) -> None:
        """The image has gone on to `image`, by `delta`."""
        before, self._image = self._image, image
        if before is not image and len(self._keys) < self.limit:
            self._keys.update(changed_records(before, image, delta))

    def begin(self, limit: int) -> set[RecordKey]:
        """A snapshot of the image stands for what was counted so far, which is given back."""
        keys, self._keys = self._keys, set()
        self.limit = limit
        return keys

    def add(self, keys: set[RecordKey]) -> None:
        """Count these as well: they were changed before."""
        self._keys |= keys
