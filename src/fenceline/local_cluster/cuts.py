"""Which nodes of a local cluster are cut off from which others, and applying this to new sockets while it lasts.

Owns the rules (which node is cut off from which) and the watcher for sockets that open later. Never changes a socket
itself (`socket_cuts.py`), and does nothing while no node is cut off.

The connections of a node are identified by their source address (`outbound_address`, one for each node) and by the
addresses on which nodes listen. Everything else is a client.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from fenceline.local_cluster.socket_cuts import UNFILTERED, Address, ForeignSocket, SocketFilter, sockets_of

MAX_NODES: Final = 64
"""Keeps outbound addresses within 127.0.0.0/24, and filters short."""
_WATCH_INTERVAL_S: Final = 0.02
_WATCH_SHARE: Final = 10
"""The watcher sleeps this many times as long as a check of the sockets takes."""


def outbound_address(node_id: int) -> str:
    """The source address of a node's own connections; clients use 127.0.0.1."""
    assert 1 <= node_id <= MAX_NODES
    return f"127.0.0.{1 + node_id}"


@dataclass(frozen=True, slots=True)
class NetworkCut:
    """One rule of a node: traffic from `peer` is lost, traffic to it, or both. `peer` None means all."""

    peer: int | None = None
    inbound: bool = True
    outbound: bool = True


class NetworkCuts:
    """The cuts of one cluster. Thread-safe.

    `listeners` are the addresses on which nodes may listen; `processes` returns the running nodes with their pids."""

    def __init__(self, listeners: Mapping[Address, int], processes: Callable[[], Mapping[int, int]]) -> None:
        self._owners = dict(listeners)
        self._nodes = frozenset(listeners.values())
        self._outbound = {outbound_address(node): node for node in self._nodes}
        self._processes = processes
        self._rules: dict[int, set[NetworkCut]] = {}
        self._applied: dict[tuple[int, int], SocketFilter] = {}
        """The filter of each socket, by pid and inode."""
        self._lock = threading.Lock()
        self._watch: threading.Thread | None = None
        self._is_closed = False

    def isolate(self, node: int, cuts: Iterable[NetworkCut]) -> None:
        """Add rules to a node. Traffic already in flight may arrive. Raises CutsUnavailable, changing nothing."""
        with self._lock:
            before = self._rules.get(node, set())
            self._rules[node] = before | set(cuts)
            try:
                self._apply()
            except BaseException:
                self._rules[node] = before
                with contextlib.suppress(Exception):
                    self._apply()
                raise
            if self._watch is None:
                self._watch = threading.Thread(target=self._keep_applied, name="network cuts", daemon=True)
                self._watch.start()

    def heal(self, node: int) -> None:
        """Remove all rules of a node; those of other nodes stay."""
        with self._lock:
            self._rules.pop(node, None)
            self._apply()

    def of(self, node: int) -> list[NetworkCut]:
        """The rules of a node."""
        with self._lock:
            return sorted(self._rules.get(node, ()), key=lambda cut: (cut.peer or 0, cut.inbound, cut.outbound))

    def is_lost(self, source: int | None, target: int | None) -> bool:
        """Whether traffic from `source` to `target` is lost; None is a client."""
        if source == target:
            return False
        return any(cut.outbound and cut.peer in (None, target) for cut in self._rules.get(source or 0, ())) or any(
            cut.inbound and cut.peer in (None, source) for cut in self._rules.get(target or 0, ())
        )

    def close(self) -> None:
        """End the watcher. Sockets stay unchanged: the nodes are about to end, too."""
        with self._lock:
            self._is_closed = True

    # --- sockets --------------------------------------------------------------------------------------------------

    def _apply(self) -> None:
        """Apply the rules to every socket.

        Listening sockets come first, so that a connection which they accepted before is found in the second pass."""
        for _ in range(2):
            seen: set[tuple[int, int]] = set()
            for listening in (True, False):
                for node, pid in self._processes().items():
                    self._apply_to(node, pid, listening, seen)
            self._applied = {key: applied for key, applied in self._applied.items() if key in seen}

    def _apply_to(self, node: int, pid: int, listening: bool, seen: set[tuple[int, int]]) -> None:
        for found in sockets_of(pid):
            key = (pid, found.inode)
            seen.add(key)
            if found.is_listening is not listening:
                continue
            before = self._applied.get(key, UNFILTERED)
            wanted = self._wanted(node, found)
            if wanted == before:
                continue
            # A connection that ends meanwhile needs no filter.
            with contextlib.suppress(OSError):
                found.apply(before, wanted)
                self._applied[key] = wanted

    def _wanted(self, node: int, found: ForeignSocket) -> SocketFilter:
        if found.is_listening:
            # A new connection needs both directions.
            if self._is_cut(node, None):
                return SocketFilter(lose_incoming=True, let_in=frozenset({outbound_address(node)}))
            lost = (outbound_address(peer) for peer in self._nodes if self._is_cut(node, peer))
            return SocketFilter(lose_from=frozenset(lost))
        if found.remote is None:
            return UNFILTERED
        peer = self._outbound.get(found.remote[0], self._owners.get(found.remote))
        return SocketFilter(lose_incoming=self.is_lost(peer, node), lose_outgoing=self.is_lost(node, peer))

    def _is_cut(self, node: int, peer: int | None) -> bool:
        return self.is_lost(node, peer) or self.is_lost(peer, node)

    def _keep_applied(self) -> None:
        """Apply the rules to sockets that nodes open or accept, and to restarted nodes, while a cut lasts."""
        took_s = 0.0
        while True:
            time.sleep(max(_WATCH_INTERVAL_S, took_s * _WATCH_SHARE))
            with self._lock:
                if self._is_closed or not any(self._rules.values()):
                    self._watch = None
                    return
                begin = time.monotonic()
                self._apply()
                took_s = time.monotonic() - begin
