"""Guards against transactional batches that arrive too late: memory of one log's leader, never written.

A transactional batch opens a transaction of its producer in this log. The coordinator must know of it, or no marker
would ever end it. So the leader asks the coordinator before the append, and between question and append the transaction
may end: its marker is already in the log, and a batch that is appended after it would open a transaction that never
ends (KAFKA-12671, 14884). A guard is made before the question; whatever ends or opens a transaction of the producer
removes it, and a batch that opens one must bring a guard that is still there.

Owns the guards and when they end. Never asks a coordinator, and never checks a batch (`producer_state.py` does). One
guard for each producer and epoch: a request with a made-up epoch has no effect on the guards of the true one.

Rules: transactions.md X36 to X38.
"""

from __future__ import annotations

from typing import Final

from fenceline.records.sequences import is_after

MAX_EPOCH: Final = (1 << 15) - 1
"""The last epoch of a producer id: a transaction that is fenced in it is aborted without a new epoch (X16)."""


class VerificationGuard:
    """Identifies one question to the coordinator, and those of the same producer and epoch that joined it."""

    __slots__ = ("adds_partition", "last_used_ms", "lowest_sequence")

    def __init__(self, lowest_sequence: int, *, adds_partition: bool, now_ms: int) -> None:
        self.lowest_sequence = lowest_sequence
        """The first sequence of the earliest batch that waits: a later one must not be appended before it (X38)."""
        self.adds_partition = adds_partition
        """The coordinator is asked to add the partition: transaction version 2, where each transaction has an epoch of
        its own."""
        self.last_used_ms = now_ms


WITHOUT_VERIFICATION: Final = VerificationGuard(0, adds_partition=False, now_ms=0)
"""Passed by code that appends without a question: verification is off, or the batches are its own."""


class VerificationGuards:
    """The guards of one log, while this node leads it."""

    __slots__ = ("_guards",)

    def __init__(self) -> None:
        self._guards: dict[int, dict[int, VerificationGuard]] = {}
        """By producer id and epoch."""

    def __bool__(self) -> bool:
        return bool(self._guards)

    def __len__(self) -> int:
        return sum(map(len, self._guards.values()))

    def begin(
        self, producer_id: int, epoch: int, sequence: int, *, adds_partition: bool, now_ms: int
    ) -> VerificationGuard:
        """The guard of a batch whose transaction is not open here, before the coordinator is asked."""
        by_epoch = self._guards.setdefault(producer_id, {})
        guard = by_epoch.get(epoch)
        if guard is None:
            guard = by_epoch[epoch] = VerificationGuard(sequence, adds_partition=adds_partition, now_ms=now_ms)
            return guard
        if is_after(guard.lowest_sequence, sequence):
            guard.lowest_sequence = sequence
        guard.adds_partition = guard.adds_partition or adds_partition
        guard.last_used_ms = now_ms
        return guard

    def valid(self, producer_id: int, epoch: int, guard: VerificationGuard | None) -> VerificationGuard | None:
        """`guard` if a batch of this producer and epoch may use it, else None."""
        if guard is WITHOUT_VERIFICATION:
            return guard
        by_epoch = self._guards.get(producer_id)
        return guard if guard is not None and by_epoch is not None and by_epoch.get(epoch) is guard else None

    def on_data(self, producer_id: int, epoch: int) -> None:
        """A transactional batch was appended: questions of its epoch are answered, those of older epochs void."""
        self._end(producer_id, epoch, keeps_added=False)

    def on_marker(self, producer_id: int, epoch: int) -> None:
        """A marker was appended: it ends the transactions of its epoch and of older ones.

        With transaction version 2 a marker carries the epoch of the next transaction, which it does not end. No
        transaction follows in the last epoch: its marker ends whatever is open in it (X16, X17).
        """
        self._end(producer_id, epoch, keeps_added=epoch < MAX_EPOCH)

    def _end(self, producer_id: int, epoch: int, *, keeps_added: bool) -> None:
        by_epoch = self._guards.get(producer_id)
        if by_epoch is None:
            return
        for known in [known for known in by_epoch if known <= epoch]:
            if not (keeps_added and known == epoch and by_epoch[known].adds_partition):
                del by_epoch[known]
        if not by_epoch:
            del self._guards[producer_id]

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Remove guards that no batch has used for that long (`producer.id.expiration.ms`)."""
        for producer_id, by_epoch in [*self._guards.items()]:
            for epoch in [epoch for epoch, each in by_epoch.items() if now_ms - each.last_used_ms >= expiration_ms]:
                del by_epoch[epoch]
            if not by_epoch:
                del self._guards[producer_id]

    def clear(self) -> None:
        """Another leader epoch: markers may have come meanwhile."""
        self._guards.clear()
