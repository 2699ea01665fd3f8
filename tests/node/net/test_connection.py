"""Closing a connection in turn: after the responses that are pending, and before any other request. Requests that wait
for their turn."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from fenceline.node.net.connection import PendingAnswer, ServerConnection
from fenceline.wire.apis import ApiKey
from fenceline.wire.principal import ANONYMOUS

REQUEST = struct.pack(">ihhih", 10, ApiKey.METADATA, 0, 7, 0)


class Transport:
    """Has sent what was written, and closes at once."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.is_closed = False
        self.closed = asyncio.Event()

    def get_extra_info(self, name: str) -> Any:
        return None

    def write(self, content: bytes) -> None:
        self.sent.append(content)

    def writelines(self, contents: list[bytes]) -> None:
        self.sent.extend(contents)

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True
        self.closed.set()


class Scene:
    """A connection, the requests that were handled, and the responses that they wait for."""

    def __init__(self) -> None:
        self.turn_is_over = False
        self.postponed: list[Callable[[], None]] = []
        self.deferred: list[Callable[[], None]] = []
        self.pending: list[PendingAnswer] = []
        self.closings: list[str] = []
        self.transport = Transport()
        server: Any = SimpleNamespace(
            metrics=SimpleNamespace(received_bytes=0),
            max_request_bytes=1000,
            is_short_of_memory=False,
            note_closed=lambda connection, reason: self.closings.append(reason),
            register=lambda connection: True,
            unregister=lambda connection, buffer_bytes: None,
            principal=lambda connection, certificate: ANONYMOUS,
            begin_authentication=lambda connection: None,
            handle=self._handle,
            turns=SimpleNamespace(
                is_over=lambda: self.turn_is_over, postpone=self.postponed.append, defer=self.deferred.append
            ),
        )
        self.connection = ServerConnection(server, "PLAINTEXT")
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]

    def _handle(self, connection: ServerConnection, frame: memoryview) -> PendingAnswer:
        self.pending.append(PendingAnswer())
        return self.pending[-1]

    def receive(self, content: bytes) -> None:
        while content:
            target = self.connection.get_buffer(-1)
            part, content = content[: len(target)], content[len(target) :]
            target[: len(part)] = part
            self.connection.buffer_updated(len(part))


@pytest.mark.parametrize("quiet", [False, True])
def test_pending_responses_are_sent_before_the_connection_closes(quiet: bool) -> None:
    scene = Scene()
    scene.receive(REQUEST)
    scene.connection.close_in_turn("the end", quiet=quiet)
    scene.receive(REQUEST)
    assert not scene.transport.is_closed
    (first,) = scene.pending
    first.complete([b"response"])
    assert scene.transport.sent == [b"response"]
    assert scene.transport.is_closed
    assert len(scene.pending) == 1, "the second request is not handled any more"
    assert scene.closings == ([] if quiet else ["the end"])


def test_without_pending_responses_the_connection_closes_at_once() -> None:
    scene = Scene()
    scene.connection.close_in_turn("the end", quiet=True)
    assert scene.transport.is_closed


def test_requests_of_a_turn_that_is_over_wait_for_the_next() -> None:
    scene = Scene()
    scene.turn_is_over = True
    scene.receive(REQUEST)
    scene.receive(REQUEST)
    assert not scene.pending
    (call,) = scene.postponed
    scene.turn_is_over = False
    call()
    assert len(scene.pending) == 1, "the second waits for the response of the first"
    scene.pending[0].complete([b"first"])
    assert len(scene.pending) == 2
    assert scene.transport.sent == [b"first"]


def test_a_request_does_not_pass_those_that_were_postponed() -> None:
    scene = Scene()
    scene.turn_is_over = True
    scene.receive(REQUEST)
    scene.turn_is_over = False
    scene.receive(REQUEST)
    assert not scene.pending


def test_more_than_the_buffer_arrives_while_a_request_is_postponed() -> None:
    scene = Scene()
    scene.turn_is_over = True
    count = 1000
    for _ in range(count):
        scene.receive(REQUEST)
    scene.turn_is_over = False
    scene.postponed.pop()()
    for number in range(count):
        scene.pending[number].complete([b"%d" % number])
    assert scene.transport.sent == [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("how", ["postponed", "muted"])
def test_a_peer_that_has_sent_and_closed_is_still_served(how: str) -> None:
    """As producers with acks=0 do."""

    async def story() -> None:
        scene = Scene()
        scene.turn_is_over = how == "postponed"
        if how == "muted":
            scene.connection.mute(0)
        scene.receive(REQUEST)
        assert scene.connection.eof_received()
        assert not scene.pending
        assert not scene.deferred
        scene.turn_is_over = False
        if how == "postponed":
            scene.postponed.pop()()
        await scene.transport.closed.wait()
        assert len(scene.pending) == 1

    asyncio.run(asyncio.wait_for(story(), 10))


def test_a_peer_that_closes_while_nothing_waits_is_closed_when_it_has_its_turn() -> None:
    scene = Scene()
    scene.receive(REQUEST)
    assert scene.connection.eof_received()
    assert not scene.transport.is_closed
    scene.deferred.pop()()
    assert scene.transport.is_closed


def test_a_peer_that_has_closed_may_be_gone_before_its_turn() -> None:
    scene = Scene()
    scene.connection.eof_received()
    scene.connection.connection_lost(None)
    scene.deferred.pop()()


def test_a_muted_peer_that_has_sent_nothing_more_is_closed() -> None:
    async def story() -> None:
        scene = Scene()
        scene.connection.mute(1_000)
        scene.connection.eof_received()
        scene.deferred.pop()()
        assert scene.transport.is_closed

    asyncio.run(story())
