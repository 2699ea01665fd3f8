"""A process with plain TCP sockets that only executes the commands of a test.

It accepts and reads only when it is asked, so that its answers show the state at that moment. Run as a program,
without the project: it starts at once.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
from typing import Any

ESTABLISHED, SYN_SENT = 1, 2
"""As TCP_INFO has them."""


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
