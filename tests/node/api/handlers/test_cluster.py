from __future__ import annotations

import asyncio
from typing import Any

from fenceline.metadata.image import Endpoint
from fenceline.wire.apis import ApiKey
from tests.node.api.handlers.fakes import FakeBroker, ask, broker_image, image_of


def describe(version: int, listener: str = "PLAINTEXT", **fields: Any) -> Any:
    brokers = (
        broker_image(3),
        broker_image(1, fenced=True),
        broker_image(2, rack="r", endpoints=(Endpoint("INSIDE", "in", 1, 0),)),
    )
    broker = FakeBroker(image_of([], brokers))
    return asyncio.run(ask(broker, ApiKey.DESCRIBE_CLUSTER, version, listener, **fields))


def test_live_brokers_of_the_listener() -> None:
    assert [each.broker_id for each in describe(1).brokers] == [3]
    assert [(each.broker_id, each.host, each.rack) for each in describe(1, "INSIDE").brokers] == [(2, "in", "r")]


def test_fenced_brokers_are_listed_only_on_request() -> None:
    reported = describe(2, include_fenced_brokers=True).brokers
    assert [(each.broker_id, each.is_fenced) for each in reported] == [(1, True), (3, False)]
    assert [each.broker_id for each in describe(2).brokers] == [3]


def test_the_controller_is_a_live_broker() -> None:
    assert describe(1).controller_id == 2
