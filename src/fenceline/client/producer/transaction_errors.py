"""What an error of a transactional producer's request leads to, as a table.

Owns the classification of error codes: the request is sent again, the transaction must be aborted, or the producer
cannot continue. Never sends anything.

| request | fails the producer | aborts the transaction |
|---|---|---|
| FindCoordinator | the rest | 30, 120 |
| InitProducerId | the rest | 31, 53, 120 |
| AddPartitionsToTxn | 48, 49, 53 | the rest |
| AddOffsetsToTxn | the rest | 30, 59, 120 |
| EndTxn, to commit | the rest | 59, 120 |
| EndTxn, to abort | the rest | 59 |
| TxnOffsetCommit | the rest | 22, 25, 30, 82, 120 |
| Produce | 31, 35, 49, 53, 90 | the rest |

Retriable codes and CONCURRENT_TRANSACTIONS are retried; 47 and 90 fail the producer, except 47 of Produce.

Rules: `transactions.md` X54, X55.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from fenceline.client.core.errors import (
    RETRIABLE,
    ProducerFenced,
    TransactionAbortable,
    TransactionFailed,
)
from fenceline.errors import ErrorCode, PeerError


class TransactionRequest(Enum):
    """The requests of a transactional producer."""

    FIND_COORDINATOR = "FindCoordinator"
    INIT_PRODUCER = "InitProducerId"
    ADD_PARTITIONS = "AddPartitionsToTxn"
    ADD_OFFSETS = "AddOffsetsToTxn"
    COMMIT = "EndTxn to commit"
    ABORT = "EndTxn to abort"
    COMMIT_OFFSETS = "TxnOffsetCommit"
    PRODUCE = "Produce"


class Reaction(Enum):
    """What an error leads to."""

    RETRY = "retry"
    ABORT = "abort"
    FAIL = "fail"


class _Row(NamedTuple):
    """The reaction to most codes, and the codes with the other one."""

    usual: Reaction
    others: frozenset[int]


_FENCED: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})
_TABLE: Final[Mapping[TransactionRequest, _Row]] = {
    TransactionRequest.FIND_COORDINATOR: _Row(Reaction.FAIL, frozenset({30, 120})),
    TransactionRequest.INIT_PRODUCER: _Row(Reaction.FAIL, frozenset({31, 53, 120})),
    TransactionRequest.ADD_PARTITIONS: _Row(Reaction.ABORT, frozenset({48, 49, 53})),
    TransactionRequest.ADD_OFFSETS: _Row(Reaction.FAIL, frozenset({30, 59, 120})),
    TransactionRequest.COMMIT: _Row(Reaction.FAIL, frozenset({59, 120})),
    TransactionRequest.ABORT: _Row(Reaction.FAIL, frozenset({59})),
    TransactionRequest.COMMIT_OFFSETS: _Row(Reaction.FAIL, frozenset({22, 25, 30, 82, 120})),
    TransactionRequest.PRODUCE: _Row(Reaction.ABORT, frozenset({31, 35, 49, 53, 90})),
}
_OTHER: Final = {Reaction.ABORT: Reaction.FAIL, Reaction.FAIL: Reaction.ABORT}


def reaction_to(request: TransactionRequest, code: ErrorCode) -> Reaction:
    """What `code` in the response to `request` leads to."""
    if code in RETRIABLE:
        return Reaction.RETRY
    if code in _FENCED and request is not TransactionRequest.PRODUCE:
        return Reaction.FAIL
    row = _TABLE[request]
    return _OTHER[row.usual] if code in row.others else row.usual


def abortable(error: Exception) -> TransactionAbortable:
    """The exception for a transaction that must be aborted because of `error`."""
    code = error.code if isinstance(error, PeerError) else ErrorCode.TRANSACTION_ABORTABLE
    found = TransactionAbortable(
        code, f"The transaction must be aborted: {error} Call abort_transaction, then repeat its work in a new one."
    )
    found.__cause__ = error
    return found


def failed(error: Exception) -> TransactionFailed:
    """The exception for a producer that cannot continue because of `error`."""
    code = error.code if isinstance(error, PeerError) else ErrorCode.UNKNOWN_SERVER_ERROR
    if code in _FENCED:
        found: TransactionFailed = ProducerFenced(
            code,
            f"The producer was fenced: {error} Another producer has started with this transactional.id, or the "
            "transaction took longer than transaction.timeout.ms. Close this producer; only the newest one may write.",
        )
    else:
        found = TransactionFailed(
            code,
            f"The transactional producer cannot continue: {error} Close it and create a new one, which ends the "
            "transaction that is open.",
        )
    found.__cause__ = error
    return found
