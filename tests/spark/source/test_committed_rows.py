"""Sources with `isolation.level=read_committed`: every committed row once, and a lag that says how far behind they are,
whatever markers, aborted and open transactions lie between. On a node of each kind.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from fenceline.client import Producer
from pyspark_fenceline import lag_of
from tests.spark.conftest import Broker
from tests.spark.queries import batch, drain, rows, stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(300)]
PARTITIONS = 2
TRANSACTIONS = 40
COMMITTED = {"kafka.isolation.level": "read_committed"}


class Written(NamedTuple):
    """Partition, offset and value of records."""

    committed: list[tuple[int, int, bytes]]
    """Before the open transaction."""
    behind: list[tuple[int, int, bytes]]
    """Those of the open transaction, and committed ones behind it in its partition."""
    aborted: int
    open_one: Producer


def send(producer: Producer, topic: str, partition: int, value: bytes) -> tuple[int, int, bytes]:
    sent = producer.send(topic, value=value, partition=partition).result()
    return sent.partition, sent.offset, value


def write(broker: Broker, topic: str) -> Written:
    rng = random.Random(0)
    producers = [Producer(broker.bootstrap, **{"transactional.id": f"{topic}-{number}"}) for number in range(3)]
    for producer in producers:
        producer.init_transactions()
    committed: list[tuple[int, int, bytes]] = []
    aborted = 0
    begun: dict[Producer, list[tuple[int, int, bytes]]] = {}
    for number in range(TRANSACTIONS):
        producer = rng.choice(producers)
        if producer not in begun:
            producer.begin_transaction()
            begun[producer] = []
        for _ in range(rng.randint(1, 4)):
            begun[producer].append(send(producer, topic, rng.randrange(PARTITIONS), b"%d" % number))
        if rng.random() < 0.7:
            sent = begun.pop(producer)
            if rng.random() < 0.5:
                producer.commit_transaction()
                committed += sent
            else:
                producer.abort_transaction()
                aborted += len(sent)
    for producer, sent in begun.items():
        producer.commit_transaction()
        committed += sent
    open_one, other, idle = producers
    idle.close()
    open_one.begin_transaction()
    behind = [send(open_one, topic, 0, b"open")]
    other.begin_transaction()
    behind += [send(other, topic, 0, b"behind") for _ in range(3)]
    committed.append(send(other, topic, 1, b"last"))
    other.commit_transaction()
    other.close()
    return Written(committed, behind, aborted, open_one)


def test_every_committed_row_is_read_once(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create(topic, PARTITIONS)
    written = write(broker, topic)
    frame = batch(spark, broker.bootstrap, topic, **COMMITTED)
    found = [(row.partition, row.offset, bytes(row.value)) for row in frame.collect()]
    assert sorted(found) == sorted(written.committed)
    assert frame.count() == len(written.committed)
    everything = batch(spark, broker.bootstrap, topic)
    assert everything.count() == len(written.committed) + len(written.behind) + written.aborted

    table, checkpoint = str(tmp_path / "table"), str(tmp_path / "checkpoint")
    limited = {**COMMITTED, "maxOffsetsPerTrigger": 7}
    query = drain(stream(spark, broker.bootstrap, topic, **limited), table, checkpoint)
    assert rows(table) == sorted(written.committed)
    reports = query.recentProgress
    assert len(reports) > TRANSACTIONS // 4
    assert sum(each["numInputRows"] for each in reports) == len(written.committed)
    assert lag_of(reports[-1]).maximum == 0, "what is not decided is not behind"

    written.open_one.commit_transaction()
    written.open_one.close()
    query = drain(stream(spark, broker.bootstrap, topic, **limited), table, checkpoint)
    assert rows(table) == sorted(written.committed + written.behind)
    assert sum(each["numInputRows"] for each in query.recentProgress) == len(written.behind)
    assert lag_of(query.recentProgress[-1]).maximum == 0
