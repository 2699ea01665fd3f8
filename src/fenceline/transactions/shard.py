"""One partition of `__transaction_state`: its transactional ids, from the replay of its log until it is unloaded.

Owns the current value of each id, its one pending change, the end markers that are still to be written, and the timers
of time-out, retry and expiry. Decides nothing about requests (`decisions`) and never executes a duty.

Invariants (`check`): a value is replaced only when the record of the new one is committed; an id has at most one change
pending; a response that depends on a change is sent when its record is committed or rejected, or with a retriable error
when it takes too long, and then the change stays pending: the log decides. Once the record of a decision is committed,
nothing but its completion follows, however often markers or the completion fail.

Kafka's coordinator differs in two points, both without effect on the bytes. It gives up the markers of an id after
INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED and leaves it incomplete until the partition moves
(`transactions.md X22`); here they are retried and reported. It forgets a pending change in one error path only (`X27`);
here every rejected write clears it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import islice
from typing import Final, NamedTuple, Protocol

from fenceline.coordination import Now, Ticket, append_error
from fenceline.deadlines import PartitionDeadlines
from fenceline.errors import ErrorCode, PeerError
from fenceline.transactions import decisions, records
from fenceline.transactions.messages import (
    AnswerTransaction,
    AppendState,
    DescribedTransaction,
    EndMarkers,
    ListedTransaction,
    MarkerRejected,
    ProducerIdentity,
    TopicIndex,
    TransactionDuty,
    TransactionOutcome,
    WriteMarkers,
)
from fenceline.transactions.model import NO_EPOCH, Change, Transaction, check_step
from fenceline.transactions.records import UnknownTransactionRecord
from fenceline.transactions.settings import MAX_RETRY_MS, NO_TIMEOUT_MS, RETRY_MS, TransactionSettings
from fenceline.transactions.states import REMOVABLE, TransactionState

_WRITTEN: Final = frozenset({ErrorCode.NONE, ErrorCode.UNSUPPORTED_VERSION, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT})
_UNTIL_METADATA: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""The leader will change or come back (`transactions.md X22`)."""
_MOST_REMOVED_AT_ONCE: Final = 10
_REMOVAL_PAUSE_MS: Final = 20
_RESUMED_AT_ONCE: Final = 200
"""Up to 7 us each: tens of thousands may be loaded at once."""


class TransactionTimerKind(IntEnum):
    TIMEOUT = 0
    """An ongoing transaction has taken too long."""
    RETRY = 1
    """Markers or a completion that failed are tried again."""
    EXPIRY = 2
    """Unused ids are removed."""
    RETRY_DELAYED = 3
    """All markers that are delayed are tried again, a few at a time."""


class TransactionTimer(NamedTuple):
    kind: TransactionTimerKind
    transactional_id: str = ""


class Rejected(Protocol):
    """The response to a request whose write was rejected with this code."""

    def __call__(self, code: ErrorCode) -> TransactionOutcome: ...


@dataclass(frozen=True, slots=True)
class _Waiting:
    """The request that waits for a write."""

    ticket: Ticket
    outcome: TransactionOutcome
    rejected: Rejected


@dataclass(slots=True)
class _PendingChange:
    """A change whose record is not decided yet; `after` is None for a removal."""

    write_id: int
    after: Transaction | None
    waiting: _Waiting | None


@dataclass(slots=True)
class _Completion:
    """What is left to do for a decided transaction."""

    unwritten: set[TopicIndex]
    delayed: set[TopicIndex] = field(default_factory=set)
    """Those of them that failed and wait for the retry."""
    attempts: int = 0


@dataclass(slots=True)
class _Entry:
    current: Transaction
    pending: _PendingChange | None = None
    completion: _Completion | None = None


