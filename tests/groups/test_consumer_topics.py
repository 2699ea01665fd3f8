"""The hash of a group's topics is Kafka's: XXH3 over the bytes that its stream of a topic gives."""

from __future__ import annotations

import struct

from xxhash import xxh3_64_intdigest

from fenceline.groups.consumer_topics import metadata_hash, topic_hash
from tests.groups.consumer_world import id_of, image_of


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def test_nothing_is_zero() -> None:
    assert metadata_hash([], image_of({})) == 0
    assert metadata_hash(["gone"], image_of({"t": 1})) == 0


def test_a_topic_is_its_id_name_partitions_and_racks() -> None:
    image = image_of({"foo": 2}, racks={1: "rack1"})
    high, low = struct.unpack(">qq", id_of("foo").bytes)
    name, rack = "foo".encode("utf-16-le"), "rack1".encode("utf-16-le")
    expected = b"\0" + struct.pack("<qq", high, low) + name + struct.pack("<i", 3) + struct.pack("<i", 2)
    for index in range(2):
        expected += struct.pack("<i", index) + struct.pack("<i", 5) + rack + struct.pack("<i", 5)
    assert topic_hash(image.topics_by_name["foo"], image) == _signed(xxh3_64_intdigest(expected))


def test_a_group_is_its_topics_in_the_order_of_their_names() -> None:
    image = image_of({"foo": 2, "bar": 1})
    hashes = [topic_hash(image.topics_by_name[name], image) for name in ("bar", "foo")]
    expected = _signed(xxh3_64_intdigest(struct.pack("<qq", *hashes)))
    assert metadata_hash({"foo", "bar", "gone"}, image) == expected


def test_whatever_matters_to_an_assignment_changes_it() -> None:
    seen = {
        metadata_hash(["t"], image)
        for image in (
            image_of({"t": 1}),
            image_of({"t": 2}),
            image_of({"t": 1}, racks={1: "a"}),
            image_of({"t": 1}, racks={1: "b"}),
        )
    }
    assert len(seen) == 4
