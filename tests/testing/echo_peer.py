"""A process with plain TCP sockets that does what a test tells it, and nothing on its own.

`Peer` is the test's side; run as a program it is the process. It accepts and reads only when it is asked, so that what
it says is what was there at that moment.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from functools import cache
from types import TracebackType
from typing import Any

ESTABLISHED, SYN_SENT = 1, 2
"""As TCP_INFO has them."""
DEADLINE_S = 60
LOST_AFTER_RETRANSMITS = 1
"""The system acknowledges at once what gets through on the loopback interface, whatever the process does."""


class Connection:
    """One end of a connection, in a peer."""

    def __init__(self, peer: Peer, number: int) -> None:
        self.peer = peer
        self._number = number
        self.heard = ""
        self.is_ended = False

    def send(self, text: str) -> None:
        self.peer.ask("send", connection=self._number, text=text)

    def look(self) -> dict[str, Any]:
        """`state`, and how often what is not acknowledged was sent again (`retransmits`)."""
        seen: dict[str, Any] = self.peer.ask("look", connection=self._number)
        self.heard += seen["heard"]
        self.is_ended = seen["ended"]
        return seen

    def wait_heard(self, text: str) -> None:
        """Wait until all of the text has come, and fail where it is another."""
        wait_until(lambda: self.look() and len(self.heard) >= len(text), f"{text!r} was not heard, {self}")
        assert self.heard == text

    def wait_lost(self) -> None:
        """Wait until it is certain that what was sent last, if only a SYN, does not arrive."""
        wait_until(lambda: self.look()["retransmits"] >= LOST_AFTER_RETRANSMITS, f"everything arrives, {self}")

    def wait_state(self, state: int) -> None:
        wait_until(lambda: self.look()["state"] == state, f"not in state {state}, {self}")

    def __repr__(self) -> str:
        return f"connection {self._number} of process {self.peer.pid}, heard {self.heard!r}"


class Peer:
    """A process with one listening socket. Its own connections come from `source`. Use as a context manager."""

    def __init__(self, source: str = "127.0.0.1") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", __file__, source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid
        self.port: int = self.ask("port")

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def ask(self, what: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"what": what, **arguments}) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def dial(self, other: Peer) -> Connection:
        """Begin a connection; it may never come up."""
        return Connection(self, self.ask("dial", port=other.port))

    def accept(self) -> Connection:
        """Wait for the next connection."""
        numbers: list[int] = []
        wait_until(lambda: bool(numbers.extend(self.ask("accept")) or numbers), "nobody connected")
        return Connection(self, numbers[0])

    def connect(self, other: Peer) -> tuple[Connection, Connection]:
        """A connection that is up, this end and the other."""
        ours = self.dial(other)
        ours.wait_state(ESTABLISHED)
        return ours, other.accept()


def need_cuts() -> None:
    """Skip or fail where the network of another process can not be cut."""
    from tests.conftest import unavailable

    if (reason := _why_no_cuts()) is not None:
        unavailable(reason)


@cache
def _why_no_cuts() -> str | None:
    # The process runs this module without the project.
    from fenceline.testing.socket_cuts import CutsUnavailable, sockets_of

    with Peer() as peer:
        try:
            return None if list(sockets_of(peer.pid)) else "sockets of child processes are not found"
        except CutsUnavailable as error:
            return error.message


def wait_until(condition: Any, otherwise: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.01)


# --- the process --------------------------------------------------------------------------------------------------


def main(source: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    connections: list[socket.socket] = []
    for line in sys.stdin:
        print(json.dumps(_do(json.loads(line), source, listener, connections)), flush=True)


def _do(order: dict[str, Any], source: str, listener: socket.socket, connections: list[socket.socket]) -> Any:
    match order["what"]:
        case "port":
            return listener.getsockname()[1]
        case "dial":
            made = socket.socket()
            made.bind((source, 0))
            made.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                made.connect(("127.0.0.1", order["port"]))
            connections.append(made)
            return len(connections) - 1
        case "accept":
            try:
                taken, _ = listener.accept()
            except BlockingIOError:
                return []
            taken.setblocking(False)
            connections.append(taken)
            return [len(connections) - 1]
        case "send":
            return connections[order["connection"]].send(order["text"].encode())
        case "look":
            return _look(connections[order["connection"]])
    raise ValueError(order)


def _look(connection: socket.socket) -> dict[str, Any]:
    facts = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)
    heard, ended = b"", False
    try:
        while piece := connection.recv(65536):
            heard += piece
        ended = True
    except BlockingIOError:
        pass
    except OSError as error:
        ended = error.errno is not None and facts[0] != SYN_SENT
    return {"state": facts[0], "retransmits": facts[2], "heard": heard.decode(), "ended": ended}


if __name__ == "__main__":
    main(sys.argv[1])
