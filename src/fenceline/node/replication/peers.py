"""The other brokers of the cluster, as this node reaches them: their address in the metadata, and a new connection.

Owns neither connections nor retries. The replica fetchers keep connections of their own (`leader_link`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fenceline.node.net.peer_connection import Dial, PeerConnection, PeerConnectionLost, open_peer

if TYPE_CHECKING:
    from fenceline.metadata.image import Endpoint, MetadataImage


class Peers:
    """`listener`: the listener of brokers for other brokers. `connect` opens a connection to an address."""

    def __init__(self, image: Callable[[], MetadataImage], listener: str, connect: Dial) -> None:
        self._image = image
        self._listener = listener
        self.connect = connect

    def endpoint(self, node_id: int) -> Endpoint | None:
        """None while the broker is not registered."""
        broker = self._image().brokers.get(node_id)
        return broker.endpoint(self._listener) if broker is not None else None

    async def open(self, node_id: int, client_id: str) -> PeerConnection:
        """To be closed by the caller. Raises ConnectionLost if the broker is not registered, ConnectionError."""
        endpoint = self.endpoint(node_id)
        if endpoint is None:
            raise PeerConnectionLost(f"broker {node_id} is not registered")
        return await open_peer(endpoint.host, endpoint.port, client_id=client_id, connect=self.connect)
