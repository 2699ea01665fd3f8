"""Producer and AsyncProducer: the blocking and the asynchronous API over the same buffer.

Owns a record's way into its batch: partition, timestamp, waiting for buffer memory. Sending, order and retries are in
`sender`, transactions in `transactions`. Idempotent unless acks, retries or max.in.flight conflict with that (KIP-679).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from fenceline.client.core.client_base import AsyncClient, BlockingClient, blocking
from fenceline.client.core.cluster import Cluster
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.deadline import Deadline
from fenceline.client.core.errors import RETRIABLE, TimedOut, TransactionAbortable, broker_error
from fenceline.client.core.group_requests import ConsumerGroupMetadata
from fenceline.client.core.offsets import CommittedOffset
from fenceline.client.core.surroundings import surroundings
from fenceline.client.producer.accumulator import Accumulator
from fenceline.client.producer.delivery import BulkDelivery, Delivery, DeliveryOutcome, RecordMetadata
from fenceline.client.producer.partitioner import StickyPartitioner, partition_of_key
from fenceline.client.producer.sender import Sender
from fenceline.client.producer.transaction_handle import TransactionHandle
from fenceline.client.producer.transaction_requests import ProducerIdAndEpoch
from fenceline.client.producer.transactions import ProducerTransactions
from fenceline.errors import ErrorCode, FencelineError, OperatorError
from fenceline.ids import TopicPartition
from fenceline.records.batch import Codec

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("fenceline.client")
Headers = Sequence[tuple[str, bytes | None]] | Mapping[str, bytes | None]
Callback = Callable[[RecordMetadata | None, Exception | None], None]


class _Core:
    """What both producers share. Thread-safe, except `update_partitions`."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self.accumulator = Accumulator(
            batch_size_bytes=max(1, config["batch.size"]),
            buffer_bytes=config["buffer.memory"],
            codec=Codec.from_name(config["compression.type"]),
            level=config["compression.level"],
        )
        self.sticky = StickyPartitioner()
        own = surroundings()
        self.wall_s, self.monotonic_s = own.wall_s, own.monotonic_s
        self.partitions: dict[str, tuple[int, tuple[int, ...]]] = {}
        """Topic -> (partition count, partitions with a leader)."""
        self.topic_partitions: dict[str, tuple[TopicPartition, ...]] = {}
        """The partitions of each topic, so that they are not created for every record."""
        self._keys_choose = config["partitioner"] != "round_robin"

    def choose_partition(self, topic: str, key: bytes | None, partition: int | None) -> TopicPartition:
        count, available = self.partitions[topic]
        if partition is not None:
            if not 0 <= partition < count:
                raise OperatorError(f"{topic} has no partition {partition}", f"Use 0 to {count - 1}, or leave it out.")
            return self.topic_partitions[topic][partition]
        if key is not None and self._keys_choose:
            return self.topic_partitions[topic][partition_of_key(key, count)]
        return self.topic_partitions[topic][self.sticky.current(topic, available)]

    def try_append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        partition: int | None,
        timestamp: int,
        wake: Callable[[], None],
    ) -> Delivery | None:
        """Append without waiting; None if the buffer is full. Calls `wake` if a batch may be ready to be sent."""
        tp = self.choose_partition(topic, key, partition)
        pairs: Sequence[tuple[str, bytes | None]] = ()
        if headers:
            pairs = list(headers.items()) if isinstance(headers, Mapping) else headers
        is_sticky = partition is None and (key is None or not self._keys_choose)
        added = self.accumulator.append(tp, timestamp, key, value, pairs, may_open=not is_sticky)
        if added is None and is_sticky:
            # The partition's batch is full (or there is none): records without a key change partition with each batch.
            _, available = self.partitions[topic]
            tp = TopicPartition(topic, self.sticky.switch(topic, available))
            added = self.accumulator.append(tp, timestamp, key, value, pairs)
        if added is None:
            return None
        outcome, index, is_news = added
        if is_news:
            wake()
        return Delivery(outcome, index, timestamp)

    def encode(
        self, table: pa.Table | pa.RecordBatch, topic: str, **columns: Any
    ) -> Iterator[tuple[TopicPartition, bytearray, int]]:
        """`encoded_pieces` of a table, for the topic's partitions."""
        from fenceline.client.producer.arrow_send import encoded_pieces

        count, available = self.partitions[topic]
        return encoded_pieces(table, topic, count, available, self.config, sticky=self.sticky, **columns)

    def update_partitions(self, cluster: Cluster) -> None:
        """Copy partition counts from metadata. Runs on the loop."""
        for name, topic in cluster.metadata.topics.items():
            if topic.partitions:
                led = tuple(i for i, p in topic.partitions.items() if p.leader >= 0)
                self.topic_partitions[name] = tuple(TopicPartition(name, i) for i in range(len(topic.partitions)))
                self.partitions[name] = (len(topic.partitions), led or tuple(topic.partitions))

    def check_sizes(self, key: bytes | None, value: bytes | None) -> None:
        size = (len(key) if key else 0) + (len(value) if value else 0)
        if size > self.config["max.request.size"]:
            raise broker_error(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a record of {size} bytes is larger than max.request.size={self.config['max.request.size']}",
            )


