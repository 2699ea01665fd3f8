"""A leader on a real socket that says which versions of Fetch it speaks; what becomes of the fetches is the test's."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from fenceline.wire import entities
from fenceline.wire.apis import ApiKey
from fenceline.wire.frame import parse_request_header


class SocketLeader:
    """Connections have numbers, from 1 on; `open` are those that are open. What `heard` gives is put into `fetches`."""

    def __init__(self) -> None:
        self.fetches: asyncio.Queue[Any] = asyncio.Queue()
        self.port = 0
        self.open: set[int] = set()
        self._connections = 0

    async def serve(self) -> asyncio.Server:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    def heard(self, number: int, header: Any, frame: memoryview, writer: asyncio.StreamWriter) -> Any:
        """What a test sees of a fetch on connection `number`."""
        raise AssertionError("said by who tests with it")

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        number = self._connections
        self.open.add(number)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                frame = memoryview(await reader.readexactly(size))
                header = parse_request_header(frame)
                if header.api_key == ApiKey.FETCH:
                    self.fetches.put_nowait(self.heard(number, header, frame, writer))
                    continue
                keys = [{"api_key": ApiKey.FETCH, "min_version": 13, "max_version": 17}]
                body = entities.write_response(
                    ApiKey.API_VERSIONS, header.api_version, {"error_code": 0, "api_keys": keys}
                )
                answer = header.correlation_id.to_bytes(4, "big") + body
                writer.write(len(answer).to_bytes(4, "big") + answer)
        self.open.discard(number)
        writer.close()
