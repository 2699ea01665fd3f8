from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from fenceline.config.node import NodeConfig
from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.metadata.image import EMPTY_IMAGE
from fenceline.node.api.handlers.api_versions import ANY_VERSION, ApiVersions, api_ranges
from fenceline.node.broker import server_limits
from fenceline.node.context import AnswerOnce, Api, NodeView
from fenceline.node.metrics import NodeMetrics
from fenceline.node.net.connection_limits import ConnectionLimits
from fenceline.node.net.server import _SWEEPS_PER_IDLE_PERIOD, Server
from fenceline.node.turns import DEFERRED_IN_A_TURN, Turns
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import write_request
from fenceline.wire.frame import encode_request_frame


def server_with(overrides: dict[str, str]) -> Server:
    """A server that answers ApiVersions only, with the limits of a broker. Needs a running loop."""
    config = NodeConfig.load(None, overrides, {})
    node = NodeView(1, "", config, lambda: EMPTY_IMAGE)
    answering = ApiVersions(node, api_ranges((), {}), supported={}, finalized=dict)
    threads: Any = None
    return Server(
        (),
        {ApiKey.API_VERSIONS: (*ANY_VERSION, answering.handle)},
        server_limits(config),
        ConnectionLimits(config.text, config.of_listener_only, dict, lambda: 0),
        turns=Turns(asyncio.get_running_loop(), lambda: 0),
        metrics=NodeMetrics(),
        threads=threads,
    )


_MOST: Final = int(Path("/proc/sys/net/core/somaxconn").read_text())
"""What the system allows."""


@pytest.mark.parametrize(("overrides", "expected"), [({}, _MOST), ({"socket.listen.backlog.size": "7"}, 7)])
def test_backlog_of_the_listeners(overrides: dict[str, str], expected: int) -> None:
    """As the system knows it: for a listening socket, `tcpi_sacked` is the length of its queue."""

    async def story() -> tuple[int, int]:
        server = server_with(overrides)
        await server.bind("PLAINTEXT", "127.0.0.1", 0)
        (listening,) = server._servers[0].sockets

        def length() -> int:
            reported = listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 64)
            return int(struct.unpack_from("=8x6I", reported)[5])

        server.open_backlog()
        waiting = length()
        await server.start_serving()
        serving = length()
        await server.close()
        return waiting, serving

    assert asyncio.run(story()) == (expected, expected)


def test_a_connection_made_before_the_broker_serves_waits() -> None:
    question = struct.pack(">ihhih", 10, ApiKey.API_VERSIONS, 0, 7, 0)

    async def story() -> tuple[int, bytes]:
        server = server_with({})
        port = await server.bind("PLAINTEXT", "127.0.0.1", 0)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        server.open_backlog()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(question)
        await writer.drain()
        taken = len(server._connections)
        await server.start_serving()
        answer = await reader.readexactly(8)
        writer.close()
        await server.close()
        return taken, answer[4:]

    assert asyncio.run(story()) == (0, struct.pack(">i", 7))


def test_an_address_that_another_process_listens_on_since_it_was_bound() -> None:
    """Two processes can bind it (SO_REUSEADDR), and only the first that listens gets it."""

    async def story() -> None:
        server, other = server_with({}), server_with({})
        port = await server.bind("PLAINTEXT", "127.0.0.1", 0)
        await other.bind("PLAINTEXT", "127.0.0.1", port)
        other.open_backlog()
        for _ in range(2):
            with pytest.raises(
                OperatorError, match=f"Cannot listen on 127.0.0.1:{port}: Address already in use"
            ) as error:
                await server.start_serving()
            assert "Another process uses that port" in error.value.advice
        await server.close()
        await other.close()

    asyncio.run(story())


def test_only_large_requests_are_decoded_in_a_thread() -> None:
    """Other connections would wait for it otherwise."""

    class Counting(ThreadPoolExecutor):
        count = 0

        def submit(self, *args: Any, **more: Any) -> Any:  # type: ignore[override]
            self.count += 1
            return super().submit(*args, **more)

    async def story() -> None:
        config = NodeConfig.load(None, {}, {})
        asked: list[int] = []

        def handle(context: Any, request: Any) -> dict[str, Any]:
            asked.append(len(request.topics))
            return {"topics": []}

        with Counting(1) as threads:
            server = Server(
                (Api(ApiKey.DELETE_TOPICS, 6, 6, handle),),
                {},
                server_limits(config),
                ConnectionLimits(config.text, config.of_listener_only, dict, lambda: 0),
                turns=Turns(asyncio.get_running_loop(), lambda: 0),
                metrics=NodeMetrics(),
                threads=threads,
            )
            port = await server.bind("PLAINTEXT", "127.0.0.1", 0)
            server.open_backlog()
            await server.start_serving()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for count, in_threads in ((1, 0), (100, 0), (20_000, 1), (1, 1)):
                topics = [{"name": f"topic-{number}", "topic_id": None} for number in range(count)]
                body = write_request(ApiKey.DELETE_TOPICS, 6, {"topics": topics, "timeout": 1000})
                writer.writelines(encode_request_frame(ApiKey.DELETE_TOPICS, 6, 1, "test", body))
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                await reader.readexactly(size)
                assert (asked[-1], threads.count) == (count, in_threads)
            writer.close()
            await server.close()

    asyncio.run(story())


