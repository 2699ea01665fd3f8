"""WriteTxnMarkers v1-2: a coordinator of transactions ends them in the partitions led here.

Each partition gets a control batch and is answered once all in-sync replicas have it, as for a producer with acks=all.
Partitions of `__consumer_offsets` are ended by the coordinator of groups, which makes the transaction's offsets visible
or drops them. All markers of a request are appended before it waits for other replicas, a few in a turn of the loop.

Rules: transactions.md X32, X39, X40.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import CONSUMER_OFFSETS_TOPIC
from fenceline.log.core.errors import StorageError
from fenceline.log.core.producer_state import Origin
from fenceline.node.context import Api, RequestContext
from fenceline.records.markers import end_marker
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import request_field

if TYPE_CHECKING:
    from fenceline.ids import TopicPartition
    from fenceline.node.clock import Clock
    from fenceline.node.replication.replica import Replica
    from fenceline.node.replication.replicas import Replicas
    from fenceline.node.replication.replication import FlushUpTo
    from fenceline.wire.requests import WriteTxnMarkersRequest

EndGroupTransactions: TypeAlias = Callable[[int, tuple[int, int], int, bool, int], Awaitable[ErrorCode]]
"""(partition of `__consumer_offsets`, (producer id, epoch), coordinator epoch, whether to commit, transaction version)
-> the code, once the offsets are visible or dropped. Codes of coordinators (14, 15, 16) are translated here."""

_APPENDED_AT_ONCE: Final = 10
"""Markers, of 0.1 to 0.2 ms each. Kafka's coordinator sends in one request what has waited for this broker."""
_NO_GROUP_COORDINATOR: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


class MarkerToWrite(NamedTuple):
    """The end of a transaction, for any of its partitions."""

    identity: tuple[int, int]
    coordinator_epoch: int
    commit: bool
    transaction_version: int


class _Acknowledged:
    """Waits until all in-sync replicas have a marker (`Committer`)."""

    __slots__ = ("code",)

    def __init__(self) -> None:
        self.code: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

    def committed(self, position: int, code: ErrorCode) -> None:
        if not self.code.done():
            self.code.set_result(code)


