"""The dispatch table's vocabulary: what a handler is, and what it is given.

One module of handlers exports `APIS`, a tuple of `Api`; the node advertises exactly what is registered, nothing else.
A handler gets the decoded request and answers fields for `wire.entities.write_response`, or ready bytes of the body.
It may be a coroutine function or return an awaitable: the connection then waits before it takes the next request.
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
    """Who asks, in which version. Lives as long as the request."""

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
    """It came to the controller in an envelope: the broker that its client asked has looked at it."""


class Api(NamedTuple):
    """One API that works: its versions (both ends inclusive) and who answers it."""

    key: ApiKey
    min_version: int
    max_version: int
    handler: Handler
