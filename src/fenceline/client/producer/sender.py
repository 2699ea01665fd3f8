"""Sends the accumulator's batches: grouped by leader, in order, with retries.

Owns the sender task of a producer. Three rules ensure order and exactly-once delivery: a partition's batches are sent
in order and keep their sequence numbers in retries; after a failure, no batch of the partition is sent until all in
flight have a result; and a batch whose outcome is unknown is never sent with a new sequence number. The new leader in
an error response saves a metadata request (E59).

The batches of a transactional producer are sent only within its transaction, in the epoch that the coordinator gave it
(`transaction_state`): a batch that fails makes the transaction abortable, and what is not in flight then fails with it.

Rules: KIP-98, KIP-360, `epochs.md` E59, `transactions.md` X38, X55.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from uuid import UUID

from fenceline.client.core.cluster import Cluster, Purpose
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.connection import Connection
from fenceline.client.core.deadline import Deadline, backoff_ms, wait_at_most
from fenceline.client.core.errors import (
    RETRIABLE,
    STALE_METADATA,
    ClientError,
    ConnectionLost,
    TimedOut,
    broker_error,
    error_code,
)
from fenceline.client.core.metadata import BrokerAddress
from fenceline.client.producer.accumulator import MAX_EPOCH, Accumulator, Batch, PartitionQueue, stamp
from fenceline.client.producer.transaction_state import ProducerTransaction, TransactionPhase
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import ZERO_UUID, TopicPartition
from fenceline.records.sequences import MAX_SEQUENCE, is_after
from fenceline.wire import produce
from fenceline.wire.apis import ApiKey
from fenceline.wire.primitives import Buffer

_log = logging.getLogger("fenceline.client")
_FIRST_WITH_IDS = 13
_FIRST_THAT_ADDS = 12
"""The first version of Produce that adds partitions to the transaction (KIP-890)."""
_IN_FLIGHT_REMEMBERED = 5
"""How many batches of a producer a leader remembers to detect duplicates (KIP-98)."""
_UNKNOWN_PRODUCER = frozenset({ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_ID_MAPPING})


class Sender:
    """Runs on the producer's loop, also `wake`."""

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        config: ClientConfig,
        transaction: ProducerTransaction | None = None,
    ) -> None:
        self._cluster = cluster
        self._transaction = transaction
        self._accumulator = accumulator
        self._config = config
        self._now_s = accumulator.now_s
        self._linger_s = config["linger.ms"] / 1000
        self._delivery_s = config["delivery.timeout.ms"] / 1000
        self._idempotent = bool(config["enable.idempotence"])
        self._producer_id = -1
        self._producer_epoch = -1
        self._init_task: asyncio.Task[None] | None = None
        self._in_flight: defaultdict[int, int] = defaultdict(int)
        self._send_locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._wake = asyncio.Event()
        self._requests: set[asyncio.Task[None]] = set()
        self._task = asyncio.ensure_future(self._run())
        self._fatal: Exception | None = None

    @property
    def fatal(self) -> Exception | None:
        """The error after which the producer cannot continue, or None."""
        transaction = self._transaction
        if transaction is not None and transaction.phase is TransactionPhase.FATAL:
            return transaction.error
        return self._fatal

    def wake(self) -> None:
        self._wake.set()

    async def close(self) -> None:
        """Stop immediately; unsent batches fail."""
        self._task.cancel()
        for request in list(self._requests):
            request.cancel()
        if self._init_task is not None:
            self._init_task.cancel()
        await asyncio.gather(self._task, *self._requests, return_exceptions=True)
        self._fail_all(ClientError(ErrorCode.REQUEST_TIMED_OUT, "the producer was closed before this record was sent"))

    # -- the loop

    async def _run(self) -> None:
        while True:
            try:
                pause_s = self._drain()
            except Exception as error:
                _log.exception("unexpected error in the sender")
                self._fatal = error
                self._fail_all(error)
                return
            await wait_at_most(self._wake, pause_s)
            self._wake.clear()

    def _drain(self) -> float | None:
        """Send all batches that are ready; returns the seconds until the next may be (None: after a wake)."""
        if self._fatal is not None:
            self._fail_all(self._fatal)
            return None
        if self._transaction is not None and (dropped := self._transaction.drops_unsent) is not None:
            self._drop_unsent(dropped)
            return None
        now_s = self._now_s()
        next_s = float("inf")
        expired: list[Batch] = []
        by_node: defaultdict[int, list[PartitionQueue]] = defaultdict(list)
        unknown_leaders = False
        with self._accumulator.lock:
            for tp in list(self._accumulator.dirty):
                queue = self._accumulator.queues[tp]
                expired += self._expire(queue, now_s)
                if not queue.waiting:
                    self._accumulator.dirty.pop(tp, None)
                    continue
                head = queue.waiting[0]
                next_s = min(next_s, head.created_s + self._delivery_s)
                if queue.retrying and queue.in_flight:
                    continue
                if not self._accumulator.is_ready(head, queue, now_s, self._linger_s):
                    due_s = head.retry_at_s if head.attempts else head.created_s + self._linger_s
                    next_s = min(next_s, due_s)
                    continue
                leader = self._cluster.metadata.leader(tp).leader
                if leader < 0:
                    unknown_leaders = True
                else:
                    by_node[leader].append(queue)
            ready = self._compose(by_node, now_s)
        for batch in expired:
            error = TimedOut(
                f"{batch.tp}: {batch.record_count} records were not acknowledged within delivery.timeout.ms="
                f"{self._config['delivery.timeout.ms']}. Check the brokers, or raise delivery.timeout.ms."
            )
            self._fail_delivery(batch, error)
        for node_id, batches in ready:
            self._in_flight[node_id] += 1
            request = asyncio.ensure_future(self._send(node_id, batches))
            self._requests.add(request)
            request.add_done_callback(self._requests.discard)
        if unknown_leaders:
            self._cluster.request_refresh()
            next_s = min(next_s, now_s + self._config["retry.backoff.ms"] / 1000)
        return None if next_s == float("inf") else max(0.0, next_s - self._now_s())

    def _compose(
        self, by_node: dict[int, list[PartitionQueue]], now_s: float
    ) -> list[tuple[int, list[tuple[PartitionQueue, Batch]]]]:
        """Requests to nodes below the in-flight limit, with at most one batch per partition (K31). Under the lock."""
        requests = []
        limit_bytes, per_node = self._config["max.request.size"], self._config["max.in.flight.requests.per.connection"]
        for node_id, queues in by_node.items():
            room = per_node - self._in_flight[node_id]
            while room > 0:
                batches: list[tuple[PartitionQueue, Batch]] = []
                size_bytes = 0
                for queue in queues:
                    batch = self._next_batch(queue, now_s)
                    if batch is None:
                        continue
                    encoded = self._accumulator.seal(batch)
                    if batches and size_bytes + len(encoded) > limit_bytes:
                        continue
                    if self._idempotent and not self._assign_sequence(queue, batch):
                        continue
                    queue.waiting.popleft()
                    queue.in_flight.append(batch)
                    batch.attempts += 1
                    size_bytes += len(encoded)
                    batches.append((queue, batch))
                if not batches:
                    break
                requests.append((node_id, batches))
                room -= 1
        return requests

    def _next_batch(self, queue: PartitionQueue, now_s: float) -> Batch | None:
        if not queue.waiting or (queue.retrying and queue.in_flight):
            return None
        if self._idempotent and len(queue.in_flight) >= (_IN_FLIGHT_REMEMBERED if queue.is_known else 1):
            return None
        head = queue.waiting[0]
        if self._transaction is None and queue.unresolved and (queue.in_flight or not head.has_sequence):
            if queue.in_flight:
                return None
            # No response can reveal the outcome of the lost batch any more: continue in a new epoch.
            self._bump_epoch(queue)
        return head if self._accumulator.is_ready(head, queue, now_s, self._linger_s) else None

    def _assign_sequence(self, queue: PartitionQueue, batch: Batch) -> bool:
        """Assign the batch's sequence numbers; False while the producer has no id, or the transaction lacks the
        partition."""
        if self._transaction is not None:
            if not self._may_send_in(self._transaction, queue):
                return False
        elif self._producer_id < 0:
            if self._init_task is None or self._init_task.done():
                self._init_task = asyncio.ensure_future(self._init_producer_id())
            return False
        elif queue.producer_id != self._producer_id:
            if queue.in_flight:
                return False
            queue.begin_epoch(self._producer_id, self._producer_epoch)
        if not batch.has_sequence:
            assert batch.encoded is not None
            batch.base_sequence, batch.epoch = queue.next_sequence, queue.epoch
            queue.next_sequence = (queue.next_sequence + batch.record_count) & MAX_SEQUENCE
            is_transactional = self._transaction is not None
            stamp(batch.encoded, queue.producer_id, queue.epoch, batch.base_sequence, is_transactional=is_transactional)
        return True

    @staticmethod
    def _may_send_in(transaction: ProducerTransaction, queue: PartitionQueue) -> bool:
        """Whether the transaction has the partition; its queue then continues in the transaction's epoch."""
        if not transaction.may_send(queue.tp):
            return False
        if (queue.producer_id, queue.epoch) != transaction.producer:
            if queue.in_flight:
                return False
            queue.begin_epoch(*transaction.producer)
            # With version 2 every epoch starts at 0, also at a leader that does not know the producer (X38): batches
            # that arrive out of order are rejected, so several may be in flight at once.
            queue.is_known = transaction.is_version_2
        return True

    def _expire(self, queue: PartitionQueue, now_s: float) -> list[Batch]:
        """Remove and return the batches past delivery.timeout.ms. Under the lock."""
        expired = []
        while queue.waiting and now_s >= queue.waiting[0].created_s + self._delivery_s:
            batch = queue.waiting.popleft()
            if batch.has_sequence:
                queue.unresolved = True
            self._accumulator.seal(batch)
            expired.append(batch)
        return expired

    # -- one request

    async def _send(self, node_id: int, batches: list[tuple[PartitionQueue, Batch]]) -> None:
        acks = self._config["acks"]
        timeout_ms = self._config["request.timeout.ms"]
        try:
            # Requests that wait for the connection are sent in the order in which they were composed.
            async with self._send_locks[node_id]:
                connection = await self._cluster.link(node_id, Purpose.PRODUCE).connection()
                await connection.drained()
                version, ids, body = self._encode(connection, batches)
                if acks == 0:
                    connection.post_without_response(ApiKey.PRODUCE, version, body)
                    self._complete_without_response(batches)
                    return
                answer = connection.post(ApiKey.PRODUCE, version, body, timeout_ms=timeout_ms)
            response = produce.parse_response(version, await answer)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if isinstance(error, ConnectionLost | TimedOut):
                self._cluster.request_refresh()
            for queue, batch in batches:
                self._handle_failure(queue, batch, error, outcome_unknown=True)
        else:
            self._handle_response(batches, response, {topic_id.bytes: name for name, topic_id in ids.items()})
        finally:
            self._in_flight[node_id] -= 1
            self._wake.set()

    def _encode(
        self, connection: Connection, batches: list[tuple[PartitionQueue, Batch]]
    ) -> tuple[int, dict[str, UUID], list[Buffer]]:
        """Version, topic ids and body of one request."""
        version = connection.version_for(ApiKey.PRODUCE)
        ids = {q.tp.topic: self._cluster.metadata.topic_id(q.tp.topic) for q, _ in batches}
        if version >= _FIRST_WITH_IDS and ZERO_UUID in ids.values():
            version = _FIRST_WITH_IDS - 1
        transaction = self._transaction
        if transaction is not None:
            if not transaction.is_version_2:
                version = min(version, _FIRST_THAT_ADDS - 1)
            elif version < _FIRST_THAT_ADDS:
                raise broker_error(
                    ErrorCode.UNSUPPORTED_VERSION,
                    f"{connection.peer} supports PRODUCE up to version {version}, but transaction.version 2 requires "
                    f"{_FIRST_THAT_ADDS}",
                )
        request = produce.ProduceRequest(
            transactional_id=None if transaction is None else transaction.transactional_id,
            acks=self._config["acks"],
            timeout_ms=self._config["request.timeout.ms"],
            partitions=[
                produce.PartitionRecords(
                    q.tp.topic, ids[q.tp.topic].bytes, q.tp.partition, memoryview(batch.encoded or b"")
                )
                for q, batch in batches
            ],
        )
        return version, ids, produce.encode_request(version, request)

    def _complete_without_response(self, batches: list[tuple[PartitionQueue, Batch]]) -> None:
        for queue, batch in batches:
            self._succeed(queue, batch, -1, -1)

    def _handle_response(
        self, batches: list[tuple[PartitionQueue, Batch]], response: produce.ProduceResponse, names: dict[bytes, str]
    ) -> None:
        endpoints = {n.node_id: BrokerAddress(n.node_id, n.host, n.port, n.rack) for n in response.node_endpoints}
        results: dict[TopicPartition, produce.PartitionResult] = {}
        for one in response.results:
            topic = one.topic if one.topic else names.get(bytes(one.topic_id or b""), "")
            results[TopicPartition(topic, one.index)] = one
        for queue, batch in batches:
            result = results.get(queue.tp)
            if result is None:
                error = broker_error(ErrorCode.UNKNOWN_SERVER_ERROR, f"the broker's response lacks {queue.tp}")
                self._handle_failure(queue, batch, error, outcome_unknown=True)
                continue
            code = error_code(result.error_code)
            if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                self._succeed(queue, batch, result.base_offset, result.log_append_time_ms)
                continue
            if result.current_leader is not None and result.current_leader[0] >= 0:
                leader, epoch = result.current_leader
                self._cluster.metadata.accept_hint(queue.tp, leader, epoch, endpoints)
            if code in STALE_METADATA:
                self._cluster.request_refresh()
            details = "; ".join(f"record {i}: {why}" for i, why in result.record_errors if why)
            message = ". ".join(part for part in (result.error_message, details) if part)
            self._handle_failure(queue, batch, broker_error(code, f"producing to {queue.tp}", message or None))

    def _succeed(self, queue: PartitionQueue, batch: Batch, base_offset: int, log_append_time_ms: int) -> None:
        with self._accumulator.lock:
            queue.in_flight.remove(batch)
            queue.unresolved = False
            queue.is_known = True
            if not queue.in_flight:
                queue.retrying = False
        self._accumulator.release(batch)
        batch.outcome.complete(base_offset, log_append_time_ms)

    def _handle_failure(
        self, queue: PartitionQueue, batch: Batch, error: Exception, *, outcome_unknown: bool = False
    ) -> None:
        """Handle a failed batch: send it again if it is retriable, else fail it and keep the sequence consistent."""
        now_s = self._now_s()
        code = error.code if isinstance(error, PeerError) else ErrorCode.UNKNOWN_SERVER_ERROR
        lost: list[Batch] = []
        with self._accumulator.lock:
            is_first = queue.in_flight[0] is batch and not any(
                b.has_sequence and _precedes(b, batch) for b in queue.waiting
            )
            queue.in_flight.remove(batch)
            queue.retrying = True
            retry, new_epoch = self._may_retry(queue, code, is_first)
            dropped = None if self._transaction is None else self._transaction.drops_unsent
            if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._idempotent and not retry:
                # The leader has lost earlier batches of this producer. Later batches may be in the log: sent again in a
                # new epoch, they would be written twice.
                queue.sequence_lost = True
                lost = queue.remove_sequenced()
            expired = now_s >= batch.created_s + self._delivery_s
            exhausted = not self._idempotent and batch.attempts > self._config["retries"]
            retry = retry and not expired and not exhausted and not queue.sequence_lost and dropped is None
            if retry:
                self._put_back(queue, batch, now_s)
            elif batch.has_sequence:
                queue.unresolved = True
                if not outcome_unknown and not queue.in_flight:
                    new_epoch = True
            if new_epoch and not queue.in_flight and self._transaction is None:
                self._bump_epoch(queue)
            if not queue.in_flight and not queue.waiting:
                queue.retrying = False
        if not retry:
            if expired and code in RETRIABLE:
                error = TimedOut(f"{batch.tp}: timed out after delivery.timeout.ms; the last error was: {error}")
            self._fail_delivery(batch, dropped if dropped is not None and code in RETRIABLE else error)
        for other in lost:
            self._fail_delivery(other, error)

    def _may_retry(self, queue: PartitionQueue, code: ErrorCode, is_first: bool) -> tuple[bool, bool]:
        """(whether a retry can succeed, whether the sequence must restart in a new epoch). Under the lock."""
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._idempotent:
            # Expected behind a batch that failed. For the first batch it means that an earlier one was not written:
            # either it expired here (restart in a new epoch), or the broker lost it (the caller must know).
            is_unresolved = queue.unresolved and self._transaction is None
            return (not is_first or is_unresolved), is_first and is_unresolved
        if code in _UNKNOWN_PRODUCER and self._idempotent and self._transaction is None:
            # The broker forgot the producer after retention removed its records: restart in a new epoch (KIP-360).
            return True, True
        return code in RETRIABLE, False

    def _put_back(self, queue: PartitionQueue, batch: Batch, now_s: float) -> None:
        pause_ms = backoff_ms(batch.attempts, self._config["retry.backoff.ms"], self._config["retry.backoff.max.ms"])
        batch.retry_at_s = now_s + pause_ms / 1000
        position = sum(1 for other in queue.waiting if other.attempts and _precedes(other, batch))
        queue.waiting.insert(position, batch)
        self._accumulator.dirty[queue.tp] = None

    def _bump_epoch(self, queue: PartitionQueue) -> None:
        """Restart the partition's sequence in the next producer epoch, which brokers accept from the same producer."""
        if queue.epoch >= MAX_EPOCH or queue.producer_id < 0:
            self._producer_id = -1
            queue.producer_id = -1
            queue.unresolved = False
            return
        queue.begin_epoch(queue.producer_id, queue.epoch + 1)

    def _fail_delivery(self, batch: Batch, error: Exception) -> None:
        """Fail a batch, and with it the transaction that it belongs to."""
        if self._transaction is not None:
            self._transaction.delivery_failed(error, has_sequence=batch.has_sequence)
        self._fail(batch, error)

    def _drop_unsent(self, error: Exception) -> None:
        """Fail the batches that are not in flight: their transaction is being aborted."""
        with self._accumulator.lock:
            dropped = list(self._accumulator.batches())
            for tp in self._accumulator.dirty:
                queue = self._accumulator.queues[tp]
                queue.waiting.clear()
                queue.retrying = queue.retrying and bool(queue.in_flight)
            self._accumulator.dirty.clear()
        for batch in dropped:
            self._fail_delivery(batch, error)

    def _fail(self, batch: Batch, error: Exception) -> None:
        self._accumulator.release(batch)
        batch.outcome.fail(error)

    def _fail_all(self, error: Exception) -> None:
        with self._accumulator.lock:
            lost = list(self._accumulator.incomplete)
            for queue in self._accumulator.queues.values():
                queue.waiting.clear()
                queue.in_flight.clear()
            self._accumulator.dirty.clear()
        for batch in lost:
            if not batch.outcome.is_done:
                self._fail(batch, error)

    # -- the producer's id

    async def _init_producer_id(self) -> None:
        fields = {"transactional_id": None, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}

        async def attempt() -> tuple[int, int]:
            response = await self._cluster.call(None, ApiKey.INIT_PRODUCER_ID, fields, deadline=deadline)
            code = error_code(response.error_code)
            if code is not ErrorCode.NONE:
                raise broker_error(code, "getting a producer id")
            return int(response.producer_id), int(response.producer_epoch)

        deadline = Deadline(self._config["delivery.timeout.ms"])
        try:
            self._producer_id, self._producer_epoch = await self._cluster.retrying(deadline, attempt)
        except TimedOut as error:
            _log.warning("no producer id could be obtained, retrying: %s", error)
        except Exception as error:
            self._fatal = error
        self._wake.set()


def _precedes(one: Batch, other: Batch) -> bool:
    """Whether `one` has the earlier sequence number, or without sequence numbers was created earlier."""
    if one.has_sequence and other.has_sequence:
        return is_after(other.base_sequence, one.base_sequence)
    return one.created_s <= other.created_s
