"""Members of a consumer group of several makes that record what they read and what they committed.

Owns the threads and the group's ledger: what commits were answered for, what a member began with that was given a
partition. Each assignment is a consumer of its own in the history. What must hold is `GroupLedger.complaints`.
"""

from __future__ import annotations

import math
import threading
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import confluent_kafka
from kafka.errors import KafkaError as KafkaPythonError
from kafka.structs import OffsetAndMetadata

from fenceline.client import Consumer as OwnConsumer
from fenceline.client import TopicPartition
from fenceline.errors import FencelineError
from fenceline.testing.history import ConsumerHistory, History
from fenceline.testing.waiting import eventually
from kafka import ConsumerRebalanceListener, KafkaConsumer
from kafka import TopicPartition as KafkaPythonPartition
from tests.support.client_threads import ClientThread

_COMMIT_EVERY_S: Final = 1.0
_SESSION_MS: Final = 10_000
_CLOSE_WAIT_S: Final = 120.0


class GroupLedger:
    """What the members of one group were told by their coordinators, whoever these were. Safe for threads."""

    def __init__(self, topic: str, partitions: int) -> None:
        self.topic, self.group = topic, f"readers of {topic}"
        self.counts: Counter[str] = Counter()
        """Assignments, commits that were answered, and commits that failed."""
        self._committed = dict.fromkeys(range(partitions), 0)
        self._read: list[tuple[int, int, int]] = []
        """Partition, first offset, offset behind the last: of each assignment."""
        self._forgotten: list[str] = []
        self._lock = threading.Lock()

    def committed(self) -> dict[int, int]:
        """By partition: the highest offset whose commit was answered."""
        with self._lock:
            return dict(self._committed)

    def note_commit(self, offsets: Mapping[int, int]) -> None:
        with self._lock:
            self.counts["commits"] += 1
            for partition, offset in offsets.items():
                self._committed[partition] = max(offset, self._committed[partition])

    def note_failure(self) -> None:
        with self._lock:
            self.counts["failed commits"] += 1

    def note_assignment(self) -> None:
        with self._lock:
            self.counts["assignments"] += 1

    def note_begin(self, name: str, partition: int, offset: int, committed: int) -> None:
        """A member that was just given a partition goes on at `offset`, where `committed` was answered for before."""
        if offset < committed:
            with self._lock:
                self._forgotten.append(
                    f"{name} began {self.topic}-{partition} at {offset}, though a commit of {committed} was answered"
                )

    def note_read(self, partition: int, begin: int, end: int) -> None:
        with self._lock:
            self._read.append((partition, begin, end))

    def reached(self, ends: Mapping[int, int]) -> bool:
        committed = self.committed()
        return all(committed[partition] >= end for partition, end in ends.items())

    def await_all(self, ends: Mapping[int, int], wait_s: float = 120) -> None:
        """Until the group has committed everything. Raises TimeoutError when it has not got on for so long."""
        while not self.reached(ends):
            before = self.committed()
            eventually(lambda before=before: self.committed() != before, "the group commits more", wait_s=wait_s)  # type: ignore[misc]

    def complaints(self, ends: Mapping[int, int]) -> list[str]:
        """Commits that were answered and forgotten, and records that no member was given. The members have ended."""
        found = list(self._forgotten)
        for partition, end in ends.items():
            position = 0
            for begin, behind in sorted((begin, behind) for index, begin, behind in self._read if index == partition):
                if begin > position:
                    break
                position = max(position, behind)
            if position < end:
                found.append(f"no member read {self.topic}-{partition} from {position} on; it ends at {end}")
        return found


class Member(ClientThread):
    """One member: reads what it is given, commits every second, and before that is taken away where its client can,
    until `finish`. It leaves after `stays_s`, and comes again."""

    def __init__(self, bootstrap: str, history: History, ledger: GroupLedger, *, stays_s: float = math.inf) -> None:
        super().__init__(bootstrap)
        self._ledger, self._history, self._stays_s = ledger, history, stays_s
        self._is_over = threading.Event()
        self._consumer_history: ConsumerHistory | None = None
        self._committed_before: dict[int, int] = {}
        self._begins: dict[int, int] = {}
        self._positions: dict[int, int] = {}
        self._next_commit = time.monotonic() + _COMMIT_EVERY_S
        self.read = 0

    def finish(self) -> None:
        self._is_over.set()
        self.end(_CLOSE_WAIT_S)

    def _live(self) -> None:
        while not self._is_over.is_set():
            self._open()
            leaves = time.monotonic() + self._stays_s
            while not self._is_over.is_set() and time.monotonic() < leaves:
                self._poll()
                if self._positions and time.monotonic() >= self._next_commit:
                    self._commit_all()
            self._commit_all()
            self._close()
            self._taken_away()

    def _given(self) -> None:
        """Partitions were assigned; where they are read from is not known yet."""
        self._taken_away()
        self._ledger.note_assignment()
        self._committed_before = self._ledger.committed()
        self._consumer_history = self._history.consumer(self.name)

    def _taken_away(self) -> None:
        for partition, begin in self._begins.items():
            self._ledger.note_read(partition, begin, self._positions[partition])
        self._begins, self._positions = {}, {}

    def _note(self, partition: int, offset: int, body: bytes) -> None:
        assert self._consumer_history is not None, "a record came before an assignment"
        self._consumer_history.polled((self._ledger.topic, partition), offset, int(body))
        self.read += 1
        if partition not in self._begins:
            self._begins[partition] = offset
            self._ledger.note_begin(self.name, partition, offset, self._committed_before[partition])
        self._positions[partition] = offset + 1

    def _commit_all(self) -> None:
        wanted = dict(self._positions)
        if not wanted:
            return
        if self._commit(wanted):
            self._ledger.note_commit(wanted)
        else:
            self._ledger.note_failure()
        self._next_commit = time.monotonic() + _COMMIT_EVERY_S

    def _settings(self) -> dict[str, Any]:
        """With Kafka's own names."""
        return {
            "bootstrap.servers": self._servers,
            "group.id": self._ledger.group,
            "client.id": self.name,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": "range",
            "session.timeout.ms": _SESSION_MS,
            "heartbeat.interval.ms": 1000,
        }

    @abstractmethod
    def _open(self) -> None: ...
    @abstractmethod
    def _poll(self) -> None:
        """Note what came within a moment."""

    @abstractmethod
    def _commit(self, offsets: Mapping[int, int]) -> bool:
        """Whether it was answered for all of them."""

    @abstractmethod
    def _close(self) -> None: ...


