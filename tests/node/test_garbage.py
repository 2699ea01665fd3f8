"""What a node drops is freed without the garbage collector, which does not look at old objects."""

from __future__ import annotations

import asyncio
import gc
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from weakref import WeakSet

import pytest

from fenceline.client.admin.async_admin import AsyncAdmin, NewTopic
from fenceline.config.node import NodeConfig
from fenceline.node.broker import Broker
from fenceline.node.garbage import LONG_S, SurvivorsSetAside, free_in_parts

LIVES = 12


class _Walks:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.frozen = 0
        self.callback = SurvivorsSetAside(now_s=lambda: self.now_s, freeze=self._freeze)

    def _freeze(self) -> None:
        self.frozen += 1

    def walk(self, generation: int, took_s: float) -> None:
        self.callback("start", {"generation": generation})
        self.now_s += took_s
        self.callback("stop", {"generation": generation, "collected": 0, "uncollectable": 0})


def test_survivors_of_a_long_walk_are_set_aside() -> None:
    walks = _Walks()
    walks.walk(2, LONG_S / 2)
    assert walks.frozen == 0
    walks.walk(2, LONG_S * 2)
    assert walks.frozen == 1


def test_younger_generations_are_never_set_aside() -> None:
    walks = _Walks()
    walks.walk(0, LONG_S * 2)
    walks.walk(1, LONG_S * 2)
    assert walks.frozen == 0


@pytest.fixture
def uncollected() -> Iterator[list[object]]:
    """Fills with the objects that only the collector can free, from `gc.set_debug` on."""
    gc.collect()
    gc.disable()
    try:
        yield gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_what_ends_is_in_no_cycle(tmp_path: Path, uncollected: list[object]) -> None:
    """Topics with records, connections, a waiting fetch, refused requests: of nothing that ends in each of these lives
    is an object left for each of them."""

    async def run() -> None:
        settings = {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0", "file.delete.delay.ms": "0"}
        broker = Broker(NodeConfig.load(None, settings, {}))
        await broker.start()
        try:
            port = broker.endpoints[0].port
            for number in range(3):
                await _life(broker, port, number)
            gc.collect()
            gc.set_debug(gc.DEBUG_SAVEALL)
            for number in range(LIVES):
                await _life(broker, port, 100 + number)
            gc.collect()
        finally:
            await broker.stop()

    asyncio.run(run())
    left = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in uncollected)
    # A flush that meets a topic's deletion may leave its error, and what that refers to.
    assert not {name: count for name, count in left.items() if "fenceline" in name and count >= LIVES}
    assert len(uncollected) < 200 * LIVES


async def _life(broker: Broker, port: int, number: int) -> None:
    topic = f"topic-{number}"
    async with AsyncAdmin({"bootstrap.servers": f"127.0.0.1:{port}"}) as admin:
        await admin.create_topics([NewTopic(topic, 3, 1)])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        name = struct.pack(">h", len(topic)) + topic.encode()
        fetch = struct.pack(">iiiibi", -1, 60_000, 1, 1 << 20, 0, 1) + name + struct.pack(">iiqi", 1, 0, 0, 1 << 20)
        writer.write(_framed(1, 4, fetch))
        await _until(lambda: broker.metrics.parked_fetches == 1)
        writer.close()
        await _until(lambda: broker.metrics.parked_fetches == 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_framed(99, 0, b""))
        assert not await reader.read(), "an unknown request ends its connection"
        writer.close()
        await admin.delete_topics([topic])


def _framed(key: int, version: int, body: bytes) -> bytes:
    request = struct.pack(">hhih", key, version, 7, -1) + body
    return struct.pack(">i", len(request)) + request


async def _until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def test_many_objects_are_freed_in_several_turns() -> None:
    class Counted:
        pass

    async def story() -> list[int]:
        objects = [Counted() for _ in range(1_200)]
        alive = WeakSet(objects)
        free_in_parts(objects)
        objects = []
        counts = [len(alive)]
        while alive:
            await asyncio.sleep(0)
            counts.append(len(alive))
        return counts

    assert asyncio.run(story()) == [700, 200, 0]
