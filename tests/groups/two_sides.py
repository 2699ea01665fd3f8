"""A script of `peers.Session` run against both sides: a broker on a port, and our handlers alone.

Owns the topics of all scripts, the lifetime of the peers, and the comparison of two recordings. The scripts are in
`scripts` and `consumer_scripts`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

from fenceline.groups.settings import GroupSettings
from fenceline.ids import CONSUMER_OFFSETS_TOPIC
from fenceline.records.decode import decode_all
from fenceline.testing.apache_kafka import ApacheKafka, small_kafka
from tests.groups.peers import HandlerPeer, Session, SocketPeer
from tests.groups.scripts import Script
from tests.support.recorded import as_recorded

TOPICS: Final = ("t", "u")
PARTITIONS: Final = 3
NO_DELAY: Final = GroupSettings(initial_rebalance_delay_ms=0)


@contextmanager
def kafka_with_groups(overrides: Mapping[str, str] | None = None) -> Iterator[ApacheKafka]:
    """A Kafka with the topics and an available group coordinator."""

    async def prepare(port: int) -> None:
        async with prepared(port):
            pass

    with small_kafka(overrides=overrides) as node:
        asyncio.run(prepare(node.port))
        yield node


@asynccontextmanager
async def prepared(port: int) -> AsyncIterator[Session]:
    """A session with the broker behind a port, after it has the topics and an available group coordinator."""
    peer = SocketPeer(port)
    try:
        await peer.prepare(TOPICS, PARTITIONS)
        yield Session(peer)
    finally:
        peer.close()


async def told_to_broker(port: int, run: Script) -> Session:
    async with prepared(port) as session:
        await run(session)
        return session


async def told_to_handlers(run: Script, settings: GroupSettings = NO_DELAY) -> tuple[Session, HandlerPeer]:
    peer = HandlerPeer(TOPICS, PARTITIONS, settings)
    try:
        session = Session(peer)
        await run(session)
        return session, peer
    finally:
        peer.close()


def same(ours: list[Any], theirs: list[Any]) -> None:
    """Our answers to a script, and Kafka's in the form of a recording."""
    ours = as_recorded(ours)
    assert len(ours) == len(theirs)
    differences = [
        f"{number}: Kafka {their}\n{' ' * len(str(number))}  we    {our}"
        for number, (their, our) in enumerate(zip(theirs, ours, strict=True))
        if their != our
    ]
    assert not differences, "\n".join(differences)


def stored_by_kafka(node: ApacheKafka) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Key and value of each record of `__consumer_offsets`, as its files have them."""
    for directory in sorted(node.log_dir.glob(f"{CONSUMER_OFFSETS_TOPIC}-*")):
        for segment in sorted(directory.glob("*.log")):
            for _, batch in decode_all(segment.read_bytes(), allow_partial_tail=True):
                yield from ((record.key, record.value) for record in batch)
