"""A blocking connection that speaks exactly the version it is told, to compare servers field by field."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any

from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import Entity, millis, read_response, write_request
from fenceline.wire.frame import encode_request_frame, parse_response_header


class ConnectionClosed(Exception):
    """The server closed the connection instead of answering."""


class RawConnection:
    """One connection; requests are answered in order. Use as a context manager."""

    def __init__(self, port: int, *, host: str = "127.0.0.1", client_id: str = "raw", timeout_s: float = 60) -> None:
        self.socket = socket.create_connection((host, port), timeout=timeout_s)
        self._client_id = client_id
        self._correlation_id = 0

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def call(self, api_key: ApiKey, version: int, fields: Mapping[str, Any] | None = None) -> Any:
        """Send one request and return the entity of its answer. Raises ConnectionClosed."""
        body = self.exchange(api_key, version, write_request(api_key, version, fields or {}))
        return read_response(api_key, version, body)

    def send(self, api_key: ApiKey, version: int, fields: Mapping[str, Any]) -> None:
        """Send a request that has no answer."""
        self._send(api_key, version, write_request(api_key, version, fields))

    def exchange(self, api_key: ApiKey, version: int, body: bytes) -> bytes:
        """The same for ready bytes: the body of the request, and that of the answer."""
        self._send(api_key, version, body)
        (size,) = struct.unpack(">i", self.receive(4))
        answer = self.receive(size)
        correlation_id, position = parse_response_header(api_key, version, answer)
        assert correlation_id == self._correlation_id, "an answer to another request"
        return answer[position:]

    def _send(self, api_key: ApiKey, version: int, body: bytes) -> None:
        self._correlation_id += 1
        frame = encode_request_frame(api_key, version, self._correlation_id, self._client_id, body)
        self.socket.sendall(b"".join(frame))

    def receive(self, size: int) -> bytes:
        """Exactly so many bytes. Raises ConnectionClosed."""
        received = bytearray()
        while len(received) < size:
            piece = self.socket.recv(size - len(received))
            if not piece:
                raise ConnectionClosed(f"closed after {len(received)} of {size} bytes")
            received += piece
        return bytes(received)


def plain(value: Any) -> Any:
    """An entity as plain Python: dicts, lists, ints, strings; times in milliseconds, ids as text."""
    if isinstance(value, Entity):
        return {name: plain(getattr(value, name)) for name in value.__slots__}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, timedelta):
        return millis(value)
    return str(value)
