"""Apache Kafka 4.3.1 and our handlers give equal responses to the same heartbeats, and store the same records; each
loads the log of the other."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fenceline.groups import records
from fenceline.groups.classic.records import GroupStored
from fenceline.groups.consumer import records as consumer
from fenceline.groups.consumer.settings import ConsumerSettings, Interval
from fenceline.groups.consumer.topics import TopicHashes
from fenceline.groups.coordinator import GroupCoordinator
from fenceline.groups.messages import Now
from fenceline.groups.offsets.records import OffsetCommitted
from fenceline.groups.settings import GroupSettings
from fenceline.ids import CONSUMER_OFFSETS_TOPIC
from fenceline.records.build import build_batch
from fenceline.records.decode import decode_all
from fenceline.testing.apache_kafka import ApacheKafka, small_kafka
from fenceline.wire.apis import ApiKey
from tests.groups.consumer_scripts import (
    CONSUMER_SCRIPTS,
    beat,
    comes_back,
    describe,
    enter,
    given,
    hands_over,
    owned,
    what_consumers_store,
)
from tests.groups.consumer_world import image_of
from tests.groups.peers import HandlerPeer, Session, SocketPeer, peer_image
from tests.groups.two_sides import (
    PARTITIONS,
    TOPICS,
    kafka_with_groups,
    prepared,
    same,
    stored_by_kafka,
    told_to_broker,
    told_to_handlers,
)
from tests.support.recorded import Answer, as_recorded

SETTINGS = GroupSettings(initial_rebalance_delay_ms=0, consumer=ConsumerSettings(assignment=Interval(0, 0, 15_000)))
OVERRIDES = {"group.consumer.assignment.interval.ms": "0"}


@pytest.fixture(scope="module")
def kafka() -> Iterator[ApacheKafka]:
    with kafka_with_groups(OVERRIDES) as node:
        yield node


@pytest.mark.parametrize("name", CONSUMER_SCRIPTS)
def test_responses_equal_those_of_kafka(answer: Answer, name: str) -> None:
    theirs = answer("kafka", lambda kafka: asyncio.run(told_to_broker(kafka.port, CONSUMER_SCRIPTS[name])).seen)
    same(asyncio.run(told_to_handlers(CONSUMER_SCRIPTS[name], SETTINGS))[0].seen, theirs)


# --- records ----------------------------------------


def _shown(session: Session, pairs: Iterable[tuple[bytes | None, bytes | None]]) -> dict[str, list[Any]]:
    """The records of the script's groups of the consumer protocol, with names for values that differ by chance.
    A hash is shown as whether it is that of t."""
    image = image_of({})
    found: dict[str, list[Any]] = {}
    for key, value in pairs:
        meaning = records.decode(key, value)
        group_id = getattr(meaning, "group_id", "")
        if not group_id.startswith("stored-"):
            continue
        shown: Any = meaning._asdict()
        if isinstance(meaning, consumer.EpochStored) and meaning.value is not None:
            shown["value"] = (meaning.value.epoch, meaning.value.metadata_hash != TopicHashes().of([], image))
        elif isinstance(meaning, consumer.TargetEpochStored) and meaning.value is not None:
            shown["value"] = (meaning.value.assignment_epoch, meaning.value.assignment_timestamp > 0)
        elif isinstance(meaning, GroupStored) and meaning.value is not None:
            shown["value"] = dataclasses.asdict(meaning.value)
            shown["value"].pop("current_state_timestamp")
            shown["value"]["leader"] = session.plain(shown["value"]["leader"])
            for member in shown["value"]["members"]:
                member["member_id"] = session.plain(member["member_id"])
        else:
            shown["value"] = _plain(session, getattr(meaning, "value", None))
        if "member_id" in shown:
            shown["member_id"] = session.plain(shown["member_id"])
        found.setdefault(group_id, []).append((type(meaning).__name__, shown))
    return {group_id: _in_one_order(shown) for group_id, shown in found.items()}


def _in_one_order(shown: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Members that leave together, and the targets of one assignment: Kafka's order is that of a hash table, ours that
    of their random ids."""
    ordered: list[tuple[str, Any]] = []
    for (kind, goes), some in groupby(shown, key=lambda each: (each[0], each[1]["value"] is None)):
        together = list(some)
        if goes or kind == consumer.TargetStored.__name__:
            together.sort(key=lambda each: each[1].get("member_id", ""))
        ordered += together
    return ordered


