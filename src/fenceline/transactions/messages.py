"""Inputs and outputs of the transaction coordinator: requests, outcomes, duties. Data only; reads no clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias

from fenceline.coordination import Ticket
from fenceline.errors import ErrorCode

TopicIndex: TypeAlias = tuple[str, int]
"""A topic's name and the number of a partition."""


class ProducerIdentity(NamedTuple):
    """A producer id and its epoch. The log rejects older epochs of the same id."""

    producer_id: int
    epoch: int


NO_IDENTITY: Final = ProducerIdentity(-1, -1)


# --- requests ----------------------------------------


@dataclass(frozen=True, slots=True)
class InitProducer:
    """InitProducerId: a producer starts, or asks for the next epoch. Ends what an earlier one with its id left open."""

    transactional_id: str | None
    """None: of a producer that is only idempotent."""
    timeout_ms: int
    expected: ProducerIdentity = NO_IDENTITY
    """Of a producer that has an identity and wants the next epoch (KIP-360)."""
    two_phase: bool = False
    keep_prepared: bool = False
    version: int = 5


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """AddPartitionsToTxn: partitions (of `__consumer_offsets`, too) enter the transaction before they are written."""

    transactional_id: str
    identity: ProducerIdentity
    partitions: tuple[TopicIndex, ...]
    verify_only: bool = False
    """Ask only whether they are in it."""
    transaction_version: int = 0
    """The client's, as the request's version shows it: 2 or 0 (`transactions.md X11`)."""
    version: int = 5


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """EndTxn: commit or abort. From version 5 on every end raises the epoch (KIP-890)."""

    transactional_id: str
    identity: ProducerIdentity
    commit: bool
    version: int = 5


# --- outcomes ----------------------------------------


@dataclass(frozen=True, slots=True)
class ProducerInitialized:
    """The identity to use from now on; NO_IDENTITY with an error."""

    error: ErrorCode
    identity: ProducerIdentity = NO_IDENTITY


@dataclass(frozen=True, slots=True)
class PartitionsAdded:
    """One code for each partition of the request, in its order."""

    errors: tuple[ErrorCode, ...]


@dataclass(frozen=True, slots=True)
class TransactionEnded:
    """From EndTxn v5 on: the identity to use for the next transaction; NO_IDENTITY before v5 and with an error."""

    error: ErrorCode
    identity: ProducerIdentity = NO_IDENTITY
    is_from_memory: bool = False
    """Nothing was written: the newest transaction of this epoch that is known here has ended in this way. Before v5,
    later ones may have the same epoch."""


TransactionOutcome: TypeAlias = ProducerInitialized | PartitionsAdded | TransactionEnded


class ListedTransaction(NamedTuple):
    transactional_id: str
    producer_id: int
    state: str


class TransactionListing(NamedTuple):
    """`unknown_states`: names in the filter that no state has."""

    unknown_states: tuple[str, ...]
    transactions: tuple[ListedTransaction, ...]


@dataclass(frozen=True, slots=True)
class DescribedTransaction:
    """The fields of DescribeTransactions; `start_ms` is -1 without a transaction."""

    transactional_id: str
    state: str
    timeout_ms: int
    start_ms: int
    identity: ProducerIdentity
    partitions: tuple[TopicIndex, ...]


# --- duties ----------------------------------------


@dataclass(frozen=True, slots=True)
class AppendState:
    """Append this record to a partition of `__transaction_state`, as the leader of this epoch only and with all in-sync
    replicas; then call `appended` or `append_failed` with the write id, and `append_is_late` before that if it takes
    longer than `timeout_ms`."""

    state_partition: int
    coordinator_epoch: int
    write_id: int
    key: bytes
    value: bytes | None
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class AnswerTransaction:
    """A response, and the ticket of the request that waits for it."""

    ticket: Ticket
    outcome: TransactionOutcome


@dataclass(frozen=True, slots=True)
class EndMarkers:
    """End markers of one decided transaction that are still to be written."""

    state_partition: int
    coordinator_epoch: int
    transactional_id: str
    identity: ProducerIdentity
    """With the epoch of the decision."""
    commit: bool
    transaction_version: int
    partitions: tuple[TopicIndex, ...]

    def of(self, partitions: Iterable[TopicIndex]) -> EndMarkers:
        """The markers of some of the partitions."""
        return replace(self, partitions=tuple(partitions))


@dataclass(frozen=True, slots=True)
class WriteMarkers:
    """Have these markers written by the partitions' leaders; then call `markers_written` with the codes, of some
    partitions or of all. A disconnected leader is NETWORK_EXCEPTION, a partition without leader
    LEADER_NOT_AVAILABLE; the next duty for them comes from that call."""

    markers: EndMarkers


@dataclass(frozen=True, slots=True)
class MarkerRejected:
    """A partition rejects an end marker for a reason that time alone does not mend: log it for the operator. It is
    retried, and the transaction stays decided and incomplete until then."""

    transactional_id: str
    identity: ProducerIdentity
    partition: TopicIndex
    code: ErrorCode
    attempts: int


TransactionDuty: TypeAlias = AppendState | AnswerTransaction | WriteMarkers | MarkerRejected
