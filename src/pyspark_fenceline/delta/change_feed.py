"""Stale rows of a table with a change data feed (`delta.enableChangeDataFeed`).

Owns the SQL condition by which delta-rs' delete removes exactly the rows that `delta.masks` marks as stale. Whether a
row is stale depends on its partition, epoch and offset alone, so the condition is exact for every file of the table. A
commit that removes complete files, or only adds, needs no condition: readers of the feed derive its changes (Delta
protocol, "Change Data Files"). Pure except for reading the table's properties.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from fenceline.ids import TopicPartition
from pyspark_fenceline.common.log_columns import LEADER_EPOCH, OFFSET, PARTITION, TOPIC
from pyspark_fenceline.common.log_matching import AFTER_ALL, BEFORE_ALL, held_interval
from pyspark_fenceline.delta.masks import EMPTY_LOG, StaleRule

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from pyspark_fenceline.delta.change import Removed

ENABLED: Final = "delta.enableChangeDataFeed"


def has_change_feed(table: DeltaTable) -> bool:
    return table.metadata().configuration.get(ENABLED, "false").lower() == "true"


def delete_condition(rules: Mapping[TopicPartition, StaleRule], removed: Iterable[Removed]) -> str:
    """The stale rows by `rules`, of the partitions and epochs in `removed`."""
    found = sorted({(one.topic, one.partition, one.epoch) for one in removed if one.reason == "stale"})
    parts = []
    for topic, partition, epoch in found:
        rule = rules[TopicPartition(topic, partition)]
        conditions = [f"{TOPIC} = '{topic.replace(chr(39), chr(39) * 2)}'", f"{PARTITION} = {partition}"]
        if rule.log is not EMPTY_LOG:
            conditions += [f"{LEADER_EPOCH} = {epoch}", *_outside(*held_interval(rule.log, epoch))]
        if rule.from_offset > BEFORE_ALL:
            conditions.append(f"{OFFSET} >= {rule.from_offset}")
        parts.append(f"({' AND '.join(conditions)})")
    return " OR ".join(dict.fromkeys(parts))


def _outside(first: int, end: int) -> list[str]:
    below = [f"{OFFSET} < {first}"] if first > BEFORE_ALL else []
    above = [f"{OFFSET} >= {end}"] if end < AFTER_ALL else []
    return [f"({' OR '.join([*below, *above])})"]
