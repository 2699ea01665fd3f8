"""Connections with faults, without a network: what the protocol and the socket's transport see, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fenceline.testing.lab.fault_state import LinkFault
from fenceline.testing.lab.nodes.links import FaultyLink, FaultyLinks

PEER = ("127.0.0.1", 40000)


class Socket:
    """The transport of a socket."""

    def __init__(self, peer: tuple[str, int] = PEER, port: int = 9092) -> None:
        self.written = b""
        self.is_reading = True
        self.calls: list[str] = []
        self._extra: dict[str, Any] = {"peername": peer, "sockname": ("127.0.0.1", port)}

    def write(self, data: bytes) -> None:
        self.written += bytes(data)

    def writelines(self, pieces: list[bytes]) -> None:
        self.write(b"".join(pieces))

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def is_closing(self) -> bool:
        return "close" in self.calls or "abort" in self.calls

    def close(self) -> None:
        self.calls.append("close")

    def abort(self) -> None:
        self.calls.append("abort")

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._extra.get(name, default)


class Protocol(asyncio.BufferedProtocol):
    """Takes what comes; in small pieces."""

    def __init__(self) -> None:
        self.received = b""
        self.events: list[str] = []
        self.transport: Any = None
        self.buffer = bytearray(4)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += bytes(self.buffer[:nbytes])

    def eof_received(self) -> bool:
        self.events.append("eof")
        return False

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


class Stage:
    """One connection."""

    def __init__(self, peer: tuple[str, int] = PEER, port: int = 9092) -> None:
        self.links = FaultyLinks(asyncio.get_running_loop())
        self.links.controller_ports = frozenset((9093,))
        self.protocol = Protocol()
        wrapped = self.links.wrap(self.protocol, None)
        assert isinstance(wrapped, FaultyLink)
        self.link = wrapped
        self.socket = Socket(peer, port)
        self.link.connection_made(self.socket)  # type: ignore[arg-type]

    def arrive(self, content: bytes) -> None:
        """As the loop does with bytes of the socket."""
        while content:
            target = memoryview(self.link.get_buffer(-1))
            size = min(len(target), len(content))
            target[:size] = content[:size]
            self.link.buffer_updated(size)
            content = content[size:]

    def set(self, *faults: LinkFault) -> None:
        self.links.set(faults)


def run(test: Callable[[Stage], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        await test(Stage(**options))

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - objects without a notification
            await asyncio.sleep(0.001)


def test_without_a_fault_bytes_go_through_at_once() -> None:
    async def test(stage: Stage) -> None:
        stage.arrive(b"request")
        stage.protocol.transport.writelines([b"ans", b"wer"])
        assert (stage.protocol.received, stage.socket.written) == (b"request", b"answer")
        assert stage.link.get_extra_info("layer") is stage.link
        assert stage.link.get_extra_info("socket") is None

    run(test)


def test_a_delay_keeps_the_order_and_ends_with_the_fault() -> None:
    async def test(stage: Stage) -> None:
        stage.set(LinkFault(1, delay_s=0.5, jitter_s=0.01))
        for number in range(20):
            stage.arrive(bytes([number]))
            stage.link.write(bytes([number]))
        assert (stage.protocol.received, stage.socket.written) == (b"", b"")
        await until(lambda: len(stage.protocol.received) == len(stage.socket.written) == 20)
        assert stage.protocol.received == stage.socket.written == bytes(range(20))
        stage.set(LinkFault(2, delay_s=1000))
        stage.arrive(b"late")
        stage.set()
        assert stage.protocol.received.endswith(b"late")

    run(test)


@pytest.mark.parametrize("incoming", [True, False])
def test_one_way_is_held(incoming: bool) -> None:
    async def test(stage: Stage) -> None:
        stage.set(LinkFault(1, holds_incoming=incoming, holds_outgoing=not incoming))
        stage.arrive(b"request")
        stage.link.write(b"answer")
        await until(lambda: bool(stage.socket.written if incoming else stage.protocol.received))
        assert (stage.protocol.received == b"") is incoming
        assert (stage.socket.written == b"") is not incoming
        stage.set()
        assert (stage.protocol.received, stage.socket.written) == (b"request", b"answer")

    run(test)


def test_the_end_of_a_peer_is_held_like_its_bytes() -> None:
    async def test(stage: Stage) -> None:
        stage.set(LinkFault(1, holds_incoming=True))
        stage.arrive(b"last")
        assert stage.link.eof_received()
        stage.link.connection_lost(None)
        await asyncio.sleep(0)
        assert stage.protocol.events == []
        stage.set()
        assert stage.protocol.received == b"last"
        assert stage.protocol.events == ["eof", "lost"]

    run(test)


def test_a_held_connection_that_is_aborted_stays_silent_for_its_peer() -> None:
    async def test(stage: Stage) -> None:
        stage.set(LinkFault(1, holds_outgoing=True))
        stage.link.abort()
        await asyncio.sleep(0)
        assert stage.protocol.events == ["lost"]
        assert stage.socket.calls == []

    run(test)


def test_what_is_held_is_bounded() -> None:
    async def test(stage: Stage) -> None:
        stage.protocol.buffer = bytearray(64 << 10)
        stage.set(LinkFault(1, holds_incoming=True, holds_outgoing=True))
        for _ in range(40):
            if stage.socket.is_reading:
                stage.arrive(bytes(64 << 10))
        assert not stage.socket.is_reading
        stage.link.write(bytes(128 << 10))
        assert stage.protocol.events == ["pause"]
        assert stage.link.get_write_buffer_size() == 128 << 10
        stage.set()
        assert stage.socket.is_reading
        assert stage.protocol.events == ["pause", "resume"]

    run(test)


def test_a_protocol_that_pauses_gets_the_rest_later() -> None:
    async def test(stage: Stage) -> None:
        def buffer_updated(nbytes: int) -> None:
            Protocol.buffer_updated(stage.protocol, nbytes)
            stage.link.pause_reading()

        stage.protocol.buffer_updated = buffer_updated  # type: ignore[method-assign]
        stage.set(LinkFault(1, holds_incoming=True))
        stage.arrive(b"0123456789")
        stage.set()
        assert stage.protocol.received == b"0123"
        for _ in range(2):
            stage.link.resume_reading()
            await asyncio.sleep(0)
        assert stage.protocol.received == b"0123456789"

    run(test)


def test_bandwidth_is_shared_by_the_connections() -> None:
    async def test(stage: Stage) -> None:
        fault = LinkFault(1, bytes_per_s=100_000)
        stage.set(fault)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        stage.link.write(bytes(1000))
        stage.link.write(bytes(1000))
        await until(lambda: len(stage.socket.written) == 2000)
        assert loop.time() - began_s >= 0.02

    run(test)


def test_close_waits_for_what_is_delayed() -> None:
    async def test(stage: Stage) -> None:
        stage.set(LinkFault(1, delay_s=0.01))
        stage.link.write(b"last")
        stage.link.close()
        assert stage.link.is_closing()
        assert stage.socket.calls == []
        await until(lambda: stage.socket.calls == ["close"])
        assert stage.socket.written == b"last"

    run(test)


def test_a_half_open_connection_is_silent_until_it_is_reset() -> None:
    async def test(stage: Stage) -> None:
        assert stage.links.forget(LinkFault(0, "clients")) == 1
        assert stage.protocol.events == ["lost"]
        stage.arrive(b"request")
        assert (stage.protocol.received, stage.socket.calls) == (b"", [])
        stage.links.end_half_open()
        assert stage.socket.calls == ["abort"]

    run(test)


@pytest.mark.parametrize(
    ("fault", "is_chosen"),
    [
        (LinkFault(0), True),
        (LinkFault(0, "3"), True),
        (LinkFault(0, "2"), False),
        (LinkFault(0, "nodes"), True),
        (LinkFault(0, "clients"), False),
        (LinkFault(0, listener="controllers"), True),
        (LinkFault(0, listener="brokers"), False),
        (LinkFault(0, client_id="app"), False),
    ],
)
def test_which_connections_a_fault_is_about(fault: LinkFault, is_chosen: bool) -> None:
    async def test(stage: Stage) -> None:
        assert bool(stage.links.chosen(fault)) is is_chosen

    run(test, peer=("127.0.0.4", 40000), port=9093)


def test_a_client_is_chosen_by_its_id_once_it_is_known() -> None:
    async def test(stage: Stage) -> None:
        fault = LinkFault(1, client_id="app", holds_incoming=True)
        stage.set(fault)
        assert not stage.links.chosen(fault)
        stage.links.name("127.0.0.1:40000", "app")
        assert stage.links.chosen(fault) == [stage.link]
        stage.arrive(b"request")
        assert stage.protocol.received == b""
        assert stage.links.clients() == {"127.0.0.1:40000": "app"}

    run(test)
