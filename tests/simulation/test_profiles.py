"""The profiles of the scenarios of clusters with data, and machines that receive messages late."""

from __future__ import annotations

import asyncio

from fenceline.testing.simulation.options import Options
from fenceline.testing.simulation.sockets import Sockets
from fenceline.testing.simulation.stage import options_of, play
from fenceline.testing.simulation.world import World

_PROFILES = {"mixed", "leaders", "unclean", "tails", "returns", "room"}


def test_each_profile_is_drawn() -> None:
    drawn = [options_of(seed, "brokers").profile for seed in range(200)]
    assert set(drawn) == _PROFILES
    assert drawn == [options_of(seed, "brokers").profile for seed in range(200)]


def _first(profile: str) -> int:
    return next(seed for seed in range(1000) if options_of(seed, "brokers").profile == profile)


def _struck_in(profile: str) -> dict[str, int]:
    outcome = play(_first(profile), "brokers")
    assert outcome.failure is None, outcome.report()
    return outcome.struck


def test_followers_return_at_once() -> None:
    assert _struck_in("returns")["quick return"] > 1


def test_leaders_are_stranded() -> None:
    assert _struck_in("unclean")["stranded"] > 0


def test_machines_receive_messages_late() -> None:
    assert _struck_in("leaders")["lag"] > 1


class _Echo(asyncio.Protocol):
    """Sends back what it receives."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        assert isinstance(self.transport, asyncio.Transport)
        self.transport.write(data)


class _Receiver(asyncio.Protocol):
    """Records when a response arrived."""

    def __init__(self) -> None:
        self.answered = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.answered.set()


async def _answer_s(world: World, transport: asyncio.Transport, waits: _Receiver) -> float:
    waits.answered.clear()
    asked_s = world.scheduler.now_s
    transport.write(b"?")
    await waits.answered.wait()
    return world.scheduler.now_s - asked_s


def test_a_link_that_lags_is_late_one_way_and_on_its_port() -> None:
    world = World(1, Options(max_delay_ms=1.0))
    sockets = Sockets(world)

    async def look() -> list[float]:
        listener = await sockets.of(2).listen(world.loop, _Echo, 9092)
        await listener.start_serving()
        transport, waits = await sockets.of(1).connect(world.loop, _Receiver, "n2", 9092)
        took_s = [await _answer_s(world, transport, waits)]
        world.network.lag(2, 1, 9092, 0.5)
        world.network.lag(1, 2, 9093, 3.0)
        took_s.append(await _answer_s(world, transport, waits))
        world.network.heal()
        took_s.append(await _answer_s(world, transport, waits))
        return took_s

    before_s, late_s, after_s = world.loop.run_until_complete(look())
    assert before_s < 0.01
    assert 0.5 < late_s < 0.51
    assert after_s < 0.01
