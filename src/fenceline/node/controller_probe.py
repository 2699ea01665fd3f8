"""Whether anybody listens where a broker is said to be.

Owns the connection that is opened to see that, and closed. Decides nothing: refused is refused, all else is not.

On which listener: that on which brokers reach each other, which leads from process to process. An outer one may end at
a balancer, which takes or refuses connections for reasons of its own. A broker without it is refused only where all its
listeners are.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fenceline.metadata.image import BrokerImage, Endpoint
    from fenceline.node.peer_connection import Dial

Resolve = Callable[[str, int], Awaitable[Iterable[str]]]
"""The addresses of a host. Raises OSError."""

_PATIENCE_S: Final = 0.5
"""A process that is gone is refused for at once; no answer in this time is none."""


async def addresses_of(host: str, port: int) -> Iterable[str]:
    """As the system knows them."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return {str(address[0]) for *_, address in found}


class BrokerProbe:
    """Looks at brokers by `connect`; `listener` is the name of that on which brokers reach each other."""

    def __init__(self, connect: Dial, listener: str, *, resolve: Resolve = addresses_of) -> None:
        self._connect = connect
        self._listener = listener
        self._resolve = resolve

    async def is_refused(self, broker: BrokerImage) -> bool:
        """Whether every address that counts refuses a connection."""
        inner = broker.endpoint(self._listener)
        endpoints = broker.endpoints if inner is None else (inner,)
        return bool(endpoints) and all(await asyncio.gather(*map(self._refuses, endpoints)))

    async def _refuses(self, endpoint: Endpoint) -> bool:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                hosts = list(await self._resolve(endpoint.host, endpoint.port))
                outcomes = await asyncio.gather(*(self._refuses_at(host, endpoint.port) for host in hosts))
        except (OSError, ValueError):  # no answer in time, no such host, no name of a host at all
            return False
        return bool(outcomes) and all(outcomes)

    async def _refuses_at(self, host: str, port: int) -> bool:
        """Raises OSError where nothing is known."""
        try:
            transport, _ = await self._connect(asyncio.Protocol, host, port)
        except ConnectionRefusedError:
            return True
        transport.close()
        return False
