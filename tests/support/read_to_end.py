"""Reads partitions from their start to the end at an isolation level."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fenceline.client import Consumer, ConsumerRecord, TopicPartition

MOST_S = 60


def read_to_end(
    bootstrap: str, partitions: Sequence[TopicPartition], isolation_level: str = "read_committed"
) -> list[ConsumerRecord]:
    """In the order of each partition; with `read_committed` up to the last stable offset."""
    config = {"isolation.level": isolation_level, "auto.offset.reset": "earliest"}
    found: list[ConsumerRecord] = []
    with Consumer(bootstrap, **config) as consumer:
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        end_s = time.monotonic() + MOST_S
        while any(consumer.position(where) < ends[where] for where in partitions):
            assert time.monotonic() < end_s, "the end was not reached"
            found += consumer.poll(200)
    return found
