"""Transaction calls of Admin: list and describe transactions, end one in a partition, fence a producer.

Owns requests to coordinators of transactions without a producer. Rules: transactions.md X31, X60.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from fenceline.client.admin.admin_requests import AdminRequests
from fenceline.client.core.errors import broker_error, error_code
from fenceline.client.core.transaction_coordinator import describe_transaction, init_producer
from fenceline.errors import ErrorCode
from fenceline.ids import TopicPartition
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import millis

_NO_TRANSACTION_MS = -1


class TransactionalIdListing(NamedTuple):
    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


class TransactionDescription(NamedTuple):
    """`start_ms` is None without a transaction."""

    transactional_id: str
    state: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int | None
    partitions: tuple[TopicPartition, ...]


class TransactionsAdmin(AdminRequests):
    """Part of `AsyncAdmin`."""

    async def list_transactions(
        self,
        *,
        states: Sequence[str] = (),
        producer_ids: Collection[int] = (),
        longer_than_ms: int | None = None,
        pattern: str | None = None,
        timeout_ms: float | None = None,
    ) -> list[TransactionalIdListing]:
        """Transactional ids of all coordinators, ordered by id. `longer_than_ms` needs Kafka 3.8, `pattern` (a regular
        expression for the whole id) Kafka 4.1. Raises PeerError."""
        deadline = self._deadline(timeout_ms)
        await self.cluster.fetch_metadata([], deadline)
        least = 2 if pattern is not None else 1 if longer_than_ms is not None else 0
        fields = {
            "state_filters": list(states),
            "producer_id_filters": list(producer_ids),
            "duration_filter": -1 if longer_than_ms is None else longer_than_ms,
            "transactional_id_pattern": pattern,
        }
        found: list[TransactionalIdListing] = []
        for node_id in sorted(self.cluster.metadata.brokers):

            async def attempt(node_id: int = node_id) -> Any:
                response = await self.cluster.call(
                    node_id, ApiKey.LIST_TRANSACTIONS, fields, deadline=deadline, min_version=least
                )
                code = error_code(response.error_code)
                if code is not ErrorCode.NONE:
                    raise broker_error(code, f"listing the transactions of broker {node_id}")
                return response

            found += [
                TransactionalIdListing(
                    str(each.transactional_id), int(each.producer_id), each.transaction_state, node_id
                )
                for each in (await self.cluster.retrying(deadline, attempt)).transaction_states
            ]
        return sorted(found)

    async def describe_transactions(
        self, transactional_ids: Sequence[str], *, timeout_ms: float | None = None
    ) -> dict[str, TransactionDescription]:
        """Raises PeerError (TRANSACTIONAL_ID_NOT_FOUND)."""
        deadline = self._deadline(timeout_ms)
        found = {}
        for transactional_id in transactional_ids:
            node_id, each = await describe_transaction(self.cluster, transactional_id, deadline)
            start_ms = _milliseconds(each.transaction_start_time)
            found[transactional_id] = TransactionDescription(
                transactional_id,
                each.transaction_state,
                node_id,
                int(each.producer_id),
                int(each.producer_epoch),
                millis(each.transaction_timeout),
                None if start_ms == _NO_TRANSACTION_MS else start_ms,
                tuple(TopicPartition(str(topic.topic), index) for topic in each.topics for index in topic.partitions),
            )
        return found

    async def fence_producer(self, transactional_id: str, *, timeout_ms: float | None = None) -> tuple[int, int]:
        """Abort what the producer with this id has open, and fence it. Returns the new producer id and epoch."""
        deadline = self._deadline(timeout_ms)
        timeout_ms = int(max(1, min(deadline.left_ms, 60_000)))
        _, response = await init_producer(self.cluster, transactional_id, timeout_ms, deadline)
        return int(response.producer_id), int(response.producer_epoch)

    async def abort_in_partition(
        self,
        partition: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        *,
        timeout_ms: float | None = None,
    ) -> None:
        """Write an ABORT marker into one partition, for a transaction that no coordinator will end: the coordinator is
        not notified. Raises PeerError (INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED)."""
        deadline = self._deadline(timeout_ms)
        where = TopicPartition(*partition)
        marker = {
            "producer_id": producer_id,
            "producer_epoch": producer_epoch,
            "transaction_result": False,
            "topics": [{"name": where.topic, "partition_indexes": [where.partition]}],
            "coordinator_epoch": max(coordinator_epoch, 0),
            "transaction_version": 0,
        }

        async def attempt() -> None:
            (node_id,) = await self.cluster.by_leader([where], deadline)
            response = await self.cluster.call(
                node_id, ApiKey.WRITE_TXN_MARKERS, {"markers": [marker]}, deadline=deadline
            )
            code = error_code(response.markers[0].topics[0].partitions[0].error_code)
            if code is not ErrorCode.NONE:
                raise broker_error(code, f"aborting a transaction in {where}")

        await self.cluster.retrying(deadline, attempt)


def _milliseconds(time: datetime | int | None) -> int:
    if time is None:
        return _NO_TRANSACTION_MS
    return time if isinstance(time, int) else round(time.timestamp() * 1000)
