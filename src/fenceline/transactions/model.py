"""The value of one transactional id, and a change of it. Owns what holds in each state (`check`); decides nothing.

A `Transaction` is what one record of `__transaction_state` holds and is never modified: a change makes a new one, which
replaces the old one when its record is committed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fenceline.errors import InternalError
from fenceline.transactions.messages import ProducerIdentity, TopicIndex, TransactionOutcome
from fenceline.transactions.states import PREDECESSORS, TransactionState

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
NOT_STARTED: Final = -1
MAX_EPOCH: Final = 2**15 - 1
"""Only end markers carry it; producers get up to one less (`transactions.md X17`)."""
LAST_EPOCH_OF_PRODUCERS: Final = MAX_EPOCH - 1
NO_PARTITIONS: Final[frozenset[TopicIndex]] = frozenset()


@dataclass(frozen=True, slots=True)
class Transaction:
    """Times are milliseconds since the epoch."""

    producer_id: int
    epoch: int
    """-1 before the first record of the id is committed."""
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicIndex] = NO_PARTITIONS
    start_ms: int = NOT_STARTED
    last_update_ms: int = NOT_STARTED
    previous_producer_id: int = NO_PRODUCER_ID
    """The one before the epochs ran out: its last epoch is accepted from a producer that repeats a request."""
    next_producer_id: int = NO_PRODUCER_ID
    """The one from the completion on, if the epochs ran out with this transaction."""
    last_epoch: int = NO_EPOCH
    """The epoch before the newest one if the same producer had both: a repeated InitProducerId may name it."""
    client_version: int = 0
    """The client's transaction version, which end markers carry; 2: every end raised the epoch."""
    fenced: bool = False
    """The newest end was a time-out or a new producer's, not this producer's own."""

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.epoch)

    @property
    def identity_after_end(self) -> ProducerIdentity:
        """The identity for the next transaction, from the decision on."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return ProducerIdentity(self.next_producer_id, 0)
        return self.identity

    def check(self) -> None:
        """Assert what holds in each state."""
        assert -1 <= self.epoch <= MAX_EPOCH, self
        if self.state is TransactionState.ONGOING:
            assert self.start_ms >= 0, self
        elif not self.state.is_prepared:
            assert not self.partitions, self
            assert self.next_producer_id == NO_PRODUCER_ID, self


@dataclass(frozen=True, slots=True)
class Change:
    """A decision: the value that the next record of the id holds, and the response once it is committed."""

    after: Transaction
    outcome: TransactionOutcome


def check_step(before: Transaction, after: Transaction) -> None:
    """Raises InternalError if no record may lead from one to the other (`transactions.md X2`)."""
    if before.state not in PREDECESSORS[after.state]:
        raise InternalError(f"a transaction cannot go from {before.state.title} to {after.state.title}")
    if after.producer_id == before.producer_id and after.epoch < before.epoch:
        raise InternalError(f"the epoch of producer {after.producer_id} fell from {before.epoch} to {after.epoch}")
    after.check()