class LibrdkafkaMember(Member):
    def _open(self) -> None:
        self._consumer = confluent_kafka.Consumer(self._settings() | {"socket.timeout.ms": 10_000, "log_level": 0})
        self._consumer.subscribe(
            [self._ledger.topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def _on_assign(self, _consumer: Any, _partitions: Any) -> None:
        self._given()

    def _on_revoke(self, _consumer: Any, _partitions: Any) -> None:
        self._commit_all()
        self._taken_away()

    def _on_lost(self, _consumer: Any, _partitions: Any) -> None:
        self._taken_away()

    def _poll(self) -> None:
        until = time.monotonic() + 0.2
        while time.monotonic() < until:
            # One by one: a batch may begin before a rebalance and end behind it.
            message = self._consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None
            assert offset is not None
            assert value is not None
            self._note(partition, offset, value)

    def _commit(self, offsets: Mapping[int, int]) -> bool:
        wanted = [confluent_kafka.TopicPartition(self._ledger.topic, *each) for each in offsets.items()]
        try:
            answers = self._consumer.commit(offsets=wanted, asynchronous=False)
        except confluent_kafka.KafkaException:
            return False
        return answers is not None and all(each.error is None for each in answers)

    def _close(self) -> None:
        self._consumer.close()


class KafkaPythonMember(Member, ConsumerRebalanceListener):  # type: ignore[misc]
    def _open(self) -> None:
        self._consumer = KafkaConsumer(
            bootstrap_servers=self._servers.split(","),
            group_id=self._ledger.group,
            client_id=self.name,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=_SESSION_MS,
            heartbeat_interval_ms=1000,
            request_timeout_ms=15_000,
        )
        self._consumer.subscribe([self._ledger.topic], listener=self)

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._given()

    def on_partitions_revoked(self, revoked: Any) -> None:
        """In the client's own thread, where a commit could not be waited for."""
        self._taken_away()

    def on_partitions_lost(self, lost: Any) -> None:
        self._taken_away()

    def _poll(self) -> None:
        try:
            found = self._consumer.poll(timeout_ms=200)
        except KafkaPythonError:
            time.sleep(0.2)
            return
        for records in found.values():
            for record in records:
                self._note(record.partition, record.offset, record.value)

    def _commit(self, offsets: Mapping[int, int]) -> bool:
        wanted = {
            KafkaPythonPartition(self._ledger.topic, partition): OffsetAndMetadata(offset, "", -1)
            for partition, offset in offsets.items()
        }
        try:
            self._consumer.commit(wanted, timeout_ms=10_000)
        except KafkaPythonError:
            return False
        return True

    def _close(self) -> None:
        self._consumer.close(timeout_ms=30_000)


class OwnMember(Member):
    def _open(self) -> None:
        self._consumer = OwnConsumer(self._settings() | {"request.timeout.ms": 10_000})
        self._consumer.subscribe(
            [self._ledger.topic],
            on_assigned=lambda _: self._given(),
            on_revoked=lambda _: self._revoked(),
            on_lost=lambda _: self._taken_away(),
        )

    def _revoked(self) -> None:
        self._commit_all()
        self._taken_away()

    def _poll(self) -> None:
        try:
            records = self._consumer.poll(200)
        except FencelineError:
            time.sleep(0.2)
            return
        for record in records:
            assert record.value is not None
            self._note(record.partition, record.offset, bytes(record.value))

    def _commit(self, offsets: Mapping[int, int]) -> bool:
        wanted = {TopicPartition(self._ledger.topic, partition): offset for partition, offset in offsets.items()}
        try:
            self._consumer.commit(wanted, timeout_ms=10_000)
        except FencelineError:
            return False
        return True

    def _close(self) -> None:
        self._consumer.close()
