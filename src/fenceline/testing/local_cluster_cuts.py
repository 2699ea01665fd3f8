"""Which nodes of a local cluster can not hear which others, and keeping it so while they live.

Owns the rules (who is cut off from whom) and the watch that treats sockets that open later. Never touches a socket
itself (`socket_cuts.py`), and does nothing at all while nobody is cut off.

A node's connections are told apart by the address that they come from (`outbound_address`, one for each node) and by
the addresses that nodes listen on. Everything else is a client.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from fenceline.testing.socket_cuts import UNTOUCHED, Address, ForeignSocket, Treatment, sockets_of

MAX_NODES: Final = 64
"""Keeps outbound addresses within 127.0.0.0/24, and filters short."""
_WATCH_INTERVAL_S: Final = 0.02
_WATCH_SHARE: Final = 10
"""The watch sleeps this many times as long as a look at the sockets takes."""


def outbound_address(node_id: int) -> str:
    """Where a node's own connections come from; clients come from 127.0.0.1."""
    assert 1 <= node_id <= MAX_NODES
    return f"127.0.0.{1 + node_id}"


@dataclass(frozen=True, slots=True)
class Cut:
    """One rule of a node: what comes from `peer` is lost, what goes to it, or both. `peer` None is everybody."""

    peer: int | None = None
    inbound: bool = True
    outbound: bool = True


class NetworkCuts:
    """The cuts of one cluster. Safe for threads.

    `listeners` are the addresses on which nodes can be listening; `processes` gives the nodes that run now, by pid.
    """

    def __init__(self, listeners: Mapping[Address, int], processes: Callable[[], Mapping[int, int]]) -> None:
        self._owners = dict(listeners)
        self._nodes = frozenset(listeners.values())
        self._outbound = {outbound_address(node): node for node in self._nodes}
        self._processes = processes
        self._rules: dict[int, set[Cut]] = {}
        self._treated: dict[tuple[int, int], Treatment] = {}
        """What was done to which socket, by pid and inode."""
        self._lock = threading.Lock()
        self._watch: threading.Thread | None = None
        self._is_closed = False

    def isolate(self, node: int, cuts: Iterable[Cut]) -> None:
        """Add rules to a node. What was on its way already may arrive. Raises CutsUnavailable, changing nothing."""
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
                self._watch = threading.Thread(target=self._keep, name="network cuts", daemon=True)
                self._watch.start()

    def heal(self, node: int) -> None:
        """Take all rules of a node away; those of other nodes stay."""
        with self._lock:
            self._rules.pop(node, None)
            self._apply()

    def of(self, node: int) -> list[Cut]:
        """The rules of a node."""
        with self._lock:
            return sorted(self._rules.get(node, ()), key=lambda cut: (cut.peer or 0, cut.inbound, cut.outbound))

    def is_lost(self, source: int | None, target: int | None) -> bool:
        """Whether what `source` sends does not reach `target`; None is a client."""
        if source == target:
            return False
        return any(cut.outbound and cut.peer in (None, target) for cut in self._rules.get(source or 0, ())) or any(
            cut.inbound and cut.peer in (None, source) for cut in self._rules.get(target or 0, ())
        )

    def close(self) -> None:
        """End the watch. Sockets stay as they are: the nodes are to end, too."""
        with self._lock:
            self._is_closed = True

    # --- sockets --------------------------------------------------------------------------------------------------

    def _apply(self) -> None:
        """Bring every socket to where the rules want it.

        Listening sockets come first, so that a connection which they handed out before is found in the second look.
        """
        for _ in range(2):
            seen: set[tuple[int, int]] = set()
            for listening in (True, False):
                for node, pid in self._processes().items():
                    self._apply_to(node, pid, listening, seen)
            self._treated = {key: done for key, done in self._treated.items() if key in seen}

    def _apply_to(self, node: int, pid: int, listening: bool, seen: set[tuple[int, int]]) -> None:
        for found in sockets_of(pid):
            key = (pid, found.inode)
            seen.add(key)
            if found.is_listening is not listening:
                continue
            before = self._treated.get(key, UNTOUCHED)
            wanted = self._wanted(node, found)
            if wanted == before:
                continue
            # A connection that ends meanwhile needs no treatment.
            with contextlib.suppress(OSError):
                found.treat(before, wanted)
                self._treated[key] = wanted

    def _wanted(self, node: int, found: ForeignSocket) -> Treatment:
        if found.is_listening:
            # A connection needs both directions to come up.
            if self._is_cut(node, None):
                return Treatment(lose_incoming=True, let_in=frozenset({outbound_address(node)}))
            lost = (outbound_address(peer) for peer in self._nodes if self._is_cut(node, peer))
            return Treatment(lose_from=frozenset(lost))
        if found.remote is None:
            return UNTOUCHED
        peer = self._outbound.get(found.remote[0], self._owners.get(found.remote))
        return Treatment(lose_incoming=self.is_lost(peer, node), lose_outgoing=self.is_lost(node, peer))

    def _is_cut(self, node: int, peer: int | None) -> bool:
        return self.is_lost(node, peer) or self.is_lost(peer, node)

    def _keep(self) -> None:
        """Treat what nodes open, accept or are started with while a cut lasts."""
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
