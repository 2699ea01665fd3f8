"""The channel from a broker to the active controller.

Owns finding the controller (this node's quorum knows the leader), the connections to it, and retries while there is
none: a request waits for the next leader until it times out. Heartbeats, producer id requests, ISR changes and client
requests have separate connections, so that none waits behind another. Decides nothing.

A request whose connection breaks is repeated, as Kafka's brokers do: the first attempt may have succeeded, in which
case the response says so (TOPIC_ALREADY_EXISTS).

Rules: controller.md C11-C20, C41, C47; since_4_0.md K4, K30 (this channel negotiates versions).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fenceline.controller.codec import MAPPINGS
from fenceline.errors import ErrorCode, PeerError
from fenceline.node.logs import Logger
from fenceline.node.net.peer_connection import (
    LARGEST_ANSWER_BYTES,
    Dial,
    NoSuchVersion,
    PeerConnection,
    PeerConnectionLost,
    dial,
    open_peer,
)
from fenceline.wire.apis import FORWARDED, NEVER, ApiKey
from fenceline.wire.entities import millis, read_response, write_request
from fenceline.wire.errors import MalformedRequest
from fenceline.wire.extensions import WATCHES_SILENCE, without_extensions
from fenceline.wire.frame import encode_request_header, parse_response_header
from fenceline.wire.principal import encode_principal

if TYPE_CHECKING:
    from fenceline.controller.requests import Request
    from fenceline.node.context import Api, RequestContext
    from fenceline.node.controller.ports import LocalController
    from fenceline.quorum.control_records import Voter

log = Logger("controller")

_PAUSE_S: Final = 0.05
"""Interval between attempts, unless the leader changes earlier."""
_ANSWER_S: Final = 10.0
"""If the controller does not respond for this long, the request is repeated on another connection."""
_REFUSAL_S: Final = 0.5
"""A stopped process refuses connections at once; no response within this time proves nothing."""
_TIMEOUT_S: Final = 30.0
"""For a client request; Kafka's default request timeout."""
_BY_HANDLER: Final = frozenset({ApiKey.CREATE_TOPICS, ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS})
"""Checked by this broker's own handler, which forwards the rest."""
_HANDED_ON: Final = FORWARDED - _BY_HANDLER

_FIRST_WITH_THROTTLE: Final = {ApiKey.DELETE_TOPICS: 1, ApiKey.CREATE_PARTITIONS: 0}
"""Their answers begin with the throttle time: the controller counts changes, and this broker mutes its client (A61)."""

_CLIENTS: Final = "clients"


class _Route(NamedTuple):
    host: str
    port: int
    purpose: str


