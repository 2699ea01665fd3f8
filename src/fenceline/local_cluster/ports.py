"""Ports of a local cluster: which are free, and which may be assigned.

Owns no port: a free port may be used by another process before a node opens it, which the node then reports. But
processes that use this module do not conflict: each assigns ports from blocks that it owns as long as it runs, and none
twice while it has others.
"""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fenceline.errors import OperatorError
from fenceline.local_cluster.cuts import MAX_NODES

HOST: Final = "127.0.0.1"
_LOWEST_PORT: Final = 20_000
_BLOCK: Final = 128


def check_ports(nodes: int, port: int) -> None:
    if port < 0 or port + nodes - 1 > 65535:
        raise OperatorError(
            f"There are no {nodes} ports from {port} on", "Choose a lower --port; 65535 is the highest port."
        )


def is_free(port: int) -> bool:
    """Whether a listener can be opened on this port of the loopback interface now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def free_ports(count: int, *, apart_from: range = range(0)) -> int:
    """The first of `count` consecutive free ports, below those that the system uses for outgoing connections."""
    with _lock:
        for first in _candidates(count):
            wanted = range(first, first + count)
            if not set(wanted).intersection(apart_from) and all(is_free(port) for port in wanted):
                _given.update(wanted)
                return first
    raise OperatorError(
        f"There are no {count} consecutive free ports", "Stop other processes that listen on this machine."
    )


_lock: Final = threading.Lock()
"""Threads of a process start clusters at the same time."""
_claimed: Final[list[int]] = []
"""The first ports of the blocks that this process owns."""
_given: Final[set[int]] = set()


def _candidates(count: int) -> Iterator[int]:
    """The first ports to try: unassigned ones in owned blocks, then in new blocks, then any."""
    yield from (first for block in list(_claimed) for first in _fresh(block, count))
    above = _first_outgoing_port()
    blocks = list(range(_LOWEST_PORT, above - _BLOCK, _BLOCK)) if count <= _BLOCK else []
    random.SystemRandom().shuffle(blocks)
    for block in blocks:
        if block not in _claimed and _claim(block):
            _claimed.append(block)
            yield from _fresh(block, count)
    _given.clear()
    for _ in range(1000):
        yield random.SystemRandom().randint(_LOWEST_PORT, above - count)


def _fresh(block: int, count: int) -> Iterator[int]:
    for first in range(block, block + _BLOCK - count + 1):
        if _given.isdisjoint(range(first, first + count)):
            yield first


def _claim(block: int) -> bool:
    """Owned until this process ends. An abstract socket name leaves no file behind."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0fenceline-ports-{block}")
    except OSError:
        claim.close()
        return False
    claim.detach()
    return True


def _first_outgoing_port() -> int:
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        first = 32_768
    return first if first > _LOWEST_PORT + 2 * MAX_NODES else 60_000
