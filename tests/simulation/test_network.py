"""The network and other processes as observed by peers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from fenceline.testing.simulation.loop import SimLoop
from fenceline.testing.simulation.network import Lost, Network, NetworkConditions, PeerRefused, SimulatedTimeout
from fenceline.testing.simulation.scheduler import Scheduler
from fenceline.testing.simulation.trace import Trace


class Pair:
    """Node 1 sends requests, node 2 responds with the reversed bytes."""

    def __init__(self, conditions: NetworkConditions | None = None, seed: int = 1) -> None:
        self.scheduler = Scheduler(Random(seed))
        self.network = Network(self.scheduler, Random(seed), Trace(), conditions)
        self.asker = SimLoop(self.scheduler, "n1")
        self.server = SimLoop(self.scheduler, "n2")
        self.got: list[bytes] = []
        self.network.serve(2, self.server, self._answer)

    async def _answer(self, source: int, frame: bytes) -> bytes:
        self.got.append(frame)
        if frame == b"slow":
            await asyncio.sleep(10)
        if frame == b"bad":
            raise ConnectionError("malformed")
        return frame[::-1]

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.asker.run_until_complete(work)

    def end(self, *, power_lost: bool) -> None:
        self.server.kill()
        self.network.process_ended(2, power_lost=power_lost)


async def _outcome(work: Coroutine[Any, Any, bytes]) -> bytes | type[ConnectionError]:
    try:
        return await work
    except ConnectionError as error:
        return type(error)


def test_a_request_is_answered_after_two_delays() -> None:
    pair = Pair(NetworkConditions(min_delay_s=0.5, max_delay_s=0.5))
    assert pair.run(pair.network.request(1, 2, b"abc")) == b"cba"
    assert pair.scheduler.now_s == 1.0


@pytest.mark.parametrize("connected", [False, True])
def test_a_stopped_process_refuses_connections(connected: bool) -> None:
    pair = Pair()
    pair.end(power_lost=False)
    with pytest.raises(PeerRefused):
        pair.run(pair.network.connect(1, 2) if connected else pair.network.request(1, 2, b"abc"))


@pytest.mark.parametrize("connected", [False, True])
def test_a_machine_without_power_is_silent_until_it_is_back(connected: bool) -> None:
    pair = Pair()
    pair.end(power_lost=True)

    def ask() -> Coroutine[Any, Any, Any]:
        if connected:
            return pair.network.connect(1, 2, timeout_s=3)
        return pair.network.request(1, 2, b"abc", timeout_s=3)

    with pytest.raises(SimulatedTimeout):
        pair.run(ask())
    assert pair.scheduler.now_s == pytest.approx(3)
    pair.network.machine_is_back(2)
    with pytest.raises(PeerRefused):
        pair.run(ask())


def test_a_peer_is_notified_of_a_killed_process_at_once() -> None:
    pair = Pair()
    lost: list[float] = []

    async def scenario() -> None:
        connection = await pair.network.connect(1, 2, on_lost=lambda: lost.append(pair.scheduler.now_s))
        pair.asker.call_later(5, lambda: pair.end(power_lost=False))
        with pytest.raises(Lost):
            await connection.request(b"slow")
        assert not connection.is_open
        with pytest.raises(Lost):
            await connection.request(b"abc")

    pair.run(scenario())
    assert len(lost) == 1
    assert 5 < lost[0] < 5.1


def test_a_peer_of_a_dead_machine_is_notified_when_it_is_back() -> None:
    pair = Pair()

    async def scenario() -> None:
        connection = await pair.network.connect(1, 2)
        pair.end(power_lost=True)
        with pytest.raises(SimulatedTimeout):
            await connection.request(b"abc", timeout_s=10)
        assert connection.is_open
        pair.asker.call_later(5, lambda: pair.network.machine_is_back(2))
        with pytest.raises(Lost):
            await connection.request(b"abc", timeout_s=10)

    pair.run(scenario())


def test_a_connection_keeps_its_order_and_single_requests_do_not() -> None:
    async def ask(request: Callable[[bytes], Coroutine[Any, Any, bytes]]) -> None:
        await asyncio.gather(*(request(b"%d" % number) for number in range(50)))

    pair = Pair(NetworkConditions(min_delay_s=0.0, max_delay_s=1.0))
    pair.run(ask(lambda frame: pair.network.request(1, 2, frame)))
    assert sorted(pair.got, key=int) != pair.got

    async def connected() -> None:
        connection = await pair.network.connect(1, 2)
        pair.got.clear()
        await ask(connection.request)

    pair.run(connected())
    assert pair.got == sorted(pair.got, key=int)


def test_losses_and_duplicates() -> None:
    pair = Pair(NetworkConditions(loss_chance=0.3, duplicate_chance=0.3))

    async def scenario() -> list[bytes | type[ConnectionError]]:
        return await asyncio.gather(
            *(_outcome(pair.network.request(1, 2, b"%d" % number, timeout_s=5)) for number in range(200))
        )

    outcomes = pair.run(scenario())
    assert {type(each) for each in outcomes} == {bytes, type}
    assert len(pair.got) > len(set(pair.got)), "some requests are duplicated"
    assert len(set(pair.got)) < 200, "some requests are lost"


@pytest.mark.parametrize(("link", "arrives"), [((1, 2), False), ((2, 1), True)])
def test_a_partition_of_one_direction(link: tuple[int, int], arrives: bool) -> None:
    """Bytes sent on a connection arrive when the partition has healed; single requests are lost."""
    pair = Pair()

    async def scenario() -> None:
        connection = await pair.network.connect(1, 2)
        pair.network.cut(*link)
        assert await _outcome(pair.network.request(1, 2, b"x", timeout_s=1)) is SimulatedTimeout
        assert bool(pair.got) is arrives
        pair.got.clear()
        pair.asker.call_later(5, pair.network.heal)
        assert await connection.request(b"abc", timeout_s=10) == b"cba"
        assert pair.scheduler.now_s > 5
        assert pair.got == [b"abc"], "no byte on the connection was lost"

    pair.run(scenario())


def test_frames_held_by_a_partition_keep_their_order() -> None:
    pair = Pair(NetworkConditions(min_delay_s=0.0, max_delay_s=1.0))

    async def scenario() -> None:
        connection = await pair.network.connect(1, 2)
        pair.network.cut(1, 2)
        first = [asyncio.ensure_future(connection.request(b"%d" % number)) for number in range(20)]
        await asyncio.sleep(5)
        pair.network.heal()
        await asyncio.gather(*first, *(connection.request(b"%d" % number) for number in range(20, 40)))

    pair.run(scenario())
    assert pair.got == [b"%d" % number for number in range(40)]


def test_connections_that_are_reset() -> None:
    pair = Pair()
    lost: list[int] = []

    async def scenario() -> None:
        connection = await pair.network.connect(1, 2, on_lost=lambda: lost.append(1))
        pair.asker.call_later(1, lambda: pair.network.drop_connections(2))
        assert await _outcome(connection.request(b"slow")) is Lost
        again = await pair.network.connect(1, 2)
        assert await again.request(b"abc") == b"cba"
        assert await _outcome(again.request(b"bad")) is Lost, "a peer that sends invalid bytes is disconnected"

    pair.run(scenario())
    assert lost == [1]


def test_a_paused_process_responds_late() -> None:
    pair = Pair()
    pair.server.pause()
    pair.asker.call_later(7, pair.server.resume)
    assert pair.run(pair.network.request(1, 2, b"abc")) == b"cba"
    assert pair.scheduler.now_s > 7
