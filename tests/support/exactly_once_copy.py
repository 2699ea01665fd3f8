"""Applications that copy a topic exactly once: read, write and commit the positions in one transaction.

Each starts again after any error, as a supervisor would restart it. What it must ensure: the target has every record of
the source once, in the order of its partition.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from typing import ClassVar, Final

import confluent_kafka

from fenceline.client import Consumer, Producer
from fenceline.errors import FencelineError
from fenceline.local_cluster import reaper
from fenceline.testing.apache_kafka import java_command

SOURCE: Final = "source"
TARGET: Final = "target"
PARTITIONS: Final = 3
_BATCH: Final = 25
_SILENT_S: Final = 60.0


class Copy(threading.Thread):
    """Runs until `finish`. `restarts` counts errors that ended a life. The name is also that of its group, and its
    transactional id."""

    longest_gap_s: ClassVar[float] = 90.0
    """Between two commits, whatever happens to the cluster."""

    def __init__(self, bootstrap: str, name: str, source: str = SOURCE, target: str = TARGET) -> None:
        super().__init__(daemon=True, name=name)
        self.bootstrap = bootstrap
        self.source = source
        self.target = target
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

    def on_commit(self) -> None:
        self.commits += 1

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
        consumer.subscribe([self.source])
        try:
            while not self.stopping.is_set():
                records = [each for each in consumer.consume(_BATCH, 0.5) if each.error() is None]
                if not records:
                    continue
                producer.begin_transaction()
                for record in records:
                    producer.produce(self.target, record.value(), partition=record.partition())
                producer.send_offsets_to_transaction(
                    consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 60
                )
                producer.commit_transaction(60)
                self.on_commit()
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
            consumer.subscribe([self.source])
            while not self.stopping.is_set():
                records = consumer.poll(0.5)
                if not records:
                    continue
                with producer.transaction():
                    for record in records:
                        producer.send(self.target, record.value, partition=record.partition)
                    producer.send_offsets_to_transaction(records.next_offsets(), consumer.group_metadata())
                self.on_commit()


class ProcessCopy(Copy):
    """A copier in a process of its own, which prints a line for each commit. One that is silent is killed."""

    longest_gap_s = _SILENT_S + Copy.longest_gap_s
    commit_line: ClassVar[str]
    """In the output once for each commit."""

    def program(self) -> list[str]:
        raise NotImplementedError

    def live(self) -> None:
        process = subprocess.Popen(self.program(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        reaper.watch_process(process.pid)
        heard_s = time.monotonic()
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(1):
                if self.stopping.is_set() or time.monotonic() > heard_s + _SILENT_S:
                    process.kill()

        threading.Thread(target=watch, daemon=True).start()
        last: list[str] = []
        try:
            assert process.stdout is not None
            for line in process.stdout:
                heard_s = time.monotonic()
                self.commits += self.commit_line in line
                last = [*last[-5:], line.strip()]
        finally:
            ended.set()
            process.kill()
            code = process.wait()
            reaper.forget_process(process.pid)
        if code and not self.stopping.is_set():
            self.restarts += 1
            self.errors.append(f"exit code {code}: {' '.join(last)}"[:400])


class JavaCopy(ProcessCopy):
    """The Java client: Kafka's own TransactionalMessageCopier, which ends when it has copied what there was."""

    commit_line = '"stage":"ProcessLoop"'

    def program(self) -> list[str]:
        return java_command(
            "org.apache.kafka.tools.TransactionalMessageCopier",
            *("--broker-list", self.bootstrap, "--input-topic", self.source, "--output-topic", self.target),
            *("--input-partition", "0", "--group-mode", "--use-group-metadata", "--consumer-group", self.name),
            *("--transactional-id", self.name, "--transaction-size", str(_BATCH), "--transaction-timeout", "20000"),
            heap="128m",
        )


class LibrdkafkaProcess(ProcessCopy):
    """confluent-kafka. Its send_offsets_to_transaction may hang for ever while the group's coordinator is away (issues
    5456 and 5511 of librdkafka 2.16): no thread could be ended then."""

    commit_line = "committed"

    def program(self) -> list[str]:
        return [sys.executable, "-m", __name__, self.bootstrap, self.name, self.source, self.target]


def committed(bootstrap: str, topic: str) -> dict[int, list[int]]:
    """What a READ_COMMITTED reader finds, by partition."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "check",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    found: dict[int, list[int]] = {index: [] for index in range(PARTITIONS)}
    at_end: set[int] = set()
    while len(at_end) < PARTITIONS:
        message = consumer.poll(60)
        assert message is not None, f"{topic}: nothing is read any more, at {found.keys() - at_end}"
        if message.error() is None:
            found[message.partition()].append(int(message.value()))
        elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
            at_end.add(message.partition())
    consumer.close()
    return found


class _Printing(LibrdkafkaCopy):
    def on_commit(self) -> None:
        print(LibrdkafkaProcess.commit_line, flush=True)


if __name__ == "__main__":
    _Printing(*sys.argv[1:]).live()
