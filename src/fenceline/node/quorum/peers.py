"""The quorum's requests to other nodes, over separate connections.

Owns the connections of one node's quorum: for each address one for Fetch, which may wait at the receiver and block
later requests, and one for the rest. Distinguishes refused connections from missing responses. Decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fenceline.node.logs import Logger
from fenceline.node.net.peer_connection import (
    Dial,
    PeerConnection,
    PeerConnectionLost,
    dial,
    negotiate_versions,
    open_peer,
)
from fenceline.quorum.codec import API_OF, version_for
from fenceline.quorum.codec.requests import request_fields
from fenceline.quorum.codec.responses import read_answer, read_api_versions, unsupported
from fenceline.quorum.duties import Peer, Send
from fenceline.quorum.messages import (
    ApiVersionsRequest,
    FetchSnapshotRequest,
    QuorumFetchRequest,
    QuorumFetchResponse,
    RequestMessage,
    ResponseMessage,
)
from fenceline.wire import entities
from fenceline.wire.apis import ApiKey
from fenceline.wire.errors import MalformedRequest
from fenceline.wire.extensions import WATCHES_SILENCE

if TYPE_CHECKING:
    from fenceline.node.quorum.watch import QuorumWatch

log = Logger("quorum")

Route = tuple[str, int, bool]
"""Host, port, and whether it is the connection for fetches."""

_EXTRA_TIMEOUT_S: Final = 1.0
"""Added to the quorum's own request timeout: after that the connection is also closed."""


class QuorumPeers:
    """See the module. For each request either `answered` or `unanswered` is called once, with its id."""

    def __init__(
        self,
        *,
        node_id: int,
        request_timeout_ms: int,
        answered: Callable[[int, ResponseMessage], None],
        unanswered: Callable[[int, bool], None],
        connect: Dial = dial,
        watch: QuorumWatch | None = None,
    ) -> None:
        """`watch` is informed of addresses that do not respond, and why."""
        self._watch = watch
        self._client_id = f"quorum-{node_id}"
        self._timeout_s = request_timeout_ms / 1000 + _EXTRA_TIMEOUT_S
        self._answered = answered
        self._unanswered = unanswered
        self._connect = connect
        self._connections: dict[Route, asyncio.Task[PeerConnection]] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._is_closed = False
        self._refused_since_s: dict[int, float] = {}
        """By node, when it started to refuse connections, by the loop's clock."""
        self._due_s: dict[int, float] = {}
        """By node, when the response to the oldest pending fetch was due, by the loop's clock."""

    def refused_for_s(self, node_id: int) -> float:
        """For how long a controller has refused all connections of this node; 0 if it does not."""
        since_s = self._refused_since_s.get(node_id)
        return 0.0 if since_s is None else asyncio.get_running_loop().time() - since_s

    def silent_for_s(self, node_id: int) -> float:
        """For how long the response of this node to a fetch is overdue; 0 if none is."""
        due_s = self._due_s.get(node_id)
        return 0.0 if due_s is None else max(0.0, asyncio.get_running_loop().time() - due_s)

    def mark_alive(self, node_id: int) -> None:
        """The node's process is alive, as other connections show: earlier refusals came from its previous process."""
        self._refused_since_s.pop(node_id, None)

    def send(self, duty: Send) -> None:
        task = asyncio.get_running_loop().create_task(self._send(duty))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def close(self) -> None:
        self._is_closed = True
        for task in [*self._tasks, *self._connections.values()]:
            if task.done() and not task.cancelled() and task.exception() is None and task in self._connections.values():
                connection = task.result()
                assert isinstance(connection, PeerConnection)
                connection.close()
            task.cancel()
        pending = [*self._tasks, *self._connections.values()]
        self._connections.clear()
        await asyncio.gather(*pending, return_exceptions=True)

    async def _send(self, duty: Send) -> None:
        message, peer = duty.message, duty.destination
        route = (peer.host, peer.port, isinstance(message, QuorumFetchRequest | FetchSnapshotRequest))
        if isinstance(message, QuorumFetchRequest):
            due_s = asyncio.get_running_loop().time() + message.max_wait_ms / 1000
            self._due_s.setdefault(peer.node_id, due_s)
        try:
            connection = await self._connection(route)
            answer = await self._ask(connection, message)
        except (ConnectionError, MalformedRequest) as error:
            self._due_s.pop(peer.node_id, None)
            if isinstance(error, MalformedRequest):
                log.warning("could not decode a response", peer=f"{peer.host}:{peer.port}", reason=str(error))
                self._drop(route)
            is_refused = isinstance(error, ConnectionRefusedError)
            if is_refused:
                self._refused_since_s.setdefault(peer.node_id, asyncio.get_running_loop().time())
            else:
                self._refused_since_s.pop(peer.node_id, None)
            if not self._is_closed:
                if self._watch is not None:
                    self._watch.request_failed(*_describe_failure(peer, error))
                self._unanswered(duty.request_id, is_refused)
        else:
            self._refused_since_s.pop(peer.node_id, None)
            self._due_s.pop(peer.node_id, None)
            if not self._is_closed:
                if self._watch is not None:
                    self._watch.reachable(f"{peer.host}:{peer.port}")
                self._answered(duty.request_id, answer)

    async def _connection(self, route: Route) -> PeerConnection:
        task = self._connections.get(route)
        if task is not None and task.done() and (task.cancelled() or task.exception() or not task.result().is_open):
            task = None
        if task is None:
            opening = self._open(route[0], route[1])
            task = self._connections[route] = asyncio.get_running_loop().create_task(opening)
        return await asyncio.shield(task)

    async def _open(self, host: str, port: int) -> PeerConnection:
        connection = await open_peer(host, port, client_id=self._client_id, connect=self._connect)
        if ApiKey.VOTE not in connection.versions:
            connection.close()
            raise PeerConnectionLost(f"{connection.peer} is a broker listener, not a controller listener")
        return connection

    def _drop(self, route: Route) -> None:
        task = self._connections.pop(route, None)
        if task is not None and task.done():
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                task.result().close()

    async def _ask(self, connection: PeerConnection, message: RequestMessage) -> ResponseMessage:
        if isinstance(message, ApiVersionsRequest):
            return read_api_versions(await negotiate_versions(connection))
        version = version_for(message, connection.versions)
        if version is None:
            return unsupported(message)
        key = API_OF[type(message)]
        body = connection.post(key, version, entities.write_request(key, version, request_fields(message, version)))
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await body
        except TimeoutError:
            connection.close()
            raise PeerConnectionLost(f"{connection.peer} does not respond") from None
        response = read_answer(key, entities.read_response(key, version, answer))
        if isinstance(response, QuorumFetchResponse) and connection.fenceline_level >= WATCHES_SILENCE:
            return replace(response, is_prompt=True)
        return response


def _describe_failure(peer: Peer, error: Exception) -> tuple[str, str]:
    """The address of `peer`, and why it did not respond, for an operator."""
    address = f"{peer.host}:{peer.port}"
    if isinstance(error, ConnectionRefusedError):
        return address, f"no process listens on {address}"
    reason = str(error) or type(error).__name__
    return address, reason if address in reason else f"{address}: {reason}"
