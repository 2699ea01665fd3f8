"""The controlling side of a process with plain TCP sockets (`echo_process.py`)."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from fenceline.local_cluster.socket_cuts import CutsUnavailable, sockets_of
from fenceline.testing.waiting import eventually
from tests.conftest import unavailable
from tests.testing import echo_process
from tests.testing.echo_process import ESTABLISHED

PROGRAM = Path(echo_process.__file__)
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
        """`state`, and the number of retransmissions (`retransmits`)."""
        seen: dict[str, Any] = self.peer.ask("look", connection=self._number)
        self.heard += seen["heard"]
        self.is_ended = seen["ended"]
        return seen

    def wait_heard(self, text: str) -> None:
        """Wait until the complete text has arrived; fails if it differs."""
        eventually(lambda: self.look() and len(self.heard) >= len(text), f"{text!r} is heard, {self}")
        assert self.heard == text

    def wait_lost(self) -> None:
        """Wait until the last sent bytes, or the SYN, have certainly not arrived."""
        eventually(lambda: self.look()["retransmits"] >= LOST_AFTER_RETRANSMITS, f"nothing arrives, {self}")

    def wait_state(self, state: int) -> None:
        eventually(lambda: self.look()["state"] == state, f"in state {state}, {self}")

    def __repr__(self) -> str:
        return f"connection {self._number} of process {self.peer.pid}, heard {self.heard!r}"


class Peer:
    """A process with one listening socket. Its own connections come from `source`. Use as a context manager."""

    def __init__(self, source: str = "127.0.0.1") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", str(PROGRAM), source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
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
        """Start to connect; the connection may never be established."""
        return Connection(self, self.ask("dial", port=other.port))

    def accept(self) -> Connection:
        """Wait for the next connection."""
        numbers: list[int] = []
        eventually(lambda: bool(numbers.extend(self.ask("accept")) or numbers), "somebody connects")
        return Connection(self, numbers[0])

    def connect(self, other: Peer) -> tuple[Connection, Connection]:
        """Both ends of an established connection."""
        ours = self.dial(other)
        ours.wait_state(ESTABLISHED)
        return ours, other.accept()


def need_cuts() -> None:
    """Skip or fail where the network of another process cannot be cut."""
    if (reason := _why_no_cuts()) is not None:
        unavailable(reason)


@cache
def _why_no_cuts() -> str | None:
    with Peer() as peer:
        try:
            return None if list(sockets_of(peer.pid)) else "sockets of child processes are not found"
        except CutsUnavailable as error:
            return error.message
