"""The hash of a group's topics is Kafka's: XXH3 over Kafka's encoding of each topic."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import replace

import pytest
from xxhash import xxh3_64_intdigest

from fenceline.groups.consumer import topics as consumer_topics
from fenceline.groups.consumer.topics import TopicHashes, topic_hash
from fenceline.metadata.image import MetadataImage, TopicImage
from tests.groups.consumer_world import id_of, image_of


def metadata_hash(names: Iterable[str], image: MetadataImage) -> int:
    return TopicHashes().of(names, image)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def test_hash_of_no_topics_is_zero() -> None:
    assert metadata_hash([], image_of({})) == 0
    assert metadata_hash(["gone"], image_of({"t": 1})) == 0


def test_topic_hash_covers_id_name_partitions_and_racks() -> None:
    image = image_of({"foo": 2}, racks={1: "rack1"})
    high, low = struct.unpack(">qq", id_of("foo").bytes)
    name, rack = "foo".encode("utf-16-le"), "rack1".encode("utf-16-le")
    expected = b"\0" + struct.pack("<qq", high, low) + name + struct.pack("<i", 3) + struct.pack("<i", 2)
    for index in range(2):
        expected += struct.pack("<i", index) + struct.pack("<i", 5) + rack + struct.pack("<i", 5)
    assert topic_hash(image.topics_by_name["foo"], image) == _signed(xxh3_64_intdigest(expected))


def test_group_hash_covers_its_topics_in_name_order() -> None:
    image = image_of({"foo": 2, "bar": 1})
    hashes = [topic_hash(image.topics_by_name[name], image) for name in ("bar", "foo")]
    expected = _signed(xxh3_64_intdigest(struct.pack("<qq", *hashes)))
    assert metadata_hash({"foo", "bar", "gone"}, image) == expected


def test_hash_changes_with_every_input_of_an_assignment() -> None:
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


def test_topic_hash_is_cached_while_topic_and_brokers_are_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []

    def counted(topic: TopicImage, image: MetadataImage) -> int:
        hashed.append(topic.name)
        return topic_hash(topic, image)

    monkeypatch.setattr(consumer_topics, "topic_hash", counted)
    hashes = TopicHashes()
    racks = {1: "a"}
    before = image_of({"t": 1, "u": 1}, racks)
    assert hashes.of(["t", "u"], before) == hashes.of(["t", "u"], before)
    assert hashed == ["t", "u"]
    grown = image_of({"t": 2}).topics_by_name["t"]
    larger = replace(before, topics_by_name=before.topics_by_name.set("t", grown))
    assert hashes.of(["t", "u"], larger) == metadata_hash(["t", "u"], larger) != metadata_hash(["t", "u"], before)
    elsewhere = replace(larger, brokers=image_of({}, {1: "b"}).brokers)
    assert hashes.of(["t", "u"], elsewhere) == metadata_hash(["t", "u"], elsewhere)
    assert hashes.of(["t", "u"], elsewhere) != hashes.of(["t", "u"], larger)


def test_hashes_of_deleted_topics_are_evicted() -> None:
    hashes = TopicHashes()
    for number in range(20):
        image = image_of({f"t{number}": 1, f"t{number + 1}": 1})
        assert hashes.of(image.topics_by_name, image) == metadata_hash(image.topics_by_name, image)
        assert len(hashes) <= 2