class StatePartition:
    """`epoch` is the leader epoch of the partition, which end markers carry as the coordinator's epoch."""

    def __init__(
        self,
        partition: int,
        epoch: int,
        settings: TransactionSettings,
        next_write_id: Callable[[], int],
        next_producer_id: decisions.NextProducerId,
        level: Callable[[], int],
        partition_exists: Callable[[str, int], bool],
    ) -> None:
        self.partition: Final = partition
        self.epoch: Final = epoch
        self.skipped = 0
        """Records of unknown versions that the replay skipped."""
        self._settings = settings
        self.timers: Final[PartitionDeadlines[TransactionTimer]] = PartitionDeadlines(partition)
        self._next_write_id = next_write_id
        self._next_producer_id = next_producer_id
        self._level = level
        self._partition_exists = partition_exists
        self._entries: dict[str, _Entry] = {}
        self._writes: dict[int, str] = {}
        self._delayed: set[str] = set()
        """Ids with markers that wait for a retry."""
        self._tried_next: list[str] = []
        """Those of them that are tried again as soon as others have had their turn."""
        self._expired: list[str] = []
        """Ids that are still to be removed."""
        self._duties: list[TransactionDuty] = []
        self._to_resume = self._loaded()

    def __len__(self) -> int:
        return len(self._entries)

    def pop_duties(self) -> list[TransactionDuty]:
        """Everything to do since the last call, in order."""
        duties, self._duties = self._duties, []
        return duties

    # --- replay ----------------------------------------

    def replay(self, key: bytes | None, value: bytes | None) -> None:
        """Apply one record of the log; the last one of an id counts. Raises InternalError on an unreadable one."""
        meaning = records.decode(key, value)
        if isinstance(meaning, UnknownTransactionRecord):
            self.skipped += 1
        elif meaning.transaction is None:
            self._entries.pop(meaning.transactional_id, None)
        else:
            self._entries[meaning.transactional_id] = _Entry(meaning.transaction)

    def _loaded(self) -> Iterator[tuple[str, _Entry]]:
        """Once they are all loaded."""
        yield from self._entries.items()

    def resume_some(self, now: Now) -> bool:
        """Replay is complete: prepare what follows from the values of some ids. Whether there may be more."""
        left = _RESUMED_AT_ONCE
        for transactional_id, entry in islice(self._to_resume, left):
            left -= 1
            current = entry.current
            if current.state.is_prepared:
                entry.completion = _Completion(set(current.partitions), set(current.partitions))
                self._delayed.add(transactional_id)
            elif current.state is TransactionState.ONGOING:
                self._arm_timeout(transactional_id, current, now)
        return not left

    def resume(self, now: Now) -> None:
        """Replay is complete: decided transactions go on, a few at a time; ongoing ones have their time-outs."""
        while self.resume_some(now):
            pass
        self.retry_delayed(now)
        self._arm(TransactionTimerKind.EXPIRY, "", now.monotonic_ms + self._settings.expiry_interval_ms)

    def unload(self) -> None:
        """Another broker coordinates the partition: waiting requests get NOT_COORDINATOR."""
        for transactional_id in self._writes.values():
            pending = self._entries[transactional_id].pending
            if pending is not None and (waiting := pending.waiting) is not None:
                self._answer(waiting.ticket, waiting.rejected(ErrorCode.NOT_COORDINATOR))
        self._entries.clear()
        self._writes.clear()
        self._delayed.clear()
        self._tried_next.clear()
        self._expired.clear()

    # --- requests ----------------------------------------

    def known(self, transactional_id: str) -> Transaction | None:
        """The value of the id without its pending change."""
        entry = self._entries.get(transactional_id)
        return None if entry is None else entry.current

    def create(self, transactional_id: str, first: Transaction) -> Transaction:
        """A new id; it is dropped again if its first record is rejected."""
        assert transactional_id not in self._entries
        self._entries[transactional_id] = _Entry(first)
        return first

    def forget_unwritten(self, transactional_id: str) -> None:
        """Drop an id that has no record and none pending."""
        entry = self._entries.get(transactional_id)
        if entry is not None and entry.current.epoch == NO_EPOCH and entry.pending is None:
            del self._entries[transactional_id]

    def require_none_pending(self, transactional_id: str) -> None:
        """Raises PeerError CONCURRENT_TRANSACTIONS (51) while a record of the id is not decided (`X3`)."""
        entry = self._entries.get(transactional_id)
        if entry is not None and entry.pending is not None:
            raise PeerError(ErrorCode.CONCURRENT_TRANSACTIONS, "The last change of this id is not committed yet.")

    def write(self, transactional_id: str, change: Change, ticket: Ticket, rejected: Rejected) -> None:
        """Request the append of a change; the ticket gets its outcome when it is committed."""
        waiting = _Waiting(ticket, change.outcome, rejected)
        self._write(transactional_id, self._entries[transactional_id], change.after, waiting)

    def answer(self, ticket: Ticket, outcome: TransactionOutcome) -> None:
        self._answer(ticket, outcome)

    def listed(self) -> Iterator[tuple[str, Transaction]]:
        """Every id that has a record."""
        return (
            (transactional_id, entry.current)
            for transactional_id, entry in self._entries.items()
            if entry.current.epoch != NO_EPOCH
        )

    def states(self) -> Iterator[TransactionState]:
        """Of every id that has a record."""
        return (entry.current.state for entry in list(self._entries.values()) if entry.current.epoch != NO_EPOCH)

    @property
    def delayed_count(self) -> int:
        """Transactions whose markers or completion failed and are tried again."""
        return len(self._delayed)

    # --- results of writes ----------------------------------------

    def committed(self, write_id: int, now: Now) -> None:
        """The record is committed. An unknown write id is an old one and is ignored."""
        transactional_id, entry, pending = self._decided(write_id)
        if pending is None:
            return
        if pending.waiting is not None:
            self._answer(pending.waiting.ticket, pending.waiting.outcome)
        if pending.after is None:
            del self._entries[transactional_id]
        else:
            entry.current = pending.after
            self._follow(transactional_id, entry, now)

    def rejected(self, write_id: int, code: ErrorCode, now: Now) -> None:
        """The log rejected the record: the id is as before it."""
        transactional_id, entry, pending = self._decided(write_id)
        if pending is None:
            return
        if pending.waiting is not None:
            self._answer(pending.waiting.ticket, pending.waiting.rejected(append_error(code)))
        if entry.completion is not None:
            self._arm_retry(transactional_id, entry.completion, now)
        elif entry.current.state is TransactionState.ONGOING:
            self._arm_timeout(transactional_id, entry.current, now, at_earliest_ms=1)
        self.forget_unwritten(transactional_id)

    def late(self, write_id: int) -> None:
        """The record is in the log and not committed in time: the request may be repeated (`transactions.md X4`)."""
        pending = self._pending(write_id)
        if pending is not None and (waiting := pending.waiting) is not None:
            self._answer(waiting.ticket, waiting.rejected(append_error(ErrorCode.REQUEST_TIMED_OUT)))
            pending.waiting = None

    def _pending(self, write_id: int) -> _PendingChange | None:
        transactional_id = self._writes.get(write_id)
        return None if transactional_id is None else self._entries[transactional_id].pending

    def _decided(self, write_id: int) -> tuple[str, _Entry, _PendingChange | None]:
        transactional_id = self._writes.pop(write_id, None)
        if transactional_id is None:
            return "", _NO_ENTRY, None
        entry = self._entries[transactional_id]
        pending, entry.pending = entry.pending, None
        assert pending is not None, "a write that is not decided belongs to a pending change"
        assert pending.write_id == write_id
        return transactional_id, entry, pending

    # --- markers ----------------------------------------

    def markers_written(
        self, transactional_id: str, identity: ProducerIdentity, results: Mapping[TopicIndex, ErrorCode], now: Now
    ) -> None:
        """Codes for end markers of a `WriteMarkers` (`transactions.md X21`, `X22`)."""
        entry = self._entries.get(transactional_id)
        if entry is None or entry.completion is None or entry.current.identity != identity:
            return
        completion = entry.completion
        for partition, code in results.items():
            if partition not in completion.unwritten:
                continue
            if code in _WRITTEN or (code in _UNTIL_METADATA and not self._partition_exists(*partition)):
                completion.unwritten.discard(partition)
                completion.delayed.discard(partition)
                continue
            completion.delayed.add(partition)
            if code not in _UNTIL_METADATA and completion.attempts & (completion.attempts - 1) == 0:
                self._duties.append(
                    MarkerRejected(transactional_id, identity, partition, code, completion.attempts + 1)
                )
        if not completion.unwritten:
            self._complete(transactional_id, entry, now)
        elif completion.delayed:
            self._delayed.add(transactional_id)
            self._arm_retry(transactional_id, completion, now)

    def retry_delayed(self, now: Now) -> None:
        """Delayed markers are tried from now on, those of a few transactions at a time."""
        if self._delayed:
            self._tried_next = list(self._delayed)
            self._arm(TransactionTimerKind.RETRY_DELAYED, "", now.monotonic_ms)

    def _send_markers(self, transactional_id: str, current: Transaction, partitions: set[TopicIndex]) -> None:
        self._duties.append(
            WriteMarkers(
                EndMarkers(
                    self.partition,
                    self.epoch,
                    transactional_id,
                    current.identity,
                    current.state.commits,
                    current.client_version,
                    tuple(sorted(partitions)),
                )
            )
        )

    def _retry_next(self, now: Now) -> None:
        while self._tried_next:
            transactional_id = self._tried_next.pop()
            if transactional_id in self._delayed:
                self._retry(transactional_id, now)
                break
        if self._tried_next:
            self._arm(TransactionTimerKind.RETRY_DELAYED, "", now.monotonic_ms)

    def _retry(self, transactional_id: str, now: Now) -> None:
        self._delayed.discard(transactional_id)
        self._disarm(TransactionTimerKind.RETRY, transactional_id)
        entry = self._entries.get(transactional_id)
        if entry is None or entry.completion is None or entry.pending is not None:
            return
        if not entry.completion.unwritten:
            self._complete(transactional_id, entry, now)
            return
        delayed, entry.completion.delayed = entry.completion.delayed, set()
        if delayed:
            self._send_markers(transactional_id, entry.current, delayed)

    def _complete(self, transactional_id: str, entry: _Entry, now: Now) -> None:
        self._delayed.discard(transactional_id)
        self._disarm(TransactionTimerKind.RETRY, transactional_id)
        if entry.pending is None:
            after = decisions.completed(entry.current, self._level(), now.wall_ms)
            self._write(transactional_id, entry, after, None)

    # --- time ----------------------------------------

    def on_timer(self, timer: TransactionTimer, now: Now) -> None:
        match timer.kind:
            case TransactionTimerKind.TIMEOUT:
                self._on_timeout(timer.transactional_id, now)
            case TransactionTimerKind.RETRY:
                self._retry(timer.transactional_id, now)
            case TransactionTimerKind.RETRY_DELAYED:
                self._retry_next(now)
            case TransactionTimerKind.EXPIRY:
                self._remove_expired(now)

    def _on_timeout(self, transactional_id: str, now: Now) -> None:
        """`transactions.md X19`."""
        entry = self._entries.get(transactional_id)
        if entry is None or entry.current.state is not TransactionState.ONGOING:
            return
        if entry.pending is None:
            try:
                after = decisions.fenced(entry.current, self._level(), self._next_producer_id, now.wall_ms)
            except PeerError:
                pass  # no producer id is at hand: again at the next interval
            else:
                self._write(transactional_id, entry, after, None)
                return
        self._arm(TransactionTimerKind.TIMEOUT, transactional_id, now.monotonic_ms + self._settings.abort_interval_ms)

    def _remove_expired(self, now: Now) -> None:
        """`transactions.md X20`. A bounded number at once: the rest follows after a pause."""

        def is_expired(entry: _Entry) -> bool:
            current = entry.current
            return current.state in REMOVABLE and current.last_update_ms <= before_ms and entry.pending is None

        before_ms = now.wall_ms - self._settings.expiration_ms
        if not self._expired:
            self._expired = [name for name, entry in self._entries.items() if is_expired(entry)]
        for _ in range(min(len(self._expired), _MOST_REMOVED_AT_ONCE)):
            transactional_id = self._expired.pop()
            entry = self._entries.get(transactional_id)
            if entry is not None and is_expired(entry):
                self._write(transactional_id, entry, None, None)
        pause_ms = _REMOVAL_PAUSE_MS if self._expired else self._settings.expiry_interval_ms
        self._arm(TransactionTimerKind.EXPIRY, "", now.monotonic_ms + pause_ms)

    def _arm_timeout(self, transactional_id: str, current: Transaction, now: Now, *, at_earliest_ms: int = 0) -> None:
        """At the first multiple of the interval at which the transaction is too old, and within its timeout from now:
        the coordinator that began it may have had a clock ahead of this one. `at_earliest_ms`: from now on, so that an
        abort that the log rejects is not tried again at once."""
        if current.timeout_ms == NO_TIMEOUT_MS:
            return
        whole_ms = current.timeout_ms + 1
        left_ms = min(current.start_ms + whole_ms - now.wall_ms, whole_ms)
        due_ms = now.monotonic_ms + max(at_earliest_ms, left_ms)
        interval_ms = self._settings.abort_interval_ms
        self._arm(TransactionTimerKind.TIMEOUT, transactional_id, -(-due_ms // interval_ms) * interval_ms)

    def _arm_retry(self, transactional_id: str, completion: _Completion, now: Now) -> None:
        pause_ms = min(MAX_RETRY_MS, RETRY_MS << min(completion.attempts, 20))
        completion.attempts += 1
        self._arm(TransactionTimerKind.RETRY, transactional_id, now.monotonic_ms + pause_ms)

    def _arm(self, kind: TransactionTimerKind, transactional_id: str, deadline_ms: int) -> None:
        self.timers.arm(TransactionTimer(kind, transactional_id), deadline_ms)

    def _disarm(self, kind: TransactionTimerKind, transactional_id: str) -> None:
        self.timers.disarm(TransactionTimer(kind, transactional_id))

    # --- small parts ----------------------------------------

    def _follow(self, transactional_id: str, entry: _Entry, now: Now) -> None:
        """What follows from the current value: its timer, its markers, its completion."""
        current = entry.current
        entry.completion = None
        if current.state is TransactionState.ONGOING:
            self._arm_timeout(transactional_id, current, now)
            return
        self._disarm(TransactionTimerKind.TIMEOUT, transactional_id)
        if current.state.is_prepared:
            entry.completion = _Completion(set(current.partitions))
            if current.partitions:
                self._send_markers(transactional_id, current, entry.completion.unwritten)
            else:
                self._complete(transactional_id, entry, now)

    def _write(self, transactional_id: str, entry: _Entry, after: Transaction | None, waiting: _Waiting | None) -> None:
        assert entry.pending is None, "one change of an id at a time"
        if after is not None:
            check_step(entry.current, after)
        write_id = self._next_write_id()
        self._writes[write_id] = transactional_id
        entry.pending = _PendingChange(write_id, after, waiting)
        self._duties.append(
            AppendState(
                self.partition,
                self.epoch,
                write_id,
                records.key_of(transactional_id),
                None if after is None else records.value_of(after, min(self._level(), records.NEWEST_VALUE_VERSION)),
                entry.current.timeout_ms,
            )
        )

    def _answer(self, ticket: Ticket, outcome: TransactionOutcome) -> None:
        self._duties.append(AnswerTransaction(ticket, outcome))

    def check(self) -> None:
        """Assert the invariants: for tests and the simulation, after any event."""
        pending = {}
        for transactional_id, entry in self._entries.items():
            entry.current.check()
            if entry.pending is not None:
                pending[entry.pending.write_id] = transactional_id
            else:
                assert entry.current.epoch != NO_EPOCH, f"{transactional_id} has no record and none pending"
            assert (entry.completion is not None) == entry.current.state.is_prepared, transactional_id
            if entry.completion is not None:
                assert entry.completion.delayed <= entry.completion.unwritten <= entry.current.partitions
                assert entry.completion.unwritten or entry.pending or self._is_armed(transactional_id), transactional_id
            elif entry.current.state is TransactionState.ONGOING and entry.current.timeout_ms != NO_TIMEOUT_MS:
                assert entry.pending is not None or self._is_armed(transactional_id), transactional_id
        assert pending == self._writes

    def _is_armed(self, transactional_id: str) -> bool:
        return transactional_id in self._tried_next or any(
            self.timers.deadline_ms(TransactionTimer(kind, transactional_id)) is not None
            for kind in (TransactionTimerKind.TIMEOUT, TransactionTimerKind.RETRY)
        )


_NO_ENTRY: Final = _Entry(Transaction(-1, NO_EPOCH, 0))


def described(transactional_id: str, transaction: Transaction) -> DescribedTransaction:
    """`transactions.md X31`."""
    return DescribedTransaction(
        transactional_id,
        transaction.state.title,
        transaction.timeout_ms,
        transaction.start_ms,
        transaction.identity,
        tuple(sorted(transaction.partitions)),
    )


def listed(transactional_id: str, transaction: Transaction) -> ListedTransaction:
    return ListedTransaction(transactional_id, transaction.producer_id, transaction.state.title)
