"""An image as a tree of names, with the paths of Kafka's metadata shell.

Owns names, order and leaf values (made of dicts, lists, texts and numbers). Never prints, and creates nodes only on
demand: an image may contain a million partitions.

    /image/{acls/byId, clientQuotas, cluster/{brokers,controllers}, configs, delegationToken, features,
            producerIds, provenance, scram, topics/{byId,byName}}
    /quorum/{kraftVersion, voters}        (only in Fenceline)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final, TypeAlias
from uuid import UUID

from fenceline.ids import decode_uuid, encode_uuid
from fenceline.metadata.features import METADATA_VERSION, METADATA_VERSION_NAMES
from fenceline.metadata.image import ConfigResource, ConfigResourceType, MetadataImage, TopicImage

REDACTED: Final = "[redacted]"
_SECRETS: Final = frozenset(("salt", "stored_key", "server_key"))
_MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_ENTITY_TYPES: Final = {"client-id": "clientId"}
_RESOURCES: Final = {
    "TOPIC": ConfigResourceType.TOPIC,
    "BROKER": ConfigResourceType.BROKER,
    "BROKER_LOGGER": ConfigResourceType.BROKER_LOGGER,
    "CLIENT_METRICS": ConfigResourceType.CLIENT_METRICS,
    "GROUP": ConfigResourceType.GROUP,
}

Value: TypeAlias = Any
"""Dicts, lists, texts, numbers, booleans and None."""


class Folder:
    """A node with children, created on demand."""

    __slots__ = ("_child", "_names")

    def __init__(self, names: Callable[[], Sequence[str]], child: Callable[[str], Node | None]) -> None:
        self._names = names
        self._child = child

    def names(self) -> Sequence[str]:
        """The names of all children, sorted; numbers by value."""
        return self._names()

    def child(self, name: str) -> Node | None:
        return self._child(name)


class Leaf:
    """A node with a value."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value


Node: TypeAlias = Folder | Leaf


def tree_of(
    image: MetadataImage, *, kraft_version: int, voters: Sequence[Any], show_config: Callable[[str, str], str]
) -> Folder:
    """The whole tree. `voters`: those of the quorum; `show_config`: (name, value) -> the value to show."""
    return _fixed(
        {
            "image": _fixed(
                {
                    "acls": _fixed({"byId": _by_id(image.acls)}),
                    "clientQuotas": _quotas(image),
                    "cluster": _fixed(
                        {"brokers": _by_number(image.brokers), "controllers": _by_number(image.controllers)}
                    ),
                    "configs": _configs(image, show_config),
                    "delegationToken": _by_text(image.delegation_tokens),
                    "features": _features(image),
                    "producerIds": _fixed({"nextProducerId": Leaf(image.next_producer_id)}),
                    "provenance": Leaf({"offset": image.offset, "epoch": image.epoch}),
                    "scram": _scram(image),
                    "topics": _topics(image),
                }
            ),
            "quorum": _fixed(
                {
                    "kraftVersion": Leaf(kraft_version),
                    "voters": _by_number({voter.voter_id: voter for voter in voters}),
                }
            ),
        }
    )


def plain(value: Any) -> Value:
    """Any part of an image, or a record, as dicts, lists, texts and numbers; secrets are left out."""
    if isinstance(value, UUID):
        return encode_uuid(value)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, bytes):
        return value.hex()
    if is_dataclass(value):
        return {
            field.name: REDACTED if field.name in _SECRETS else plain(getattr(value, field.name))
            for field in fields(value)
        }
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: plain(part) for name, part in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in sorted(value.items())}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value


def walk(node: Node, path: str) -> Iterator[tuple[str, Node]]:
    """The node and everything below it, depth first: (path, node)."""
    yield path or "/", node
    if isinstance(node, Folder):
        for name in node.names():
            child = node.child(name)
            if child is not None:
                yield from walk(child, f"{path}/{name}")


def nested(node: Node) -> Value:
    """The node and everything below it as one value."""
    if isinstance(node, Leaf):
        return node.value
    return {name: nested(child) for name in node.names() if (child := node.child(name)) is not None}


# -- parts ------------------------------------------------------------------------------------------------------------


def _fixed(children: Mapping[str, Node]) -> Folder:
    return Folder(lambda: list(children), children.get)


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


