"""The requests of clients to a cluster and their responses, recorded so that they can be checked afterwards.

Owns the record only: who sent which value where, which response arrived, what each consumer read in which order, what
every log contained at the end. `history_checks.check` checks it. Never talks to a cluster, reads no clock.

Every value is a number that is sent once in a history (`ProducerHistory.next_value`); the caller decides how it is written
into a record. Each producer and consumer is used by one thread at a time, different ones by different threads. An event
takes 8 to 24 bytes.

    history = History()
    producer, consumer = history.producer("p"), history.consumer("c")
    value = producer.next_value()
    producer.sent(("t", 0), value)
    producer.acknowledged(("t", 0), value, offset=0)
    consumer.polled(("t", 0), offset=0, value=value)
    history.log("end", ("t", 0), [0], [value])
    assert list(check(history)) == []

For topics that keep everything: no compaction, no transactions.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

Partition: TypeAlias = tuple[str, int]
"""Topic, index."""

NO_OFFSET: Final = -1
"""An acknowledgement without an offset: some clients give none for a batch that the broker already had."""
_REPOSITIONED: Final = -2
_SEQUENCE_BITS: Final = 40


def _numbers() -> array[int]:
    return array("q")


@dataclass(slots=True)
class Sends:
    """What one producer did to one partition. The columns of a pair have the same length."""

    values: array[int] = field(default_factory=_numbers)
    """In the order of sending."""
    acknowledged_values: array[int] = field(default_factory=_numbers)
    acknowledged_offsets: array[int] = field(default_factory=_numbers)
    rejected: array[int] = field(default_factory=_numbers)
    """Rejected: certainly not written."""


@dataclass(slots=True)
class Polls:
    """What one consumer read from one partition, in order. A negative offset: it was positioned at `values[i]`."""

    offsets: array[int] = field(default_factory=_numbers)
    values: array[int] = field(default_factory=_numbers)


@dataclass(slots=True)
class LogContents:
    """The content of a log, in order."""

    offsets: array[int]
    values: array[int]


class ProducerHistory:
    """`is_idempotent`: each value is in the partition once and in this order, whatever fails."""

    def __init__(self, name: str, number: int, *, is_idempotent: bool) -> None:
        self.name = name
        self.is_idempotent = is_idempotent
        self.sends: dict[Partition, Sends] = {}
        self._next = number << _SEQUENCE_BITS

    def next_value(self) -> int:
        """A value that is unique in the history."""
        self._next += 1
        return self._next

    def sent(self, partition: Partition, value: int) -> None:
        """The value was given to the client. Without one of the next two calls its outcome is unknown."""
        self._of(partition).values.append(value)

    def acknowledged(self, partition: Partition, value: int, offset: int = NO_OFFSET) -> None:
        sends = self._of(partition)
        sends.acknowledged_values.append(value)
        sends.acknowledged_offsets.append(offset if offset >= 0 else NO_OFFSET)

    def rejected(self, partition: Partition, value: int) -> None:
        """Certainly not written. A timeout is not a rejection."""
        self._of(partition).rejected.append(value)

    def _of(self, partition: Partition) -> Sends:
        found = self.sends.get(partition)
        if found is None:
            found = self.sends[partition] = Sends()
        return found


class ConsumerHistory:
    """A consumer of committed records, in any order of partitions."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.polls: dict[Partition, Polls] = {}

    def positioned(self, partition: Partition, offset: int) -> None:
        """The next record is the first at or after `offset`: a seek, or a new assignment. The first poll of a partition
        needs no position and may start anywhere."""
        polls = self._of(partition)
        polls.offsets.append(_REPOSITIONED)
        polls.values.append(offset)

    def polled(self, partition: Partition, offset: int, value: int) -> None:
        assert offset >= 0, "offsets of records are not negative"
        polls = self._of(partition)
        polls.offsets.append(offset)
        polls.values.append(value)

    def _of(self, partition: Partition) -> Polls:
        found = self.polls.get(partition)
        if found is None:
            found = self.polls[partition] = Polls()
        return found


class History:
    """All events of a run."""

    def __init__(self) -> None:
        self.producers: list[ProducerHistory] = []
        self.consumers: list[ConsumerHistory] = []
        self.logs: dict[Partition, dict[str, LogContents]] = {}
        """The final content of each copy of a partition, by the name of the copy."""
        self._lock = threading.Lock()

    def producer(self, name: str, *, is_idempotent: bool = True) -> ProducerHistory:
        with self._lock:
            self.producers.append(ProducerHistory(name, len(self.producers) + 1, is_idempotent=is_idempotent))
            return self.producers[-1]

    def consumer(self, name: str) -> ConsumerHistory:
        with self._lock:
            self.consumers.append(ConsumerHistory(name))
            return self.consumers[-1]

    def log(self, copy: str, partition: Partition, offsets: Iterable[int], values: Iterable[int]) -> None:
        """The complete content of one copy, after all writes: of a replica, or as read from start to end."""
        contents = LogContents(array("q", offsets), array("q", values))
        assert len(contents.offsets) == len(contents.values), "each record has an offset and a value"
        self.logs.setdefault(partition, {})[copy] = contents

    @property
    def acknowledged(self) -> int:
        """The number of acknowledgements so far."""
        return sum(len(sends.acknowledged_values) for each in self.producers for sends in tuple(each.sends.values()))
