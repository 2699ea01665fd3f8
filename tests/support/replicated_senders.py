"""Producers of several makes that record in a history what they send and what they are told.

Every one has acks=all, is idempotent unless configured otherwise, and waits for minutes before it gives a record up.
Nothing here judges.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import abstractmethod
from typing import Any, Final

import confluent_kafka
from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaError, Message

from fenceline.client import Producer as OwnProducer
from fenceline.client.producer.delivery import RecordMetadata
from fenceline.testing.history import History
from fenceline.testing.waiting import eventually
from kafka import KafkaProducer
from tests.support.client_threads import ClientThread

GIVES_UP_MS: Final = 300_000
_TICK_S: Final = 0.02
_MOST_OUTSTANDING: Final = 5_000
_CLOSE_WAIT_S: Final = 320


class Sender(ClientThread):
    """Sends its own numbers to all partitions in turn, so many a second, until `finish`; what it could not
    send for want of answers is made up for."""

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
        super().__init__(bootstrap)
        self._is_idempotent = is_idempotent
        self._topic, self._partitions, self._per_second = topic, partitions, per_second
        self._history = history.producer(self.name, is_idempotent=is_idempotent)
        self._is_over = threading.Event()
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
        self.end(_CLOSE_WAIT_S)

    def __str__(self) -> str:
        return f"{self.name}: {self.settled} of {self.sent} settled, longest gap {self.longest_gap_s:.1f} s"

    def await_more(self, count: int) -> None:
        """Until so many more records of each partition are settled."""
        wanted = [each + count for each in self.settled_of]

        def look() -> bool:
            if self.failure is not None:
                raise self.failure
            return all(now >= least for now, least in zip(self.settled_of, wanted, strict=True))

        eventually(look, f"{count} more of each partition are acknowledged", wait_s=120)

    def _live(self) -> None:
        self._open()
        begin = time.monotonic()
        while not self._is_over.is_set():
            due = int((time.monotonic() - begin) * self._per_second)
            room = _MOST_OUTSTANDING - (self.sent - self.settled)
            for _ in range(min(due - self.sent, room)):
                self._send_next()
            self._pump(_TICK_S)
        self._drain()

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

    def _settings(self) -> dict[str, Any]:
        """With Kafka's own names."""
        return {
            "bootstrap.servers": self._servers,
            "acks": "all",
            "enable.idempotence": self._is_idempotent,
            "delivery.timeout.ms": GIVES_UP_MS,
        }

    def _pythonic(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": self._servers.split(","),
            "acks": "all",
            "enable_idempotence": self._is_idempotent,
            "linger_ms": 5,
        }

    @abstractmethod
    def _open(self) -> None: ...
    @abstractmethod
    def _send(self, partition: int, value: int, body: bytes) -> None: ...
    def _pump(self, wait_s: float) -> None:
        """Take answers, for about so long."""
        time.sleep(wait_s)

    @abstractmethod
    def _drain(self) -> None:
        """Until all answers came, and close."""


class LibrdkafkaSender(Sender):
    def _open(self) -> None:
        self._producer = confluent_kafka.Producer(
            self._settings() | {"linger.ms": 5, "socket.timeout.ms": 10_000, "log_level": 0}
        )

    def _send(self, partition: int, value: int, body: bytes) -> None:
        def reported(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            self._settle(partition, value, -1 if offset is None else offset, error)

        self._producer.produce(self._topic, body, partition=partition, on_delivery=reported)

    def _pump(self, wait_s: float) -> None:
        end = time.monotonic() + wait_s
        while (left_s := end - time.monotonic()) > 0:
            self._producer.poll(left_s)

    def _drain(self) -> None:
        self._producer.flush(GIVES_UP_MS / 1000)


class OwnSender(Sender):
    def _open(self) -> None:
        self._producer = OwnProducer(self._settings() | {"request.timeout.ms": 10_000})

    def _send(self, partition: int, value: int, body: bytes) -> None:
        def reported(metadata: RecordMetadata | None, error: Exception | None) -> None:
            self._settle(partition, value, metadata.offset if metadata is not None else -1, error)

        self._producer.send(self._topic, body, partition=partition, on_delivery=reported)

    def _drain(self) -> None:
        self._producer.close()


class KafkaPythonSender(Sender):
    def _open(self) -> None:
        self._producer = KafkaProducer(
            **self._pythonic(),
            delivery_timeout_ms=GIVES_UP_MS,
            request_timeout_ms=10_000,
            max_block_ms=GIVES_UP_MS,
        )

    def _send(self, partition: int, value: int, body: bytes) -> None:
        future = self._producer.send(self._topic, body, partition=partition)
        future.add_callback(lambda metadata: self._settle(partition, value, metadata.offset, None))
        future.add_errback(lambda error: self._settle(partition, value, -1, error))

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
            **self._pythonic(),
            request_timeout_ms=GIVES_UP_MS,
            metadata_max_age_ms=10_000,
        )
        await self._producer.start()

    def _send(self, partition: int, value: int, body: bytes) -> None:
        async def send() -> None:
            future = await self._producer.send(self._topic, body, partition=partition)
            future.add_done_callback(reported)

        def reported(future: asyncio.Future[Any]) -> None:
            error = future.exception()
            self._settle(partition, value, -1 if error is not None else future.result().offset, error)

        self._loop.run_until_complete(send())

    def _pump(self, wait_s: float) -> None:
        self._loop.run_until_complete(asyncio.sleep(wait_s))

    def _drain(self) -> None:
        self._loop.run_until_complete(self._producer.stop())
        self._loop.close()
