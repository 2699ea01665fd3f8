"""Closing a connection in turn: after the responses that are pending, and before any other request."""

from __future__ import annotations

import struct
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


class Scene:
    """A connection, the requests that were handled, and the responses that they wait for."""

    def __init__(self) -> None:
        self.pending: list[PendingAnswer] = []
        self.closings: list[str] = []
        self.transport = Transport()
        server: Any = SimpleNamespace(
            metrics=SimpleNamespace(received_bytes=0),
            max_request_bytes=1000,
            is_short_of_memory=False,
            note_closed=lambda connection, reason: self.closings.append(reason),
            register=lambda connection: True,
            principal=lambda connection, certificate: ANONYMOUS,
            begin_authentication=lambda connection: None,
            handle=self._handle,
        )
        self.connection = ServerConnection(server, "PLAINTEXT")
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]

    def _handle(self, connection: ServerConnection, frame: memoryview) -> PendingAnswer:
        self.pending.append(PendingAnswer())
        return self.pending[-1]

    def receive(self, content: bytes) -> None:
        self.connection.get_buffer(-1)[: len(content)] = content
        self.connection.buffer_updated(len(content))


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
