"""Probes of an active controller for brokers that are not connected to it: which are reported, and which are not."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from fenceline.controller.requests import FenceEndedBroker
from fenceline.controller.sessions import Sessions
from fenceline.errors import ErrorCode, PeerError
from fenceline.metadata.image import BrokerImage, Endpoint
from fenceline.node.controller import presence as controller_presence
from fenceline.node.controller.presence import BrokerPresence, Key

PATIENCE_S = 60
EPOCH = 5


def broker(broker_id: int, *, fenced: bool = False) -> BrokerImage:
    endpoints = (Endpoint("PLAINTEXT", f"host{broker_id}", 9092, 0),)
    return BrokerImage(broker_id, EPOCH, UUID(int=broker_id), endpoints, {}, None, fenced, False, ())


def key(number: int) -> Key:
    return ("CONTROLLER", f"host:{number}")


class Scene:
    """An active controller on node 9, its submitted requests, and processes that accept or refuse connections."""

    def __init__(self, *brokers: BrokerImage, grace_ms: int = 0) -> None:
        self.refused_for_s: dict[int, float] = {}
        """As controllers."""
        self.image = SimpleNamespace(brokers={each.id: each for each in brokers})
        self.sessions = Sessions(9_000)
        for each in brokers:
            self.sessions.begin(each.id, each.epoch, 0, 0).has_heartbeat = True
        self.now_ms = 100
        self.reported: list[FenceEndedBroker] = []
        self.came: list[int] = []
        self.looks: dict[int, int] = {}
        self.refusing: set[int] = set()
        self.changed = asyncio.Event()
        self.look: Callable[[int], Awaitable[None]] | None = None
        """What happens meanwhile, by the number of the look."""
        self.node_id, self.own_broker_epoch = 9, EPOCH
        self.presence = BrokerPresence(
            self,  # type: ignore[arg-type]
            SimpleNamespace(image=self.image, sessions=self.sessions),  # type: ignore[arg-type]
            SimpleNamespace(monotonic_ms=lambda: self.now_ms),
            grace_ms=grace_ms,
            is_refused=self.is_refused,
            refused_for_s=lambda node_id: self.refused_for_s.get(node_id, 0.0),
            mark_alive=self.came.append,
        )

    async def is_refused(self, known: BrokerImage) -> bool:
        number = self.looks[known.id] = self.looks.get(known.id, 0) + 1
        refused = known.id in self.refusing
        self.changed.set()
        if self.look is not None:
            await self.look(number)
        return refused

    def submit(self, request: Any) -> asyncio.Future[Any]:
        self.reported.append(request)
        if self.sessions.may_have_ended(request.broker_id, request.broker_epoch, request.since_ms):
            self.sessions.end(request.broker_id, request.broker_epoch, for_good=True)
        self.changed.set()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.set_result(None)
        return answer

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self.changed.clear()
            await self.changed.wait()

    def connect(self, number: int, broker_id: int, epoch: int = EPOCH) -> None:
        self.presence.opened(key(number))
        self.presence.broker_identified(key(number), broker_id, epoch)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_presence, "_SOON_S", 0.0)


def play(story: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await story()

    asyncio.run(whole())


def test_lost_connection_and_two_refusals_report_a_broker() -> None:
    async def story() -> None:
        room = Scene(broker(1), broker(2))
        room.connect(1, 1)
        room.connect(2, 2)
        room.presence.begin()
        room.refusing.add(1)
        room.presence.closed(key(1))
        await room.until(lambda: bool(room.reported))
        assert room.reported == [FenceEndedBroker(1, EPOCH, 100)]
        assert room.looks == {1: 2}, "the other one is connected and is not probed"

    play(story)


def test_grace_of_a_controller_starts_at_its_first_refusal() -> None:
    """The next leader has seen the old leader refuse connections before its own term began."""

    async def story() -> None:
        room = Scene(broker(1), broker(2), grace_ms=3_600_000)
        room.refusing.update((1, 2))
        room.refused_for_s[1] = 3_601.0
        room.presence.begin()
        await room.until(lambda: bool(room.reported))
        assert room.reported == [FenceEndedBroker(1, EPOCH, 100)]
        assert room.looks == {1: 2, 2: 1}, "the grace of the other one has just started"
        room.presence.end()

    play(story)


def test_new_disconnect_replaces_a_paused_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new leader probes every broker that is not connected, with growing pauses."""
    monkeypatch.setattr(controller_presence, "_SOON_S", 3_600.0)

    async def story() -> None:
        room = Scene(broker(1))
        room.presence.begin()
        await room.until(lambda: room.looks == {1: 1})
        (older,) = room.presence._looks.values()
        room.connect(1, 1)
        assert older.cancelling()
        room.refusing.add(1)
        room.presence.closed(key(1))
        await room.until(lambda: bool(room.reported))
        assert room.reported == [FenceEndedBroker(1, EPOCH, 100)]
        room.presence.end()

    play(story)


