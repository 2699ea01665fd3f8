"""Tells the service manager that started the process (systemd, with `Type=notify`) when the node is ready and when it
stops.

Owns systemd's protocol of notifications: a datagram to the socket that NOTIFY_SOCKET names. Without that variable
nothing is sent. Never fails: a node serves even if the service manager does not listen.
"""

from __future__ import annotations

import os
import socket
from typing import Final

from fenceline.node.logs import Logger

log = Logger("node")

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"


def notify(state: str) -> None:
    """Send the state (`READY=1`) to the service manager, if there is one."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if not address.startswith(("/", "@")):
        log.warning("the service manager cannot be notified", socket=address, reason="this kind of socket is not known")
        return
    # A leading @ means a name without a file, which the kernel writes as a zero byte.
    path = f"\0{address[1:]}" if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.sendto(state.encode(), path)
    except OSError as error:
        log.warning("the service manager cannot be notified", socket=address, reason=error.strerror or str(error))
