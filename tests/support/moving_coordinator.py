"""Scripts of groups on a cluster whose coordinator moves between their requests.

Owns the turns: every story has made one request, then the coordinator is another one, then all go on. What was answered
is for the tests to judge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final
from uuid import UUID

from fenceline.errors import ErrorCode
from fenceline.wire.apis import ApiKey
from tests.groups.peers import SocketPeer
from tests.support.committed_offsets import NOT_NOW

_STEP_S: Final = 0.1
_PATIENCE_S: Final = 120.0


class Turns:
    """`move` gives the port of the next coordinator, and is called whenever all stories wait for their turn."""

    def __init__(self, port: int, stories: int, move: Callable[[], Awaitable[int]]) -> None:
        self.peer = SocketPeer(port)
        self.count = 0
        self._move = move
        self._alive, self._waiting = stories, 0
        self._go = asyncio.Event()

    async def take(self) -> None:
        """Returns once the coordinator is another one."""
        self._waiting += 1
        go = self._go
        await self._move_when_all_wait()
        await go.wait()

    async def leave(self) -> None:
        """A story is at its end."""
        self._alive -= 1
        await self._move_when_all_wait()

    async def _move_when_all_wait(self) -> None:
        if not self._waiting or self._waiting < self._alive:
            return
        go, self._go, self._waiting = self._go, asyncio.Event(), 0
        self.peer.close()
        self.peer = SocketPeer(await self._move())
        self.count += 1
        go.set()


class MovingPeer:
    """One story's side (`peers.Peer`): each of its requests is made of another coordinator than the one before.

    But for two requests of the classic protocol that belong together: who joins a group that is being formed is known
    to that coordinator alone until the group is.
    """

    def __init__(self, turns: Turns, topic_ids: dict[str, UUID]) -> None:
        self.topic_ids = topic_ids
        self._turns = turns
        self._stays = True

    async def call(self, client: str, api: ApiKey, version: int, fields: dict[str, Any]) -> Any:
        if not self._stays:
            await self._turns.take()
        answer = await asyncio.wait_for(self._until_it_can(client, api, version, fields), _PATIENCE_S)
        self._stays = api is ApiKey.JOIN_GROUP and (
            answer.error_code == ErrorCode.MEMBER_ID_REQUIRED or bool(answer.leader)
        )
        return answer

    async def _until_it_can(self, client: str, api: ApiKey, version: int, fields: dict[str, Any]) -> Any:
        while True:
            answer = await self._turns.peer.call(client, api, version, fields)
            if NOT_NOW.isdisjoint(_codes(answer)):
                return answer
            await asyncio.sleep(_STEP_S)


def _codes(value: Any) -> Iterator[int]:
    """All error codes of an answer."""
    if isinstance(value, tuple | list):
        for each in value:
            yield from _codes(each)
    elif hasattr(value, "__slots__") and not isinstance(value, int | str | bytes | UUID):
        for name in value.__slots__:
            if name == "error_code":
                yield int(value.error_code)
            else:
                yield from _codes(getattr(value, name))