class ControllerChannel:
    """See the module. All methods belong to the loop."""

    def __init__(
        self,
        controller: LocalController,
        *,
        node_id: int,
        connect: Dial = dial,
        largest_answer_bytes: int = LARGEST_ANSWER_BYTES,
    ) -> None:
        """`largest_answer_bytes`: a response grows with its request, so this follows `socket.request.max.bytes`."""
        self._controller = controller
        self._largest_answer_bytes = largest_answer_bytes
        self._client_id = f"broker-{node_id}"
        self._connect = connect
        self._connections: dict[str, tuple[_Route, PeerConnection]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._is_closed = False

    def close(self) -> None:
        self._is_closed = True
        for _, connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # -- the node's own requests ---------------------------------------------------------------------------------------

    async def submit(self, request: Request, client: RequestContext | None = None) -> Any:
        """The response of the active controller, which may become this node meanwhile. `client`: whose request it is;
        the controller checks its rights (A52).

        Raises PeerError: the controller's error, or 41 if there was no controller in time.
        """
        mapping = MAPPINGS.get(type(request))
        if mapping is None:
            raise PeerError(ErrorCode.NOT_CONTROLLER, "The active controller is another node.")

        async def ask(connection: PeerConnection) -> Any:
            # Quotas treat clients of old versions differently (A61): the controller gets the client's, or the next.
            high = mapping.high if client is None else max(mapping.low, min(mapping.high, client.api_version))
            version = connection.version_for(mapping.key, mapping.low, high)
            fields: Mapping[str, Any] = mapping.fields(request, version)
            if connection.fenceline_level < WATCHES_SILENCE:
                fields = without_extensions(fields)
            if client is None:
                entity = await connection.call(mapping.key, version, fields, _ANSWER_S)
            else:
                body = write_request(mapping.key, version, fields)
                entity = read_response(
                    mapping.key, version, await self._wrap(connection, mapping.key, version, body, client)
                )
                client.throttle_ms = max(client.throttle_ms, millis(entity.throttle_time))
            return mapping.answer(request, entity)

        return await self._until_answered(
            mapping.purpose, ask, lambda: self._controller.active.submit(request), mapping.patience_s
        )

    async def has_no_majority(self) -> bool:
        """Whether so many of the other voters refuse connections that the rest cannot elect a leader: their processes
        have stopped. A voter that does not respond may only be unreachable and counts as running.
        """
        quorum = self._controller.quorum
        others = [voter for voter in quorum.voters if voter.voter_id != self._controller.node_id]
        refusals = await asyncio.gather(*(self._is_refused(voter) for voter in others))
        return 2 * sum(refusals) >= len(quorum.voters)

    async def _is_refused(self, voter: Voter) -> bool:
        if not voter.endpoints:
            return False
        endpoint = voter.endpoints[0]
        try:
            async with asyncio.timeout(_REFUSAL_S):
                transport, _ = await self._connect(asyncio.Protocol, endpoint.host, endpoint.port)
        except OSError as error:
            return isinstance(error, ConnectionRefusedError)
        transport.close()
        return False

    # -- client requests -----------------------------------------------------------------------------------------------

    def forward(self, api: Api, context: RequestContext, body: bytes) -> Awaitable[Any] | None:
        """Forward a client's request; returns the response body. None: the request must be handled here."""
        if api.key not in _HANDED_ON or self._controller.is_active or self._controller.has_failed or self._is_closed:
            return None
        if api.is_refused is not None and api.is_refused(context):
            return None
        return self._forward(api, context, body)

    async def _forward(self, api: Api, context: RequestContext, body: bytes) -> Any:
        from fenceline.wire.entities import read_request

        version = context.api_version

        async def ask(connection: PeerConnection) -> Any:
            answer = bytes(await self._wrap(connection, api.key, version, body, context))
            if version >= _FIRST_WITH_THROTTLE.get(api.key, NEVER):
                context.throttle_ms = max(context.throttle_ms, int.from_bytes(answer[:4], "big"))
            return answer

        async def here() -> Any:
            answer: Any = api.handler(context, read_request(api.key, version, body))
            return await answer if isinstance(answer, Awaitable) else answer

        try:
            return await self._until_answered(_CLIENTS, ask, here, _TIMEOUT_S)
        except PeerError as error:
            if error.code is not ErrorCode.NOT_CONTROLLER:
                raise
            return await here()  # the local handler returns its own error for a missing leader

    async def _wrap(
        self, connection: PeerConnection, key: ApiKey, version: int, body: bytes, client: RequestContext
    ) -> memoryview:
        """Send the client's request in an Envelope; returns the embedded response body. Raises PeerError,
        ConnectionError, MalformedRequest."""
        header = encode_request_header(key, version, 0, client.client_id)
        fields = {
            "request_data": header + body,
            "request_principal": encode_principal(client.principal),
            "client_host_address": _address_bytes(client.client_host),
        }
        answer = await connection.call(
            ApiKey.ENVELOPE, connection.version_for(ApiKey.ENVELOPE, 0, 0), fields, _TIMEOUT_S
        )
        if answer.error_code:
            raise PeerError(ErrorCode(answer.error_code), "The active controller rejected the request.")
        data = memoryview(answer.response_data or b"")
        _, position = parse_response_header(key, version, data)
        return data[position:]

    # -- retries -------------------------------------------------------------------------------------------------------

    async def _until_answered(
        self,
        purpose: str,
        ask: Callable[[PeerConnection], Awaitable[Any]],
        here: Callable[[], Awaitable[Any]],
        patience_s: float,
    ) -> Any:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + patience_s
        while True:
            changed = self._controller.next_change()
            reason = "the quorum has no leader"
            try:
                if self._controller.is_active:
                    return await here()
                route = self._route(purpose)
                if route is not None:
                    return await self._ask_leader(route, ask)
            except PeerError as error:
                if error.code is not ErrorCode.NOT_CONTROLLER:
                    raise
                reason = error.message
            except (ConnectionError, MalformedRequest) as error:
                reason = str(error)
            except NoSuchVersion as error:
                raise PeerError(ErrorCode.UNSUPPORTED_VERSION, str(error)) from None
            if self._is_closed or self._controller.has_failed or loop.time() >= deadline_s:
                raise PeerError(ErrorCode.NOT_CONTROLLER, f"No active controller is available: {reason}")
            await asyncio.wait([changed], timeout=_PAUSE_S)

    def _route(self, purpose: str) -> _Route | None:
        """The route to the leader; None if there is none, or it is this node, which is not active yet."""
        quorum = self._controller.quorum
        endpoint = quorum.leader_endpoint
        return None if endpoint is None or quorum.is_leader else _Route(endpoint.host, endpoint.port, purpose)

    async def _ask_leader(self, route: _Route, ask: Callable[[PeerConnection], Awaitable[Any]]) -> Any:
        """The leader's response. Raises ConnectionLost when another node becomes leader meanwhile: a frozen or
        unreachable leader would never respond."""

        async def connect_and_ask() -> Any:
            return await ask(await self._connection(route))

        asking = asyncio.ensure_future(connect_and_ask())
        try:
            while not asking.done():
                await asyncio.wait((asking, self._controller.next_change()), return_when=asyncio.FIRST_COMPLETED)
                if not asking.done() and (
                    self._controller.is_active or self._route(route.purpose) not in (None, route)
                ):
                    raise PeerConnectionLost(f"{route.host}:{route.port} is no longer the leader")
            return asking.result()
        finally:
            if not asking.done():
                asking.cancel()
                self._drop(route)
            # If this call was cancelled, the result is not used.
            asking.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _drop(self, route: _Route) -> None:
        known = self._connections.get(route.purpose)
        if known is not None and known[0] == route:
            del self._connections[route.purpose]
            known[1].close()

    async def _connection(self, route: _Route) -> PeerConnection:
        """The open connection of the route; one to an earlier leader is closed."""
        async with self._locks.setdefault(route.purpose, asyncio.Lock()):
            known = self._connections.get(route.purpose)
            if known is not None and known[0] == route and known[1].is_open:
                return known[1]
            if known is not None:
                known[1].close()
            if self._is_closed:
                raise PeerConnectionLost("this node is stopping")
            opened = await open_peer(
                route.host,
                route.port,
                client_id=self._client_id,
                connect=self._connect,
                largest_answer=lambda: self._largest_answer_bytes,
            )
            self._connections[route.purpose] = (route, opened)
            return opened


def _address_bytes(host: str) -> bytes:
    """An IP address in the Envelope's form; loopback for anything else."""
    import ipaddress

    try:
        return ipaddress.ip_address(host.partition("%")[0]).packed
    except ValueError:
        return bytes((127, 0, 0, 1))