async def _asked_once(handle: Any) -> bytes:
    """What the client of one DescribeCluster request receives until the connection ends or has a whole answer."""
    config = NodeConfig.load(None, {}, {})
    threads: Any = None
    server = Server(
        (Api(ApiKey.DESCRIBE_CLUSTER, 0, 0, handle),),
        {},
        server_limits(config),
        ConnectionLimits(config.text, config.of_listener_only, dict, lambda: 0),
        turns=Turns(asyncio.get_running_loop(), lambda: 0),
        metrics=NodeMetrics(),
        threads=threads,
    )
    port = await server.bind("PLAINTEXT", "127.0.0.1", 0)
    await server.start_serving()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = write_request(ApiKey.DESCRIBE_CLUSTER, 0, {})
    for part in encode_request_frame(ApiKey.DESCRIBE_CLUSTER, 0, 7, "test", body):
        writer.write(part)
    size = await reader.read(4)
    answer = size + (await reader.readexactly(int.from_bytes(size, "big")) if size else b"")
    writer.close()
    await server.close()
    return answer


@pytest.mark.parametrize("outcome", [{"cluster_id": "c"}, PeerError(ErrorCode.NOT_CONTROLLER, "no"), ValueError("bug")])
def test_an_answer_that_is_built_once_something_is_done_is_that_of_a_coroutine(outcome: Any) -> None:
    """Its fields, the error of a peer, and of a bug an end of the connection."""

    def build() -> dict[str, Any]:
        if isinstance(outcome, Exception):
            raise outcome
        return dict(outcome)

    async def coroutine() -> dict[str, Any]:
        await asyncio.sleep(0)
        return build()

    def once(*_: object) -> AnswerOnce:
        ready = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(ready.set_result, None)
        return AnswerOnce(ready, build)

    async def awaited(*_: object) -> Any:
        return await once()

    answers = {asyncio.run(_asked_once(handle)) for handle in (lambda *_: coroutine(), once, awaited)}
    assert len(answers) == 1
    assert (answers.pop() == b"") is isinstance(outcome, ValueError)


def test_waiting_for_an_answer_does_not_cancel_what_it_waits_for() -> None:
    async def story() -> None:
        ready = asyncio.get_running_loop().create_future()

        async def wait() -> Any:
            return await AnswerOnce(ready, dict)

        task = asyncio.get_running_loop().create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()
        assert not ready.cancelled()

    asyncio.run(story())


async def _most_closed_in_a_turn(server: Server, count: int, end: Callable[[list[asyncio.StreamWriter]], None]) -> int:
    """Of so many connections, after `end`."""
    port = await server.bind("PLAINTEXT", "127.0.0.1", 0)
    await server.start_serving()
    writers = [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(count)]
    open_count = server.metrics.connections
    while open_count < count:
        await asyncio.sleep(0)
        open_count = server.metrics.connections
    end(writers)
    most = 0
    while open_count:
        await asyncio.sleep(0)
        most = max(most, open_count - server.metrics.connections)
        open_count = server.metrics.connections
    for writer in writers:
        writer.close()
    await server.close()
    return most


def test_clients_that_end_together_do_not_hold_up_others() -> None:
    async def story() -> int:
        def end(writers: list[asyncio.StreamWriter]) -> None:
            for writer in writers:
                writer.close()

        return await _most_closed_in_a_turn(server_with({}), 100, end)

    assert asyncio.run(asyncio.wait_for(story(), 60)) <= DEFERRED_IN_A_TURN


def test_clients_that_are_idle_for_too_long_do_not_hold_up_others() -> None:
    async def story() -> int:
        server = server_with({})

        def end(writers: list[asyncio.StreamWriter]) -> None:
            for _ in range(_SWEEPS_PER_IDLE_PERIOD + 1):
                server._sweep()

        return await _most_closed_in_a_turn(server, 100, end)

    assert asyncio.run(asyncio.wait_for(story(), 60)) <= DEFERRED_IN_A_TURN