def _by_number(found: Mapping[int, Any]) -> Folder:
    def child(name: str) -> Node | None:
        number = _number(name)
        return Leaf(plain(found[number])) if number is not None and number in found else None

    return Folder(lambda: [str(number) for number in sorted(found)], child)


def _by_text(found: Mapping[str, Any]) -> Folder:
    return Folder(lambda: sorted(found), lambda name: Leaf(plain(found[name])) if name in found else None)


def _by_id(found: Mapping[UUID, Any]) -> Folder:
    def child(name: str) -> Node | None:
        key = _uuid(name)
        return Leaf(plain(found[key])) if key is not None and key in found else None

    return Folder(lambda: sorted(encode_uuid(key) for key in found), child)


def _uuid(text: str) -> UUID | None:
    try:
        return decode_uuid(text)
    except ValueError:
        return None


def _topics(image: MetadataImage) -> Folder:
    def by_id(name: str) -> Node | None:
        key = _uuid(name)
        topic = None if key is None else image.topics_by_id.get(key)
        return None if topic is None else _topic(topic)

    def by_name(name: str) -> Node | None:
        topic = image.topics_by_name.get(name)
        return None if topic is None else _topic(topic)

    return _fixed(
        {
            "byId": Folder(lambda: sorted(encode_uuid(key) for key in image.topics_by_id), by_id),
            "byName": Folder(lambda: sorted(image.topics_by_name), by_name),
        }
    )


def _topic(topic: TopicImage) -> Folder:
    def child(name: str) -> Node | None:
        if name == "name":
            return Leaf(topic.name)
        if name == "id":
            return Leaf(encode_uuid(topic.id))
        index = _number(name)
        if index is None or index >= len(topic.partitions):
            return None
        return Leaf(plain(topic.partitions[index]))

    return Folder(lambda: [*map(str, range(len(topic.partitions))), "id", "name"], child)


def _features(image: MetadataImage) -> Folder:
    level = image.metadata_version
    children: dict[str, Node] = {
        f"finalized_{name}": Leaf(image.features[name]) for name in sorted(image.features) if name != METADATA_VERSION
    }
    children["metadataVersion"] = Leaf({"level": level, "name": METADATA_VERSION_NAMES.get(level, "unknown")})
    return _fixed(children)


def resource_name(resource: ConfigResource) -> str:
    """The name in the tree: `TOPIC:foo`, or `BROKER` for the default of all brokers."""
    kind = resource.type.name
    return f"{kind}:{resource.name}" if resource.name else kind


def _configs(image: MetadataImage, show_config: Callable[[str, str], str]) -> Folder:
    def child(name: str) -> Node | None:
        kind, _, resource = name.partition(":")
        found = image.configs.get(ConfigResource(_RESOURCES[kind], resource)) if kind in _RESOURCES else None
        if found is None:
            return None
        return _fixed({key: Leaf(show_config(key, value)) for key, value in sorted(found.items())})

    return Folder(lambda: sorted(resource_name(resource) for resource in image.configs), child)


def entity_name(entity: Sequence[tuple[str, str | None]]) -> str:
    """`clientId(a)_user()`: "" is the default of a type; brackets and backslashes of names are escaped."""
    return "_".join(f"{_ENTITY_TYPES.get(kind, kind)}({_escaped(name or '')})" for kind, name in entity)


def _escaped(name: str) -> str:
    return name.translate({ord(sign): "\\" + sign for sign in "\\()"})


def _quotas(image: MetadataImage) -> Folder:
    by_name = {entity_name(entity): quotas for entity, quotas in image.client_quotas.items()}

    def child(name: str) -> Node | None:
        quotas = by_name.get(name)
        return None if quotas is None else _fixed({key: Leaf(value) for key, value in sorted(quotas.items())})

    return Folder(lambda: sorted(by_name), child)


def _scram(image: MetadataImage) -> Folder:
    users: dict[str, dict[str, Any]] = {name: {} for name in _MECHANISMS.values()}
    for (user, mechanism), credential in image.scram.items():
        users.setdefault(_MECHANISMS.get(mechanism, str(mechanism)), {})[user] = credential
    return _fixed({name: _by_text(found) for name, found in sorted(users.items())})
