"""The control channel of a node: faults come in, events and questions go out.

Owns the inherited end of a socket pair and its lines of JSON. Decides nothing. Kept apart from the node's disk and
network, so that faults of these can always be ended.

| Line to the node | Meaning |
|---|---|
| `{"set": {...}}` | all faults from now on (`NodeFaults`); the first line, before the node starts |
| `{"do": "reset" / "forget" / "end half open", "link": {...}}` | once; answered with `{"done": N, "count": N}` |
| `{"answer": N, "matches": true}` | the answer to a question |

| Line from the node | Meaning |
|---|---|
| `{"done": N, "count": N}` | order N has been executed |
| `{"event": "...", ...}` | for the timeline |
| `{"ask": N, "fault": N, "request": {...}}` | does the rule match this request? |
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any, Final

_MOST_EVENTS: Final = 10_000
"""Unsent events; more are dropped, and the laboratory has gone."""


class ControlChannel:
    """`end` is this process's end."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._rest = b""
        self._questions: dict[int, Callable[[bool], None]] = {}
        self._asked = 0
        self._out = bytearray()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._execute: Callable[[dict[str, Any]], dict[str, Any]] = lambda order: {}

    def first(self) -> dict[str, Any]:
        """The first line; waits for it. Raises EOFError if the laboratory has gone."""
        while b"\n" not in self._rest:
            piece = self._end.recv(65536)
            if not piece:
                raise EOFError("the laboratory has gone")
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return dict(json.loads(line))

    def start(self, loop: asyncio.AbstractEventLoop, execute: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Take orders in the loop: `execute` returns what the answer has besides the order's number."""
        self._loop, self._execute = loop, execute
        self._end.setblocking(False)
        loop.add_reader(self._end.fileno(), self._read)
        self._take_lines()
        self._flush()

    def event(self, kind: str, **fields: Any) -> None:
        """For the timeline. Never waits, and may be called from any thread."""
        self._send({"event": kind, **fields})

    def ask(self, fault_id: int, request: dict[str, Any], answered: Callable[[bool], None]) -> None:
        """Ask whether a rule matches; without the laboratory, it does not."""
        self._asked += 1
        self._questions[self._asked] = answered
        self._send({"ask": self._asked, "fault": fault_id, "request": request})

    def flush_now(self) -> None:
        """Write what is left, before the process dies."""
        self._end.setblocking(True)
        self._end.sendall(self._out)
        self._out.clear()

    def _read(self) -> None:
        try:
            piece = self._end.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self._gone()
            return
        self._rest += piece
        self._take_lines()

    def _gone(self) -> None:
        assert self._loop is not None, "it has started"
        self._loop.remove_reader(self._end.fileno())
        questions, self._questions = self._questions, {}
        for answered in questions.values():
            answered(False)

    def _take_lines(self) -> None:
        while b"\n" in self._rest:
            line, _, self._rest = self._rest.partition(b"\n")
            order: dict[str, Any] = json.loads(line)
            if "answer" in order:
                answered = self._questions.pop(int(order["answer"]), None)
                if answered is not None:
                    answered(bool(order["matches"]))
            else:
                self._send({"done": order["order"], **self._execute(order)})

    def _send(self, message: dict[str, Any]) -> None:
        if len(self._out) > _MOST_EVENTS * 100:
            return
        self._out += json.dumps(message, default=str).encode() + b"\n"
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._flush)

    def _flush(self) -> None:
        assert self._loop is not None, "it has started"
        try:
            while self._out:
                del self._out[: self._end.send(self._out)]
        except BlockingIOError:
            self._loop.add_writer(self._end.fileno(), self._flush)
            return
        except OSError:
            self._out.clear()
        self._loop.remove_writer(self._end.fileno())
