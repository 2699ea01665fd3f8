"""The connection over which one broker is sent what waits for it, and the task that sends.

Owns when the connection is opened and closed. Never decides what is sent, nor what becomes of it: a subclass does.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Final

from fenceline.node.net.peer_connection import PeerConnection


class BrokerLink(ABC):
    """Event loop only."""

    def __init__(self, node_id: int, open_connection: Callable[[int], Awaitable[PeerConnection]]) -> None:
        self.node_id: Final = node_id
        self._open = open_connection
        self._connection: PeerConnection | None = None
        self.sending: asyncio.Task[None] | None = None
        """`send_all` sets it to None when it ends."""

    @abstractmethod
    async def send_all(self) -> None:
        """Send until nothing waits."""

    def send_soon(self) -> None:
        """Something waits."""
        if self.sending is None:
            self.sending = asyncio.ensure_future(self.send_all())

    async def close(self) -> None:
        sending = self.sending
        if sending is not None:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        self.disconnect()

    async def connected(self) -> PeerConnection:
        """Raises ConnectionError."""
        connection = self._connection
        if connection is None or not connection.is_open:
            connection = self._connection = await self._open(self.node_id)
        return connection

    def disconnect(self) -> None:
        """The next request opens another connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