def test_connected_broker_is_announced_once_per_connection() -> None:
    async def story() -> None:
        room = Scene(broker(1), broker(2))
        room.connect(1, 1)
        room.presence.broker_identified(key(1), 1, EPOCH)
        room.connect(2, 2)
        assert room.came == [1, 2]
        room.presence.closed(key(2))
        room.presence.broker_identified(key(2), 2, EPOCH)
        room.connect(3, 2)
        assert room.came == [1, 2, 2], "requests handled after a disconnect are ignored"

    play(story)


def test_broker_that_accepts_connections_is_probed_again() -> None:
    async def story() -> None:
        room = Scene(broker(1))
        room.presence.begin()
        await room.until(lambda: room.looks.get(1, 0) >= 3)
        assert room.reported == []
        room.refusing.add(1)
        await room.until(lambda: bool(room.reported))
        room.presence.end()

    play(story)


@pytest.mark.parametrize("way", ["connection", "heartbeat", "port"])
def test_broker_back_within_the_grace_is_not_reported(way: str) -> None:
    """By a connection, by a heartbeat after the probe, or by its port."""

    async def story() -> None:
        room = Scene(broker(1))
        room.refusing.add(1)

        async def come_back(number: int) -> None:
            if number == 1 and way == "connection":
                room.connect(1, 1)
            elif number == 1 and way == "port":
                room.refusing.clear()
            elif number == 2 and way == "heartbeat":
                room.now_ms += 1
                room.sessions.contact(1, EPOCH, room.now_ms)
                room.refusing.clear()

        room.look = come_back
        room.presence.begin()
        if way == "connection":
            await asyncio.gather(*room.presence._looks.values(), return_exceptions=True)
            assert room.looks == {1: 1}
        else:
            await room.until(lambda: room.looks.get(1, 0) >= 3)
        assert room.reported == []
        assert room.sessions.has(1, EPOCH)
        room.presence.end()

    play(story)


def test_new_controller_probes_brokers_that_are_not_connected() -> None:
    """Except the broker of this process, brokers connected before the term, and fenced brokers without a session."""

    async def story() -> None:
        asleep = broker(3, fenced=True)
        room = Scene(broker(1), broker(2), asleep, broker(9), broker(4, fenced=True))
        room.sessions.drop(3)
        room.refusing.update((1, 2, 3, 4, 9))
        room.connect(2, 2)
        assert room.looks == {}, "no probes before this controller is active"
        room.presence.begin()
        await room.until(lambda: len(room.reported) == 2)
        assert {each.broker_id for each in room.reported} == {1, 4}
        assert set(room.looks) == {1, 4}
        room.presence.end()

    play(story)


def test_previous_process_of_this_node_is_probed() -> None:
    async def story() -> None:
        room = Scene(broker(9))
        room.own_broker_epoch = -1
        room.refusing.add(9)
        room.presence.begin()
        await room.until(lambda: bool(room.reported))

    play(story)


def test_no_probes_after_the_controller_resigns() -> None:
    async def story() -> None:
        room = Scene(broker(1))
        room.connect(1, 1)
        room.presence.begin()
        room.presence.end()
        room.refusing.add(1)
        room.presence.closed(key(1))
        assert room.presence._looks == {}

    play(story)


def test_broker_is_connected_until_its_last_connection_closes() -> None:
    async def story() -> None:
        room = Scene(broker(1))
        room.connect(1, 1)
        room.connect(2, 1)
        room.presence.closed(key(1))
        assert room.sessions.is_connected(1, EPOCH)
        room.presence.closed(key(2))
        assert not room.sessions.is_connected(1, EPOCH)

    play(story)


def test_connection_closed_before_identification_is_ignored() -> None:
    """The answer to a registration comes when it is committed; the broker may be dead by then."""

    async def story() -> None:
        room = Scene(broker(1))
        room.presence.opened(key(1))
        room.presence.closed(key(1))
        room.presence.broker_identified(key(1), 1, EPOCH)
        assert not room.sessions.is_connected(1, EPOCH)

    play(story)


def test_a_new_incarnation_on_the_same_connection_is_another_broker() -> None:
    async def story() -> None:
        room = Scene(broker(1))
        room.connect(1, 1)
        room.presence.broker_identified(key(1), 1, EPOCH + 1)
        assert not room.sessions.is_connected(1, EPOCH)
        assert room.sessions.is_connected(1, EPOCH + 1)

    play(story)


def test_report_failing_after_resignation_is_not_an_error() -> None:
    """Probes end with the leadership, before pending requests fail."""
    complaints: list[dict[str, Any]] = []

    async def story() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        room = Scene(broker(1))
        room.connect(1, 1)
        room.refusing.add(1)
        answers: list[asyncio.Future[Any]] = []

        def submit(request: Any) -> asyncio.Future[Any]:
            room.reported.append(request)
            answers.append(asyncio.get_running_loop().create_future())
            room.changed.set()
            return answers[-1]

        room.submit = submit  # type: ignore[method-assign]
        room.presence.begin()
        room.presence.closed(key(1))
        await room.until(lambda: bool(room.reported))
        room.presence.end()
        await asyncio.sleep(0)
        answers.pop().set_exception(PeerError(ErrorCode.NOT_CONTROLLER))
        await asyncio.sleep(0)
        gc.collect()

    play(story)
    assert complaints == []
