"""Producers and consumers of several makes that record what they did in a history.

Owns the threads. Every producer has acks=all, is idempotent unless it is told otherwise, and waits for minutes before
it gives a record up; every consumer starts at the beginning, takes no reset for an answer, and goes back to where a
truncation has cut when its client tells it so. Nothing here asserts.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import confluent_kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AiokafkaPartition
from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka import KafkaError, Message
from kafka.errors import KafkaError as KafkaPythonError
from kafka.errors import LogTruncationError as KafkaPythonTruncation

from fenceline.client import Consumer as OwnConsumer
from fenceline.client import LogTruncationError, TopicPartition
from fenceline.client import Producer as OwnProducer
from fenceline.client.delivery import RecordMetadata
from fenceline.errors import FencelineError
from fenceline.testing.history import History
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaPythonPartition

GIVES_UP_MS: Final = 300_000
_TICK_S: Final = 0.02
_MOST_OUTSTANDING: Final = 5_000
_CLOSE_WAIT_S: Final = 320


@contextmanager
def quiet_clients() -> Iterator[None]:
    """Without what clients say of every broken connection."""
    loggers = [logging.getLogger(name) for name in ("kafka", "aiokafka", "fenceline.client")]
    before = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.CRITICAL)
    yield
    for each, level in zip(loggers, before, strict=True):
        each.setLevel(level)


class Sender(threading.Thread, ABC):
    """Sends its own numbers to all partitions in turn, so many a second, until `finish`."""

    def __init__(
        self,
        bootstrap: str,
        history: History,
        topic: str,
        partitions: int,
        per_second: int,
        *,
        is_idempotent: bool = True,
    ) -> None:
        super().__init__(name=type(self).__name__, daemon=True)
        self._servers, self._is_idempotent = bootstrap, is_idempotent
        self._topic, self._partitions, self._per_second = topic, partitions, per_second
        self._history = history.producer(self.name, is_idempotent=is_idempotent)
        self._is_over = threading.Event()
        self.failure: BaseException | None = None
        self.given_up: list[str] = []
        """Records that were neither acknowledged nor certainly not written, and why."""
        self.sent = 0
        self.settled = 0
        self.settled_of = [0] * partitions
        self.longest_gap_s = 0.0
        """Between two acknowledgements, with something to acknowledge."""
        self._last_settled = time.monotonic()

    def finish(self) -> None:
        """Send no more, and wait until each record is settled."""
        self._is_over.set()
        self.join(_CLOSE_WAIT_S)
        assert not self.is_alive(), f"{self.name} does not end: {self.settled} of {self.sent} settled"
        if self.failure is not None:
            raise self.failure

    def run(self) -> None:
        try:
            self._open()
            begin = time.monotonic()
            while not self._is_over.is_set():
                due = int((time.monotonic() - begin) * self._per_second)
                room = _MOST_OUTSTANDING - (self.sent - self.settled)
                if room <= 0:
                    begin += _TICK_S  # what is not sent now is not made up for
                for _ in range(min(due - self.sent, room)):
                    self._send_next()
                self._pump(_TICK_S)
            self._drain()
        except BaseException as failure:
            self.failure = failure

    def _send_next(self) -> None:
        if self.sent == self.settled:
            self._last_settled = time.monotonic()
        partition, value = self.sent % self._partitions, self._history.next_value()
        self._history.sent((self._topic, partition), value)
        self.sent += 1
        self._send(partition, value, b"%d" % value)

    def _settle(self, partition: int, value: int, offset: int, error: object) -> None:
        """Its answer came. One thread at a time."""
        self.settled += 1
        self.settled_of[partition] += 1
        now = time.monotonic()
        self.longest_gap_s = max(self.longest_gap_s, now - self._last_settled)
        self._last_settled = now
        if error is None:
            self._history.acknowledged((self._topic, partition), value, offset)
        else:
            self.given_up.append(f"{self.name}: {value}: {error}")

    @abstractmethod
    def _open(self) -> None: ...
    @abstractmethod
    def _send(self, partition: int, value: int, body: bytes) -> None: ...
    @abstractmethod
    def _pump(self, wait_s: float) -> None:
        """Take answers, for about so long."""

    @abstractmethod
    def _drain(self) -> None:
        """Until all answers came, and close."""


class LibrdkafkaSender(Sender):
    def _open(self) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self._servers,
                "enable.idempotence": self._is_idempotent,
                "acks": "all",
                "linger.ms": 5,
                "delivery.timeout.ms": GIVES_UP_MS,
                "socket.timeout.ms": 10_000,
                "log_level": 0,
            }
        )

    def _send(self, partition: int, value: int, body: bytes) -> None:
        def told(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            self._settle(partition, value, -1 if offset is None else offset, error)

        self._producer.produce(self._topic, body, partition=partition, on_delivery=told)

    def _pump(self, wait_s: float) -> None:
        end = time.monotonic() + wait_s
        while (left_s := end - time.monotonic()) > 0:
            self._producer.poll(left_s)

    def _drain(self) -> None:
        self._producer.flush(GIVES_UP_MS / 1000)


class OwnSender(Sender):
    def _open(self) -> None:
        self._producer = OwnProducer(
            {
                "bootstrap.servers": self._servers,
                "acks": "all",
                "enable.idempotence": self._is_idempotent,
                "delivery.timeout.ms": GIVES_UP_MS,
                "request.timeout.ms": 10_000,
            }
        )

    def _send(self, partition: int, value: int, body: bytes) -> None:
        def told(metadata: RecordMetadata | None, error: Exception | None) -> None:
            self._settle(partition, value, metadata.offset if metadata is not None else -1, error)

        self._producer.send(self._topic, body, partition=partition, on_delivery=told)

    def _pump(self, wait_s: float) -> None:
        time.sleep(wait_s)

    def _drain(self) -> None:
        self._producer.close()


class KafkaPythonSender(Sender):
    def _open(self) -> None:
        self._producer = KafkaProducer(
            bootstrap_servers=self._servers.split(","),
            acks="all",
            enable_idempotence=self._is_idempotent,
            linger_ms=5,
            delivery_timeout_ms=GIVES_UP_MS,
            request_timeout_ms=10_000,
            max_block_ms=GIVES_UP_MS,
        )

    def _send(self, partition: int, value: int, body: bytes) -> None:
        future = self._producer.send(self._topic, body, partition=partition)
        future.add_callback(lambda metadata: self._settle(partition, value, metadata.offset, None))
        future.add_errback(lambda error: self._settle(partition, value, -1, error))

    def _pump(self, wait_s: float) -> None:
        time.sleep(wait_s)

    def _drain(self) -> None:
        self._producer.flush(GIVES_UP_MS / 1000)
        self._producer.close(10)


class AiokafkaSender(Sender):
    """It does not say where a record is that a broker had already (offset -1), and sends a batch until it gives up."""

    def _open(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._begin())

    async def _begin(self) -> None:
        self._producer = AIOKafkaProducer(
            bootstrap_servers=self._servers.split(","),
            acks="all",
            enable_idempotence=self._is_idempotent,
            linger_ms=5,
            request_timeout_ms=GIVES_UP_MS,
            metadata_max_age_ms=10_000,
        )
        await self._producer.start()

    def _send(self, partition: int, value: int, body: bytes) -> None:
        async def send() -> None:
            future = await self._producer.send(self._topic, body, partition=partition)
            future.add_done_callback(told)

        def told(future: asyncio.Future[Any]) -> None:
            error = future.exception()
            self._settle(partition, value, -1 if error is not None else future.result().offset, error)

        self._loop.run_until_complete(send())

    def _pump(self, wait_s: float) -> None:
        self._loop.run_until_complete(asyncio.sleep(wait_s))

    def _drain(self) -> None:
        self._loop.run_until_complete(self._producer.stop())
        self._loop.close()


class Reader(threading.Thread, ABC):
    """Reads all partitions from their beginning, until it has reached the ends that `finish` names."""

    def __init__(self, bootstrap: str, history: History, topic: str, partitions: int) -> None:
        super().__init__(name=type(self).__name__, daemon=True)
        self._servers, self._topic, self._partitions = bootstrap, topic, partitions
        self._history = history.consumer(self.name)
        self._ends: dict[int, int] | None = None
        self._is_given_up = threading.Event()
        self.positions = dict.fromkeys(range(partitions), 0)
        self.failure: BaseException | None = None
        self.troubles: list[str] = []
        """What the client reported that is no record, and not a broken connection."""
        self.truncations = 0
        """How often the client said that what it had read was cut off."""

    def finish(self, ends: dict[int, int], wait_s: float = 120) -> None:
        self._ends = ends
        self.join(wait_s)
        self._is_given_up.set()
        self.join()
        if self.failure is not None:
            raise self.failure
        behind = {index: (self.positions[index], end) for index, end in ends.items() if self.positions[index] != end}
        assert not behind, f"{self.name} does not get on: position and end are {behind}"

    def run(self) -> None:
        try:
            for partition in range(self._partitions):
                self._history.positioned((self._topic, partition), 0)
            self._open()
            while not self._is_given_up.is_set() and not self._is_done():
                for partition, offset, body in self._poll():
                    self._history.polled((self._topic, partition), offset, int(body))
                    self.positions[partition] = offset + 1
            self._close()
        except BaseException as failure:
            self.failure = failure

    def _is_done(self) -> bool:
        ends = self._ends
        return ends is not None and all(self.positions[index] == end for index, end in ends.items())

    def _go_back(self, partition: int, offset: int) -> None:
        """It was told that the log was cut here."""
        self.truncations += 1
        self._history.positioned((self._topic, partition), offset)
        self.positions[partition] = offset

    @abstractmethod
    def _open(self) -> None: ...
    @abstractmethod
    def _poll(self) -> Iterable[tuple[int, int, bytes]]:
        """Partition, offset, value of what came within a moment."""

    @abstractmethod
    def _close(self) -> None: ...


class LibrdkafkaReader(Reader):
    def _open(self) -> None:
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": f"unused-{self.name}",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "check.crcs": True,
                "socket.timeout.ms": 10_000,
                "log_level": 0,
            }
        )
        self._consumer.assign(
            [confluent_kafka.TopicPartition(self._topic, each, 0) for each in range(self._partitions)]
        )

    def _poll(self) -> Iterable[tuple[int, int, bytes]]:
        for message in self._consumer.consume(500, 0.2):
            error = message.error()
            if error is not None:
                if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION):
                    self.troubles.append(str(error))
                continue
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None
            assert offset is not None
            assert value is not None
            yield partition, offset, value

    def _close(self) -> None:
        self._consumer.close()


class OwnReader(Reader):
    def _open(self) -> None:
        self._consumer = OwnConsumer({"bootstrap.servers": self._servers, "auto.offset.reset": "none"})
        wanted = [TopicPartition(self._topic, each) for each in range(self._partitions)]
        self._consumer.assign(wanted)
        for each in wanted:
            self._consumer.seek(each, 0)

    def _poll(self) -> Iterable[tuple[int, int, bytes]]:
        try:
            records = self._consumer.poll(200)
        except LogTruncationError as error:
            self._consumer.seek(
                TopicPartition(error.topic, error.partition), error.divergent_offset, error.divergent_epoch
            )
            self._go_back(error.partition, error.divergent_offset)
            return
        except FencelineError as error:
            self.troubles.append(repr(error))
            time.sleep(0.2)
            return
        for record in records:
            assert record.value is not None
            yield record.partition, record.offset, bytes(record.value)

    def _close(self) -> None:
        self._consumer.close()


class KafkaPythonReader(Reader):
    def _open(self) -> None:
        self._consumer = KafkaConsumer(
            bootstrap_servers=self._servers.split(","),
            auto_offset_reset="none",
            enable_auto_commit=False,
            request_timeout_ms=10_000,
        )
        wanted = [KafkaPythonPartition(self._topic, each) for each in range(self._partitions)]
        self._consumer.assign(wanted)
        for each in wanted:
            self._consumer.seek(each, 0)

    def _poll(self) -> Iterable[tuple[int, int, bytes]]:
        try:
            found = self._consumer.poll(timeout_ms=200)
        except KafkaPythonTruncation as error:
            for partition, divergent in error.divergent_offsets.items():
                self._consumer.seek(partition, divergent.offset)
                self._go_back(partition.partition, divergent.offset)
            return
        except KafkaPythonError as error:
            self.troubles.append(repr(error))
            time.sleep(0.2)
            return
        for record in itertools.chain.from_iterable(found.values()):
            yield record.partition, record.offset, record.value

    def _close(self) -> None:
        self._consumer.close()


class AiokafkaReader(Reader):
    def _open(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._begin())

    async def _begin(self) -> None:
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=self._servers.split(","),
            auto_offset_reset="none",
            enable_auto_commit=False,
            request_timeout_ms=10_000,
        )
        await self._consumer.start()
        wanted = [AiokafkaPartition(self._topic, each) for each in range(self._partitions)]
        self._consumer.assign(wanted)
        for each in wanted:
            self._consumer.seek(each, 0)

    def _poll(self) -> Iterable[tuple[int, int, bytes]]:
        try:
            found = self._loop.run_until_complete(self._consumer.getmany(timeout_ms=200))
        except AiokafkaError as error:
            self.troubles.append(repr(error))
            time.sleep(0.2)
            return
        for record in itertools.chain.from_iterable(found.values()):
            yield record.partition, record.offset, record.value

    def _close(self) -> None:
        self._loop.run_until_complete(self._consumer.stop())
        self._loop.close()
