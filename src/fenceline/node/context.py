"""What a request handler is, and what it receives.

A module of handlers has a function `apis`, which takes the ports that its handlers use and returns their `Api`s; the
node advertises exactly the registered APIs. A handler receives the decoded request and returns fields for
`wire.entities.write_response`, or the encoded body. It may be a coroutine function or return an awaitable: the
connection then waits before it handles the next request. Each coroutine is a task; `AnswerOnce` needs none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from fenceline.wire.apis import ApiKey
from fenceline.wire.principal import ANONYMOUS, Principal

if TYPE_CHECKING:
    from fenceline.config.node import NodeConfig
    from fenceline.controller.requests import Request
    from fenceline.metadata.image import MetadataImage
    from fenceline.node.client_limits import PeerQuotas, RequestMutations
    from fenceline.security.rights import RequestRights

Answer: TypeAlias = dict[str, Any] | bytes
Handler: TypeAlias = Callable[["RequestContext", Any], "Answer | Awaitable[Answer]"]
"""The request is the entity of the API (`wire.requests`)."""


class AnswerOnce:
    """An answer that is built once `ready` is done, from its result or its exception."""

    __slots__ = ("build", "ready")

    def __init__(self, ready: asyncio.Future[Any], build: Callable[[], Answer]) -> None:
        """`build` may raise PeerError."""
        self.ready = ready
        self.build = build

    def __await__(self) -> Generator[Any, Any, Answer]:
        """`ready` may have other users: it is not cancelled with who waits here."""
        if not self.ready.done():
            yield from asyncio.wait((self.ready,)).__await__()
        return self.build()


class Submit(Protocol):
    """Sends a request to the active controller, or to the local one; the response, or PeerError."""

    def __call__(self, request: Request, client: RequestContext | None = None, /) -> Awaitable[Any]:
        """`client`: the client's request that it belongs to, whose rights another node checks; None: it is the node's
        own."""


@dataclass(slots=True)
class RequestContext:
    """The origin and version of a request. Lives as long as the request."""

    api_version: int
    correlation_id: int
    client_id: str | None
    peer: str
    """`host:port` of the client."""
    client_host: str
    listener: str
    """Name of the listener that the request came through."""
    principal: Principal = ANONYMOUS
    """Who sent the request."""
    rights: RequestRights | None = None
    """What the sender may do; None if the node has no authorizer."""
    quotas: PeerQuotas | None = None
    """Those of the sender; None if it has none."""
    throttle_ms: int = 0
    """For how long the sender is throttled: in the answer, and its connection is not read for so long."""
    mutations: RequestMutations | None = None
    """What the request may change, if this node is the active controller; None: the sender is not limited."""
    takes_files: bool = False
    """Whether the answer may be sent from files in the page cache: the connection is a plain socket."""
    is_forwarded: bool = False
    """It reached the controller in an envelope: the broker that forwarded it has validated it."""


class Api(NamedTuple):
    """A supported API: its versions (both ends inclusive) and its handler."""

    key: ApiKey
    min_version: int
    max_version: int
    handler: Handler
    check: Callable[[Any], None] | None = None
    """Raises MalformedRequest for values that Kafka does not parse: the connection is closed, before the request is
    forwarded or handled."""
    is_refused: Callable[[RequestContext], bool] | None = None
    """Of an API that brokers forward: whether the handler of this broker refuses the request."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """What handlers read of their node: its identity, its static config, and the committed metadata."""

    node_id: int
    cluster_id: str
    config: NodeConfig
    images: Callable[[], MetadataImage]

    @property
    def image(self) -> MetadataImage:
        return self.images()
