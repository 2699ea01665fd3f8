"""Responses of another node, in any fragments, and the buffers that hold them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from fenceline.node.net.peer_connection import LARGEST_ANSWER_BYTES, AnswerTooLarge, PeerConnection, PeerConnectionLost
from fenceline.wire.apis import ApiKey

FETCH, VERSION = ApiKey.FETCH, 12
BUFFER_BYTES = 64 << 10


class Wire:
    """The part of a transport that is used."""

    def __init__(self) -> None:
        self.is_aborted = False

    def get_extra_info(self, name: str) -> Any:
        return None

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True

    def writelines(self, parts: Any) -> None:
        pass


def connected(
    *, lends_answers: bool = False, largest_answer: Callable[[], int] = lambda: LARGEST_ANSWER_BYTES
) -> tuple[PeerConnection, Wire]:
    connection = PeerConnection("there:1", "here", lends_answers=lends_answers, largest_answer=largest_answer)
    wire = Wire()
    connection.connection_made(wire)  # type: ignore[arg-type]
    return connection, wire


def frame(correlation_id: int, body: bytes) -> bytes:
    return (5 + len(body)).to_bytes(4, "big") + correlation_id.to_bytes(4, "big") + b"\0" + body


def receive(connection: PeerConnection, content: bytes, most: int) -> None:
    """As a transport does: into the buffer that it gets, as much as is available."""
    rest = memoryview(content)
    while rest:
        room = connection.get_buffer(-1)
        assert len(room) > 0, "the buffer is empty"
        size = min(len(room), len(rest), most)
        room[:size] = rest[:size]
        rest = rest[size:]
        connection.buffer_updated(size)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("lends_answers", [False, True])
def test_responses_arrive_complete_in_any_fragments(seed: int, lends_answers: bool) -> None:
    async def story() -> None:
        rng = Random(seed)
        connection, wire = connected(lends_answers=lends_answers)
        number = 0
        kept: list[tuple[bytes, memoryview]] = []
        for _ in range(12):
            asked, content = [], bytearray()
            for _ in range(1 if lends_answers else rng.randint(1, 5)):
                near = BUFFER_BYTES - 9 + rng.randint(-2, 2)
                body = rng.randbytes(rng.choice([0, 1, 100, 5_000, near, 300_000]))
                asked.append((body, connection.post(FETCH, VERSION, b"")))
                content += frame(number, body)
                number += 1
            receive(connection, bytes(content), rng.choice([1_000, 40_000, 1 << 30]))
            for body, answer in asked:
                assert answer.result() == body
                assert answer.result().readonly
                kept.append((body, answer.result()))
            assert not connection.is_busy
        if not lends_answers:
            assert all(view == body for body, view in kept), "a returned response does not change"
        assert not wire.is_aborted

    asyncio.run(story())


def test_large_borrowed_responses_share_memory_and_a_small_one_releases_it() -> None:
    async def story() -> None:
        connection, _ = connected(lends_answers=True)
        views = []
        for number in range(2):
            answer = connection.post(FETCH, VERSION, b"")
            receive(connection, frame(number, bytes([number]) * (2 << 20)), 1 << 30)
            views.append(answer.result())
        assert views[0] == views[1], "the second one uses the memory of the first"
        answer = connection.post(FETCH, VERSION, b"")
        receive(connection, frame(2, b"small"), 1 << 30)
        assert bytes(answer.result()) == b"small"
        assert len(connection._lent) == 0

    asyncio.run(story())


@pytest.mark.parametrize(
    "content",
    [
        (3).to_bytes(4, "big"),
        (-1).to_bytes(4, "big", signed=True),
        (200 << 20).to_bytes(4, "big") + b"\0\0\0\7",
        b"HTTP/1.1 400 Bad Request",
        frame(7, b"of another request"),
        frame(7, b"of another request, large" * 9_000),
    ],
)
def test_malformed_input_closes_the_connection_and_fails_pending_requests(content: bytes) -> None:
    async def story() -> None:
        connection, wire = connected()
        answers = [connection.post(FETCH, VERSION, b"") for _ in range(2)]
        receive(connection, content, 1 << 30)
        assert wire.is_aborted
        assert not connection.is_open
        for answer in answers:
            with pytest.raises(PeerConnectionLost):
                answer.result()

    asyncio.run(story())


def test_an_unexpected_response_closes_the_connection() -> None:
    async def story() -> None:
        connection, wire = connected()
        receive(connection, frame(0, b""), 1 << 30)
        assert wire.is_aborted

    asyncio.run(story())


def test_the_reason_for_closing_reaches_pending_requests() -> None:
    async def story() -> None:
        connection, _ = connected()
        answer = connection.post(FETCH, VERSION, b"")
        connection.close("too slow")
        with pytest.raises(PeerConnectionLost, match="too slow"):
            answer.result()

    asyncio.run(story())


@pytest.mark.parametrize("size", [(100 << 20) + 1, 2**31 - 1])
@pytest.mark.parametrize("lends_answers", [False, True])
@pytest.mark.parametrize("most", [1, 40_000, 1 << 30])
def test_a_response_that_is_too_large_closes_the_connection_at_its_first_bytes(
    size: int, lends_answers: bool, most: int
) -> None:
    """No further byte is kept, and the peer did not disconnect: this node closed the connection."""

    async def story() -> None:
        connection, wire = connected(lends_answers=lends_answers)
        answer = connection.post(FETCH, VERSION, b"")
        begun = b"which partition is it?" + bytes(4 << 20)
        content = size.to_bytes(4, "big") + frame(0, begun)[4:]
        receive(connection, content[:9], min(most, 3))
        receive(connection, content[9 : 4 + (4 << 20)], max(most, 1_000))
        with pytest.raises(AnswerTooLarge, match=f"{size} bytes; the limit is {100 << 20} bytes") as caught:
            answer.result()
        assert (caught.value.size_bytes, caught.value.largest_bytes) == (size, 100 << 20)
        assert bytes(caught.value.begun) == begun[: (4 << 20) - 5]
        assert wire.is_aborted
        assert not connection.was_closed_by_peer

    asyncio.run(story())


def test_the_size_limit_is_read_again_for_a_larger_response() -> None:
    """A topic may allow larger batches since the connection was opened."""

    async def story() -> None:
        largest = [1_000]
        asked = []

        def largest_answer() -> int:
            asked.append(largest[0])
            return largest[0]

        connection, _ = connected(largest_answer=largest_answer)
        for number in range(3):
            answer = connection.post(FETCH, VERSION, b"")
            receive(connection, frame(number, bytes(900)), 1 << 30)
            assert len(answer.result()) == 900
        assert asked == [1_000]
        largest[0] = 300_000
        answer = connection.post(FETCH, VERSION, b"")
        receive(connection, frame(3, bytes(200_000)), 1 << 30)
        assert len(answer.result()) == 200_000
        answer = connection.post(FETCH, VERSION, b"")
        receive(connection, frame(4, bytes(300_000)), 1 << 30)
        with pytest.raises(AnswerTooLarge):
            answer.result()
        assert asked == [1_000, 300_000, 300_000]

    asyncio.run(story())


def test_the_side_that_closed_the_connection_is_known() -> None:
    async def story() -> None:
        ours, _ = connected()
        ours.close()
        ours.connection_lost(None)
        assert not ours.was_closed_by_peer
        theirs, wire = connected()
        assert not theirs.was_closed_by_peer
        wire.is_aborted = True  # the transport closes itself when the peer closes
        assert theirs.was_closed_by_peer
        theirs.close("it is gone")
        theirs.connection_lost(None)
        assert theirs.was_closed_by_peer

    asyncio.run(story())
