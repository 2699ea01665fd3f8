"""What clients did in transactions and what readers of committed records received, recorded to be checked afterwards.

Owns the record only: who sent, read and committed what in which transaction, which responses arrived, and what the logs
contained at the end. `transaction_checks.check` checks it. Never talks to a cluster, reads no clock.

Every value is a number that is sent once in a history; the caller decides how it is written into a record. A client is
used by one thread or task at a time.

    history = ClientTransactions()
    transaction = history.begin("producer", "an-id")
    sent = transaction.sends(("t", 0), history.next_value())
    sent.offset = 0
    transaction.asks(commit=True)
    transaction.outcome = ClientOutcome.COMMITTED
    history.logs["t", 0] = TransactionLog([LoggedValue(0, sent.value, Fate.COMMITTED, 1)], end=2)
    assert list(check(history)) == []
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from fenceline.records.batch import BatchHeader
from fenceline.testing.history import NO_OFFSET, ConsumerHistory, Partition

UNDECIDED: Final = -1
"""The marker of a record whose transaction has no end marker."""


class ClientOutcome(Enum):
    """What the client was told."""

    OPEN = "it was left open"
    ABORTED = "its abort was acknowledged"
    COMMITTED = "its commit was acknowledged"
    UNKNOWN = "its commit was requested, without an answer that decides"


class Fate(Enum):
    """What the log says of a record."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"


@dataclass(slots=True)
class SentValue:
    """`offset`: `NO_OFFSET` until the send is acknowledged."""

    partition: Partition
    value: int
    offset: int = NO_OFFSET


class PolledValue(NamedTuple):
    """A committed record that a transaction read."""

    partition: Partition
    offset: int
    value: int


class SentPosition(NamedTuple):
    """`offset`: the next one that the group will read, once the transaction is committed."""

    group: str
    partition: Partition
    offset: int
    answered_at: int = NO_OFFSET
    """When the coordinator accepted it: `ClientTransactions.now`; `NO_OFFSET` until then."""


class ReadPosition(NamedTuple):
    """A group's committed offset as its coordinator returned it; 0: none."""

    group: str
    partition: Partition
    offset: int
    order: int
    """When it was requested: `ClientTransactions.now`."""


@dataclass(slots=True)
class ClientTransaction:
    """One transaction, as its client sees it. Operations are in their order."""

    number: int
    client: str
    transactional_id: str
    sent: list[SentValue] = field(default_factory=list)
    polled: list[PolledValue] = field(default_factory=list)
    positions: list[SentPosition] = field(default_factory=list)
    outcome: ClientOutcome = ClientOutcome.OPEN
    commit_requested: bool = False
    """Whether the cluster may have received a request to commit it."""
    decided_at: int = NO_OFFSET
    """When its commit was acknowledged: `ClientTransactions.now`."""

    def sends(self, partition: Partition, value: int) -> SentValue:
        """The value is about to be sent."""
        self.sent.append(SentValue(partition, value))
        return self.sent[-1]

    def asks(self, *, commit: bool) -> None:
        """The request that ends it is about to be sent."""
        self.commit_requested |= commit
        if commit:
            self.outcome = ClientOutcome.UNKNOWN

    def __str__(self) -> str:
        steps = [f"reads {_at(each.partition, each.offset)} = {each.value}" for each in self.polled]
        steps += [
            f"sends {each.value} to {_at(each.partition, each.offset) if each.offset != NO_OFFSET else _unacked(each)}"
            for each in self.sent
        ]
        steps += [f"moves {each.group} in {_name(each.partition)} to {each.offset}" for each in self.positions]
        return f"T{self.number} {self.client} ({self.transactional_id}): {'; '.join(steps)}; {self.outcome.value}"


def partition_name(topic: str, topic_id: bytes, index: int) -> Partition:
    """A partition of one topic id: a topic that is made anew has other ones."""
    return f"{topic}@{topic_id.hex()[:8]}", index


def topic_of(partition: Partition) -> str:
    """The name of its topic, without the id that `partition_name` adds."""
    return partition[0].partition("@")[0]


def _name(partition: Partition) -> str:
    return f"{partition[0]}-{partition[1]}"


