"""How `fenceline cluster kill 2` in one terminal reaches the cluster that runs in another.

Owns a unix socket in the folder of the cluster and its protocol: one JSON line is the request, one JSON line the
response, then the connection is closed. Knows no command: the cluster runs them. Bounded: long lines and too many
connections are rejected.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from fenceline.errors import OperatorError

SOCKET_FILE: Final = "control.sock"
ANSWER_WAIT_S: Final = 120.0
"""Longer than a restart can take."""
_MAX_LINE_BYTES: Final = 64 * 1024
_MAX_CONNECTIONS: Final = 16
_REQUEST_WAIT_S: Final = 10.0


class ControlServer:
    """Serves commands for the cluster of a folder until it is closed. Only this user can open its socket.

    `run` executes a command, in a thread of its own, and returns its result. Raises OperatorError, ValueError,
    KeyError, TypeError."""

    def __init__(self, root: Path, run: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self._root, self._run = root, run
        self._slots = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self._socket = socket.socket(socket.AF_UNIX)
        (root / SOCKET_FILE).unlink(missing_ok=True)
        with _short_path(root) as path:
            before = os.umask(0o177)
            try:
                self._socket.bind(path)
            finally:
                os.umask(before)
        self._socket.listen(_MAX_CONNECTIONS)
        threading.Thread(target=self._accept, name="cluster control", daemon=True).start()

    def close(self) -> None:
        """Accept no more commands; those in progress are completed."""
        # Wakes the accepting thread; closing alone would not.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        (self._root / SOCKET_FILE).unlink(missing_ok=True)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            if self._slots.acquire(blocking=False):
                threading.Thread(target=self._serve, args=(connection,), name="cluster command", daemon=True).start()
            else:
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, contextlib.suppress(OSError):
                connection.settimeout(_REQUEST_WAIT_S)
                connection.sendall(json.dumps(self._answer(connection)).encode() + b"\n")
        finally:
            self._slots.release()

    def _answer(self, connection: socket.socket) -> dict[str, Any]:
        try:
            return {"ok": True, "answer": self._run(json.loads(_read_line(connection)))}
        except OperatorError as error:
            return {"ok": False, "message": error.message, "advice": error.advice}
        except (ValueError, KeyError, TypeError) as error:
            return {"ok": False, "message": f"Invalid command: {error!r}", "advice": ""}


def ask(root: Path, command: str, **arguments: Any) -> dict[str, Any]:
    """Send a command to the cluster of a folder; returns its result. Raises OperatorError, also if no cluster runs
    there."""
    try:
        with socket.socket(socket.AF_UNIX) as connection, _short_path(root) as path:
            connection.settimeout(ANSWER_WAIT_S)
            connection.connect(path)
            connection.sendall(json.dumps({"command": command, **arguments}).encode() + b"\n")
            answer = json.loads(_read_line(connection))
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
        raise OperatorError(
            f"No cluster is running in {root}", f"Start it with: fenceline cluster up --data-dir {root}"
        ) from error
    except (OSError, ValueError) as error:
        raise OperatorError(
            f"The cluster of {root} did not answer: {error}",
            "Check the terminal in which `fenceline cluster up` runs.",
        ) from error
    if not answer["ok"]:
        raise OperatorError(answer["message"], answer["advice"])
    return dict(answer["answer"])


def _read_line(connection: socket.socket) -> bytes:
    received = bytearray()
    while not received.endswith(b"\n"):
        piece = connection.recv(4096)
        if not piece:
            raise ConnectionError("the connection ended early")
        received += piece
        if len(received) > _MAX_LINE_BYTES:
            raise ValueError(f"a line of more than {_MAX_LINE_BYTES} bytes")
    return bytes(received)


@contextlib.contextmanager
def _short_path(root: Path) -> Iterator[str]:
    """A short path of the socket via an open folder: the addresses of unix sockets have a small limit."""
    if not sys.platform.startswith("linux"):
        yield str(root / SOCKET_FILE)
        return
    folder = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET_FILE}"
    finally:
        os.close(folder)
