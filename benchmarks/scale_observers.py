"""The client `observers` of `benchmarks.scale_clients`: brokers that follow the metadata log.

Owns their fetches, and does nothing with the records. All of them get the same bytes, so a response is decoded once.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from typing import Final
from uuid import UUID

from fenceline.errors import ErrorCode
from fenceline.quorum.codec.requests import request_fields
from fenceline.quorum.codec.responses import read_answer
from fenceline.quorum.messages import QuorumFetchRequest, QuorumFetchResponse
from fenceline.records.batch import iter_headers
from fenceline.wire import entities
from fenceline.wire.apis import ApiKey
from fenceline.wire.frame import encode_request_frame

_FETCH_VERSION: Final = 17
_FIRST_ID: Final = 10_000
_WAIT_MS: Final = 500
_CORRELATION: Final = 7
_KEPT_RESPONSES: Final = 1_000


class _Observer:
    """One connection. `offset` and `epoch` are of the end of its log."""

    __slots__ = ("connection", "epoch", "high_watermark", "incoming", "node_id", "offset")

    def __init__(self, port: int, node_id: int) -> None:
        self.connection = socket.create_connection(("127.0.0.1", port))
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.node_id = node_id
        self.offset, self.epoch, self.high_watermark = 0, 0, -1
        self.incoming = b""

    def fetch(self, leader_epoch: int) -> None:
        message = QuorumFetchRequest(
            cluster_id=None,
            replica_id=self.node_id,
            current_leader_epoch=leader_epoch,
            fetch_offset=self.offset,
            last_fetched_epoch=self.epoch,
            replica_directory_id=UUID(int=self.node_id),
            max_wait_ms=_WAIT_MS,
            min_bytes=1,
            max_bytes=1 << 20,
            high_watermark=self.high_watermark,
        )
        body = entities.write_request(ApiKey.FETCH, _FETCH_VERSION, request_fields(message, _FETCH_VERSION))
        self.connection.sendall(b"".join(encode_request_frame(ApiKey.FETCH, _FETCH_VERSION, _CORRELATION, None, body)))

    def response(self) -> bytes | None:
        """The body of one that is complete."""
        self.incoming += self.connection.recv(1 << 20)
        size = int.from_bytes(self.incoming[:4], "big") if len(self.incoming) >= 4 else len(self.incoming)
        if len(self.incoming) < 4 + size:
            return None
        body, self.incoming = self.incoming[9 : 4 + size], b""  # after the correlation id and the tagged fields
        return body


def observers(port: int, count: int) -> None:
    """So many follow the log. The first line that is printed says that all have its end; then, for each line on stdin,
    how many responses they had since the line before, and the monotonic time at which the last of them had each new
    end."""
    poll, all_of = select.epoll(), {}
    leader_epoch = 1
    for number in range(count):
        observer = _Observer(port, _FIRST_ID + number)
        all_of[observer.connection.fileno()] = observer
        poll.register(observer.connection, select.EPOLLIN)
        observer.fetch(leader_epoch)
    known: dict[bytes, tuple[QuorumFetchResponse, int, int]] = {}
    reached: dict[int, int] = {}
    complete_s: dict[int, float] = {}
    responses = 0
    is_ready = False
    stdin = sys.stdin.fileno()
    poll.register(stdin, select.EPOLLIN)
    while True:
        for number, _ in poll.poll():
            if number == stdin:
                if not sys.stdin.readline():
                    return
                print(json.dumps({"responses": responses, "complete_s": list(complete_s.values())}), flush=True)
                responses = 0
                complete_s.clear()
                continue
            observer = all_of[number]
            body = observer.response()
            if body is None:
                continue
            responses += 1
            found = known.get(body)
            if found is None:
                if len(known) > _KEPT_RESPONSES:
                    known.clear()
                found = known[body] = _decoded(body)
            message, end_offset, epoch = found
            if message.partition_error_code:
                if message.partition_error_code is not ErrorCode.FENCED_LEADER_EPOCH:
                    raise RuntimeError(f"fetch: {message.partition_error_code.name}")
                leader_epoch = message.leader_epoch
            observer.high_watermark = max(observer.high_watermark, message.high_watermark)
            if end_offset > observer.offset:
                observer.offset, observer.epoch = end_offset, epoch
                reached[end_offset] = reached.get(end_offset, 0) + 1
                if reached[end_offset] == count:
                    complete_s[end_offset] = time.monotonic()
                    if not is_ready:
                        print(json.dumps({}), flush=True)
                        is_ready = True
            observer.fetch(leader_epoch)


def _decoded(body: bytes) -> tuple[QuorumFetchResponse, int, int]:
    """With the end offset and the last epoch of its records; -1 if it has none."""
    message = read_answer(ApiKey.FETCH, entities.read_response(ApiKey.FETCH, _FETCH_VERSION, body))
    assert isinstance(message, QuorumFetchResponse)
    end_offset = epoch = -1
    for header in iter_headers(message.records):
        end_offset, epoch = header.next_offset, header.leader_epoch
    return message, end_offset, epoch