class AsyncProducer(AsyncClient):
    """`delivery = await producer.send(...)` buffers a record; `await delivery` waits for its acknowledgement.

    Create it inside a running loop; close it with `await close()` or use it as an async context manager.
    """

    def __init__(self, bootstrap: str | Sequence[str] | Mapping[str, Any] | None = None, **config: Any) -> None:
        self.config = ClientConfig.parse("producer", bootstrap, config)
        self.cluster = Cluster(self.config)
        self._core = _Core(self.config)
        self._transactions: ProducerTransactions | None = None
        if self.config["transactional.id"] is not None:
            self._transactions = ProducerTransactions(self.cluster, self.config, self._core.accumulator.refuse)
        transaction = None if self._transactions is None else self._transactions.state
        self._sender = Sender(self.cluster, self._core.accumulator, self.config, transaction)
        if self._transactions is not None:
            self._transactions.attach(self._sender.wake, self.flush)
        self.cluster.on_update.append(lambda: self._core.update_partitions(self.cluster))
        self.cluster.on_update.append(self._sender.wake)

    async def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        *,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: Callback | None = None,
    ) -> Delivery:
        """Buffer one record and return its delivery; waits only for metadata and for buffer memory.

        Raises BufferFull after max.block.ms, PeerError for a topic that cannot be written.
        """
        self._core.check_sizes(key, value)
        if topic not in self._core.partitions:
            await self.prepare(topic)
        timestamp = int(self._core.wall_s() * 1000) if timestamp_ms is None else timestamp_ms
        deadline = Deadline(self.config["max.block.ms"])
        while True:
            if self._sender.fatal is not None:
                raise self._sender.fatal
            delivery = self._core.try_append(topic, key, value, headers, partition, timestamp, self._sender.wake)
            if delivery is not None:
                break
            await self._wait_for_room(deadline)
        if on_delivery is not None:
            _call_back(delivery, on_delivery)
        return delivery

    async def send_arrow(
        self, table: pa.Table | pa.RecordBatch, topic: str, *, value: str = "value", **options: Any
    ) -> BulkDelivery:
        """Send every row of `table` as a record; see `Producer.send_arrow`."""
        await self.prepare(topic)
        outcomes: list[tuple[DeliveryOutcome, int]] = []
        for tp, encoded, rows in self._core.encode(table, topic, value=value, **options):
            deadline = Deadline(self.config["max.block.ms"])
            while True:
                if self._sender.fatal is not None:
                    raise self._sender.fatal
                outcome = self._core.accumulator.append_encoded(tp, encoded, rows)
                if outcome is not None:
                    break
                await self._wait_for_room(deadline)
            outcomes.append((outcome, rows))
            self._sender.wake()
        return BulkDelivery(outcomes)

    async def prepare(self, topic: str) -> None:
        """Fetch the topic's partitions. Raises PeerError if it does not exist within max.block.ms."""
        assert self.cluster.tracked is not None
        self.cluster.tracked.add(topic)
        self.cluster.keep_fresh()
        deadline = Deadline(self.config["max.block.ms"])
        while topic not in self._core.partitions:
            auto_create = self.config["allow.auto.create.topics"]
            answer = await self.cluster.fetch_metadata([topic], deadline, auto_create=auto_create)
            if topic in self._core.partitions:
                break
            found = answer.topics.get(topic)
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if found is None else found.error
            error = broker_error(code, f"topic {topic}")
            deadline.last_error = error
            if code not in RETRIABLE:
                raise error
            # Do not wait for a topic that the broker does not create.
            given_up = code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and deadline.attempt >= 20
            if deadline.is_over or given_up:
                raise error
            await self.cluster.pause(deadline)

    async def flush(self, timeout_ms: float | None = None) -> None:
        """Send all buffered records without lingering; wait until all are acknowledged or failed. Raises TimedOut."""
        accumulator = self._core.accumulator
        outcomes = accumulator.outstanding()
        accumulator.flushing += 1
        try:
            self._sender.wake()
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                for outcome in outcomes:
                    if not outcome.is_done:
                        await outcome.done()
        except TimeoutError:
            left = sum(not outcome.is_done for outcome in outcomes)
            raise TimedOut(f"{left} batches were not acknowledged within {timeout_ms} ms") from None
        finally:
            accumulator.flushing -= 1

    async def close(self, timeout_ms: float | None = None) -> None:
        """Flush (at most `timeout_ms`), then stop. Deliveries of unsent records fail. Aborts an open transaction."""
        self._core.accumulator.is_closed = True
        try:
            if self._transactions is not None and self._transactions.is_open:
                await self._abort_after_error(timeout_ms)
            await self.flush(timeout_ms)
        except TimedOut:
            pass
        finally:
            if self._transactions is not None:
                await self._transactions.close()
            await self._sender.close()
            await self.cluster.close()

    # -- transactions

    async def init_transactions(self) -> None:
        """Fence former producers of this transactional.id and end their transaction. Call it once, before the first
        transaction.

        Raises TransactionFailed, and TransactionAbortable or TimedOut (after max.block.ms): then call it again.
        """
        await self._transactional("init_transactions").init()

    async def begin_transaction(self) -> None:
        """Begin a transaction: `send` accepts records from now on. Raises TransactionFailed."""
        await self._transactional("begin_transaction").begin()

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, CommittedOffset | int],
        group: ConsumerGroupMetadata | str,
    ) -> None:
        """Commit offsets of a consumer, with their leader epochs, together with the transaction.

        `group`: `consumer.group_metadata()`, with which the coordinator rejects offsets of a former member (KIP-447),
        or a group id. Raises TransactionAbortable, TransactionFailed, and TimedOut after max.block.ms: then call it
        again or abort.
        """
        await self._transactional("send_offsets_to_transaction").send_offsets(offsets, group)

    async def commit_transaction(self) -> None:
        """Send everything, wait for its acknowledgement, and commit.

        Raises TransactionAbortable if a record or an offset could not be written: call `abort_transaction`. Raises
        TransactionFailed, and TimedOut after max.block.ms: call it again, because the transaction may be committed.
        """
        await self._transactional("commit_transaction").commit()

    async def abort_transaction(self) -> None:
        """Abort: records that were not sent fail with TransactionAborted, no read_committed consumer reads the others.

        Raises TransactionFailed, and TimedOut after max.block.ms: call it again.
        """
        await self._transactional("abort_transaction").abort()

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """A transaction around a block: committed at its end, aborted if the block or the commit fails."""
        await self.begin_transaction()
        try:
            yield self
        except BaseException:
            await self._abort_after_error()
            raise
        try:
            await self.commit_transaction()
        except TransactionAbortable:
            await self._abort_after_error()
            raise

    async def join_transaction(self, handle: TransactionHandle) -> None:
        """Write in the transaction of another process: see `transaction_owner`. This producer cannot end it.

        `transactional.id` must be the handle's. Requires transaction.version 2. Everything that is written to a
        partition within one transaction must be written by one producer: sequence numbers start at 0.
        """
        transactions = self._transactional("join_transaction")
        if handle.transactional_id != self.config["transactional.id"]:
            raise OperatorError(
                f"The handle is of transactional.id {handle.transactional_id}",
                f"Create the producer with it, not with {self.config['transactional.id']}.",
            )
        deadline = Deadline(self.config["max.block.ms"])
        await self.cluster.any_connection(deadline)
        transactions.join(ProducerIdAndEpoch(handle.producer_id, handle.epoch))

    async def leave_transaction(self) -> None:
        """Wait until everything written in the joined transaction is acknowledged. Raises the first failure: then the
        owner must abort."""
        await self._transactional("leave_transaction").leave()

    async def _abort_after_error(self, timeout_ms: float | None = None) -> None:
        """Abort the open transaction, if any, because of another error: a failure is only logged. The coordinator then
        aborts after transaction.timeout.ms."""
        if self._transactions is None or not self._transactions.is_open:
            return
        try:
            await self._transactions.abort(timeout_ms)
        except FencelineError as error:
            _log.warning("the transaction could not be aborted: %s", error)

    def _transactional(self, call: str) -> ProducerTransactions:
        if self._transactions is None:
            raise OperatorError(f"{call} requires a transactional producer", "Set transactional.id.")
        return self._transactions

    async def _wait_for_room(self, deadline: Deadline) -> None:
        self._sender.wake()
        await self._core.accumulator.freed(deadline)


