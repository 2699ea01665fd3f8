"""Clients of the benchmark `scale`, each in a process of its own: `python -m benchmarks.scale_clients KIND ...`.

They use plain sockets and epoll, so that they cost less than the node that is measured. A client prints one JSON line
per step and waits for a line on stdin before the next: the benchmark reads the node's memory and CPU in between.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import BinaryIO, Final

from benchmarks.scale_observers import observers
from fenceline.records.build import build_batch
from fenceline.wire.produce import PartitionRecords, ProduceRequest, encode_request

_SOURCES: Final = 16
"""Addresses of the loop-back network: the system looks long for a free port when half of an address's are in use."""
_BIND_ADDRESS_NO_PORT: Final = 24
_AT_ONCE: Final = 2_000
"""Connections that a burst begins before it looks for answers."""
_PATIENCE_S: Final = 120.0
_ASKED_AT_ONCE: Final = 50
PROBED: Final = "probed"
"""A topic of one partition, which `probe` writes to."""


def framed(key: int, version: int, body: bytes) -> bytes:
    """A request without a client id; its version is not flexible."""
    request = struct.pack(">hhih", key, version, 7, -1) + body
    return struct.pack(">i", len(request)) + request


VERSIONS: Final = framed(18, 0, b"")
METADATA: Final = framed(3, 1, struct.pack(">i", 0))


def produce_request(topic: str, value: bytes) -> bytes:
    """One record for partition 0, acks=1."""
    records = memoryview(build_batch([(1_700_000_000_000, None, value, ())]))
    request = ProduceRequest(None, 1, 30_000, [PartitionRecords(topic, None, 0, records)])
    return framed(0, 3, b"".join(encode_request(3, request)))


def step(**found: object) -> None:
    """Report, and wait for the benchmark."""
    print(json.dumps(found), flush=True)
    if not sys.stdin.readline():
        raise SystemExit("the benchmark has ended")


class Burst:
    """Opens connections, in `over_s` seconds or as fast as it can; each sends `first`, and waits for an answer if
    `answered`."""

    def __init__(self, port: int, count: int, first: bytes, *, answered: bool = True, over_s: float = 0) -> None:
        self.port, self.count, self.first, self.answered, self.over_s = port, count, first, answered, over_s
        self.sockets: dict[int, socket.socket] = {}
        self.slowest_s = 0.0
        self._poll = select.epoll()

    def open(self) -> float:
        """Seconds until all are open and answered."""
        began = time.perf_counter()
        begun: dict[int, float] = {}
        opened = done = 0
        while done < self.count:
            elapsed_s = time.perf_counter() - began
            if elapsed_s > _PATIENCE_S:
                raise TimeoutError(f"{done} of {self.count} connections")
            may = self.count if elapsed_s >= self.over_s else int(self.count * elapsed_s / self.over_s)
            for _ in range(min(may - opened, _AT_ONCE - len(begun), 32)):
                each = self._connect(opened)
                begun[each.fileno()] = time.perf_counter()
                opened += 1
            for number, event in self._poll.poll(0.0005):
                if event & (select.EPOLLHUP | select.EPOLLERR):
                    raise ConnectionError(f"connection {done} was refused or closed")
                if event & select.EPOLLOUT:
                    if self.first:
                        self.sockets[number].send(self.first)
                    if self.answered:
                        self._poll.modify(number, select.EPOLLIN)
                        continue
                else:
                    self.sockets[number].recv(65_536)
                self._poll.unregister(number)
                self.slowest_s = max(self.slowest_s, time.perf_counter() - begun.pop(number))
                done += 1
        return time.perf_counter() - began

    def _connect(self, number: int) -> socket.socket:
        each = socket.socket()
        each.setblocking(False)
        each.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)
        each.bind((f"127.0.1.{number % _SOURCES + 1}", 0))
        each.connect_ex(("127.0.0.1", self.port))
        self.sockets[each.fileno()] = each
        self._poll.register(each.fileno(), select.EPOLLOUT)
        return each

    def ask(self, request: bytes, count: int) -> float:
        """Seconds for so many requests, one after the other on each connection in turn, a few at once."""
        waiting = deque(self.sockets.items())
        for number in self.sockets:
            self._poll.register(number, select.EPOLLIN)
        began = time.perf_counter()
        sent = done = 0
        while done < count:
            while sent < count and sent - done < _ASKED_AT_ONCE:
                waiting[0][1].send(request)
                waiting.rotate(-1)
                sent += 1
            for number, _ in self._poll.poll(_PATIENCE_S):
                self.sockets[number].recv(65_536)
                done += 1
        took_s = time.perf_counter() - began
        for number in self.sockets:
            self._poll.unregister(number)
        return took_s

    def closed_after(self, wait_s: float) -> int:
        """How many of them the node has closed by then."""
        for number in self.sockets:
            self._poll.register(number, select.EPOLLIN | select.EPOLLRDHUP)
        deadline = time.perf_counter() + wait_s
        closed = 0
        while closed < len(self.sockets) and (left_s := deadline - time.perf_counter()) > 0:
            for number, _ in self._poll.poll(left_s):
                try:
                    is_closed = not self.sockets[number].recv(65_536)
                except OSError:
                    is_closed = True
                if is_closed:
                    self._poll.unregister(number)
                    closed += 1
        return closed


def _as_on_another_machine() -> None:
    """Leave the cores to the node, and to those that it serves meanwhile."""
    os.nice(19)


