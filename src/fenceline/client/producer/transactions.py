"""The transactional calls of a producer: init, begin, send offsets, commit, abort.

Owns the order of the steps: nothing is accepted after a commit has begun, everything is acknowledged before EndTxn is
sent, and EndTxn is not sent if nothing was. A call that timed out can be repeated; until then its outcome is unknown,
so a commit cannot be followed by an abort.

With transaction.version 2 the producer continues in the epoch that EndTxn returns. Below, it asks for its next epoch
after an abort that lost sequence numbers, and when the cluster has changed to version 2.

Rules: KIP-98, KIP-447, KIP-890, `transactions.md` X14-X18, X53-X55.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from fenceline.client.core.cluster import Cluster
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.deadline import Deadline
from fenceline.client.core.errors import TimedOut, TransactionAbortable, TransactionFailed
from fenceline.client.core.group_requests import ConsumerGroupMetadata
from fenceline.client.core.offsets import CommittedOffset
from fenceline.client.producer.transaction_errors import abortable
from fenceline.client.producer.transaction_requests import ProducerIdAndEpoch, TransactionRequests
from fenceline.client.producer.transaction_state import ProducerTransaction, TransactionPhase
from fenceline.errors import ErrorCode, OperatorError
from fenceline.ids import TopicPartition

_log = logging.getLogger("fenceline.client")
_P = TransactionPhase
T = TypeVar("T")


class ProducerTransactions:
    """Runs on the producer's loop. One call at a time; concurrent ones wait for each other."""

    def __init__(self, cluster: Cluster, config: ClientConfig, refuse: Callable[[Exception | None], None]) -> None:
        self._config = config
        self.state = ProducerTransaction(config["transactional.id"], refuse, self._start_adding)
        self._requests = TransactionRequests(cluster, config["transactional.id"])
        self._lock = asyncio.Lock()
        self._adding: asyncio.Task[None] | None = None
        self._wake: Callable[[], None] = lambda: None
        self._flush: Callable[[float], Awaitable[None]] | None = None
        self._is_joined = False

    def attach(self, wake: Callable[[], None], flush: Callable[[float], Awaitable[None]]) -> None:
        """The sender's side: `wake()` after a change, `flush(timeout_ms)` until all batches have a result."""
        self._wake, self._flush = wake, flush

    # -- calls

    async def init(self) -> None:
        """See `AsyncProducer.init_transactions`."""
        async with self._lock:
            state = self.state
            state.expect("init_transactions", _P.UNINITIALIZED, _P.INITIALIZING)
            if state.phase is _P.UNINITIALIZED:
                state.move(_P.INITIALIZING)
            deadline = self._deadline()
            producer = await self._guarded(
                self._requests.init_producer(self._config["transaction.timeout.ms"], deadline)
            )
            state.producer = producer
            state.is_version_2 = bool(self._requests.is_version_2())
            state.move(_P.READY)

    async def begin(self) -> None:
        """See `AsyncProducer.begin_transaction`."""
        async with self._lock:
            state = self.state
            state.expect("begin_transaction", _P.READY)
            known = self._requests.is_version_2()
            is_version_2 = state.is_version_2 if known is None else known
            if is_version_2 and not state.is_version_2:
                await self._next_epoch()
            state.begin(is_version_2=is_version_2)

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, CommittedOffset | int], group: ConsumerGroupMetadata | str
    ) -> None:
        """See `AsyncProducer.send_offsets_to_transaction`."""
        if isinstance(group, str):
            group = ConsumerGroupMetadata(group)
        if not group.group_id:
            raise OperatorError("Offsets are committed for a group", "Pass its group.id.")
        values = committed_offsets(offsets)
        async with self._lock:
            state = self.state
            state.expect("send_offsets_to_transaction", _P.IN_TRANSACTION)
            if not values:
                return
            deadline = self._deadline()
            state.has_started = True
            if not state.is_version_2:
                await self._guarded(self._requests.add_offsets(state.producer, group.group_id, deadline))
            await self._guarded(
                self._requests.commit_offsets(state.producer, group, values, deadline, is_version_2=state.is_version_2)
            )

    async def commit(self) -> None:
        """See `AsyncProducer.commit_transaction`."""
        async with self._lock:
            self._check_owner("commit_transaction")
            state = self.state
            state.expect("commit_transaction", _P.IN_TRANSACTION, _P.COMMITTING)
            if state.phase is _P.IN_TRANSACTION:
                state.move(_P.COMMITTING)
            deadline = self._deadline()
            await self._settle(deadline)
            state.expect("commit_transaction", _P.COMMITTING)
            await self._end(deadline, commit=True)
            state.move(_P.READY)

    async def abort(self, timeout_ms: float | None = None) -> None:
        """See `AsyncProducer.abort_transaction`."""
        async with self._lock:
            self._check_owner("abort_transaction")
            state = self.state
            state.expect("abort_transaction", _P.IN_TRANSACTION, _P.ABORTABLE_ERROR, _P.ABORTING)
            if state.phase is not _P.ABORTING:
                state.move(_P.ABORTING)
            deadline = self._deadline(timeout_ms)
            await self._settle(deadline)
            state.expect("abort_transaction", _P.ABORTING)
            await self._end(deadline, commit=False)
            if state.needs_next_epoch and not state.is_version_2:
                await self._next_epoch()
            state.move(_P.READY)

    def join(self, producer: ProducerIdAndEpoch) -> None:
        """Write in the transaction of another process, which alone ends it (X69)."""
        self.state.expect("join_transaction", _P.UNINITIALIZED)
        check_version_2(self._requests.is_version_2())
        self._is_joined = True
        self.state.producer = producer
        self.state.move(_P.INITIALIZING)
        self.state.move(_P.READY)
        self.state.begin(is_version_2=True)

    async def leave(self) -> None:
        """Wait for the acknowledgement of everything written in a joined transaction. Raises the first failure."""
        async with self._lock:
            if not self._is_joined:
                raise OperatorError("The producer has not joined a transaction", "Call join_transaction first.")
            state = self.state
            state.expect("leave_transaction", _P.IN_TRANSACTION, _P.COMMITTING)
            if state.phase is _P.IN_TRANSACTION:
                state.move(_P.COMMITTING)
            await self._settle(self._deadline())
            state.expect("leave_transaction", _P.COMMITTING)
            state.move(_P.READY)

    @property
    def is_open(self) -> bool:
        """Whether there is a transaction to abort."""
        return not self._is_joined and self.state.phase in (_P.IN_TRANSACTION, _P.ABORTABLE_ERROR, _P.ABORTING)

    async def close(self) -> None:
        if self._adding is not None:
            self._adding.cancel()
            await asyncio.gather(self._adding, return_exceptions=True)

    # -- steps

    async def _settle(self, deadline: Deadline) -> None:
        """Wait until no batch and no AddPartitionsToTxn is on its way: what arrives after EndTxn would begin another
        transaction (X65)."""
        assert self._flush is not None, "attach comes first"
        self._wake()
        await self._flush(deadline.left_ms)
        if self._adding is not None and not self._adding.done():
            if self.state.phase is _P.ABORTING:
                # A request that is on its way comes before EndTxn: both use the same connection.
                self._adding.cancel()
            await asyncio.wait({self._adding}, timeout=deadline.left_ms / 1000)
            if not self._adding.done():
                raise TimedOut(f"partitions were not added to the transaction within {deadline.timeout_ms:.0f} ms")

    async def _end(self, deadline: Deadline, *, commit: bool) -> None:
        state = self.state
        if not state.has_started:
            return
        state.producer = await self._guarded(
            self._requests.end(state.producer, deadline, commit=commit, is_version_2=state.is_version_2)
        )
        state.has_started = False

    async def _next_epoch(self) -> None:
        state = self.state
        if not self._requests.can_ask_next_epoch():
            # Without the current epoch in the request, this would fence a newer producer.
            state.fail(
                TransactionFailed(
                    ErrorCode.UNSUPPORTED_VERSION,
                    "Records of the transaction were lost, and brokers before Kafka 2.5 cannot begin a new epoch for "
                    "this producer. Close it and create a new one.",
                )
            )
            state.expect("another transaction", _P.READY)
        state.producer = await self._guarded(
            self._requests.init_producer(
                self._config["transaction.timeout.ms"], self._deadline(), current=state.producer
            )
        )
        state.needs_next_epoch = False

    async def _guarded(self, request: Coroutine[Any, Any, T]) -> T:
        """The result of a request; its failure changes the state."""
        try:
            return await request
        except (TransactionAbortable, TransactionFailed) as error:
            self.state.fail(error)
            if self.state.phase is _P.ABORTABLE_ERROR and self.state.producer.producer_id < 0:
                # There is no transaction yet: init_transactions can be called again.
                self.state.move(_P.UNINITIALIZED)
            self._wake()
            raise

    # -- partitions, below transaction.version 2

    def _start_adding(self) -> None:
        if self._adding is None or self._adding.done():
            self._adding = asyncio.ensure_future(self._add_partitions())

    async def _add_partitions(self) -> None:
        while wanted := set(self.state.wanted):
            if self.state.drops_unsent is not None:
                return
            self.state.has_started = True
            deadline = Deadline(self._config["delivery.timeout.ms"])
            try:
                await self._requests.add_partitions(self.state.producer, wanted, deadline)
            except (TransactionAbortable, TransactionFailed) as error:
                self.state.fail(error)
            except TimedOut as error:
                self.state.fail(abortable(error))
            except OperatorError as error:
                _log.warning("partitions could not be added to the transaction: %s", error)
                self.state.fail(abortable(error))
            else:
                self.state.added(wanted)
            self._wake()

    # -- inside

    def _deadline(self, timeout_ms: float | None = None) -> Deadline:
        return Deadline(self._config["max.block.ms"] if timeout_ms is None else timeout_ms)

    def _check_owner(self, call: str) -> None:
        if self._is_joined:
            raise OperatorError(
                f"{call} is not possible: this producer writes in the transaction of another process",
                "Its owner ends the transaction; call leave_transaction when everything is written.",
            )


def check_version_2(is_version_2: bool | None) -> None:
    """Raise OperatorError if the cluster does not have the protocol with which processes can share a transaction."""
    if not is_version_2:
        raise OperatorError(
            "A transaction of several processes requires transaction.version 2, which this cluster does not have",
            "Upgrade the feature (Kafka 4.0 and newer): kafka-features upgrade --feature transaction.version=2.",
        )


def committed_offsets(
    offsets: Mapping[TopicPartition, CommittedOffset | int],
) -> dict[TopicPartition, CommittedOffset]:
    """Offsets to commit; a plain number has no leader epoch. Raises OperatorError for a negative one."""
    found = {
        TopicPartition(*tp): CommittedOffset(value) if isinstance(value, int) else CommittedOffset(*value)
        for tp, value in offsets.items()
    }
    for tp, offset in found.items():
        if offset.offset < 0:
            raise OperatorError(f"{tp}: {offset.offset} is not an offset", "Commit the next offset to read.")
    return found
