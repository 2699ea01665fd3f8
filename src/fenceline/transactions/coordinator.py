"""The entry point of the transaction coordinator: requests, timers, and the results of appends and markers.

Owns which partitions of `__transaction_state` are coordinated here and in what phase (loading, active, failed), the one
heap of deadlines, and the conversion of `PeerError` into each API's response. Sans-I/O: every call returns duties.

| phase of the partition | response to a request               |
|------------------------|-------------------------------------|
| not ours, failed       | NOT_COORDINATOR (16)                |
| loading                | COORDINATOR_LOAD_IN_PROGRESS (14)   |
| active                 | what `decisions` says               |

`transactions.md X5` to `X31`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from fenceline.coordination import DUE_AT_ONCE, Now, Ticket, partition_for
from fenceline.deadlines import DeadlinesByPartition
from fenceline.errors import ErrorCode, PeerError
from fenceline.transactions import decisions
from fenceline.transactions.decisions import NextProducerId
from fenceline.transactions.messages import (
    AddPartitions,
    AnswerTransaction,
    DescribedTransaction,
    EndTransaction,
    InitProducer,
    PartitionsAdded,
    ProducerIdentity,
    ProducerInitialized,
    TopicIndex,
    TransactionDuty,
    TransactionEnded,
    TransactionListing,
)
from fenceline.transactions.model import NO_EPOCH, Change, Transaction
from fenceline.transactions.records import can_be_key
from fenceline.transactions.settings import DEFAULT_PARTITION_COUNT, TransactionSettings
from fenceline.transactions.shard import StatePartition, TransactionTimer, described, listed
from fenceline.transactions.states import STATE_TITLES, TransactionState

_FIRST_INIT_THAT_KNOWS_FENCED: Final = 4
_FIRST_THAT_KNOWS_FENCED: Final = 2
"""Of AddPartitionsToTxn and EndTxn: older versions get INVALID_PRODUCER_EPOCH (`transactions.md X30`)."""


class TransactionCoordinator:
    def __init__(
        self,
        settings: TransactionSettings,
        next_producer_id: NextProducerId,
        level: Callable[[], int],
        partition_exists: Callable[[str, int], bool],
        partition_count: int = DEFAULT_PARTITION_COUNT,
    ) -> None:
        """`next_producer_id`: None while none is at hand. `level`: the finalized level of transaction.version.
        `partition_exists`: whether the newest metadata has this partition of this topic."""
        self.settings = settings
        self.partition_count = partition_count
        """Of `__transaction_state`; fixed once a transactional id exists."""
        self._next_producer_id = next_producer_id
        self._level = level
        self._partition_exists = partition_exists
        self._timers: DeadlinesByPartition[TransactionTimer] = DeadlinesByPartition()
        self._active: dict[int, StatePartition] = {}
        self._loading: dict[int, StatePartition] = {}
        self._last_write_id = 0

    # --- which partitions ----------------------------------------

    def partition_of(self, transactional_id: str) -> int:
        """`transactions.md X24`."""
        return partition_for(transactional_id, self.partition_count)

    @property
    def active_partitions(self) -> frozenset[int]:
        return frozenset(self._active)

    @property
    def loading_partitions(self) -> frozenset[int]:
        return frozenset(self._loading)

    def active_epoch(self, partition: int) -> int | None:
        """The epoch in which the partition's ids are coordinated here; None if they are not, or not yet."""
        active = self._active.get(partition)
        return active.epoch if active is not None else None

    def begin_load(self, partition: int, epoch: int) -> tuple[StatePartition | None, list[TransactionDuty]]:
        """This broker leads the partition from `epoch` on. Returns what to replay into; None for an old epoch."""
        for known in (self._active.get(partition), self._loading.get(partition)):
            if known is not None and known.epoch >= epoch:
                return None, []
        duties = self.resign(partition)
        return self._new_partition(partition, epoch), duties

    def restart_load(self, loading: StatePartition) -> StatePartition:
        """The log could not be read to its end: start again with nothing. `is_current` holds."""
        return self._new_partition(loading.partition, loading.epoch)

    def _new_partition(self, partition: int, epoch: int) -> StatePartition:
        loading = self._loading[partition] = StatePartition(
            partition,
            epoch,
            self.settings,
            self._next_write_id,
            self._next_producer_id,
            self._level,
            self._partition_exists,
        )
        return loading

    def is_current(self, loading: StatePartition) -> bool:
        """Whether this load is still current; False once it was superseded or resigned."""
        return self._loading.get(loading.partition) is loading

    def resume_some(self, loading: StatePartition, now: Now) -> bool:
        """Replay is complete: prepare some of what is loaded for `finish_load`, which otherwise prepares all of it.
        Whether there may be more. `is_current` holds."""
        return loading.resume_some(now)

    def finish_load(self, loading: StatePartition, now: Now) -> list[TransactionDuty]:
        """Replay is complete: requests are served from now on, and decided transactions are completed."""
        if not self.is_current(loading):
            return []
        del self._loading[loading.partition]
        self._active[loading.partition] = loading
        loading.resume(now)
        self._timers.attach(loading.partition, loading.timers)
        return loading.pop_duties()

    def fail_load(self, loading: StatePartition) -> None:
        """The partition cannot be read: it has no coordinator until it gets a new leader epoch."""
        if self.is_current(loading):
            del self._loading[loading.partition]

    def resign(self, partition: int) -> list[TransactionDuty]:
        """Another broker leads the partition. All waiting requests get an error."""
        self._loading.pop(partition, None)
        active = self._active.pop(partition, None)
        if active is None:
            return []
        self._timers.detach(partition)
        active.unload()
        return active.pop_duties()

    # --- requests that are answered by a duty ----------------------------------------

    def init_producer(self, ticket: Ticket, request: InitProducer, now: Now) -> list[TransactionDuty]:
        """`transactions.md X7`: the checks in Kafka's order."""

        def rejected(code: ErrorCode) -> ProducerInitialized:
            return ProducerInitialized(_known_to(code, request.version, _FIRST_INIT_THAT_KNOWS_FENCED))

        try:
            decisions.check_init(request, self.settings)
            transactional_id = request.transactional_id
            if transactional_id is None:
                producer_id = decisions.new_producer_id(self._next_producer_id)
                outcome = ProducerInitialized(ErrorCode.NONE, ProducerIdentity(producer_id, 0))
                return [AnswerTransaction(ticket, outcome)]
            if not can_be_key(transactional_id):
                raise PeerError(ErrorCode.INVALID_REQUEST, "A transactional id has at most 32,767 bytes.")
            partition = self._partition(transactional_id)
        except PeerError as error:
            return [AnswerTransaction(ticket, rejected(error.code))]
        try:
            partition.require_none_pending(transactional_id)
            known = partition.known(transactional_id)
            if known is None:
                producer_id = decisions.new_producer_id(self._next_producer_id)
                known = partition.create(transactional_id, decisions.first_value(request, producer_id, now.wall_ms))
            change = decisions.init_producer(known, request, self._level(), self._next_producer_id, now.wall_ms)
            partition.write(transactional_id, change, ticket, rejected)
        except PeerError as error:
            partition.forget_unwritten(transactional_id)
            partition.answer(ticket, rejected(error.code))
        return partition.pop_duties()

    def add_partitions(self, ticket: Ticket, request: AddPartitions, now: Now) -> list[TransactionDuty]:
        """`transactions.md X11`, `X12`."""

        def rejected(code: ErrorCode) -> PartitionsAdded:
            known_code = _known_to(code, request.version, _FIRST_THAT_KNOWS_FENCED)
            return PartitionsAdded((known_code,) * len(request.partitions))

        try:
            partition = self._named_partition(request.transactional_id)
        except PeerError as error:
            return [AnswerTransaction(ticket, rejected(error.code))]
        try:
            if request.verify_only:
                known = partition.known(request.transactional_id)
                partition.answer(ticket, decisions.verify_partitions(known, request))
            else:
                known = self._known(partition, request.transactional_id)
                decision = decisions.add_partitions(known, request, self._level(), now.wall_ms)
                if isinstance(decision, Change):
                    partition.write(request.transactional_id, decision, ticket, rejected)
                else:
                    partition.answer(ticket, decision)
        except PeerError as error:
            partition.answer(ticket, rejected(error.code))
        return partition.pop_duties()

    def end_transaction(self, ticket: Ticket, request: EndTransaction, now: Now) -> list[TransactionDuty]:
        """`transactions.md X14`, `X15`, `X18`: the response is sent when the decision is committed."""

        def rejected(code: ErrorCode) -> TransactionEnded:
            return TransactionEnded(_known_to(code, request.version, _FIRST_THAT_KNOWS_FENCED))

        try:
            partition = self._named_partition(request.transactional_id)
        except PeerError as error:
            return [AnswerTransaction(ticket, rejected(error.code))]
        try:
            known = self._known_to_end(partition, request)
            decision = decisions.end_transaction(known, request, self._level(), self._next_producer_id, now.wall_ms)
            if isinstance(decision, Change):
                partition.write(request.transactional_id, decision, ticket, rejected)
            else:
                partition.answer(ticket, decision)
        except PeerError as error:
            partition.answer(ticket, rejected(error.code))
        return partition.pop_duties()

    # --- requests that are answered at once ----------------------------------------

    def describe(self, transactional_id: str) -> DescribedTransaction:
        """Raises PeerError: INVALID_REQUEST, not coordinated here, loading, or TRANSACTIONAL_ID_NOT_FOUND."""
        known = self._named_partition(transactional_id).known(transactional_id)
        if known is None or known.epoch == NO_EPOCH:
            raise PeerError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return described(transactional_id, known)

    def list_transactions(
        self,
        states: frozenset[str],
        producer_ids: frozenset[int],
        now: Now,
        longer_than_ms: int = -1,
        matches: Callable[[str], bool] = lambda _: True,
    ) -> TransactionListing:
        """Empty filters match everything; a negative duration does, too. An id without a transaction counts as older
        than any duration. Raises PeerError COORDINATOR_LOAD_IN_PROGRESS while a partition is loading."""
        if self._loading:
            raise PeerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

        def is_wanted(transactional_id: str, transaction: Transaction) -> bool:
            return (
                (not states or transaction.state.title in states)
                and (not producer_ids or transaction.producer_id in producer_ids)
                and (longer_than_ms < 0 or now.wall_ms - transaction.start_ms > longer_than_ms)
                and matches(transactional_id)
            )

        return TransactionListing(
            tuple(sorted(states - STATE_TITLES)),
            tuple(
                listed(transactional_id, transaction)
                for partition in self._active.values()
                for transactional_id, transaction in partition.listed()
                if is_wanted(transactional_id, transaction)
            ),
        )

    def states(self) -> Counter[TransactionState]:
        """The number of transactional ids in each state, of loaded partitions. Any thread may call it."""
        found: Counter[TransactionState] = Counter()
        for partition in list(self._active.values()):
            found.update(partition.states())
        return found

    @property
    def delayed_count(self) -> int:
        """Transactions whose markers or completion failed and are tried again."""
        return sum(partition.delayed_count for partition in list(self._active.values()))

    # --- the log, the markers, the metadata, time ----------------------------------------

    def appended(self, state_partition: int, write_id: int, now: Now) -> list[TransactionDuty]:
        return self._apply(state_partition, lambda partition: partition.committed(write_id, now))

    def append_failed(self, state_partition: int, write_id: int, code: ErrorCode, now: Now) -> list[TransactionDuty]:
        """The log has rejected the record: it is certain that it will not be committed."""
        return self._apply(state_partition, lambda partition: partition.rejected(write_id, code, now))

    def append_is_late(self, state_partition: int, write_id: int) -> list[TransactionDuty]:
        """It is not known yet whether the record will be committed: the waiting request gets an error, the change stays
        pending."""
        return self._apply(state_partition, lambda partition: partition.late(write_id))

    def markers_written(
        self,
        state_partition: int,
        coordinator_epoch: int,
        transactional_id: str,
        identity: ProducerIdentity,
        results: Mapping[TopicIndex, ErrorCode],
        now: Now,
    ) -> list[TransactionDuty]:
        """The leaders' codes for the partitions of a `WriteMarkers`, all of them or some."""
        active = self._active.get(state_partition)
        if active is None or active.epoch != coordinator_epoch:
            return []
        active.markers_written(transactional_id, identity, results, now)
        return active.pop_duties()

    def on_leaders_changed(self, now: Now) -> None:
        """The metadata have other leaders, or fewer topics: markers that wait for that are tried again by `on_time`."""
        for partition in self._active.values():
            partition.retry_delayed(now)

    def next_deadline_ms(self) -> int | None:
        """Monotonic time of the next deadline for `on_time`."""
        return self._timers.next_deadline_ms()

    def on_time(self, now: Now) -> list[TransactionDuty]:
        """Run some of what is due; `next_deadline_ms` is still due if there is more."""
        duties: list[TransactionDuty] = []
        for partition, timer in self._timers.pop_some(now.monotonic_ms, DUE_AT_ONCE):
            active = self._active[partition]
            active.on_timer(timer, now)
            duties.extend(active.pop_duties())
        return duties

    def check(self) -> None:
        """Assert the invariants of all ids coordinated here: for tests and the simulation."""
        for partition in self._active.values():
            partition.check()

    # --- small parts ----------------------------------------

    def _apply(self, state_partition: int, change: Callable[[StatePartition], None]) -> list[TransactionDuty]:
        active = self._active.get(state_partition)
        if active is None:
            return []
        change(active)
        return active.pop_duties()

    def _known(self, partition: StatePartition, transactional_id: str) -> Transaction:
        known = partition.known(transactional_id)
        if known is None:
            raise PeerError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        partition.require_none_pending(transactional_id)
        return known

    def _known_to_end(self, partition: StatePartition, request: EndTransaction) -> Transaction:
        """Version 5 looks for a pending change first, older ones at the identity (`transactions.md X14`, `X15`)."""
        known = partition.known(request.transactional_id)
        if known is None:
            raise PeerError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if request.version < decisions.FIRST_VERSION_THAT_BUMPS:
            decisions.check_identity(known, request.identity)
        partition.require_none_pending(request.transactional_id)
        return known

    def _named_partition(self, transactional_id: str) -> StatePartition:
        if not transactional_id:
            raise PeerError(ErrorCode.INVALID_REQUEST, "The transactional id is empty.")
        return self._partition(transactional_id)

    def _partition(self, transactional_id: str) -> StatePartition:
        partition = self.partition_of(transactional_id)
        active = self._active.get(partition)
        if active is not None:
            return active
        if partition in self._loading:
            raise PeerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        raise PeerError(ErrorCode.NOT_COORDINATOR)

    def _next_write_id(self) -> int:
        self._last_write_id += 1
        return self._last_write_id


def _known_to(code: ErrorCode, version: int, first_that_knows: int) -> ErrorCode:
    """PRODUCER_FENCED (90) in a version that knows it, else INVALID_PRODUCER_EPOCH (47)."""
    if code is ErrorCode.PRODUCER_FENCED and version < first_that_knows:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
