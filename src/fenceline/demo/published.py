"""The aggregate table in a topic, exactly once: what changed in a round is one transaction.

Owns the messages (key: hour and airport; value: the sums as JSON, or none if all flights of the cell are gone), the one
writer that dies before its commit, and the comparison of the topic with the table. Never reads the raw table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fenceline.demo.checks import Check

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from fenceline.demo.aggregate import FlightSums, Hourly, Key
    from pyspark_fenceline.source.exactly_once import ExactlyOnceTopic

TOPIC: Final = "hourly_delays"
PARTITIONS: Final = 2
"""One on each broker that is never isolated."""
_TRANSACTIONAL_ID: Final = "hourly-delays"


class PublishedMessage(NamedTuple):
    key: str
    value: str | None
    """JSON; None: the cell is gone."""


class Publisher:
    """Writes the changed cells of each version. Not thread-safe. Its first version is written by another writer before,
    which dies: the transaction that it leaves open is aborted when this one begins."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._published: dict[Key, str] = {}
        self._sink: ExactlyOnceTopic | None = None
        self.transactions = 0
        """Committed ones."""
        self.records = 0
        """In these."""
        self.left_behind = 0
        """Records of the writer that died."""

    def publish(self, spark: SparkSession, hourly: Hourly) -> None:
        """Returns once the changes since the last call are committed."""
        from pyspark_fenceline import exactly_once

        now = texts_of(hourly)
        changed = changes(self._published, now)
        if not changed:
            return
        if self._sink is None:
            self._die_before_the_commit(changed)
            self._sink = exactly_once(_TRANSACTIONAL_ID, {"topic": TOPIC, "kafka.bootstrap.servers": self._bootstrap})
        self._sink(spark.createDataFrame(_as_table(changed)), hourly.raw_version)
        self._published = now
        self.transactions += 1
        self.records += len(changed)

    def close(self) -> None:
        if self._sink is not None:
            self._sink.close()

    def _die_before_the_commit(self, messages: Sequence[PublishedMessage]) -> None:
        """What a driver has done that dies between its tasks and its commit."""
        from fenceline.client import TransactionOwner, transaction_writer

        with TransactionOwner(self._bootstrap, _TRANSACTIONAL_ID) as owner:
            handle = owner.begin()
            with transaction_writer(self._bootstrap, handle) as producer:
                for message in messages:
                    value = None if message.value is None else message.value.encode()
                    producer.send(TOPIC, key=message.key.encode(), value=value)
        self.left_behind = len(messages)


def _json(cell: FlightSums, raw_version: int) -> str:
    sums = {
        "flights": cell.flights,
        "departure_delay_minutes": cell.departure_delay_minutes,
        "cancelled": cell.cancelled,
    }
    return json.dumps({**sums, "raw_version": raw_version})


def _name(key: Key) -> str:
    hour, origin = key
    return f"{hour:%Y-%m-%dT%H} {origin}"


def _without_version(value: str) -> dict[str, Any]:
    return {name: each for name, each in json.loads(value).items() if name != "raw_version"}


def texts_of(hourly: Hourly) -> dict[Key, str]:
    """The value of each cell's message."""
    return {key: _json(cell, hourly.raw_version) for key, cell in hourly.cells.items()}


def changes(before: dict[Key, str], now: dict[Key, str]) -> list[PublishedMessage]:
    """Cells whose sums differ. `now` keeps the older text of a cell that has not changed."""
    found = [PublishedMessage(_name(key), None) for key in before.keys() - now.keys()]
    for key, value in now.items():
        known = before.get(key)
        if known is not None and _without_version(known) == _without_version(value):
            now[key] = known
        else:
            found.append(PublishedMessage(_name(key), value))
    return sorted(found)


def _as_table(messages: Sequence[PublishedMessage]) -> pa.Table:
    import pyarrow as pa

    return pa.table(
        {
            "key": pa.array([message.key for message in messages], pa.string()),
            "value": pa.array([message.value for message in messages], pa.string()),
        }
    )


# --- the topic against the table ----------------------------------------


@dataclass(frozen=True, slots=True)
class PublishedTopic:
    """What readers of the topic get, in the order of its partitions."""

    committed: Sequence[PublishedMessage]
    """With isolation.level=read_committed."""
    uncommitted: int
    """Number of messages with read_uncommitted."""


def read_topic(bootstrap: str) -> PublishedTopic:
    """Read the topic from start to end, at both isolation levels."""
    return PublishedTopic(
        list(_read(bootstrap, "read_committed")), sum(1 for _ in _read(bootstrap, "read_uncommitted"))
    )


def _read(bootstrap: str, isolation_level: str) -> Iterable[PublishedMessage]:
    from fenceline.client import Consumer, TopicPartition

    partitions = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
    with Consumer(bootstrap, **{"isolation.level": isolation_level, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(where) < ends[where] for where in partitions):
            for record in consumer.poll(500):
                key, value = record.key, record.value
                yield PublishedMessage((key or b"").decode(), None if value is None else value.decode())


def check_published(topic: PublishedTopic, hourly: pa.Table, publisher: Publisher) -> list[Check]:
    """The newest message of each key is the row of the table, and each message is there once."""
    newest: dict[str, dict[str, Any]] = {}
    for message in topic.committed:
        if message.value is None:
            newest.pop(message.key, None)
        else:
            newest[message.key] = _without_version(message.value)
    rows = {_name((row["time_hour"], row["origin"])): row for row in hourly.to_pylist()}
    equal = sum(
        name in newest and all(row[column] == value for column, value in newest[name].items())
        for name, row in rows.items()
    )
    repeated = len(topic.committed) - len(set(topic.committed))
    return [
        Check("rows of the aggregate in its topic", f"{len(rows):,}", f"{equal:,}"),
        Check("keys in the topic without a row", "0", f"{len(newest.keys() - rows.keys()):,}"),
        Check("messages of committed transactions", f"{publisher.records:,}", f"{len(topic.committed):,}"),
        Check("messages that are there twice", "0", f"{repeated:,}"),
        Check(
            "messages of the writer that died, hidden from readers",
            f"{publisher.left_behind:,}",
            f"{min(publisher.left_behind, topic.uncommitted - len(topic.committed)):,}",
        ),
    ]


def describe(publisher: Publisher, topic: PublishedTopic) -> str:
    """For the report."""
    return (
        f"{publisher.transactions:,} transactions wrote {publisher.records:,} changed cells of the aggregate into the"
        f" topic {TOPIC}, exactly once. A writer before them died with {publisher.left_behind:,} messages sent and not"
        f" committed; readers of committed records get {len(topic.committed):,} of the {topic.uncommitted:,} messages."
    )