def _at(partition: Partition, offset: int) -> str:
    return f"{_name(partition)} offset {offset}"


def _unacked(sent: SentValue) -> str:
    return f"{_name(sent.partition)}, not acknowledged"


class LoggedValue(NamedTuple):
    """A record in a log. `marker`: the offset of the end marker of its transaction, `UNDECIDED` without one; its own
    offset if it belongs to no transaction."""

    offset: int
    value: int
    fate: Fate
    marker: int


class LoggedEpoch(NamedTuple):
    """A batch of a producer, or an end marker."""

    offset: int
    producer_id: int
    producer_epoch: int


@dataclass(slots=True)
class TransactionLog:
    """The content of a log at the end, in its order."""

    values: list[LoggedValue] = field(default_factory=list)
    epochs: list[LoggedEpoch] = field(default_factory=list)
    end: int = 0


class StableOffsetReport(NamedTuple):
    """A fetch response of READ_COMMITTED, in the order of responses to one reader.

    `log_end`: no end marker was at or beyond it when the response was made; the high watermark if nothing better is
    known. A leader that was restarted does not know which markers are above its high watermark, as in Kafka: the
    coordinator has decided, and writes a marker that is lost again.
    """

    partition: Partition
    leader_epoch: int
    last_stable_offset: int
    log_end: int


class ClientTransactions:
    """All events of a run."""

    def __init__(self) -> None:
        self.transactions: list[ClientTransaction] = []
        self.readers: list[ConsumerHistory] = []
        """Of READ_COMMITTED."""
        self.stable_offsets: dict[str, list[StableOffsetReport]] = {}
        """By reader."""
        self.read_positions: list[ReadPosition] = []
        self.deletions: dict[str, int] = {}
        """By name of a topic: when its last deletion was requested."""
        self.logs: dict[Partition, TransactionLog] = {}
        self.plain_values: dict[int, Partition] = {}
        """Values that were sent outside of transactions."""
        self._values = 0
        self._now = 0

    def next_value(self) -> int:
        """A value that is unique in the history."""
        self._values += 1
        return self._values

    def now(self) -> int:
        """The next number of an order in real time."""
        self._now += 1
        return self._now

    def deletes(self, topic: str) -> None:
        """The request is about to be sent."""
        self.deletions[topic] = self.now()

    def begin(self, client: str, transactional_id: str) -> ClientTransaction:
        begun = ClientTransaction(len(self.transactions), client, transactional_id)
        self.transactions.append(begun)
        return begun

    def reader(self, name: str) -> ConsumerHistory:
        reader = ConsumerHistory(name)
        self.readers.append(reader)
        self.stable_offsets[name] = []
        return reader

    def was_told(self, reader: str, report: StableOffsetReport) -> None:
        self.stable_offsets[reader].append(report)


class LogBuilder:
    """The content of one log from its batches, in their order."""

    def __init__(self) -> None:
        self._log = TransactionLog()
        self._open: dict[int, list[int]] = {}
        """By producer id: the indexes of the records of its open transaction."""

    def data(self, header: BatchHeader, values: Iterable[tuple[int, int]]) -> None:
        """A batch of data. `values`: (offset, value) of its records."""
        self._epoch(header)
        for offset, value in values:
            if header.is_transactional:
                self._open.setdefault(header.producer_id, []).append(len(self._log.values))
                self._log.values.append(LoggedValue(offset, value, Fate.OPEN, UNDECIDED))
            else:
                self._log.values.append(LoggedValue(offset, value, Fate.COMMITTED, offset))

    def end_marker(self, header: BatchHeader, *, commit: bool) -> None:
        self._epoch(header)
        fate, marker = Fate.COMMITTED if commit else Fate.ABORTED, header.base_offset
        values = self._log.values
        for index in self._open.pop(header.producer_id, ()):
            values[index] = values[index]._replace(fate=fate, marker=marker)

    def _epoch(self, header: BatchHeader) -> None:
        self._log.end = header.next_offset
        if header.producer_id >= 0:
            self._log.epochs.append(LoggedEpoch(header.base_offset, header.producer_id, header.producer_epoch))

    def finish(self) -> TransactionLog:
        return self._log
