"""The state of a transactional producer: phase, producer id and epoch, partitions that were added. Pure.

Owns the table of phases, and what the sender may send. Never sends anything.

| phase | from |
|---|---|
| UNINITIALIZED | READY, ABORTABLE_ERROR |
| INITIALIZING | UNINITIALIZED, COMMITTING, ABORTING |
| READY | INITIALIZING, COMMITTING, ABORTING |
| IN_TRANSACTION | READY |
| COMMITTING | IN_TRANSACTION |
| ABORTING | IN_TRANSACTION, ABORTABLE_ERROR |
| ABORTABLE_ERROR | IN_TRANSACTION, COMMITTING, INITIALIZING, itself |
| FATAL | any |

These are the states of Kafka's producer without PREPARED (KIP-939).

Rules: `transactions.md` X53, X55.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

from fenceline.client.core.errors import ClientError, TransactionAborted, TransactionFailed
from fenceline.client.producer.transaction_errors import Reaction, TransactionRequest, abortable, failed, reaction_to
from fenceline.client.producer.transaction_requests import NO_PRODUCER, ProducerIdAndEpoch
from fenceline.errors import ErrorCode, InternalError, OperatorError, PeerError
from fenceline.ids import TopicPartition


class TransactionPhase(Enum):
    UNINITIALIZED = "not initialized"
    INITIALIZING = "initializing"
    READY = "without a transaction"
    IN_TRANSACTION = "in a transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "waiting for an abort"
    FATAL = "failed"


_P = TransactionPhase
PREDECESSORS: Final[Mapping[TransactionPhase, frozenset[TransactionPhase]]] = {
    _P.UNINITIALIZED: frozenset({_P.READY, _P.ABORTABLE_ERROR}),
    _P.INITIALIZING: frozenset({_P.UNINITIALIZED, _P.COMMITTING, _P.ABORTING}),
    _P.READY: frozenset({_P.INITIALIZING, _P.COMMITTING, _P.ABORTING}),
    _P.IN_TRANSACTION: frozenset({_P.READY}),
    _P.COMMITTING: frozenset({_P.IN_TRANSACTION}),
    _P.ABORTING: frozenset({_P.IN_TRANSACTION, _P.ABORTABLE_ERROR}),
    _P.ABORTABLE_ERROR: frozenset({_P.IN_TRANSACTION, _P.COMMITTING, _P.INITIALIZING, _P.ABORTABLE_ERROR}),
    _P.FATAL: frozenset(_P),
}
_ADVICE: Final[Mapping[TransactionPhase, str]] = {
    _P.UNINITIALIZED: "Call init_transactions first.",
    _P.INITIALIZING: "Call init_transactions again: it did not complete.",
    _P.READY: "Call begin_transaction first.",
    _P.IN_TRANSACTION: "Call commit_transaction or abort_transaction first.",
    _P.COMMITTING: "Call commit_transaction again: whether it was committed is not known.",
    _P.ABORTING: "Call abort_transaction again: it did not complete.",
}


class ProducerTransaction:
    """The transactions of one producer. `refuse(error)`: from now on `send` raises this (None: accepts records).

    `on_wanted()`: the sender wants to add partitions.
    """

    def __init__(
        self, transactional_id: str, refuse: Callable[[Exception | None], None], on_wanted: Callable[[], None]
    ) -> None:
        self.transactional_id = transactional_id
        self.phase = _P.UNINITIALIZED
        self.producer = NO_PRODUCER
        self.is_version_2 = False
        self.has_started = False
        """Whether the coordinator may know of this transaction: something was sent."""
        self.needs_next_epoch = False
        """Whether sequence numbers were lost, so that the next transaction needs another epoch (X55)."""
        self.wanted: set[TopicPartition] = set()
        self.error: ClientError | None = None
        self._added: set[TopicPartition] = set()
        self._refuse = refuse
        self._on_wanted = on_wanted
        refuse(self._unusable("send"))

    # -- for the sender

    def may_send(self, tp: TopicPartition) -> bool:
        """Whether a batch of this partition may be sent now; asks to add the partition if it must be added first."""
        if self.is_version_2:
            self.has_started = True
            return True
        if tp in self._added:
            return True
        if tp not in self.wanted:
            self.wanted.add(tp)
            self._on_wanted()
        return False

    @property
    def drops_unsent(self) -> TransactionAborted | None:
        """Why batches are not sent, or not sent again, any more; None: they are."""
        if self.phase in (_P.ABORTING, _P.ABORTABLE_ERROR, _P.FATAL):
            reason = "" if self.error is None else f" after an error ({self.error.message})"
            return TransactionAborted(f"not sent: its transaction is being aborted{reason}")
        return None

    def delivery_failed(self, error: Exception, *, has_sequence: bool) -> None:
        """A batch was not written, or it is unknown whether it was."""
        self.needs_next_epoch = self.needs_next_epoch or has_sequence
        if self.phase is _P.ABORTING or self.phase is _P.FATAL:
            return
        code = error.code if isinstance(error, PeerError) else ErrorCode.UNKNOWN_SERVER_ERROR
        if reaction_to(TransactionRequest.PRODUCE, code) is Reaction.FAIL:
            self.fail(failed(error))
        else:
            self.fail(abortable(error))

    # -- for the driver

    def expect(self, call: str, *phases: TransactionPhase) -> None:
        """Raise if `call` is not possible in this phase: the error of an earlier request, or OperatorError."""
        if self.phase not in phases:
            raise self._unusable(call)

    def move(self, to: TransactionPhase) -> None:
        if self.phase not in PREDECESSORS[to]:
            raise InternalError(f"a transactional producer that is {self.phase.value} cannot become {to.value}")
        self.phase = to
        if to in (_P.READY, _P.UNINITIALIZED):
            self.error = None
        self._refuse(None if to is _P.IN_TRANSACTION else self._unusable("send"))

    def begin(self, *, is_version_2: bool) -> None:
        self.is_version_2 = is_version_2
        self.has_started = self.needs_next_epoch = False
        self._added.clear()
        self.wanted.clear()
        self.move(_P.IN_TRANSACTION)

    def added(self, partitions: set[TopicPartition]) -> None:
        """The coordinator has added these."""
        self._added |= partitions
        self.wanted -= partitions

    def fail(self, error: ClientError) -> None:
        """A request failed with TransactionAbortable or TransactionFailed. Nothing can be aborted while an abort fails,
        so that fails the producer, too.
        """
        if self.phase is _P.FATAL:
            return
        is_fatal = isinstance(error, TransactionFailed) or self.phase not in PREDECESSORS[_P.ABORTABLE_ERROR]
        if is_fatal and not isinstance(error, TransactionFailed):
            error = failed(error)
        if self.error is None or is_fatal:
            self.error = error
        self.move(_P.FATAL if is_fatal else _P.ABORTABLE_ERROR)

    def _unusable(self, call: str) -> Exception:
        """The error of a call in a phase that does not allow it."""
        if self.error is not None and self.phase in (_P.ABORTABLE_ERROR, _P.FATAL):
            return self.error.with_traceback(None)
        return OperatorError(f"{call} is not possible: the producer is {self.phase.value}", _ADVICE[self.phase])


__all__ = ["PREDECESSORS", "ProducerIdAndEpoch", "ProducerTransaction", "TransactionPhase"]
