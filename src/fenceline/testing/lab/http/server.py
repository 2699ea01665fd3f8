"""The running service: its port, its signals, and the end of all clusters with it.

Owns the listening socket and what happens at SIGTERM and SIGINT: no new cluster is started, the held leases end, all
clusters are stopped, then the server ends. After SIGKILL the fork server and the reaper end what is left.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable
from ipaddress import ip_address
from types import FrameType
from typing import Final

import uvicorn

from fenceline.errors import OperatorError
from fenceline.testing.lab import forking
from fenceline.testing.lab.http.app import create_app
from fenceline.testing.lab.http.leases import LeasedClusters

_EXIT_SECOND_SIGNAL: Final = 130
_GRACE_S: Final = 5
"""How long answers that are under way may still take when the service ends."""
_BACKLOG: Final = 128


def listen(host: str, port: int, *, allow_remote: bool = False) -> socket.socket:
    """The listening socket; port 0 selects a free one. Raises OperatorError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise OperatorError(f"--host {host} is no address of this machine: {error}", "Use 127.0.0.1.") from error
    family, _, _, _, address = found[0]
    if not allow_remote and not ip_address(str(address[0]).partition("%")[0]).is_loopback:
        raise OperatorError(
            f"--host {host} can be reached by other machines, and any client can start processes here",
            "Use 127.0.0.1, or add --allow-remote if you trust that network.",
        )
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise OperatorError(
                f"Port {port} of {host} is taken; perhaps another laboratory runs there",
                "Use that one, or choose another port: fenceline lab --port 8091 (0: any free one).",
            ) from error
        raise OperatorError(f"Cannot listen on {host}:{port}: {error.strerror}", "Choose another one.") from error
    return listener


def serve(listener: socket.socket, *, allow_remote: bool = False, on_ready: Callable[[], None] = lambda: None) -> None:
    """Serve until SIGTERM or SIGINT; then no cluster is left. In the main thread."""
    clusters = LeasedClusters()
    forking.prepare()
    config = uvicorn.Config(
        create_app(clusters, allow_remote=allow_remote),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=_GRACE_S,
        server_header=False,
    )
    try:
        _Server(config, clusters, on_ready).run(sockets=[listener])
    finally:
        clusters.close_all()
        listener.close()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, clusters: LeasedClusters, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._clusters = clusters
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            # The fork server and the reaper end the nodes.
            os._exit(_EXIT_SECOND_SIGNAL)
        self.should_exit = True
        # Held leases and requests that wait end with their clusters.
        threading.Thread(target=self._clusters.close_all, name="end of all clusters").start()
