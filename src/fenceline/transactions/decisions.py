"""What one request does to one transactional id: pure functions of its value, the request and the time.

Each returns a `Change`, or an outcome if nothing is written, or raises PeerError with the code of the response. Owns
the rules `transactions.md X7` to `X18`; never stores anything, never sees a pending change (`shard` rejects requests
while there is one).

Where Kafka's coordinator is weak, this one differs and the bytes stay compatible:
- a client's transaction version that the cluster's level cannot store is not kept (`X27`): Kafka's id would be blocked;
- a commit or abort that comes after a time-out or after a new producer with the id has ended the transaction gets
  PRODUCER_FENCED for the commit (`X19`): Kafka says INVALID_TXN_STATE, as if the client had mixed up its calls;
- the epoch before the newest one is in the record (`X6`): a repeated InitProducerId is recognized after a move.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeAlias

from fenceline.errors import ErrorCode, PeerError
from fenceline.transactions.messages import (
    NO_IDENTITY,
    AddPartitions,
    EndTransaction,
    InitProducer,
    PartitionsAdded,
    ProducerIdentity,
    ProducerInitialized,
    TransactionEnded,
    TransactionOutcome,
)
from fenceline.transactions.model import (
    LAST_EPOCH_OF_PRODUCERS,
    MAX_EPOCH,
    NO_EPOCH,
    NO_PARTITIONS,
    NO_PRODUCER_ID,
    NOT_STARTED,
    Change,
    Transaction,
)
from fenceline.transactions.settings import NO_TIMEOUT_MS, TransactionSettings
from fenceline.transactions.states import TransactionState

NextProducerId: TypeAlias = Callable[[], int | None]
"""The next unused producer id; None while none is at hand."""

FIRST_VERSION_THAT_BUMPS: Final = 5
"""Of EndTxn: every end raises the epoch, and the response has the identity for the next transaction."""
LEVEL_THAT_BUMPS: Final = 2
"""Of transaction.version, and of a client's transaction version."""


def storable_version(client_version: int, level: int) -> int:
    """The client's transaction version to store under this level of transaction.version (`transactions.md X27`)."""
    return client_version if level > 0 else 0


def new_producer_id(next_producer_id: NextProducerId) -> int:
    """Raises PeerError COORDINATOR_LOAD_IN_PROGRESS (14) while no id is at hand (`transactions.md X29`)."""
    producer_id = next_producer_id()
    if producer_id is None:
        raise PeerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "No producer id is at hand yet; try again.")
    return producer_id


def check_identity(known: Transaction, identity: ProducerIdentity) -> None:
    """Raises PeerError for another producer id (49) or another epoch (90) than the current one."""
    if identity.producer_id != known.producer_id:
        raise PeerError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if identity.epoch != known.epoch:
        raise PeerError(ErrorCode.PRODUCER_FENCED)


# --- InitProducerId ----------------------------------------


def check_init(request: InitProducer, settings: TransactionSettings) -> None:
    """What is wrong with the request whatever its id's state is (`transactions.md X7`). Raises PeerError."""
    producer_id, epoch = request.expected
    if (producer_id == NO_PRODUCER_ID) != (epoch == NO_EPOCH):
        raise PeerError(ErrorCode.INVALID_REQUEST, "Give the producer id and its epoch, or neither of them.")
    if request.transactional_id is None:
        return
    if not request.transactional_id:
        raise PeerError(ErrorCode.INVALID_REQUEST, "The transactional id is empty.")
    if request.two_phase and not settings.two_phase_commit:
        raise PeerError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "Two-phase commit is off: set transaction.two.phase.commit.enable on the brokers.",
        )
    if request.keep_prepared:
        raise PeerError(ErrorCode.UNSUPPORTED_VERSION, "Prepared transactions cannot be kept (KIP-939).")
    if not request.two_phase and not 0 < request.timeout_ms <= settings.max_timeout_ms:
        raise PeerError(
            ErrorCode.INVALID_TRANSACTION_TIMEOUT,
            f"The timeout must be above 0 ms and at most transaction.max.timeout.ms, {settings.max_timeout_ms} ms.",
        )


def stored_timeout_ms(request: InitProducer) -> int:
    return NO_TIMEOUT_MS if request.two_phase else request.timeout_ms


def first_value(request: InitProducer, producer_id: int, wall_ms: int) -> Transaction:
    """Of an id that has no record yet (`transactions.md X8`)."""
    return Transaction(producer_id, NO_EPOCH, stored_timeout_ms(request), last_update_ms=wall_ms)


