"""The difference between two images by entity, for people and programs.

Owns the rows. A node's reactions to changes use `changes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from immutables import Map

from fenceline.ids import encode_uuid
from fenceline.metadata.image import MetadataImage
from fenceline.metadata.image_tree import Value, entity_name, plain, resource_name

K = TypeVar("K")
NO_CONFIG: Final[Map[str, str]] = Map()


@dataclass(frozen=True, slots=True)
class EntityChange:
    """One entity that differs. `fields`: name -> (before, after), of the changed fields, or of all."""

    kind: str
    name: str
    change: str
    """`added`, `removed` or `changed`."""
    fields: Mapping[str, tuple[Value, Value]]


def entity_changes(
    before: MetadataImage, after: MetadataImage, show_config: Callable[[str, str], str]
) -> Iterator[EntityChange]:
    """Every entity that differs, by type, sorted by name. A topic that was deleted and recreated is both removed and
    added."""
    yield from _changes("feature", before.features, after.features, str)
    yield from _changes("broker", before.brokers, after.brokers, str)
    yield from _changes("controller", before.controllers, after.controllers, str)
    yield from _topic_changes(before, after)
    resources = {*before.configs, *after.configs}
    for resource in sorted(resources):
        old = {key: show_config(key, value) for key, value in before.configs.get(resource, NO_CONFIG).items()}
        new = {key: show_config(key, value) for key, value in after.configs.get(resource, NO_CONFIG).items()}
        secret = {key for key in old if key in new and old[key] == new[key]} & _differing(before, after, resource)
        for key in secret:
            new[key] += " (changed)"
        yield from _one("config", resource_name(resource), old or None, new or None)
    yield from _changes("client quota", before.client_quotas, after.client_quotas, entity_name)
    if before.next_producer_id != after.next_producer_id:
        yield EntityChange(
            "producer ids", "next", "changed", {"next_producer_id": (before.next_producer_id, after.next_producer_id)}
        )
    yield from _changes("acl", before.acls, after.acls, encode_uuid)
    yield from _changes("scram credential", before.scram, after.scram, lambda key: f"{key[0]}/{key[1]}")
    yield from _changes("delegation token", before.delegation_tokens, after.delegation_tokens, str)


def _differing(before: MetadataImage, after: MetadataImage, resource: Any) -> set[str]:
    old, new = before.configs.get(resource, NO_CONFIG), after.configs.get(resource, NO_CONFIG)
    return {key for key in old if key in new and old[key] != new[key]}


def _topic_changes(before: MetadataImage, after: MetadataImage) -> Iterator[EntityChange]:
    def name_of(key: Any) -> str:
        topic = after.topics_by_id.get(key) or before.topics_by_id[key]
        return f"{topic.name} ({encode_uuid(topic.id)})"

    for key in sorted({*before.topics_by_id, *after.topics_by_id}, key=name_of):
        old, new = before.topics_by_id.get(key), after.topics_by_id.get(key)
        if old is new:
            continue
        if old is None or new is None:
            count = len((old or new).partitions)  # type: ignore[union-attr]
            change = "added" if old is None else "removed"
            fields = {"partitions": (None, count) if old is None else (count, None)}
            yield EntityChange("topic", name_of(key), change, fields)
            continue
        for index in range(max(len(old.partitions), len(new.partitions))):
            yield from _one(
                "partition",
                f"{new.name}-{index}",
                plain(old.partitions[index]) if index < len(old.partitions) else None,
                plain(new.partitions[index]) if index < len(new.partitions) else None,
            )


def _changes(
    kind: str, before: Mapping[K, Any], after: Mapping[K, Any], name: Callable[[K], str]
) -> Iterator[EntityChange]:
    for key in sorted(
        {*before, *after}, key=lambda each: (str(type(each)), each if isinstance(each, int) else 0, name(each))
    ):
        old, new = before.get(key), after.get(key)
        if old == new:
            continue
        old_fields, new_fields = _fields(old), _fields(new)
        if old is not None and new is not None and old_fields == new_fields:
            new_fields = {**(new_fields or {}), "secrets": "changed"}
        yield from _one(kind, name(key), old_fields, new_fields)


def _fields(value: Any) -> dict[str, Value] | None:
    if value is None:
        return None
    made = plain(value)
    return made if isinstance(made, dict) else {"value": made}


def _one(
    kind: str, name: str, before: dict[str, Value] | None, after: dict[str, Value] | None
) -> Iterator[EntityChange]:
    if before == after:
        return
    change = "added" if before is None else "removed" if after is None else "changed"
    old, new = before or {}, after or {}
    fields = {key: (old.get(key), new.get(key)) for key in {**old, **new} if old.get(key) != new.get(key)}
    yield EntityChange(kind, name, change, fields)
