"""Whether a process listens at the address of a broker: on local sockets, and at addresses that do not answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from uuid import UUID

import pytest

from fenceline.metadata.image import BrokerImage, Endpoint
from fenceline.node.controller import probe as controller_probe
from fenceline.node.controller.probe import BrokerProbe
from fenceline.node.net.peer_connection import dial

INNER, OUTER = "INTERNAL", "EXTERNAL"


def broker(*endpoints: tuple[str, str, int]) -> BrokerImage:
    reported = tuple(Endpoint(name, host, port, 0) for name, host, port in endpoints)
    return BrokerImage(1, 5, UUID(int=1), reported, {}, None, False, False, ())


def is_refused(known: BrokerImage, **how: Any) -> bool:
    async def look() -> bool:
        return await BrokerProbe(how.pop("connect", dial), INNER, **how).is_refused(known)

    return asyncio.run(look())


@pytest.fixture
def bound() -> Iterator[socket.socket]:
    """A port that is bound but does not listen."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken


def test_listening_port_is_not_refused(bound: socket.socket) -> None:
    """The connection need not be accepted: a stopped process does not accept."""
    bound.listen()
    assert not is_refused(broker((INNER, "127.0.0.1", bound.getsockname()[1])))


def test_port_without_listener_is_refused(bound: socket.socket) -> None:
    assert is_refused(broker((INNER, "127.0.0.1", bound.getsockname()[1])))


class Addresses:
    """The outcome of a connection by host."""

    def __init__(self, **outcomes: type[OSError] | str) -> None:
        self._outcomes = outcomes
        self.asked: list[str] = []

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]:
        self.asked.append(host)
        outcome = self._outcomes[host]
        if outcome == "silent":
            await asyncio.Event().wait()
        if isinstance(outcome, str):
            return asyncio.Transport(), None
        raise outcome

    @staticmethod
    async def resolve(host: str, port: int) -> Iterable[str]:
        if host == "unknown":
            raise socket.gaierror
        if host == "impossible":
            raise UnicodeError
        return host.split("+")


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ([(INNER, "gone", 1)], True),
        ([(INNER, "there", 1)], False),
        ([(INNER, "silent", 1)], False),
        ([(INNER, "far", 1)], False),
        ([(INNER, "unknown", 1)], False),
        ([(INNER, "impossible", 1)], False),
        ([(INNER, "gone+gone", 1)], True),
        ([(INNER, "gone+there", 1)], False),
        ([(INNER, "gone+silent", 1)], False),
        ([(OUTER, "there", 1), (INNER, "gone", 1)], True),
        ([(OUTER, "gone", 1), (INNER, "silent", 1)], False),
        ([("ONE", "gone", 1), ("TWO", "gone", 1)], True),
        ([("ONE", "gone", 1), ("TWO", "there", 1)], False),
        ([], False),
    ],
)
def test_broker_is_refused_only_if_every_address_refuses(
    reported: list[tuple[str, str, int]], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_probe, "_TIMEOUT_S", 0.05)
    monkeypatch.setattr(asyncio.Transport, "close", lambda transport: None)
    net = Addresses(gone=ConnectionRefusedError, there="there", silent="silent", far=OSError)
    assert is_refused(broker(*reported), connect=net.connect, resolve=net.resolve) is expected
    if any(name == INNER for name, *_ in reported):
        hosts = {host for name, address, _ in reported if name == INNER for host in address.split("+")}
        assert set(net.asked) <= hosts, "with an inter-broker listener, only its addresses are tried"


# -- whether a broker answers ------------------------------------------------------------------------------------------


def answers(known: BrokerImage, connect: Any = dial, within_s: float = 60.0) -> bool | None:
    """None: nothing has happened within this time."""

    async def ask() -> bool | None:
        try:
            async with asyncio.timeout(within_s):
                return await BrokerProbe(connect, INNER).answers(known)
        except TimeoutError:
            return None

    return asyncio.run(ask())


def test_frozen_process_does_not_answer(bound: socket.socket) -> None:
    """Its system accepts the connection."""
    bound.listen()
    assert answers(broker((INNER, "127.0.0.1", bound.getsockname()[1])), within_s=0.2) is None


def test_refused_connection_is_an_answer(bound: socket.socket) -> None:
    """The process has ended, which is for `presence`."""
    assert answers(broker((INNER, "127.0.0.1", bound.getsockname()[1]))) is True


@pytest.mark.parametrize("answer", [b"", b"\x15\x03\x03\x00\x02\x02\x50", b"\x00\x00\x00\x04\x00\x00\x00\x00"])
def test_any_bytes_and_a_closed_connection_are_answers(answer: bytes) -> None:
    """As of a listener with TLS, which does not understand the request."""

    async def story() -> bool:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(answer)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        found = await BrokerProbe(dial, INNER).answers(broker((INNER, "127.0.0.1", port)))
        server.close()
        return found

    assert asyncio.run(story())


def test_unreachable_host_does_not_answer() -> None:
    addresses = Addresses(cut=OSError)
    assert answers(broker((INNER, "cut", 9092)), addresses.connect) is False
    assert addresses.asked == ["cut"]
