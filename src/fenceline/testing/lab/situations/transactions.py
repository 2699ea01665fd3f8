"""Situations of transactions: aborted ones, ones that hang, and producers that are fenced.

Owns the choreography of these. Rules: `transactions.md`; KIP-98, KIP-890.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from fenceline.client import Producer
from fenceline.errors import FencelineError
from fenceline.testing.lab.faults import ActiveFault
from fenceline.testing.lab.situations.common import LAB_CLIENT, WAIT_S, SituationBase, values_of

_TIMEOUT_MS = 600_000


@dataclass(frozen=True, slots=True)
class AbortedRecords:
    """Records that are in the log, and that no reader of committed records may see."""

    topic: str
    partition: int
    offsets: tuple[int, ...]
    values: tuple[bytes | None, ...]


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """A transaction that stays open: readers of committed records do not get past `first_offset`. Ends (it is aborted)
    with `fault.undo()`."""

    topic: str
    partition: int
    first_offset: int
    transactional_id: str
    fault: ActiveFault


@dataclass(frozen=True, slots=True)
class ZombieProducer:
    """The producer with this transactional id is fenced, and finds out with its next request."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class TransactionSituations(SituationBase):
    """Part of `Situations`."""

    def aborted_transaction(
        self, topic: str, partition: int = 0, *, values: Sequence[bytes | None] | None = None
    ) -> AbortedRecords:
        """Write records in a transaction, and abort it."""
        self._partition(topic, partition)
        written = list(values) if values is not None else values_of("aborted", 10)
        with self._producer(f"aborted-{topic}-{partition}") as producer:
            producer.begin_transaction()
            offsets = self._send(producer, topic, partition, written)
            producer.abort_transaction()
        self._note("aborted transaction", topic=topic, partition=partition, offsets=f"{offsets[0]}-{offsets[-1]}")
        return AbortedRecords(topic, partition, tuple(offsets), tuple(written))

    def hanging_transaction(self, topic: str, partition: int = 0, *, records: int = 1) -> HangingTransaction:
        """A producer writes records in a transaction, and never ends it."""
        self._partition(topic, partition)
        name = f"hanging-{topic}-{partition}"
        producer = self._producer(name)
        try:
            producer.begin_transaction()
            offsets = self._send(producer, topic, partition, values_of("hanging", records))
        except BaseException:
            producer.close()
            raise

        def undo() -> None:
            # The cluster may have aborted it, or may be down.
            with contextlib.suppress(FencelineError):
                producer.abort_transaction()
            with contextlib.suppress(FencelineError):
                producer.close()

        fault = self._cluster.faults.begin(f"hanging transaction in {topic}-{partition}", None, undo)
        return HangingTransaction(topic, partition, offsets[0], name, fault)

    def zombie_producer(self, transactional_id: str) -> ZombieProducer:
        """Fence the producer with this transactional id, as a second instance of it does; its open transaction is
        aborted."""
        producer_id, epoch = self._cluster.admin.fence_producer(transactional_id)
        self._note("zombie producer", transactional_id=transactional_id, new_epoch=epoch)
        return ZombieProducer(transactional_id, producer_id, epoch)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _producer(self, transactional_id: str) -> Producer:
        settings = {
            **self._cluster.client_settings,
            "client.id": LAB_CLIENT,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": _TIMEOUT_MS,
        }
        producer = Producer(settings)
        try:
            producer.init_transactions()
        except BaseException:
            producer.close()
            raise
        return producer

    def _send(self, producer: Producer, topic: str, partition: int, values: Sequence[bytes | None]) -> list[int]:
        deliveries = [producer.send(topic, value, partition=partition) for value in values]
        producer.flush()
        return [delivery.result(WAIT_S).offset for delivery in deliveries]
