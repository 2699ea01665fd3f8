"""How a broker's settings configure its logs (`Broker.log_config`, `controller.md C37`)."""

from __future__ import annotations

from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from fenceline.config.node import NodeConfig
from fenceline.ids import TopicPartition
from fenceline.log.core.config import DAY_MS, LogConfig
from fenceline.log.core.disk import OsDisk
from fenceline.log.directories.log_dir import LogDir
from fenceline.node.broker import Broker
from fenceline.node.storage.directories import draws_of
from fenceline.records.build import build_batch

_BROKER, _TOPIC = 4, 2


def test_segments_draw_their_share_of_the_jitter(tmp_path: Path) -> None:
    """Logs that began together do not all roll in the same second."""
    (tmp_path / "meta.properties").write_text(
        "version=1\ncluster.id=AAAAAAAAQACAAAAAAAAAAA\nnode.id=4\ndirectory.id=mAElyxrEQ3mw_ELWKg5Mow\n"
    )
    draws = draws_of(str(tmp_path), Random(7))
    log_dir = LogDir.open(str(tmp_path), OsDisk(), cluster_id="AAAAAAAAQACAAAAAAAAAAA", node_id=4, draws=draws)
    config = LogConfig(segment_ms=10_000, segment_jitter_ms=5_000)
    drawn = set()
    for index in range(20):
        log = log_dir.partition(TopicPartition("rain", index), None, config)
        log.append_as_leader(memoryview(bytearray(build_batch([(0, None, b"v", ())]))), leader_epoch=0, now_ms=0)
        drawn.add(log.segments[0].jitter_ms)
    log_dir.close(clean=False)
    assert len(drawn) > 10
    assert 0 <= min(drawn) <= max(drawn) < 5_000


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
