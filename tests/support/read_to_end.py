"""Reads partitions from their start to the end at an isolation level."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from fenceline.client import Admin, Consumer, ConsumerRecord, TopicPartition

MOST_S = 60


def read_to_end(
    bootstrap: str, partitions: Sequence[TopicPartition], isolation_level: str = "read_committed"
) -> list[ConsumerRecord]:
    """All records up to the log end, in the order of each partition.

    With `read_committed` no transaction may be open. EndTxn is answered before its markers are written (X18), so the
    last stable offset may still lie below records of a transaction that has ended: this waits for the markers.
    """
    with Admin(bootstrap) as admin:
        ends = admin.list_offsets(dict.fromkeys(partitions, "latest"))
    return _read(bootstrap, {tp: end.offset for tp, end in ends.items()}, isolation_level)


def read_stable(bootstrap: str, partitions: Sequence[TopicPartition]) -> list[ConsumerRecord]:
    """The committed records up to the last stable offset, in the order of each partition. Those of a transaction that
    has ended may be missing, in some partitions or in all."""
    with Admin(bootstrap) as admin:
        ends = admin.list_offsets(dict.fromkeys(partitions, "latest"), isolation_level="read_committed")
    return _read(bootstrap, {tp: end.offset for tp, end in ends.items()}, "read_committed")


def _read(bootstrap: str, ends: Mapping[TopicPartition, int], isolation_level: str) -> list[ConsumerRecord]:
    config = {"isolation.level": isolation_level, "auto.offset.reset": "earliest"}
    found: list[ConsumerRecord] = []
    with Consumer(bootstrap, **config) as consumer:
        consumer.assign(list(ends))
        end_s = time.monotonic() + MOST_S
        while any(consumer.position(where) < end for where, end in ends.items()):
            assert time.monotonic() < end_s, "the end was not reached"
            found += consumer.poll(200)
    return found
