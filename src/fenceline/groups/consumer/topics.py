"""The topics that groups of the consumer protocol subscribe to, in the metadata image.

Owns which topics of a subscription exist, and the hash of them in a group's record: when it changes, the group needs a
new assignment. The hash equals Kafka's, bit for bit, so that moving a coordinator between Kafka and Fenceline does not
look like a change. Never changes the metadata.

The hash of a topic is the XXH3 (64 bits) of: a byte 0, the two halves of its id, its name, the number of partitions,
and of each partition its number and the racks of its replicas, sorted. Numbers are little-endian; a string is its
UTF-16 code units, little-endian, followed by their count; a rack also has the count before it. A group's hash is that
of its topics' hashes in the order of their names.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from uuid import UUID

from xxhash import xxh3_64_intdigest

from fenceline.metadata.image import MetadataImage, TopicImage

_INT32 = struct.Struct("<i")
_INT64 = struct.Struct("<q")
_NO_HASH = 0


def topic_ids(names: Iterable[str], image: MetadataImage) -> set[UUID]:
    """The ids of the topics that exist."""
    topics = image.topics_by_name
    return {topic.id for name in names if (topic := topics.get(name)) is not None}


class TopicHashes:
    """The hashes of one coordinator. A topic is hashed once for all groups, until it or a broker changes."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[str, tuple[TopicImage, object, int]] = {}
        """By name: the topic, the brokers, the hash."""

    def __len__(self) -> int:
        return len(self._known)

    def of(self, names: Iterable[str], image: MetadataImage) -> int:
        """Of the topics that exist, as the signed number in records; 0 if none exists."""
        topics = image.topics_by_name
        # Java orders strings by their UTF-16 code units; topic names are ASCII.
        found = [topic for name in sorted(names) if (topic := topics.get(name)) is not None]
        if not found:
            return _NO_HASH
        return _signed(xxh3_64_intdigest(b"".join(_INT64.pack(self._of_topic(topic, image)) for topic in found)))

    def _of_topic(self, topic: TopicImage, image: MetadataImage) -> int:
        known = self._known.get(topic.name)
        if known is not None and known[0] is topic and known[1] is image.brokers:
            return known[2]
        if known is None and len(self._known) >= len(image.topics_by_name):
            # Some of them were deleted.
            self._known = {name: each for name, each in self._known.items() if name in image.topics_by_name}
        found = topic_hash(topic, image)
        self._known[topic.name] = (topic, image.brokers, found)
        return found


def topic_hash(topic: TopicImage, image: MetadataImage) -> int:
    """Of one topic, signed."""
    high, low = struct.unpack(">qq", topic.id.bytes)
    parts = [b"\0", _INT64.pack(high), _INT64.pack(low), _string(topic.name), _INT32.pack(len(topic.partitions))]
    brokers = image.brokers
    for index, partition in enumerate(topic.partitions):
        parts.append(_INT32.pack(index))
        racks = [
            broker.rack
            for replica in partition.replicas
            if (broker := brokers.get(replica)) is not None and broker.rack is not None
        ]
        for rack in sorted(racks):
            parts.append(_INT32.pack(_units(rack)))
            parts.append(_string(rack))
    return _signed(xxh3_64_intdigest(b"".join(parts)))


def _string(text: str) -> bytes:
    encoded = text.encode("utf-16-le", "surrogatepass")
    return encoded + _INT32.pack(len(encoded) // 2)


def _units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
