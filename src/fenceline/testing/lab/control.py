"""The laboratory's end of the control channels of its nodes.

Owns the current faults of each node, and one channel to each running process. The channel's lines are described in
`nodes.channel`. Thread-safe.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from fenceline.errors import OperatorError
from fenceline.testing.lab.fault_state import NodeFaults

ORDER_WAIT_S: Final = 10.0

Event = Callable[[int, str, Mapping[str, Any]], None]
"""(node, kind, fields)."""
Question = Callable[[int, Mapping[str, Any]], bool]
"""(fault id, request) -> whether the fault applies to it."""


class NodeControl:
    """The control channel of one node; of its current process, if it runs. `on_event` and `decide` are called in a
    thread of the channel."""

    def __init__(self, node: int, on_event: Event, decide: Question) -> None:
        self.node = node
        self.faults = NodeFaults()
        self._on_event = on_event
        self._decide = decide
        self._lock = threading.Lock()
        self._end: socket.socket | None = None
        self._orders = 0
        self._answers: dict[int, dict[str, Any] | None] = {}
        self._answered = threading.Condition(self._lock)

    def open(self) -> socket.socket:
        """A channel for a new process, which gets the returned end and the current faults."""
        ours, its = socket.socketpair()
        with self._lock:
            self._end = ours
            self._send(ours, {"set": json.loads(self.faults.to_json())})
        threading.Thread(target=self._read, args=(ours,), name=f"control of node {self.node}", daemon=True).start()
        return its

    def set(self, faults: NodeFaults) -> None:
        """Replace the faults; a process that starts later gets them, too. Waits until the node has them.

        Raises OperatorError if the node runs and does not answer."""
        self.faults = faults
        self._order({"set": json.loads(faults.to_json())}, must_run=False)

    def know_peers(self, peers: Mapping[str, int], controller_ports: Iterable[int]) -> None:
        """The addresses of the nodes; before the process is started."""
        self.faults = replace(self.faults, peers=dict(peers), controller_ports=tuple(controller_ports))

    def do(self, what: str, **fields: Any) -> dict[str, Any]:
        """Execute an order once. Raises OperatorError: the node does not run, or does not answer."""
        return self._order({"do": what, **fields}, must_run=True)

    def _order(self, order: dict[str, Any], *, must_run: bool) -> dict[str, Any]:
        with self._lock:
            end = self._end
            if end is None:
                if must_run:
                    raise OperatorError(f"Node {self.node} is down", f"Start it first: start({self.node}).")
                return {}
            self._orders += 1
            number = self._orders
            self._answers[number] = None
            self._send(end, {**order, "order": number})
            answered = self._answered.wait_for(
                lambda: self._answers[number] is not None or self._end is not end, ORDER_WAIT_S
            )
            answer = self._answers.pop(number)
            if answer is not None:
                return answer
            if self._end is not end:
                if must_run:
                    raise OperatorError(f"Node {self.node} ended meanwhile", f"Start it first: start({self.node}).")
                return {}
            assert not answered, "one of the conditions holds"
        raise OperatorError(
            f"Node {self.node} did not answer within {ORDER_WAIT_S:g} s",
            f"A paused node takes no orders: resume({self.node}) first.",
        )

    def _send(self, end: socket.socket, message: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):
            end.sendall(json.dumps(message).encode() + b"\n")

    def _read(self, end: socket.socket) -> None:
        with end, contextlib.suppress(OSError), end.makefile("rb") as lines:
            for line in lines:
                self._take(end, json.loads(line))
        with self._lock:
            if self._end is end:
                self._end = None
            self._answered.notify_all()

    def _take(self, end: socket.socket, message: dict[str, Any]) -> None:
        if "done" in message:
            with self._lock:
                if message["done"] in self._answers:
                    self._answers[message["done"]] = message
                self._answered.notify_all()
        elif "event" in message:
            kind = message.pop("event")
            self._on_event(self.node, kind, message)
        elif "ask" in message:
            # A predicate may wait for other threads of the test.
            threading.Thread(target=self._answer, args=(end, message), name="predicate", daemon=True).start()

    def _answer(self, end: socket.socket, message: dict[str, Any]) -> None:
        matches = self._decide(int(message["fault"]), message["request"])
        with self._lock:
            self._send(end, {"answer": message["ask"], "matches": matches})
