"""The records of a snapshot that were deleted or modified since it was taken: the changed ratio of KIP-630.

Owns the identity of a record (its type and key) and the count of distinct changed records. A record added after the
snapshot does not count, unless it is modified or deleted later. Never decides when a snapshot is due.

A record that is added and changed again within one delta is not counted.

Rules: KIP-630 "When to Snapshot"; snapshots.md N10, N13; gaps.md G23.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import TypeVar

from fenceline.metadata.changes import Delta
from fenceline.metadata.image import MetadataImage

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

RecordKey = tuple[Hashable, ...]
"""The record type, then the key within that type."""


def changed_records(before: MetadataImage, after: MetadataImage, delta: Delta) -> Iterator[RecordKey]:
    """The records of a snapshot of `before` that `after` lacks or has with other content, once each. `delta` is the
    difference of the two images."""
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
    for entity in delta.changed_client_quotas:
        for quota in _superseded(before.client_quotas.get(entity), after.client_quotas.get(entity)):
            yield "client quota", entity, quota
    yield from (("acl", key) for key in delta.changed_acls if key in before.acls)
    yield from (("scram", key) for key in delta.changed_scram if key in before.scram)
    yield from (("token", key) for key in delta.changed_delegation_tokens if key in before.delegation_tokens)


def record_count(image: MetadataImage) -> int:
    """Number of records in a snapshot of `image`, without its control records."""
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
    """The distinct records of the newest snapshot that were deleted or modified since. Must be updated with every
    delta. Stores at most `limit` keys; beyond that it stops counting."""

    __slots__ = ("_image", "_keys", "limit")

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._keys: set[RecordKey] = set()
        self.limit = 0
        """The count above which the exact number does not matter."""

    @property
    def count(self) -> int:
        """At most the records of one delta more than `limit`."""
        return len(self._keys)

    def apply_delta(self, image: MetadataImage, delta: Delta) -> None:
        """The image advanced to `image`, by `delta`."""
        before, self._image = self._image, image
        if before is not image and len(self._keys) < self.limit:
            self._keys.update(changed_records(before, image, delta))

    def restart(self, limit: int) -> set[RecordKey]:
        """A snapshot of the image was started: restart counting, and return the keys counted so far."""
        keys, self._keys = self._keys, set()
        self.limit = limit
        return keys

    def add(self, keys: set[RecordKey]) -> None:
        """Add keys that were changed earlier."""
        self._keys |= keys
