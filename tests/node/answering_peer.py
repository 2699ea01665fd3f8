"""A broker at the other end of a connection, which answers when the test says so."""

from __future__ import annotations

import asyncio
from typing import Any

from fenceline.node.net.peer_connection import NoSuchVersion
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_request, read_response, write_request, write_response


class AnsweringPeer:
    """A connection and its broker; `fields_of` makes the answers."""

    def __init__(self, newest: int) -> None:
        self.newest = newest
        self.requests: list[Any] = []
        self.versions: list[int] = []
        self.fails: Exception | None = None
        self.opened = 0
        self.is_open = False
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    def version_for(self, key: ApiKey, low: int, high: int) -> int:
        if self.newest < low:
            raise NoSuchVersion("too old")
        return min(self.newest, high)

    def close(self) -> None:
        self.is_open = False

    async def call(self, key: ApiKey, version: int, fields: Any, timeout_s: float) -> Any:
        request = read_request(key, version, write_request(key, version, fields))
        self.requests.append(request)
        self.versions.append(version)
        await self.may_answer.wait()
        if self.fails is not None:
            raise self.fails
        return read_response(key, version, write_response(key, version, self.fields_of(request)))

    def fields_of(self, request: Any) -> dict[str, Any]:
        raise AssertionError("this peer is not asked")
