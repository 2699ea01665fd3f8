"""The states of a transactional id and the legal steps between them, as tables. Owns nothing else.

    state           is left for
    Empty           Empty, Ongoing, PrepareAbort (an abort without partitions), removed
    Ongoing         Ongoing (a partition more), PrepareCommit, PrepareAbort
    PrepareCommit   CompleteCommit
    PrepareAbort    CompleteAbort
    CompleteCommit  Empty, Ongoing, PrepareAbort (an abort without partitions), removed
    CompleteAbort   Empty, Ongoing, PrepareAbort (an abort without partitions), removed

`transactions.md X1`, `X2`. Kafka has two more states in memory only: `Dead` while an id is removed, `PrepareEpochFence`
while a producer is fenced. Here both are a pending change (`model.PendingChange`) of a state of this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final


class TransactionState(IntEnum):
    """The value is that of the record, `title` the name in ListTransactions and DescribeTransactions."""

    EMPTY = 0
    """The producer is initialized and has no transaction."""
    ONGOING = 1
    """At least one partition was added."""
    PREPARE_COMMIT = 2
    """The decision to commit is in the log; end markers are written."""
    PREPARE_ABORT = 3
    """The decision to abort is in the log; end markers are written."""
    COMPLETE_COMMIT = 4
    """All end markers are written."""
    COMPLETE_ABORT = 5

    @property
    def title(self) -> str:
        return _TITLES[self]

    @property
    def is_prepared(self) -> bool:
        """The outcome is decided and not complete."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_at_rest(self) -> bool:
        """There is no transaction: nothing added, nothing to complete."""
        return self not in (TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def commits(self) -> bool:
        """The outcome of a decided transaction."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)


_TITLES: Final[Mapping[TransactionState, str]] = {
    TransactionState.EMPTY: "Empty",
    TransactionState.ONGOING: "Ongoing",
    TransactionState.PREPARE_COMMIT: "PrepareCommit",
    TransactionState.PREPARE_ABORT: "PrepareAbort",
    TransactionState.COMPLETE_COMMIT: "CompleteCommit",
    TransactionState.COMPLETE_ABORT: "CompleteAbort",
}
STATE_TITLES: Final = frozenset({*_TITLES.values(), "Dead", "PrepareEpochFence"})
"""Names that a filter of ListTransactions may use; no id is ever shown in the last two."""

_AT_REST: Final = frozenset({TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
PREDECESSORS: Final[Mapping[TransactionState, frozenset[TransactionState]]] = {
    TransactionState.EMPTY: _AT_REST,
    TransactionState.ONGOING: _AT_REST | {TransactionState.ONGOING},
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
    TransactionState.PREPARE_ABORT: _AT_REST | {TransactionState.ONGOING},
    TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
    TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
}
"""By state: the states from which a record may lead to it (`transactions.md X2`)."""
REMOVABLE: Final = _AT_REST
"""The states in which an unused id expires (`transactions.md X20`)."""
