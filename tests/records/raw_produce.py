"""A Produce request over a plain socket, encoded by hand: a test's bytes reach the broker unchanged."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

_PRODUCE = 0


class Answer(NamedTuple):
    code: int
    base_offset: int
    log_append_time_ms: int
    record_indexes: tuple[int, ...] = ()
    message: str | None = None


class RawProducer:
    """One connection; requests of versions 3 to 8, one partition (0) each, acks=all."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=60)

    def close(self) -> None:
        self._socket.close()

    def produce(self, topic: str, records: bytes, version: int = 8) -> Answer:
        name = topic.encode()
        body = struct.pack(">hhih4s", _PRODUCE, version, 1, 4, b"test")
        body += struct.pack(">hhii", -1, -1, 10_000, 1)
        body += struct.pack(">h", len(name)) + name + struct.pack(">iii", 1, 0, len(records)) + records
        self._socket.sendall(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", self._exactly(4))
        return _parse(self._exactly(size), len(name), version)

    def _exactly(self, size: int) -> bytes:
        out = bytearray()
        while len(out) < size:
            piece = self._socket.recv(size - len(out))
            assert piece, "the broker closed the connection"
            out += piece
        return bytes(out)


def _parse(answer: bytes, name_size: int, version: int) -> Answer:
    at = 4 + 4 + 2 + name_size + 4 + 4  # correlation id, topics, name, partitions, index
    code, base_offset, log_append_time = struct.unpack_from(">hqq", answer, at)
    at += 18 + (8 if version >= 5 else 0)
    if version < 8:
        return Answer(code, base_offset, log_append_time)
    (count,) = struct.unpack_from(">i", answer, at)
    at += 4
    indexes = []
    for _ in range(count):
        index, size = struct.unpack_from(">ih", answer, at)
        at += 6 + max(size, 0)
        indexes.append(index)
    (size,) = struct.unpack_from(">h", answer, at)
    message = None if size < 0 else answer[at + 2 : at + 2 + size].decode()
    return Answer(code, base_offset, log_append_time, tuple(indexes), message)