class Producer(BlockingClient[AsyncProducer]):
    """Blocking producer: `send` returns a delivery immediately, `flush` waits for all of them. Thread-safe."""

    def __init__(self, bootstrap: str | Sequence[str] | Mapping[str, Any] | None = None, **config: Any) -> None:
        super().__init__("fenceline-producer", lambda: AsyncProducer(bootstrap, **config))
        self.config = self._async.config
        self._waking = False
        self._core = self._async._core
        self._sender = self._async._sender
        self._wake = self._wake_from_outside

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        *,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: Callback | None = None,
    ) -> Delivery:
        """Buffer one record; blocks only for metadata (first use of a topic) and while the buffer is full.

        `key` determines the partition (murmur2, as in Kafka's own producer) unless `partition` is given.
        `on_delivery(metadata, error)` runs on the producer's thread and must not block. Raises BufferFull, PeerError.
        """
        core = self._core
        if topic not in core.partitions:
            self._run(self._async.prepare(topic))
        if (value is not None and len(value) > 65_536) or (key is not None and len(key) > 65_536):
            core.check_sizes(key, value)
        timestamp = int(core.wall_s() * 1000) if timestamp_ms is None else timestamp_ms
        delivery = core.try_append(topic, key, value, headers, partition, timestamp, self._wake)
        if delivery is None:
            end_s = core.monotonic_s() + self.config["max.block.ms"] / 1000
            while delivery is None:
                self._wait_for_room(end_s)
                delivery = core.try_append(topic, key, value, headers, partition, timestamp, self._wake)
        if self._sender.fatal is not None:
            raise self._sender.fatal
        if on_delivery is not None:
            _call_back(delivery, on_delivery)
        return delivery

    def send_arrow(
        self,
        table: pa.Table | pa.RecordBatch,
        topic: str,
        *,
        value: str = "value",
        key: str | None = None,
        timestamp: str | None = None,
        headers: str | None = None,
        partition: str | int | None = None,
    ) -> BulkDelivery:
        """Send every row of `table` as a record; returns the delivery of all of them.

        `key`, `value`, `timestamp`, `headers` name columns (binary or string; int64 ms or timestamp; list of structs).
        `partition` is a number, or the name of an int column; without it keys determine partitions as in `send`, and
        rows without a key column change partition with each batch. Rows of one partition keep their order. Blocks while
        the buffer is full.
        """
        core = self._core
        if topic not in core.partitions:
            self._run(self._async.prepare(topic))
        columns = {"value": value, "key": key, "timestamp": timestamp, "headers": headers, "partition": partition}
        outcomes: list[tuple[DeliveryOutcome, int]] = []
        for tp, encoded, rows in core.encode(table, topic, **columns):
            outcome = core.accumulator.append_encoded(tp, encoded, rows)
            end_s = core.monotonic_s() + self.config["max.block.ms"] / 1000
            while outcome is None:
                self._wait_for_room(end_s)
                outcome = core.accumulator.append_encoded(tp, encoded, rows)
            outcomes.append((outcome, rows))
            self._wake_from_outside()
        return BulkDelivery(outcomes)

    def flush(self, timeout_s: float | None = None) -> None:
        """Send all buffered records and wait until they are acknowledged or failed. Raises TimedOut."""
        self._run(self._async.flush(None if timeout_s is None else timeout_s * 1000))

    init_transactions = blocking(AsyncProducer.init_transactions)
    begin_transaction = blocking(AsyncProducer.begin_transaction)
    send_offsets_to_transaction = blocking(AsyncProducer.send_offsets_to_transaction)
    commit_transaction = blocking(AsyncProducer.commit_transaction)
    abort_transaction = blocking(AsyncProducer.abort_transaction)
    join_transaction = blocking(AsyncProducer.join_transaction)
    leave_transaction = blocking(AsyncProducer.leave_transaction)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Self]:
        """See `AsyncProducer.transaction`."""
        self.begin_transaction()
        try:
            yield self
        except BaseException:
            self._run(self._async._abort_after_error())
            raise
        try:
            self.commit_transaction()
        except TransactionAbortable:
            self._run(self._async._abort_after_error())
            raise

    def partitions_for(self, topic: str) -> tuple[int, ...]:
        """The topic's partitions; the broker may create the topic (`allow.auto.create.topics`)."""
        if topic not in self._core.partitions:
            self._run(self._async.prepare(topic))
        return tuple(range(self._core.partitions[topic][0]))

    def close(self, timeout_s: float | None = None) -> None:
        """Flush and stop. Deliveries of records not sent within `timeout_s` fail."""
        timeout_ms = None if timeout_s is None else timeout_s * 1000
        self._close_with(lambda: self._run(self._async.close(timeout_ms)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(None if error is None else 1.0)

    def _wait_for_room(self, end_s: float) -> None:
        if self._sender.fatal is not None:
            raise self._sender.fatal
        self._wake_from_outside()
        self._core.accumulator.wait_for_room(max(0.001, end_s - self._core.monotonic_s()))

    def _wake_from_outside(self) -> None:
        # One pending call in the loop's queue is enough for all threads.
        if self._waking:
            return
        self._waking = True
        self._loop_thread.check_usable()
        self._loop_thread.call_soon(self._wake_on_loop)

    def _wake_on_loop(self) -> None:
        self._waking = False
        self._sender.wake()


def _call_back(delivery: Delivery, callback: Callback) -> None:
    def tell(done: Delivery) -> None:
        error = done.exception()
        callback(None if error is not None else done.result(), error)

    delivery.add_done_callback(tell)


__all__ = ["AsyncProducer", "BulkDelivery", "Delivery", "Producer", "RecordMetadata"]
