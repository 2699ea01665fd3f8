"""Transactions that one process begins and ends, and others write in: the client's side of an exactly-once sink.

Owns the calls of both sides. The owner (a driver) begins a transaction, which ends that of its former run, and passes
its `TransactionHandle` to writers (executors). Each partition is written by one writer, over connections of its own,
with sequence numbers that start at 0; a writer is done when everything is acknowledged. The owner then commits the
records together with its progress: offsets of a private group, which are part of the same transaction.

After a crash at any step the next owner calls `begin` and reads `progress`: the transaction was committed as a whole or
not at all. A writer of a former transaction is fenced by its epoch. A partition must not be written twice in one
transaction: a second writer starts at sequence number 0 again, which the leader rejects, or takes for a retry of the
first one's batches if they are the same. If a writer fails, abort.

Requires transaction.version 2 (KIP-890).

Rules: `transactions.md` X69-X73.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from fenceline.client.core.client_base import AsyncClient, BlockingClient, blocking
from fenceline.client.core.cluster import Cluster
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.deadline import Deadline
from fenceline.client.core.group_requests import ConsumerGroupMetadata, fetch_committed
from fenceline.client.core.offsets import CommittedOffset
from fenceline.client.core.transaction_coordinator import describe_transaction
from fenceline.client.producer.producer import Producer
from fenceline.client.producer.transaction_handle import TransactionHandle
from fenceline.client.producer.transaction_requests import ProducerIdAndEpoch, TransactionRequests
from fenceline.client.producer.transactions import check_version_2, committed_offsets
from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition

_ABORTED: Final = ("PrepareAbort", "CompleteAbort")


class AsyncTransactionOwner(AsyncClient):
    """Create it inside a running loop. `group_id`: the private group of the progress, by default the transactional id.

    Keeps no state between calls: any process that has the newest handle can continue. Calls raise ProducerFenced if
    another owner has begun a transaction since, other TransactionFailed and TransactionAbortable errors, and TimedOut
    after max.block.ms. After any of them call `begin`, then `progress`.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] | Mapping[str, Any] | None,
        transactional_id: str,
        *,
        group_id: str | None = None,
        **config: Any,
    ) -> None:
        self.config = ClientConfig.parse("producer", bootstrap, {**config, "transactional.id": transactional_id})
        self.cluster = Cluster(self.config)
        self.group_id = transactional_id if group_id is None else group_id
        self._transactional_id = transactional_id
        self._requests = TransactionRequests(self.cluster, transactional_id)

    async def close(self) -> None:
        """Close every connection. An open transaction stays open, for `begin` of the next owner to end."""
        await self.cluster.close()

    async def begin(self) -> TransactionHandle:
        """Fence former owners and their writers, abort the transaction that is open, and return the handle of the next.

        Raises OperatorError if the cluster does not have transaction.version 2.
        """
        deadline = self._deadline()
        made = await self._requests.init_producer(self.config["transaction.timeout.ms"], deadline)
        check_version_2(self._requests.is_version_2())
        return self._handle(made)

    async def progress(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        """The committed progress: offsets with their metadata; partitions without one are left out.

        Waits for the end of a transaction that is being completed.
        """
        wanted = [TopicPartition(*tp) for tp in partitions]
        return await fetch_committed(self.cluster, self.group_id, wanted, self._deadline())

    async def commit(
        self, handle: TransactionHandle, offsets: Mapping[TopicPartition, CommittedOffset | int]
    ) -> TransactionHandle:
        """Commit what the writers wrote, together with the progress; returns the handle of the next transaction.

        All writers must have left the transaction without an error. Raises TransactionAbortable: then call `abort`.
        After TimedOut it is unknown whether it is committed: call `begin`, then `progress`.
        """
        values = committed_offsets(offsets)
        if not values:
            raise OperatorError("A commit needs the progress that it makes", "Pass an offset of one partition.")
        producer, deadline = self._producer_of(handle), self._deadline()
        group = ConsumerGroupMetadata(self.group_id)
        await self._requests.commit_offsets(producer, group, values, deadline, is_version_2=True)
        return self._handle(await self._requests.end(producer, deadline, commit=True, is_version_2=True))

    async def abort(self, handle: TransactionHandle) -> TransactionHandle:
        """Abort what the writers wrote; returns the handle of the next transaction."""
        producer = self._producer_of(handle)
        return self._handle(await self._requests.end(producer, self._deadline(), commit=False, is_version_2=True))

    async def was_aborted(self, handle: TransactionHandle) -> bool:
        """After ProducerFenced: whether the cluster itself has aborted the transaction, and no other owner has begun
        since. Its time-out does that, and a leader that recovers after an unclean election (X61-X63).
        """
        found = (await describe_transaction(self.cluster, self._transactional_id, self._deadline())).answer
        # Another owner's `begin` leaves a later epoch, or the state Empty.
        is_next = (found.producer_id, found.producer_epoch) == (handle.producer_id, handle.epoch + 1)
        return is_next and found.transaction_state in _ABORTED

    def _handle(self, producer: ProducerIdAndEpoch) -> TransactionHandle:
        return TransactionHandle(self._transactional_id, producer.producer_id, producer.epoch)

    def _producer_of(self, handle: TransactionHandle) -> ProducerIdAndEpoch:
        if handle.transactional_id != self._transactional_id:
            raise OperatorError(
                f"The handle is of transactional.id {handle.transactional_id}",
                f"This owner has transactional.id {self._transactional_id}.",
            )
        return ProducerIdAndEpoch(handle.producer_id, handle.epoch)

    def _deadline(self) -> Deadline:
        return Deadline(self.config["max.block.ms"])


class TransactionOwner(BlockingClient[AsyncTransactionOwner]):
    """The blocking API of `AsyncTransactionOwner`."""

    def __init__(
        self,
        bootstrap: str | Sequence[str] | Mapping[str, Any] | None,
        transactional_id: str,
        *,
        group_id: str | None = None,
        **config: Any,
    ) -> None:
        super().__init__(
            "fenceline-transactions",
            lambda: AsyncTransactionOwner(bootstrap, transactional_id, group_id=group_id, **config),
        )
        self.config = self._async.config

    begin = blocking(AsyncTransactionOwner.begin)
    progress = blocking(AsyncTransactionOwner.progress)
    commit = blocking(AsyncTransactionOwner.commit)
    abort = blocking(AsyncTransactionOwner.abort)
    was_aborted = blocking(AsyncTransactionOwner.was_aborted)


@contextlib.contextmanager
def transaction_writer(
    bootstrap: str | Sequence[str] | Mapping[str, Any] | None, handle: TransactionHandle, **config: Any
) -> Iterator[Producer]:
    """A producer that writes in the owner's transaction. The block ends when everything is acknowledged, with the first
    failure if there is one: then the owner must abort. Use `send` and `send_arrow`.
    """
    with Producer(bootstrap, **{**config, "transactional.id": handle.transactional_id}) as producer:
        producer.join_transaction(handle)
        yield producer
        producer.leave_transaction()
