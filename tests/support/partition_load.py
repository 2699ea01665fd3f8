"""Records that are written while leaders change, and what of it was acknowledged.

Owns one idempotent producer (librdkafka) and its thread a partition, each with its own compression. Every
acknowledgement counts: its record must be at its offset for ever, whoever leads.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import count, islice
from types import TracebackType

from confluent_kafka import KafkaError, Message, Producer

from fenceline.testing.waiting import eventually

_PACE_S = 0.02
_AT_ONCE = 5
"""Records between two pauses, so that logs stay small."""
_MOST_UNANSWERED = 500


class PartitionLoad:
    """Use as a context manager; leaving it waits until all that was sent is acknowledged."""

    def __init__(self, bootstrap: Sequence[str], topic: str, codecs: Sequence[str]) -> None:
        """Partition i is compressed by `codecs[i]`."""
        self._topic = topic
        self.acknowledged: list[dict[int, bytes]] = [{} for _ in codecs]
        """By partition: offset to value."""
        self.doubled: list[tuple[int, int]] = []
        """Partition and offset of what was acknowledged at an offset that another record has."""
        self._is_over = threading.Event()
        self._failures: list[str] = []
        self._threads = [
            threading.Thread(target=self._run, args=(",".join(bootstrap), partition, codec), daemon=True)
            for partition, codec in enumerate(codecs)
        ]

    def __enter__(self) -> PartitionLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        if error is None:
            self._check()

    def await_more(self, more: int) -> None:
        """Until `more` more records of every partition are acknowledged."""
        wanted = [len(each) + more for each in self.acknowledged]

        def look() -> bool:
            self._check()
            return all(len(each) >= least for each, least in zip(self.acknowledged, wanted, strict=True))

        eventually(look, f"{more} more records of each partition of {self._topic} are acknowledged", wait_s=120)

    def _check(self) -> None:
        if self._failures:
            raise RuntimeError(f"not acknowledged: {self._failures[:3]}")

    def _run(self, bootstrap: str, partition: int, codec: str) -> None:
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "compression.type": codec,
                "linger.ms": 5,
                "message.timeout.ms": 120_000,
                "topic.metadata.refresh.interval.ms": 1000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        taken = self.acknowledged[partition]

        def answered(error: KafkaError | None, message: Message) -> None:
            offset, value = message.offset(), message.value()
            if error is not None:
                self._failures.append(str(error))
            elif offset in taken:
                self.doubled.append((partition, offset or 0))
            else:
                assert offset is not None
                assert value is not None
                taken[offset] = value

        numbers = count(1)
        while not self._is_over.wait(_PACE_S):
            if len(producer) < _MOST_UNANSWERED:
                for number in islice(numbers, _AT_ONCE):
                    value = f"partition {partition} record {number:06d} {'-' * (number % 50)}"
                    producer.produce(self._topic, value.encode(), partition=partition, on_delivery=answered)
            producer.poll(0)
        left = producer.flush(120)
        if left:
            self._failures.append(f"{left} without an answer")
