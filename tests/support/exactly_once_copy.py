"""Applications that copy a topic exactly once: read, write and commit the positions in one transaction.

Each starts again after any error, as a supervisor would restart it. What it must ensure: the target has every record of
the source once, in the order of its partition.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Final

import confluent_kafka

from fenceline.client import Consumer, Producer
from fenceline.errors import FencelineError

SOURCE: Final = "source"
TARGET: Final = "target"
PARTITIONS: Final = 3
_BATCH: Final = 25


class Copy(threading.Thread):
    """Runs until `stop` is set. `restarts` counts errors that ended a life."""

    def __init__(self, bootstrap: str, name: str) -> None:
        super().__init__(daemon=True, name=name)
        self.bootstrap = bootstrap
        self.stopping = threading.Event()
        self.restarts = 0
        self.commits = 0
        self.errors: list[str] = []

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                self.live()
            except (confluent_kafka.KafkaException, FencelineError) as error:
                self.restarts += 1
                self.errors.append(str(error)[:200])

    def live(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        self.stopping.set()
        self.join(60)
        assert not self.is_alive(), "the copy hangs"


class LibrdkafkaCopy(Copy):
    """confluent-kafka."""

    def live(self) -> None:
        common = {"bootstrap.servers": self.bootstrap, "log_level": 0}
        producer = confluent_kafka.Producer({**common, "transactional.id": self.name, "transaction.timeout.ms": 20_000})
        producer.init_transactions(60)
        consumer = confluent_kafka.Consumer(
            {
                **common,
                "group.id": self.name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "session.timeout.ms": 10_000,
            }
        )
        consumer.subscribe([SOURCE])
        try:
            while not self.stopping.is_set():
                records = [each for each in consumer.consume(_BATCH, 0.5) if each.error() is None]
                if not records:
                    continue
                producer.begin_transaction()
                for record in records:
                    producer.produce(TARGET, record.value(), partition=record.partition())
                producer.send_offsets_to_transaction(
                    consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 60
                )
                producer.commit_transaction(60)
                self.commits += 1
        finally:
            with contextlib.suppress(confluent_kafka.KafkaException):
                consumer.close()


class OwnCopy(Copy):
    """Fenceline's client."""

    def live(self) -> None:
        with (
            Producer(self.bootstrap, transactional_id=self.name, transaction_timeout_ms=20_000) as producer,
            Consumer(
                self.bootstrap,
                group_id=self.name,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                isolation_level="read_committed",
                session_timeout_ms=10_000,
            ) as consumer,
        ):
            producer.init_transactions()
            consumer.subscribe([SOURCE])
            while not self.stopping.is_set():
                records = consumer.poll(0.5)
                if not records:
                    continue
                with producer.transaction():
                    for record in records:
                        producer.send(TARGET, record.value, partition=record.partition)
                    producer.send_offsets_to_transaction(records.next_offsets(), consumer.group_metadata())
                self.commits += 1