def connections(port: int, count: int, over_ms: int) -> None:
    """Open, rest, ask on all of them."""
    _as_on_another_machine()
    burst = Burst(port, count, VERSIONS, over_s=over_ms / 1000)
    step(opened_s=burst.open(), slowest_s=burst.slowest_s)
    burst.ask(METADATA, count)
    step()
    step(asked_s=burst.ask(METADATA, 40_000))


NO_KAFKA: Final = {
    "nothing": b"",
    "half a length": b"\x00\x00",
    "a TLS hello": bytes.fromhex("1603010200010001fc0303") + bytes(500),
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "garbage": bytes(range(7, 256)) * 4,
    "a tenth of a request": b"\x00\x00\x04\x00\x00\x12\x00\x00" + bytes(96),
}


def strangers(port: int, count: int, wait_ms: int) -> None:
    """Connections that speak no Kafka, an equal number of each kind."""
    _as_on_another_machine()
    bursts = {}
    for what, first in NO_KAFKA.items():
        bursts[what] = Burst(port, count // len(NO_KAFKA), first, answered=False)
        bursts[what].open()
    step(opened=sum(len(each.sockets) for each in bursts.values()))
    time.sleep(wait_ms / 1000)
    step(closed={what: each.closed_after(0.5) for what, each in bursts.items()})


def probe(port: int, interval_us: int) -> None:
    """A producer that writes one record each `interval_us`. For each line on stdin it prints the latencies since the
    line before, in ms and sorted, measured from the moment at which the request was due."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request = produce_request(PROBED, bytes(100))
        latencies: list[float] = []
        due = time.perf_counter()
        while True:
            connection.sendall(request)
            connection.recv(65_536)
            latencies.append((time.perf_counter() - due) * 1000)
            due += interval_us / 1e6
            asked, _, _ = select.select([sys.stdin], [], [], max(due - time.perf_counter(), 0))
            if asked:
                if not sys.stdin.readline():
                    return
                print(json.dumps(sorted(latencies)), flush=True)
                latencies.clear()
                due = time.perf_counter()


_NOW_MS: Final = 1_700_000_000_000


def producers(port: int, count: int) -> None:
    """The first record of so many idempotent producers, to one partition."""
    _pipeline(
        port,
        (
            memoryview(
                build_batch(
                    [(_NOW_MS, None, b"first", ())], producer_id=1_000_000 + each, producer_epoch=0, base_sequence=0
                )
            )
            for each in range(count)
        ),
        acks=-1,
    )
    step()


def segments(port: int, count: int) -> None:
    """Records whose timestamps are a second apart: with segment.ms each begins a segment."""
    start_ms = int(time.time() * 1000) - 1000 * count
    _pipeline(
        port, (memoryview(build_batch([(start_ms + 1000 * each, None, b"r", ())])) for each in range(count)), acks=1
    )
    step()


def _pipeline(port: int, batches: Iterator[memoryview], acks: int) -> None:
    """Produce requests of one batch each, a few at once on one connection. All must succeed."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers = connection.makefile("rb")
        owed = 0
        for batch in batches:
            body = encode_request(3, ProduceRequest(None, acks, 30_000, [PartitionRecords(PROBED, None, 0, batch)]))
            connection.sendall(framed(0, 3, b"".join(body)))
            owed += 1
            if owed == _ASKED_AT_ONCE:
                _check(answers)
                owed -= 1
        for _ in range(owed):
            _check(answers)


def _check(answers: BinaryIO) -> None:
    answer = answers.read(int.from_bytes(answers.read(4), "big"))
    # Correlation id, one topic with its name, one partition with its index.
    code = int.from_bytes(answer[4 + 4 + 2 + len(PROBED) + 4 + 4 :][:2], "big")
    if code:
        raise RuntimeError(f"produce: error {code}")


def consumers(port: int, count: int) -> None:
    """Waiting consumers, then 20 records; each consumer asks again when it has one."""
    name = struct.pack(">h", len(PROBED)) + PROBED.encode()

    def fetch(offset: int) -> bytes:
        body = struct.pack(">iiiib", -1, 30_000, 1, 1 << 20, 0) + struct.pack(">i", 1) + name
        return framed(1, 4, body + struct.pack(">iiqi", 1, 0, offset, 1 << 20))

    burst = Burst(port, count, fetch(0), answered=False)
    burst.open()
    time.sleep(1)
    step()
    delivered_ms = []
    poll = select.epoll()
    for number in burst.sockets:
        poll.register(number, select.EPOLLIN)
    with socket.create_connection(("127.0.0.1", port)) as producer:
        producer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for offset in range(20):
            began = time.perf_counter()
            producer.sendall(produce_request(PROBED, bytes(100)))
            producer.recv(65_536)
            left = count
            again = fetch(offset + 1)
            done = []
            while left:
                for number, _ in poll.poll(_PATIENCE_S):
                    burst.sockets[number].recv(65_536)
                    done.append(number)
                    left -= 1
            delivered_ms.append((time.perf_counter() - began) * 1000)
            for number in done:
                burst.sockets[number].send(again)
            time.sleep(0.2)
    step(delivered_ms=sorted(delivered_ms))


_KINDS: Final = {
    "observers": observers,
    "producers": producers,
    "segments": segments,
    "consumers": consumers,
    "connections": connections,
    "strangers": strangers,
    "probe": probe,
}

if __name__ == "__main__":
    _KINDS[sys.argv[1]](*map(int, sys.argv[2:]))
