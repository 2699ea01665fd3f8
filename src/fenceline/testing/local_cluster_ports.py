"""Ports of a local cluster: which are free, and which may be given away.

Owns no port: one that was free may be taken by the time a node opens it, which the node then says.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path
from typing import Final

from fenceline.errors import OperatorError
from fenceline.testing.local_cluster_cuts import MAX_NODES

HOST: Final = "127.0.0.1"
_LOWEST_PORT: Final = 20_000


def check_ports(nodes: int, port: int) -> None:
    if port < 0 or port + nodes - 1 > 65535:
        raise OperatorError(f"There are no {nodes} ports from {port} on", "Choose a lower --port; 65535 is the last.")


def is_free(port: int) -> bool:
    """Whether a listener could be opened on the port of the loopback interface now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def free_ports(count: int, *, apart_from: range = range(0)) -> int:
    """The first of `count` free ports in a row, below those that the system gives to outgoing connections."""
    above = _first_outgoing_port() - count
    for _ in range(1000):
        first = random.randint(_LOWEST_PORT, above)
        wanted = range(first, first + count)
        if not set(wanted).intersection(apart_from) and all(is_free(port) for port in wanted):
            return first
    raise OperatorError(f"There are no {count} free ports in a row", "End some of what runs on this machine.")


def _first_outgoing_port() -> int:
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        first = 32_768
    return first if first > _LOWEST_PORT + 2 * MAX_NODES else 60_000
