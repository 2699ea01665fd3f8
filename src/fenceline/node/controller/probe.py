"""Probes whether any process listens on a broker's address, and whether it answers.

Owns the probe connections. Decides nothing: only a refused connection counts as refused.

It uses the inter-broker listener, which leads directly to the process. A client listener may end at a load balancer,
which accepts or refuses connections for other reasons. A broker without an inter-broker listener counts as refusing
only if all its listeners refuse.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from fenceline.node.net.peer_connection import PeerConnection, PeerNotAnswering, negotiate_versions

if TYPE_CHECKING:
    from fenceline.metadata.image import BrokerImage, Endpoint
    from fenceline.node.net.peer_connection import Dial

Resolve = Callable[[str, int], Awaitable[Iterable[str]]]
"""The addresses of a host. Raises OSError."""

_TIMEOUT_S: Final = 0.5
"""A stopped process refuses connections at once; no response within this time proves nothing."""


async def addresses_of(host: str, port: int) -> Iterable[str]:
    """The addresses of the system's resolver."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return {str(address[0]) for *_, address in found}


class BrokerProbe:
    """Probes brokers with `connect`; `listener` is the name of the inter-broker listener."""

    def __init__(self, connect: Dial, listener: str, *, resolve: Resolve = addresses_of) -> None:
        self._connect = connect
        self._listener = listener
        self._resolve = resolve

    async def is_refused(self, broker: BrokerImage) -> bool:
        """Whether every relevant address refuses a connection."""
        endpoints = self._endpoints(broker)
        return bool(endpoints) and all(await asyncio.gather(*map(self._refuses, endpoints)))

    def _endpoints(self, broker: BrokerImage) -> Sequence[Endpoint]:
        inner = broker.endpoint(self._listener)
        return broker.endpoints if inner is None else (inner,)

    async def _refuses(self, endpoint: Endpoint) -> bool:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                hosts = list(await self._resolve(endpoint.host, endpoint.port))
                outcomes = await asyncio.gather(*(self._refuses_at(host, endpoint.port) for host in hosts))
        except (OSError, ValueError):  # no answer in time, no such host, no name of a host at all
            return False
        return bool(outcomes) and all(outcomes)

    async def _refuses_at(self, host: str, port: int) -> bool:
        """Raises OSError if the result is unknown."""
        try:
            transport, _ = await self._connect(asyncio.Protocol, host, port)
        except ConnectionRefusedError:
            return True
        transport.close()
        return False

    async def answers(self, broker: BrokerImage) -> bool:
        """Whether there is any sign of the broker's process or of its end: an answer to ApiVersions, a refused or
        closed connection. Waits for it; False: the host cannot be reached.

        A listener with TLS closes such a connection, which also shows that the process runs."""
        endpoints = self._endpoints(broker)
        if not endpoints:
            return True
        endpoint = endpoints[0]
        connection = PeerConnection(f"{endpoint.host}:{endpoint.port}", "probe")
        try:
            await self._connect(lambda: connection, endpoint.host, endpoint.port)
            await negotiate_versions(connection)
        except PeerNotAnswering:
            return False
        except ConnectionError:
            return True
        except (OSError, ValueError):
            return False
        finally:
            connection.close()
        return True
