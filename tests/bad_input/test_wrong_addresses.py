"""Addresses of the wrong process: another cluster, another voter, a broker, another protocol, or no process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from fenceline.errors import ErrorCode
from fenceline.ids import encode_uuid
from fenceline.node.quorum.peers import QuorumPeers
from fenceline.quorum.duties import Level, LogLine, Peer, Send
from fenceline.quorum.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    QuorumFetchRequest,
    VoteRequest,
    VoteResponse,
)
from fenceline.testing.apache_kafka import free_port
from fenceline.testing.node import EmbeddedNode
from tests.quorum.machine import Machine
from tests.quorum.memory_log import voter

PATIENCE_S = 60


# --- reports of the quorum --------------------------------------------------------------------------------------------


def test_inconsistent_cluster_id_is_reported_with_address() -> None:
    machine = Machine()
    machine.to_prospective()
    asked = machine.request_id(2, VoteRequest)
    machine.reply(asked, VoteResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID))
    (said,) = machine.found(LogLine)
    endpoint = voter(2).endpoints[0]
    assert said.level is Level.WARNING
    assert said.text.startswith(
        f"{endpoint.host}:{endpoint.port} rejects requests of this node: INCONSISTENT_CLUSTER_ID"
    )
    assert said.text.endswith("This node belongs to cluster c")
    for hint in ("cluster.id", "meta.properties", "controller.quorum.voters", "controller.quorum.bootstrap.servers"):
        assert hint in said.advice


@pytest.mark.parametrize("dynamic", [True, False])
def test_invalid_voter_key_is_reported(dynamic: bool) -> None:
    """Swapped addresses, or a disk that was replaced: INVALID_VOTER_KEY (Q16, Q21)."""
    machine = Machine(dynamic=dynamic)
    machine.to_leader()
    asked = machine.request_id(2, BeginQuorumEpochRequest)
    epoch = machine.quorum.epoch
    machine.reply(asked, BeginQuorumEpochResponse(partition_error_code=ErrorCode.INVALID_VOTER_KEY, leader_epoch=epoch))
    (said,) = machine.found(LogLine)
    endpoint = voter(2).endpoints[0]
    directory = f" with directory id {encode_uuid(voter(2).voter_directory_id)}" if dynamic else ""
    assert said.text == f"The node at {endpoint.host}:{endpoint.port} is not voter 2{directory}."
    assert "controller.quorum.voters" in said.advice
    assert "fenceline quorum remove" in said.advice
    assert machine.quorum.is_leader


# --- reports about an address -----------------------------------------------------------------------------------------


async def failure_reason(host: str, port: int) -> str:
    """The reason why a fetch from this address fails, as reported to the operator."""
    reported: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def note(address: str, reason: str) -> None:
        assert address == f"{host}:{port}"
        if not reported.done():
            reported.set_result(reason)

    peers = QuorumPeers(
        node_id=9,
        request_timeout_ms=2000,
        answered=lambda request_id, answer: reported.set_result("answered"),
        unanswered=lambda request_id, refused: None,
        watch=SimpleNamespace(request_failed=note, reachable=lambda address: None),  # type: ignore[arg-type]
    )
    peers.send(Send(Peer(-2, host, port), 1, QuorumFetchRequest("c", 9, 0, 0, 0, UUID(int=9))))
    async with asyncio.timeout(PATIENCE_S):
        reason = await reported
    await peers.close()
    return reason


def run(story: Callable[[], Awaitable[Any]]) -> Any:
    async def whole() -> Any:
        async with asyncio.timeout(PATIENCE_S):
            return await story()

    return asyncio.run(whole())


def test_refused_connection_is_reported() -> None:
    port = free_port()
    assert run(lambda: failure_reason("127.0.0.1", port)) == f"no process listens on 127.0.0.1:{port}"


def test_duration_of_refused_connections() -> None:
    """Counted from the first refused connection until any other result."""
    unanswered: asyncio.Queue[bool] = asyncio.Queue()

    async def story() -> None:
        peers = QuorumPeers(
            node_id=9,
            request_timeout_ms=2000,
            answered=lambda request_id, answer: None,
            unanswered=lambda request_id, refused: unanswered.put_nowait(refused),
        )
        port = free_port()
        request = QuorumFetchRequest("c", 9, 0, 0, 0, UUID(int=9))
        assert peers.refused_for_s(1) == 0.0
        peers.send(Send(Peer(1, "127.0.0.1", port), 1, request))
        assert await unanswered.get()
        first_s = peers.refused_for_s(1)
        peers.send(Send(Peer(1, "127.0.0.1", port), 2, request))
        assert await unanswered.get()
        assert peers.refused_for_s(1) > first_s > 0.0
        assert peers.refused_for_s(2) == 0.0
        peers.send(Send(Peer(1, "no-such-host.invalid", port), 3, request))
        assert not await unanswered.get()
        assert peers.refused_for_s(1) == 0.0
        peers.send(Send(Peer(1, "127.0.0.1", port), 4, request))
        assert await unanswered.get()
        peers.mark_alive(2)
        assert peers.refused_for_s(1) > 0.0
        peers.mark_alive(1)
        assert peers.refused_for_s(1) == 0.0, "it has been in contact since"
        await peers.close()

    run(story)


def test_unknown_host_is_reported() -> None:
    assert run(lambda: failure_reason("no-such-host.invalid", 9093)).startswith(
        "could not connect to no-such-host.invalid:9093: "
    )


def test_port_of_another_protocol_is_reported() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            await reader.read(1000)
            writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
            await writer.drain()

    async def story() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        reason = await failure_reason("127.0.0.1", port)
        server.close()
        assert reason == f"127.0.0.1:{port} sent a response that is not valid in the Kafka protocol"

    run(story)


def test_broker_listener_is_reported() -> None:
    with EmbeddedNode() as node:
        reason = run(lambda: failure_reason("127.0.0.1", node.port))
        assert reason == f"127.0.0.1:{node.port} is a broker listener, not a controller listener"
        assert node.errors == ""
