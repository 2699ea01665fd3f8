"""auto.offset.reset=by_duration (KIP-1106) on real brokers."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from fenceline.client import Admin, Consumer, Producer
from fenceline.ids import TopicPartition

HOUR_MS = 3_600_000


@pytest.fixture
def filled(bootstrap: str, make_topic: Callable[..., str]) -> TopicPartition:
    """Records of the last ten hours, one an hour, the newest half an hour old."""
    topic = make_topic(retention_ms="-1")
    now_ms = int(time.time() * 1000)
    with Producer(bootstrap) as producer:
        for hour in range(10, 0, -1):
            producer.send(topic, b"%d" % hour, timestamp_ms=now_ms - hour * HOUR_MS + HOUR_MS // 2).result(60)
    return TopicPartition(topic, 0)


@pytest.mark.parametrize(("duration", "offset"), [("PT3H", 7), ("P1D", 0), ("PT0S", 10), ("P30000D", 0)])
def test_a_consumer_without_an_offset_starts_at_the_duration(
    bootstrap: str, filled: TopicPartition, duration: str, offset: int
) -> None:
    """At the end if no record is as new."""
    with Consumer(bootstrap, auto_offset_reset=f"by_duration:{duration}") as consumer:
        consumer.assign([filled])
        assert consumer.position(filled) == offset


def test_an_offset_out_of_range_is_reset_to_the_duration(bootstrap: str, filled: TopicPartition, admin: Admin) -> None:
    with Consumer(bootstrap, auto_offset_reset="by_duration:PT4H") as consumer:
        consumer.assign([filled])
        consumer.seek(filled, 1_000)
        found: list[int] = []
        while len(found) < 4:
            found += [record.offset for record in consumer.poll(200)]
    assert found == [6, 7, 8, 9]