def _plain(session: Session, value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(session, getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, dict):
        return sorted((session.plain(key), sorted(each)) for key, each in value.items())
    if isinstance(value, tuple):
        return [_plain(session, each) for each in value]
    return session.plain(value)


def test_kafka_stores_the_same_records(answer: Answer) -> None:
    def stored(kafka: ApacheKafka) -> Any:
        return _shown(asyncio.run(told_to_broker(kafka.port, what_consumers_store)), stored_by_kafka(kafka))

    theirs = answer("kafka", stored)
    session, peer = asyncio.run(told_to_handlers(what_consumers_store, SETTINGS))
    ours = as_recorded(_shown(session, peer.log.records()))
    assert ours.keys() == theirs.keys() == {"stored-new", "stored-up"}
    for group in theirs:
        assert ours[group] == theirs[group]


@pytest.mark.kafka
def test_log_of_kafka_is_loaded(kafka: ApacheKafka) -> None:
    """Every record that Kafka wrote during the scripts is decoded and encodes to the same bytes, and the groups are
    those that Kafka describes."""
    asyncio.run(told_to_broker(kafka.port, lambda s: hands_over(s, "loaded-1")))
    asyncio.run(told_to_broker(kafka.port, lambda s: comes_back(s, "loaded-2")))
    coordinator = GroupCoordinator(SETTINGS, Random(1), 1)
    shard, _ = coordinator.begin_load(0, 1, Now(0, 0))
    assert shard is not None
    count = 0
    for key, value in stored_by_kafka(kafka):
        meaning = records.decode(key, value)
        if not isinstance(meaning, OffsetCommitted | GroupStored | records.Unserved):
            assert consumer.encode(meaning) == (key, value)  # type: ignore[arg-type]
            count += 1
        shard.replay(key, value, Now(0, 0))
    assert count > 20
    described = asyncio.run(_described(kafka, sorted(shard.state.consumer)))
    for group in described:
        loaded = shard.state.consumer[group.group_id]
        loaded.check()
        assert (str(loaded.state), loaded.epoch, loaded.assignment_epoch) == (
            group.group_state,
            group.group_epoch,
            group.assignment_epoch,
        )
        assert {member.member_id: member.member_epoch for member in group.members} == {
            name: member.epoch for name, member in loaded.members.items()
        }


async def _described(node: ApacheKafka, groups: list[str]) -> Any:
    peer = SocketPeer(node.port)
    try:
        asked = {"group_ids": groups, "include_authorized_operations": False}
        answer = await peer.call("c", ApiKey.CONSUMER_GROUP_DESCRIBE, 1, asked)
        return answer.groups
    finally:
        peer.close()


@pytest.mark.kafka
def test_topic_hash_equals_that_of_kafka(kafka: ApacheKafka) -> None:
    async def comes_and_goes(session: Session) -> None:
        await enter(session, "k-hash", "a", "t")
        await beat(session, "k-hash", "a", -1)

    session = asyncio.run(told_to_broker(kafka.port, comes_and_goes))
    image = peer_image(TOPICS, PARTITIONS, session.peer.topic_ids)
    hashes = {
        meaning.value.metadata_hash
        for key, value in stored_by_kafka(kafka)
        if isinstance(meaning := records.decode(key, value), consumer.EpochStored)
        and meaning.group_id == "k-hash"
        and meaning.value is not None
    }
    assert hashes == {0, TopicHashes().of(["t"], image)}


@pytest.mark.kafka
def test_kafka_loads_our_log(tmp_path: Path) -> None:
    """Kafka is stopped, our records are appended to its log of one group's partition, and Kafka serves the group."""
    group = "ours"

    async def write(topic_ids: dict[str, Any]) -> tuple[int, list[tuple[bytes | None, bytes | None]]]:
        peer = HandlerPeer(TOPICS, PARTITIONS, SETTINGS, topic_ids)
        try:
            session = Session(peer)
            await enter(session, group, "a", "t", rack_id="r")
            await enter(session, group, "b", "t", instance_id="i")
            kept = given(await beat(session, group, "a", 2))
            await beat(session, group, "a", 2, topic_partitions=owned(session, *kept))
            await beat(session, group, "b", 3, instance_id="i")
            return peer.driver.coordinator.partition_of(group), peer.log.records()
        finally:
            peer.close()

    async def go_on(port: int) -> Any:
        async with prepared(port) as session:
            described = await describe(session, group)
            return described.groups[0], await beat(session, group, "a", 3)

    async def ids(port: int) -> dict[str, Any]:
        async with prepared(port) as session:
            return dict(session.peer.topic_ids)

    with small_kafka(overrides=OVERRIDES, data_dir=tmp_path / "kafka") as node:
        partition, ours = asyncio.run(write(asyncio.run(ids(node.port))))
        node.stop()
        directory = node.log_dir / f"{CONSUMER_OFFSETS_TOPIC}-{partition}"
        (segment,) = directory.glob("*.log")
        end = max((header.next_offset for header, _ in decode_all(segment.read_bytes())), default=0)
        with segment.open("ab") as file:
            for key, value in ours:
                file.write(build_batch([(1_700_000_000_000, key, value, ())], base_offset=end, leader_epoch=0))
                end += 1
        node.start()
        described, alive = asyncio.run(go_on(node.port))
    assert (described.error_code, described.group_state, described.group_epoch) == (0, "Stable", 3)
    assert {member.member_id for member in described.members} == {"a", "b"}
    assert (alive.error_code, alive.member_epoch) == (0, 3)
