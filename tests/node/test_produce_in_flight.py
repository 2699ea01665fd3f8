"""Several Produce requests of one connection in flight: which requests may overlap, and the order of the responses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fenceline.node.net.connection import MAX_PIPELINED, PendingAnswer, ServerConnection
from fenceline.wire.apis import ApiKey
from fenceline.wire.errors import MalformedRequest
from fenceline.wire.principal import ANONYMOUS

PRODUCE, METADATA = int(ApiKey.PRODUCE), int(ApiKey.METADATA)


class Wire:
    """The client's end: what was sent to it, and whether the node closed the connection."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.is_closed = False

    def write(self, content: bytes) -> None:
        self.sent.append(bytes(content))

    def writelines(self, parts: list[bytes]) -> None:
        self.sent.append(b"".join(parts))

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def get_extra_info(self, name: str) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Node:
    """A connection whose requests are handled as the test says: `kinds` by the request's last byte."""

    def __init__(self) -> None:
        self.handled: list[int] = []
        self.waiting: dict[int, PendingAnswer] = {}
        self.abandoned: list[int] = []
        server: Any = SimpleNamespace(
            handle=self._handle,
            turns=SimpleNamespace(is_over=lambda: False),
            register=lambda connection: True,
            principal=lambda connection, certificate: ANONYMOUS,
            begin_authentication=lambda connection: None,
            unregister=lambda connection, size: None,
            note_closed=lambda connection, reason: None,
            metrics=SimpleNamespace(received_bytes=0),
            max_request_bytes=1000,
            is_short_of_memory=False,
        )
        self.connection = ServerConnection(server, "PLAINTEXT")
        self.wire = Wire()
        self.connection.connection_made(self.wire)  # type: ignore[arg-type]

    def _handle(self, connection: ServerConnection, frame: memoryview) -> Any:
        number, how = frame[-2], chr(frame[-1])
        self.handled.append(number)
        match how:
            case "a":  # has appended, waits for replicas
                return self._later(number, lets_follow=True)
            case "w":  # waits for something else
                return self._later(number, lets_follow=False)
            case "n":  # needs no response
                return None
            case "m":
                raise MalformedRequest("cut short")
            case "b":
                raise RuntimeError("our bug")
        return [b"%d" % number]

    def _later(self, number: int, *, lets_follow: bool) -> PendingAnswer:
        pending = self.waiting[number] = PendingAnswer(lets_follow=lets_follow)
        pending.on_abandoned(lambda: self.abandoned.append(number))
        return pending

    def receive(self, *requests: tuple[int, int, str]) -> None:
        """Requests (api key, number, how), all in one piece."""
        content = b"".join(
            (8).to_bytes(4, "big") + key.to_bytes(2, "big") + b"....".ljust(4) + bytes((number, ord(how)))
            for key, number, how in requests
        )
        self.connection.get_buffer(len(content))[: len(content)] = content
        self.connection.buffer_updated(len(content))

    def answer(self, number: int) -> None:
        self.waiting[number].complete([b"%d" % number])


def test_produce_requests_overlap_and_their_responses_keep_the_order() -> None:
    node = Node()
    node.receive((PRODUCE, 1, "a"), (PRODUCE, 2, "a"), (PRODUCE, 3, "a"))
    assert node.handled == [1, 2, 3]
    node.answer(3)
    node.answer(2)
    assert node.wire.sent == []
    node.answer(1)
    assert node.wire.sent == [b"1", b"2", b"3"]
    assert not node.connection.is_busy


def test_a_response_that_is_ready_at_once_does_not_overtake() -> None:
    """For example a rejection. A request without a response (acks=0) blocks no other."""
    node = Node()
    node.receive((PRODUCE, 1, "a"), (PRODUCE, 2, "r"), (PRODUCE, 3, "n"), (PRODUCE, 4, "a"))
    assert node.handled == [1, 2, 3, 4]
    node.answer(1)
    assert node.wire.sent == [b"1", b"2"]
    node.answer(4)
    assert node.wire.sent == [b"1", b"2", b"4"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((PRODUCE, 1, "a"), (METADATA, 2, "r")),
        ((METADATA, 1, "w"), (PRODUCE, 2, "a")),
        ((PRODUCE, 1, "w"), (PRODUCE, 2, "a")),
    ],
)
def test_all_other_requests_are_handled_one_at_a_time(
    first: tuple[int, int, str], second: tuple[int, int, str]
) -> None:
    node = Node()
    node.receive(first, second)
    assert node.handled == [1]
    node.answer(1)
    assert node.handled == [1, 2]


def test_a_request_of_which_only_the_size_arrived_waits() -> None:
    node = Node()
    node.receive((PRODUCE, 1, "a"))
    whole = (8).to_bytes(4, "big") + (0).to_bytes(2, "big") + b"....\2r"
    for byte in whole:
        node.connection.get_buffer(1)[:1] = bytes((byte,))
        node.connection.buffer_updated(1)
    assert node.handled == [1, 2]


def test_the_number_of_requests_in_flight_is_limited() -> None:
    node = Node()
    count = MAX_PIPELINED + 3
    node.receive(*((PRODUCE, number, "a") for number in range(count)))
    assert node.handled == list(range(MAX_PIPELINED))
    node.answer(1)
    assert len(node.handled) == MAX_PIPELINED
    node.answer(0)
    assert node.handled == list(range(MAX_PIPELINED + 2))


@pytest.mark.parametrize("how", ["m", "b"])
def test_an_error_closes_the_connection_after_the_earlier_responses(how: str) -> None:
    node = Node()
    node.receive((PRODUCE, 1, "a"), (PRODUCE, 2, "a"), (PRODUCE, 3, how), (PRODUCE, 4, "a"))
    assert node.handled == [1, 2, 3]
    node.answer(2)
    assert not node.wire.is_closed
    node.answer(1)
    assert node.wire.sent == [b"1", b"2"]
    assert node.wire.is_closed
    assert node.handled == [1, 2, 3]


def test_a_request_without_response_closes_after_the_earlier_responses() -> None:
    """For example a failed request with acks=0."""
    node = Node()
    node.receive((PRODUCE, 1, "a"), (PRODUCE, 2, "w"), (PRODUCE, 3, "a"))
    node.waiting[2].fail("refused")
    assert not node.wire.is_closed
    node.answer(1)
    assert node.wire.sent == [b"1"]
    assert node.wire.is_closed
    assert node.handled == [1, 2]


def test_the_first_request_fails() -> None:
    node = Node()
    node.receive((PRODUCE, 1, "a"), (PRODUCE, 2, "a"))
    node.answer(2)
    node.waiting[1].fail("our bug")
    assert node.wire.sent == []
    assert node.wire.is_closed


def test_a_disconnected_client_gets_no_responses() -> None:
    node = Node()
    node.receive((PRODUCE, 1, "a"), (PRODUCE, 2, "a"), (PRODUCE, 3, "a"))
    node.answer(2)
    node.connection.connection_lost(None)
    assert node.abandoned == [1, 3]
    node.answer(1)
    node.answer(3)
    assert node.wire.sent == []