def init_producer(
    known: Transaction, request: InitProducer, level: int, next_producer_id: NextProducerId, wall_ms: int
) -> Change:
    """`transactions.md X8` to `X10`. `level`: of transaction.version. Raises PeerError."""
    expected = request.expected
    if expected != NO_IDENTITY and known.epoch != NO_EPOCH and not _may_init(known, expected):
        raise PeerError(ErrorCode.PRODUCER_FENCED)
    if known.state.is_prepared:
        raise PeerError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if known.state is TransactionState.ONGOING:
        after = fenced(known, level, next_producer_id, wall_ms)
        return Change(after, ProducerInitialized(ErrorCode.CONCURRENT_TRANSACTIONS))
    after = replace(
        _next_producer(known, expected, next_producer_id),
        timeout_ms=stored_timeout_ms(request),
        state=TransactionState.EMPTY,
        partitions=NO_PARTITIONS,
        start_ms=NOT_STARTED,
        last_update_ms=wall_ms,
        client_version=storable_version(known.client_version, level),
        fenced=False,
    )
    return Change(after, ProducerInitialized(ErrorCode.NONE, after.identity))


def _may_init(known: Transaction, expected: ProducerIdentity) -> bool:
    """Whether the producer id is the current one, or the one before the epochs ran out."""
    return expected.producer_id == known.producer_id or (
        expected.producer_id == known.previous_producer_id and expected.epoch >= LAST_EPOCH_OF_PRODUCERS
    )


def _next_producer(known: Transaction, expected: ProducerIdentity, next_producer_id: NextProducerId) -> Transaction:
    """The identity that follows at rest: the cases of `transactions.md X9`. Raises PeerError."""
    is_new = expected == NO_IDENTITY
    if known.epoch >= LAST_EPOCH_OF_PRODUCERS and (is_new or expected.epoch == known.epoch):
        return replace(
            known,
            producer_id=new_producer_id(next_producer_id),
            epoch=0,
            previous_producer_id=known.producer_id,
            last_epoch=NO_EPOCH if is_new else known.epoch,
        )
    if is_new or known.epoch == NO_EPOCH:
        return replace(known, epoch=known.epoch + 1, last_epoch=NO_EPOCH)
    if expected.epoch == known.epoch:
        return replace(known, epoch=known.epoch + 1, last_epoch=known.epoch)
    if expected.epoch == known.last_epoch:
        return known
    raise PeerError(ErrorCode.PRODUCER_FENCED)


def fenced(known: Transaction, level: int, next_producer_id: NextProducerId, wall_ms: int) -> Transaction:
    """The abort of an ongoing transaction that its producer did not ask for: by a new producer with the id, or by the
    time-out (`transactions.md X16`, `X17`). Raises PeerError 14."""
    bumps = level >= LEVEL_THAT_BUMPS
    after = replace(
        known,
        epoch=min(known.epoch + 1, MAX_EPOCH),
        state=TransactionState.PREPARE_ABORT,
        last_update_ms=wall_ms,
        last_epoch=known.epoch if bumps else NO_EPOCH,
        client_version=level,
        fenced=True,
    )
    if bumps and known.epoch >= LAST_EPOCH_OF_PRODUCERS:
        return replace(after, next_producer_id=new_producer_id(next_producer_id))
    return after


# --- AddPartitionsToTxn ----------------------------------------


def add_partitions(known: Transaction, request: AddPartitions, level: int, wall_ms: int) -> Change | TransactionOutcome:
    """`transactions.md X11`. Raises PeerError."""
    check_identity(known, request.identity)
    if known.state.is_prepared:
        raise PeerError(ErrorCode.CONCURRENT_TRANSACTIONS)
    added = PartitionsAdded((ErrorCode.NONE,) * len(request.partitions))
    starts = known.state is not TransactionState.ONGOING
    partitions = known.partitions.union(request.partitions)
    if not starts and len(partitions) == len(known.partitions):
        return added  # all of them are in it, or the request names none
    after = replace(
        known,
        state=TransactionState.ONGOING,
        partitions=partitions,
        start_ms=wall_ms if starts else known.start_ms,
        last_update_ms=wall_ms,
        client_version=storable_version(request.transaction_version, level),
        fenced=False,
    )
    return Change(after, added)


def verify_partitions(known: Transaction | None, request: AddPartitions) -> PartitionsAdded:
    """`transactions.md X12`: which partitions are in the transaction. Raises PeerError."""
    if known is None:
        raise PeerError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    check_identity(known, request.identity)
    if known.state.is_prepared:
        raise PeerError(ErrorCode.CONCURRENT_TRANSACTIONS)
    return PartitionsAdded(
        tuple(
            ErrorCode.NONE if partition in known.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for partition in request.partitions
        )
    )


