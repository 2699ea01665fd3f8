"""The connection to one address, established on demand.

Owns reconnection with backoff. Sends no requests.
"""

from __future__ import annotations

import asyncio
import ssl

from fenceline.client.core.config import ClientConfig
from fenceline.client.core.connection import Connection, open_connection
from fenceline.client.core.deadline import backoff_ms, wait_at_most
from fenceline.client.core.errors import ConnectionLost, TimedOut
from fenceline.client.core.login import ClientLogin


class Link:
    """At most one connection to one address, established on demand and again with backoff (`reconnect.backoff.*`)."""

    def __init__(
        self, host: str, port: int, config: ClientConfig, tls: ssl.SSLContext | None, login: ClientLogin | None = None
    ) -> None:
        """`login`: of all connections of the client."""
        self.host, self.port = host, port
        self._config, self._tls, self._login = config, tls, login
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        self._failures = 0
        self._not_before_s = 0.0
        self._backoff_skipped = asyncio.Event()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def in_flight(self) -> int:
        return 0 if self._connection is None else self._connection.in_flight

    @property
    def is_open(self) -> bool:
        return self._connection is not None and self._connection.is_open

    @property
    def open_connection(self) -> Connection | None:
        """The connection if it is open."""
        return self._connection if self._connection is not None and self._connection.is_open else None

    @property
    def is_backing_off(self) -> bool:
        return self._failures > 0 and asyncio.get_running_loop().time() < self._not_before_s

    async def connection(self) -> Connection:
        """The open connection. Raises ConnectionLost or TimedOut if it cannot be established.

        Concurrent callers share one attempt and its failure. The attempt continues if all callers are cancelled.
        """
        if self._connection is not None and self._connection.is_open:
            return self._connection
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.ensure_future(self._connect())
            self._connecting.add_done_callback(_retrieve_exception)
        connecting = self._connecting
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not connecting.cancelled() or (task is not None and task.cancelling()):
                raise
            raise ConnectionLost(f"the connection to {self.address} was closed by this client") from None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        pause_s = self._not_before_s - loop.time()
        if pause_s > 0:
            self._backoff_skipped.clear()
            await wait_at_most(self._backoff_skipped, pause_s)
        try:
            self._connection = await open_connection(self.host, self.port, self._config, self._tls, self._login)
        except (ConnectionLost, TimedOut):
            self._failures += 1
            pause_ms = backoff_ms(
                self._failures, self._config["reconnect.backoff.ms"], self._config["reconnect.backoff.max.ms"]
            )
            self._not_before_s = loop.time() + pause_ms / 1000
            raise
        self._failures = 0
        return self._connection

    def skip_backoff(self) -> None:
        """End the backoff after failed attempts: the broker is known to be up."""
        self._not_before_s = 0.0
        self._backoff_skipped.set()

    def close(self) -> Connection | None:
        """Start to close. Returns the connection that is still closing, if any."""
        if self._connecting is not None:
            self._connecting.cancel()
        connection, self._connection = self._connection, None
        if connection is not None and connection.is_open:
            connection.close()
            return connection
        return None


def _retrieve_exception(connecting: asyncio.Task[Connection]) -> None:
    """Retrieve the exception, so that the loop does not log it if no caller waits any more."""
    if not connecting.cancelled():
        connecting.exception()
