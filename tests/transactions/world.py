"""A transaction coordinator on an in-memory log: appends that succeed, wait, fail or are late; markers; moves; time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from fenceline.coordination import Now
from fenceline.errors import ErrorCode
from fenceline.transactions import records
from fenceline.transactions.coordinator import TransactionCoordinator
from fenceline.transactions.messages import (
    NO_IDENTITY,
    AddPartitions,
    AnswerTransaction,
    AppendState,
    EndMarkers,
    EndTransaction,
    InitProducer,
    MarkerRejected,
    ProducerIdentity,
    TopicIndex,
    TransactionDuty,
    WriteMarkers,
)
from fenceline.transactions.model import Transaction
from fenceline.transactions.settings import TransactionSettings

ID = "orders"
A, B = ("a", 0), ("b", 1)
START_MS = 1_000_000


class Waiting:
    """The outcome of a request that is not answered yet."""


WAITING = Waiting()


@dataclass
class World:
    """`level` of transaction.version. `holds`: appends wait for `commit_all`, `reject_all` or `late_all`.
    `marker_codes`: what leaders answer; None holds the markers back."""

    level: int = 2
    settings: TransactionSettings = field(default_factory=TransactionSettings)
    partition_count: int = 1
    holds: bool = False
    marker_codes: dict[TopicIndex, ErrorCode] | None = field(default_factory=dict)
    wall_ms: int = START_MS
    monotonic_ms: int = 500

    def __post_init__(self) -> None:
        self.topics = {"a": 10, "b": 10, "__consumer_offsets": 50}
        self.next_id = 1_000
        self.ids_at_hand = True
        self.log: dict[int, list[tuple[bytes, bytes | None]]] = {}
        self.epochs: dict[int, int] = {}
        self.held: deque[AppendState] = deque()
        self.markers: list[EndMarkers] = []
        """Held back, or sent and answered."""
        self.rejected: list[MarkerRejected] = []
        self.outcomes: dict[int, Any] = {}
        self._tickets = 0
        self.coordinator = self._new_coordinator()
        self.move()

    def _new_coordinator(self) -> TransactionCoordinator:
        return TransactionCoordinator(
            self.settings,
            self._next_producer_id,
            lambda: self.level,
            lambda topic, index: index < self.topics.get(topic, 0),
            self.partition_count,
        )

    def _next_producer_id(self) -> int | None:
        if not self.ids_at_hand:
            return None
        self.next_id += 1
        return self.next_id - 1

    @property
    def now(self) -> Now:
        return Now(self.wall_ms, self.monotonic_ms)

    # --- moves and time ----------------------------------------

    def move(self) -> None:
        """Another coordinator loads what is in the log, and does what is due; the old one, with what it holds, is
        gone."""
        self.load()
        self.advance(0)

    def load(self) -> None:
        """As `move`, without what is due."""
        for partition in range(self.partition_count):
            self.carry_out(self.coordinator.resign(partition))
        self.held.clear()
        self.coordinator = self._new_coordinator()
        for partition in range(self.partition_count):
            self.epochs[partition] = self.epochs.get(partition, -1) + 1
            loading, duties = self.coordinator.begin_load(partition, self.epochs[partition])
            assert loading is not None
            for key, value in self.log.get(partition, []):
                loading.replay(key, value)
            self.carry_out([*duties, *self.coordinator.finish_load(loading, self.now)])

    def advance(self, ms: int) -> None:
        """Time passes, deadline by deadline."""
        end_ms = self.monotonic_ms + ms
        while (deadline := self.coordinator.next_deadline_ms()) is not None and deadline <= end_ms:
            step = max(0, deadline - self.monotonic_ms)
            self.monotonic_ms += step
            self.wall_ms += step
            self.carry_out(self.coordinator.on_time(self.now))
        self.wall_ms += end_ms - self.monotonic_ms
        self.monotonic_ms = end_ms

    # --- requests ----------------------------------------

    def init(
        self, identity: tuple[int, int] = NO_IDENTITY, *, timeout_ms: int = 60_000, name: str | None = ID, **fields: Any
    ) -> Any:
        request = InitProducer(name, timeout_ms, ProducerIdentity(*identity), **fields)
        return self._ask(lambda ticket: self.coordinator.init_producer(ticket, request, self.now))

    def add(self, identity: tuple[int, int], *partitions: TopicIndex, name: str = ID, **fields: Any) -> Any:
        request = AddPartitions(name, ProducerIdentity(*identity), partitions, **{"transaction_version": 2, **fields})
        return self._ask(lambda ticket: self.coordinator.add_partitions(ticket, request, self.now))

    def end(self, identity: tuple[int, int], *, commit: bool = True, version: int = 5, name: str = ID) -> Any:
        request = EndTransaction(name, ProducerIdentity(*identity), commit, version)
        return self._ask(lambda ticket: self.coordinator.end_transaction(ticket, request, self.now))

    def begun(self, *partitions: TopicIndex, version: int = 2, **fields: Any) -> ProducerIdentity:
        """A producer with a transaction that has these partitions."""
        identity: ProducerIdentity = self.init(**fields).identity
        added = self.add(identity, *(partitions or (A,)), name=fields.get("name", ID), transaction_version=version)
        assert set(added.errors) == {ErrorCode.NONE}
        return identity

    def _ask(self, call: Any) -> Any:
        """The outcome, or WAITING; then `outcome_of_last` has it later."""
        self._tickets += 1
        self.carry_out(call(self._tickets))
        return self.outcomes.get(self._tickets, WAITING)

    @property
    def outcome_of_last(self) -> Any:
        return self.outcomes.get(self._tickets, WAITING)

    # --- duties ----------------------------------------

    def carry_out(self, duties: list[TransactionDuty]) -> None:
        queue = deque(duties)
        while queue:
            match duty := queue.popleft():
                case AnswerTransaction(ticket, outcome):
                    assert ticket not in self.outcomes, "one answer"
                    assert isinstance(ticket, int)
                    self.outcomes[ticket] = outcome
                case AppendState():
                    self.held.append(duty)
                    if not self.holds:
                        queue.extend(self._commit())
                case WriteMarkers(markers):
                    self.markers.append(markers)
                    if self.marker_codes is not None:
                        queue.extend(self._answer_markers(markers))
                case MarkerRejected():
                    self.rejected.append(duty)
        self.coordinator.check()

    def _commit(self) -> list[TransactionDuty]:
        duty = self.held.popleft()
        assert duty.coordinator_epoch == self.epochs[duty.state_partition]
        self.log.setdefault(duty.state_partition, []).append((duty.key, duty.value))
        return self.coordinator.appended(duty.state_partition, duty.write_id, self.now)

    def commit_all(self) -> None:
        while self.held:
            self.carry_out(self._commit())

    def reject_all(self, code: ErrorCode = ErrorCode.NOT_ENOUGH_REPLICAS) -> None:
        held, self.held = self.held, deque()
        for duty in held:
            self.carry_out(self.coordinator.append_failed(duty.state_partition, duty.write_id, code, self.now))

    def late_all(self) -> None:
        for duty in self.held:
            self.carry_out(self.coordinator.append_is_late(duty.state_partition, duty.write_id))

    def _answer_markers(self, markers: EndMarkers) -> list[TransactionDuty]:
        codes = self.marker_codes or {}
        results = {each: codes.get(each, ErrorCode.NONE) for each in markers.partitions}
        return self.coordinator.markers_written(
            markers.state_partition,
            markers.coordinator_epoch,
            markers.transactional_id,
            markers.identity,
            results,
            self.now,
        )

    def write_markers(self, codes: dict[TopicIndex, ErrorCode] | None = None) -> None:
        """Answer all markers that were held back."""
        self.marker_codes = codes or {}
        held, self.markers = self.markers, []
        for markers in held:
            self.carry_out(self._answer_markers(markers))

    # --- what is seen ----------------------------------------

    def stored(self, name: str = ID) -> Transaction | None:
        """The value in the log."""
        value: Transaction | None = None
        for key, each in self.log.get(self.coordinator.partition_of(name), []):
            meaning = records.decode(key, each)
            assert isinstance(meaning, records.StoredTransaction)
            if meaning.transactional_id == name:
                value = meaning.transaction
        return value

    def put(self, transaction: Transaction, name: str = ID) -> None:
        """Put the value into the log, and have it loaded."""
        partition = self.coordinator.partition_of(name)
        value = records.value_of(transaction, min(self.level, 1))
        self.log.setdefault(partition, []).append((records.key_of(name), value))
        self.move()

    @property
    def state(self) -> str:
        return self.coordinator.describe(ID).state
