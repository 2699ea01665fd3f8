"""What clients did to a cluster and what they were told, recorded so that it can be judged afterwards.

Owns the record only: who sent which value where, which answer came, what each consumer saw in which order, what every
log held in the end. `history_checks.check` judges it. Never talks to a cluster, reads no clock.

Every value is a number that is sent once in a whole history (`Producer.next_value`); how it is written into a record is
the caller's. Each producer and consumer is written by one thread at a time, different ones by different threads. A
record of a history costs 8 to 24 bytes an event.

    history = History()
    producer, consumer = history.producer("p"), history.consumer("c")
    value = producer.next_value()
    producer.sent(("t", 0), value)
    producer.acknowledged(("t", 0), value, offset=0)
    consumer.polled(("t", 0), offset=0, value=value)
    history.log("end", ("t", 0), [0], [value])
    assert list(check(history)) == []

It is for topics that keep everything: no compaction, no transactions.
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
"""An acknowledgement that does not say where: some clients' for a batch that the broker had already."""
_REPOSITIONED: Final = -2
_SEQUENCE_BITS: Final = 40


def _numbers() -> array[int]:
    return array("q")


@dataclass(slots=True)
class Sends:
    """What one producer did to one partition. Columns of a pair are of one length."""

    values: array[int] = field(default_factory=_numbers)
    """In the order of sending."""
    acknowledged_values: array[int] = field(default_factory=_numbers)
    acknowledged_offsets: array[int] = field(default_factory=_numbers)
    refused: array[int] = field(default_factory=_numbers)
    """Certainly not written, as the producer was told."""


@dataclass(slots=True)
class Polls:
    """What one consumer saw of one partition, in order. A negative offset: it was positioned, at `values[i]`."""

    offsets: array[int] = field(default_factory=_numbers)
    values: array[int] = field(default_factory=_numbers)


@dataclass(slots=True)
class Contents:
    """What a log holds: offsets as they lie there."""

    offsets: array[int]
    values: array[int]


class Producer:
    """`is_idempotent`: what it sends to a partition lies there once and in this order, whatever happened meanwhile."""

    def __init__(self, name: str, number: int, *, is_idempotent: bool) -> None:
        self.name = name
        self.is_idempotent = is_idempotent
        self.sends: dict[Partition, Sends] = {}
        self._next = number << _SEQUENCE_BITS

    def next_value(self) -> int:
        """One that nobody else has."""
        self._next += 1
        return self._next

    def sent(self, partition: Partition, value: int) -> None:
        """It was given to the client. Without one of the next two its fate is unknown."""
        self._of(partition).values.append(value)

    def acknowledged(self, partition: Partition, value: int, offset: int = NO_OFFSET) -> None:
        sends = self._of(partition)
        sends.acknowledged_values.append(value)
        sends.acknowledged_offsets.append(offset if offset >= 0 else NO_OFFSET)

    def refused(self, partition: Partition, value: int) -> None:
        """Certainly not written. A timeout is not that."""
        self._of(partition).refused.append(value)

    def _of(self, partition: Partition) -> Sends:
        found = self.sends.get(partition)
        if found is None:
            found = self.sends[partition] = Sends()
        return found


class Consumer:
    """One who reads committed records, in whatever order of partitions."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.polls: dict[Partition, Polls] = {}

    def positioned(self, partition: Partition, offset: int) -> None:
        """The next record is the first at or after `offset`: a seek, or a new assignment. The first poll of a partition
        needs none and may be anywhere."""
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
    """Everything that a run did."""

    def __init__(self) -> None:
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        self.logs: dict[Partition, dict[str, Contents]] = {}
        """What each copy of a partition held in the end, by the copy's name."""
        self._lock = threading.Lock()

    def producer(self, name: str, *, is_idempotent: bool = True) -> Producer:
        with self._lock:
            self.producers.append(Producer(name, len(self.producers) + 1, is_idempotent=is_idempotent))
            return self.producers[-1]

    def consumer(self, name: str) -> Consumer:
        with self._lock:
            self.consumers.append(Consumer(name))
            return self.consumers[-1]

    def log(self, copy: str, partition: Partition, offsets: Iterable[int], values: Iterable[int]) -> None:
        """The whole of one copy, when nobody writes any more: a replica's, or what a reader got from begin to end."""
        contents = Contents(array("q", offsets), array("q", values))
        assert len(contents.offsets) == len(contents.values), "each record has an offset and a value"
        self.logs.setdefault(partition, {})[copy] = contents

    @property
    def acknowledged(self) -> int:
        """Acknowledgements so far."""
        return sum(len(sends.acknowledged_values) for each in self.producers for sends in tuple(each.sends.values()))
