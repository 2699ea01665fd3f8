"""Groups on a running node: it answers as the handlers alone do, and what it acknowledged outlives a kill."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from fenceline.groups.settings import GroupSettings
from fenceline.testing.node import EmbeddedNode
from fenceline.wire.apis import ApiKey
from tests.groups.peers import HandlerPeer, Session, SocketPeer
from tests.groups.scripts import SCRIPTS, committing, fetching, stable_pair

TOPICS, PARTITIONS = ("t", "u"), 3
_NO_DELAY = {"group.initial.rebalance.delay.ms": "0"}


@pytest.fixture(scope="module")
def quick_node() -> Iterator[EmbeddedNode]:
    """A node whose groups do not wait for more members."""
    with EmbeddedNode(overrides=_NO_DELAY) as running:
        yield running


async def _on_node(node: EmbeddedNode, name: str) -> list[Any]:
    peer = SocketPeer(node.port)
    try:
        await peer.prepare(TOPICS, PARTITIONS)
        session = Session(peer)
        await SCRIPTS[name](session)
        return session.seen
    finally:
        peer.close()


async def _on_handlers(name: str) -> list[Any]:
    peer = HandlerPeer(TOPICS, PARTITIONS, GroupSettings(initial_rebalance_delay_ms=0))
    try:
        session = Session(peer)
        await SCRIPTS[name](session)
        return session.seen
    finally:
        peer.close()


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "sessions_end"])
def test_a_node_answers_as_the_handlers_do(quick_node: EmbeddedNode, name: str) -> None:
    assert asyncio.run(_on_node(quick_node, name)) == asyncio.run(_on_handlers(name))


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_acknowledged_offsets_and_members_outlive_the_node(end: str) -> None:
    async def before(node: EmbeddedNode) -> tuple[str, str]:
        peer = SocketPeer(node.port)
        await peer.prepare(TOPICS, PARTITIONS)
        session = Session(peer)
        members = await stable_pair(session, "survivors")
        for offset in range(100):
            answer = await session.ask(
                ApiKey.OFFSET_COMMIT, 8, **committing(session, "survivors", 8, members[0], 2, offset=offset)
            )
            assert answer.topics[0].partitions[0].error_code == 0
        peer.close()
        return members

    async def after(node: EmbeddedNode, members: tuple[str, str]) -> None:
        peer = SocketPeer(node.port)
        await peer.prepare(TOPICS, PARTITIONS)
        session = Session(peer)
        fetched = await session.ask(ApiKey.OFFSET_FETCH, 8, **fetching(session, "survivors", 8, ["t"]))
        assert fetched.groups[0].topics[0].partitions[0].committed_offset == 99
        for member_id in members:
            beat = {"group_id": "survivors", "generation_id": 2, "member_id": member_id}
            assert (await session.ask(ApiKey.HEARTBEAT, 4, **beat)).error_code == 0
        peer.close()

    with EmbeddedNode(overrides=_NO_DELAY) as node:
        members = asyncio.run(before(node))
        if end == "stop":
            node.stop()
        else:
            node.kill()
        node.start()
        asyncio.run(after(node, members))
