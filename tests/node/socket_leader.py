"""A leader on a real socket that announces its versions of Fetch, and a broker that follows it.

The test decides what happens to the fetches.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, Final

from fenceline.log.core.compaction_bound import CompleteFrom
from fenceline.metadata.image import Endpoint
from fenceline.node.clock import SystemClock
from fenceline.node.net.peer_connection import LARGEST_ANSWER_BYTES
from fenceline.node.replication.absent_brokers import AbsentBrokers
from fenceline.node.replication.replica_fetchers import ReplicaFetchers
from fenceline.replica.fetcher import FetchLimits
from fenceline.wire import entities
from fenceline.wire.apis import ApiKey
from fenceline.wire.frame import parse_request_header

LEADER: Final = 2
WAIT_S: Final = 60
NEVER_MS: Final = 10 * WAIT_S * 1000
LIMITS: Final = FetchLimits(max_wait_ms=500, min_bytes=1, max_bytes=1 << 20, partition_max_bytes=1 << 20, backoff_ms=20)


class SocketLeader:
    """Connections have numbers, from 1 on; `open` are those that are open. Results of `heard` are put into
    `fetches`.
    """

    def __init__(self) -> None:
        self.fetches: asyncio.Queue[Any] = asyncio.Queue()
        self.port = 0
        self.open: set[int] = set()
        self._connections = 0
        self._server: asyncio.Server | None = None

    async def serve(self) -> None:
        """Accept connections, on another port each time."""
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Accept no more connections; those that are open stay."""
        if self._server is not None:
            self._server.close()

    async def fetched(self) -> Any:
        """The next of `fetches`."""
        return await asyncio.wait_for(self.fetches.get(), WAIT_S)

    def heard(self, number: int, header: Any, frame: memoryview, writer: asyncio.StreamWriter) -> Any:
        """The test's view of a fetch on connection `number`."""
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


@contextlib.asynccontextmanager
async def following(
    leader: SocketLeader,
    *,
    answer_timeout_ms: int = NEVER_MS,
    absent: AbsentBrokers | None = None,
    largest_answer: Callable[[], int] = lambda: LARGEST_ANSWER_BYTES,
) -> AsyncIterator[ReplicaFetchers]:
    """The fetchers of broker 1, for which `leader` is broker `LEADER`, while it serves."""
    await leader.serve()
    host: Any = SimpleNamespace(
        node_id=1,
        broker_epoch=5,
        replication_endpoint=lambda node_id: Endpoint("PLAINTEXT", "127.0.0.1", leader.port, 0),
    )
    fetchers = ReplicaFetchers(
        host,
        SystemClock(),
        None,
        LIMITS,
        answer_timeout_ms=answer_timeout_ms,
        absent=absent,
        largest_answer=largest_answer,
    )
    try:
        yield fetchers
    finally:
        await fetchers.close()
        leader.refuse()


def empty_log() -> Any:
    """A follower's view of a log without records."""
    return SimpleNamespace(
        log_start_offset=0,
        log_end_offset=0,
        latest_epoch=-1,
        latest_epoch_start=-1,
        unflushed_messages=0,
        complete_from=CompleteFrom(),
    )
