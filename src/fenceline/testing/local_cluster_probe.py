"""Asks one node which brokers it knows, to see when a cluster is complete.

Owns one request of one short connection. Never used by the server.
"""

from __future__ import annotations

import socket
import struct

from fenceline.errors import FencelineError
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_response, write_request
from fenceline.wire.frame import encode_request_frame, parse_response_header

_VERSION = 1
"""Of Metadata: the oldest in which no topics can be asked for."""


def known_brokers(port: int, *, timeout_s: float) -> frozenset[int]:
    """The brokers that the node at `port` has in its metadata: registered and not fenced. Empty without an answer."""
    body = write_request(ApiKey.METADATA, _VERSION, {"topics": ()})
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
            connection.sendall(b"".join(encode_request_frame(ApiKey.METADATA, _VERSION, 1, "local-cluster", body)))
            (size,) = struct.unpack(">i", _receive(connection, 4))
            answer = _receive(connection, size)
        _, position = parse_response_header(ApiKey.METADATA, _VERSION, answer)
        return frozenset(
            broker.node_id for broker in read_response(ApiKey.METADATA, _VERSION, answer[position:]).brokers
        )
    except (OSError, FencelineError):
        return frozenset()


def _receive(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        piece = connection.recv(size - len(received))
        if not piece:
            raise ConnectionError("the node closed the connection")
        received += piece
    return bytes(received)
