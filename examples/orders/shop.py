"""The story that both services are tested with: a shop places orders while faults occur; none may be forgotten."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from service import GROUP

from fenceline.client import AsyncProducer
from fenceline.testing.applications import StoryWorld, Topic, assert_at_least_once

TOPICS: Final = (Topic("orders"), Topic("payments"))
ORDERS: Final = 10
SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "producer": {"request.timeout.ms": 2000},
    "consumer": {"request.timeout.ms": 2000, "session.timeout.ms": 1500, "heartbeat.interval.ms": 500},
}
"""Shorter than the defaults, so that what they limit happens within seconds."""


async def shop(world: StoryWorld, run: Callable[..., Coroutine[Any, Any, None]]) -> None:
    """Two instances of a service process the orders of a shop."""
    database = world.store("database")
    for number in (1, 2):
        world.start(f"service-{number}", run, world.bootstrap_servers, database, SETTINGS)
    placed = await place_orders(world)
    await world.quiet()
    await world.caught_up(GROUP, "orders")
    recorded = [int(key.removeprefix("order/")) for key in database.content]
    assert_at_least_once(placed, recorded, what="order")
    paid = [json.loads(record.value or b"{}")["order"] for record in await world.records("payments")]
    assert_at_least_once(placed, paid, what="payment")


async def place_orders(world: StoryWorld) -> list[int]:
    """The numbers of the orders that the cluster has acknowledged. Customers come in groups."""
    placed: list[int] = []
    async with AsyncProducer(world.bootstrap_servers, request_timeout_ms=2000, linger_ms=5) as producer:
        while len(placed) < ORDERS:
            group = range(len(placed), min(ORDERS, len(placed) + world.rng.randint(2, 5)))
            deliveries = [await producer.send("orders", *an_order(world, number)) for number in group]
            for number, delivery in zip(group, deliveries, strict=True):
                await delivery
                placed.append(number)
            await asyncio.sleep(world.rng.expovariate(4))
    return placed


def an_order(world: StoryWorld, number: int) -> tuple[bytes, bytes]:
    """Value and key."""
    order = {"number": number, "customer": world.rng.randrange(10), "amount": world.rng.randrange(1, 100)}
    return json.dumps(order).encode(), b"%d" % order["customer"]
