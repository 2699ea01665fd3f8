"""Types of the dispatch table: what a handler is, and what it receives.

A module of handlers exports `APIS`, a tuple of `Api`; the node advertises exactly the registered APIs. A handler
receives the decoded request and returns fields for `wire.entities.write_response`, or the encoded body. It may be a
coroutine function or return an awaitable: the connection then waits before it handles the next request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fenceline.wire.apis import ApiKey

if TYPE_CHECKING:
    from fenceline.node.broker import Broker

Answer: TypeAlias = Mapping[str, Any] | bytes
Handler: TypeAlias = Callable[["RequestContext", Any], "Answer | Awaitable[Answer]"]


@dataclass(slots=True)
class RequestContext:
    """The origin and version of a request. Lives as long as the request."""

    broker: Broker
    api_version: int
    correlation_id: int
    client_id: str | None
    peer: str
    """`host:port` of the client."""
    client_host: str
    listener: str
    """Name of the listener that the request came through."""
    is_forwarded: bool = False
    """It reached the controller in an envelope: the broker that forwarded it has validated it."""


class Api(NamedTuple):
    """A supported API: its versions (both ends inclusive) and its handler."""

    key: ApiKey
    min_version: int
    max_version: int
    handler: Handler
