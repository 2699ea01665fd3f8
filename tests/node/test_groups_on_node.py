"""Groups on a running node: its answers match those of the handlers, and acknowledged offsets survive a kill."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest

from fenceline.testing.node import EmbeddedNode
from fenceline.wire.apis import ApiKey
from tests.groups.peers import Session
from tests.groups.scripts import SCRIPTS, committing, fetching, stable_pair
from tests.groups.two_sides import prepared, told_to_broker, told_to_handlers

T = TypeVar("T")
_NO_DELAY = {"group.initial.rebalance.delay.ms": "0"}


@pytest.fixture(scope="module")
def quick_node() -> Iterator[EmbeddedNode]:
    """A node with no initial rebalance delay."""
    with EmbeddedNode(overrides=_NO_DELAY) as running:
        yield running


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "sessions_end"])
def test_node_answers_match_the_handlers(quick_node: EmbeddedNode, name: str) -> None:
    on_node = asyncio.run(told_to_broker(quick_node.port, SCRIPTS[name])).seen
    assert on_node == asyncio.run(told_to_handlers(SCRIPTS[name]))[0].seen


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_acknowledged_offsets_and_members_survive_a_restart(end: str) -> None:
    async def before(session: Session) -> tuple[str, str]:
        members = await stable_pair(session, "survivors")
        for offset in range(100):
            answer = await session.ask(
                ApiKey.OFFSET_COMMIT, 8, **committing(session, "survivors", 8, members[0], 2, offset=offset)
            )
            assert answer.topics[0].partitions[0].error_code == 0
        return members

    async def after(session: Session, members: tuple[str, str]) -> None:
        fetched = await session.ask(ApiKey.OFFSET_FETCH, 8, **fetching(session, "survivors", 8, ["t"]))
        assert fetched.groups[0].topics[0].partitions[0].committed_offset == 99
        for member_id in members:
            beat = {"group_id": "survivors", "generation_id": 2, "member_id": member_id}
            assert (await session.ask(ApiKey.HEARTBEAT, 4, **beat)).error_code == 0

    async def on(node: EmbeddedNode, run: Callable[[Session], Awaitable[T]]) -> T:
        async with prepared(node.port) as session:
            return await run(session)

    with EmbeddedNode(overrides=_NO_DELAY) as node:
        members = asyncio.run(on(node, before))
        if end == "stop":
            node.stop()
        else:
            node.kill()
        node.start()
        asyncio.run(on(node, lambda session: after(session, members)))