class TransactionMarkers:
    """The handler of one broker."""

    def __init__(
        self,
        replicas: Replicas,
        clock: Clock,
        *,
        end_group_transactions: EndGroupTransactions,
        flush_up_to: FlushUpTo,
        rejected: Callable[[TopicPartition, int, StorageError], None],
        timeout_ms: int,
    ) -> None:
        """`rejected`: as of the Produce handler. `timeout_ms` limits the wait for replicas (`request.timeout.ms`)."""
        self._replicas = replicas
        self._clock = clock
        self._end_group_transactions = end_group_transactions
        self._flush_up_to = flush_up_to
        self._rejected = rejected
        self._timeout_s = timeout_ms / 1000

    async def handle(self, context: RequestContext, request: WriteTxnMarkersRequest) -> dict[str, Any]:
        keys: list[tuple[int, str, int]] = []
        ends: list[ErrorCode | Awaitable[ErrorCode]] = []
        for each in request.markers:
            marker = MarkerToWrite(
                (each.producer_id, each.producer_epoch),
                each.coordinator_epoch,
                each.transaction_result,
                request_field(each, "transaction_version", 0),
            )
            for topic in each.topics:
                for index in topic.partition_indexes:
                    keys.append((each.producer_id, topic.name, index))
                    ends.append(self.end(topic.name, index, marker))
                    if len(ends) % _APPENDED_AT_ONCE == 0:
                        await asyncio.sleep(0)  # other requests have their turn
        codes: dict[tuple[int, str, int], ErrorCode] = {}
        for key, code in zip(keys, await all_codes(ends), strict=True):
            codes[key] = codes.get(key, ErrorCode.NONE) or code
        return _answer(codes)

    def end(self, topic: str, index: int, marker: MarkerToWrite) -> ErrorCode | Awaitable[ErrorCode]:
        """End a transaction in one partition that is led here: the code, or an awaitable of it. What is appended, is
        when this returns."""
        try:
            replica = self._replicas.hosted(topic, None, index)
        except PeerError:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if topic == CONSUMER_OFFSETS_TOPIC:
            return self._end_of_group(index, marker)
        try:
            end_offset = self._append(replica, marker)
        except PeerError as error:
            return error.code
        must_flush = replica.log.unflushed_messages >= replica.config.flush_messages
        if end_offset <= replica.high_watermark:
            return self._flush(replica, end_offset) if must_flush else ErrorCode.NONE
        acknowledged = _Acknowledged()
        replica.when_committed(end_offset, acknowledged, index)
        return self._wait(replica, index, acknowledged, self._flush(replica, end_offset) if must_flush else None)

    async def _end_of_group(self, index: int, marker: MarkerToWrite) -> ErrorCode:
        code = await self._end_group_transactions(
            index, marker.identity, marker.coordinator_epoch, marker.commit, marker.transaction_version
        )
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if code in _NO_GROUP_COORDINATOR else code

    def _append(self, replica: Replica, marker: MarkerToWrite) -> int:
        """Returns the log end offset. Raises PeerError: 6, 19, 47, 52, 56."""
        leader = replica.leader
        if leader is None:
            raise PeerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        # A leader that recovers waits for the markers of what it has had fenced, and has no in-sync follower yet.
        if not replica.is_recovering and not leader.has_enough_replicas(replica.config.min_insync_replicas):
            raise PeerError(ErrorCode.NOT_ENOUGH_REPLICAS)
        now_ms = self._clock.now_ms()
        batch = end_marker(marker.commit, *marker.identity, marker.coordinator_epoch, now_ms)
        try:
            appended = replica.log.append_as_leader(
                memoryview(batch),
                leader_epoch=leader.leader_epoch,
                now_ms=now_ms,
                origin=Origin.COORDINATOR,
                transaction_version=marker.transaction_version,
            )
        except StorageError as error:
            self._rejected(replica.topic_partition, replica.log.log_end_offset, error)
            raise
        replica.appended()
        if replica.is_recovering:
            replica.wake()  # its recovery waits for markers, also before they are committed
        return appended.last_offset + 1

    async def _flush(self, replica: Replica, end_offset: int) -> ErrorCode:
        error = await self._flush_up_to(replica, end_offset)
        return error.code if error is not None else ErrorCode.NONE

    async def _wait(
        self, replica: Replica, index: int, acknowledged: _Acknowledged, flush: Awaitable[ErrorCode] | None
    ) -> ErrorCode:
        code = await flush if flush is not None else ErrorCode.NONE
        if code is ErrorCode.NONE:
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await acknowledged.code
            except TimeoutError:
                code = ErrorCode.REQUEST_TIMED_OUT
        replica.forget(acknowledged, index)
        return code


async def all_codes(ends: Sequence[ErrorCode | Awaitable[ErrorCode]]) -> list[ErrorCode]:
    """The codes of `TransactionMarkers.end`, in order."""
    waiting = iter(await asyncio.gather(*(end for end in ends if not isinstance(end, ErrorCode))))
    return [end if isinstance(end, ErrorCode) else next(waiting) for end in ends]


def _answer(codes: dict[tuple[int, str, int], ErrorCode]) -> dict[str, Any]:
    """One result for each producer, as in Kafka."""
    by_producer: dict[int, dict[str, list[dict[str, Any]]]] = {}
    for (producer_id, topic, index), code in codes.items():
        partitions = by_producer.setdefault(producer_id, {}).setdefault(topic, [])
        partitions.append({"partition_index": index, "error_code": code})
    return {
        "markers": [
            {
                "producer_id": producer_id,
                "topics": [{"name": topic, "partitions": partitions} for topic, partitions in topics.items()],
            }
            for producer_id, topics in by_producer.items()
        ]
    }


def apis(markers: TransactionMarkers) -> tuple[Api, ...]:
    return (Api(ApiKey.WRITE_TXN_MARKERS, 1, 2, markers.handle),)