# --- EndTxn ----------------------------------------


def end_transaction(
    known: Transaction, request: EndTransaction, level: int, next_producer_id: NextProducerId, wall_ms: int
) -> Change | TransactionOutcome:
    """`transactions.md X14` for versions below 5, `X15` and `X17` from 5 on. Raises PeerError."""
    if request.version >= FIRST_VERSION_THAT_BUMPS:
        return _end_and_bump(known, request, level, next_producer_id, wall_ms)
    check_identity(known, request.identity)
    if known.state is TransactionState.ONGOING:
        after = replace(known, state=_prepared(request.commit), last_update_ms=wall_ms, client_version=0, fenced=False)
        return Change(after, TransactionEnded(ErrorCode.NONE))
    if known.state is TransactionState.EMPTY or known.state.commits != request.commit:
        raise PeerError(ErrorCode.INVALID_TXN_STATE)
    if known.state.is_prepared:
        raise PeerError(ErrorCode.CONCURRENT_TRANSACTIONS)
    return TransactionEnded(ErrorCode.NONE, is_from_memory=True)


def _end_and_bump(
    known: Transaction, request: EndTransaction, level: int, next_producer_id: NextProducerId, wall_ms: int
) -> Change | TransactionOutcome:
    is_overflow_retry = (
        request.identity == (known.previous_producer_id, LAST_EPOCH_OF_PRODUCERS)
        and known.previous_producer_id != NO_PRODUCER_ID
        and known.epoch == 0
    )
    if request.identity.producer_id != known.producer_id and not is_overflow_retry:
        raise PeerError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    is_retry = is_overflow_retry or request.identity.epoch == known.epoch - 1
    is_current = not is_overflow_retry and request.identity.epoch == known.epoch
    match known.state:
        case TransactionState.ONGOING:
            may = is_current
        case TransactionState.PREPARE_COMMIT | TransactionState.PREPARE_ABORT:
            may = is_retry
        case TransactionState.EMPTY:
            may = is_current
        case _:
            may = is_retry or is_current
    if not may:
        raise PeerError(ErrorCode.PRODUCER_FENCED)
    if known.state is TransactionState.ONGOING:
        return _bumped(known, request, level, next_producer_id, wall_ms)
    if is_current:
        if request.commit:
            raise PeerError(ErrorCode.INVALID_TXN_STATE, "There is no transaction to commit.")
        return _bumped(known, request, level, next_producer_id, wall_ms)
    if known.state.commits != request.commit:
        if known.fenced:
            raise PeerError(ErrorCode.PRODUCER_FENCED, "The transaction was aborted: it timed out, or was fenced.")
        raise PeerError(ErrorCode.INVALID_TXN_STATE, "The transaction has ended the other way.")
    if known.state.is_prepared:
        raise PeerError(ErrorCode.CONCURRENT_TRANSACTIONS)
    return TransactionEnded(ErrorCode.NONE, known.identity)


def _bumped(
    known: Transaction, request: EndTransaction, level: int, next_producer_id: NextProducerId, wall_ms: int
) -> Change:
    """The decision, with the next epoch; with the next producer id if the epochs have run out."""
    after = replace(
        known,
        epoch=min(known.epoch + 1, MAX_EPOCH),
        state=_prepared(request.commit),
        start_ms=known.start_ms if known.state is TransactionState.ONGOING else wall_ms,
        last_update_ms=wall_ms,
        last_epoch=known.epoch,
        client_version=storable_version(LEVEL_THAT_BUMPS, level),
        fenced=False,
    )
    if known.epoch >= LAST_EPOCH_OF_PRODUCERS:
        after = replace(after, next_producer_id=new_producer_id(next_producer_id))
    return Change(after, TransactionEnded(ErrorCode.NONE, after.identity_after_end))


def _prepared(commit: bool) -> TransactionState:
    return TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT


def completed(known: Transaction, level: int, wall_ms: int) -> Transaction:
    """The value once all end markers are written (`transactions.md X17`)."""
    rotates = known.next_producer_id != NO_PRODUCER_ID
    return replace(
        known,
        producer_id=known.next_producer_id if rotates else known.producer_id,
        epoch=0 if rotates else known.epoch,
        previous_producer_id=known.producer_id if rotates else known.previous_producer_id,
        next_producer_id=NO_PRODUCER_ID,
        state=TransactionState.COMPLETE_COMMIT if known.state.commits else TransactionState.COMPLETE_ABORT,
        partitions=NO_PARTITIONS,
        last_update_ms=wall_ms,
        client_version=storable_version(known.client_version, level),
    )
