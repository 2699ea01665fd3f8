"""Apache Kafka 4.3.1 and our handlers answer the same scripts alike, field by field, and store the same records."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from fenceline.groups import records
from fenceline.groups.settings import GroupSettings
from fenceline.ids import CONSUMER_OFFSETS_TOPIC
from fenceline.records.decode import decode_all
from fenceline.testing.apache_kafka import ApacheKafka, small_kafka
from tests.groups.peers import HandlerPeer, Session, SocketPeer
from tests.groups.scripts import SCRIPTS, Script, what_is_stored

TOPICS = ("t", "u")
PARTITIONS = 3


@pytest.fixture(scope="module")
def kafka() -> Iterator[ApacheKafka]:
    with small_kafka() as node:
        asyncio.run(_prepare(node))
        yield node


async def _prepare(node: ApacheKafka) -> None:
    peer = SocketPeer(node.port)
    await peer.prepare(TOPICS, PARTITIONS)
    peer.close()


async def _told_to_kafka(node: ApacheKafka, run: Script) -> list[Any]:
    peer = SocketPeer(node.port)
    try:
        await peer.prepare(TOPICS, PARTITIONS)
        session = Session(peer)
        await run(session)
        return session.seen
    finally:
        peer.close()


async def _told_to_us(run: Script) -> list[Any]:
    peer = HandlerPeer(TOPICS, PARTITIONS, GroupSettings(initial_rebalance_delay_ms=0))
    try:
        session = Session(peer)
        await run(session)
        return session.seen
    finally:
        peer.close()


# A group that only a refused or unfinished join has touched lives in Kafka's memory alone, and goes with any refused
# write of its partition: under load Kafka sometimes says that there is no such group.
UNSTEADY_IN_KAFKA = frozenset({"empty_group_after_failed_join"})


@pytest.mark.kafka
@pytest.mark.parametrize("name", [name for name in SCRIPTS if name not in UNSTEADY_IN_KAFKA])
def test_kafka_says_the_same(kafka: ApacheKafka, name: str) -> None:
    theirs = asyncio.run(_told_to_kafka(kafka, SCRIPTS[name]))
    ours = asyncio.run(_told_to_us(SCRIPTS[name]))
    assert len(ours) == len(theirs)
    differences = [
        f"{number}: Kafka {their}\n{' ' * len(str(number))}  we    {our}"
        for number, (their, our) in enumerate(zip(theirs, ours, strict=True))
        if their != our
    ]
    assert not differences, "\n".join(differences)


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "sessions_end"])
def test_the_scripts_run_without_kafka(name: str) -> None:
    assert asyncio.run(_told_to_us(SCRIPTS[name]))


# --- records ----------------------------------------


def _stored_by_kafka(node: ApacheKafka) -> Iterator[tuple[bytes | None, bytes | None]]:
    for directory in sorted(node.log_dir.glob(f"{CONSUMER_OFFSETS_TOPIC}-*")):
        for segment in sorted(directory.glob("*.log")):
            for _, batch in decode_all(segment.read_bytes(), allow_partial_tail=True):
                yield from ((record.key, record.value) for record in batch)


def _shown(session: Session, pairs: Iterable[tuple[bytes | None, bytes | None]]) -> dict[str, list[Any]]:
    """The records of each group of the script, with names for what differs by chance."""
    found: dict[str, list[Any]] = {}
    for key, value in pairs:
        assert key is not None
        meaning = records.decode(key, value)
        assert isinstance(meaning, records.OffsetCommitted | records.GroupStored)
        group = meaning.slot.group_id if isinstance(meaning, records.OffsetCommitted) else meaning.group_id
        if not group.startswith("stored-"):
            continue
        version = None if value is None else int.from_bytes(value[:2])
        fields: Any = meaning.value
        if isinstance(meaning, records.OffsetCommitted) and meaning.value is not None:
            stored = meaning.value
            kept_ms = stored.expire_timestamp_ms - stored.commit_timestamp_ms if stored.expire_timestamp_ms > 0 else -1
            fields = (stored.offset, stored.leader_epoch, stored.metadata, kept_ms, session.plain(stored.topic_id))
        elif isinstance(meaning, records.GroupStored) and meaning.value is not None:
            fields = dataclasses.asdict(meaning.value)
            assert fields.pop("current_state_timestamp") > 0
            fields["leader"] = session.plain(fields["leader"])
            for member in fields["members"]:
                member["member_id"] = session.plain(member["member_id"])
            fields["members"] = sorted(fields["members"], key=repr)
        found.setdefault(group, []).append((key[:2].hex(), version, getattr(meaning, "slot", None), fields))
    return found


async def _stored_by_us() -> dict[str, list[Any]]:
    peer = HandlerPeer(TOPICS, PARTITIONS, GroupSettings(initial_rebalance_delay_ms=0))
    try:
        session = Session(peer)
        await what_is_stored(session)
        return _shown(session, peer.log.records())
    finally:
        peer.close()


@pytest.mark.kafka
def test_kafka_stores_the_same_records(kafka: ApacheKafka) -> None:
    async def run() -> dict[str, list[Any]]:
        peer = SocketPeer(kafka.port)
        await peer.prepare(TOPICS, PARTITIONS)
        session = Session(peer)
        await what_is_stored(session)
        peer.close()
        return _shown(session, _stored_by_kafka(kafka))

    theirs, ours = asyncio.run(run()), asyncio.run(_stored_by_us())
    assert ours.keys() == theirs.keys()
    for group in theirs:
        assert ours[group] == theirs[group]


@pytest.mark.kafka
def test_a_log_of_kafka_is_loaded(kafka: ApacheKafka) -> None:
    """Everything that Kafka wrote during the scripts can be read, and what we would write for it are its own bytes."""
    count = 0
    for key, value in _stored_by_kafka(kafka):
        meaning = records.decode(key, value)
        if isinstance(meaning, records.OffsetCommitted):
            again = (
                records.offset_tombstone(meaning.slot)
                if meaning.value is None
                else records.offset_record(meaning.slot, meaning.value)
            )
            assert again == (key, value)
        count += 1
    assert count > 50
