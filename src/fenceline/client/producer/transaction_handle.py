"""A transaction as a value that processes can pass to each other (transactional id, producer id, epoch).

A transaction is not bound to a connection (`transactions.md` X69): a driver begins and ends it, executors write in it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransactionHandle:
    """One transaction. Can be pickled."""

    transactional_id: str
    producer_id: int
    epoch: int
