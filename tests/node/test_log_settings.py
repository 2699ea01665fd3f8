"""How a broker's settings configure its logs (`Broker.log_config`, `controller.md C37`)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fenceline.config.node import NodeConfig
from fenceline.log.core.config import DAY_MS, LogConfig
from fenceline.node.broker import Broker

_BROKER, _TOPIC = 4, 2


@pytest.mark.parametrize(
    ("file", "dynamic", "wanted_ms"),
    [
        ({}, {}, DAY_MS),
        ({"producer.id.expiration.ms": "5000"}, {}, 5000),
        ({"producer.id.expiration.ms": "5000"}, {(_BROKER, ""): {"producer.id.expiration.ms": "6000"}}, 6000),
    ],
)
def test_producer_id_expiration_is_a_broker_setting(file: dict[str, str], dynamic: Any, wanted_ms: int) -> None:
    """No topic has such a setting: a state that expires too early accepts a duplicate."""
    broker: Any = SimpleNamespace(
        image=SimpleNamespace(configs={**dynamic, (_TOPIC, "rain"): {"retention.ms": "7"}}),
        config=NodeConfig.load(None, file, {}),
    )
    config = LogConfig.from_mapping(Broker.log_config(broker, "rain"))
    assert (config.producer_id_expiration_ms, config.retention_ms) == (wanted_ms, 7)
