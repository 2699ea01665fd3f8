"""Consumers of several makes that record in a history what they read.

Every one starts at the beginning, takes no reset for an answer, and goes back when its client tells it of a truncation:
as far as what was cut, or to the beginning. Nothing here judges.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import confluent_kafka
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AiokafkaPartition
from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka import KafkaError
from kafka.errors import KafkaError as KafkaPythonError
from kafka.errors import LogTruncationError as KafkaPythonTruncation

from fenceline.client import Consumer as OwnConsumer
from fenceline.client import LogTruncationError, TopicPartition
from fenceline.errors import FencelineError
from fenceline.testing.history import History
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPythonPartition
from tests.support.client_threads import ClientThread

_CLOSE_WAIT_S = 60.0


class Reader(ClientThread):
    """Reads all partitions from their beginning, until it has reached the ends that `finish` names."""

    _error: ClassVar[type[Exception]] = FencelineError
    """What its client raises."""

    def __init__(self, bootstrap: str, history: History, topic: str, partitions: int) -> None:
        super().__init__(bootstrap)
        self._topic, self._partitions = topic, partitions
        self._history = history.consumer(self.name)
        self._ends: dict[int, int] | None = None
        self._is_given_up = threading.Event()
        self.positions = dict.fromkeys(range(partitions), 0)
        self.troubles: list[str] = []
        """What the client reported that is no record, and not a broken connection."""
        self.truncations = 0
        """How often the client said that what it had read was cut off."""

    def finish(self, ends: dict[int, int], wait_s: float = 120) -> list[str]:
        """What it could not read, when it has not got on for so long."""
        self._ends = ends
        before: dict[int, int] = {}
        while self.is_alive() and before != self.positions:
            before = dict(self.positions)
            self.join(wait_s)
        self._is_given_up.set()
        self.end(_CLOSE_WAIT_S)
        behind = [index for index, end in ends.items() if self.positions[index] != end]
        return [f"it is at {self.positions[each]} of partition {each}, which ends at {ends[each]}" for each in behind]

    def _live(self) -> None:
        for partition in range(self._partitions):
            self._history.positioned((self._topic, partition), 0)
        self._open()
        while not self._is_given_up.is_set() and not self._is_done():
            try:
                found = self._poll()
            except self._error as error:
                self.troubles.append(repr(error))
                time.sleep(0.2)
                continue
            for partition, offset, body in found:
                self._history.polled((self._topic, partition), offset, int(body))
                self.positions[partition] = offset + 1
        self._close()

    def _is_done(self) -> bool:
        ends = self._ends
        return ends is not None and all(self.positions[index] == end for index, end in ends.items())

    def _go_back(self, partition: int, offset: int) -> None:
        """It was told that the log was cut here."""
        self.truncations += 1
        self._history.positioned((self._topic, partition), offset)
        self.positions[partition] = offset

    def _pythonic(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": self._servers.split(","),
            "auto_offset_reset": "none",
            "enable_auto_commit": False,
            "request_timeout_ms": 10_000,
        }

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
        found: list[tuple[int, int, bytes]] = []
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
            found.append((partition, offset, value))
        return found

    def _close(self) -> None:
        # Among brokers that were restarted its close takes minutes at times. What it has read is known by now.
        closing = threading.Thread(target=self._consumer.close, daemon=True)
        closing.start()
        closing.join(_CLOSE_WAIT_S / 2)


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
            partition = TopicPartition(error.topic, error.partition)
            self._consumer.seek(partition, error.divergent_offset, error.divergent_epoch)
            self._go_back(error.partition, error.divergent_offset)
            return []
        return [(record.partition, record.offset, bytes(record.value or b"")) for record in records]

    def _close(self) -> None:
        self._consumer.close()


class KafkaPythonReader(Reader):
    _error = KafkaPythonError

    def _open(self) -> None:
        self._consumer = KafkaConsumer(**self._pythonic())
        wanted = [KafkaPythonPartition(self._topic, each) for each in range(self._partitions)]
        self._consumer.assign(wanted)
        for each in wanted:
            self._consumer.seek(each, 0)

    def _poll(self) -> Iterable[tuple[int, int, bytes]]:
        try:
            found = self._consumer.poll(timeout_ms=200)
        except KafkaPythonTruncation as error:
            for partition in error.divergent_offsets:
                # As with Kafka, it gets the end of the leader's epoch, which may be past the point of divergence.
                self._consumer.seek(partition, 0)
                self._go_back(partition.partition, 0)
            return []
        return _records(found)

    def _close(self) -> None:
        self._consumer.close()


class AiokafkaReader(Reader):
    _error = AiokafkaError

    def _open(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._begin())

    async def _begin(self) -> None:
        self._consumer = AIOKafkaConsumer(**self._pythonic())
        await self._consumer.start()
        wanted = [AiokafkaPartition(self._topic, each) for each in range(self._partitions)]
        self._consumer.assign(wanted)
        for each in wanted:
            self._consumer.seek(each, 0)

    def _poll(self) -> Iterable[tuple[int, int, bytes]]:
        return _records(self._loop.run_until_complete(self._consumer.getmany(timeout_ms=200)))

    def _close(self) -> None:
        self._loop.run_until_complete(self._consumer.stop())
        self._loop.close()


def _records(found: Mapping[Any, Iterable[Any]]) -> list[tuple[int, int, bytes]]:
    """As kafka-python and aiokafka give them: by partition."""
    return [(each.partition, each.offset, each.value) for each in itertools.chain.from_iterable(found.values())]
